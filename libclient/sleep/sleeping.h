/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session's sleep, from the hold to its end, and all of a party's (party.h) as a list of those.
 *
 * Owner: who has the party's lock; once a session is asleep, the session.
 *
 * Threads: with the party's lock, unless it says otherwise.
 */
#ifndef GLAKE_LIBCLIENT_SLEEPING_H
#define GLAKE_LIBCLIENT_SLEEPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/asleep.h"

/*
 *            told           fetched
 *   UNTOLD --------> AWAY ----------> HERE
 *     ^               ^  given back    |
 *     |               '----------------|
 *     '---------- STALE <--------------' glaked was started anew
 *      unmapped
 */
enum glake__sleeping_state {
	GLAKE__SLEEPING_UNTOLD, /* glaked may take it to be mapped still */
	GLAKE__SLEEPING_AWAY,   /* glaked knows that it is unmapped, as far as that is so */
	GLAKE__SLEEPING_HERE,   /* glaked has brought it to the GPU */
	GLAKE__SLEEPING_STALE, /* UNTOLD; what is mapped of it goes first: it is not what glaked has */
};

struct glake__sleeping {
	struct glake__asleep memory;
	struct glake_session *session;
	struct glake__sleeping *next; /* of the party */
	uint64_t *ids;                /* owned: of the chunks, and of wholes */
	uint64_t *bytes;              /* owned: of each */
	size_t n_ids;
	uint32_t why; /* enum glake__sleep_why */
	bool is_held;
	enum glake__sleeping_state state;
	bool is_begun; /* some of it may be mapped */
};

/* All of the party of @asked that are awake, for the caller to drop(). 0 or -ENOMEM. */
int glake__sleeping_gather_awake(struct glake_session *asked, struct glake__sleeping **first_out);
void glake__sleeping_drop(struct glake__sleeping *first);

/* All that are asleep; they stay their sessions'. */
struct glake__sleeping *glake__sleeping_gather_asleep(struct glake_session *asked);

/* Counts the memory that is asleep, and the memory that stays: of @of alone, or of all (NULL). */
void glake__sleeping_describe(const struct glake__sleeping *first, const struct glake_session *of,
                              uint64_t began_ns, uint64_t held_ns, struct glake_slept *slept_out);

/* Tell glaked that all of it is unmapped. 0 or a request error; glaked is waited for. */
int glake__sleeping_tell(struct glake__sleeping *sleeping);

/* All are asleep, and the list is theirs. */
void glake__sleeping_begin(struct glake__sleeping *first);

/* None of them is any more, or came so far: let() all, and wake the gate of the party of @session, if nobody else sleeps. */
void glake__sleeping_end(struct glake__sleeping *first, struct glake_session *session);

/* Let others use the memory that was held. */
void glake__sleeping_let(struct glake__sleeping *first);

/*
 * Nothing of it is asleep any more, and the gate is awake: models that ended meanwhile are unmapped. _of: without the lock, too.
 */
void glake__sleeping_end_late(struct glake__sleeping *first);
void glake__sleeping_end_late_of(struct glake_session *session);

#endif

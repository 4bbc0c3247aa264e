/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of which steps are committed, lent and returned (glake_elastic.h).
 *
 * Invariants: who has made a step COMING or GOING, by compare-and-swap, is the only one who changes its memory, and makes it
 * something else soon: nobody waits for others with such a step in hand, but for glaked, who may wait for memory. A step
 * is HELD or LENT if and only if all its lanes have their chunk, and a HOLE if and only if none has: with a guard, all have that.
 * n_lent is the number of LENT steps, once nobody is between
 * the two.
 *
 * Owner: the session's books list them. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ELASTIC_H
#define GLAKE_LIBCLIENT_ELASTIC_H

#include <stdatomic.h>

#include "glake_elastic.h"
#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/space/range.h"

extern const struct glake__use glake__use_elastic;
/* The same with a guard: an exchange that fails is undone, by the handles of what was there. */
extern const struct glake__use glake__use_elastic_guarded;

struct glake_elastic {
	struct glake_elastic *next; /* link: books.elastics */
	struct glake_session *session;
	struct glake__device *device; /* borrowed from the session */
	struct glake__range *range;   /* owned */
	struct glake__chunk *guard;   /* one use; NULL: without GLAKE_ELASTIC_GUARD */
	struct glake_elastic_desc desc;
	uint8_t key[GLAKE_ELASTIC_KEY_BYTES]; /* desc.n_key of them */
	_Atomic uint32_t *states;             /* owned: of each step, enum glake_elastic_state */
	_Atomic uint8_t *sealed; /* owned: of each step, 1 = glaked may have a will for it */
	_Atomic uint32_t n_lent;
	_Atomic uint32_t n_held;
	_Atomic uint8_t *wanted; /* owned: of each step, 1 = to be made ahead; */
	atomic_bool has_wanted;  /* some is, perhaps */
	_Atomic uint64_t n_commits;
	_Atomic uint64_t n_ahead; /* of them */
	_Atomic uint64_t n_takes;
	_Atomic uint64_t n_returns;
	uint32_t
		n_users; /* of the library's own, that do not have the lock. The lock of the space */
};

/* 0, or -EINVAL, the text set: the range has no such steps, or is NULL. */
int glake__elastic_check(const struct glake_elastic *elastic, uint32_t first, uint32_t n);
/* The step was a hole, and is COMING, by this thread, which says with the next what has come. */
bool glake__elastic_claim(struct glake_elastic *elastic, uint32_t step);
/* @result 0: its memory is mapped in all lanes, and it is HELD. */
void glake__elastic_settle(struct glake_elastic *elastic, uint32_t step, int result);
/* Its place in all lanes. */
struct glake__lanes glake__elastic_lanes(const struct glake_elastic *elastic, uint32_t first,
                                         uint32_t n);

#endif

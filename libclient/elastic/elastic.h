/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of which steps are committed, lent and returned (glake_elastic.h).
 *
 * Invariants: who has made a step COMING or GOING, by compare-and-swap, is the only one who changes its memory, and makes it
 * something else soon: nobody waits for others with such a step in hand, but for glaked, who may wait for memory. A step
 * is HELD, SHOWN, LENT or READ if and only if all its lanes have their chunk, and a HOLE if and only if none has: with a guard, all have that.
 * A step is SHOWN if and only if n_shown of it is not 0: so it can neither be lent nor go under who reads it.
 * n_lent is the number of LENT steps, once nobody is between
 * the two.
 *
 * Owner: the session's books list them. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ELASTIC_H
#define GLAKE_LIBCLIENT_ELASTIC_H

#include <stdatomic.h>

#include "glake_elastic.h"
#include "libclient/elastic/marks.h"
#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/space/range.h"

extern const struct glake__use glake__use_elastic;
/* The use of ranges with a guard: an exchange that fails is undone, by the handles of the old memory. */
extern const struct glake__use glake__use_elastic_guarded;

/* Where the memory of a READ step has its first place. */
struct glake__origin {
	struct glake_elastic *of; /* NULL: in another process */
	uint32_t step;
};

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
	uint32_t *
		n_shown; /* owned: of each step, its second places. The lock of the space, as the next */
	struct glake__origin *origins; /* owned: of each step, if it is READ */
	_Atomic uint32_t n_lent;
	_Atomic uint32_t n_held;
	_Atomic uint32_t n_read;
	_Atomic uint8_t *wanted; /* owned: of each step, 1 = to be made ahead; */
	atomic_bool has_wanted;  /* some is, perhaps */
	_Atomic uint64_t n_commits;
	_Atomic uint64_t n_ahead; /* of them */
	_Atomic uint64_t n_takes;
	_Atomic uint64_t n_returns;
	struct glake__elastic_marks marks;
	struct glake__attendant *attendants; /* owned list. The lock of the space */
	uint32_t
		n_users; /* of the library's own, that do not have the lock. The lock of the space */
};

/* 0, or -EINVAL, the text set: the range has no such steps, or is NULL. */
int glake__elastic_check(const struct glake_elastic *elastic, uint32_t first, uint32_t n);
/* The step was a hole, and is COMING, by this thread, which says with the next what has come. */
bool glake__elastic_claim(struct glake_elastic *elastic, uint32_t step);
/* Whether the step was @from, and is @to now. */
bool glake__elastic_turn(struct glake_elastic *elastic, uint32_t step, uint32_t from, uint32_t to);
/* Whether the step is held now: what is lent is taken. */
bool glake__elastic_take(struct glake_elastic *elastic, uint32_t step);
/* Whether all lanes have memory of the step; or as a hole should, none. */
bool glake__elastic_is_all(const struct glake_elastic *elastic, uint32_t step, bool is_there);
/* -EBUSY, the text set: one of these steps is SHOWN or READ. 0: none is. */
int glake__elastic_check_shown(const struct glake_elastic *elastic, uint32_t first, uint32_t n);
/* Called when @elastic ends: the steps that its second places show are shown once less. -EBUSY, the text set: others show some of
 * its own steps, and nothing has happened. */
int glake__elastic_end_origins(struct glake_elastic *elastic);
/* 0, or -EINVAL, the text set: its steps are neither sealed nor found by others. */
int glake__elastic_check_keeps(const struct glake_elastic *elastic);
/* @result 0: its memory is mapped in all lanes, and it is HELD. */
void glake__elastic_settle(struct glake_elastic *elastic, uint32_t step, int result);
/* The place of steps [first, first + n) in all lanes. */
struct glake__lanes glake__elastic_lanes(const struct glake_elastic *elastic, uint32_t first,
                                         uint32_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stitched ranges: chunks that lie apart in a range, mapped a second time, side by side.
 *
 * Nothing is unmapped, so work that runs is not disturbed. A stitched range is made for one allocation and
 * kept: a later one that finds the same memory free takes it again without a driver call, also a smaller one,
 * which takes its front. So the second round of a loop maps nothing. Where that comes near, a kept range is changed:
 * it has addresses for more chunks at its end, and other chunks may stand where some of its own are in use.
 * Those not used longest are dropped when there are too many; live ones never count against that.
 *
 * The pool says which memory is free (pool.h). Here are only the ranges, and what is mapped in them.
 *
 * Owner: the pool. Lifetime: glake__stitched_new() .. glake__stitched_drop().
 * Threads: any for new and drop, which block, no lock is held; the rest is called with the lock of the space.
 */
#ifndef GLAKE_LIBCLIENT_STITCHED_H
#define GLAKE_LIBCLIENT_STITCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/range.h"

/* The memory of home, side by side: user is a struct glake__stitched. Defined with the pool's. */
extern const struct glake__use glake__use_stitched;

/* Pages of the home range, of whole chunks. */
struct glake__stretch {
	uint64_t page;
	uint64_t n_pages;
};

struct glake__stitched {
	struct glake__range *range; /* owned */
	uint64_t n_pages;
	struct glake__stretch *stretches; /* owned: what is mapped, in order */
	size_t n_stretches;
	size_t n_chunks;
	uint64_t n_skipped; /* units (runs.h) at its front that are another allocation's */
	bool is_in_set;
	bool is_live;    /* false: it is kept for the next */
	void *user;      /* the allocation that it is; NULL: none, or it is being freed */
	uint64_t stream; /* whose work used it last, */
	uint64_t number; /* up to this number (runs.h); 0: no work uses it */
	struct glake__stitched *older; /* link: those kept, by age */
	struct glake__stitched *newer;
};

/* All of a pool. {0} is empty. */
struct glake__stitched_set {
	struct glake__stitched **by_size; /* owned; by n_pages, smallest first */
	size_t n;
	size_t capacity;
	struct glake__stitched *oldest; /* of those that are not live */
	struct glake__stitched *newest;
	size_t n_live;
	uint64_t n_pages;      /* in all */
	uint64_t n_kept_pages; /* in those that are not live */
};

/*
 * Map @stretches of @home, of the memory of @device, CUDA's. Takes the array over if it succeeds. It is in no
 * set. 0; -ENOMEM; GLAKE_E_CUDA, when nothing is mapped; -EBUSY: a thread holds some of the chunks, to seal memory that
 * shares one; -ESTALE: it has replaced some meanwhile.
 */
int glake__stitched_new(struct glake_session *session, struct glake__range *home, int device,
                        struct glake__stretch *stretches, size_t n_stretches,
                        struct glake__stitched **stitched_out);

/*
 * Map @stretches of @home in it instead of what is there: only where the two differ. @stitched is live, and what is
 * there and no more in @stretches no work uses. Its own row stays as it is, until glake__stitched_set_row(). 0;
 * -ENOMEM; GLAKE_E_CUDA; -EBUSY; -ESTALE.
 */
struct glake__stitched_change {
	size_t n_chunks;   /* in the new row, */
	size_t n_mapped;   /* of them new */
	size_t n_unmapped; /* also after an error: if any, the range can only be dropped */
};
int glake__stitched_change(struct glake_session *session, struct glake__range *home,
                           struct glake__stitched *stitched, const struct glake__stretch *stretches,
                           size_t n_stretches, struct glake__stitched_change *change_out);

/*
 * Unmap and free it. No work uses it. What the driver does not unmap stays mapped, and its memory alive. Memory
 * that another thread has unmapped in home meanwhile goes back to glaked with this.
 */
void glake__stitched_drop(struct glake_session *session, struct glake__stitched *stitched);

/* Are the chunks of @stretch of @home those at @offset of the range? Called with the lock held. */
bool glake__stitched_is_at(const struct glake__stitched *stitched, uint64_t offset,
                           const struct glake__range *home, const struct glake__stretch *stretch);

/* Into the set, live. 0 or -ENOMEM. */
int glake__stitched_add(struct glake__stitched_set *set, struct glake__stitched *stitched);
/* Out of it; it is not live. */
void glake__stitched_remove(struct glake__stitched_set *set, struct glake__stitched *stitched);

/* The row that is mapped now. Takes the array over. */
void glake__stitched_set_row(struct glake__stitched_set *set, struct glake__stitched *stitched,
                             struct glake__stretch *stretches, size_t n_stretches, size_t n_chunks);

/* Moves @stitched to the live ranges, or to the kept ones, as the newest. */
void glake__stitched_set_live(struct glake__stitched_set *set, struct glake__stitched *stitched);
void glake__stitched_set_kept(struct glake__stitched_set *set, struct glake__stitched *stitched);

/* The first in by_size with @n_pages or more; n: none. */
size_t glake__stitched_lower_bound(const struct glake__stitched_set *set, uint64_t n_pages);

#endif

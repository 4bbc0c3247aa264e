/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a pool, which its files share, and the functions that work on it under the lock.
 *
 *   pool_alloc.c    allocations: taken of what is free, freed, found; the numbers
 *   pool_recipe.c     of what is free: chunks to be stitched
 *   pool_change.c   of what is kept: a range that such chunks make fit
 *   pool_make.c     what takes time: stitching, and memory of glaked
 *   pool_borrow.c   memory that other streams have freed and may still use
 *   pool_reclaim.c  giving back
 *   pool_seal.c     allocations that are sealed: held, counted, and what becomes of them
 */
#ifndef GLAKE_LIBCLIENT_POOL_PARTS_H
#define GLAKE_LIBCLIENT_POOL_PARTS_H

#include "libclient/stitch/pool.h"
#include "libclient/space/range.h"
#include "libclient/stitch/stitched.h"

struct glake__pool {
	struct glake__device *device; /* borrowed from the session */
	struct glake__range *home;    /* owned */
	struct glake__runs runs;
	struct glake__stitched_set stitched;
	uint64_t kept_min_pages;        /* of them that are kept in any case; tests set it */
	struct glake_pool_stats *stats; /* the heap's */
	struct glake__run
		*doomed;        /* sealed memory that was freed and no work uses: to be unmapped */
	size_t n_held;          /* of its allocations, now */
	bool was_held;          /* some of it: it may have been sealed */
	bool is_dirty;          /* ranges are kept that are not true */
	bool is_reused;         /* memory that was freed has served again */
	unsigned n_grows_plain; /* since it last stitched */
	uint64_t lent_bytes;    /* given back, not because the program asked, and not had again */
	uint64_t refused_ns;    /* when glaked had no memory last; 0: never */
	uint64_t spare_bytes;   /* above what the last rounds have used */
	bool is_spare_busy;     /* none of it could go when it was tried last */
	uint64_t round_ns;      /* when this one began */
	uint64_t round_length_ns; /* longer, the more often what went back was wanted again */
	uint64_t trimmed_bytes;   /* reserved when such memory went back; 0: not lately */
	unsigned n_calm_rounds;   /* since then */
	uint64_t peak_bytes;      /* used in this one */
	uint64_t last_peak_bytes;
	unsigned n_calls;
	struct glake__reclaim *reclaims; /* that go on, the last one first */
	uint64_t n_reclaims;             /* begun, ever */
};

/* A thread gives memory back. It is neither used by the program nor free meanwhile. */
struct glake__reclaim {
	uint64_t number;
	struct glake__reclaim *next;
};

/* An allocation. The library and the shim know its first member. */
struct glake__pooled {
	struct glake__allocation allocation;
	struct glake__pool *pool;
	struct glake__run *runs;          /* used ones, by next_in_bin; NULL while it is parked */
	struct glake__stitched *stitched; /* NULL: runs is one, where it lies */
	bool is_held;                     /* by one that seals it, or looks */
	bool was_held;
	uint64_t sealed_bytes;     /* blocks in it, when it was let last; whole pages */
	struct glake__run *doomed; /* once it is being freed: the runs that are blocks */
	/* While it is parked, frees that come soon behind it on its line wait with it: */
	struct glake__line *line;
	uint64_t parked_ns;
	_Atomic bool is_closed; /* no more of them */
	uint64_t number;        /* then: of the last that it waits for */
	bool is_in_parking;     /* not yet, or not any more, of glake__pool_detach_locked() */
	bool is_passed;
};

static inline struct glake__pooled *glake__pooled_of(struct glake__allocation *allocation)
{
	return (struct glake__pooled *)allocation;
}

static inline uint64_t glake__units_of(uint64_t n_bytes)
{
	return n_bytes / RUN_UNIT_BYTES + (n_bytes % RUN_UNIT_BYTES > 0);
}

static inline uint64_t glake__pages_of(uint64_t n_units)
{
	return (n_units + RUN_PAGE_UNITS - 1) / RUN_PAGE_UNITS;
}

/* All that follows is called with the lock held. */

/* Without memory or address yet, and claimed until glake__pooled_begin(). NULL without memory of the host. */
struct glake__pooled *glake__pooled_new(struct glake__pool *pool, uint64_t n_bytes,
                                        const struct glake__tag *tag);
/* @run, used, is a part of it. */
void glake__pooled_add_run(struct glake__pooled *pooled, struct glake__run *run);
/* The memory of @pooled, which no work of its own has used, is free again, for those that had it. */
void glake__pooled_give_up(struct glake__pooled *pooled);
/* @pooled has its memory: from now on it is an allocation. */
struct glake__allocation *glake__pooled_begin(struct glake__pooled *pooled);

/* Memory without a driver call: a free run, or a stitched range that was kept. */
bool glake__pooled_take(struct glake__pool *pool, struct glake__pooled *pooled,
                        struct glake__line *line);
/* @n_units of @stretches behind @n_skipped, which are free for its line. False: no memory of the host. */
bool glake__pooled_carve(struct glake__pool *pool, struct glake__pooled *pooled,
                         const struct glake__stretch *stretches, uint64_t n_skipped,
                         uint64_t n_units);

/* Has the work that used it last been done, and is none of it being sealed? Then it can be unmapped at once. */
bool glake__pool_is_idle(const struct glake__pool *pool, const struct glake__stitched *stitched);

/* Is all of [unit, unit + n_units) free for @line? */
bool glake__pool_is_free(const struct glake__pool *pool, const struct glake__line *line,
                         uint64_t unit, uint64_t n_units);

/* The chunk that page @page is in. */
struct glake__stretch glake__pool_chunk_at(const struct glake__pool *pool, uint64_t page);
/* The whole chunks in @run, which is mapped, side by side. n_pages 0: there are none. */
struct glake__stretch glake__pool_whole_chunks(const struct glake__pool *pool,
                                               const struct glake__run *run);

/* The mappings of that chunk: a list by next_mapping. */
const struct glake__piece *glake__pool_mappings_at(const struct glake__pool *pool, uint64_t page);

/* Does @stitched map what lies in home? Not if some of that was sealed, freed and unmapped. */
bool glake__pool_is_true(const struct glake__pool *pool, const struct glake__stitched *stitched);

/* Does a thread hold chunks in it, to seal what lies in them? Who unmapped them now would wait for it. */
bool glake__pool_is_busy(const struct glake__pool *pool, const struct glake__stitched *stitched);

/* The units of @run that are blocks. */
uint64_t glake__pool_count_sealed(const struct glake__pool *pool, const struct glake__run *run);

/*
 * @pooled is being freed. doom: those of its runs that are blocks leave its list for the one of the doomed, which serve
 * nobody. spare: they are back. condemn: no work uses them any more, and the next purge unmaps them.
 */
void glake__pooled_doom(struct glake__pooled *pooled);
void glake__pooled_spare(struct glake__pooled *pooled);
void glake__pooled_condemn(struct glake__pooled *pooled);

/* A recipe lists the memory that an allocation is stitched of. {0} is empty: the allocation is not stitched. */
struct glake__recipe {
	struct glake__stitched *kept; /* which is changed to have the row; NULL: a new one has */
	struct glake__stretch *list;  /* owned: what is mapped, in order; with room for one more */
	size_t n;
	uint64_t n_units;   /* free ones in it, that are the allocation's */
	uint64_t n_skipped; /* others, of the first chunk, in front of them */
	uint64_t n_missing; /* units that nothing is free for. Fresh memory comes last, */
	bool has_last;      /* or before the last chunk, of which only the front is free */
};

/* The smallest whole chunks first, which leaves the large ones whole. 0 or -ENOMEM, when the recipe is empty. */
int glake__recipe_make(struct glake__pool *pool, const struct glake__line *line, uint64_t n_units,
                       struct glake__recipe *recipe);

/* The whole chunks that are free for @line, the smallest stretches first. 0 or -ENOMEM. The caller frees the array. */
int glake__recipe_list_free(struct glake__pool *pool, const struct glake__line *line,
                            struct glake__stretch **list_out, size_t *n_out);

/*
 * A kept range instead of a new one, where less has to be mapped for that, and no more is asked of glaked: one that is
 * free but too short; or, when @is_full, one that would be dropped for the new one. Else @recipe stays as it is.
 */
void glake__recipe_change(struct glake__pool *pool, const struct glake__line *line,
                          uint64_t n_units, bool is_full, struct glake__recipe *recipe);

/* A loan is the memory that @lender has freed, up to @number. */
struct glake__loan {
	struct glake__pool *pool;
	struct glake__line *lender; /* the loan holds it */
	uint64_t number;
};

/* The loan that gives @line @n_units, of which @n_missing could not be stitched. False: there is none. */
bool glake__pool_find_loan(struct glake__pool *pool, const struct glake__line *line,
                           uint64_t n_units, uint64_t n_missing, struct glake__loan *loan_out);
/*
 * Without the lock: the stream that @wait is of, @line's, waits for the lender, on the device. False: it cannot. The
 * loan is over.
 */
bool glake__pool_borrow(struct glake__loan *loan, struct glake__line *line,
                        const struct glake__wait *wait);

/* Around what a thread takes and gives back. @reclaim lives as long. */
void glake__reclaim_begin(struct glake__pool *pool, struct glake__reclaim *reclaim);
void glake__reclaim_end(struct glake__pool *pool, const struct glake__reclaim *reclaim);

/* Without the lock: unmap what is doomed, and drop kept ranges that are not true. Cheap if there is nothing. */
void glake__pool_purge(struct glake__pool *pool);

void glake__pool_count_reserved(struct glake__pool *pool, int64_t n_bytes);
void glake__pool_count_stitched(struct glake__pool *pool);

#endif

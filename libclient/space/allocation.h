/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocation of private memory, wherever it lies: in a backing, a slab or a pool.
 */
#ifndef GLAKE_LIBCLIENT_ALLOCATION_H
#define GLAKE_LIBCLIENT_ALLOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/wait.h"

/*
 * The shim's notes on an allocation. The library reads ctx and generation only, to find
 * allocations.
 */
struct glake__tag {
	void *ctx; /* that allocated it: the memory ends with it */
	uint64_t generation;
	void *pool;
	void *connection;
	uint64_t stream; /* the id of the stream in whose order it was allocated, + 1; 0: none */
};

/* Smaller requests lie in slabs. */
#define GLAKE__POOL_MIN_BYTES (128u * 1024)

/* Ids from here on are no streams of the driver's, but of captures (shim/graphmem.h). */
#define GLAKE__GRAPH_STREAM (1ull << 63)

/*
 * Does an allocation with @tag, of @n_bytes, come from the pool of a session that stitches? Small ones of a capture
 * do: a slab does not know what may serve again in the same capture.
 */
static inline bool glake__pool_serves(const struct glake__tag *tag, uint64_t n_bytes)
{
	return tag->stream > GLAKE__GRAPH_STREAM ||
	       (tag->stream > 0 && n_bytes >= GLAKE__POOL_MIN_BYTES);
}

/*
 * A piece of private memory, live or parked: all of a range of its own, or part of a slab or pool. A thread
 * reads it if it has claimed it or holds the lock.
 */
struct glake__allocation {
	glake_ptr address;
	uint64_t n_bytes;    /* as asked for */
	uint64_t n_capacity; /* as taken */
	uint64_t id;         /* of this allocation; never used again */
	int ordinal;         /* of its CUDA device */
	bool is_claimed;     /* a thread is about to free it */
	bool is_parked;      /* freed in the order of a stream, which may still use it */
	struct glake__tag tag;
	struct glake__allocation *next;  /* link: a list of claimed ones */
	bool is_pooled;                  /* it lies in a pool (pool.h), and not in: */
	struct glake__backing *backing;  /* borrowed: it lies there */
	struct glake__slab_block *block; /* borrowed; NULL: all of the backing */
};

/* Facts about an allocation, found by any address in it. */
struct glake__facts {
	glake_ptr address;
	uint64_t n_bytes;
	uint64_t id;
	int ordinal;
	struct glake_session *session; /* borrowed */
	struct glake__tag tag;
	glake_ptr region_address; /* of its range */
	uint64_t region_bytes;
	uint64_t region_id;
};

/* The outcome for a claimed allocation that leaves the program in the order of a stream (heap/claim.h). */
struct glake__parking {
	uint64_t
		n_reusable; /* bytes that a parked allocation may serve next, by glake__heap_reuse() */
	/* The memory, if it is of a pool (pool.h). */
	struct glake__pool *pool;
	struct glake__pooled *waiting;
	uint64_t number;
	struct glake__run *runs;
	struct glake__stitched *stitched;
};

#endif

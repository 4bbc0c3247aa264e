/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few chunks of common sizes, made and exported ahead, so that requests do not wait for the
 * driver: of configured sizes, and of sizes that were asked for again lately. Only fresh chunks enter the pool. Returned chunks are released, because only fresh memory
 * of the driver is known to be zero.
 *
 * Under memory pressure the pool is drained first (pool_drain). It stays empty until the next
 * pool_resume().
 *
 * Owner: the allocator, one per device.
 * Threads: loop thread; chunks are made on the device's worker.
 */
#ifndef GLAKE_DAEMON_POOL_H
#define GLAKE_DAEMON_POOL_H

#include <stdbool.h>

#include "daemon/memory/chunk.h"
#include "daemon/config/config.h"

/* So many sizes are followed, with so many chunks of each and so many bytes of all at most. */
#define POOL_FOLLOWED_SIZES 8u
#define POOL_FOLLOWED_CHUNKS 4u
#define POOL_FOLLOWED_BYTES (256ull << 20)

struct pool_size {
	uint64_t chunk_bytes; /* 0: no size */
	unsigned n_wanted;
	unsigned n_coming; /* that the worker is making */
	unsigned n_chunks;
	bool was_asked; /* since the last pool_resume(), if it is followed */
	struct chunk chunks[CONFIG_MAX_POOL_CHUNKS];
};

struct pool {
	struct device *device;     /* borrowed */
	struct chunk_books *books; /* borrowed */
	struct tenant *payer;      /* borrowed: the built-in tenant */
	bool is_paused;
	unsigned n_sizes;          /* configured; 0: nothing is made ahead */
	uint64_t n_followed_bytes; /* ready or coming */
	/* The first POOL_FOLLOWED_SIZES are followed. */
	struct pool_size sizes[POOL_FOLLOWED_SIZES + CONFIG_MAX_POOL_SIZES];
};

void pool_init(struct pool *pool, struct device *device, struct chunk_books *books,
               struct tenant *payer);

/* Keep 1 .. CONFIG_MAX_POOL_CHUNKS of @chunk_bytes ready. For CONFIG_MAX_POOL_SIZES sizes at most. */
void pool_want(struct pool *pool, uint64_t chunk_bytes, unsigned n_wanted);

/* Order missing chunks. Cheap if there are none. */
void pool_refill(struct pool *pool);

/* Move a ready chunk of exactly @bytes to @chunk_out, without the pool's charge. */
bool pool_take(struct pool *pool, uint64_t bytes, struct chunk *chunk_out);

/* None of @bytes was ready for a request. If that was not the first time, pool_refill() makes one more. */
void pool_follow(struct pool *pool, uint64_t bytes);

/* Release everything and stop refilling. Returns the bytes that become free. */
uint64_t pool_drain(struct pool *pool);

/* Called now and then. Sizes that were not asked for since the last time are not followed any more. */
void pool_resume(struct pool *pool);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few chunks of common sizes, made and exported ahead, so that a request need not wait for the
 * driver. Only fresh chunks ever enter it: what a session gives back is released, not kept, since
 * the driver's fresh memory is the one that is known to be zero.
 *
 * Under memory pressure the pool is the first to go (pool_drain) and stays empty until the next
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

struct pool_size {
	uint64_t chunk_bytes;
	unsigned n_wanted;
	unsigned n_coming; /* being made by the worker */
	unsigned n_chunks;
	struct chunk chunks[CONFIG_MAX_POOL_CHUNKS];
};

struct pool {
	struct device *device;     /* borrowed */
	struct chunk_books *books; /* borrowed */
	struct tenant *payer;      /* borrowed: the built-in tenant */
	bool is_paused;
	unsigned n_sizes;
	struct pool_size sizes[CONFIG_MAX_POOL_SIZES];
};

void pool_init(struct pool *pool, struct device *device, struct chunk_books *books,
               struct tenant *payer);

/* Keep 1 .. CONFIG_MAX_POOL_CHUNKS of @chunk_bytes ready. For CONFIG_MAX_POOL_SIZES sizes at most. */
void pool_want(struct pool *pool, uint64_t chunk_bytes, unsigned n_wanted);

/* Order what is missing. Cheap when nothing is. */
void pool_refill(struct pool *pool);

/* Move a ready chunk of exactly @bytes to @chunk_out. The pool's charge is gone from it. */
bool pool_take(struct pool *pool, uint64_t bytes, struct chunk *chunk_out);

/* Release everything and stop refilling. Returns the bytes that become free. */
uint64_t pool_drain(struct pool *pool);
void pool_resume(struct pool *pool);

#endif

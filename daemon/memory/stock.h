/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few chunks of common sizes, made and exported ahead, so that requests do not wait for the driver: of configured sizes, and
 * of sizes that were asked for again lately. Only fresh chunks enter the stock. Returned chunks are released, because only
 * fresh memory of the driver is known to be zero.
 *
 * Under memory pressure the stock is drained first (stock_drain). It stays empty until the next
 * stock_resume().
 *
 * Owner: the allocator, one per location.
 * Threads: loop thread; chunks are made on the location's worker.
 */
#ifndef GLAKE_DAEMON_POOL_H
#define GLAKE_DAEMON_POOL_H

#include <stdbool.h>

#include "daemon/memory/chunk.h"
#include "daemon/config/config.h"

/* A stock follows at most this many sizes, with this many chunks of each and this many bytes of all. */
#define STOCK_FOLLOWED_SIZES 8u
#define STOCK_FOLLOWED_CHUNKS 4u
#define STOCK_FOLLOWED_BYTES (256ull << 20)

struct stock_size {
	uint64_t chunk_bytes; /* 0: no size */
	unsigned n_wanted;
	unsigned n_coming; /* chunks that the worker is making */
	unsigned n_chunks;
	bool was_asked; /* since the last stock_resume(), if it is followed */
	struct chunk chunks[CONFIG_MAX_STOCK_CHUNKS];
};

struct stock {
	struct location *at;       /* borrowed */
	struct chunk_books *books; /* borrowed */
	struct tenant *payer;      /* borrowed: the built-in tenant */
	bool is_paused;
	unsigned n_sizes;          /* configured; 0: nothing is made ahead */
	uint64_t n_followed_bytes; /* ready or coming */
	/* The first STOCK_FOLLOWED_SIZES are followed. */
	struct stock_size sizes[STOCK_FOLLOWED_SIZES + CONFIG_MAX_STOCK_SIZES];
};

void stock_init(struct stock *stock, struct location *at, struct chunk_books *books,
                struct tenant *payer);

/* Keep 1 .. CONFIG_MAX_STOCK_CHUNKS of @chunk_bytes ready. For CONFIG_MAX_STOCK_SIZES sizes at most. */
void stock_want(struct stock *stock, uint64_t chunk_bytes, unsigned n_wanted);

/* Order missing chunks. Cheap if there are none. */
void stock_refill(struct stock *stock);

/* Move a ready chunk of exactly @bytes to @chunk_out, without the stock's charge. */
bool stock_take(struct stock *stock, uint64_t bytes, struct chunk *chunk_out);

/* None of @bytes was ready for a request. If that was not the first time, stock_refill() makes one more. */
void stock_follow(struct stock *stock, uint64_t bytes);

/* Release everything and stop refilling. Returns the bytes that become free. */
uint64_t stock_drain(struct stock *stock);

/* Called now and then. Sizes that were not asked for since the last time are not followed any more. */
void stock_resume(struct stock *stock);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving out chunks: the tenant's quota, the pool, the driver, and the order in which memory is
 * taken back when the GPU is full.
 *
 * A request is granted whole or not at all. When the driver (or the configured reserve) says no:
 *   1. the pool is drained,
 *   2. the owner of evictable memory is asked to evict (alloc_hooks.evict), as often as it can,
 *   3. clients are asked for their warm memory (alloc_hooks.reclaim), and, where the config says
 *      `pressure = "wait"`, the request waits and tries again until its time is up,
 *   4. it is refused.
 *
 * Owner: the server. A request (struct alloc) belongs to the allocator until its callback.
 * Threads: loop thread; the driver is called on the device's worker.
 */
#ifndef GLAKE_DAEMON_ALLOC_H
#define GLAKE_DAEMON_ALLOC_H

#include "daemon/chunk.h"
#include "daemon/list.h"
#include "daemon/pool.h"
#include "daemon/stats.h"

enum {
	ALLOC_E_QUOTA = 1, /* the tenant's bytes */
	ALLOC_E_FDS,       /* the tenant's, or the daemon's, fds */
	ALLOC_E_FULL,      /* no device memory, and nothing more can be evicted */
	ALLOC_E_DRIVER,    /* the driver failed otherwise; logged */
};

struct alloc;

/*
 * @result 0: chunks[0 .. n_chunks) are the callee's to chunk_move() out of; what it leaves is
 * released. Each has its fd; one with a handle besides wants chunk_drop_fd() once the fd was sent.
 * Otherwise an ALLOC_E_*, and @chunks is empty.
 */
typedef void (*alloc_done_fn)(void *user, int result, struct chunk *chunks, size_t n_chunks);

struct alloc_hooks {
	/* Free at least @bytes on @device if possible; returns what will be free. */
	uint64_t (*evict)(void *user, struct device *device, uint64_t bytes);
	/* Ask clients for warm memory; the answer comes later, if at all. */
	void (*reclaim)(void *user, struct device *device, uint64_t bytes);
	void *user;
};

struct allocator {
	uv_loop_t *loop; /* borrowed */
	struct alloc_hooks hooks;
	struct stats *stats; /* borrowed */
	struct chunk_books books;
	struct pool *pools; /* owned, one per device */
	uint32_t n_devices;
	uint64_t wait_ms;    /* 0: refuse at once */
	struct list waiting; /* of struct alloc: parked until memory may be free again */
	uv_timer_t refill;   /* runs while a pool may lack chunks */
	uv_timer_t timer;    /* runs while somebody waits */
};

int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct device *devices,
                   uint32_t n_devices, uint64_t fd_limit, struct tenant *pool_payer,
                   struct stats *stats, const struct alloc_hooks *hooks);
/* No request may be under way; pools must be drained and the workers idle. */
void allocator_deinit(struct allocator *allocator);

/*
 * Ask for @n_chunks chunks of @sizes bytes each on one device, paid by @tenant (which must stay
 * until the callback). @done is called before this returns when the pool has it all, and only then.
 * Returns 0, or an ALLOC_E_* / -ENOMEM at once, and then @done is not called.
 * *alloc_out (may be NULL) is for alloc_cancel() and is set to NULL when done was called already.
 */
int alloc_start(struct allocator *allocator, struct device *device, struct tenant *tenant,
                enum chunk_use use, const uint64_t *sizes, size_t n_chunks, alloc_done_fn done,
                void *user, struct alloc **alloc_out);

/* The callback will not be called; whatever comes goes back. */
void alloc_cancel(struct alloc *alloc);

#endif

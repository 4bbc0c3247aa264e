/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving out chunks: a request is charged, gets what the pool has, and the device's worker makes the rest.
 * It is granted whole or not at all. What happens when there is not enough: pressure.h.
 *
 * Owner: the server. A request (struct alloc) belongs to the allocator until its callback.
 * Threads: loop thread; the driver is called on the device's worker.
 */
#ifndef GLAKE_DAEMON_ALLOC_H
#define GLAKE_DAEMON_ALLOC_H

#include "daemon/base/status.h"
#include "daemon/memory/pool.h"
#include "daemon/memory/pressure.h"

struct alloc;

/*
 * @status STATUS_OK: chunks[0 .. n_chunks) are the callee's to chunk_move() out of; what it leaves is
 * released. Each has its fd; one with a handle besides wants chunk_drop_fd() once the fd was sent.
 * Otherwise why not, and @chunks is empty: STATUS_OVER_QUOTA (the tenant's bytes), STATUS_NO_FDS (the
 * tenant's, or the daemon's), STATUS_NO_DEVICE_MEMORY (and nothing more can be evicted),
 * STATUS_INTERNAL (the driver failed otherwise; logged).
 */
typedef void (*alloc_done_fn)(void *user, enum status status, struct chunk *chunks,
                              size_t n_chunks);

struct allocator {
	uv_loop_t *loop;     /* borrowed */
	struct stats *stats; /* borrowed */
	struct chunk_books books;
	struct pressure pressure; /* its sources and wait_ms are the server's to set */
	struct pool *pools;       /* owned, one per device */
	uint32_t n_devices;
	uv_timer_t refill; /* runs while a pool may lack chunks */
	uv_timer_t wake;   /* runs while somebody waits */
};

/* Returns 0 or -ENOMEM. */
int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct device *devices,
                   uint32_t n_devices, uint64_t fd_limit, struct tenant *pool_payer,
                   struct stats *stats);
/* No request may be under way; pools must be drained and the workers idle. */
void allocator_deinit(struct allocator *allocator);

struct alloc_wanted {
	struct device *device;
	struct tenant *tenant; /* who pays */
	uid_t uid;             /* whose request it is: requests take turns by tenant and uid */
	enum chunk_use use;
	const uint64_t *sizes; /* copied; n_chunks > 0 */
	size_t n_chunks;
	/*
	 * How long was waited for the same memory before; set before @done to the same with this request.
	 * Borrowed until @done or alloc_cancel().
	 */
	uint64_t *waited_ms;
};

/*
 * Ask for chunks on one device. @done is called before this returns when the pool has them all, and
 * only then.
 * Returns STATUS_OK, or why not (STATUS_NO_HOST_MEMORY besides what alloc_done_fn says): then @done is
 * not called.
 * *alloc_out (may be NULL) is for alloc_cancel() and is NULL as soon as there is nothing to cancel.
 */
enum status alloc_start(struct allocator *allocator, const struct alloc_wanted *wanted,
                        alloc_done_fn done, void *user, struct alloc **alloc_out);

/* The callback will not be called; whatever comes goes back. */
void alloc_cancel(struct alloc *alloc);

/* One line for the client: why @bytes on @device were refused. */
void alloc_explain(enum status status, const struct tenant *tenant, uint32_t device, uint64_t bytes,
                   char *text, size_t n_text);

#endif

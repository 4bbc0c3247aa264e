/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants chunks: a request is charged (tenant.h says what fits now), gets chunks of the stock, and the location's worker
 * makes the rest. It is granted completely or not at all. pressure.h says what can never fit, and what a request waits for
 * that does not fit now.
 *
 * Owner: the server. A request (struct alloc) belongs to the allocator until its callback.
 * Threads: loop thread; the driver is called on the location's worker.
 */
#ifndef GLAKE_DAEMON_ALLOC_H
#define GLAKE_DAEMON_ALLOC_H

#include "daemon/base/status.h"
#include "daemon/memory/stock.h"
#include "daemon/memory/pressure.h"
#include "daemon/memory/promise.h"

struct alloc;

/*
 * @status STATUS_OK: the callee takes chunks[0 .. n_chunks) by chunk_move(); the others are
 * released. Each has an fd. If it also has a handle, call chunk_drop_fd() after the fd was sent.
 * Otherwise there are no chunks: STATUS_OVER_QUOTA (the tenant's bytes), STATUS_NO_FDS (the
 * tenant's or the daemon's), STATUS_NO_DEVICE_MEMORY (and nothing more can be evicted),
 * STATUS_INTERNAL (another error of the driver; logged).
 */
typedef void (*alloc_done_fn)(void *user, enum status status, struct chunk *chunks,
                              size_t n_chunks);

struct allocator {
	uv_loop_t *loop;     /* borrowed */
	struct stats *stats; /* borrowed */
	struct chunk_books books;
	struct promises promises;
	struct pressure pressure; /* the server sets its sources and wait_ms */
	struct stock *stocks;     /* owned, one per location */
	uint32_t n_locations;
	uv_timer_t refill; /* runs while a stock may lack chunks */
	uv_timer_t wake;   /* runs while somebody waits */
};

/* Returns 0 or -ENOMEM. */
int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct location *const *locations,
                   uint32_t n_locations, uint64_t fd_limit, struct tenant *stock_payer,
                   struct stats *stats);
/* No request may be pending; stocks must be drained and the workers idle. */
void allocator_deinit(struct allocator *allocator);

struct alloc_wanted {
	struct location *at;
	struct tenant *tenant; /* who pays */
	uid_t uid;             /* of the requester: requests take turns by tenant and uid */
	enum chunk_use use;
	const uint64_t *sizes; /* copied; n_chunks > 0 */
	size_t n_chunks;
	/*
	 * How long earlier requests waited for the same memory; this request adds its own time
	 * before @done. Borrowed until @done or alloc_cancel().
	 */
	uint64_t *waited_ms;
	uint64_t patience_ms;     /* the request waits this long at least */
	bool keeps_place;         /* while it waits, later ones leave the room to it */
	bool is_spare;            /* only of what is free: see pressure.h */
	bool no_wait;             /* only of what can be had at once: see pressure.h */
	const bool *is_held_back; /* borrowed as waited_ms; may be NULL: see pressure.h */
	struct refusal *
		refusal; /* borrowed as waited_ms: set before @done if a bound refuses it. NULL: not wanted */
	/*
	 * The promise to the process, or NULL: the chunks are drawn from it, and carry it until they are handed over. More than
	 * is left of it is STATUS_OVER_QUOTA.
	 */
	struct promise *promise;
	bool may_unseal; /* one chunk, the copy of a block that was sealed by itself: it may have the reserve (reserve.h) */
};

/*
 * Request chunks at one location. @done is called before this returns if, and only if, the stock has
 * them all. Returns STATUS_OK, or a status of alloc_done_fn or STATUS_NO_HOST_MEMORY; then @done is
 * not called. *alloc_out (may be NULL) is for alloc_cancel(). It becomes NULL when there is nothing
 * to cancel any more.
 */
enum status alloc_start(struct allocator *allocator, const struct alloc_wanted *wanted,
                        alloc_done_fn done, void *user, struct alloc **alloc_out);

/*
 * Whether such a request could ever be granted: STATUS_OK, or why not, counted as a refusal. Nothing is taken back or
 * charged. An alloc_start() asks itself.
 */
enum status alloc_check(const struct allocator *allocator, const struct alloc_wanted *wanted);

/* @done will not be called; chunks that come are released. */
void alloc_cancel(struct alloc *alloc);

/* Returns pressure_waiting_number() of its request; 0 for NULL. */
uint64_t alloc_waiting_number(const struct alloc *alloc);

/* Returns pressure_wait_of() of its request; NULL does not wait. */
struct pressure_wait alloc_wait_of(const struct alloc *alloc);

/* Write one line for the client: @refusal, or without a bound what @status says. */
void alloc_explain(enum status status, const struct refusal *refusal,
                   char text[REFUSAL_TEXT_BYTES]);

#endif

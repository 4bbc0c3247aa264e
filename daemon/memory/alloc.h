/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving out chunks: the tenant's quota, the pool, the driver, and the order in which memory is
 * taken back when the GPU is full.
 *
 * A request is granted whole or not at all, and refused at once if it is larger than the device.
 * First it is charged. When the tenant's bytes on the device do not allow that:
 *   1. it is refused if it is larger than all the tenant may have there,
 *   2. the tenant's clients are asked for their warm memory (alloc_hooks.reclaim), and the request
 *      stands in line until there is room, see below.
 * Nothing is evicted for it: what nobody uses is not the tenant's.
 *
 * Then it gets chunks. When the driver (or the configured reserve) says no, and blocks in use leave
 * so much that it could be granted if everybody else gave back what he has:
 *   1. the pool is drained,
 *   2. the owner of evictable memory is asked to evict (alloc_hooks.evict), as often as it can,
 *   3. all clients are asked for their warm memory, and the request waits, see below.
 *
 * For fds of the budget the pools are drained, and what nobody uses is evicted, as far as it takes and
 * on any device: only for blocks and big chunks, and only if that gives all that the request lacks.
 * Private chunks are held by handle else, and blocks are refused.
 *
 * Who waits tries again, until `wait_ms` are over where the config says `pressure = "wait"`. In any
 * case it waits for clients that were asked and have not answered, ALLOC_LATE_MS at most, and
 * ALLOC_AFTER_MS longer for what they give back behind their answer. Then it is refused.
 *
 * Fairness: a tenant's requests for one device are charged in the order of their coming. However
 * small, none passes one that waits, so a big one gets its turn; however big, none waits longer than
 * its own time, so a small one behind it does too. Other tenants and devices do not notice. For a
 * full device, behind the charge, there is no order: who fits first is served first. fds are not
 * waited for.
 *
 * Owner: the server. A request (struct alloc) belongs to the allocator until its callback.
 * Threads: loop thread; the driver is called on the device's worker.
 */
#ifndef GLAKE_DAEMON_ALLOC_H
#define GLAKE_DAEMON_ALLOC_H

#include "daemon/memory/chunk.h"
#include "daemon/base/list.h"
#include "daemon/memory/pool.h"
#include "daemon/base/stats.h"

enum {
	ALLOC_E_QUOTA = 1, /* the tenant's bytes */
	ALLOC_E_FDS,       /* the tenant's, or the daemon's, fds */
	ALLOC_E_FULL,      /* no device memory, and nothing more can be evicted */
	ALLOC_E_DRIVER,    /* the driver failed otherwise; logged */
};

/*
 * For so long a request is not refused when memory is on its way: while a client was asked and has
 * not answered, and while the books have room and only the driver says no, since what was released
 * is then still mapped by a process that is about to end, or by a load being cancelled.
 */
#define ALLOC_LATE_MS 1000

/*
 * So long after its answer a client may still be giving back: memory that streams were done with goes
 * piece by piece, and what was in use just then follows when it is freed.
 */
#define ALLOC_AFTER_MS 30

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
	/* The same for fds, which all devices share. */
	void (*evict_fds)(void *user, uint64_t n_fds);
	/*
	 * Ask the clients of @tenant, or of all with NULL, for @bytes of warm memory each, but for
	 * no more than each has; 0: nobody is asked. Returns whether some that were asked may
	 * still answer. When one has: allocator_look_again().
	 */
	bool (*reclaim)(void *user, struct device *device, const struct tenant *tenant,
	                uint64_t bytes);
	void *user;
};

/* What clients were asked for, and whether that is still to come. */
struct asked {
	uint64_t asked_ms; /* when last */
	uint64_t n_looks;  /* allocator.n_looks when is_awaited was found out */
	bool is_awaited;
};

struct allocator {
	uv_loop_t *loop; /* borrowed */
	struct alloc_hooks hooks;
	struct stats *stats; /* borrowed */
	struct chunk_books books;
	struct pool *pools;  /* owned, one per device */
	struct asked *asked; /* owned, one per device: of all clients */
	uint32_t n_devices;
	uint64_t wait_ms;    /* 0: nobody waits but for what was asked for */
	struct list waiting; /* of struct alloc: parked until memory may be free again */
	uint64_t n_looks;    /* at those that wait */
	uv_timer_t refill;   /* runs while a pool may lack chunks */
	uv_timer_t timer;    /* runs while somebody waits */
};

int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct device *devices,
                   uint32_t n_devices, uint64_t fd_limit, struct tenant *pool_payer,
                   struct stats *stats, const struct alloc_hooks *hooks);
/* No request may be under way; pools must be drained and the workers idle. */
void allocator_deinit(struct allocator *allocator);

struct alloc_wanted {
	struct device *device;
	struct tenant *tenant; /* who pays */
	uid_t uid;             /* whose request it is: requests take turns by tenant and uid */
	enum chunk_use use;
	const uint64_t *sizes; /* copied; n_chunks > 0 */
	size_t n_chunks;
};

/*
 * Ask for chunks on one device. @done is called before this returns when the pool has them all, and
 * only then.
 * Returns 0, or an ALLOC_E_* / -ENOMEM at once, and then @done is not called.
 * *alloc_out (may be NULL) is for alloc_cancel() and is set to NULL when done was called already.
 */
int alloc_start(struct allocator *allocator, const struct alloc_wanted *wanted, alloc_done_fn done,
                void *user, struct alloc **alloc_out);

/*
 * What could come together if everybody gave back all his private memory and nothing were kept that
 * nobody uses: bytes on @device, and fds, for which private memory is not asked.
 */
uint64_t allocator_most_bytes(const struct allocator *allocator, const struct device *device);
uint64_t allocator_most_fds(const struct allocator *allocator);

/*
 * One fd of the budget for a chunk that has none, for which the pools are drained and what nobody uses is
 * evicted; the chunk's release gives it back, or allocator_give_fd(). Returns 0 or ALLOC_E_FDS.
 */
int allocator_take_fd(struct allocator *allocator);
void allocator_give_fd(struct allocator *allocator);

/* A client has answered a reclaim: who waits need not wait for the next turn. */
void allocator_look_again(struct allocator *allocator);

/* The callback will not be called; whatever comes goes back. */
void alloc_cancel(struct alloc *alloc);

#endif

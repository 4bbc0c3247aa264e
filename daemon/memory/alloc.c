/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/alloc.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* How often a waiting request looks again. */
#define WAIT_STEP_MS 10
/* How often clients are asked again for those that wait: what is freed meanwhile becomes warm. */
#define ASK_AGAIN_MS 100
/* A burst of requests does not compete with the making of chunks for the next one. */
#define REFILL_MS 1
/* So many chunks are made in one turn: a quarter of a millisecond's work, and see chunk.c. */
#define PIECE_CHUNKS 8
/* From this size on a chunk is worth an fd of the budget as long as there is any. */
#define BIG_CHUNK_BYTES (64ull * 1024 * 1024)

struct made {
	int fd;
	CUmemGenericAllocationHandle handle;
};

struct alloc {
	struct work work;
	struct list link; /* link: allocator.waiting, while parked */
	struct allocator *allocator;
	struct device *device;
	struct tenant *tenant; /* borrowed: while it has charges of it, or a place in its queue */
	struct list place;     /* link: the tenant's queue on the device, until charged */
	uint64_t worker_user;
	enum chunk_use use;
	alloc_done_fn done; /* NULL once cancelled */
	void *user;
	struct alloc **self; /* the caller's pointer, cleared before done; may be NULL */
	uint64_t since_ms;
	bool has_waited; /* since since_ms */
	bool is_charged;
	bool has_asked;     /* for the room that it lacks now */
	struct asked asked; /* of the tenant's clients */
	bool keep_handles;  /* the fd budget is short: hold by handle */
	CUresult result;
	size_t n_made;         /* entries of made[], so far */
	size_t n_reserved;     /* fds of the budget, for the missing ones */
	uint64_t coming_bytes; /* of device.coming_bytes, while the worker makes them */
	uint64_t bytes;
	uint64_t missing_bytes;
	size_t n_chunks;
	size_t n_missing; /* entries of missing[], below */
	uint64_t *sizes;
	struct charge *charges; /* of sizes[i], until chunks[i] takes it */
	struct made *made;      /* worker's results for the missing ones */
	struct chunk *chunks;   /* in the order of the request */
	size_t *missing;        /* indexes into sizes, of what is not there yet */
};

/* So that requests under way cannot spend the same fds twice. */
static void reserve_fds(struct alloc *alloc)
{
	alloc->n_reserved = alloc->n_missing;
	alloc->allocator->books.n_fds += alloc->n_reserved;
}

static void unreserve_fds(struct alloc *alloc)
{
	if (alloc->n_reserved > 0) {
		alloc->allocator->books.n_fds -= alloc->n_reserved;
		alloc->n_reserved = 0;
	}
}

static void refund_all(struct alloc *alloc)
{
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		charge_refund(&alloc->charges[i]);
	}
}

static void alloc_free(struct alloc *alloc)
{
	if (!alloc) {
		return;
	}
	unreserve_fds(alloc);
	if (alloc->charges) {
		refund_all(alloc);
	}
	if (alloc->chunks) {
		chunk_release_all(alloc->chunks, alloc->n_chunks);
	}
	free(alloc->sizes);
	free(alloc->charges);
	free(alloc->made);
	free(alloc->chunks);
	free(alloc->missing);
	tenant_queue_leave(alloc->tenant, &alloc->place);
	free(alloc);
}

static struct alloc *alloc_new(const uint64_t *sizes, size_t n_chunks)
{
	struct alloc *alloc = calloc(1, sizeof(*alloc));
	if (!alloc) {
		return NULL;
	}
	list_init(&alloc->link);
	list_init(&alloc->place);
	alloc->n_chunks = n_chunks;
	alloc->sizes = calloc(n_chunks, sizeof(alloc->sizes[0]));
	alloc->charges = calloc(n_chunks, sizeof(alloc->charges[0]));
	alloc->made = calloc(n_chunks, sizeof(alloc->made[0]));
	alloc->chunks = calloc(n_chunks, sizeof(alloc->chunks[0]));
	alloc->missing = calloc(n_chunks, sizeof(alloc->missing[0]));
	if (!alloc->sizes || !alloc->charges || !alloc->made || !alloc->chunks || !alloc->missing) {
		alloc_free(alloc);
		return NULL;
	}
	for (size_t i = 0; i < n_chunks; i++) {
		alloc->sizes[i] = sizes[i];
		alloc->bytes += sizes[i];
	}
	return alloc;
}

/* All, or nothing. Returns 0 or TENANT_E_*. */
static int charge_all(struct alloc *alloc)
{
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		int r = tenant_charge(alloc->tenant, alloc->device->index, alloc->sizes[i], 1,
		                      &alloc->charges[i]);
		if (r != 0) {
			refund_all(alloc);
			return r;
		}
	}
	return 0;
}

/*
 * Have clients asked, of @tenant or of all with NULL: once for each request, and now and then for
 * those that wait long. Returns whether some may still answer.
 */
static bool ask(struct alloc *alloc, struct asked *asked, const struct tenant *tenant,
                uint64_t bytes)
{
	struct allocator *allocator = alloc->allocator;
	uint64_t now = uv_now(allocator->loop);
	bool is_time = !alloc->has_asked ||
	               (allocator->wait_ms > 0 && now - asked->asked_ms >= ASK_AGAIN_MS);
	if (is_time || asked->n_looks != allocator->n_looks) {
		asked->is_awaited = allocator->hooks.reclaim(allocator->hooks.user, alloc->device,
		                                             tenant, is_time ? bytes : 0);
		asked->n_looks = allocator->n_looks;
	}
	if (is_time) {
		alloc->has_asked = true;
		asked->asked_ms = now;
	}
	return asked->is_awaited;
}

/* Whether it still has time; more of it with @is_late: memory may be on its way. */
static bool may_wait(struct alloc *alloc, bool is_late)
{
	const struct allocator *allocator = alloc->allocator;
	uint64_t now = uv_now(allocator->loop);
	uint64_t patience_ms = allocator->wait_ms;
	if (is_late && patience_ms < ALLOC_LATE_MS) {
		patience_ms = ALLOC_LATE_MS;
	}
	if (!alloc->has_waited) {
		alloc->has_waited = true;
		alloc->since_ms = now;
	}
	return now - alloc->since_ms < patience_ms;
}

/* Larger than all that the tenant may have on the device. */
static bool exceeds_tenant(const struct alloc *alloc)
{
	const struct tenant_device *limits = &alloc->tenant->devices[alloc->device->index];
	return limits->quota_bytes > 0 && alloc->bytes > limits->quota_bytes;
}

/* The tenant has no room. Whoever stands behind others is heard when it is his turn. */
static bool may_wait_for_tenant(struct alloc *alloc, bool is_next)
{
	if (exceeds_tenant(alloc)) {
		return false;
	}
	bool is_awaited = (is_next || !alloc->has_asked) &&
	                  ask(alloc, &alloc->asked, alloc->tenant, alloc->bytes);
	return may_wait(alloc, is_awaited || !is_next);
}

static void adopt(struct alloc *alloc, size_t i, int fd, CUmemGenericAllocationHandle handle)
{
	chunk_init(&alloc->chunks[i], alloc->device, &alloc->allocator->books, alloc->sizes[i], fd,
	           handle, alloc->use, &alloc->charges[i]);
}

/* Nobody took from a pool for a while: making chunks ahead is in nobody's way now. */
static void on_refill(uv_timer_t *timer)
{
	struct allocator *allocator = container_of(timer, struct allocator, refill);
	for (uint32_t i = 0; i < allocator->n_devices; i++) {
		pool_refill(&allocator->pools[i]);
	}
}

static void take_from_pool(struct alloc *alloc)
{
	struct pool *pool = &alloc->allocator->pools[alloc->device->index];
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		struct chunk chunk;
		if (!pool_take(pool, alloc->sizes[i], &chunk)) {
			alloc->missing[alloc->n_missing++] = i;
			alloc->missing_bytes += alloc->sizes[i];
			alloc->allocator->stats->pool_misses++;
			continue;
		}
		alloc->allocator->stats->pool_hits++;
		chunk_set_use(&chunk, alloc->use);
		chunk.charge = alloc->charges[i];
		alloc->charges[i] = (struct charge){0};
		chunk_move(&alloc->chunks[i], &chunk);
	}
	uv_timer_start(&alloc->allocator->refill, on_refill, REFILL_MS, 0);
}

static void finish(struct alloc *alloc, int result)
{
	if (alloc->self) {
		*alloc->self = NULL;
	}
	if (!alloc->done) {
		alloc_free(alloc);
		return;
	}
	if (result != 0) {
		if (result == ALLOC_E_FULL) {
			alloc->allocator->stats->memory_refusals++;
		}
		alloc->done(alloc->user, result, NULL, 0);
	} else {
		alloc->done(alloc->user, 0, alloc->chunks, alloc->n_chunks);
	}
	alloc_free(alloc);
}

/* Worker's thread. What was released before this request counts as free, done or not. */
static CUresult make_one(const struct alloc *alloc, uint64_t bytes, struct made *made)
{
	CUmemGenericAllocationHandle *handle = alloc->keep_handles ? &made->handle : NULL;
	CUresult result;
	do {
		result = device_make_chunk(alloc->device, bytes, &made->fd, handle);
	} while (result == CUDA_ERROR_OUT_OF_MEMORY && worker_catch_up(&alloc->device->worker));
	return result;
}

/* Worker's thread: of what was made in vain. Returns whether none is left. */
static bool drop_made(struct alloc *alloc)
{
	for (size_t n = 0; n < PIECE_CHUNKS && alloc->n_made > 0; n++) {
		struct made *made = &alloc->made[--alloc->n_made];
		fd_close(&made->fd);
		if (alloc->keep_handles) {
			alloc->device->drv->cuMemRelease(made->handle);
		}
	}
	return alloc->n_made == 0;
}

/* Worker's thread: all that is missing, or nothing. */
static bool make_missing(struct work *work)
{
	struct alloc *alloc = container_of(work, struct alloc, work);
	for (size_t n = 0; n < PIECE_CHUNKS && alloc->result == CUDA_SUCCESS; n++) {
		if (alloc->n_made == alloc->n_missing) {
			return true;
		}
		size_t i = alloc->missing[alloc->n_made];
		alloc->result = make_one(alloc, alloc->sizes[i], &alloc->made[alloc->n_made]);
		alloc->n_made += alloc->result == CUDA_SUCCESS;
	}
	return alloc->result == CUDA_SUCCESS ? alloc->n_made == alloc->n_missing : drop_made(alloc);
}

static void try_again(struct alloc *alloc);

static void on_wait_timer(uv_timer_t *timer)
{
	struct allocator *allocator = container_of(timer, struct allocator, timer);
	struct list again;
	list_init(&again);
	while (!list_is_empty(&allocator->waiting)) {
		struct list *link = allocator->waiting.next;
		list_remove(link);
		list_insert(&again, link);
	}
	uv_timer_stop(timer);
	allocator->n_looks++;
	while (!list_is_empty(&again)) {
		struct alloc *alloc = container_of(again.next, struct alloc, link);
		list_remove(&alloc->link);
		try_again(alloc);
	}
}

/* What clients have answered meanwhile is read first, however long this turn of the loop took. */
static void on_wait_over(uv_timer_t *timer)
{
	uv_timer_start(timer, on_wait_timer, 1, 0);
}

static void park(struct alloc *alloc)
{
	struct allocator *allocator = alloc->allocator;
	list_insert(&allocator->waiting, &alloc->link);
	if (!uv_is_active((uv_handle_t *)&allocator->timer)) {
		uv_timer_start(&allocator->timer, on_wait_over, WAIT_STEP_MS, 0);
	}
}

void allocator_look_again(struct allocator *allocator)
{
	if (!list_is_empty(&allocator->waiting)) {
		uv_timer_start(&allocator->timer, on_wait_timer, 0, 0);
	}
}

static void try_driver(struct alloc *alloc);

/* How much has to go: what is missing less what is free, by the books unless they are wrong. */
static uint64_t shortfall(const struct alloc *alloc)
{
	uint64_t free_bytes = device_room_bytes(alloc->device);
	return alloc->missing_bytes > free_bytes ? alloc->missing_bytes - free_bytes
	                                         : alloc->missing_bytes;
}

uint64_t allocator_most_bytes(const struct allocator *allocator, const struct device *device)
{
	const struct tenant *cache = allocator->pools[device->index].payer;
	return device_room_bytes(device) + cache->devices[device->index].used_bytes +
	       device->use_bytes[CHUNK_PRIVATE];
}

uint64_t allocator_most_fds(const struct allocator *allocator)
{
	const struct chunk_books *books = &allocator->books;
	uint64_t n_kept = books->n_fds - allocator->pools[0].payer->n_fds;
	return books->max_fds > n_kept ? books->max_fds - n_kept : 0;
}

/*
 * Whether what is missing could come together. If not, blocks in use are in the way, and to take from
 * others what they keep would help nobody.
 */
static bool can_make_room(const struct alloc *alloc)
{
	return alloc->missing_bytes <= allocator_most_bytes(alloc->allocator, alloc->device);
}

/* Take fds from what nobody uses. */
static void evict_fds(struct allocator *allocator, uint64_t n_fds)
{
	const struct chunk_books *books = &allocator->books;
	uint64_t target = books->n_fds - n_fds;
	for (uint32_t i = 0; i < allocator->n_devices; i++) {
		pool_drain(&allocator->pools[i]);
	}
	if (books->n_fds > target) {
		allocator->hooks.evict_fds(allocator->hooks.user, books->n_fds - target);
	}
}

int allocator_take_fd(struct allocator *allocator)
{
	struct chunk_books *books = &allocator->books;
	if (books->n_fds >= books->max_fds && allocator_most_fds(allocator) > 0) {
		evict_fds(allocator, books->n_fds + 1 - books->max_fds);
	}
	if (books->n_fds >= books->max_fds) {
		return ALLOC_E_FDS;
	}
	books->n_fds++;
	return 0;
}

void allocator_give_fd(struct allocator *allocator)
{
	allocator->books.n_fds--;
}

/* The same for what the request lacks, if that is enough. */
static void make_fd_room(struct alloc *alloc, uint64_t n_fds)
{
	if (alloc->n_missing <= allocator_most_fds(alloc->allocator) && can_make_room(alloc)) {
		evict_fds(alloc->allocator, n_fds);
	}
}

/*
 * Fds for what is missing. The budget keeps a reserve for blocks and big chunks: small private ones
 * may use 3/4 of it. Returns 0 or ALLOC_E_FDS.
 */
static int get_fds(struct alloc *alloc)
{
	const struct chunk_books *books = &alloc->allocator->books;
	bool is_small = alloc->use == CHUNK_PRIVATE && alloc->sizes[0] < BIG_CHUNK_BYTES;
	uint64_t limit = is_small ? books->max_fds / 4 * 3 : books->max_fds;
	uint64_t wanted = books->n_fds + alloc->n_missing;
	if (wanted > limit && !is_small) {
		make_fd_room(alloc, wanted - limit);
	}
	if (books->n_fds + alloc->n_missing <= limit) {
		reserve_fds(alloc);
		return 0;
	}
	alloc->keep_handles = alloc->use == CHUNK_PRIVATE;
	return alloc->keep_handles ? 0 : ALLOC_E_FDS;
}

/* In vain so far. */
static void wait_or_refuse(struct alloc *alloc, bool is_late)
{
	if (may_wait(alloc, is_late)) {
		park(alloc);
	} else {
		finish(alloc, ALLOC_E_FULL);
	}
}

/* The device is full: take memory back and try again, wait, or give up. */
static void make_room(struct alloc *alloc)
{
	struct allocator *allocator = alloc->allocator;
	if (!alloc->done) {
		finish(alloc, ALLOC_E_FULL);
		return;
	}
	if (!can_make_room(alloc)) {
		wait_or_refuse(alloc, false);
		return;
	}
	uint64_t wanted_bytes = shortfall(alloc);
	uint64_t freed_bytes = pool_drain(&allocator->pools[alloc->device->index]);
	if (freed_bytes < wanted_bytes) {
		freed_bytes += allocator->hooks.evict(allocator->hooks.user, alloc->device,
		                                      wanted_bytes - freed_bytes);
	}
	if (freed_bytes > 0) {
		try_driver(alloc);
		return;
	}
	bool is_awaited = ask(alloc, &allocator->asked[alloc->device->index], NULL,
	                      alloc->missing_bytes);
	wait_or_refuse(alloc, is_awaited || device_has_room(alloc->device, alloc->missing_bytes));
}

static void on_made(struct work *work)
{
	struct alloc *alloc = container_of(work, struct alloc, work);
	alloc->device->coming_bytes -= alloc->coming_bytes;
	alloc->coming_bytes = 0;
	if (alloc->result == CUDA_ERROR_OUT_OF_MEMORY) {
		make_room(alloc);
		return;
	}
	if (alloc->result != CUDA_SUCCESS) {
		log_error("device %u: cannot make a chunk: %s", alloc->device->index,
		          cudrv_error(alloc->device->drv, alloc->result));
		finish(alloc, ALLOC_E_DRIVER);
		return;
	}
	unreserve_fds(alloc);
	for (size_t i = 0; i < alloc->n_missing; i++) {
		adopt(alloc, alloc->missing[i], alloc->made[i].fd, alloc->made[i].handle);
	}
	finish(alloc, 0);
}

static bool refuse_missing(struct work *work)
{
	container_of(work, struct alloc, work)->result = CUDA_ERROR_OUT_OF_MEMORY;
	return true;
}

/*
 * Over the device's usable bytes we refuse in the driver's stead, but in its place: what was
 * released before is free by then, and no caller is refused in a callback inside alloc_start().
 */
static void try_driver(struct alloc *alloc)
{
	bool fits = device_has_room(alloc->device, alloc->missing_bytes);
	if (fits) {
		alloc->coming_bytes = alloc->missing_bytes;
		alloc->device->coming_bytes += alloc->coming_bytes;
	}
	alloc->result = CUDA_SUCCESS;
	alloc->n_made = 0;
	worker_submit(&alloc->device->worker, &alloc->work, alloc->worker_user,
	              fits ? make_missing : refuse_missing, on_made);
}

/* It is admitted: get what the pool did not have. */
static void make(struct alloc *alloc)
{
	if (alloc->n_missing == 0) {
		finish(alloc, 0);
	} else {
		try_driver(alloc);
	}
}

/*
 * Have it charged, if it is its turn, and what the pool has. Returns 0, an ALLOC_E_*, or -EAGAIN: it has
 * to wait.
 */
static int admit(struct alloc *alloc)
{
	uint32_t device = alloc->device->index;
	if (alloc->bytes > device_most_bytes(alloc->device) && !exceeds_tenant(alloc)) {
		alloc->allocator->stats->memory_refusals++;
		return ALLOC_E_FULL;
	}
	bool is_next = tenant_queue_is_next(alloc->tenant, device, &alloc->place);
	int r = is_next ? charge_all(alloc) : TENANT_E_BYTES;
	if (r == 0) {
		alloc->is_charged = true;
		alloc->has_asked = false;
		tenant_queue_leave(alloc->tenant, &alloc->place);
		take_from_pool(alloc);
		return get_fds(alloc);
	}
	if (r == TENANT_E_BYTES && may_wait_for_tenant(alloc, is_next)) {
		if (list_is_empty(&alloc->place)) {
			tenant_queue_enter(alloc->tenant, device, &alloc->place);
			alloc->allocator->stats->quota_waits++;
		}
		return -EAGAIN;
	}
	alloc->allocator->stats->quota_refusals++;
	return r == TENANT_E_FDS ? ALLOC_E_FDS : ALLOC_E_QUOTA;
}

/* Its turn to look whether there is room now. */
static void try_again(struct alloc *alloc)
{
	if (alloc->is_charged) {
		try_driver(alloc);
		return;
	}
	int r = admit(alloc);
	if (r == 0) {
		make(alloc);
	} else if (r > 0) {
		finish(alloc, r);
	} else {
		park(alloc);
	}
}

int alloc_start(struct allocator *allocator, const struct alloc_wanted *wanted, alloc_done_fn done,
                void *user, struct alloc **alloc_out)
{
	assert(wanted->n_chunks > 0);
	struct alloc *alloc = alloc_new(wanted->sizes, wanted->n_chunks);
	if (!alloc) {
		return -ENOMEM;
	}
	alloc->allocator = allocator;
	alloc->device = wanted->device;
	alloc->tenant = wanted->tenant;
	alloc->worker_user = wanted->tenant->id << 32 | wanted->uid;
	alloc->use = wanted->use;
	alloc->done = done;
	alloc->user = user;
	int r = admit(alloc);
	if (r > 0) {
		alloc_free(alloc);
		return r;
	}
	alloc->self = alloc_out;
	if (alloc_out) {
		*alloc_out = alloc;
	}
	if (r == 0) {
		make(alloc);
	} else {
		park(alloc);
	}
	return 0;
}

void alloc_cancel(struct alloc *alloc)
{
	alloc->done = NULL;
	alloc->self = NULL;
	if (!list_is_empty(&alloc->link)) {
		/* Parked, so the worker does not have it. */
		list_remove(&alloc->link);
		alloc_free(alloc);
	}
}

int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct device *devices,
                   uint32_t n_devices, uint64_t fd_limit, struct tenant *pool_payer,
                   struct stats *stats, const struct alloc_hooks *hooks)
{
	*allocator = (struct allocator){.loop = loop,
	                                .hooks = *hooks,
	                                .stats = stats,
	                                .books = {.max_fds = fd_limit, .stats = stats},
	                                .n_devices = n_devices};
	list_init(&allocator->waiting);
	allocator->pools = calloc(n_devices ? n_devices : 1, sizeof(allocator->pools[0]));
	allocator->asked = calloc(n_devices ? n_devices : 1, sizeof(allocator->asked[0]));
	if (!allocator->pools || !allocator->asked) {
		free(allocator->pools);
		free(allocator->asked);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_devices; i++) {
		pool_init(&allocator->pools[i], &devices[i], &allocator->books, pool_payer);
	}
	uv_timer_init(loop, &allocator->refill);
	return uv_timer_init(loop, &allocator->timer);
}

void allocator_deinit(struct allocator *allocator)
{
	assert(list_is_empty(&allocator->waiting));
	uv_close((uv_handle_t *)&allocator->timer, NULL);
	uv_close((uv_handle_t *)&allocator->refill, NULL);
	free(allocator->pools);
	free(allocator->asked);
	allocator->pools = NULL;
	allocator->asked = NULL;
}

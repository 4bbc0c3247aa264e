/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request must not get only a part of its memory, and no bytes may be granted twice. So all its chunks are charged at once,
 * or none. Its bytes out of a promise or the reserve, and those that the worker is making, count as coming
 * (location.coming_bytes) until the chunks exist: nobody else gets that room. A request that ends without its chunks returns
 * all that it had (alloc_free()), and the worker drops chunks that were made in vain.
 *
 * The driver may have less memory than the books say, because releases are done late: the worker does those before it
 * believes that there is none. Only the worker calls the driver, so the loop never waits for it.
 */
#include "daemon/memory/alloc.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/memory/reserve.h"
#include "proto/cleanup.h"

/* After a request, stocks wait REFILL_MS before they make chunks ahead: they do not compete with a burst. */
#define REFILL_MS 1
/* The worker makes PIECE_CHUNKS chunks in one turn, in a quarter of a millisecond. See also chunk.c. */
#define PIECE_CHUNKS 8
/* One chunk of host memory takes longer than that, by its size. */
#define HOST_PIECE_CHUNKS 1
/* A chunk of this size or more gets an fd of the budget while there are any. */
#define BIG_CHUNK_BYTES (64ull * 1024 * 1024)

struct made {
	int fd;
	CUmemGenericAllocationHandle handle;
};

struct alloc {
	struct work work;
	struct pressure_request request;
	struct allocator *allocator;
	uint64_t worker_user;
	enum chunk_use use;
	alloc_done_fn done;
	void *user;
	struct alloc **self; /* the caller's pointer, cleared before done; may be NULL */
	uint64_t *waited_ms; /* the caller's, as the next; NULL once it is cancelled */
	struct refusal *refusal;
	bool keep_handles; /* the fd budget is short: hold by handle */
	CUresult result;
	size_t n_made;           /* entries of made[], so far */
	uint64_t coming_bytes;   /* of the location, while the worker makes them */
	struct promise *promise; /* drawn from; NULL: from none, or the chunks carry it */
	uint64_t
		covered_bytes; /* of coming_bytes of the location: what it had reserved, until the end */
	uint64_t unsealing_bytes; /* of the reserve, until a chunk has them */
	size_t n_chunks;
	size_t n_missing; /* entries of missing[], below */
	uint64_t *sizes;
	struct charge *charges; /* of sizes[i], until chunks[i] takes it */
	struct made *made;      /* worker's results for the missing ones */
	struct chunk *chunks;   /* in the order of the request */
	size_t *missing;        /* indexes into sizes, of chunks that must be made */
};

static struct alloc *alloc_of(struct pressure_request *request)
{
	return container_of(request, struct alloc, request);
}

static void refund_all(struct alloc *alloc)
{
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		charge_refund(&alloc->charges[i]);
	}
}

/* The reserved bytes are made, or not wanted any more. */
static void uncover(struct alloc *alloc)
{
	if (alloc->covered_bytes > 0) {
		alloc->request.at->coming_bytes -= alloc->covered_bytes;
		alloc->covered_bytes = 0;
	}
}

static void alloc_free(struct alloc *alloc)
{
	if (!alloc) {
		return;
	}
	uncover(alloc);
	if (alloc->charges) {
		refund_all(alloc);
	}
	if (alloc->chunks) {
		chunk_release_all(alloc->chunks, alloc->n_chunks);
	}
	if (alloc->promise) {
		promise_undraw(alloc->promise, alloc->request.bytes);
	}
	if (alloc->unsealing_bytes > 0) {
		reserve_keep(alloc->request.at, alloc->unsealing_bytes);
	}
	free(alloc->sizes);
	free(alloc->charges);
	free(alloc->made);
	free(alloc->chunks);
	free(alloc->missing);
	free(alloc);
}

static struct alloc *alloc_new(const struct alloc_wanted *wanted)
{
	size_t n_chunks = wanted->n_chunks;
	struct alloc *alloc = calloc(1, sizeof(*alloc));
	if (!alloc) {
		return NULL;
	}
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
		alloc->sizes[i] = wanted->sizes[i];
		alloc->request.bytes += wanted->sizes[i];
	}
	return alloc;
}

/* ---- charging, and the stock -------------------------------------------------------------------- */

/* No request took from a stock for a while: now chunks can be made ahead. */
static void on_refill(uv_timer_t *timer)
{
	struct allocator *allocator = container_of(timer, struct allocator, refill);
	for (uint32_t i = 0; i < allocator->n_locations; i++) {
		stock_refill(&allocator->stocks[i]);
	}
}

static void take_from_stock(struct alloc *alloc)
{
	struct allocator *allocator = alloc->allocator;
	struct pressure_request *request = &alloc->request;
	struct stock *stock = &allocator->stocks[request->at->slot];
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		struct chunk chunk;
		if (!stock_take(stock, alloc->sizes[i], &chunk)) {
			alloc->missing[alloc->n_missing++] = i;
			request->missing_bytes += alloc->sizes[i];
			allocator->stats->pool_misses++;
			continue;
		}
		allocator->stats->pool_hits++;
		chunk_set_use(&chunk, alloc->use);
		chunk.charge = alloc->charges[i];
		alloc->charges[i] = (struct charge){0};
		chunk_move(&alloc->chunks[i], &chunk);
	}
	request->n_missing = alloc->n_missing;
	if (alloc->n_missing > 0 && alloc->use == CHUNK_PRIVATE) {
		stock_follow(stock, alloc->sizes[alloc->missing[0]]);
	}
	uv_timer_start(&allocator->refill, on_refill, REFILL_MS, 0);
}

/* Count reserved bytes, up to what is missing, as coming from now on: nobody else gets the room. */
static void cover(struct alloc *alloc, uint64_t taken_bytes)
{
	struct pressure_request *request = &alloc->request;
	uint64_t bytes = taken_bytes < request->missing_bytes ? taken_bytes
	                                                      : request->missing_bytes;
	alloc->covered_bytes += bytes;
	request->at->coming_bytes += bytes;
	request->missing_bytes -= bytes;
}

/* Take from the reserve what the location lacks in room. A request that waits for room goes on waiting for it. */
static void unseal(struct alloc *alloc)
{
	struct pressure_request *request = &alloc->request;
	struct location *at = request->at;
	uint64_t room = pressure_is_short(request->pressure, at) ? 0 : location_room_bytes(at);
	if (request->may_unseal && request->missing_bytes > room) {
		uint64_t taken_bytes = reserve_take(at, request->missing_bytes - room);
		alloc->unsealing_bytes += taken_bytes;
		cover(alloc, taken_bytes);
	}
}

/*
 * The program had this memory before glake sealed it, so its tenant's limit does not keep it from having it again, as long
 * as it is the reserve's.
 */
static int charge_anyway(struct alloc *alloc)
{
	struct pressure_request *request = &alloc->request;
	assert(alloc->n_chunks == 1);
	return tenant_charge_promised(request->tenant, request->at->slot, alloc->sizes[0], 1,
	                              &alloc->charges[0]);
}

/* Charge all chunks, or none. */
static int charge(struct pressure_request *request)
{
	struct alloc *alloc = alloc_of(request);
	uint64_t taken_bytes = 0;
	int r = promise_charge(alloc->promise, request->tenant, request->at->slot, alloc->sizes,
	                       alloc->n_chunks, alloc->charges, &taken_bytes);
	bool is_over = r == TENANT_E_BYTES && pressure_has_reserve(request);
	if (is_over) {
		r = charge_anyway(alloc);
	}
	if (r != 0) {
		return r;
	}
	take_from_stock(alloc);
	cover(alloc, taken_bytes);
	if (is_over) {
		alloc->unsealing_bytes = reserve_take(request->at, request->missing_bytes);
		cover(alloc, alloc->unsealing_bytes);
	}
	unseal(alloc);
	return 0;
}

/* ---- making ------------------------------------------------------------------------------------ */

/*
 * Worker's thread. The driver takes a millisecond and more to say that there is no memory. So as many releases are done as
 * chunks are missing, before it is asked again.
 */
static bool catch_up(const struct alloc *alloc)
{
	size_t n_run = 0;
	while (n_run < alloc->n_missing - alloc->n_made &&
	       worker_catch_up(&alloc->request.at->worker)) {
		n_run++;
	}
	return n_run > 0;
}

/* Worker's thread. Memory released before this request counts as free, even if it is not closed yet. */
static CUresult make_one(const struct alloc *alloc, uint64_t bytes, struct made *made)
{
	CUmemGenericAllocationHandle *handle = alloc->keep_handles ? &made->handle : NULL;
	CUresult result;
	do {
		result = location_make_chunk(alloc->request.at, bytes, &made->fd, handle);
	} while (result == CUDA_ERROR_OUT_OF_MEMORY && catch_up(alloc));
	return result;
}

/* Worker's thread: drop some chunks that were made in vain. Returns whether none is left. */
static bool drop_made(struct alloc *alloc)
{
	for (size_t n = 0; n < PIECE_CHUNKS && alloc->n_made > 0; n++) {
		struct made *made = &alloc->made[--alloc->n_made];
		fd_close(&made->fd);
		if (alloc->keep_handles) {
			alloc->request.at->drv->cuMemRelease(made->handle);
		}
	}
	return alloc->n_made == 0;
}

/* Worker's thread: make all missing chunks, or none. */
static bool make_missing(struct work *work)
{
	struct alloc *alloc = container_of(work, struct alloc, work);
	size_t n_piece = alloc->request.at->kind == LOCATION_HOST ? HOST_PIECE_CHUNKS
	                                                          : PIECE_CHUNKS;
	for (size_t n = 0; n < n_piece && alloc->result == CUDA_SUCCESS; n++) {
		if (alloc->n_made == alloc->n_missing) {
			return true;
		}
		size_t i = alloc->missing[alloc->n_made];
		alloc->result = make_one(alloc, alloc->sizes[i], &alloc->made[alloc->n_made]);
		alloc->n_made += alloc->result == CUDA_SUCCESS;
	}
	return alloc->result == CUDA_SUCCESS ? alloc->n_made == alloc->n_missing : drop_made(alloc);
}

static void on_made(struct work *work)
{
	struct alloc *alloc = container_of(work, struct alloc, work);
	struct location *at = alloc->request.at;
	at->coming_bytes -= alloc->coming_bytes;
	alloc->coming_bytes = 0;
	if (alloc->result == CUDA_SUCCESS) {
		pressure_made(&alloc->request, STATUS_OK);
	} else if (alloc->result == CUDA_ERROR_OUT_OF_MEMORY) {
		pressure_made(&alloc->request, STATUS_NO_DEVICE_MEMORY);
	} else {
		char name[LOCATION_NAME_BYTES];
		log_limited(&at->log_limit, LOG_LEVEL_ERROR, "%s: cannot make a chunk: %s",
		            location_name(at, name), cudrv_error(at->drv, alloc->result));
		pressure_made(&alloc->request, STATUS_INTERNAL);
	}
}

static bool refuse_missing(struct work *work)
{
	container_of(work, struct alloc, work)->result = CUDA_ERROR_OUT_OF_MEMORY;
	return true;
}

/*
 * A request beyond the location's usable bytes is refused without the driver. The worker does this too, so that no callback
 * comes from within alloc_start().
 */
static void make(struct pressure_request *request)
{
	struct alloc *alloc = alloc_of(request);
	struct location *at = request->at;
	if (alloc->n_missing == 0) {
		pressure_made(request, STATUS_OK);
		return;
	}
	unseal(alloc);
	bool fits = location_has_room(at, request->missing_bytes);
	if (fits) {
		alloc->coming_bytes = request->missing_bytes;
		at->coming_bytes += alloc->coming_bytes;
	}
	alloc->keep_handles = !request->has_fds;
	alloc->result = CUDA_SUCCESS;
	alloc->n_made = 0;
	worker_submit(&at->worker, &alloc->work, alloc->worker_user,
	              fits ? make_missing : refuse_missing, on_made);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void adopt_made(struct alloc *alloc)
{
	for (size_t n = 0; n < alloc->n_made; n++) {
		size_t i = alloc->missing[n];
		chunk_init(&alloc->chunks[i], alloc->request.at, &alloc->allocator->books,
		           alloc->sizes[i], alloc->made[n].fd, alloc->made[n].handle, alloc->use,
		           &alloc->charges[i]);
	}
	alloc->n_made = 0;
}

static void carry_promise(struct alloc *alloc)
{
	for (size_t i = 0; i < alloc->n_chunks; i++) {
		alloc->chunks[i].promise = promise_ref(alloc->promise);
	}
	promise_unref(alloc->promise);
	alloc->promise = NULL;
}

static void done(struct pressure_request *request, enum status status)
{
	struct alloc *alloc = alloc_of(request);
	adopt_made(alloc);
	uncover(alloc);
	if (request->state == PRESSURE_GRANTED && alloc->promise) {
		carry_promise(alloc);
	}
	if (request->state == PRESSURE_GRANTED) {
		alloc->chunks[0].unsealing_bytes = alloc->unsealing_bytes;
		alloc->unsealing_bytes = 0;
	}
	if (alloc->self) {
		*alloc->self = NULL;
	}
	if (alloc->waited_ms) {
		*alloc->waited_ms = request->waited_ms;
	}
	if (alloc->refusal) {
		*alloc->refusal = request->refusal;
	}
	if (request->state == PRESSURE_GRANTED) {
		alloc->done(alloc->user, STATUS_OK, alloc->chunks, alloc->n_chunks);
	} else if (request->state == PRESSURE_REFUSED) {
		alloc->done(alloc->user, status, NULL, 0);
	}
	alloc_free(alloc);
}

static const struct pressure_ops pressure_ops = {
	.charge = charge,
	.make = make,
	.done = done,
};

static enum pressure_fds fds_of(const struct alloc_wanted *wanted)
{
	if (wanted->use != CHUNK_PRIVATE) {
		return PRESSURE_FDS_MUST;
	}
	return wanted->sizes[0] < BIG_CHUNK_BYTES ? PRESSURE_FDS_SMALL : PRESSURE_FDS_BIG;
}

/* The request is for more than the process was promised. */
static enum status refuse_promised(const struct allocator *allocator,
                                   const struct alloc_wanted *wanted, uint64_t bytes)
{
	const struct refusal refusal = refusal_of_promise(wanted->promise, wanted->tenant, bytes);
	if (!wanted->is_spare) {
		refusal_count(&refusal, allocator->stats);
	}
	if (wanted->refusal) {
		*wanted->refusal = refusal;
	}
	return refusal_status(&refusal);
}

enum status alloc_check(const struct allocator *allocator, const struct alloc_wanted *wanted)
{
	struct pressure_request request = {.at = wanted->at,
	                                   .is_promised = wanted->promise != NULL,
	                                   .tenant = wanted->tenant,
	                                   .fds = fds_of(wanted),
	                                   .n_chunks = wanted->n_chunks};
	for (size_t i = 0; i < wanted->n_chunks; i++) {
		request.bytes += wanted->sizes[i];
	}
	enum bound bound = pressure_check(&allocator->pressure, &request);
	if (bound == BOUND_NONE) {
		return STATUS_OK;
	}
	const struct refusal refusal = pressure_explain(&allocator->pressure, &request, bound);
	if (!wanted->is_spare) {
		refusal_count(&refusal, allocator->stats);
	}
	if (wanted->refusal) {
		*wanted->refusal = refusal;
	}
	return refusal_status(&refusal);
}

enum status alloc_start(struct allocator *allocator, const struct alloc_wanted *wanted,
                        alloc_done_fn done_fn, void *user, struct alloc **alloc_out)
{
	assert(wanted->n_chunks > 0);
	if (location_start(wanted->at, allocator->loop) < 0) {
		return STATUS_INTERNAL;
	}
	struct alloc *alloc = alloc_new(wanted);
	if (!alloc) {
		return STATUS_NO_HOST_MEMORY;
	}
	promises_settle(&allocator->promises);
	if (wanted->promise && !promise_draw(wanted->promise, alloc->request.bytes)) {
		enum status refused = refuse_promised(allocator, wanted, alloc->request.bytes);
		alloc_free(alloc);
		return refused;
	}
	alloc->promise = wanted->promise;
	alloc->request.is_promised = wanted->promise &&
	                             wanted->promise->reserved_bytes >= alloc->request.bytes;
	alloc->allocator = allocator;
	alloc->worker_user = wanted->tenant->id << 32 | wanted->uid;
	alloc->use = wanted->use;
	alloc->done = done_fn;
	alloc->user = user;
	alloc->self = alloc_out;
	alloc->request.ops = &pressure_ops;
	alloc->request.at = wanted->at;
	alloc->request.tenant = wanted->tenant;
	alloc->request.fds = fds_of(wanted);
	alloc->request.n_chunks = wanted->n_chunks;
	alloc->waited_ms = wanted->waited_ms;
	alloc->refusal = wanted->refusal;
	alloc->request.waited_ms = *wanted->waited_ms;
	alloc->request.patience_ms = wanted->patience_ms;
	alloc->request.keeps_place = wanted->keeps_place;
	alloc->request.is_spare = wanted->is_spare;
	alloc->request.no_wait = wanted->no_wait;
	alloc->request.may_unseal = wanted->may_unseal && wanted->n_chunks == 1;
	alloc->request.is_held_back = wanted->is_held_back;
	if (alloc_out) {
		*alloc_out = alloc;
	}
	enum status status = pressure_start(&allocator->pressure, &alloc->request);
	if (status != STATUS_OK) {
		if (alloc_out) {
			*alloc_out = NULL;
		}
		if (wanted->refusal) {
			*wanted->refusal = alloc->request.refusal;
		}
		alloc_free(alloc);
	}
	return status;
}

void alloc_cancel(struct alloc *alloc)
{
	alloc->self = NULL;
	alloc->waited_ms = NULL;
	alloc->refusal = NULL;
	if (pressure_cancel(&alloc->request)) {
		alloc_free(alloc);
	}
}

uint64_t alloc_waiting_number(const struct alloc *alloc)
{
	return alloc ? pressure_waiting_number(&alloc->request) : 0;
}

struct pressure_wait alloc_wait_of(const struct alloc *alloc)
{
	return alloc ? pressure_wait_of(&alloc->request)
	             : (struct pressure_wait){.bound = BOUND_NONE};
}

void alloc_explain(enum status status, const struct refusal *refusal, char text[REFUSAL_TEXT_BYTES])
{
	if (refusal->bound) {
		refusal_text(refusal, text);
	} else {
		snprintf(text, REFUSAL_TEXT_BYTES, "%s",
		         status == STATUS_NO_HOST_MEMORY ? "glaked is out of host memory"
		                                         : "the driver cannot make a chunk");
	}
}

/* ---- the allocator ----------------------------------------------------------------------------- */

static void drain_for_bytes(void *user, struct location *at, uint64_t bytes)
{
	struct allocator *allocator = user;
	stock_drain(&allocator->stocks[at->slot]);
}

static void drain_for_fds(void *user, uint64_t n_fds)
{
	struct allocator *allocator = user;
	for (uint32_t i = 0; i < allocator->n_locations; i++) {
		stock_drain(&allocator->stocks[i]);
	}
}

static uint64_t now_ms(void *user)
{
	const struct allocator *allocator = user;
	return uv_now(allocator->loop);
}

static void on_wake(uv_timer_t *timer)
{
	pressure_look(&container_of(timer, struct allocator, wake)->pressure);
}

/* Read the clients' answers first, however long this turn of the loop took. */
static void on_time(uv_timer_t *timer)
{
	uv_timer_start(timer, on_wake, 1, 0);
}

static void wake(void *user, uint64_t ms)
{
	struct allocator *allocator = user;
	if (ms == 0) {
		uv_timer_start(&allocator->wake, on_wake, 0, 0);
	} else if (!uv_is_active((uv_handle_t *)&allocator->wake)) {
		uv_timer_start(&allocator->wake, on_time, ms, 0);
	}
}

int allocator_init(struct allocator *allocator, uv_loop_t *loop, struct location *const *locations,
                   uint32_t n_locations, uint64_t fd_limit, struct tenant *stock_payer,
                   struct stats *stats)
{
	const struct pressure_clock clock = {.now_ms = now_ms, .wake = wake, .user = allocator};
	*allocator = (struct allocator){.loop = loop,
	                                .stats = stats,
	                                .books = {.max_fds = fd_limit, .stats = stats},
	                                .n_locations = n_locations};
	list_init(&allocator->promises.all);
	allocator->stocks = calloc(n_locations ? n_locations : 1, sizeof(allocator->stocks[0]));
	int r = allocator->stocks ? pressure_init(&allocator->pressure, n_locations,
	                                          &allocator->books, stock_payer, stats, &clock)
	                          : -ENOMEM;
	if (r < 0) {
		free(allocator->stocks);
		return r;
	}
	allocator->pressure.sources[PRESSURE_MADE_AHEAD] = (struct pressure_source){
		.take_bytes = drain_for_bytes,
		.take_fds = drain_for_fds,
		.user = allocator,
	};
	for (uint32_t i = 0; i < n_locations; i++) {
		stock_init(&allocator->stocks[i], locations[i], &allocator->books, stock_payer);
	}
	uv_timer_init(loop, &allocator->refill);
	return uv_timer_init(loop, &allocator->wake);
}

void allocator_deinit(struct allocator *allocator)
{
	pressure_deinit(&allocator->pressure);
	uv_close((uv_handle_t *)&allocator->wake, NULL);
	uv_close((uv_handle_t *)&allocator->refill, NULL);
	free(allocator->stocks);
	allocator->stocks = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks made by the worker of a device without a GPU: in turns, whole or not at all. */
#include "daemon/memory/alloc.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/memory/reserve.h"
#include "tests/unit/made_store.h"

#define MOST_BYTES (1024 * MIB)
#define MAX_CHUNKS 200u

/* ---- the driver ------------------------------------------------------------------------------- */

/* Driver handles that exist, and calls that were to make one. */
static atomic_int n_handles;
static atomic_uint n_made;
/* The number of chunks that can be made before there is no memory left. */
static atomic_uint n_makeable;
static uv_sem_t gate;
static atomic_bool is_at_gate;

/* The most chunks that exist at a time, each as long as its fd is open; and how often there was no room. */
static atomic_uint most_open;
static atomic_uint n_refused;

static unsigned count_open(void)
{
	char path[64];
	char target[16];
	unsigned n = 0;
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, target, sizeof(target));
		n += length == 9 && memcmp(target, "/dev/null", 9) == 0;
	}
	return n;
}

static bool is_full(void)
{
	bool is_without = atomic_load(&n_makeable) == 0 ||
	                  (atomic_load(&most_open) < UINT32_MAX &&
	                   count_open() >= atomic_load(&most_open));
	atomic_fetch_add(&n_refused, is_without);
	return is_without;
}

static CUresult CUDAAPI fake_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                                    const CUmemAllocationProp *properties, unsigned long long flags)
{
	if (atomic_fetch_add(&n_made, 1) == 0) {
		atomic_store(&is_at_gate, true);
		uv_sem_wait(&gate);
	}
	if (is_full()) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	atomic_fetch_sub(&n_makeable, 1);
	*handle = (CUmemGenericAllocationHandle)(1 + atomic_fetch_add(&n_handles, 1));
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI fake_release(CUmemGenericAllocationHandle handle)
{
	atomic_fetch_sub(&n_handles, 1);
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI fake_export(void *fd_out, CUmemGenericAllocationHandle handle,
                                    CUmemAllocationHandleType type, unsigned long long flags)
{
	*(int *)fd_out = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return CUDA_SUCCESS;
}

static const struct cudrv drv = {
	.cuMemCreate = fake_create,
	.cuMemRelease = fake_release,
	.cuMemExportToShareableHandle = fake_export,
};

/* ---- begin and end ---------------------------------------------------------------------------- */

static struct allocator allocator;
static int first_fd;

static int next_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(fd);
	return fd;
}

/* The clock of pressure, a hundred times as fast. */
static struct pressure_clock slow_clock;

static uint64_t fast_now(void *user)
{
	return slow_clock.now_ms(user) * 100;
}

static void fast_wake(void *user, uint64_t ms)
{
	slow_clock.wake(user, ms / 100 + 1);
}

static void begin(void)
{
	store_begin();
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i].at.drv = &drv;
		devices[i].at.usable_bytes = MOST_BYTES;
	}
	ck_assert_int_eq(
		allocator_init(&allocator, &loop, locations, N_DEVICES, 1000, store.cache, &stats),
		0);
	slow_clock = allocator.pressure.clock;
	allocator.pressure.clock.now_ms = fast_now;
	allocator.pressure.clock.wake = fast_wake;
	uv_sem_init(&gate, 0);
	atomic_store(&n_makeable, UINT32_MAX);
	atomic_store(&most_open, UINT32_MAX);
	first_fd = next_fd();
}

static void run_worker(void)
{
	while (devices[0].at.worker.n_pending > 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
}

/* All that was given out has gone; nothing is left of it. */
static void end(void)
{
	struct location *at = &devices[0].at;
	run_worker();
	reserve_note_saved(at, at->saved_alone_bytes, 0);
	ck_assert_uint_eq(at->unsealing_bytes, 0);
	ck_assert_int_eq(atomic_load(&n_handles), 0);
	ck_assert_int_eq(next_fd(), first_fd);
	ck_assert_uint_eq(allocator.books.n_fds, 0);
	ck_assert_uint_eq(location_physical_bytes(at), 0);
	ck_assert_uint_eq(at->coming_bytes, 0);
	allocator_deinit(&allocator);
	store_end();
	uv_sem_destroy(&gate);
}

BEGIN_EACH(begin)
END_EACH(end)

/* ---- requests --------------------------------------------------------------------------------- */

static unsigned n_over;

static struct request {
	struct alloc *alloc;
	unsigned place; /* in the order in which they were over; 0: it is not */
	enum status status;
	size_t n_chunks;
} requests[4];

/* They are given back one by one, as a client's are. */
static bool gives_back_each;

/* Looks at the chunks, and leaves those to be released that it does not give back itself. */
static void on_chunks(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct request *request = user;
	request->place = ++n_over;
	request->status = status;
	request->n_chunks = n_chunks;
	for (size_t i = 0; i < n_chunks; i++) {
		ck_assert_int_ge(chunks[i].fd, 0);
		if (gives_back_each) {
			chunk_release(&chunks[i]);
		}
	}
}

static struct request *start(unsigned i, uid_t uid, size_t n_chunks)
{
	static uint64_t waited_ms;
	uint64_t sizes[MAX_CHUNKS];
	for (size_t k = 0; k < n_chunks; k++) {
		sizes[k] = 2 * MIB;
	}
	const struct alloc_wanted wanted = {
		.at = &devices[0].at,
		.tenant = payer,
		.uid = uid,
		.use = CHUNK_PRIVATE,
		.sizes = sizes,
		.n_chunks = n_chunks,
		.waited_ms = &waited_ms,
	};
	ck_assert_int_eq(
		alloc_start(&allocator, &wanted, on_chunks, &requests[i], &requests[i].alloc),
		STATUS_OK);
	return &requests[i];
}

static void await_end(const struct request *request)
{
	while (request->place == 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
}

/* The worker is in the first chunk of what was started. */
static void await_gate(void)
{
	while (!atomic_load(&is_at_gate)) {
		uv_sleep(1);
	}
}

/* However much one user wants, another's one chunk does not wait for it; his own next does. */
START_TEST(users_take_turns)
{
	struct request *big = start(0, 1, MAX_CHUNKS);
	await_gate();
	struct request *next = start(1, 1, 1);
	struct request *other = start(2, 2, 1);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(other->place, 1);
	ck_assert_uint_eq(big->place, 2);
	ck_assert_uint_eq(next->place, 3);
	ck_assert_uint_eq(big->n_chunks, MAX_CHUNKS);
}
END_TEST

START_TEST(what_is_not_whole_leaves_nothing)
{
	atomic_store(&n_makeable, 50);
	uv_sem_post(&gate);
	struct request *big = start(0, 1, 100);
	await_end(big);
	ck_assert_int_eq(big->status, STATUS_NO_DEVICE_MEMORY);
	ck_assert_uint_eq(big->n_chunks, 0);
}
END_TEST

/* The driver is slow to refuse: what was given back is released before it is asked for each chunk in turn. */
START_TEST(memory_that_comes_back_is_asked_for_once)
{
	const unsigned n = 60;
	uv_sem_post(&gate);
	gives_back_each = true;
	atomic_store(&most_open, count_open() + n);
	for (unsigned i = 0; i < 2; i++) {
		struct request *big = start(i, 1, n);
		await_end(big);
		ck_assert_int_eq(big->status, STATUS_OK);
	}
	ck_assert_uint_le(atomic_load(&n_refused), 1);
}
END_TEST

/* Beyond the budget of fds, chunks are held by handle; those go, too. */
START_TEST_WITH(handles_go_as_well, .n = 2)
{
	allocator.books.max_fds = 20;
	atomic_store(&n_makeable, _i == 0 ? UINT32_MAX : 15);
	uv_sem_post(&gate);
	struct request *big = start(0, 1, 30);
	await_end(big);
	ck_assert_int_eq(big->status, _i == 0 ? STATUS_OK : STATUS_NO_DEVICE_MEMORY);
}
END_TEST

/* While the worker has it, and while it waits. */
START_TEST_WITH(a_cancelled_request_gives_all_back, .n = 2)
{
	if (_i == 1) {
		tenant_set_quota(payer, 0, 20 * MIB);
		allocator.pressure.wait_ms = 100000;
	}
	struct request *first = start(0, 1, 10);
	await_gate();
	struct request *second = start(1, 1, 10);
	alloc_cancel(_i == 0 ? first->alloc : second->alloc);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(first->place, _i == 0 ? 0 : 1);
	ck_assert_uint_eq(second->place, _i == 0 ? 1 : 0);
}
END_TEST

/* Chunks that the driver is asked for count as given out: else two requests at a time get more than there may be. */
START_TEST(no_more_is_asked_of_the_driver_than_may_be_given_out)
{
	devices[0].at.usable_bytes = 20 * MIB;
	struct request *first = start(0, 1, 6);
	await_gate();
	struct request *second = start(1, 2, 6);
	ck_assert_uint_eq(devices[0].at.coming_bytes, 12 * MIB);
	ck_assert(!location_has_room(&devices[0].at, 10 * MIB));
	uv_sem_post(&gate);
	await_end(first);
	await_end(second);
	/* The second request is granted when the chunks of the first have gone. */
	ck_assert_uint_eq(first->place, 1);
	ck_assert_int_eq(second->status, STATUS_OK);
}
END_TEST

/* A request is let in whole or not at all: no part of it is charged meanwhile. */
START_TEST(what_waits_for_its_quota_is_charged_nothing)
{
	tenant_set_quota(payer, 0, 20 * MIB);
	allocator.pressure.wait_ms = 100000;
	struct request *first = start(0, 1, 6);
	await_gate();
	struct request *second = start(1, 1, 10);
	ck_assert_uint_eq(payer->at[0].used_bytes, 12 * MIB);
	uv_sem_post(&gate);
	await_end(first);
	await_end(second);
	ck_assert_int_eq(second->status, STATUS_OK);
	ck_assert_uint_eq(payer->at[0].used_bytes, 0);
}
END_TEST

/* ---- the reserve for unsealing ---------------------------------------------------------------- */

static uint64_t kept_unsealing_bytes;

static void keep_chunk(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct request *request = user;
	request->place = ++n_over;
	request->status = status;
	kept_unsealing_bytes = n_chunks ? chunks[0].unsealing_bytes : 0;
}

static enum status start_unsealing(struct request *request, bool is_spare)
{
	static uint64_t waited_ms;
	const uint64_t size = 4 * MIB;
	const struct alloc_wanted wanted = {.at = &devices[0].at,
	                                    .tenant = payer,
	                                    .uid = 1,
	                                    .use = CHUNK_PRIVATE,
	                                    .sizes = &size,
	                                    .n_chunks = 1,
	                                    .waited_ms = &waited_ms,
	                                    .is_spare = is_spare,
	                                    .may_unseal = true};
	*request = (struct request){.place = 0};
	return alloc_start(&allocator, &wanted, keep_chunk, request, &request->alloc);
}

/* There is room for 2 MiB, and a reserve of @bytes. */
static void keep_reserve(uint64_t bytes)
{
	struct location *at = &devices[0].at;
	at->usable_bytes = bytes + 2 * MIB;
	reserve_note_saved(at, 0, bytes);
	reserve_set_part(at, 1);
	ck_assert_uint_eq(at->unsealing_bytes, bytes);
	ck_assert_uint_eq(location_room_bytes(at), 2 * MIB);
}

/* The reserve gives what room lacks, at once; a chunk that is not taken gives it back. In the end the reserve is whole. */
START_TEST_WITH(a_private_copy_takes_what_room_lacks, .n = 2)
{
	struct location *at = &devices[0].at;
	keep_reserve(8 * MIB);
	ck_assert_int_eq(start_unsealing(&requests[0], _i == 1), STATUS_OK);
	ck_assert_uint_eq(at->unsealing_bytes, 6 * MIB);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_int_eq(requests[0].status, STATUS_OK);
	ck_assert_uint_eq(kept_unsealing_bytes, 2 * MIB);
	ck_assert_uint_eq(at->unsealing_bytes, 8 * MIB);
}
END_TEST

/* Cancelled while it is made, or refused by the driver: it is the reserve's again. */
START_TEST_WITH(a_copy_that_fails_gives_it_back, .n = 2)
{
	struct location *at = &devices[0].at;
	keep_reserve(8 * MIB);
	atomic_store(&n_makeable, _i == 0 ? UINT32_MAX : 0);
	ck_assert_int_eq(start_unsealing(&requests[0], true), STATUS_OK);
	ck_assert_uint_eq(at->unsealing_bytes, 6 * MIB);
	if (_i == 0) {
		await_gate();
		alloc_cancel(requests[0].alloc);
	}
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(requests[0].place, _i);
	ck_assert_uint_eq(at->unsealing_bytes, 8 * MIB);
	ck_assert_uint_eq(location_room_bytes(at), 2 * MIB);
}
END_TEST

/* The tenant's limit is met: the reserve gives all of it, or it is refused. */
START_TEST_WITH(a_copy_beyond_the_quota_is_all_of_the_reserve, .n = 2)
{
	struct location *at = &devices[0].at;
	keep_reserve(_i == 0 ? 8 * MIB : 2 * MIB);
	tenant_set_quota(payer, 0, 2 * MIB);
	enum status status = start_unsealing(&requests[0], true);
	ck_assert_int_eq(status, _i == 0 ? STATUS_OK : STATUS_OVER_QUOTA);
	ck_assert_uint_eq(at->unsealing_bytes, _i == 0 ? 4 * MIB : 2 * MIB);
	ck_assert_uint_eq(payer->at[0].used_bytes, _i == 0 ? 4 * MIB : 0);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(payer->at[0].used_bytes, 0);
}
END_TEST

/* Who waits for room keeps it, and the copy comes from the reserve alone. Another's request gets nothing of that. */
START_TEST(who_waits_goes_on_to_wait_for_room)
{
	struct location *at = &devices[0].at;
	keep_reserve(8 * MIB);
	allocator.pressure.wait_ms = 1000000;
	struct request *other = start(1, 2, 2);
	uv_sem_post(&gate);
	while (alloc_waiting_number(other->alloc) == 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	ck_assert_int_eq(start_unsealing(&requests[0], true), STATUS_OK);
	ck_assert_uint_eq(at->unsealing_bytes, 4 * MIB);
	run_worker();
	ck_assert_uint_eq(kept_unsealing_bytes, 4 * MIB);
	ck_assert_uint_eq(other->place, 0);
	/* Memory that is unsealed saves nothing any more. */
	reserve_note_saved(at, 8 * MIB, 0);
	await_end(other);
	ck_assert_int_eq(other->status, STATUS_OK);
}
END_TEST

/* ---- the stock -------------------------------------------------------------------------------- */

static struct stock stock;

/* With @n_ready chunks of 2 MiB. */
static void begin_stock(unsigned n_ready)
{
	stock_init(&stock, &devices[0].at, &allocator.books, store.cache);
	stock_want(&stock, 2 * MIB, n_ready);
}

/* Somebody needs the memory that is being made ahead: what comes afterwards goes at once. */
START_TEST(a_stock_that_is_drained_keeps_nothing_that_comes_later)
{
	struct chunk chunk;
	begin_stock(2);
	stock_refill(&stock);
	await_gate();
	ck_assert_uint_eq(stock_drain(&stock), 0);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_STOCK], 0);
	ck_assert(!stock_take(&stock, 2 * MIB, &chunk));
	stock_refill(&stock);
	run_worker();
	ck_assert(!stock_take(&stock, 2 * MIB, &chunk));
	stock_resume(&stock);
	stock_refill(&stock);
	run_worker();
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_STOCK], 4 * MIB);
	ck_assert(stock_take(&stock, 2 * MIB, &chunk));
	chunk_release(&chunk);
	ck_assert_uint_eq(stock_drain(&stock), 2 * MIB);
}
END_TEST

/* A size that is not followed any more makes room for another one, but for what is coming of it. */
START_TEST(a_forgotten_size_leaves_its_place_when_nothing_of_it_is_coming)
{
	struct chunk chunk;
	begin_stock(0);
	stock_follow(&stock, 4 * MIB);
	stock_follow(&stock, 4 * MIB);
	stock_refill(&stock);
	await_gate();
	stock_drain(&stock);
	ck_assert_uint_eq(devices[0].at.coming_bytes, 4 * MIB);
	uv_sem_post(&gate);
	run_worker();
	ck_assert_uint_eq(devices[0].at.coming_bytes, 0);
	/* More sizes than there are places, one after the other. */
	for (unsigned i = 0; i < 3 * STOCK_FOLLOWED_SIZES; i++) {
		uint64_t bytes = (6 + 2 * i) * MIB;
		stock_follow(&stock, bytes);
		stock_follow(&stock, bytes);
		stock_resume(&stock);
		stock_refill(&stock);
		run_worker();
		ck_assert(stock_take(&stock, bytes, &chunk));
		chunk_release(&chunk);
		stock_drain(&stock);
		run_worker();
	}
}
END_TEST

/* A chunk that the stock gives up makes room for others, as one that is taken does. */
START_TEST(a_stock_follows_for_ever)
{
	struct chunk chunk;
	uv_sem_post(&gate);
	begin_stock(0);
	for (uint64_t i = 0; i < 2 * STOCK_FOLLOWED_BYTES / (64 * MIB); i++) {
		stock_follow(&stock, 64 * MIB);
		stock_follow(&stock, 64 * MIB);
		stock_resume(&stock);
		run_worker();
		ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_STOCK], 64 * MIB);
		ck_assert_uint_eq(stock_drain(&stock), 64 * MIB);
	}
	ck_assert(!stock_take(&stock, 64 * MIB, &chunk));
}
END_TEST

START_TEST(a_stock_takes_no_more_than_may_be_given_out)
{
	devices[0].at.usable_bytes = 5 * MIB;
	begin_stock(4);
	stock_refill(&stock);
	await_gate();
	ck_assert_uint_eq(devices[0].at.coming_bytes, 4 * MIB);
	uv_sem_post(&gate);
	run_worker();
	stock_refill(&stock);
	run_worker();
	ck_assert_uint_eq(stock_drain(&stock), 4 * MIB);
}
END_TEST

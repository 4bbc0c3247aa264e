/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads with a stream each allocate and free memory of one pool at random (libclient/stitch/pool.h): their own
 * and each other's, in the order of events and of the host, while memory is given back and another session takes it.
 * Each allocation has a value of its own, at its start, its end and places between.
 */
#include <pthread.h>
#include <time.h>

#include "libclient/order/order.h"
#include "libclient/stitch/pool_parts.h"
#include "tests/harness/churn.h"
#include "tests/integration/stitching.h"

#define N_THREADS 16u
#define N_SLOTS 80u
#define STEPS 250u /* between two looks at the books */
#define SECONDS 2u
/* A sanitizer needs memory of its own for all addresses that are ever used. */
#define DEVICES (TEST_SANITIZED ? "1x48MiB" : "1x72MiB")
#define MOST_BYTES ((TEST_SANITIZED ? 4 : 6) * MIB)
#define MOST_HOGGED_BYTES (2 * MOST_BYTES)
#define STRIDE (256 * KIB)
#define PLACE_BYTES (2 * KIB)

static struct glake_session *other;
static atomic_uint last_value;
static atomic_uint n_refused;
static atomic_bool is_over;
static pthread_barrier_t quiet;

/* An allocation. @used is recorded behind the last work that uses it. */
static struct slot {
	pthread_mutex_t lock;
	glake_ptr ptr; /* 0: none */
	uint64_t n_bytes;
	uint32_t value;
	CUevent used;
} slots[N_SLOTS];

struct worker {
	pthread_t thread;
	unsigned seed;
	CUstream stream;
	uint32_t words[(MOST_BYTES / STRIDE + 2) * PLACE_BYTES / 4];
};

/* A lack of memory is no failure: the others have it. */
static bool is_lack(int r)
{
	return r == GLAKE_E_OVER_QUOTA || r == GLAKE_E_NO_DEVICE_MEMORY;
}

static uint64_t pick_bytes(struct worker *worker)
{
	static const uint64_t most[] = {256 * KIB, MIB, MOST_BYTES / 3, MOST_BYTES};
	return 4 * (1 + (uint64_t)rand_r(&worker->seed) % (most[churn_pick(&worker->seed, 4)] / 4));
}

/* ---- what a thread does to a slot, whose lock it holds ------------------------------------------ */

/* The simulator is slow with all of the bytes. */
struct place {
	uint64_t offset;
	uint64_t n_bytes; /* 0 at the beginning */
};

static bool next_place(const struct slot *slot, struct place *place)
{
	uint64_t n_left = slot->n_bytes - place->offset - place->n_bytes;
	if (n_left == 0) {
		return false;
	}
	if (place->n_bytes > 0) {
		bool is_last = n_left <= STRIDE;
		place->offset = is_last && n_left > PLACE_BYTES ? slot->n_bytes - PLACE_BYTES
		                : is_last                       ? place->offset + place->n_bytes
		                                                : place->offset + STRIDE;
		n_left = slot->n_bytes - place->offset;
	}
	place->n_bytes = n_left < PLACE_BYTES ? n_left : PLACE_BYTES;
	return true;
}

static void write_value(struct worker *worker, struct slot *slot)
{
	slot->value = ++last_value;
	struct place place = {.n_bytes = 0};
	while (next_place(slot, &place)) {
		must(drv.cuMemsetD32Async(slot->ptr + place.offset, slot->value, place.n_bytes / 4,
		                          worker->stream));
	}
	must(drv.cuEventRecord(slot->used, worker->stream));
}

static void fill(struct worker *worker, struct slot *slot)
{
	uint64_t n_bytes = pick_bytes(worker);
	int r = glake_alloc_async(session, worker->stream, n_bytes, 0, &slot->ptr);
	if (r < 0) {
		ck_assert_msg(is_lack(r), "%d: %s", r, glake_error());
		slot->ptr = 0;
		n_refused++;
		return;
	}
	slot->n_bytes = n_bytes;
	write_value(worker, slot);
}

/* The thread's stream runs behind what uses it. */
static void follow(struct worker *worker, struct slot *slot)
{
	must(drv.cuStreamWaitEvent(worker->stream, slot->used, 0));
}

static void look(struct worker *worker, struct slot *slot)
{
	uint32_t *words = worker->words;
	uint64_t n_bytes = 0;
	struct place place = {.n_bytes = 0};
	follow(worker, slot);
	while (next_place(slot, &place)) {
		must(drv.cuMemcpyDtoHAsync((char *)words + n_bytes, slot->ptr + place.offset,
		                           place.n_bytes, worker->stream));
		n_bytes += place.n_bytes;
	}
	must(drv.cuStreamSynchronize(worker->stream));
	ck_assert_msg(churn_wrong_at(words, n_bytes, slot->value) == n_bytes,
	              "%llu bytes at 0x%llx are not %u", (unsigned long long)slot->n_bytes,
	              (unsigned long long)slot->ptr, slot->value);
}

static void empty(struct worker *worker, struct slot *slot)
{
	switch (churn_pick(&worker->seed, 4)) {
	case 0:
		must(drv.cuEventSynchronize(slot->used));
		assert_ok(glake_free(session, slot->ptr));
		break;
	case 1:
		must(drv.cuEventSynchronize(slot->used));
		assert_ok(glake_free_async(session, worker->stream, slot->ptr, 0));
		break;
	default:
		follow(worker, slot);
		assert_ok(glake_free_async(session, worker->stream, slot->ptr, 0));
	}
	slot->ptr = 0;
}

static void change(struct worker *worker, struct slot *slot)
{
	if (!slot->ptr) {
		fill(worker, slot);
	} else if (churn_pick(&worker->seed, 4) == 0) {
		look(worker, slot);
	} else if (churn_pick(&worker->seed, 4) == 0) {
		follow(worker, slot);
		write_value(worker, slot);
	} else {
		empty(worker, slot);
	}
}

/* ---- the threads -------------------------------------------------------------------------------- */

static void bother(struct worker *worker)
{
	struct glake_pool_stats now = {.size = sizeof(now)};
	struct glake_pool_range *ranges = NULL;
	size_t n;
	switch (churn_pick(&worker->seed, 200)) {
	case 0:
		assert_ok(glake_trim(session, 0, churn_pick(&worker->seed, 64) * MIB));
		break;
	case 1:
	case 2:
	case 3:
		glake__pool_settle(the_pool(), 2 * MIB);
		break;
	case 4:
		assert_ok(glake_pool_reset_peaks(session, 0));
		break;
	case 5:
		assert_ok(glake_pool_snapshot(session, 0, &ranges, &n));
		free(ranges);
		break;
	case 6:
		must(drv.cuStreamSynchronize(worker->stream));
		break;
	default:
		assert_ok(glake_pool_stats(session, 0, &now));
		ck_assert_uint_le(now.used_bytes, now.reserved_bytes);
	}
}

/* Nobody is at work: the books are level. */
static void check_books(void)
{
	uint64_t n_bytes = 0;
	for (unsigned i = 0; i < N_SLOTS; i++) {
		bool is_pooled = slots[i].ptr && slots[i].n_bytes >= GLAKE__POOL_MIN_BYTES;
		n_bytes += is_pooled ? slots[i].n_bytes : 0;
	}
	ck_assert_uint_eq(stats().live_bytes, n_bytes);
}

static void *work(void *user)
{
	struct worker *worker = user;
	must(drv.cuCtxSetCurrent(context));
	worker->stream = stream_new();
	while (!is_over) {
		for (unsigned i = 0; i < STEPS; i++) {
			struct slot *slot = &slots[churn_pick(&worker->seed, N_SLOTS)];
			pthread_mutex_lock(&slot->lock);
			change(worker, slot);
			pthread_mutex_unlock(&slot->lock);
			bother(worker);
		}
		pthread_barrier_wait(&quiet);
		pthread_barrier_wait(&quiet);
	}
	must(drv.cuStreamSynchronize(worker->stream));
	return NULL;
}

/* Another session wants memory now and then, so that glaked asks for it. */
static void hog(struct worker *worker)
{
	glake_ptr ptr;
	int r = glake_alloc(other, 0, 1 + (uint64_t)rand_r(&worker->seed) % MOST_HOGGED_BYTES, 0,
	                    &ptr);
	ck_assert_msg(r == 0 || is_lack(r), "%d: %s", r, glake_error());
	if (r == 0) {
		assert_ok(glake_free(other, ptr));
		assert_ok(glake_trim(other, 0, 0));
	}
}

static void begin_slots(void)
{
	for (unsigned i = 0; i < N_SLOTS; i++) {
		pthread_mutex_init(&slots[i].lock, NULL);
		must(drv.cuEventCreate(&slots[i].used, CU_EVENT_DISABLE_TIMING));
	}
}

static void end_slots(struct worker *worker)
{
	for (unsigned i = 0; i < N_SLOTS; i++) {
		if (slots[i].ptr) {
			look(worker, &slots[i]);
			empty(worker, &slots[i]);
		}
	}
	must(drv.cuCtxSynchronize());
}

/* The last frees have no event yet: it is recorded now, and a busy simulator may get there later. */
static void trim_all(void)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	do {
		assert_ok(glake_trim(session, 0, 0));
	} while (stats().reserved_bytes > 0 && harness_now_ms() < end_ms);
}

static void connect_both(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	stitching_begin();
	/* So that kept ranges get other chunks. */
	the_pool()->kept_min_pages = 0;
	other = world_connect();
}

START_TEST_WITH(threads_keep_every_byte, .timeout_s = 600)
{
	static struct worker workers[N_THREADS + 1];
	struct worker *self = &workers[N_THREADS];
	unsigned seed = churn_seed();
	time_t end = time(NULL) + (time_t)churn_seconds(SECONDS);
	connect_both();
	begin_slots();
	pthread_barrier_init(&quiet, NULL, N_THREADS + 1);
	for (unsigned i = 0; i <= N_THREADS; i++) {
		workers[i].seed = seed + i;
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	self->stream = stream_new();
	while (!is_over) {
		if (churn_pick(&self->seed, 4) == 0) {
			hog(self);
		}
		if (TEST_SANITIZED) {
			assert_ok(glake_trim(session, 0, 0));
		}
		pthread_barrier_wait(&quiet);
		check_books();
		is_over = time(NULL) >= end;
		pthread_barrier_wait(&quiet);
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
	}
	end_slots(self);
	trim_all();
	struct glake_pool_stats now = stats();
	printf("%llu allocations, %u refused, %llu stitched, %llu reused, %llu grown\n",
	       (unsigned long long)now.n_allocs, n_refused, (unsigned long long)now.n_stitches,
	       (unsigned long long)now.n_reuses, (unsigned long long)now.n_grows);
	ck_assert_uint_gt(now.n_stitches, 0);
	ck_assert_uint_eq(now.used_bytes, 0);
	ck_assert_uint_eq(now.reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	check_books();
}
END_TEST

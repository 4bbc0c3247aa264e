/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of which several streams have memory, while the GPU is behind the program. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>

#include "libclient/stitch/pool_parts.h"
#include "tests/harness/run.h"
#include "tests/integration/stitching.h"

#define MAX_STREAMS 4u
#define MAX_ALLOCATIONS 4096u

static __typeof__(cuLaunchHostFunc) *launch;

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x8GiB");
	stitching_begin();
	*(void **)&launch = dlsym(drv.library, "cuLaunchHostFunc");
	ck_assert_ptr_nonnull(launch);
}
BEGIN_EACH(begin)

/* ---- streams that are late ---------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned n_allowed; /* streams get to the places before this one */
static unsigned n_reached; /* so many have been */

static void CUDA_CB reach(void *arg)
{
	unsigned number = (unsigned)(uintptr_t)arg;
	pthread_mutex_lock(&lock);
	while (number >= n_allowed) {
		pthread_cond_wait(&changed, &lock);
	}
	n_reached++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Work that comes on @stream now waits until let() has been called with more than @number. */
static void put_place(CUstream stream, unsigned number)
{
	must(launch(stream, reach, (void *)(uintptr_t)number));
}

/* Streams get to all places before @number, which have been put. */
static void let(unsigned number)
{
	pthread_mutex_lock(&lock);
	n_allowed = number;
	pthread_cond_broadcast(&changed);
	while (n_reached < number) {
		pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- a trace ------------------------------------------------------------------------------------ */

/* For twelve seconds nothing is asked for, and nothing is under way. */
static void pause_all(const CUstream *streams)
{
	for (unsigned i = 0; i < MAX_STREAMS; i++) {
		synchronize(streams[i]);
	}
	for (unsigned i = 0; i < 48; i++) {
		the_pool()->round_ns -= 250000000;
		ck_assert_int_ge(glake_dispatch(session), 0);
	}
}

/* A free comes to its stream when the program is @n_late frees further. After each @n_busy lines there is a pause. */
static void play(const char *name, unsigned n_late, unsigned n_busy)
{
	static glake_ptr ptrs[MAX_ALLOCATIONS];
	CUstream streams[MAX_STREAMS];
	FILE *file = fopen(run_in_build(name), "r");
	char line[256];
	unsigned number = 0;
	unsigned n_lines = 0;
	ck_assert_ptr_nonnull(file);
	for (unsigned i = 0; i < MAX_STREAMS; i++) {
		streams[i] = stream_new();
	}
	while (fgets(line, sizeof(line), file)) {
		unsigned id;
		unsigned stream;
		unsigned long n_bytes;
		if (sscanf(line, "a %u %lu %u", &id, &n_bytes, &stream) == 3) {
			ptrs[id] = alloc_on(streams[stream], n_bytes);
		} else if (sscanf(line, "f %u %u", &id, &stream) == 2) {
			put_place(streams[stream], number++);
			free_on(streams[stream], ptrs[id]);
		}
		if (number > n_late) {
			let(number - n_late);
		}
		if (++n_lines % n_busy == 0) {
			let(number);
			pause_all(streams);
		}
	}
	let(number);
	fclose(file);
}

static const unsigned LATE[] = {0, 10, 100, 1000};

/*
 * Each stream waits for the other now and then, which is cheaper than memory for both: that has twice what is live. A free is
 * passed when the simulated stream's thread has run, and whoever asks before gets other memory: a busy machine has 2 % more.
 */
START_TEST_WITH(streams_that_are_late_need_no_more_memory, .n = 4)
{
	play("traces/twins.trace", LATE[_i], UINT_MAX);
	struct glake_pool_stats now = stats();
	double utilization = (double)now.peak_live_bytes / (double)now.peak_reserved_bytes;
	ck_assert_msg(utilization >= 0.95, "%u late: %.3f", LATE[_i], utilization);
}
END_TEST

/* Between its turns some of its memory goes back. That comes again in few handles, which go in few the next time. */
START_TEST(a_program_that_pauses_maps_little)
{
	play("traces/generate.trace", 10, 300);
	struct glake_pool_stats now = stats();
	ck_assert_uint_gt(now.n_unmapped, 0);
	ck_assert_uint_le(now.n_mapped + now.n_unmapped, 6000);
	ck_assert_uint_gt(now.peak_live_bytes, now.peak_reserved_bytes / 100 * 99);
}
END_TEST

/* The borrower does not wait for what the lender has got since. */
START_TEST(a_borrower_waits_for_what_it_gets)
{
	CUstream lender = stream_new();
	CUstream borrower = stream_new();
	glake_ptr second = alloc_on(lender, 16 * MIB);
	alloc_on(lender, 48 * MIB);
	glake_ptr first = alloc_on(lender, 64 * MIB);
	queue_write(lender, first, 64 * MIB, 1);
	free_on(lender, first);
	put_place(lender, 0);
	free_on(lender, second);
	glake_ptr ptr = alloc_on(borrower, 60 * MIB);
	ck_assert_uint_eq(ptr, first);
	queue_write(borrower, ptr, 60 * MIB, 2);
	synchronize(borrower);
	ck_assert_uint_eq(n_wrong(ptr, 60 * MIB, 2), 0);
	let(1);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep without the shim: a session's memory goes to host memory and comes back, at the same addresses. */
#include <poll.h>
#include <signal.h>

#include "libclient/link/session.h"
#include "libclient/space/range.h"
#include "tests/harness/connection.h"
#include "tests/harness/words.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"64MiB\";"

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "1x4GiB");
	words_open_driver();
}
BEGIN_EACH(begin)

START_TEST(private_memory_leaves_and_comes_back)
{
	struct glake_session *session = world_connect();
	glake_ptr first = words_alloc(session, 6 * MIB, 7);
	glake_ptr second = words_alloc(session, 34 * MIB, 8);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 40 * MIB);
	ck_assert_uint_eq(slept.shared_bytes, 0);
	ck_assert_uint_eq(slept.n_stays, 0);
	ck_assert_uint_eq(words_device_bytes(), 0);
	slept.size = sizeof(slept);
	assert_ok(glake_wake(session, &slept));
	ck_assert_uint_eq(slept.private_bytes, 40 * MIB);
	ck_assert(!glake_is_asleep(session));
	words_check(first, 6 * MIB, 7);
	words_check(second, 34 * MIB, 8);
	ck_assert(words_can_write(first));
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(words_device_bytes(), 40 * MIB);
	assert_ok(glake_free(session, first));
	assert_ok(glake_free(session, second));
}
END_TEST

/* One chunk, as an engine makes it for its cache, beside others. It sleeps again in the place that it had. */
START_TEST(a_chunk_larger_than_1_gib_sleeps)
{
	const uint64_t large_bytes = GIB + 38 * MIB;
	struct glake_session *session = world_connect();
	glake_ptr large = words_alloc(session, large_bytes, 7);
	glake_ptr small = words_alloc(session, 6 * MIB, 8);
	for (unsigned round = 0; round < 2; round++) {
		struct glake_slept slept = words_fall_asleep(session);
		ck_assert_uint_eq(slept.private_bytes, large_bytes + 6 * MIB);
		ck_assert_uint_eq(slept.n_stays, 0);
		ck_assert_uint_eq(words_device_bytes(), 0);
		ck_assert_uint_eq(world_copy_bytes(), large_bytes + 6 * MIB);
		assert_ok(glake_wake(session, NULL));
		words_check(large, large_bytes, 7 + round);
		words_check(small, 6 * MIB, 8);
		words_write(large, large_bytes, 8 + round);
	}
}
END_TEST

static struct glake_host_status host(void)
{
	struct glake_host_status host = world_host();
	ck_assert_uint_eq(host.sleep_copy_bytes + host.model_copy_bytes + host.cached_copy_bytes,
	                  host.used_copy_bytes);
	return host;
}

static int add_gpu_bytes(void *user, const struct glake_sleeper_row *row)
{
	*(uint64_t *)user += row->gpu_bytes;
	return 0;
}

static uint64_t asleep_gpu_bytes(void)
{
	uint64_t bytes = 0;
	assert_ok(glake_list_sleepers(eye, add_gpu_bytes, &bytes));
	return bytes;
}

/* A copy is there once, whoever has it, and each who sleeps has it whole. */
START_TEST(the_host_tier_tells_what_its_copies_stand_for)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	words_seal(words_alloc(one, 6 * MIB, 7), 6 * MIB);
	words_seal(words_alloc(two, 6 * MIB, 7), 6 * MIB);
	words_alloc(two, 4 * MIB, 8);
	words_fall_asleep(one);
	ck_assert_uint_eq(host().sleep_copy_bytes, 6 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 6 * MIB);
	/* The other one has it on the GPU. */
	ck_assert_uint_eq(asleep_gpu_bytes(), 6 * MIB);
	words_fall_asleep(two);
	ck_assert_uint_eq(host().sleep_copy_bytes, 10 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 16 * MIB);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(asleep_gpu_bytes(), 0);
	assert_ok(glake_wake(two, NULL));
	ck_assert_uint_eq(host().sleep_copy_bytes, 6 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 6 * MIB);
	assert_ok(glake_wake(one, NULL));
	ck_assert_uint_eq(host().slept_bytes, 0);
	/* Copies that the others may need again stay. */
	ck_assert_uint_eq(host().cached_copy_bytes, 10 * MIB);
}
END_TEST

struct times {
	const char *name;
	uint64_t n;
};

static int count_times(void *user, const struct glake_histogram *histogram)
{
	struct times *times = user;
	for (uint32_t i = 0; strcmp(histogram->name, times->name) == 0 && i <= histogram->n_bounds;
	     i++) {
		times->n += histogram->counts[i];
	}
	return 0;
}

static uint64_t n_times(const char *name)
{
	struct times times = {.name = name};
	assert_ok(glake_get_histograms(eye, count_times, &times));
	return times.n;
}

START_TEST(sleeps_and_wakes_are_counted_and_timed)
{
	struct glake_session *session = world_connect();
	words_alloc(session, 6 * MIB, 7);
	for (uint64_t i = 1; i <= 3; i++) {
		words_fall_asleep(session);
		ck_assert_uint_eq(n_times("sleep"), i);
		assert_ok(glake_wake(session, NULL));
		ck_assert_uint_eq(n_times("wake"), i);
		ck_assert_uint_eq(n_times("wake_wait"), i);
	}
	ck_assert_uint_eq(world_metric("sleeps"), 3);
	ck_assert_uint_eq(world_metric("sleeps_asked"), 0);
	ck_assert_uint_eq(world_metric("wakes"), 3);
	ck_assert_uint_eq(world_metric("slept_bytes"), 18 * MIB);
	ck_assert_uint_eq(world_metric("woken_bytes"), 18 * MIB);
}
END_TEST

static int count_event(void *user, const struct glake_event_row *row)
{
	*(unsigned *)user += strcmp(row->kind, "copy_damaged") == 0;
	return 0;
}

/* Nobody gets it, and an operator learns of it once, however often the program tries. */
START_TEST(a_sleeper_that_is_damaged_in_host_memory_is_told_once)
{
	struct glake_session *session = world_connect();
	words_alloc(session, 6 * MIB, 7);
	words_fall_asleep(session);
	world_damage_copies();
	for (uint64_t i = 1; i <= 2; i++) {
		unsigned n_events = 0;
		assert_fails(GLAKE_E_MOVER, "damaged there", glake_wake(session, NULL));
		ck_assert(glake_is_asleep(session));
		assert_ok(glake_list_events(eye, count_event, &n_events));
		ck_assert_uint_eq(n_events, 1);
		ck_assert_uint_eq(world_metric("wakes_failed"), i);
	}
	ck_assert_uint_eq(world_metric("wakes_refused"), 0);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* The other session has the block: it is neither copied back nor held twice. */
START_TEST_WITH(sealed_memory_is_found_again, .n = 2)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 6 * MIB, 7);
	glake_ptr second = words_alloc(two, 6 * MIB, 7);
	words_seal(first, 6 * MIB);
	words_seal(second, 6 * MIB);
	struct glake_slept slept = words_fall_asleep(one);
	ck_assert_uint_eq(slept.shared_bytes, 6 * MIB);
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	words_check(second, 6 * MIB, 7);
	if (_i > 0) {
		words_fall_asleep(two);
		assert_ok(glake_evict(one, NULL, NULL, NULL));
		ck_assert_uint_eq(words_device_bytes(), 0);
		assert_ok(glake_wake(two, NULL));
	}
	assert_ok(glake_wake(one, NULL));
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	words_check(first, 6 * MIB, 7);
	words_check(second, 6 * MIB, 7);
	ck_assert(!words_can_write(first));
	assert_ok(glake_unseal(first, 1));
	words_write(first, 6 * MIB, 8);
	words_check(second, 6 * MIB, 7);
}
END_TEST

START_TEST(nothing_is_lost_when_a_session_ends_asleep)
{
	struct glake_session *session = world_connect();
	words_alloc(session, 6 * MIB, 7);
	words_fall_asleep(session);
	world_disconnect(session);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* ---- several wake ---- */

/* A connection that sleeps, with so many chunks of 2 MiB. */
static int fall_asleep(uint32_t n_chunks)
{
	uint64_t ids[32];
	int sleeper = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(sleeper, 0, 2 * MIB, n_chunks, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_status(sleeper,
	                                   REQUEST(SLEEP_COPY, SleepCopy, sleep_copy, .ids = ids,
	                                           .n_ids = n_chunks),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(
		connection_status(sleeper, REQUEST(SLEEP_ENTER, SleepEnter, sleep_enter), NULL, 0),
		GLAKE__WIRE__STATUS__OK);
	return sleeper;
}

/* Its memory is reserved, and nothing is copied: the mover is stopped. */
static uint64_t begin_to_wake(int sleeper, uint64_t n_bytes)
{
	uint64_t wake = connection_send(
		sleeper, REQUEST(SLEEP_LEAVE, SleepLeave, sleep_leave, .keeps_copies = true), NULL,
		0);
	while (words_device_bytes() < n_bytes) {
		usleep(1000);
	}
	return wake;
}

/* The first has the link, also for what the mover has not been asked for yet. */
START_TEST(who_wakes_first_is_awake_first)
{
	int large = fall_asleep(32);
	int small = fall_asleep(1);
	ck_assert_uint_eq(words_device_bytes(), 0);
	pid_t mover = world_running_mover();
	kill(mover, SIGSTOP);
	begin_to_wake(large, 64 * MIB);
	begin_to_wake(small, 66 * MIB);
	kill(mover, SIGCONT);
	Glake__Wire__Answer *answer = connection_receive(small, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	connection_free(answer);
	struct pollfd first = {.fd = large, .events = POLLIN};
	ck_assert_int_eq(poll(&first, 1, 0), 1);
	answer = connection_receive(large, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	connection_free(answer);
	connection_close(&large);
	connection_close(&small);
}
END_TEST

struct sleeper_seen {
	uint32_t place;
	bool is_asleep;
};

static int note_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct sleeper_seen *seen = user;
	seen->place = row->place;
	seen->is_asleep = strcmp(row->state, "asleep") == 0;
	return 0;
}

static Glake__Wire__Status leave_as(int sleeper, bool keeps_copies, bool stops)
{
	return connection_status(sleeper,
	                         REQUEST(SLEEP_LEAVE, SleepLeave, sleep_leave,
	                                 .keeps_copies = keeps_copies, .stops = stops),
	                         NULL, 0);
}

static void ck_stopped(int sleeper, uint64_t wake)
{
	uint64_t stop = connection_send(
		sleeper, REQUEST(SLEEP_LEAVE, SleepLeave, sleep_leave, .stops = true), NULL, 0);
	ck_assert_int_eq(connection_status_of(sleeper, wake), GLAKE__WIRE__STATUS__BUSY);
	ck_assert_int_eq(connection_status_of(sleeper, stop), GLAKE__WIRE__STATUS__OK);
}

/* While its bytes come: then what had come goes, and it sleeps as before. With nothing under way nothing happens, whoever says it. */
START_TEST(a_wake_that_is_stopped_while_bytes_come_leaves_it_asleep)
{
	int sleeper = fall_asleep(4);
	ck_assert_int_eq(leave_as(sleeper, false, true), GLAKE__WIRE__STATUS__OK);
	pid_t mover = world_running_mover();
	kill(mover, SIGSTOP);
	uint64_t wake = begin_to_wake(sleeper, 8 * MIB);
	ck_stopped(sleeper, wake);
	kill(mover, SIGCONT);
	while (words_device_bytes() > 0) {
		usleep(1000);
	}
	ck_assert_int_eq(leave_as(sleeper, false, true), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_int_eq(leave_as(sleeper, true, false), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(words_device_bytes(), 8 * MIB);
	ck_assert_int_eq(leave_as(sleeper, true, true), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(words_device_bytes(), 8 * MIB);
	connection_close(&sleeper);
	int awake = connection_hello(&harness);
	ck_assert_int_eq(leave_as(awake, false, true), GLAKE__WIRE__STATUS__OK);
	connection_close(&awake);
}
END_TEST

/* While it waits for room: then the next in line gets that, and the wake has no place any more. */
START_TEST(a_wake_that_is_stopped_while_it_waits_for_room_leaves_its_place)
{
	struct glake_device_view view = {.size = sizeof(view)};
	struct sleeper_seen seen = {.place = 0};
	struct fdlist fds;
	uint64_t ids[4];
	int sleeper = fall_asleep(32);
	int other = connection_hello(&harness);
	assert_ok(glake_device_view(eye, 0, &view));
	uint64_t n_bytes = (view.room_bytes + view.idle_bytes - 40 * MIB) / 4 / (2 * MIB) * 2 * MIB;
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(other, 0, n_bytes, 4, ids, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	uint64_t wake = begin_to_wake(sleeper, 4 * n_bytes);
	while (seen.place != 1) {
		assert_ok(glake_list_sleepers(eye, note_sleeper, &seen));
	}
	ck_stopped(sleeper, wake);
	assert_ok(glake_list_sleepers(eye, note_sleeper, &seen));
	ck_assert(seen.is_asleep);
	fdlist_deinit(&fds);
	connection_close(&other);
	ck_assert_int_eq(leave_as(sleeper, true, false), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(words_device_bytes(), 64 * MIB);
	connection_close(&sleeper);
}
END_TEST

/* Small memory would lie in pages that are asleep, and large memory be mapped where nobody looks. */
START_TEST_WITH(who_allocates_wakes_it, .n = 3)
{
	static const uint64_t sizes[] = {64 * KIB, 6 * MIB};
	struct glake_session *session = world_connect();
	glake_ptr small = words_alloc(session, 64 * KIB, 7);
	glake_ptr large = words_alloc(session, 6 * MIB, 8);
	glake_ptr more[2] = {0, 0};
	words_fall_asleep(session);
	if (_i < 2) {
		assert_ok(glake_alloc(session, 0, sizes[_i], 0, &more[0]));
	} else {
		assert_ok(glake_alloc_many(session, 0, sizes, 2, 0, more));
	}
	ck_assert(!glake_is_asleep(session));
	ck_assert(words_can_write(more[0]));
	words_check(small, 64 * KIB, 7);
	words_check(large, 6 * MIB, 8);
}
END_TEST

/* More than may stay warm, in two chunks of which one is small; what is left comes back. */
START_TEST(what_is_freed_asleep_does_not_come_back)
{
	struct glake_session *session = world_connect();
	glake_ptr kept = words_alloc(session, 6 * MIB, 7);
	glake_ptr large = words_alloc(session, 130 * MIB, 8);
	glake_ptr small = words_alloc(session, 64 * KIB, 9);
	glake_ptr beside = words_alloc(session, 64 * KIB, 10);
	words_fall_asleep(session);
	assert_ok(glake_free(session, large));
	assert_ok(glake_free(session, small));
	assert_fails(-EINVAL, "not memory of glake_alloc()", glake_free(session, large));
	ck_assert(glake_is_asleep(session));
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(words_device_bytes(), 0);
	assert_ok(glake_wake(session, NULL));
	ck_assert_uint_eq(words_device_bytes(), 8 * MIB);
	words_check(kept, 6 * MIB, 7);
	words_check(beside, 64 * KIB, 10);
	/* The last of its chunk. */
	words_fall_asleep(session);
	assert_ok(glake_free(session, beside));
	ck_assert(!glake_is_asleep(session));
	/* And all of it. */
	words_fall_asleep(session);
	assert_ok(glake_free(session, kept));
	assert_ok(glake_wake(session, NULL));
	kept = words_alloc(session, 6 * MIB, 11);
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	words_check(kept, 6 * MIB, 11);
}
END_TEST

/* A sealed block has a copy for others: it is no chunk that can just go. */
START_TEST(sealed_memory_is_woken_to_be_freed)
{
	struct glake_session *session = world_connect();
	glake_ptr sealed = words_alloc(session, 6 * MIB, 7);
	words_seal(sealed, 6 * MIB);
	words_fall_asleep(session);
	assert_ok(glake_free(session, sealed));
	ck_assert(!glake_is_asleep(session));
	ck_assert(glake__space_is_valid());
}
END_TEST

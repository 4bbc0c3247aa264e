/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session whose connection is lost goes on with another: its memory, its ids, its charges. A glaked
 * that was started anew does not know it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "proto/cleanup.h"
#include "tests/harness/connection.h"
#include "tests/harness/proxy.h"
#include "tests/harness/world.h"

#define CONFIG "pool = (); tenants = ( { name = \"default\"; device_bytes = \"8GiB\"; } );"

static int n_gone;

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x16GiB");
	world_open_driver();
}
BEGIN_EACH(begin)

static void count_gone(void *user, const struct glake_notice *notice)
{
	n_gone += notice->kind == GLAKE_NOTICE_GONE;
}

static uint64_t id_of(struct glake_session *session)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	return info.session;
}

static uint8_t first_byte(struct glake_session *session, glake_ptr ptr)
{
	uint8_t byte = 0;
	assert_ok(glake_read(session, 0, &byte, ptr, 1));
	return byte;
}

static void write_byte(glake_ptr ptr, uint8_t value)
{
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemsetD8(ptr, value, 1), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
}

static void close_socket(struct glake_session *session)
{
	int fd = glake_fd(session);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(close(fd), 0);
}

static void shut_socket(struct glake_session *session)
{
	ck_assert_int_eq(shutdown(glake_fd(session), SHUT_RDWR), 0);
}

/* By the number of the test: the program closes our socket, or shuts it down. */
static void (*const losses[])(struct glake_session *) = {close_socket, shut_socket};

START_TEST_WITH(allocating_goes_on_in_the_same_session, .n = 2)
{
	struct glake_session *session = world_connect();
	uint64_t id = id_of(session);
	glake_ptr first;
	glake_ptr second;
	glake_set_notice_handler(session, count_gone, NULL);
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &first));
	write_byte(first, 42);
	losses[_i](session);
	assert_ok(glake_alloc(session, 0, 8 * MIB, 0, &second));
	struct glake_session_row row = world_row(session);
	ck_assert_uint_eq(row.session, id);
	ck_assert_uint_eq(row.reserved_bytes, 12 * MIB);
	ck_assert(!row.detached);
	ck_assert_int_eq(first_byte(session, first), 42);
	losses[_i](session);
	assert_ok(glake_free(session, first));
	assert_ok(glake_free(session, second));
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_int_eq(n_gone, 0);
}
END_TEST

static void *shut_socket_later(void *session)
{
	usleep(100000);
	shut_socket(session);
	return NULL;
}

/* The connection is lost while glaked waits for the mover. */
START_TEST(publishing_goes_on_in_the_same_session)
{
	struct glake_block *block;
	glake_ptr ptr;
	pthread_t thread;
	struct glake_session *session = world_connect();
	world_set_faults("glake-mover/cuLaunchKernel:1:slow=300");
	assert_ok(glake_alloc(session, 0, 4 * MIB, GLAKE_ZERO, &ptr));
	ck_assert_int_eq(pthread_create(&thread, NULL, shut_socket_later, session), 0);
	assert_ok(glake_block_publish(session, ptr, 4 * MIB, &block));
	pthread_join(thread, NULL);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(session).shared_bytes, 4 * MIB);
	glake_block_release(block);
	ck_assert_uint_eq(world_row(session).shared_bytes, 0);
}
END_TEST

START_TEST_WITH(dispatch_connects_again, .n = 2)
{
	struct glake_session *session = world_connect();
	losses[_i](session);
	/* glake_dispatch() tries for a quarter of a second, and a busy machine may start glaked later. */
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	int r;
	while ((r = glake_dispatch(session)) < 0) {
		ck_assert_int_eq(r, GLAKE_E_GONE);
		ck_assert_uint_lt(harness_now_ms(), end_ms);
	}
	ck_assert_int_ge(glake_fd(session), 0);
	assert_ok(glake_ping(session));
}
END_TEST

/* The Goodbye of a session that has no connection gives back what it has as well. */
START_TEST_WITH(lost_session_is_disconnected, .n = 2)
{
	struct glake_session *watcher = world_connect();
	struct glake_session *session = world_connect();
	struct glake_session_row row = {.session = id_of(session)};
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	losses[_i](session);
	world_disconnect(session);
	while (glake_list_sessions(watcher, world_find_row, &row) == 1) {
		usleep(1000);
	}
}
END_TEST

START_TEST(many_losses_leave_nothing)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	size_t n_fds = world_own_n_fds();
	for (int i = 0; i < 1000; i++) {
		losses[i % 2](session);
		assert_ok(glake_ping(session));
	}
	ck_assert_uint_eq(world_own_n_fds(), n_fds);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 4 * MIB);
	assert_ok(glake_free(session, ptr));
}
END_TEST

START_TEST(another_glaked_does_not_know_it)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr;
	glake_set_notice_handler(session, count_gone, NULL);
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	write_byte(ptr, 42);
	harness_kill(&harness);
	world_restart();
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	ck_assert_int_eq(n_gone, 1);
	ck_assert_int_eq(first_byte(session, ptr), 42);
	assert_ok(glake_free(session, ptr));
	world_disconnect(session);
	session = world_connect();
	assert_ok(glake_ping(session));
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

#define N_WORKERS 4

struct worker {
	struct glake_session *session;
	atomic_uint n_steps;
	atomic_bool is_over;
};

/* Named chunks are asked for each time: nothing is warm. */
static void *work(void *argument)
{
	struct worker *worker = argument;
	while (!worker->is_over) {
		uint64_t chunk;
		int fd;
		assert_ok(glake_chunk_new(worker->session, 0, 2 * MIB, &chunk, &fd));
		close(fd);
		worker->n_steps++;
		assert_ok(glake_ping(worker->session));
		worker->n_steps++;
		assert_ok(glake_chunk_free(worker->session, chunk, 2 * MIB));
		worker->n_steps++;
	}
	return NULL;
}

START_TEST(threads_do_not_notice)
{
	struct glake_session *session = world_connect();
	struct worker workers[N_WORKERS];
	pthread_t threads[N_WORKERS];
	for (int i = 0; i < N_WORKERS; i++) {
		workers[i] = (struct worker){.session = session};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (int k = 0; k < 40; k++) {
		unsigned before[N_WORKERS];
		int fd = glake_fd(session);
		if (fd >= 0) {
			shutdown(fd, SHUT_RDWR);
		}
		/* A request is repeated once, so none may meet two losses. */
		for (int i = 0; i < N_WORKERS; i++) {
			before[i] = workers[i].n_steps;
		}
		for (int i = 0; i < N_WORKERS; i++) {
			while (workers[i].n_steps < before[i] + 3) {
				usleep(200);
			}
		}
	}
	for (int i = 0; i < N_WORKERS; i++) {
		workers[i].is_over = true;
		pthread_join(threads[i], NULL);
	}
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
}
END_TEST

/* ---- beyond a limit --------------------------------------------------------------------------- */

static void *serve(void *argument)
{
	struct worker *worker = argument;
	while (!worker->is_over) {
		glake_dispatch(worker->session);
		usleep(1000);
	}
	return NULL;
}

/* The limit was lowered meanwhile. Its warm memory is wanted back like anybody's. */
START_TEST(a_session_beyond_a_limit_gives_back_too)
{
	pthread_t thread;
	glake_ptr ptr;
	struct worker idle = {.session = world_connect()};
	struct glake_session *other = world_connect();
	struct glake_usage usage = {.size = sizeof(usage)};
	assert_ok(glake_alloc(idle.session, 0, 512 * MIB, 0, &ptr));
	assert_ok(glake_free(idle.session, ptr));
	usage = world_usage(idle.session);
	ck_assert_uint_eq(usage.reserved_bytes, 512 * MIB);
	assert_ok(glake_set_max_sessions(eye, "default", 1));
	shut_socket(idle.session);
	assert_ok(glake_ping(idle.session));
	ck_assert_int_eq(pthread_create(&thread, NULL, serve, &idle), 0);
	/* The tenant has no more than that. */
	assert_ok(glake_alloc(other, 0, 8 * GIB - 2 * MIB, 0, &ptr));
	idle.is_over = true;
	pthread_join(thread, NULL);
}
END_TEST

/* ---- answers that are lost -------------------------------------------------------------------- */

static atomic_bool is_cut;

/* glaked hears of the first chunk alone, and its answer is lost. */
static bool cut_free(void *user, struct proxy_packet *packet)
{
	if (packet->is_answer) {
		return !is_cut;
	}
	Glake__Wire__Request *request = glake__wire__request__unpack(NULL, packet->n_bytes,
	                                                             packet->bytes);
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE && !is_cut) {
		is_cut = true;
		request->chunk_free->n_ids = 1;
		packet->n_bytes = glake__wire__request__pack(request, packet->bytes);
	} else {
		is_cut = false;
	}
	glake__wire__request__free_unpacked(request, NULL);
	return true;
}

/* As when glaked ends in the middle of it. */
START_TEST(half_of_a_free_is_followed_by_the_other)
{
	glake_ptr ptrs[4];
	proxy_start(cut_free, NULL);
	struct glake_session *session = world_connect();
	for (int i = 0; i < 4; i++) {
		assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptrs[i]));
	}
	for (int i = 0; i < 3; i++) {
		assert_ok(glake_free(session, ptrs[i]));
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 4 * MIB);
	assert_ok(glake_free(session, ptrs[3]));
}
END_TEST

static atomic_int n_to_lose;

static bool lose_greetings(void *user, struct proxy_packet *packet)
{
	if (!packet->is_answer || n_to_lose == 0) {
		return true;
	}
	n_to_lose--;
	return false;
}

/* By the number of the test: glake_connect() asks again by itself, or the program does. */
START_TEST_WITH(a_lost_greeting_leaves_no_empty_session, .n = 2)
{
	struct glake_session *session;
	uint64_t n_sessions = world_books().n_sessions;
	proxy_start(lose_greetings, NULL);
	n_to_lose = 1 + _i;
	if (_i == 1) {
		ck_assert_int_eq(glake_connect(NULL, &session), GLAKE_E_GONE);
	}
	session = world_connect();
	ck_assert_uint_eq(world_books().n_sessions, n_sessions + 1);
	/* Another one is another one. */
	ck_assert_uint_ne(id_of(world_connect()), id_of(session));
}
END_TEST

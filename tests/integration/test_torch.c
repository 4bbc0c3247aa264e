/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points for PyTorch, called as its pluggable allocator calls them, against the real daemon. */
#include <dlfcn.h>
#include <pthread.h>

#include "libclient/glake_torch.h"
#include "tests/harness/gate.h"
#include "tests/harness/world.h"

#define CONFIG \
	WORLD_CONFIG "warm_bytes = \"64MiB\"; " \
		     "tenants = ({ name = \"default\"; device_bytes = \"256MiB\"; });"

static CUcontext contexts[2];

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x16GiB");
	world_open_driver();
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&contexts[i], i), CUDA_SUCCESS);
	}
	ck_assert_int_eq(drv.cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
}
BEGIN_EACH(begin)

static void disconnect(void)
{
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(drv.cuCtxSetCurrent(contexts[i]), CUDA_SUCCESS);
		ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
	}
	world_disconnect(glake_torch_session());
}
END_EACH(disconnect)

static CUstream stream_new(void)
{
	CUstream stream;
	ck_assert_int_eq(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	return stream;
}

static void *alloc_on(int device, CUstream stream, size_t n_bytes)
{
	void *ptr = glake_torch_alloc((ssize_t)n_bytes, device, stream);
	ck_assert_msg(ptr, "%s", glake_error());
	return ptr;
}

static void queue_write(CUstream stream, void *ptr, unsigned char byte)
{
	ck_assert_int_eq(drv.cuMemsetD8Async((CUdeviceptr)ptr, byte, MIB, stream), CUDA_SUCCESS);
}

static unsigned char first_byte(void *ptr)
{
	unsigned char byte;
	ck_assert_int_eq(drv.cuMemcpyDtoH(&byte, (CUdeviceptr)ptr, 1), CUDA_SUCCESS);
	return byte;
}

static CUcontext current(void)
{
	CUcontext now;
	ck_assert_int_eq(drv.cuCtxGetCurrent(&now), CUDA_SUCCESS);
	return now;
}

static void begin_capture(CUstream stream)
{
	__typeof__(cuStreamBeginCapture) *capture = (__typeof__(cuStreamBeginCapture) *)dlsym(
		drv.library, "cuStreamBeginCapture_v2");
	ck_assert_int_eq(capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
}

static void end_capture(CUstream stream)
{
	CUgraph graph;
	__typeof__(cuStreamEndCapture) *end = (__typeof__(cuStreamEndCapture) *)dlsym(
		drv.library, "cuStreamEndCapture");
	ck_assert_int_eq(end(stream, &graph), CUDA_SUCCESS);
}

START_TEST(a_stream_has_its_memory_again_at_once)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	ck_assert_ptr_null(glake_torch_session());
	void *first = alloc_on(0, stream, 8 * MIB);
	gate_close(stream);
	queue_write(stream, first, 1);
	glake_torch_free(first, 8 * MIB, 0, stream);
	void *second = alloc_on(0, stream, 8 * MIB);
	ck_assert_ptr_eq(second, first);
	queue_write(stream, second, 2);
	glake_torch_free(second, 8 * MIB, 0, stream);
	ck_assert_ptr_ne(alloc_on(0, other, 8 * MIB), first);
	ck_assert_uint_eq(world_usage(glake_torch_session()).live_bytes, 8 * MIB);
	gate_open();
}
END_TEST

START_TEST(nothing_is_no_memory_and_no_error)
{
	ck_assert_ptr_null(glake_torch_alloc(0, 0, NULL));
	ck_assert_ptr_null(glake_torch_pool_alloc(0, 0, NULL));
	glake_torch_free(NULL, 0, 0, NULL);
	glake_torch_record_stream(NULL, NULL);
	glake_torch_empty_cache();
	ck_assert_ptr_null(glake_torch_session());
}
END_TEST

/* PyTorch frees where the last reference goes: on any thread, with any device current, or none. */
START_TEST(the_default_stream_is_the_devices)
{
	CUcontext now[] = {contexts[0], contexts[1], NULL};
	void *ptr = alloc_on(0, NULL, 4 * MIB);
	gate_close(NULL);
	for (size_t i = 0; i < 3; i++) {
		ck_assert_int_eq(drv.cuCtxSetCurrent(now[i]), CUDA_SUCCESS);
		glake_torch_free(ptr, 4 * MIB, 0, NULL);
		ck_assert_ptr_eq(current(), now[i]);
		/* Were it freed on the other device's stream, it would have to wait for that one. */
		void *again = alloc_on(0, NULL, 4 * MIB);
		ck_assert_ptr_eq(current(), now[i]);
		ck_assert_ptr_eq(again, ptr);
		void *other = alloc_on(1, NULL, 4 * MIB);
		ck_assert_ptr_eq(current(), now[i]);
		glake_torch_free(other, 4 * MIB, 1, NULL);
		ck_assert_uint_eq(world_usage(glake_torch_session()).live_bytes, 4 * MIB);
	}
	gate_open();
}
END_TEST

static struct {
	unsigned n;
	char text[1024];
} raised;

static void note_raise(const char *function, const char *file, uint32_t line, const char *text)
{
	ck_assert_str_ne(function, "");
	ck_assert_str_ne(file, "");
	ck_assert_uint_ne(line, 0);
	raised.n++;
	snprintf(raised.text, sizeof(raised.text), "%s", text);
}

START_TEST(what_fails_is_null_and_raised)
{
	ck_assert_ptr_null(glake_torch_alloc(GIB, 0, NULL));
	ck_assert_str_ne(glake_error(), "");
	glake_torch_set_raise(note_raise);
	ck_assert_ptr_null(glake_torch_alloc(GIB, 0, NULL));
	ck_assert_uint_eq(raised.n, 1);
	ck_assert_msg(strstr(raised.text, "CUDA out of memory. Tried to allocate 1073741824 bytes "
	                                  "on device 0 from glaked: ") == raised.text &&
	                      strstr(raised.text, glake_error()),
	              "%s", raised.text);
	ck_assert_ptr_null(glake_torch_alloc(MIB, 2, NULL));
	ck_assert_str_eq(raised.text, "Cannot allocate 1048576 bytes on device 2 from glaked: "
	                              "the daemon does not own CUDA device 2");
	ck_assert_ptr_null(glake_torch_alloc(0, 0, NULL));
	/* PyTorch itself handles what a MemPool cannot get. */
	ck_assert_ptr_null(glake_torch_pool_alloc(GIB, 0, NULL));
	ck_assert_uint_eq(raised.n, 2);
	alloc_on(0, NULL, MIB);
	ck_assert_uint_eq(raised.n, 2);
}
END_TEST

START_TEST(captures_have_memory_of_pools_alone)
{
	CUstream other = stream_new();
	void *before = alloc_on(0, other, 4 * MIB);
	gate_close(other);
	queue_write(other, before, 1);
	glake_torch_free(before, 4 * MIB, 0, other);
	CUstream stream = stream_new();
	begin_capture(stream);
	glake_torch_set_raise(note_raise);
	ck_assert_ptr_null(glake_torch_alloc(4 * MIB, 0, stream));
	ck_assert_str_eq(
		raised.text,
		"Cannot allocate 4194304 bytes on device 0 from glaked: the stream is being "
		"captured, and graphs need memory of a MemPool: glake.torch.mem_pool()");
	void *ptr = glake_torch_pool_alloc(4 * MIB, 0, stream);
	ck_assert_ptr_nonnull(ptr);
	/* A stream that is not captured may still write there. */
	ck_assert_ptr_ne(ptr, before);
	gate_open();
	end_capture(stream);
	glake_torch_free(ptr, 4 * MIB, 0, stream);
}
END_TEST

START_TEST(what_is_freed_on_a_captured_stream_goes_later)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	void *ptr = alloc_on(0, other, 4 * MIB);
	void *used = alloc_on(0, stream, 4 * MIB);
	begin_capture(stream);
	glake_torch_free(used, 4 * MIB, 0, stream);
	/* Neither can the one wait for the other. */
	glake_torch_record_stream(ptr, stream);
	glake_torch_free(ptr, 4 * MIB, 0, other);
	glake_torch_empty_cache();
	ck_assert_uint_eq(world_usage(glake_torch_session()).live_bytes, 8 * MIB);
	end_capture(stream);
	glake_torch_empty_cache();
	ck_assert_uint_eq(world_usage(glake_torch_session()).live_bytes, 0);
}
END_TEST

/* Two streams write there, the later one on new memory. Returns what stays. */
static unsigned char write_twice(void *ptr, CUstream stream, CUstream other)
{
	gate_close(other);
	queue_write(other, ptr, 1);
	glake_torch_free(ptr, 4 * MIB, 0, stream);
	ck_assert_ptr_eq(alloc_on(0, stream, 4 * MIB), ptr);
	queue_write(stream, ptr, 2);
	/* The later write is done already, unless it waits for the gate. */
	usleep(20000);
	gate_open();
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuStreamSynchronize(other), CUDA_SUCCESS);
	return first_byte(ptr);
}

START_TEST(a_recorded_stream_is_waited_for)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	void *ptr = alloc_on(0, stream, 4 * MIB);
	glake_torch_record_stream(ptr, other);
	glake_torch_record_stream(ptr, stream);
	glake_torch_record_stream(ptr, other);
	ck_assert_int_eq(write_twice(ptr, stream, other), 2);
	/* Nothing is recorded for the next allocation there: the later write may come first. */
	glake_torch_free(ptr, 4 * MIB, 0, stream);
	ck_assert_ptr_eq(alloc_on(0, stream, 4 * MIB), ptr);
	gate_close(other);
	glake_torch_free(ptr, 4 * MIB, 0, stream);
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	gate_open();
}
END_TEST

START_TEST(an_emptied_cache_is_the_daemons)
{
	void *ptr = alloc_on(1, NULL, 4 * MIB);
	glake_torch_free(ptr, 4 * MIB, 1, NULL);
	ck_assert_int_eq(drv.cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
	ck_assert_uint_gt(world_usage(glake_torch_session()).reserved_bytes, 0);
	glake_torch_empty_cache();
	ck_assert_uint_eq(world_usage(glake_torch_session()).reserved_bytes, 0);
}
END_TEST

static void *tend(void *user)
{
	const atomic_bool *is_over = user;
	while (!*is_over) {
		glake_torch_tend(10);
	}
	return NULL;
}

/* Another process is refused what a stream still uses. The program does nothing more, and has a thread. */
START_TEST(what_others_want_is_given_back)
{
	static atomic_bool is_over;
	pthread_t tender;
	glake_ptr wanted;
	glake_torch_tend(0);
	CUstream stream = stream_new();
	struct glake_session *other = world_connect();
	void *ptr = alloc_on(0, stream, 200 * MIB);
	gate_close(stream);
	glake_torch_free(ptr, 200 * MIB, 0, stream);
	ck_assert_int_eq(pthread_create(&tender, NULL, tend, &is_over), 0);
	ck_assert_int_eq(glake_alloc(other, 0, 200 * MIB, 0, &wanted), GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(world_usage(glake_torch_session()).reserved_bytes, 200 * MIB);
	gate_open();
	while (world_usage(glake_torch_session()).reserved_bytes > 0) {
		usleep(1000);
	}
	assert_ok(glake_alloc(other, 0, 200 * MIB, 0, &wanted));
	is_over = true;
	pthread_join(tender, NULL);
}
END_TEST

START_TEST(the_next_daemon_serves_on)
{
	CUstream stream = stream_new();
	void *old = alloc_on(0, stream, 4 * MIB);
	void *freed = alloc_on(0, stream, 4 * MIB);
	struct glake_session *before = glake_torch_session();
	queue_write(stream, old, 1);
	harness_kill(&harness);
	/* Memory that the library has serves without a glaked. */
	glake_torch_free(freed, 4 * MIB, 0, stream);
	ck_assert_ptr_eq(alloc_on(0, stream, 4 * MIB), freed);
	ck_assert_ptr_null(glake_torch_alloc(64 * MIB, 0, stream));
	world_restart();
	void *next;
	while (!(next = glake_torch_alloc(64 * MIB, 0, stream))) {
		/* The library has waited in vain, and does not look for it all the time. */
		usleep(10000);
	}
	struct glake_session *after = glake_torch_session();
	ck_assert_ptr_ne(after, before);
	queue_write(stream, next, 2);
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	ck_assert_int_eq(first_byte(old), 1);
	ck_assert_int_eq(first_byte(next), 2);
	glake_torch_free(old, 4 * MIB, 0, stream);
	glake_torch_free(freed, 4 * MIB, 0, stream);
	struct glake_usage usage = {.size = sizeof(usage)};
	assert_ok(glake_usage(before, &usage));
	ck_assert_uint_eq(usage.live_bytes, 0);
	glake_torch_free(next, 64 * MIB, 0, stream);
	ck_assert_uint_eq(world_usage(after).live_bytes, 0);
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	glake_disconnect(before);
}
END_TEST

static void *begin_at_once(void *user)
{
	pthread_barrier_wait(user);
	return alloc_on(0, NULL, 64 * KIB);
}

START_TEST(threads_share_one_session)
{
	enum { N = 8 };
	pthread_t threads[N];
	pthread_barrier_t barrier;
	pthread_barrier_init(&barrier, NULL, N);
	for (size_t i = 0; i < N; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, begin_at_once, &barrier), 0);
	}
	for (size_t i = 0; i < N; i++) {
		pthread_join(threads[i], NULL);
	}
	/* One slab, or one more for each thread that found none. */
	uint64_t live_bytes = world_usage(glake_torch_session()).live_bytes;
	ck_assert_uint_ge(live_bytes, 2 * MIB);
	ck_assert_uint_le(live_bytes, N * 2 * MIB);
	struct books want = books_before;
	want.n_sessions++;
	/* The others have ended theirs, which glaked may not have seen yet. */
	while (world_books().n_sessions != want.n_sessions) {
		usleep(1000);
	}
}
END_TEST

START_TEST(a_child_leaves_the_parents_memory_alone)
{
	void *ptr = alloc_on(0, NULL, 4 * MIB);
	struct glake_session *ours = glake_torch_session();
	pid_t pid = fork();
	if (pid == 0) {
		bool is_none = !glake_torch_session();
		glake_torch_free(ptr, 4 * MIB, 0, NULL);
		glake_torch_record_stream(ptr, NULL);
		glake_torch_empty_cache();
		/* CUDA itself does not survive a fork. */
		bool is_refused = !glake_torch_alloc(4 * MIB, 0, NULL) && *glake_error() &&
		                  !glake_torch_session();
		_exit(is_none && is_refused ? 0 : 1);
	}
	world_join(pid);
	ck_assert_ptr_eq(glake_torch_session(), ours);
	ck_assert_uint_eq(world_usage(ours).live_bytes, 4 * MIB);
	glake_torch_free(ptr, 4 * MIB, 0, NULL);
	ck_assert_uint_eq(world_usage(ours).live_bytes, 0);
}
END_TEST

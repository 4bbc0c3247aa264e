/* SPDX-License-Identifier: Apache-2.0 */
/* Private memory in the order of streams: the client library against the real daemon. */
#include <dlfcn.h>
#include <pthread.h>

#include "libclient/glake_shim.h"
#include "libclient/order/order_parts.h"
#include "tests/harness/gate.h"
#include "tests/harness/world.h"

#define CONFIG \
	"warm_bytes = \"64MiB\"; tenants = ({ name = \"default\"; device_bytes = \"256MiB\"; });"

static struct glake_session *session;
static CUcontext context;

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x16GiB");
	world_open_driver();
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	session = world_connect();
}
BEGIN_EACH(begin)

static CUstream stream_new(void)
{
	CUstream stream;
	ck_assert_int_eq(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	return stream;
}

static glake_ptr alloc_on(CUstream stream, uint64_t n_bytes)
{
	glake_ptr ptr = 0;
	assert_ok(glake_alloc_async(session, stream, n_bytes, 0, &ptr));
	return ptr;
}

static void queue_write(CUstream stream, glake_ptr ptr, uint64_t n_bytes)
{
	ck_assert_int_eq(drv.cuMemsetD8Async(ptr, 7, n_bytes, stream), CUDA_SUCCESS);
}

START_TEST(a_stream_has_its_memory_again_at_once)
{
	CUstream stream = stream_new();
	glake_ptr first = alloc_on(stream, 8 * MIB);
	queue_write(stream, first, 8 * MIB);
	assert_ok(glake_free_async(session, stream, first, 0));
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	glake_ptr second = alloc_on(stream, 8 * MIB);
	ck_assert_uint_eq(second, first);
	ck_assert_uint_eq(world_usage(session).live_bytes, 8 * MIB);
	ck_assert_uint_eq(world_usage(session).n_cold_allocs, 1);
	assert_ok(glake_free(session, second));
}
END_TEST

START_TEST(others_have_it_when_the_stream_got_there)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	glake_ptr first = alloc_on(stream, 8 * MIB);
	gate_close(stream);
	assert_ok(glake_free_async(session, stream, first, 0));
	glake_ptr second = alloc_on(other, 8 * MIB);
	ck_assert_uint_ne(second, first);
	ck_assert_uint_eq(world_usage(session).warm_bytes, 0);
	gate_open();
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	ck_assert_uint_eq(alloc_on(other, 8 * MIB), first);
}
END_TEST

START_TEST(memory_goes_between_the_two_ways)
{
	CUstream stream = stream_new();
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	assert_ok(glake_free_async(session, stream, ptr, 0));
	ck_assert_uint_eq(alloc_on(stream, 4 * MIB), ptr);
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 4 * MIB);
	ck_assert_uint_eq(alloc_on(stream, 4 * MIB), ptr);
}
END_TEST

START_TEST(named_memory_is_not_had_again)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 4 * MIB);
	struct glake_share share;
	assert_ok(glake_share(session, ptr, &share));
	/* Once the stream has come there, another allocation may have the address. */
	gate_close(stream);
	assert_ok(glake_free_async(session, stream, ptr, 0));
	ck_assert_uint_ne(alloc_on(stream, 4 * MIB), ptr);
	gate_open();
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	assert_ok(glake_trim(session, 0, 4 * MIB));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 4 * MIB);
}
END_TEST

START_TEST(what_would_fail_waits_for_streams)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	glake_ptr first = alloc_on(stream, 200 * MIB);
	queue_write(stream, first, 200 * MIB);
	assert_ok(glake_free_async(session, stream, first, 0));
	/* 256 MiB is all there is: the first has to go, and its stream to be waited for. */
	glake_ptr second = alloc_on(other, 100 * MIB);
	ck_assert_uint_ne(second, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 100 * MIB);
	assert_ok(glake_free_async(session, other, second, 0));
	glake_ptr third;
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &third));
}
END_TEST

START_TEST(trim_takes_what_streams_are_done_with)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 8 * MIB);
	gate_close(stream);
	assert_ok(glake_free_async(session, stream, ptr, 0));
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 8 * MIB);
	gate_open();
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

START_TEST(what_is_parked_is_nobodys)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 4 * MIB);
	struct glake_share share;
	assert_ok(glake_free_async(session, stream, ptr, 0));
	ck_assert_int_eq(glake_free_async(session, stream, ptr, 0), -EINVAL);
	ck_assert_int_eq(glake_free(session, ptr), -EINVAL);
	ck_assert_int_eq(glake_share(session, ptr, &share), -EINVAL);
	ck_assert_str_ne(glake_error(), "");
}
END_TEST

START_TEST(bad_requests_change_nothing)
{
	CUstream stream = stream_new();
	glake_ptr ptr = 1;
	ck_assert_int_eq(glake_alloc_async(session, stream, 0, 0, &ptr), -EINVAL);
	ck_assert_int_eq(glake_alloc_async(session, stream, MIB, 1, &ptr), -EINVAL);
	ck_assert_int_eq(glake_alloc_async(session, stream, MIB, 0, NULL), -EINVAL);
	ck_assert_int_eq(glake_alloc_async(session, stream, GIB, 0, &ptr), GLAKE_E_OVER_QUOTA);
	ck_assert_int_eq(glake_alloc_async(NULL, stream, MIB, 0, &ptr), -EINVAL);
	ck_assert_int_eq(glake_free_async(session, stream, 0x1000, 0), -EINVAL);
	ck_assert_int_eq(glake_free_async(session, stream, 0, 0), 0);
	ck_assert_uint_eq(ptr, 1);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

static void capture(CUstream stream, CUstreamCaptureMode mode)
{
	__typeof__(cuStreamBeginCapture) *begins = (__typeof__(cuStreamBeginCapture) *)dlsym(
		drv.library, "cuStreamBeginCapture_v2");
	ck_assert_int_eq(begins(stream, mode), CUDA_SUCCESS);
}

static void end_capture(CUstream stream)
{
	__typeof__(cuStreamEndCapture) *ends = (__typeof__(cuStreamEndCapture) *)dlsym(
		drv.library, "cuStreamEndCapture");
	CUgraph graph;
	ck_assert_int_eq(ends(stream, &graph), CUDA_SUCCESS);
}

START_TEST(a_captured_stream_is_busy)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 4 * MIB);
	glake_ptr other;
	capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	ck_assert_int_eq(glake_alloc_async(session, stream, MIB, 0, &other), -EBUSY);
	ck_assert_int_eq(glake_free_async(session, stream, ptr, 0), -EBUSY);
	end_capture(stream);
	assert_ok(glake_free_async(session, stream, ptr, 0));
}
END_TEST

/* Neither of this thread, which looks for what is done with, and may have to wait for it. */
START_TEST(captures_go_on)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	glake_ptr ptrs[20];
	for (size_t i = 0; i < 20; i++) {
		ptrs[i] = alloc_on(other, 4 * MIB);
	}
	capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	for (size_t i = 0; i < 20; i++) {
		queue_write(other, ptrs[i], 4 * MIB);
		assert_ok(glake_free_async(session, other, ptrs[i], 0));
	}
	/* 256 MiB is all there is. */
	glake_ptr ptr = alloc_on(other, 200 * MIB);
	assert_ok(glake_free_async(session, other, ptr, 0));
	assert_ok(glake_alloc(session, 0, 220 * MIB, 0, &ptr));
	assert_ok(glake_trim(session, 0, 0));
	end_capture(stream);
}
END_TEST

START_TEST(threads_have_default_streams_of_their_own)
{
	glake_ptr ptr;
	glake_ptr again;
	assert_ok(glake_alloc_async(session, NULL, 4 * MIB, GLAKE_PER_THREAD, &ptr));
	gate_close((CUstream)2 /* CU_STREAM_PER_THREAD */);
	assert_ok(glake_free_async(session, NULL, ptr, GLAKE_PER_THREAD));
	/* The legacy default stream is another one. */
	assert_ok(glake_alloc_async(session, NULL, 4 * MIB, 0, &again));
	ck_assert_uint_ne(again, ptr);
	assert_ok(glake_alloc_async(session, NULL, 4 * MIB, GLAKE_PER_THREAD, &again));
	ck_assert_uint_eq(again, ptr);
	gate_open();
}
END_TEST

START_TEST(disconnecting_gives_back_what_is_parked)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 64 * MIB);
	assert_ok(glake_free_async(session, stream, ptr, 0));
	world_disconnect(session);
	session = world_connect();
	glake_ptr all;
	assert_ok(glake_alloc(session, 0, 256 * MIB, 0, &all));
}
END_TEST

START_TEST(a_child_frees_host_memory_only)
{
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_on(stream, 8 * MIB);
	assert_ok(glake_free_async(session, stream, ptr, 0));
	pid_t pid = fork();
	if (pid == 0) {
		int r = glake_alloc_async(session, stream, MIB, 0, &ptr);
		world_disconnect(session);
		_exit(r == GLAKE_E_FORKED ? 0 : 1);
	}
	world_join(pid);
	ck_assert_uint_eq(alloc_on(stream, 8 * MIB), ptr);
}
END_TEST

static atomic_uint n_released;

static void count_release(void *user, void *allocation)
{
	(void)user;
	(void)allocation;
	n_released++;
}

/* An order that counts what it releases. */
static struct glake_order *order_new(void)
{
	const struct glake_order_options options = {
		.size = sizeof(options),
		.release = count_release,
	};
	struct glake_order *order;
	assert_ok(glake_order_new(&options, &order));
	return order;
}

START_TEST(an_order_gives_up_with_its_context)
{
	struct glake_stream known;
	struct glake_stream later;
	CUstream stream = stream_new();
	CUstream next = stream_new();
	int first;
	int second;
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, stream, 0, &known));
	ck_assert_ptr_eq(known.context, context);
	ck_assert_int_eq(known.ordinal, 0);
	gate_close(stream);
	assert_ok(glake_order_park(order, stream, 0, &known, &first, 0, 1024));
	assert_ok(glake_order_park(order, stream, 0, &known, &second, 1, 1024));
	/* The newest that fits, of the stream's device, and no more than an eighth too large. */
	ck_assert_ptr_null(glake_order_take(order, &known, 512));
	ck_assert_ptr_null(glake_order_take(order, &known, 1025));
	ck_assert_ptr_eq(glake_order_take(order, &known, 1000), &first);
	ck_assert_ptr_null(glake_order_take(order, &known, 1000));
	ck_assert_int_eq(glake_order_collect(order, context, 0), 0);
	assert_ok(glake_order_park(order, stream, 0, &known, &first, 0, 1024));
	/* An end that comes to nothing. */
	glake__order_hold_contexts(order);
	glake__order_hide_context(order, context);
	ck_assert_ptr_null(glake_order_take(order, &known, 1024));
	ck_assert_int_eq(glake_order_collect(order, context, 0), 0);
	glake__order_show_context(order, context);
	glake__order_let_contexts(order);
	ck_assert_ptr_eq(glake_order_take(order, &known, 1024), &first);
	ck_assert_uint_eq(n_released, 0);
	/* And one while the next context is here already: what is of that one stays. */
	glake__order_hold_contexts(order);
	glake__order_hide_context(order, context);
	assert_ok(glake_order_stream(order, next, 0, &later));
	assert_ok(glake_order_park(order, next, 0, &later, &first, 0, 1024));
	glake__order_drop_context(order);
	glake__order_let_contexts(order);
	ck_assert_uint_eq(n_released, 1);
	ck_assert_ptr_eq(glake_order_take(order, &later, 1024), &first);
	assert_ok(glake_order_stream(order, stream, 0, &known));
	assert_ok(glake_order_park(order, stream, 0, &known, &first, 0, 1024));
	gate_open();
	ck_assert_int_eq(glake_order_collect_all(order, 0), 1);
	ck_assert_uint_eq(n_released, 2);
	assert_ok(glake_order_park(order, stream, 0, &known, &first, 0, 1024));
	glake_order_free(order);
	ck_assert_uint_eq(n_released, 3);
	glake_order_free(NULL);
}
END_TEST

/* Marks that nobody uses, of which each has an event. */
static unsigned count_marks(const struct glake_order *order)
{
	unsigned n = 0;
	for (const struct glake__mark *mark = order->contexts->spares; mark; mark = mark->next) {
		n++;
	}
	return n;
}

/* The first and some of the next have events; who wants all has the rest marked. */
START_TEST(frees_of_a_stream_share_events)
{
	struct glake_stream known;
	CUstream stream = stream_new();
	char allocations[40];
	glake_ptr ptr = alloc_on(stream, 2 * MIB);
	queue_write(stream, ptr, 2 * MIB);
	n_released = 0;
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, stream, 0, &known));
	for (unsigned i = 0; i < 40; i++) {
		assert_ok(glake_order_park(order, stream, 0, &known, &allocations[i], 0, 1024));
	}
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	/* While the stream is captured nobody may mark it: those with an event are released. */
	capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	glake_order_collect(order, context,
	                    0); /* a slow free among many has released them already */
	ck_assert_uint_gt(n_released, 0);
	/* Nor waits for it. */
	glake_order_collect(order, context, 1);
	end_capture(stream);
	/* From then on each free has one, which covers those before it. */
	assert_ok(glake_order_park(order, stream, 0, &known, &allocations[0], 0, 1024));
	ck_assert_int_eq(drv.cuStreamSynchronize(stream), CUDA_SUCCESS);
	glake_order_collect(order, context, 0);
	ck_assert_uint_eq(n_released, 41);
	/* Too few for a free to look for what is done. */
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(glake_order_park(order, stream, 0, &known, &allocations[i], 0, 1024));
	}
	ck_assert_int_eq(glake_order_collect(order, context, 1), 1);
	ck_assert_uint_eq(n_released, 45);
	ck_assert_uint_le(count_marks(order), 8);
	glake_order_free(order);
}
END_TEST

START_TEST(a_stream_follows_what_another_one_has_freed)
{
	struct glake_stream known;
	CUstream stream = stream_new();
	CUstream other = stream_new();
	int allocation;
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, stream, 0, &known));
	assert_fails(-ENOENT, "nothing is parked", glake_order_follow(order, other, 0, known.id));
	glake_ptr ptr = alloc_on(stream, 2 * MIB);
	CUevent behind;
	gate_close(stream);
	queue_write(stream, ptr, 2 * MIB);
	ck_assert_int_eq(drv.cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuEventRecord(behind, stream), CUDA_SUCCESS);
	assert_ok(glake_order_park(order, stream, 0, &known, &allocation, 0, 1024));
	assert_ok(glake_order_follow(order, other, 0, known.id));
	ck_assert_int_eq(drv.cuEventQuery(behind), CUDA_ERROR_NOT_READY);
	gate_open();
	ck_assert_int_eq(drv.cuStreamSynchronize(other), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuEventQuery(behind), CUDA_SUCCESS);
	glake__order_hold_contexts(order);
	glake__order_hide_context(order, context);
	assert_fails(-EBUSY, "cannot be waited for", glake_order_follow(order, other, 0, known.id));
	glake__order_show_context(order, context);
	glake__order_let_contexts(order);
	glake_order_free(order);
}
END_TEST

/* Frees that follow each other within a millisecond share a mark, that is recorded when somebody asks. */
static void park_unmarked(struct glake_order *order, CUstream stream,
                          const struct glake_stream *known)
{
	static int allocation;
	const struct glake__order_line *line = glake__order_find_line(order, known->id);
	do {
		assert_ok(glake_order_park(order, stream, 0, known, &allocation, 0, 1024));
	} while (line->n_unmarked == 0);
}

static pthread_barrier_t at_the_call;

/* As around cuCtxDestroy(). */
static void *end_some_context(void *order)
{
	glake__order_hold_contexts(order);
	pthread_barrier_wait(&at_the_call);
	pthread_barrier_wait(&at_the_call);
	glake__order_let_contexts(order);
	return NULL;
}

START_TEST(a_context_that_may_be_ending_gets_no_marks)
{
	pthread_t thread;
	struct glake_stream known;
	struct glake_stream known_there;
	CUcontext there;
	CUstream stream = stream_new();
	CUstream own = stream_new();
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(there), CUDA_SUCCESS);
	CUstream other = stream_new();
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, other, 0, &known_there));
	ck_assert_ptr_eq(known_there.context, there);
	park_unmarked(order, other, &known_there);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	assert_ok(glake_order_stream(order, own, 0, &known));
	park_unmarked(order, own, &known);
	pthread_barrier_init(&at_the_call, NULL, 2);
	ck_assert_int_eq(pthread_create(&thread, NULL, end_some_context, order), 0);
	pthread_barrier_wait(&at_the_call);
	assert_fails(-EBUSY, "cannot be waited for",
	             glake_order_follow(order, stream, 0, known_there.id));
	ck_assert_uint_gt(glake__order_find_line(order, known_there.id)->n_unmarked, 0);
	/* Not that of the stream that waits. */
	assert_ok(glake_order_follow(order, stream, 0, known.id));
	pthread_barrier_wait(&at_the_call);
	pthread_join(thread, NULL);
	assert_ok(glake_order_follow(order, stream, 0, known_there.id));
	glake_order_free(order);
}
END_TEST

static struct glake_order *ending_order;
static CUstream later_stream;

/* While the stream is asked, its context ends, and the next one has its handle. */
static int end_context(void *user, void *stream)
{
	static int allocation;
	struct glake_stream later;
	(void)user;
	ck_assert_ptr_null(stream);
	glake__order_hold_contexts(ending_order);
	glake__order_hide_context(ending_order, context);
	assert_ok(glake_order_stream(ending_order, later_stream, 0, &later));
	assert_ok(glake_order_park(ending_order, later_stream, 0, &later, &allocation, 0, 1024));
	glake__order_drop_context(ending_order);
	glake__order_let_contexts(ending_order);
	return 1;
}

START_TEST(a_mark_of_a_context_that_ended_is_not_used_in_the_next)
{
	const struct glake_order_options options = {
		.size = sizeof(options),
		.release = count_release,
		.is_idle = end_context,
	};
	struct glake_stream known;
	later_stream = stream_new();
	n_released = 0;
	assert_ok(glake_order_new(&options, &ending_order));
	assert_ok(glake_order_stream(ending_order, NULL, 0, &known));
	park_unmarked(ending_order, NULL, &known);
	glake_order_collect(ending_order, context, 0);
	const struct glake__order_context *next = glake__order_context_of(ending_order, context);
	ck_assert_uint_ge(n_released, 2);
	for (const struct glake__mark *mark = next->spares; mark; mark = mark->next) {
		ck_assert_uint_eq(mark->generation, next->generation);
	}
	glake_order_free(ending_order);
}
END_TEST

#define N_ENDING (1000u / TEST_ONE_IN)

struct collector {
	struct glake_order *order;
	atomic_bool is_over;
};

static void *collect_always(void *user)
{
	struct collector *collector = user;
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	while (!collector->is_over) {
		glake_order_collect(collector->order, context, 0);
	}
	return NULL;
}

/* Other threads mark what was freed on it until the call returns, and not after it. */
START_TEST(a_stream_may_end_while_it_is_marked)
{
	struct collector collector = {.is_over = false};
	pthread_t thread;
	char allocations[3];
	n_released = 0;
	collector.order = order_new();
	ck_assert_int_eq(pthread_create(&thread, NULL, collect_always, &collector), 0);
	for (unsigned i = 0; i < N_ENDING; i++) {
		struct glake_stream known;
		CUstream stream = stream_new();
		assert_ok(glake_order_stream(collector.order, stream, 0, &known));
		for (unsigned j = 0; j < 3; j++) {
			assert_ok(glake_order_park(collector.order, stream, 0, &known,
			                           &allocations[j], 0, 1024));
		}
		glake_order_stream_ends(collector.order, &known);
		ck_assert_int_eq(drv.cuStreamDestroy(stream), CUDA_SUCCESS);
	}
	collector.is_over = true;
	pthread_join(thread, NULL);
	/* None is left behind, though the streams are gone. */
	glake_order_collect(collector.order, context, 1);
	ck_assert_uint_eq(n_released, 3 * N_ENDING);
	glake_order_free(collector.order);
}
END_TEST

/* One that is captured cannot be marked, nor asked for its id: what it freed stays until its context ends. */
START_TEST(a_captured_stream_that_ends_is_left_alone)
{
	struct glake_stream known;
	CUstream stream = stream_new();
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, stream, 0, &known));
	park_unmarked(order, stream, &known);
	capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	glake__order_handle_ends(order, stream);
	ck_assert_int_eq(drv.cuStreamDestroy(stream), CUDA_SUCCESS);
	glake_order_collect(order, context, 1);
	ck_assert_uint_gt(glake__order_find_line(order, known.id)->n_unmarked, 0);
	glake_order_free(order);
}
END_TEST

START_TEST(an_order_waits_for_one_device)
{
	struct glake_stream here;
	struct glake_stream there;
	CUcontext second;
	CUstream stream = stream_new();
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(second), CUDA_SUCCESS);
	CUstream other = stream_new();
	struct glake_order *order = order_new();
	assert_ok(glake_order_stream(order, stream, 0, &here));
	assert_ok(glake_order_stream(order, other, 0, &there));
	gate_close(stream);
	assert_ok(glake_order_park(order, stream, 0, &here, &here, 0, 1024));
	assert_ok(glake_order_park(order, other, 0, &there, &there, 1, 1024));
	ck_assert_int_eq(glake_order_collect_all(order, 1), 1);
	ck_assert_uint_eq(n_released, 1);
	gate_open();
	ck_assert_int_eq(glake_order_collect_all(order, 0), 1);
	ck_assert_uint_eq(n_released, 2);
	glake_order_free(order);
}
END_TEST

START_TEST(an_order_has_to_be_told_how_to_release)
{
	const struct glake_order_options options = {.size = sizeof(options)};
	struct glake_order *order;
	ck_assert_int_eq(glake_order_new(&options, &order), -EINVAL);
	ck_assert_int_eq(glake_order_new(NULL, &order), -EINVAL);
}
END_TEST

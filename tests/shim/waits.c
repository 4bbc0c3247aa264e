/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose streams wait for what it does next, linked against the driver: a receive is posted early, or a kernel
 * waits for a flag, and memory is had and freed before that comes. The driver alone waits in none of these calls.
 *
 *   waits SCENARIO
 *
 * It ends with 0, with 1 and a line on stderr, or with 2 and a line that says where it hung. $TIGHT: there is a quota of
 * 64 MiB, so that what is free has to serve.
 */
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cudasim/kernel_image.h"
#include "tests/shim/scenario.h"

#define MIB (1ull << 20)
#define MOST (40 * MIB) /* twice as much is more than the quota */
#define WATCHDOG_S 60   /* no call takes a quarter of it */
#define N_PIECES 24u

static CUcontext ctx;
static CUstream lender;
static CUstream receiver;
static CUstream sender;
static uint32_t *flag;
static CUdeviceptr flag_there;
static bool is_tight;
static const char *scenario;

/* ---- help --------------------------------------------------------------------------------------- */

static const char *_Atomic at = "the start"; /* what is done now */

static void on_alarm(int number)
{
	(void)number;
	dprintf(STDERR_FILENO, "%s hangs: %s\n", scenario, at);
	_exit(2);
}

static CUstream stream_new(unsigned flags)
{
	CUstream made;
	must_ok(cuStreamCreate(&made, flags));
	return made;
}

static void start(unsigned flags)
{
	is_tight = getenv("TIGHT") != NULL;
	signal(SIGALRM, on_alarm);
	alarm(WATCHDOG_S);
	must_ok(cuInit(0));
	must_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	must_ok(cuMemHostGetDevicePointer(&flag_there, flag, 0));
	*flag = 0;
	lender = stream_new(flags);
	receiver = stream_new(flags);
	sender = stream_new(flags);
}

static void post_receive(CUstream stream)
{
	at = "posting the receive";
	must_ok(cuStreamWaitValue32(stream, flag_there, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static CUdeviceptr alloc_on(CUstream stream, size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	at = "cuMemAllocAsync";
	must_ok(cuMemAllocAsync(&ptr, n_bytes, stream));
	return ptr;
}

static void free_on(CUstream stream, CUdeviceptr ptr)
{
	at = "cuMemFreeAsync";
	must_ok(cuMemFreeAsync(ptr, stream));
}

static void set(CUstream stream, CUdeviceptr ptr, size_t n_bytes, unsigned char value)
{
	must_ok(cuMemsetD8Async(ptr, value, n_bytes, stream));
}

TEST_BYTE_LOOP static void expect(CUdeviceptr ptr, size_t n_bytes, unsigned char value)
{
	unsigned char *bytes = malloc(n_bytes);
	must_ok(cuMemcpyDtoH(bytes, ptr, n_bytes));
	for (size_t i = 0; i < n_bytes; i++) {
		must(bytes[i] == value);
	}
	free(bytes);
}

/* Send what the receiver waits for, behind all that the sender has to do. */
static void send(void)
{
	at = "the GPU, at the sender";
	must_ok(cuStreamWriteValue32(sender, flag_there, 1, 0));
	must_ok(cuStreamSynchronize(sender));
	at = "the GPU, at the receiver";
	must_ok(cuStreamSynchronize(receiver));
}

/* The sender gets memory, uses it, and sends. */
static void use_and_send(void)
{
	CUdeviceptr ptr = alloc_on(sender, MOST);
	set(sender, ptr, MOST, 7);
	send();
	expect(ptr, MOST, 7);
	free_on(sender, ptr);
}

/* After a pause the first free of a stream is known to the microsecond, those that follow are not. */
static void lend(CUstream stream)
{
	free_on(stream, alloc_on(stream, MIB));
	usleep(10000);
	CUdeviceptr small = alloc_on(stream, MIB);
	CUdeviceptr large = alloc_on(stream, MOST);
	set(stream, large, MOST, 1);
	free_on(stream, small);
	free_on(stream, large);
	at = "the lender";
	must_ok(cuStreamSynchronize(stream));
}

/* ---- a receive is posted early ------------------------------------------------------------------ */

static void another_stream_waits(void)
{
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	post_receive(receiver);
	use_and_send();
}

static void streams_that_block(void)
{
	start(CU_STREAM_DEFAULT);
	lend(lender);
	post_receive(receiver);
	use_and_send();
}

/* There is a quota, and nobody can know of memory in time that would do. */
static CUdeviceptr try_alloc(size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	at = "cuMemAllocAsync";
	CUresult result = cuMemAllocAsync(&ptr, n_bytes, sender);
	must(result == CUDA_SUCCESS || (is_tight && result == CUDA_ERROR_OUT_OF_MEMORY));
	return ptr;
}

/* The sender has memory, if @ptr is 0, when it has sent. */
static void send_and_alloc(CUdeviceptr ptr)
{
	send();
	at = "cuMemAllocAsync, later";
	if (!ptr) {
		must_ok(cuMemAllocAsync(&ptr, MOST, sender));
	}
	free_on(sender, ptr);
}

/*
 * What the default stream has to do ends before the receive is posted, and nobody uses it after that. To mark it now
 * would make all streams that block wait for the receive.
 */
static void the_default_stream_lends(void)
{
	start(CU_STREAM_DEFAULT);
	lend(NULL);
	post_receive(receiver);
	send_and_alloc(try_alloc(MOST));
}

static void *lend_there(void *user)
{
	(void)user;
	must_ok(cuCtxSetCurrent(ctx));
	lend(CU_STREAM_PER_THREAD);
	post_receive(CU_STREAM_PER_THREAD);
	return NULL;
}

static void a_threads_own_stream_lends(void)
{
	pthread_t thread;
	start(CU_STREAM_NON_BLOCKING);
	must(pthread_create(&thread, NULL, lend_there, NULL) == 0);
	at = "the thread";
	pthread_join(thread, NULL);
	use_and_send();
}

/* The lender itself waits, behind its frees. Where there is a quota nobody can know that they are over. */
static void the_lender_waits(void)
{
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	post_receive(lender);
	send_and_alloc(try_alloc(MOST));
}

static void a_stream_that_ended_lends(void)
{
	start(CU_STREAM_NON_BLOCKING);
	for (unsigned i = 0; i < 8; i++) {
		CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
		lend(stream);
		must_ok(cuStreamDestroy(stream));
	}
	post_receive(receiver);
	use_and_send();
}

/* Freed behind the receive, so it cannot serve before that. */
static void memory_waits_for_the_receive(void)
{
	CUdeviceptr ptr = 0;
	start(CU_STREAM_NON_BLOCKING);
	CUdeviceptr parked = alloc_on(receiver, MOST);
	post_receive(receiver);
	free_on(receiver, parked);
	at = "cuMemAlloc";
	CUresult result = cuMemAlloc(&ptr, MOST);
	must(is_tight ? result == CUDA_ERROR_OUT_OF_MEMORY : result == CUDA_SUCCESS);
	send_and_alloc(try_alloc(MOST));
}

static void memory_waits_for_a_batch(void)
{
	CUstreamBatchMemOpParams ops[2] = {
		{.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32}},
		{.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                       .flags = CU_STREAM_WAIT_VALUE_GEQ}},
	};
	start(CU_STREAM_NON_BLOCKING);
	ops[0].writeValue.address = flag_there + 64;
	ops[1].waitValue.address = flag_there;
	ops[1].waitValue.value = 1;
	CUdeviceptr parked = alloc_on(receiver, MOST);
	must_ok(cuStreamBatchMemOp(receiver, 2, ops, 0));
	free_on(receiver, parked);
	send_and_alloc(try_alloc(MOST));
}

/* ---- with threads ------------------------------------------------------------------------------- */

static atomic_bool is_over;

/* Has and frees memory on a stream of its own until the others are done. */
static void *churn(void *user)
{
	must_ok(cuCtxSetCurrent(ctx));
	CUstream own = user ? user : stream_new(CU_STREAM_NON_BLOCKING);
	while (!is_over) {
		CUdeviceptr ptr = 0;
		CUresult result = cuMemAllocAsync(&ptr, 3 * MIB, own);
		must(result == CUDA_SUCCESS || (is_tight && result == CUDA_ERROR_OUT_OF_MEMORY));
		if (result == CUDA_SUCCESS) {
			must_ok(cuMemsetD8Async(ptr, 3, 3 * MIB, own));
			must_ok(cuMemFreeAsync(ptr, own));
		}
		must_ok(cuStreamSynchronize(own));
	}
	return NULL;
}

static void threads_go_on(void)
{
	pthread_t threads[3];
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	post_receive(receiver);
	for (unsigned i = 0; i < 3; i++) {
		must(pthread_create(&threads[i], NULL, churn, NULL) == 0);
	}
	CUdeviceptr ptr = alloc_on(sender, 8 * MIB);
	set(sender, ptr, 8 * MIB, 7);
	at = "the GPU, at the sender";
	must_ok(cuStreamWriteValue32(sender, flag_there, 1, 0));
	must_ok(cuStreamSynchronize(sender));
	is_over = true;
	at = "the threads";
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
	}
	expect(ptr, 8 * MIB, 7);
	free_on(sender, ptr);
	must_ok(cuCtxSynchronize());
}

/* One thread waits for memory that is not free, while another one, which sends, goes on. */
static void *want_all(void *user)
{
	CUdeviceptr ptr;
	(void)user;
	must_ok(cuCtxSetCurrent(ctx));
	CUstream own = stream_new(CU_STREAM_NON_BLOCKING);
	CUresult result = cuMemAllocAsync(&ptr, MOST, own);
	must(result == CUDA_SUCCESS || (is_tight && result == CUDA_ERROR_OUT_OF_MEMORY));
	return NULL;
}

/* The driver makes and ends no context before the receive is over; one that is there already goes on. */
static void a_waiting_thread_holds_up_nobody(void)
{
	pthread_t thread;
	CUcontext made;
	start(CU_STREAM_NON_BLOCKING);
#if CUDA_VERSION >= 13000
	must_ok(cuCtxCreate(&made, NULL, 0, 0));
#else
	must_ok(cuCtxCreate(&made, 0, 0));
#endif
	must_ok(cuCtxSetCurrent(ctx));
	CUdeviceptr parked = alloc_on(receiver, MOST);
	post_receive(receiver);
	free_on(receiver, parked);
	must(pthread_create(&thread, NULL, want_all, NULL) == 0);
	usleep(50000);
	at = "another context";
	must_ok(cuCtxSetCurrent(made));
	CUdeviceptr ptr = 0;
	must_ok(cuMemAlloc(&ptr, MIB));
	must_ok(cuMemFree(ptr));
	must_ok(cuCtxSetCurrent(ctx));
	ptr = alloc_on(sender, MIB);
	set(sender, ptr, MIB, 7);
	at = "the GPU, at the sender";
	must_ok(cuStreamWriteValue32(sender, flag_there, 1, 0));
	must_ok(cuStreamSynchronize(sender));
	at = "the thread";
	pthread_join(thread, NULL);
	free_on(sender, ptr);
	must_ok(cuCtxSynchronize());
	must_ok(cuCtxDestroy(made));
}

static void *free_there(void *user)
{
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuMemFree(*(CUdeviceptr *)user));
	is_over = true;
	return NULL;
}

/* cuMemFree() waits for the receive, or does not: it says which. It must not keep the others from sending. */
static void a_free_that_waits(void)
{
	pthread_t thread;
	CUdeviceptr ptr;
	start(CU_STREAM_NON_BLOCKING);
	must_ok(cuMemAlloc(&ptr, 8 * MIB));
	post_receive(receiver);
	must(pthread_create(&thread, NULL, free_there, &ptr) == 0);
	usleep(500000);
	printf("cuMemFree %s for all work of its context\n", is_over ? "does not wait" : "waits");
	use_and_send();
	at = "cuMemFree";
	pthread_join(thread, NULL);
}

/* ---- calls that ask ----------------------------------------------------------------------------- */

static void questions(void)
{
	size_t free_bytes;
	size_t total_bytes;
	CUmemoryPool pool;
	cuuint64_t value;
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	post_receive(receiver);
	at = "cuMemGetInfo";
	must_ok(cuMemGetInfo(&free_bytes, &total_bytes));
	must_ok(cuDeviceGetDefaultMemPool(&pool, 0));
	at = "cuMemPoolGetAttribute";
	must_ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
	at = "cuMemPoolTrimTo";
	must_ok(cuMemPoolTrimTo(pool, 0));
	at = "cuStreamDestroy";
	must_ok(cuStreamDestroy(lender));
	use_and_send();
}

/* The first of them asks the driver for its pitch. */
static void rows(void)
{
	CUdeviceptr ptr;
	size_t pitch;
	start(CU_STREAM_NON_BLOCKING);
	post_receive(receiver);
	at = "cuMemAllocPitch";
	must_ok(cuMemAllocPitch(&ptr, &pitch, 100, 100, 4));
	use_and_send();
	must_ok(cuMemFree(ptr));
}

/* Memory that was allocated in a capture's time is followed by memory behind it. */
static void behind_a_capture(void)
{
	CUgraph graph;
	CUdeviceptr first;
	CUdeviceptr second;
	start(CU_STREAM_NON_BLOCKING);
	must_ok(cuStreamBeginCapture(lender, CU_STREAM_CAPTURE_MODE_RELAXED));
	at = "cuMemAlloc";
	must_ok(cuMemAlloc(&first, MIB));
	must_ok(cuStreamEndCapture(lender, &graph));
	post_receive(receiver);
	at = "cuMemAlloc behind the capture";
	must_ok(cuMemAlloc(&second, MIB));
	use_and_send();
	must_ok(cuMemFree(first));
	must_ok(cuMemFree(second));
}

/* Memory of a graph, freed by the program behind a receive. */
static void memory_of_a_graph(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr ptr;
	start(CU_STREAM_NON_BLOCKING);
	must_ok(cuStreamBeginCapture(receiver, CU_STREAM_CAPTURE_MODE_RELAXED));
	ptr = alloc_on(receiver, 8 * MIB);
	set(receiver, ptr, 8 * MIB, 1);
	must_ok(cuStreamEndCapture(receiver, &graph));
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, receiver));
	post_receive(receiver);
	free_on(receiver, ptr);
	ptr = alloc_on(sender, MIB);
	set(sender, ptr, MIB, 7);
	send();
	/* A launch has the graph's memory anew. */
	must_ok(cuGraphLaunch(exec, receiver));
	must_ok(cuStreamSynchronize(receiver));
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	expect(ptr, MIB, 7);
	free_on(sender, ptr);
}

/* A capture of a stream that has freed goes on, whoever wants its memory. */
static void a_lender_is_captured(void)
{
	CUgraph graph;
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	must_ok(cuStreamBeginCapture(lender, CU_STREAM_CAPTURE_MODE_RELAXED));
	post_receive(receiver);
	use_and_send();
	must_ok(cuStreamEndCapture(lender, &graph));
	lend(lender);
	must_ok(cuStreamBeginCapture(lender, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuStreamDestroy(lender));
	*flag = 0;
	post_receive(receiver);
	CUdeviceptr ptr = alloc_on(sender, MIB);
	send();
	free_on(sender, ptr);
}

/* ---- an allocator that carves ------------------------------------------------------------------- */

/* Its segments are had on one stream, and pieces of them used on two, with events between them. */
static void carved_segments(void)
{
	CUdeviceptr segments[2];
	CUevent behind;
	start(CU_STREAM_NON_BLOCKING);
	must_ok(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
	for (unsigned round = 0; round < 4; round++) {
		*flag = 0;
		for (unsigned i = 0; i < 2; i++) {
			segments[i] = alloc_on(lender, 20 * MIB);
		}
		must_ok(cuEventRecord(behind, lender));
		must_ok(cuStreamWaitEvent(receiver, behind, 0));
		for (unsigned i = 0; i < N_PIECES; i++) {
			CUdeviceptr piece = segments[i % 2] + i / 2 * MIB;
			set(i % 3 ? lender : receiver, piece, MIB, (unsigned char)(i + round));
		}
		must_ok(cuEventRecord(behind, receiver));
		must_ok(cuStreamWaitEvent(lender, behind, 0));
		post_receive(receiver);
		at = "the lender";
		must_ok(cuStreamSynchronize(lender));
		for (unsigned i = 0; i < N_PIECES; i++) {
			CUdeviceptr piece = segments[i % 2] + i / 2 * MIB;
			unsigned char byte;
			must_ok(cuMemcpyDtoHAsync(&byte, piece, 1, lender));
			must_ok(cuStreamSynchronize(lender));
			must(byte == (unsigned char)(i + round));
		}
		free_on(lender, segments[0]);
		free_on(lender, segments[1]);
		use_and_send();
	}
}

/* ---- a kernel that waits ------------------------------------------------------------------------ */

static const char spin_ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
			       ".visible .entry spin(.param .u64 place)\n{\n"
			       "\t.reg .pred %p<2>;\n\t.reg .b32 %r<2>;\n\t.reg .b64 %rd<3>;\n"
			       "\tld.param.u64 %rd1, [place];\n\tcvta.to.global.u64 %rd2, %rd1;\n"
			       "$again:\n\tld.volatile.global.u32 %r1, [%rd2];\n"
			       "\tsetp.eq.s32 %p1, %r1, 0;\n\t@%p1 bra $again;\n\tret;\n}\n";

static void spin(const struct cudasim_run *run, const void *params)
{
	cudasim_await(run, *(const CUdeviceptr *)params, 1);
}

static const struct cudasim_kernel kernels[] = {{"spin", spin, 1, {sizeof(CUdeviceptr)}}};
static const struct cudasim_image image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = 1,
	.kernels = kernels,
};

/* No other kernel has room until the flag is set. */
static void fill_gpu(CUstream stream)
{
	CUmodule module;
	CUfunction function;
	int n_multiprocessors;
	void *params[] = {&flag_there};
	if (cuModuleLoadData(&module, &image) != CUDA_SUCCESS) {
		must_ok(cuModuleLoadData(&module, spin_ptx));
	}
	must_ok(cuModuleGetFunction(&function, module, "spin"));
	must_ok(cuDeviceGetAttribute(&n_multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
	                             0));
	must_ok(cuLaunchKernel(function, (unsigned)n_multiprocessors * 2, 1, 1, 1024, 1, 1, 0,
	                       stream, params, NULL));
}

static void set_flag(void)
{
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	at = "the GPU";
	must_ok(cuCtxSynchronize());
}

static void a_full_gpu(void)
{
	CUmemoryPool pool;
	start(CU_STREAM_NON_BLOCKING);
	lend(lender);
	CUdeviceptr kept = alloc_on(sender, MIB);
	must_ok(cuStreamSynchronize(sender));
	must_ok(cuDeviceGetDefaultMemPool(&pool, 0));
	fill_gpu(receiver);
	CUdeviceptr ptr = alloc_on(sender, MOST - MIB);
	free_on(sender, kept);
	free_on(sender, ptr);
	ptr = alloc_on(sender, 8 * MIB);
	at = "cuMemPoolTrimTo";
	must_ok(cuMemPoolTrimTo(pool, 0));
	free_on(lender, ptr);
	at = "cuStreamDestroy";
	must_ok(cuStreamDestroy(lender));
	set_flag();
}

static void a_full_gpu_and_new_memory(void)
{
	CUdeviceptr ptr;
	start(CU_STREAM_NON_BLOCKING);
	fill_gpu(receiver);
	at = "cuMemAlloc";
	must_ok(cuMemAlloc(&ptr, 8 * MIB));
	set_flag();
	must_ok(cuMemFree(ptr));
}

/* ---- what the driver does ----------------------------------------------------------------------- */

/* The legacy default stream is idle when all streams that block are. */
static void facts(void)
{
	start(CU_STREAM_DEFAULT);
	must_ok(cuStreamQuery(NULL));
	post_receive(receiver);
	must_be(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	must_be(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	/* And to ask is no work of its own: those that block go on. */
	send();
	must_ok(cuStreamQuery(NULL));
}

int main(int argc, char **argv)
{
	const struct scenario scenarios[] = {
		{"another_stream_waits", another_stream_waits},
		{"streams_that_block", streams_that_block},
		{"the_default_stream_lends", the_default_stream_lends},
		{"a_threads_own_stream_lends", a_threads_own_stream_lends},
		{"the_lender_waits", the_lender_waits},
		{"a_stream_that_ended_lends", a_stream_that_ended_lends},
		{"memory_waits_for_the_receive", memory_waits_for_the_receive},
		{"memory_waits_for_a_batch", memory_waits_for_a_batch},
		{"threads_go_on", threads_go_on},
		{"a_waiting_thread_holds_up_nobody", a_waiting_thread_holds_up_nobody},
		{"a_free_that_waits", a_free_that_waits},
		{"questions", questions},
		{"rows", rows},
		{"behind_a_capture", behind_a_capture},
		{"memory_of_a_graph", memory_of_a_graph},
		{"a_lender_is_captured", a_lender_is_captured},
		{"carved_segments", carved_segments},
		{"a_full_gpu", a_full_gpu},
		{"a_full_gpu_and_new_memory", a_full_gpu_and_new_memory},
		{"facts", facts},
	};
	scenario = argc == 2 ? argv[1] : "nothing";
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}

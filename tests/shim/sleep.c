/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that knows nothing of glake and sleeps now and then, linked against the driver alone.
 *
 *   sleep SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. Where it waits, it prints "ready" and reads a line.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/must.h"
#include "tests/shim/scenario.h"
#include "tests/spin.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define MAX_BYTES (40 * MIB)

static CUcontext ctx;
static CUstream stream;
static CUfunction add;
static CUfunction last;
static uint32_t seen[MAX_BYTES / 4];

static void start(void)
{
	CUmodule module;
	must_ok(cuInit(0));
	must_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	must_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	must_ok(cuModuleGetFunction(&add, module, "add"));
	must_ok(cuModuleGetFunction(&last, module, "last"));
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* Each word has its own number, and so much more. */
struct buffer {
	CUdeviceptr ptr;
	size_t n_bytes; /* 0: it is free */
	uint32_t by;
};

static struct buffer buffers[16];
static size_t n_buffers;

TEST_BYTE_LOOP static void fill(CUdeviceptr ptr, size_t n_bytes)
{
	for (size_t i = 0; i < n_bytes / 4; i++) {
		seen[i] = (uint32_t)(i * 2654435761u + n_buffers);
	}
	buffers[n_buffers++] = (struct buffer){ptr, n_bytes, 0};
	must_ok(cuMemcpyHtoD(ptr, seen, n_bytes));
}

TEST_BYTE_LOOP static void expect_all(void)
{
	for (size_t k = 0; k < n_buffers; k++) {
		const struct buffer *buffer = &buffers[k];
		if (buffer->n_bytes == 0) {
			continue;
		}
		must_ok(cuMemcpyDtoH(seen, buffer->ptr, buffer->n_bytes));
		for (size_t i = 0; i < buffer->n_bytes / 4; i++) {
			must(seen[i] == (uint32_t)(i * 2654435761u + k) + buffer->by);
		}
	}
}

static CUresult launch_add(const struct buffer *buffer)
{
	uint64_t ptr = buffer->ptr;
	uint64_t n_words = buffer->n_bytes / 4;
	uint32_t by = 1;
	void *params[] = {&ptr, &n_words, &by};
	return cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

static void add_to(struct buffer *buffer)
{
	must_ok(launch_add(buffer));
	must_ok(cuStreamSynchronize(stream));
	buffer->by++;
}

static void alloc(size_t n_bytes)
{
	CUdeviceptr ptr;
	must_ok(cuMemAlloc(&ptr, n_bytes));
	fill(ptr, n_bytes);
}

static void alloc_in_pool(size_t n_bytes)
{
	CUdeviceptr ptr;
	must_ok(cuMemAllocAsync(&ptr, n_bytes, stream));
	must_ok(cuStreamSynchronize(stream));
	fill(ptr, n_bytes);
}

/* One chunk at two places. */
static void map_twice(size_t n_bytes, CUdeviceptr *second_out)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	must_ok(cuMemCreate(&handle, n_bytes, &properties, 0));
	must_ok(cuMemAddressReserve(&at, 2 * n_bytes, 0, 0, 0));
	must_ok(cuMemMap(at, n_bytes, 0, handle, 0));
	must_ok(cuMemMap(at + n_bytes, n_bytes, 0, handle, 0));
	must_ok(cuMemSetAccess(at, 2 * n_bytes, &access, 1));
	fill(at, n_bytes);
	*second_out = at + n_bytes;
}

/* ---- scenarios -------------------------------------------------------------------------------- */

/* As the health check of a server does. */
static void ask_events(CUevent before, CUevent behind)
{
	float ms = -1;
	must_ok(cuEventQuery(before));
	must_ok(cuEventSynchronize(behind));
	must_ok(cuEventElapsedTime(&ms, before, behind));
	must(ms >= 0);
}

static void ask_everything(const struct buffer *buffer)
{
	size_t n_free;
	size_t n_bytes;
	CUdeviceptr base;
	unsigned type = 0;
	unsigned ordinal = 9;
	unsigned is_managed = 7;
	unsigned is_mapped = 7;
	unsigned access = 7;
	CUpointer_attribute attributes[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MAPPED,
		CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
	void *answers[] = {&type, &ordinal, &is_managed, &is_mapped, &access};
	must_ok(cuMemGetInfo(&n_free, &n_bytes));
	must(n_free > 0 && n_free <= n_bytes);
	must_ok(cuMemGetAddressRange(&base, &n_bytes, buffer->ptr + 100));
	must(base == buffer->ptr && n_bytes == buffer->n_bytes);
	must_ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer->ptr));
	must(type == CU_MEMORYTYPE_DEVICE);
	type = 0;
	must_ok(cuPointerGetAttributes(5, attributes, answers, buffer->ptr));
	must(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && is_managed == 0 && is_mapped == 1);
	must(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	is_managed = is_mapped = access = 7;
	for (unsigned i = 2; i < 5; i++) {
		must_ok(cuPointerGetAttribute(answers[i], attributes[i], buffer->ptr));
	}
	must(is_managed == 0 && is_mapped == 1);
	must(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	must_ok(cuCtxSynchronize());
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuStreamQuery(stream));
}

static CUgraphExec graph_of(const struct buffer *buffer)
{
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(launch_add(buffer));
	must_ok(cuStreamEndCapture(stream, &graph));
	must_ok(cuGraphInstantiate(&exec, graph, 0));
	return exec;
}

/* Other processes may open the first chunk. */
static void named(void)
{
	CUipcMemHandle name;
	start();
	alloc(4 * MIB);
	alloc(2 * MIB);
	must_ok(cuIpcGetMemHandle(&name, buffers[0].ptr));
	wait_for_line();
	expect_all();
}

/* Memory of each kind; it sleeps twice. */
static void everything(void)
{
	CUdeviceptr second;
	CUdeviceptr managed;
	start();
	alloc(64 * KIB);
	alloc(300 * KIB);
	alloc(6 * MIB);
	alloc(34 * MIB);
	alloc_in_pool(5 * MIB);
	map_twice(4 * MIB, &second);
	must_ok(cuMemAllocManaged(&managed, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
	memset((void *)managed, 5, 2 * MIB);
	CUgraphExec exec = graph_of(&buffers[2]);
	CUevent events[2];
	for (int i = 0; i < 2; i++) {
		must_ok(cuEventCreate(&events[i], CU_EVENT_DEFAULT));
		must_ok(cuEventRecord(events[i], stream));
	}
	wait_for_line();
	/* Asleep. */
	ask_events(events[0], events[1]);
	for (size_t i = 0; i < 4; i++) {
		ask_everything(&buffers[i]);
	}
	must(*(uint8_t *)managed == 5);
	wait_for_line();
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
	buffers[2].by++;
	expect_all();
	wait_for_line();
	/* Asleep once more, and a copy from the other place. */
	must_ok(cuMemcpyDtoH(seen, second, 4 * MIB));
	add_to(&buffers[5]);
	expect_all();
	alloc(2 * MIB);
	must_ok(cuMemFree(buffers[3].ptr));
}

/* The first use is one that does not pass the gate. */
static void allocates(void)
{
	start();
	alloc(6 * MIB);
	wait_for_line();
	alloc(2 * MIB);
	expect_all();
}

/* The program works whenever it is told to. */
static void waits_long(void)
{
	start();
	alloc(34 * MIB);
	wait_for_line();
	for (int i = 0; i < 2; i++) {
		add_to(&buffers[0]);
		expect_all();
		wait_for_line();
	}
}

/* The program has half of what it needs, and wants the other half when it is told to. */
static void grows(void)
{
	start();
	alloc(24 * MIB);
	wait_for_line();
	alloc(24 * MIB);
	expect_all();
	wait_for_line();
}

/* As grows(), but the other half comes and goes, with pauses. */
static void grows_and_shrinks(void)
{
	start();
	alloc(24 * MIB);
	wait_for_line();
	for (int i = 0; i < 4; i++) {
		alloc(24 * MIB);
		expect_all();
		n_buffers--;
		usleep(400000);
		must_ok(cuMemFree(buffers[n_buffers].ptr));
	}
	expect_all();
	wait_for_line();
}

/* From now on no thread of the process can start another. */
static void forbid_threads(void)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof(program) / sizeof(program[0]), .filter = program};
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) ==
	     0);
}

static void threadless(void)
{
	start();
	alloc(6 * MIB);
	forbid_threads();
	wait_for_line();
	expect_all();
	/* LeakSanitizer looks at exit(), in a thread. */
	fflush(NULL);
	_exit(0);
}

static void *free_one(void *argument)
{
	const struct buffer *buffer = argument;
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuMemFree(buffer->ptr));
	return NULL;
}

/* While the main thread wakes it. */
static void free_by_threads(void)
{
	pthread_t threads[16];
	for (size_t i = 1; i < n_buffers; i++) {
		if (buffers[i].n_bytes > 0) {
			must(pthread_create(&threads[i], NULL, free_one, &buffers[i]) == 0);
		}
	}
	add_to(&buffers[0]);
	for (size_t i = 1; i < n_buffers; i++) {
		if (buffers[i].n_bytes > 0) {
			must(pthread_join(threads[i], NULL) == 0);
			buffers[i].n_bytes = 0;
		}
	}
	expect_all();
}

/* A chunk of small memory that becomes free as a whole. */
static void frees(void)
{
	start();
	alloc(6 * MIB);
	alloc(64 * KIB);
	wait_for_line();
	must_ok(cuMemFree(buffers[1].ptr));
	buffers[1].n_bytes = 0;
	expect_all();
}

/* Large, in stream order, and of small ones not all. */
static void frees_asleep(void)
{
	start();
	alloc(6 * MIB);
	alloc(34 * MIB);
	alloc_in_pool(8 * MIB);
	alloc(64 * KIB);
	alloc(300 * KIB);
	alloc(4 * MIB);
	wait_for_line();
	must_ok(cuMemFree(buffers[1].ptr));
	must_ok(cuMemFreeAsync(buffers[2].ptr, stream));
	must_ok(cuMemFree(buffers[3].ptr));
	buffers[1].n_bytes = buffers[2].n_bytes = buffers[3].n_bytes = 0;
	wait_for_line();
	must_be(cuMemFree(buffers[1].ptr), CUDA_ERROR_INVALID_VALUE);
	alloc(34 * MIB);
	expect_all();
	wait_for_line();
	/* Asleep again; all of it is freed, by threads. */
	free_by_threads();
}

static void captures(void)
{
	CUgraph graph;
	start();
	alloc(2 * MIB);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	wait_for_line();
	must_ok(cuStreamEndCapture(stream, &graph));
	wait_for_line();
	expect_all();
}

#define N_THREADS 4
static atomic_bool is_over;

static void *launch_on_and_on(void *argument)
{
	struct buffer *buffer = argument;
	must_ok(cuCtxSetCurrent(ctx));
	while (!is_over) {
		add_to(buffer);
		usleep(1000);
	}
	return NULL;
}

static void busy(void)
{
	pthread_t threads[N_THREADS];
	start();
	for (int i = 0; i < N_THREADS; i++) {
		alloc(3 * MIB);
	}
	for (int i = 0; i < N_THREADS; i++) {
		must(pthread_create(&threads[i], NULL, launch_on_and_on, &buffers[i]) == 0);
	}
	wait_for_line();
	is_over = true;
	for (int i = 0; i < N_THREADS; i++) {
		must(pthread_join(threads[i], NULL) == 0);
	}
	expect_all();
}

/* Two threads queue the next kernel before the last one has ended. */
static void *launch_without_a_gap(void *argument)
{
	uint64_t ns = 60000000;
	void *params[] = {&ns};
	CUstream mine;
	CUevent ends[2];
	(void)argument;
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING));
	must_ok(cuEventCreate(&ends[0], CU_EVENT_DISABLE_TIMING));
	must_ok(cuEventCreate(&ends[1], CU_EVENT_DISABLE_TIMING));
	for (unsigned i = 0; !is_over; i++) {
		must_ok(cuEventSynchronize(ends[i % 2]));
		must_ok(cuLaunchKernel(last, 1, 1, 1, 1, 1, 1, 0, mine, params, NULL));
		must_ok(cuEventRecord(ends[i % 2], mine));
	}
	must_ok(cuStreamSynchronize(mine));
	return NULL;
}

static void saturates(void)
{
	pthread_t threads[2];
	start();
	alloc(6 * MIB);
	for (int i = 0; i < 2; i++) {
		must(pthread_create(&threads[i], NULL, launch_without_a_gap, NULL) == 0);
	}
	wait_for_line();
	is_over = true;
	for (int i = 0; i < 2; i++) {
		must(pthread_join(threads[i], NULL) == 0);
	}
	expect_all();
}

/* ---- there is no room for it to wake ---------------------------------------------------------- */

static void *launch_once(void *argument)
{
	must_ok(cuCtxSetCurrent(ctx));
	say("launches");
	CUresult result = launch_add(&buffers[0]);
	*(_Atomic CUresult *)argument = result;
	return NULL;
}

static void begin_waiting(pthread_t *thread, _Atomic CUresult *result)
{
	start();
	alloc(34 * MIB);
	wait_for_line();
	must(pthread_create(thread, NULL, launch_once, result) == 0);
	usleep(100000);
}

/* The thread gets an error, and is joined by a handler of the program. */
static pthread_t joined;
static _Atomic CUresult joined_result = CUDA_ERROR_UNKNOWN;

static void join_at_exit(void)
{
	must(pthread_join(joined, NULL) == 0);
	must_be(joined_result, CUDA_ERROR_DEINITIALIZED);
	must_be(cuMemFree(buffers[0].ptr), CUDA_ERROR_DEINITIALIZED);
}

static void exits(void)
{
	atexit(join_at_exit);
	begin_waiting(&joined, &joined_result);
	exit(0);
}

/* The program ends slowly. */
static void lingers(void)
{
	start();
	alloc(2 * MIB);
	atexit(wait_for_line);
	wait_for_line();
	exit(0);
}

static void wait_until_woken(void)
{
	_Atomic CUresult result = CUDA_ERROR_UNKNOWN;
	pthread_t thread;
	begin_waiting(&thread, &result);
	wait_for_line();
	must(pthread_join(thread, NULL) == 0);
	must_ok(result);
	must_ok(cuStreamSynchronize(stream));
	buffers[0].by++;
	expect_all();
}

/* The shim's, as glaked has refused to wake it meanwhile. */
static void waits(void)
{
	uint64_t (*count)(const char *name);
	wait_until_woken();
	*(void **)&count = dlsym(RTLD_DEFAULT, "glake_shim_count");
	must(count && count("unwoken") > 1);
}

static void on_signal(int signal)
{
	(void)signal;
	if (write(STDOUT_FILENO, "handled\n", 8) < 0) {
		_exit(1);
	}
}

static void handles(void)
{
	signal(SIGTERM, on_signal);
	wait_until_woken();
}

static void cancels(void)
{
	_Atomic CUresult result = CUDA_ERROR_UNKNOWN;
	pthread_t thread;
	void *ended;
	begin_waiting(&thread, &result);
	must(pthread_cancel(thread) == 0);
	must(pthread_join(thread, &ended) == 0);
	must(ended == PTHREAD_CANCELED);
	wait_for_line();
	expect_all();
}

static int status_of_child(bool execs)
{
	int status;
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		size_t n_bytes;
		if (execs) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(9);
		}
		/* An error, and no wait. */
		_exit(cuMemFree(buffers[0].ptr) != CUDA_SUCCESS &&
		                      cuMemGetInfo(&n_bytes, &n_bytes) != CUDA_SUCCESS
		              ? 0
		              : 8);
	}
	must(waitpid(child, &status, 0) == child);
	return status;
}

static void forks(void)
{
	_Atomic CUresult result = CUDA_ERROR_UNKNOWN;
	pthread_t thread;
	begin_waiting(&thread, &result);
	must_be(status_of_child(false), 0);
	must_be(status_of_child(true), 0);
	wait_for_line();
	must(pthread_join(thread, NULL) == 0);
	must_ok(result);
}

static void executes(void)
{
	_Atomic CUresult result;
	pthread_t thread;
	begin_waiting(&thread, &result);
	execl("/bin/true", "true", (char *)NULL);
	_exit(9);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{"everything", everything}, {"allocates", allocates},
		{"frees", frees},           {"threadless", threadless},
		{"captures", captures},     {"busy", busy},
		{"exits", exits},           {"waits", waits},
		{"handles", handles},       {"waits_long", waits_long},
		{"cancels", cancels},       {"forks", forks},
		{"executes", executes},     {"saturates", saturates},
		{"lingers", lingers},       {"frees_asleep", frees_asleep},
		{"grows", grows},           {"grows_and_shrinks", grows_and_shrinks},
		{"named", named},
	};
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}

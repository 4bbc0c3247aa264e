/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has memory, wants more, and lives with being refused; it knows nothing of glake.
 *
 *   quota            does what the lines on stdin say, and answers each with a line:
 *     alloc BYTES, alloc_async BYTES    the result; then it is the newest that it has
 *     free, free_async                  the newest, and the result
 *     info                              what cuMemGetInfo() says is all there is
 *     left                              and what of it is free
 *     exchange BYTES, exchange_async BYTES    free the newest in order, behind work that lasts until the next
 *                                       line comes, and want BYTES meanwhile: the result
 *     release                           free the newest in order, behind such work, and what is left then
 *     churn N BYTES                     N times allocate and free, look 20 times, and say how often
 *                                       not the same was left as before
 *     sync                              wait for the stream
 *     spin, compute                     be busy, on the CPU or the GPU, until the next line comes
 *     threads N BYTES                   N threads want that much each
 *     join                              how many of them got it, then freed, and how many did not
 *   quota work N BYTES ROUNDS [async]
 *                    ROUNDS times, have N times BYTES at once, and check that they are its own; say
 *                    how often, and wait for the end of stdin
 *
 * Results are the driver's numbers. Whatever else goes wrong ends it with 1 and a line on stderr.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/must.h"

#define MAX_HELD 64

#define CALLS(X) \
	X(cuInit) \
	X(cuDevicePrimaryCtxRetain) \
	X(cuCtxSetCurrent) \
	X(cuStreamCreate) \
	X(cuStreamSynchronize) \
	X(cuLaunchHostFunc) \
	X(cuMemGetInfo_v2) \
	X(cuMemAlloc_v2) \
	X(cuMemFree_v2) \
	X(cuMemAllocAsync) \
	X(cuMemFreeAsync) \
	X(cuMemsetD32_v2) \
	X(cuMemcpyDtoH_v2)
static struct {
#define CALL(symbol) __typeof__(symbol) *call_##symbol;
	CALLS(CALL)
#undef CALL
} calls;
#define cu(symbol) (calls.call_##symbol)

static CUcontext ctx;
static CUstream stream;
static CUdeviceptr held[MAX_HELD];
static unsigned n_held;

static void start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	must(library);
#define CALL(symbol) must(calls.call_##symbol = dlsym(library, #symbol));
	CALLS(CALL)
#undef CALL
	must_ok(cu(cuInit)(0));
	must_ok(cu(cuDevicePrimaryCtxRetain)(&ctx, 0));
	must_ok(cu(cuCtxSetCurrent)(ctx));
	must_ok(cu(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
}

static CUresult allocate(CUdeviceptr *ptr, size_t n_bytes, bool in_order)
{
	CUresult result = in_order ? cu(cuMemAllocAsync)(ptr, n_bytes, stream)
	                           : cu(cuMemAlloc_v2)(ptr, n_bytes);
	must(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
	return result;
}

static CUresult release(CUdeviceptr ptr, bool in_order)
{
	return in_order ? cu(cuMemFreeAsync)(ptr, stream) : cu(cuMemFree_v2)(ptr);
}

/* ---- by the line ------------------------------------------------------------------------------ */

static atomic_uintptr_t n_lines;

static void CUDA_CB await_input(void *user)
{
	struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
	while (poll(&ready, 1, -1) < 0) {
	}
}

static void spin(void)
{
	struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
	while (poll(&ready, 1, 0) == 0) {
	}
}

static pthread_t threads[MAX_HELD];
static unsigned n_threads;
static size_t thread_bytes;

static void *want(void *user)
{
	CUdeviceptr ptr;
	must_ok(cu(cuCtxSetCurrent)(ctx));
	CUresult result = allocate(&ptr, thread_bytes, false);
	if (result == CUDA_SUCCESS) {
		must_ok(release(ptr, false));
	}
	return (void *)(uintptr_t)result;
}

static void join(void)
{
	unsigned n_refused = 0;
	for (unsigned i = 0; i < n_threads; i++) {
		void *result;
		pthread_join(threads[i], &result);
		n_refused += result != NULL;
	}
	printf("join %u %u\n", n_threads - n_refused, n_refused);
}

static CUresult exchange(size_t n_bytes, bool in_order)
{
	must(n_held > 0);
	must_ok(cu(cuLaunchHostFunc)(stream, await_input, NULL));
	must_ok(release(held[--n_held], true));
	CUresult result = allocate(&held[n_held], n_bytes, in_order);
	n_held += result == CUDA_SUCCESS;
	return result;
}

static size_t left(void)
{
	size_t free_bytes;
	size_t total_bytes;
	must_ok(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
	must(free_bytes <= total_bytes);
	return free_bytes;
}

/* @user: how many lines there were. Unlike for await_input(), somebody else reads the next one. */
static void CUDA_CB await_line(void *user)
{
	while (n_lines == (uintptr_t)user) {
		usleep(1000);
	}
}

static size_t release_later(void)
{
	must(n_held > 0);
	must_ok(cu(cuLaunchHostFunc)(stream, await_line, (void *)(uintptr_t)n_lines));
	must_ok(release(held[--n_held], true));
	return left();
}

static size_t churn(size_t n, size_t n_bytes)
{
	size_t before = left();
	size_t n_wrong = 0;
	for (size_t i = 0; i < n; i++) {
		CUdeviceptr ptr;
		must_ok(allocate(&ptr, n_bytes, false));
		must_ok(release(ptr, false));
		/* The look takes some milliseconds, in which the pool is closed. */
		for (size_t look = 0; look < 20; look++) {
			n_wrong += left() != before;
		}
	}
	return n_wrong;
}

static void follow(const char *word, size_t number, size_t n_bytes)
{
	bool in_order = strstr(word, "_async");
	if (strncmp(word, "alloc", 5) == 0) {
		CUresult result = allocate(&held[n_held], number, in_order);
		n_held += result == CUDA_SUCCESS;
		must(n_held < MAX_HELD);
		printf("%s %d\n", word, (int)result);
	} else if (strncmp(word, "free", 4) == 0) {
		must(n_held > 0);
		printf("%s %d\n", word, (int)release(held[--n_held], in_order));
	} else if (strncmp(word, "exchange", 8) == 0) {
		printf("%s %d\n", word, (int)exchange(number, in_order));
	} else if (strcmp(word, "threads") == 0) {
		must(number <= MAX_HELD);
		thread_bytes = n_bytes;
		for (n_threads = 0; n_threads < number; n_threads++) {
			must(pthread_create(&threads[n_threads], NULL, want, NULL) == 0);
		}
		puts("threads");
	} else if (strcmp(word, "info") == 0) {
		size_t free_bytes, total_bytes;
		must_ok(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
		printf("%s %zu\n", word, total_bytes);
	} else if (strcmp(word, "left") == 0) {
		printf("%s %zu\n", word, left());
	} else if (strcmp(word, "release") == 0) {
		printf("%s %zu\n", word, release_later());
	} else if (strcmp(word, "churn") == 0) {
		printf("%s %zu\n", word, churn(number, n_bytes));
	} else if (strcmp(word, "sync") == 0) {
		must_ok(cu(cuStreamSynchronize)(stream));
		puts("sync");
	} else if (strcmp(word, "join") == 0) {
		join();
	} else {
		puts(word);
		fflush(stdout);
		if (strcmp(word, "spin") == 0) {
			spin();
		} else {
			must_ok(cu(cuLaunchHostFunc)(stream, await_input, NULL));
			must_ok(cu(cuStreamSynchronize)(stream));
		}
	}
	fflush(stdout);
}

static void follow_lines(void)
{
	char line[128];
	char word[32];
	size_t number;
	size_t n_bytes;
	/* Byte by byte: what waits must be in the pipe, for poll(), and not in a buffer. */
	setvbuf(stdin, NULL, _IONBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		n_lines++;
		number = n_bytes = 0;
		must(sscanf(line, "%31s %zu %zu", word, &number, &n_bytes) >= 1);
		follow(word, number, n_bytes);
	}
}

/* ---- work ------------------------------------------------------------------------------------- */

static void check(CUdeviceptr ptr, size_t n_bytes, unsigned mark)
{
	unsigned got[2];
	must_ok(cu(cuMemcpyDtoH_v2)(&got[0], ptr, sizeof(got[0])));
	must_ok(cu(cuMemcpyDtoH_v2)(&got[1], ptr + n_bytes - sizeof(got[1]), sizeof(got[1])));
	must(got[0] == mark && got[1] == mark);
}

/* Returns whether there was memory for it. */
static bool work_once(unsigned n, size_t n_bytes, unsigned mark, bool in_order)
{
	CUdeviceptr ptrs[MAX_HELD];
	unsigned n_got = 0;
	while (n_got < n && allocate(&ptrs[n_got], n_bytes, in_order) == CUDA_SUCCESS) {
		must_ok(cu(cuStreamSynchronize)(stream));
		must_ok(cu(cuMemsetD32_v2)(ptrs[n_got], mark + n_got, 1024));
		must_ok(cu(cuMemsetD32_v2)(ptrs[n_got] + n_bytes - 4096, mark + n_got, 1024));
		n_got++;
	}
	for (unsigned i = 0; i < n_got; i++) {
		check(ptrs[i], n_bytes, mark + i);
		must_ok(release(ptrs[i], in_order));
	}
	return n_got == n;
}

static void work(unsigned n, size_t n_bytes, unsigned n_rounds, bool in_order)
{
	unsigned n_refused = 0;
	must(n <= MAX_HELD);
	for (unsigned round = 0; round < n_rounds; round++) {
		unsigned mark = (unsigned)getpid() * 1000 + round * n;
		n_refused += !work_once(n, n_bytes, mark, in_order);
		if (round == 0) {
			puts("working");
			fflush(stdout);
		}
	}
	/* Memory that is freed in order is to be had again when the stream got there. */
	must_ok(cu(cuStreamSynchronize)(stream));
	printf("done %u refused %u\n", n_rounds - n_refused, n_refused);
	fflush(stdout);
	must(getchar() == EOF);
}

int main(int argc, char **argv)
{
	start();
	if (argc >= 5 && strcmp(argv[1], "work") == 0) {
		work((unsigned)atoi(argv[2]), (size_t)atoll(argv[3]), (unsigned)atoi(argv[4]),
		     argc > 5);
	} else {
		follow_lines();
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that fills the GPU, and seals and writes to sealed memory meanwhile. Whatever the GPU does, each call
 * comes back: an alarm ends the program if one does not.
 *
 *   full SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. It runs on a GPU as well, under the shim.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "tests/shim/device.h"
#include "tests/shim/scenario.h"
#include "tests/shim/seal_in_time.h"
#include "tests/spin.h"

#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define N_BYTES (2 * PAGE)
#define ALARM_S 120u

/* ---- help ---- */

enum { FLAG, BEGUN, N_WORDS };

static CUcontext ctx;
static CUstream busy;
static CUstream other;
static CUmodule module;
static uint32_t *words; /* of the host, seen by kernels */

static void start(void)
{
	void *at = NULL;
	alarm(ALARM_S);
	ctx = use_device(0);
	busy = new_stream();
	other = new_stream();
	must_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	must_ok(cuMemHostAlloc(&at, N_WORDS * sizeof(*words), CU_MEMHOSTALLOC_PORTABLE));
	words = at;
	memset(words, 0, N_WORDS * sizeof(*words));
}

static CUfunction kernel(const char *name)
{
	CUfunction found;
	must_ok(cuModuleGetFunction(&found, module, name));
	return found;
}

/* On all multiprocessors, to the last thread, until let_go(). */
static void fill_gpu_by(__typeof__(cuLaunchKernel) *launch, CUfunction hold, CUstream stream)
{
	int n_sms = 0;
	uint64_t at[] = {(uint64_t)(uintptr_t)&words[FLAG], (uint64_t)(uintptr_t)&words[BEGUN]};
	void *params[] = {&at[0], &at[1]};
	must_ok(cuDeviceGetAttribute(&n_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	__atomic_store_n(&words[FLAG], 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&words[BEGUN], 0, __ATOMIC_SEQ_CST);
	must_ok(launch(hold, (unsigned)n_sms * 4, 1, 1, 1024, 1, 1, 0, stream, params, NULL));
	while (__atomic_load_n(&words[BEGUN], __ATOMIC_SEQ_CST) == 0) {
		usleep(1000);
	}
}

static void fill_gpu(void)
{
	fill_gpu_by(cuLaunchKernel, kernel("hold"), busy);
}

/* As fill_gpu(), in a context of which glake knows nothing. */
static void fill_gpu_unseen(void)
{
	__typeof__(cuCtxCreate_v2) *make = driver_function("cuCtxCreate_v2");
	__typeof__(cuModuleLoadData) *load = driver_function("cuModuleLoadData");
	__typeof__(cuModuleGetFunction) *get = driver_function("cuModuleGetFunction");
	CUcontext unseen;
	CUmodule there;
	CUfunction hold;
	must_ok(make(&unseen, 0, 0));
	must_ok(load(&there, spin_image_of(cuDeviceGetName)));
	must_ok(get(&hold, there, "hold"));
	fill_gpu_by(driver_function("cuLaunchKernel"), hold, NULL);
	must_ok(cuCtxSetCurrent(ctx));
}

static void let_go(void)
{
	__atomic_store_n(&words[FLAG], 1, __ATOMIC_SEQ_CST);
}

static uint8_t bytes[N_BYTES];
static uint8_t seen[N_BYTES];

TEST_BYTE_LOOP static void make_bytes(unsigned seed)
{
	for (size_t i = 0; i < N_BYTES; i++) {
		bytes[i] = (uint8_t)(i * 31 + i / 977 + seed);
	}
}

static CUdeviceptr alloc_filled(size_t n_bytes, unsigned seed)
{
	CUdeviceptr ptr = alloc(n_bytes);
	make_bytes(seed);
	must_ok(cuMemcpyHtoD(ptr, bytes, n_bytes));
	must_ok(cuCtxSynchronize());
	return ptr;
}

/* While nothing fills the GPU. */
static void seal(CUdeviceptr ptr, size_t n_bytes, uint64_t want)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	const struct glake_span span = {ptr, n_bytes};
	int r = seal_in_time(&span, 1, &sealed);
	if (r < 0) {
		fprintf(stderr, "glake_seal: %s\n", glake_error());
	}
	must(r == 0 && sealed.sealed_bytes == want);
}

static void expect(CUdeviceptr ptr, size_t n_bytes)
{
	must_ok(cuMemcpyDtoH(seen, ptr, n_bytes));
	must(same_bytes(seen, bytes, n_bytes));
}

static CUresult write_to(CUdeviceptr ptr)
{
	static const uint8_t ones[4096] = {1, 1, 1};
	return cuMemcpyHtoDAsync(ptr, ones, sizeof(ones), other);
}

static void expect_written(CUdeviceptr ptr)
{
	must_ok(cuStreamSynchronize(other));
	memset(bytes, 0, 4096);
	memset(bytes, 1, 3);
	expect(ptr, N_BYTES);
}

/* ---- scenarios ---- */

/* The write comes back while the GPU stays full, and nothing is written; then it works. */
static void writes_come_back(void)
{
	start();
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	seal(ptr, N_BYTES, N_BYTES);
	fill_gpu();
	must_be(write_to(ptr), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(write_to(ptr), CUDA_ERROR_OUT_OF_MEMORY);
	/* Reads go on. */
	must_ok(cuMemcpyDtoHAsync(seen, ptr, N_BYTES, other));
	must_ok(cuStreamSynchronize(other));
	must(same_bytes(seen, bytes, N_BYTES));
	must_be(cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
	let_go();
	must_ok(cuStreamSynchronize(busy));
	must_ok(write_to(ptr));
	expect_written(ptr);
	must_ok(cuMemFree(ptr));
}

/* Behind so much work, each part of which ends. */
static void writes_wait(void)
{
	uint64_t ns = 100000000;
	void *params[] = {&ns};
	start();
	CUfunction last = kernel("last");
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	seal(ptr, N_BYTES, N_BYTES);
	for (unsigned i = 0; i < 20; i++) {
		must_ok(cuLaunchKernel(last, 1, 1, 1, 1, 1, 1, 0, busy, params, NULL));
	}
	must_ok(write_to(ptr));
	must_ok(cuStreamQuery(busy));
	expect_written(ptr);
	must_ok(cuMemFree(ptr));
}

static bool is_over;

/* Always some tens of milliseconds of work in the queue. */
static void *queue_on(void *user)
{
	uint64_t ns = 20000000;
	void *params[] = {&ns};
	CUevent behind[4];
	must_ok(cuCtxSetCurrent(ctx));
	CUfunction last = kernel("last");
	for (unsigned i = 0; i < 4; i++) {
		must_ok(cuEventCreate(&behind[i], CU_EVENT_DISABLE_TIMING));
	}
	for (unsigned i = 0; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) {
		must_ok(cuEventSynchronize(behind[i % 4]));
		must_ok(cuLaunchKernel(last, 1, 1, 1, 1, 1, 1, 0, busy, params, NULL));
		must_ok(cuEventRecord(behind[i % 4], busy));
	}
	must_ok(cuStreamSynchronize(busy));
	return user;
}

/* Another thread never leaves the GPU without work. */
static void writes_find_a_moment(void)
{
	pthread_t thread;
	start();
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	for (unsigned i = 0; i < 3; i++) {
		seal(ptr, N_BYTES, N_BYTES);
		__atomic_store_n(&is_over, false, __ATOMIC_SEQ_CST);
		must(pthread_create(&thread, NULL, queue_on, NULL) == 0);
		usleep(50000);
		must_ok(write_to(ptr));
		must_ok(cuStreamSynchronize(other));
		__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
		pthread_join(thread, NULL);
	}
	expect_written(ptr);
	must_ok(cuMemFree(ptr));
}

static void *let_go_later(void *user)
{
	const unsigned *pause_us = user;
	usleep(*pause_us);
	let_go();
	return NULL;
}

/* The GPU is full, until another thread lets go. */
static void writes_wait_for_a_thread(void)
{
	unsigned pause_us = 800000;
	pthread_t thread;
	start();
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	seal(ptr, N_BYTES, N_BYTES);
	fill_gpu();
	must(pthread_create(&thread, NULL, let_go_later, &pause_us) == 0);
	must_ok(write_to(ptr));
	pthread_join(thread, NULL);
	expect_written(ptr);
	must_ok(cuMemFree(ptr));
}

/* No work is in its way, and the GPU has no time for its copy, for longer than the program is held back. */
static void writes_wait_for_their_copy(void)
{
	unsigned pause_us = 4000000;
	pthread_t thread;
	start();
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	seal(ptr, N_BYTES, N_BYTES);
	fill_gpu_unseen();
	must(pthread_create(&thread, NULL, let_go_later, &pause_us) == 0);
	must_ok(write_to(ptr));
	pthread_join(thread, NULL);
	expect_written(ptr);
	must_ok(cuMemFree(ptr));
}

/* Many threads write while the GPU stays full: all are told, and soon after each other. */
static void *write_in_vain(void *user)
{
	must_ok(cuCtxSetCurrent(ctx));
	must_be(write_to(*(CUdeviceptr *)user), CUDA_ERROR_OUT_OF_MEMORY);
	return NULL;
}

static void crowds_come_back(void)
{
	enum { N_THREADS = 8 };
	pthread_t threads[N_THREADS];
	start();
	CUdeviceptr ptr = alloc_filled(N_BYTES, 1);
	seal(ptr, N_BYTES, N_BYTES);
	fill_gpu();
	alarm(30);
	for (unsigned i = 0; i < N_THREADS; i++) {
		must(pthread_create(&threads[i], NULL, write_in_vain, &ptr) == 0);
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	let_go();
	must_ok(cuStreamSynchronize(busy));
	expect(ptr, N_BYTES);
	must_ok(cuMemFree(ptr));
}

/* The bytes behind the allocation are set to zero when the second page is sealed. */
#define N_TAILED (N_BYTES - 12345)
#define N_REST (N_TAILED - PAGE)

/* The first page is sealed, so that the second is a chunk of its own. */
static CUdeviceptr alloc_tailed(unsigned seed)
{
	CUdeviceptr ptr = alloc_filled(N_TAILED, seed);
	seal(ptr, PAGE, PAGE);
	return ptr;
}

static void seals_come_back(void)
{
	start();
	CUdeviceptr ptr = alloc_tailed(1);
	CUdeviceptr twin = alloc_tailed(1);
	seal(ptr + PAGE, N_REST, PAGE);
	fill_gpu();
	const struct glake_span rest = {twin + PAGE, N_REST};
	must(glake_seal(&rest, 1, NULL) == -EBUSY);
	let_go();
	must_ok(cuStreamSynchronize(busy));
	seal(twin + PAGE, N_REST, PAGE);
	expect(twin, N_TAILED);
	expect(ptr, N_TAILED);
	must_ok(cuMemFree(ptr));
	must_ok(cuMemFree(twin));
}

static void give_up(CUdeviceptr ptr, size_t n_bytes)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	const struct glake_span span = {ptr, n_bytes};
	must(glake_seal_idle(&span, 1, &sealed) == -EBUSY);
	must(sealed.sealed_bytes == 0);
}

static void free_and_go_on(CUdeviceptr ptr)
{
	must_ok(cuMemFreeAsync(ptr, other));
	let_go();
	must_ok(cuStreamSynchronize(busy));
	must_ok(cuStreamSynchronize(other));
}

/*
 * Memory that no work uses is cut while the GPU is full: given up in the end. What is under way then has memory that
 * nobody else gets, whatever becomes of the allocation. There is one at a time, until the GPU was idle once.
 */
static void copies_given_up(void)
{
	start();
	CUdeviceptr cut = alloc_filled(N_BYTES, 1);
	CUdeviceptr tailed = alloc_tailed(2);
	fill_gpu();
	give_up(cut, PAGE);
	give_up(tailed + PAGE, N_REST);
	free_and_go_on(cut);
	seal(tailed + PAGE, N_REST, PAGE);
	expect(tailed, N_TAILED);
	must_ok(cuMemFree(tailed));
}

/* As copies_given_up(), with a tail whose zeroes come when the memory has gone. */
static void zeroes_given_up(void)
{
	start();
	CUdeviceptr tailed = alloc_tailed(3);
	CUdeviceptr cut = alloc_filled(N_BYTES, 1);
	fill_gpu();
	give_up(tailed + PAGE, N_REST);
	give_up(cut, PAGE);
	must_ok(cuMemFreeAsync(tailed, other));
	must_ok(cuStreamSynchronize(other));
	CUdeviceptr large = alloc(N_BYTES);
	make_bytes(4);
	must_ok(cuMemcpyHtoDAsync(large, bytes, N_BYTES, other));
	free_and_go_on(cut);
	must_ok(cuCtxSynchronize());
	expect(large, N_BYTES);
	seal(large, N_BYTES, N_BYTES);
	must_ok(cuMemsetD8(large, 5, N_BYTES));
	memset(bytes, 5, N_BYTES);
	expect(large, N_BYTES);
	must_ok(cuMemFree(large));
}

/*
 * A program that uses the library without the shim: nothing holds its work back, and nothing tells when it has ended but
 * the stream that was left.
 */
static void without_a_gate(void)
{
	struct glake_session *session;
	glake_ptr ptrs[2];
	start();
	must(glake_connect(NULL, &session) == 0);
	for (unsigned i = 0; i < 2; i++) {
		must(glake_alloc(session, 0, N_BYTES, 0, &ptrs[i]) == 0);
		make_bytes(i);
		must_ok(cuMemcpyHtoD(ptrs[i], bytes, N_BYTES));
		must_ok(cuCtxSynchronize());
		seal(ptrs[i], N_BYTES, N_BYTES);
	}
	fill_gpu();
	must(glake_unseal(ptrs[0], N_BYTES) == -EBUSY);
	must(glake_unseal(ptrs[1], N_BYTES) == -EBUSY);
	let_go();
	must_ok(cuStreamSynchronize(busy));
	must_ok(cuCtxSynchronize());
	must(glake_unseal(ptrs[1], N_BYTES) == 0);
	must(glake_unseal(ptrs[0], N_BYTES) == 0);
	expect(ptrs[1], N_BYTES);
	must(glake_unseal(ptrs[1], N_BYTES) == 0);
	/* A copy that is under way outlives the memory and the session. */
	seal(ptrs[1], N_BYTES, N_BYTES);
	fill_gpu();
	must(glake_unseal(ptrs[1], N_BYTES) == -EBUSY);
	must(glake_free(session, ptrs[1]) == 0);
	glake_disconnect(session);
	let_go();
	must_ok(cuCtxSynchronize());
	must(glake_connect(NULL, &session) == 0);
	must(glake_alloc(session, 0, N_BYTES, 0, &ptrs[0]) == 0);
	must_ok(cuMemcpyHtoD(ptrs[0], bytes, N_BYTES));
	must_ok(cuCtxSynchronize());
	seal(ptrs[0], N_BYTES, N_BYTES);
	must(glake_unseal(ptrs[0], N_BYTES) == 0);
	expect(ptrs[0], N_BYTES);
	glake_disconnect(session);
}

static const struct scenario scenarios[] = {
	{"writes_come_back", writes_come_back},
	{"crowds_come_back", crowds_come_back},
	{"writes_wait", writes_wait},
	{"writes_find_a_moment", writes_find_a_moment},
	{"writes_wait_for_a_thread", writes_wait_for_a_thread},
	{"writes_wait_for_their_copy", writes_wait_for_their_copy},
	{"seals_come_back", seals_come_back},
	{"copies_given_up", copies_given_up},
	{"zeroes_given_up", zeroes_given_up},
	{"without_a_gate", without_a_gate},
};

int main(int argc, char **argv)
{
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}

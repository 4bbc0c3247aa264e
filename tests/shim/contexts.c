/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose contexts end, green ones too, whose streams are captured, and whose devices read each
 * other's memory, linked against the driver as such programs are.
 *
 *   contexts SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. Where it waits, it prints "ready" and reads a line.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/green.h"
#include "tests/shim/device.h"
#include "tests/shim/scenario.h"

#define MIB (1ull << 20)

/* ---- help ---- */

static uint64_t shim_count(const char *name)
{
	uint64_t (*count)(const char *) = dlsym(RTLD_DEFAULT, "glake_shim_count");
	must(count);
	return count(name);
}

static int slow_ran;

static void CUDA_CB run_slowly(void *user)
{
	usleep(100000);
	__atomic_store_n(&slow_ran, 1, __ATOMIC_SEQ_CST);
}

static void be_slow(CUstream stream)
{
	__atomic_store_n(&slow_ran, 0, __ATOMIC_SEQ_CST);
	must_ok(cuLaunchHostFunc(stream, run_slowly, NULL));
}

/* Memory in stream order is ours, so nothing is taken for captured. */
static void must_own(CUstream stream)
{
	uint64_t n_owned = shim_count("owned");
	must_ok(cuMemFreeAsync(alloc_on(stream, MIB), stream));
	must(shim_count("owned") == n_owned + 1);
}

/* ---- captures ---- */

/* A capture ends with its stream, and with its context. */
static void captures_end(void)
{
	use_device(0);
	CUstream stream = new_stream();
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	must_ok(cuStreamDestroy(stream));
	must_own(new_stream());
	stream = new_stream();
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	must_ok(cuDevicePrimaryCtxReset(0));
	use_device(0);
	must_own(new_stream());
	/* That of a thread's default stream, too. */
	must_ok(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
	must_ok(cuDevicePrimaryCtxReset(0));
	use_device(0);
	must_own(new_stream());
}

/* A call that fails neither begins a capture nor ends one. */
static void captures_stay(void)
{
	CUgraph graph;
	CUcontext ctx = use_device(0);
	CUstream stream = new_stream();
	CUstream other = new_stream();
	must_own(stream);
	must(cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS);
	must(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS);
	must_own(stream);
	for (int i = 0; i < 2; i++) {
		CUdeviceptr ptr = alloc(MIB);
		/* Without a context the driver may refuse to end what there is, or is not. */
		if (i == 0) {
			must_ok(cuCtxSetCurrent(NULL));
			cuStreamEndCapture(stream, &graph);
			must_ok(cuCtxSetCurrent(ctx));
		}
		must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		must(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS);
		must(cuStreamEndCapture(other, &graph) != CUDA_SUCCESS);
		must_ok(cuMemFree(ptr));
		must_ok(cuStreamEndCapture(stream, &graph));
	}
	must_own(stream);
}

/* Memory that is freed during a capture is waited for where it was allocated. */
static void captures_wait(void)
{
	CUgraph graph;
	CUcontext zero = use_device(0);
	CUstream stream = new_stream();
	CUstream busy = new_stream();
	CUdeviceptr ptr = alloc(4 * MIB);
	CUcontext one = use_device(1);
	must_ok(cuCtxSetCurrent(zero));
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	be_slow(busy);
	must_ok(cuMemsetD8Async(ptr, 1, 4 * MIB, busy));
	must_ok(cuCtxSetCurrent(one));
	must_ok(cuMemFree(ptr));
	must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	must_ok(cuStreamEndCapture(stream, &graph));
}

/* Without glaked: what the shim had of the driver to ask it went with the context. */
static void captures_forget(void)
{
	CUgraph graph;
	use_device(0);
	CUstream stream = new_stream();
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	alloc(1000);
	must_ok(cuStreamEndCapture(stream, &graph));
	must_ok(cuDevicePrimaryCtxReset(0));
	use_device(0);
	stream = new_stream();
	CUdeviceptr theirs = alloc_on(stream, 512);
	CUdeviceptr ours = alloc(1000);
	must_ok(cuMemsetD8Async(theirs, 1, 512, stream));
	must_ok(cuMemFreeAsync(theirs, stream));
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuMemFree(ours));
}

/* Parked memory goes back during a capture, and the capture goes on. */
static void captures_go_on(void)
{
	CUgraph graph;
	use_device(0);
	CUstream stream = new_stream();
	CUstream other = new_stream();
	CUdeviceptr ptr = alloc_on(other, 8 * MIB);
	close_gate(other);
	must_ok(cuMemFreeAsync(ptr, other));
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	open_gate();
	wait_for_line();
	must_ok(cuStreamEndCapture(stream, &graph));
}

/* ---- peers ---- */

/* Three devices: the other two read what the first has. */
static void readers_count(void)
{
	CUcontext zero = use_device(0);
	CUdeviceptr ptr = alloc(4 * MIB);
	CUcontext last = use_device(2);
	use_device(1);
	for (int i = 0; i < 100; i++) {
		must_ok(cuCtxEnablePeerAccess(zero, 0));
		must_ok(cuCtxDisablePeerAccess(zero));
	}
	must_ok(cuCtxSetCurrent(last));
	must_ok(cuCtxEnablePeerAccess(zero, 0));
	CUstream stream = new_stream();
	be_slow(stream);
	must_ok(cuMemsetD8Async(ptr, 1, 4 * MIB, stream));
	must_ok(cuCtxSetCurrent(zero));
	must_ok(cuMemFree(ptr));
	must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	/* Who reads no more is not waited for. */
	ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(last));
	must_ok(cuCtxDisablePeerAccess(zero));
	close_gate(stream);
	must_ok(cuCtxSetCurrent(zero));
	must_ok(cuMemFree(ptr));
	open_gate();
}

/* Without peer access: copies of another device's context are made, and waited for, as of memory that the driver allocates. */
static void copies_reach(void)
{
	uint32_t word = 0;
	CUcontext zero = use_device(0);
	CUdeviceptr ptr = alloc(4 * MIB), next = alloc(4 * MIB);
	must_ok(cuMemsetD8(ptr, 5, 4 * MIB));
	must_ok(cuMemsetD8(next, 6, 4 * MIB));
	must_ok(cuCtxSynchronize());
	CUcontext one = use_device(1);
	CUdeviceptr own = alloc(4 * MIB);
	CUstream stream = new_stream();
	for (int i = 0; i < 2; i++) {
		be_slow(stream);
		must_ok(cuMemcpyDtoDAsync(own, ptr, 4 * MIB, stream));
		must_ok(cuCtxSetCurrent(zero));
		must_ok(cuMemFree(ptr));
		must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
		ptr = next;
		must_ok(cuCtxSetCurrent(one));
		must_ok(cuMemcpyDtoH(&word, own, 4));
		must(word == (i ? 0x06060606 : 0x05050505));
		/* Access that the program has given and taken back changes nothing. */
		must_ok(cuCtxEnablePeerAccess(zero, 0));
		must_ok(cuCtxDisablePeerAccess(zero));
	}
	/* An address of nobody is refused as ever. */
	must(cuMemcpyDtoH(&word, next, 4) == CUDA_ERROR_INVALID_VALUE);
}

/* ---- contexts that end ---- */

static CUdeviceptr later;

/* As soon as the context has ended it makes the next one, which has the same handle. */
static void *succeed(void *user)
{
	CUresult result;
	must_ok(cuCtxSetCurrent(user));
	while ((result = cuCtxSynchronize()) == CUDA_SUCCESS) {
		usleep(1000);
	}
	must_be(result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	must(use_device(0) == user);
	CUstream stream = new_stream();
	must_own(stream);
	later = alloc_on(stream, 4 * MIB);
	return NULL;
}

/* While the first thread has not yet seen that it has ended one. */
static void lives_follow(void)
{
	pthread_t thread;
	CUcontext ctx = use_device(0);
	CUstream stream = new_stream();
	CUdeviceptr ptr = alloc(30 * MIB);
	must_own(stream);
	must(pthread_create(&thread, NULL, succeed, ctx) == 0);
	must_ok(cuDevicePrimaryCtxRelease(0));
	must(pthread_join(thread, NULL) == 0);
	must(shim_count("live_bytes") == 4 * MIB);
	must(cuMemFree(ptr) != CUDA_SUCCESS);
	must_ok(cuMemFree(later));
	must_own(new_stream());
	must(shim_count("live_bytes") == 0);
}

/* Other threads go on with a context while it is held once less. */
static void *go_on(void *user)
{
	CUcontext ctx = user;
	must_ok(cuCtxSetCurrent(ctx));
	CUstream stream = new_stream();
	for (int i = 0; i < 2000; i++) {
		CUdeviceptr ptr = alloc(1000 + (size_t)i);
		must_own(stream);
		must_ok(cuMemFree(ptr));
	}
	return NULL;
}

static void uses_go(void)
{
	pthread_t thread;
	CUcontext ctx = use_device(0);
	CUdeviceptr ptr = alloc(6 * MIB);
	must(pthread_create(&thread, NULL, go_on, ctx) == 0);
	for (int i = 0; i < 2000; i++) {
		CUcontext again;
		must_ok(cuDevicePrimaryCtxRetain(&again, 0));
		must_ok(cuDevicePrimaryCtxRelease(0));
	}
	must(pthread_join(thread, NULL) == 0);
	must_ok(cuMemFree(ptr));
	must(shim_count("live_bytes") == 0);
}

/* ---- green contexts --------------------------------------------------------------------------- */

static CUcontext start_green(void)
{
	CUcontext primary = use_device(0);
	must(green_split());
	return primary;
}

static bool is_active(int device)
{
	unsigned flags;
	int active;
	must_ok(cuDevicePrimaryCtxGetState(device, &flags, &active));
	return active;
}

/* Work of @stream on memory that is freed in the current context meanwhile. */
static void must_await(CUstream stream, CUdeviceptr ptr)
{
	be_slow(stream);
	must_ok(cuMemsetD8Async(ptr, 1, 4 * MIB, stream));
	must_ok(cuMemFree(ptr));
	must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
}

/* A free waits for all contexts of the device, whichever the memory was allocated in. */
static void green_waits(void)
{
	CUcontext primary = start_green();
	struct green a = green_new(0);
	struct green b = green_new(1);
	CUstream plain = new_stream();
	must_ok(cuCtxSetCurrent(a.ctx));
	must_await(b.stream, alloc(4 * MIB));
	must_await(plain, alloc(4 * MIB));
	CUdeviceptr ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(b.ctx));
	must_await(a.stream, ptr);
	ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(primary));
	must_await(a.stream, ptr);
	ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(b.ctx));
	must_await(a.stream, ptr);
	must_ok(cuCtxSetCurrent(a.ctx));
	ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(primary));
	green_end(&a);
	must_await(b.stream, ptr);
	green_end(&b);
}

/* The memory is the primary context's, so it goes with the last who retains that. */
static void green_last(void)
{
	start_green();
	for (int i = 0; i < 3; i++) {
		struct green a = green_new(0);
		struct green b = green_new(1);
		must_ok(cuDevicePrimaryCtxRelease(0));
		must_ok(cuCtxSetCurrent(a.ctx));
		alloc(5 * MIB);
		alloc_on(b.stream, 3 * MIB);
		must_ok(cuCtxSetCurrent(b.ctx));
		alloc(1000);
		alloc_on(NULL, 2000);
		/* Parked at the end of its stream. */
		must_ok(cuMemFreeAsync(alloc_on(a.stream, 7 * MIB), a.stream));
		green_end(&a);
		must(shim_count("live_bytes") == 8 * MIB + 3000);
		must_ok(cuMemFree(alloc(6 * MIB)));
		must_own(b.stream);
		must_ok(cuStreamDestroy(b.stream));
		must_ok(cuCtxSetCurrent(NULL));
		must_ok(cuGreenCtxDestroy(b.handle));
		must(!is_active(0));
		must(shim_count("live_bytes") == 0);
		use_device(0);
		must_own(NULL);
	}
	must(shim_count("passed") == 0);
}

static void must_be_destroyed(CUresult result)
{
	must(result == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

/* Nothing is allocated in one that has ended, until it is another that has its handle. */
static void green_ended(void)
{
	CUdeviceptr ptr;
	CUmemoryPool pool;
	size_t pitch;
	start_green();
	must_ok(cuDeviceGetMemPool(&pool, 0));
	struct green a = green_new(0);
	must_ok(cuCtxSetCurrent(a.ctx));
	must_ok(cuMemFree(alloc(MIB)));
	must_ok(cuGreenCtxDestroy(a.handle));
	uint64_t n_owned = shim_count("owned");
	must_be_destroyed(cuMemAlloc(&ptr, MIB));
	must_be_destroyed(cuMemAllocPitch(&ptr, &pitch, 100, 100, 4));
	must_be_destroyed(cuMemAllocAsync(&ptr, MIB, NULL));
	must_be_destroyed(cuMemAllocAsync(&ptr, MIB, a.stream));
	must_be_destroyed(cuMemAllocFromPoolAsync(&ptr, MIB, pool, NULL));
	must(shim_count("owned") == n_owned && shim_count("passed") == 0);
	struct green next = green_new(0);
	for (int i = 0; i < 200 && next.ctx != a.ctx; i++) {
		green_end(&next);
		next = green_new(0);
	}
	must_ok(cuCtxSetCurrent(next.ctx));
	must_ok(cuMemFree(alloc(MIB)));
	must_own(NULL);
	must(shim_count("owned") == n_owned + 2 && shim_count("passed") == 0);
}

/* The driver refuses to reset the primary context of one, and all stays as it is. */
static void green_reset(void)
{
	start_green();
	struct green a = green_new(0);
	must_ok(cuCtxSetCurrent(a.ctx));
	CUdeviceptr ptr = alloc(5 * MIB);
	CUdeviceptr parked = alloc_on(a.stream, 7 * MIB);
	must_ok(cuMemFreeAsync(parked, a.stream));
	must(cuDevicePrimaryCtxReset(0) == CUDA_ERROR_NOT_PERMITTED);
	must(shim_count("live_bytes") == 5 * MIB);
	must(alloc_on(a.stream, 7 * MIB) == parked);
	must_ok(cuMemFree(ptr));
	must_ok(cuMemFreeAsync(parked, a.stream));
	must_own(NULL);
	green_end(&a);
	must_ok(cuDevicePrimaryCtxReset(0));
	must(!is_active(0));
}

/* Captures on its streams end with them, and with the contexts. */
static void green_captures(void)
{
	CUgraph graph;
	start_green();
	struct green a = green_new(0);
	must_ok(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuStreamEndCapture(a.stream, &graph));
	must_own(a.stream);
	must_ok(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	green_end(&a);
	must_own(NULL);
	/* Its stream stays behind. */
	a = green_new(0);
	must_ok(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuGreenCtxDestroy(a.handle));
	must_own(NULL);
	/* With the last who retains the primary one. */
	a = green_new(0);
	must_ok(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuDevicePrimaryCtxRelease(0));
	must_ok(cuCtxSetCurrent(NULL));
	must_ok(cuGreenCtxDestroy(a.handle));
	use_device(0);
	must_own(NULL);
}

/* Devices read each other's memory, whichever context says so. */
static void green_peers(void)
{
	CUcontext other;
	CUstream stream;
	CUcontext primary = start_green();
	struct green a = green_new(0);
	must_ok(cuDevicePrimaryCtxRetain(&other, 1));
	must_ok(cuCtxSetCurrent(a.ctx));
	CUdeviceptr ptr = alloc(4 * MIB);
	CUdeviceptr own = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(other));
	stream = new_stream();
	must_ok(cuCtxEnablePeerAccess(a.ctx, 0));
	be_slow(stream);
	must_ok(cuMemsetD8Async(ptr, 1, 4 * MIB, stream));
	must_ok(cuCtxSetCurrent(a.ctx));
	must_ok(cuMemFree(ptr));
	must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	must_ok(cuCtxSetCurrent(primary));
	green_end(&a);
	/* Peer access to the green context is peer access to the primary one. */
	must_await(stream, own);
	must_ok(cuDevicePrimaryCtxRelease(1));
}

/* Without OpenGL and VDPAU only the simulator makes them. Returns how many. */
static int make_graphics(CUcontext *ctxs)
{
	CUresult (*gl)(CUcontext *, unsigned, CUdevice) = dlsym(RTLD_DEFAULT, "cuGLCtxCreate_v2");
	CUresult (*vdpau)(CUcontext *, unsigned, CUdevice, uint32_t,
	                  void *) = dlsym(RTLD_DEFAULT, "cuVDPAUCtxCreate_v2");
	char name[64] = "";
	must_ok(cuDeviceGetName(name, sizeof(name), 0));
	if (strcmp(name, "CUDASIM") != 0) {
		return 0;
	}
	must_ok(gl(&ctxs[0], 0, 0));
	must_ok(vdpau(&ctxs[1], 0, 0, 0, NULL));
	return 2;
}

/* Contexts that the program makes, by each version of the call, are seen; memory in them goes with them. */
static void made_by_hand(void)
{
	CUresult (*v2)(CUcontext *, unsigned, CUdevice) = dlsym(RTLD_DEFAULT, "cuCtxCreate_v2");
	CUresult (*v3)(CUcontext *, void *, int, unsigned, CUdevice) = dlsym(RTLD_DEFAULT,
	                                                                     "cuCtxCreate_v3");
	CUresult (*v4)(CUcontext *, void *, unsigned, CUdevice) = dlsym(RTLD_DEFAULT,
	                                                                "cuCtxCreate_v4");
	CUcontext ctxs[5];
	int n = 3;
	must_ok(cuInit(0));
	must_ok(v2(&ctxs[0], 0, 0));
	must_ok(v3(&ctxs[1], NULL, 0, 0, 0));
	must_ok(v4(&ctxs[2], NULL, 0, 0));
	must(v2(&ctxs[0], 0, 999) != CUDA_SUCCESS);
	n += make_graphics(&ctxs[n]);
	must(shim_count("contexts") == (uint64_t)n);
	for (int i = 0; i < n; i++) {
		must_ok(cuCtxSetCurrent(ctxs[i]));
		alloc(4 * MIB);
		must(shim_count("live_bytes") == 4 * MIB);
		must_ok(cuCtxDestroy(ctxs[i]));
		must(shim_count("live_bytes") == 0);
	}
	must(shim_count("passed") == 0);
}

static const struct scenario scenarios[] = {
	{"made_by_hand", made_by_hand},       {"captures_end", captures_end},
	{"captures_stay", captures_stay},     {"captures_wait", captures_wait},
	{"captures_forget", captures_forget}, {"captures_go_on", captures_go_on},
	{"readers_count", readers_count},     {"copies_reach", copies_reach},
	{"lives_follow", lives_follow},       {"uses_go", uses_go},
	{"green_waits", green_waits},         {"green_last", green_last},
	{"green_ended", green_ended},         {"green_reset", green_reset},
	{"green_captures", green_captures},   {"green_peers", green_peers},
};

int main(int argc, char **argv)
{
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}

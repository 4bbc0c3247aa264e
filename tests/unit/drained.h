/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA program in one process with the shim: no glaked, and kernels that wait for a word. */
#ifndef GLAKE_TESTS_DRAINED_H
#define GLAKE_TESTS_DRAINED_H

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "proto/cudrv.h"
#include "tests/check_glake.h"
#include "tests/spin.h"

#define MIB (1ull << 20)
#define LONG_NS 20000000000u /* only what hangs takes so long */
#define SOON_NS 20000000u
#define ck_ok(call) ck_assert_int_eq((int)(call), (int)CUDA_SUCCESS)

/* Newer toolkits have it in the library only. */
CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);

/* ---- a program -------------------------------------------------------------------------------- */

static struct cudrv drv; /* the driver, past the shim */

/* Words of host memory that kernels see. */
enum { FLAG, DONE, OTHER_FLAG, OTHER_DONE, N_WORDS };
static _Atomic uint32_t *words;

static inline uint64_t word(int index)
{
	return (uint64_t)(uintptr_t)&words[index];
}

/* No glaked, two devices if they are simulated. */
static inline CUcontext begin(void)
{
	static char state[256];
	CUcontext ctx = NULL;
	void *at = NULL;
	const char *tmp = getenv("TMPDIR");
	snprintf(state, sizeof(state), "%s/drain-%d", tmp ? tmp : "/tmp", (int)getpid());
	setenv("CUDASIM_STATE", state, 1);
	setenv("CUDASIM_DEVICES", "2x1GiB", 1);
	setenv("GLAKE_SOCKET", "/nonexistent/glake.sock", 1);
	ck_ok(cuInit(0));
	unlink(state);
	ck_assert_int_eq(cudrv_open(&drv, NULL, NULL, 0), 0);
	ck_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	ck_ok(cuCtxSetCurrent(ctx));
	ck_ok(cuMemHostAlloc(&at, N_WORDS * sizeof(*words), CU_MEMHOSTALLOC_PORTABLE));
	words = at;
	for (int i = 0; i < N_WORDS; i++) {
		words[i] = 0;
	}
	return ctx;
}

static inline bool has_two_devices(void)
{
	int n = 0;
	ck_ok(cuDeviceGetCount(&n));
	return n > 1;
}

/* In the current context. */
static inline CUfunction kernel(const char *name)
{
	CUmodule module;
	CUfunction found;
	ck_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	ck_ok(cuModuleGetFunction(&found, module, name));
	return found;
}

static inline CUstream new_stream(void)
{
	CUstream stream;
	ck_ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static inline CUresult launch_spin(CUfunction spin, CUstream stream, int flag, int done)
{
	uint64_t at[] = {word(flag), word(done)};
	void *params[] = {&at[0], &at[1]};
	return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static inline void end_capture(CUstream stream, unsigned n_wanted)
{
	CUgraph graph = NULL;
	CUgraphExec exec = NULL;
	size_t n_nodes = 0;
	ck_ok(cuStreamEndCapture(stream, &graph));
	ck_ok(cuGraphGetNodes(graph, NULL, &n_nodes));
	ck_assert_uint_eq(n_nodes, n_wanted);
	ck_ok(cuGraphInstantiate(&exec, graph, 0));
	ck_ok(cuGraphLaunch(exec, stream));
	ck_ok(cuStreamSynchronize(stream));
	ck_ok(cuGraphExecDestroy(exec));
	ck_ok(cuGraphDestroy(graph));
}

#endif

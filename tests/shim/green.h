/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts of device 0 for programs of tests/shim: of two groups of multiprocessors, each with a
 * stream. Needs the primary context.
 *
 * Owner: the program; green_end() destroys one, which must not be current. Threads: one.
 */
#ifndef GLAKE_TESTS_SHIM_GREEN_H
#define GLAKE_TESTS_SHIM_GREEN_H

#include <cuda.h>
#include <stdbool.h>

#include "tests/shim/must.h"

struct green {
	CUgreenCtx handle;
	CUcontext ctx;
	CUstream stream;
};

static CUdevResourceDesc green_groups[2];

/* Before all others. False: this driver, or this device, has no green contexts. */
static inline bool green_split(void)
{
	CUdevResource all;
	CUdevResource groups[2];
	unsigned n_groups = 2;
	CUresult result = cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);
	if (result == CUDA_ERROR_NOT_SUPPORTED) {
		return false;
	}
	must_ok(result);
	must_ok(cuDevSmResourceSplitByCount(groups, &n_groups, &all, NULL, 0,
	                                    all.sm.minSmPartitionSize));
	must(n_groups == 2);
	for (int i = 0; i < 2; i++) {
		must(groups[i].sm.smCount >= all.sm.minSmPartitionSize);
		must_ok(cuDevResourceGenerateDesc(&green_groups[i], &groups[i], 1));
	}
	return true;
}

static inline struct green green_new(int group)
{
	struct green green;
	must_ok(cuGreenCtxCreate(&green.handle, green_groups[group], 0,
	                         CU_GREEN_CTX_DEFAULT_STREAM));
	must_ok(cuCtxFromGreenCtx(&green.ctx, green.handle));
	must_ok(cuGreenCtxStreamCreate(&green.stream, green.handle, CU_STREAM_NON_BLOCKING, 0));
	return green;
}

static inline void green_end(const struct green *green)
{
	must_ok(cuStreamDestroy(green->stream));
	must_ok(cuGreenCtxDestroy(green->handle));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests that let a CUDA driver work: memory, streams, kernels. Fails the test on any error.
 *
 * Owner:    the test that includes it.
 * Lifetime: one test; Check forks for each.
 * Threads:  the test's main thread only.
 */
#ifndef CUDASIM_TEST_WORK_H
#define CUDASIM_TEST_WORK_H

#include "tests/cudasim/test_driver.h"

#include <semaphore.h>

/* The least image that cudasim accepts. */
static const char image[] = ".version 7.0\n.target sm_90\n";

static inline CUdeviceptr alloc(size_t bytes)
{
	CUdeviceptr ptr = 0;

	ck_ok(cu.MemAlloc_v2(&ptr, bytes));
	return ptr;
}

static inline CUstream stream_new(unsigned flags)
{
	CUstream stream = NULL;

	ck_ok(cu.StreamCreate(&stream, flags));
	return stream;
}

static inline CUfunction function(const char *name)
{
	static CUmodule module;
	CUfunction found = NULL;

	if (!module) {
		ck_ok(cu.ModuleLoadData(&module, image));
	}
	ck_ok(cu.ModuleGetFunction(&found, module, name));
	return found;
}

static inline CUresult launch(CUfunction kernel, CUstream stream, void **params)
{
	return cu.LaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static inline CUresult launch_fill(CUdeviceptr dst, uint64_t n_bytes, uint32_t value,
                                   CUstream stream)
{
	void *params[] = {&dst, &n_bytes, &value};

	return launch(function("cudasim_fill"), stream, params);
}

static inline uint32_t read_u32(CUdeviceptr addr)
{
	uint32_t value = 0;

	ck_ok(cu.MemcpyDtoH_v2(&value, addr, sizeof(value)));
	return value;
}

/* A stream stands still from gate_close to gate_open. */
struct gate {
	sem_t entered;
	sem_t open;
};

static inline void CUDA_CB stand_at_gate(void *arg)
{
	struct gate *gate = arg;

	sem_post(&gate->entered);
	sem_wait(&gate->open);
}

static inline void gate_close(struct gate *gate, CUstream stream)
{
	sem_init(&gate->entered, 0, 0);
	sem_init(&gate->open, 0, 0);
	ck_ok(cu.LaunchHostFunc(stream, stand_at_gate, gate));
	sem_wait(&gate->entered);
}

static inline void gate_open(struct gate *gate)
{
	sem_post(&gate->open);
}

#endif

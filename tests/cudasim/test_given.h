/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests that bring kernels along: some that are often wanted, and how to launch them.
 *
 * Owner:    the test that includes it.
 * Lifetime: one test; Check forks for each.
 * Threads:  the test's main thread only.
 */
#ifndef CUDASIM_TEST_GIVEN_H
#define CUDASIM_TEST_GIVEN_H

#include "tests/cudasim/kernel_image.h"
#include "tests/cudasim/test_work.h"

/* Stores @value at @addr. */
struct put_params {
	CUdeviceptr addr;
	uint32_t value;
};

/* Stores @value where the pointer at @place points. */
struct put_hidden_params {
	CUdeviceptr place;
	uint32_t value;
};

/* Stores @value at @addr as soon as the word at @flag is 1. */
struct put_late_params {
	CUdeviceptr flag;
	CUdeviceptr addr;
	uint32_t value;
};

static void run_put(const struct cudasim_run *run, const void *params)
{
	const struct put_params *p = params;

	run->store(run, p->addr, &p->value, sizeof(p->value));
}

static void run_put_hidden(const struct cudasim_run *run, const void *params)
{
	const struct put_hidden_params *p = params;
	CUdeviceptr addr;

	if (run->load(run, p->place, &addr, sizeof(addr))) {
		run->store(run, addr, &p->value, sizeof(p->value));
	}
}

static void run_put_late(const struct cudasim_run *run, const void *params)
{
	const struct put_late_params *p = params;

	if (cudasim_await(run, p->flag, 1)) {
		run->store(run, p->addr, &p->value, sizeof(p->value));
	}
}

static const struct cudasim_kernel given_kernels[] = {
	{"put", run_put, 2, {8, 4}},
	{"put_hidden", run_put_hidden, 2, {8, 4}},
	{"put_late", run_put_late, 3, {8, 8, 4}},
};

static const struct cudasim_global given_globals[] = {{"pointer", 8}, {"table", 4096}};

static const struct cudasim_image given_image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = sizeof(given_kernels) / sizeof(given_kernels[0]),
	.n_globals = sizeof(given_globals) / sizeof(given_globals[0]),
	.kernels = given_kernels,
	.globals = given_globals,
};

static inline CUmodule given_module(void)
{
	static CUmodule module;

	if (!module) {
		ck_ok(cu.ModuleLoadData(&module, &given_image));
	}
	return module;
}

static inline CUfunction given(const char *name)
{
	CUfunction found = NULL;

	ck_ok(cu.ModuleGetFunction(&found, given_module(), name));
	return found;
}

static inline CUresult launch_packed(CUfunction function_, const void *params, size_t bytes,
                                     CUstream stream)
{
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)params,
	                 CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};

	return cu.LaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream, NULL, extra);
}

static inline CUresult launch_put(CUdeviceptr addr, uint32_t value, CUstream stream)
{
	struct put_params params = {.addr = addr, .value = value};

	return launch_packed(given("put"), &params, sizeof(params), stream);
}

static inline CUresult launch_put_hidden(CUdeviceptr place, uint32_t value, CUstream stream)
{
	struct put_hidden_params params = {.place = place, .value = value};

	return launch_packed(given("put_hidden"), &params, sizeof(params), stream);
}

static inline CUresult launch_put_late(CUdeviceptr flag, CUdeviceptr addr, uint32_t value,
                                       CUstream stream)
{
	struct put_late_params params = {.flag = flag, .addr = addr, .value = value};

	return launch_packed(given("put_late"), &params, sizeof(params), stream);
}

#endif

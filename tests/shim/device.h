/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver calls that most programs of tests/shim begin with. The program is linked with the driver.
 *
 * Owner of what they make: the program. Threads: any, with the device's primary context.
 */
#ifndef GLAKE_TESTS_SHIM_DEVICE_H
#define GLAKE_TESTS_SHIM_DEVICE_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/must.h"

/* Newer toolkits have it in the library only. */
CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);

/* Its primary context, which is this thread's from now on. */
static inline CUcontext use_device(int ordinal)
{
	CUcontext ctx = NULL;
	must_ok(cuInit(0));
	must_ok(cuDevicePrimaryCtxRetain(&ctx, ordinal));
	must_ok(cuCtxSetCurrent(ctx));
	return ctx;
}

static inline CUstream new_stream(void)
{
	CUstream stream = NULL;
	must_ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static inline CUdeviceptr alloc(size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemAlloc(&ptr, n_bytes));
	return ptr;
}

static inline CUdeviceptr alloc_on(CUstream stream, size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemAllocAsync(&ptr, n_bytes, stream));
	return ptr;
}

static bool gate_is_open;

static inline void CUDA_CB stand_at_gate(void *user)
{
	while (!__atomic_load_n(&gate_is_open, __ATOMIC_SEQ_CST)) {
		usleep(1000);
	}
}

/* The stream stands still until open_gate(). A program has one gate. */
static inline void close_gate(CUstream stream)
{
	__atomic_store_n(&gate_is_open, false, __ATOMIC_SEQ_CST);
	must_ok(cuLaunchHostFunc(stream, stand_at_gate, NULL));
}

static inline void open_gate(void)
{
	__atomic_store_n(&gate_is_open, true, __ATOMIC_SEQ_CST);
}

/* Of the driver itself, past the shim: of the file that cuInit() has loaded, as its name alone may mean the shim. */
static inline void *driver_function(const char *name)
{
	char line[4096];
	void *driver = NULL;
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps);
	while (!driver && fgets(line, sizeof(line), maps)) {
		char *path = strchr(line, '/');
		line[strcspn(line, "\n")] = '\0';
		driver = path && strstr(path, "/libcuda.so") ? dlopen(path, RTLD_NOW) : NULL;
	}
	fclose(maps);
	must(driver);
	void *function = dlsym(driver, name);
	must(function && function != dlsym(RTLD_DEFAULT, name));
	return function;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another preload library, as tracers and profilers are: it calls the driver before main(), looks at
 * each cuMemAlloc() that is made by name, and passes it on to whoever comes behind it. At the end it
 * says on stderr how many it saw.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_uint n_seen;

__attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr *ptr_out, size_t n_bytes)
{
	__typeof__(cuMemAlloc_v2) *next = (__typeof__(cuMemAlloc_v2) *)dlsym(RTLD_NEXT,
	                                                                     "cuMemAlloc_v2");
	atomic_fetch_add(&n_seen, 1);
	return next ? next(ptr_out, n_bytes) : CUDA_ERROR_NOT_FOUND;
}

static void __attribute__((constructor)) begin(void)
{
	__typeof__(cuDriverGetVersion) *get_version = (__typeof__(cuDriverGetVersion) *)dlsym(
		RTLD_DEFAULT, "cuDriverGetVersion");
	int version = 0;
	if (!get_version || get_version(&version) != CUDA_SUCCESS || version < 12000) {
		fputs("the driver has no version\n", stderr);
	}
}

static void __attribute__((destructor)) end(void)
{
	fprintf(stderr, "seen %u\n", atomic_load(&n_seen));
}

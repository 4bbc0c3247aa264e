/* SPDX-License-Identifier: Apache-2.0 */
/* A library that has memory of the device as soon as it is loaded. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>

static void __attribute__((constructor)) begin(void)
{
	__typeof__(cuMemAlloc_v2) *alloc = (__typeof__(cuMemAlloc_v2) *)dlsym(RTLD_DEFAULT,
	                                                                      "cuMemAlloc_v2");
	CUdeviceptr ptr = 0;
	if (!alloc || alloc(&ptr, 6 << 20) != CUDA_SUCCESS) {
		fputs("the library has no memory\n", stderr);
	}
}

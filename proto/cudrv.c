/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cudrv.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two levels, so that cuda.h's renaming happens before the name becomes a string. */
#define STRING_OF(name) #name
#define SYMBOL_OF(name) STRING_OF(name)

struct call {
	const char *symbol;
	size_t offset;
};

static const struct call calls[] = {
#define CUDRV_CALL(name) {SYMBOL_OF(name), offsetof(struct cudrv, name)},
#include "proto/cudrv.def"
#undef CUDRV_CALL
};

/* A library that was opened, for later callers. Never freed. */
struct opened {
	struct opened *next;
	struct cudrv drv;
	char path[];
};

static _Atomic(struct opened *) all_opened;

static bool find_opened(const char *path, struct cudrv *drv_out)
{
	const struct opened *opened = all_opened;
	while (opened && strcmp(opened->path, path) != 0) {
		opened = opened->next;
	}
	if (opened) {
		*drv_out = opened->drv;
	}
	return opened;
}

/* If there is no memory for the entry, the loader is asked again the next time. */
static void add_opened(const char *path, const struct cudrv *drv)
{
	size_t n_bytes = strlen(path) + 1;
	struct opened *opened = malloc(sizeof(*opened) + n_bytes);
	if (!opened) {
		return;
	}
	opened->drv = *drv;
	memcpy(opened->path, path, n_bytes);
	opened->next = all_opened;
	while (!atomic_compare_exchange_weak(&all_opened, &opened->next, opened)) {
	}
}

static void say(char *error_out, size_t error_bytes, const char *what, const char *detail)
{
	if (error_out) {
		snprintf(error_out, error_bytes, "%s: %s", what, detail);
	}
}

int cudrv_open(struct cudrv *drv, const char *path, char *error_out, size_t error_bytes)
{
	if (!path) {
		path = secure_getenv("GLAKE_LIBCUDA");
	}
	if (!path || !*path) {
		path = "libcuda.so.1";
	}
	if (find_opened(path, drv)) {
		return 0;
	}
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		say(error_out, error_bytes, "cannot open the CUDA driver library", dlerror());
		return -ENOENT;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *entry = dlsym(library, calls[i].symbol);
		if (!entry) {
			say(error_out, error_bytes, "the CUDA driver library has no call named",
			    calls[i].symbol);
			dlclose(library);
			return -ENOSYS;
		}
		*(void **)((char *)drv + calls[i].offset) = entry;
	}
	drv->library = library;
	add_opened(path, drv);
	return 0;
}

const char *cudrv_error(const struct cudrv *drv, CUresult result)
{
	const char *name = NULL;
	if (drv->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) {
		return "unknown driver error";
	}
	return name;
}

int cudrv_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_NOT_INITIALIZED:
		return -ENODEV;
	case CUDA_ERROR_NOT_PERMITTED:
		return -EPERM;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	default:
		return -EIO;
	}
}

bool cudrv_is_lost(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return true;
	default:
		return false;
	}
}

CUmemAllocationProp cudrv_chunk_properties(CUdevice device, unsigned handle_types, int rdma)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)handle_types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.allocFlags = {.gpuDirectRDMACapable = rdma ? 1 : 0},
	};
}

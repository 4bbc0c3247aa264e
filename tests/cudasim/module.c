/* SPDX-License-Identifier: Apache-2.0 */
/* Modules hold no code here: every function is a row of the table in kernels.c. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC 0x646f6d5f6d6973ULL
#define FATBIN_MAGIC 0xba55ed50U
#define FATBIN_WRAPPER_MAGIC 0x466243b1U
#define MAX_THREADS 1024U
#define MAX_GRID_YZ 65535U

struct module {
	uint64_t magic;
	struct ctx *ctx;
};

static bool is_image(const void *image)
{
	uint32_t magic;

	memcpy(&magic, image, sizeof(magic));
	if (magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC ||
	    memcmp(image, "\177ELF", 4) == 0) {
		return true;
	}
	/* PTX is text that has a .version before anything but comments. */
	return strstr(image, ".version") != NULL;
}

static CUresult load(CUmodule *module_out, const void *image)
{
	if (!module_out || !image) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!is_image(image)) {
		return CUDA_ERROR_INVALID_IMAGE;
	}
	struct module *module = calloc(1, sizeof(*module));
	if (!module) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	module->magic = MODULE_MAGIC;
	module->ctx = ctx_current();
	*module_out = (CUmodule)module;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module_out, const void *image)
{
	ENTER(cuModuleLoadData);
	return load(module_out, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module_out, const void *image, unsigned int n_options,
                            CUjit_option *options, void **values)
{
	ENTER(cuModuleLoadDataEx);
	(void)n_options;
	(void)options;
	(void)values;
	return load(module_out, image);
}

static struct module *module_from_handle(CUmodule handle)
{
	struct module *module = (struct module *)handle;

	return module && module->magic == MODULE_MAGIC ? module : NULL;
}

/* Frees also in a poisoned context, and then says what is wrong: nobody can try again. */
CUresult cuModuleUnload(CUmodule handle)
{
	ENTER(cuModuleUnload);
	struct module *module = module_from_handle(handle);

	if (!module) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct ctx *ctx = module->ctx;
	stream_wait_ctx(ctx);
	module->magic = 0;
	free(module);
	return ctx_check(ctx);
}

CUresult cuModuleGetFunction(CUfunction *function_out, CUmodule handle, const char *name)
{
	ENTER(cuModuleGetFunction);
	if (!function_out || !name || !*name) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!module_from_handle(handle)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	const struct kernel *kernel = kernel_find(name);
	if (!kernel) {
		return CUDA_ERROR_NOT_FOUND;
	}
	*function_out = (CUfunction)(uintptr_t)kernel;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value_out, CUfunction_attribute attribute, CUfunction function)
{
	/* Of a small kernel on an H200. */
	static const int values[CU_FUNC_ATTRIBUTE_MAX] = {
		[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = (int)MAX_THREADS,
		[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
		[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90,
		[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90,
		[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152,
		[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
	};

	ENTER(cuFuncGetAttribute);
	if (!value_out || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!kernel_from_handle(function)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*value_out = values[attribute];
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	ENTER(cuFuncSetAttribute);
	(void)value;
	if (!kernel_from_handle(function)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
	                       attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n_out, CUfunction function,
                                                     int block_threads, size_t shared_bytes)
{
	ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
	(void)shared_bytes;
	if (!n_out || block_threads <= 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!kernel_from_handle(function)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	int n = 2048 / block_threads;
	*n_out = block_threads > (int)MAX_THREADS ? 0 : n > 32 ? 32 : n;
	return CUDA_SUCCESS;
}

struct launch {
	const struct kernel *kernel;
	uint64_t params[KERNEL_MAX_PARAMS];
};

static CUresult run_launch(struct ctx *ctx, void *arg)
{
	struct launch *launch = arg;

	return launch->kernel->run(ctx, launch->params);
}

/* From CU_LAUNCH_PARAM_BUFFER_POINTER: parameters at their natural alignment. */
static bool read_packed(struct launch *launch, void **extra)
{
	const uint8_t *buffer = NULL;
	size_t n_bytes = 0;
	size_t at = 0;

	for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
			buffer = extra[1];
		} else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
			n_bytes = *(size_t *)extra[1];
		} else {
			return false;
		}
	}
	for (unsigned i = 0; i < launch->kernel->n_params; i++) {
		size_t size = launch->kernel->param_bytes[i];
		at = (at + size - 1) / size * size;
		if (!buffer || at + size > n_bytes) {
			return false;
		}
		memcpy(&launch->params[i], buffer + at, size);
		at += size;
	}
	return true;
}

static bool read_params(struct launch *launch, void **params, void **extra)
{
	if (params && extra) {
		return false;
	}
	if (extra) {
		return read_packed(launch, extra);
	}
	for (unsigned i = 0; i < launch->kernel->n_params; i++) {
		if (!params || !params[i]) {
			return false;
		}
		memcpy(&launch->params[i], params[i], launch->kernel->param_bytes[i]);
	}
	return true;
}

static bool is_good_shape(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz)
{
	if (gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0) {
		return false;
	}
	return gx <= INT32_MAX && gy <= MAX_GRID_YZ && gz <= MAX_GRID_YZ && bx <= MAX_THREADS &&
	       by <= MAX_THREADS && bz <= 64 && bx * by * bz <= MAX_THREADS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz,
                        unsigned int shared_bytes, CUstream handle, void **params, void **extra)
{
	ENTER(cuLaunchKernel);
	struct launch launch = {.kernel = kernel_from_handle(function)};
	struct stream *s = stream_from_handle(handle);

	(void)shared_bytes;
	if (!launch.kernel || !s) {
		return launch.kernel ? stream_missing(handle) : CUDA_ERROR_INVALID_HANDLE;
	}
	if (!is_good_shape(gx, gy, gz, bx, by, bz) || !read_params(&launch, params, extra)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return stream_submit(s, run_launch, NULL, &launch, sizeof(launch));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about functions. */
#include "sim.h"

#include <string.h>

#define MAX_THREADS 1024U

CUresult cuFuncGetAttribute(int *value_out, CUfunction_attribute attribute, CUfunction function)
{
	/* The values of a small kernel on an H200. */
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

static CUresult param_info(const struct kernel *kernel, size_t index, size_t *offset_out,
                           size_t *bytes_out)
{
	if (!kernel || !offset_out) {
		return kernel ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	}
	if (index >= kernel->n_params) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*offset_out = kernel_param_offset(kernel, (unsigned)index);
	if (bytes_out) {
		*bytes_out = kernel->param_bytes[index];
	}
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset_out,
                            size_t *bytes_out)
{
	ENTER(cuFuncGetParamInfo);
	return param_info(kernel_from_handle(function), index, offset_out, bytes_out);
}

CUresult cuKernelGetParamInfo(CUkernel function, size_t index, size_t *offset_out,
                              size_t *bytes_out)
{
	ENTER(cuKernelGetParamInfo);
	return param_info(kernel_from_handle((CUfunction)function), index, offset_out, bytes_out);
}

static CUresult get_name(const char **name_out, CUfunction function)
{
	const struct kernel *kernel = kernel_from_handle(function);

	if (!name_out || !kernel) {
		return name_out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	}
	*name_out = kernel->name;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name_out, CUfunction function)
{
	ENTER(cuFuncGetName);
	return get_name(name_out, function);
}

CUresult cuKernelGetName(const char **name_out, CUkernel function)
{
	ENTER(cuKernelGetName);
	return get_name(name_out, (CUfunction)function);
}

/* A kernel is the same function in every context. */
CUresult cuKernelGetFunction(CUfunction *function_out, CUkernel kernel)
{
	ENTER(cuKernelGetFunction);
	if (!function_out || !kernel_from_handle((CUfunction)kernel)) {
		return function_out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	}
	*function_out = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

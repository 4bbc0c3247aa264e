/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronous memory: cuMemAlloc, cuMemAllocPitch, cuMemFree. */
#include <stdatomic.h>

#include "shim/alloc_result.h"
#include "shim/capture.h"
#include "shim/driver_usage.h"
#include "shim/fault.h"
#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/order.h"
#include "shim/quiesce.h"
#include "shim/record.h"
#include "shim/sleep.h"

static bool owns_alloc(void)
{
	return shim_policy()->owns_alloc && shim_can_own() && !shim_is_forked();
}

/* Allocate from glaked. *result_out is the answer if it is ours. */
static enum alloc_result alloc_ours(CUdeviceptr *address_out, uint64_t n_bytes,
                                    CUresult *result_out)
{
	struct heap_target target;
	if (!heap_target_here(&target)) {
		return LEFT_TO_DRIVER;
	}
	*result_out = capture_ask_alloc();
	if (*result_out != CUDA_SUCCESS) {
		return ANSWERED;
	}
	graphmem_collect();
	int r = order_alloc(&target, n_bytes, address_out);
	if (r == 0) {
		record_alloc(target.device, *address_out, n_bytes, 0);
	}
	return alloc_result_of(r, result_out);
}

static CUresult made_by_driver(CUdeviceptr address, uint64_t n_bytes)
{
	if (!shim_is_forked()) {
		driver_usage_add(DRIVER_USAGE_BY_ADDRESS, address, DRIVER_USAGE_OTHER, n_bytes);
	}
	return CUDA_SUCCESS;
}

CUresult shim_cuMemAlloc_v2(CUdeviceptr *address_out, size_t n_bytes)
{
	CUresult result;
	if (owns_alloc() && address_out && n_bytes > 0 &&
	    alloc_ours(address_out, n_bytes, &result) == ANSWERED) {
		return result;
	}
	result = real(cuMemAlloc_v2)(address_out, n_bytes);
	return result == CUDA_SUCCESS ? made_by_driver(*address_out, n_bytes) : result;
}

/* ---- pitch ------------------------------------------------------------------------------------ */

/* The driver's pitch for rows of @width bytes. */
static CUresult ask_pitch(size_t width, unsigned element_bytes, size_t *pitch_out)
{
	CUdeviceptr probe = 0;
	CUresult result = real(cuMemAllocPitch_v2)(&probe, pitch_out, width, 1, element_bytes);
	if (result == CUDA_SUCCESS) {
		capture_keep_probe(probe);
	}
	return result;
}

/*
 * Every driver seen so far rounds rows up to a multiple of one number. The first call finds the
 * number with a row of one byte, and checks it with a row of one byte more than the number. If the
 * check fails, there is no rule: *multiple_out is 0, and every call asks the driver.
 */
static CUresult pitch_rule(unsigned element_bytes, size_t *multiple_out)
{
	static atomic_size_t known; /* 0: not asked yet; 1: there is no rule */
	size_t multiple = known;
	if (multiple == 0) {
		size_t second = 0;
		CUresult result = ask_pitch(1, element_bytes, &multiple);
		if (result == CUDA_SUCCESS) {
			result = ask_pitch(multiple + 1, element_bytes, &second);
		}
		if (result != CUDA_SUCCESS) {
			return result;
		}
		bool is_rule = multiple > 1 && second == 2 * multiple;
		multiple = is_rule ? multiple : 1;
		known = multiple;
	}
	*multiple_out = multiple == 1 ? 0 : multiple;
	return CUDA_SUCCESS;
}

static CUresult choose_pitch(size_t width, unsigned element_bytes, size_t *pitch_out)
{
	size_t multiple;
	CUresult result = pitch_rule(element_bytes, &multiple);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	if (multiple == 0) {
		return ask_pitch(width, element_bytes, pitch_out);
	}
	*pitch_out = (width + multiple - 1) / multiple * multiple;
	return *pitch_out < width ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static bool is_pitch_request(const CUdeviceptr *address_out, const size_t *pitch_out, size_t width,
                             size_t height, unsigned element_bytes)
{
	return address_out && pitch_out && width > 0 && height > 0 &&
	       (element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
}

CUresult shim_cuMemAllocPitch_v2(CUdeviceptr *address_out, size_t *pitch_out, size_t width,
                                 size_t height, unsigned element_bytes)
{
	size_t pitch;
	size_t n_bytes;
	CUresult result;
	if (owns_alloc() &&
	    is_pitch_request(address_out, pitch_out, width, height, element_bytes) &&
	    choose_pitch(width, element_bytes, &pitch) == CUDA_SUCCESS &&
	    !__builtin_mul_overflow(pitch, height, &n_bytes) &&
	    alloc_ours(address_out, n_bytes, &result) == ANSWERED) {
		if (result == CUDA_SUCCESS) {
			*pitch_out = pitch;
		}
		return result;
	}
	result = real(cuMemAllocPitch_v2)(address_out, pitch_out, width, height, element_bytes);
	return result == CUDA_SUCCESS ? made_by_driver(*address_out, *pitch_out * height) : result;
}

/* ---- freeing ---------------------------------------------------------------------------------- */

static CUresult free_by_driver(CUdeviceptr address)
{
	struct driver_usage_entry *entry = shim_is_forked()
	                                           ? NULL
	                                           : driver_usage_take(DRIVER_USAGE_BY_ADDRESS,
	                                                               address);
	CUresult result = real(cuMemFree_v2)(address);
	driver_usage_settle(entry, result == CUDA_SUCCESS);
	return result;
}

/*
 * Like the driver, wait for all work that may use the memory. If @address is not the start of an
 * allocation of ours, the driver frees it or returns its error.
 */
static CUresult free_awake(CUdeviceptr address)
{
	struct glake__allocation *allocation = address && !shim_is_forked()
	                                               ? glake__heap_claim(address)
	                                               : NULL;
	CUcontext ctx = NULL;
	if (!allocation) {
		bool is_graphs = address && !shim_is_forked() && graphmem_has_freed(address, &ctx);
		return fault_look(is_graphs ? quiesce_ctx(ctx) : free_by_driver(address));
	}
	CUresult result = quiesce_ctx(allocation->tag.ctx);
	if (result != CUDA_SUCCESS) {
		glake__heap_unclaim(allocation);
		return fault_look(result);
	}
	shim_count(SHIM_COUNT_freed);
	record_free(allocation->ordinal, address, 0);
	if (!graphmem_keep(allocation)) {
		heap_release(allocation);
	}
	capture_free_probes();
	return CUDA_SUCCESS;
}

CUresult shim_cuMemFree_v2(CUdeviceptr address)
{
	if (sleep_free(address)) {
		return CUDA_SUCCESS;
	}
	return gate_pass() ? free_awake(address) : CUDA_ERROR_DEINITIALIZED;
}

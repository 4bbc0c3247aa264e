/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that give memory another name, or hand its number to a part of the driver outside the program's VMM: they pin it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/vmm.h"
#include "shim/writes.h"

/* ---- addresses -------------------------------------------------------------------------------- */

/* Memory that is being given another name. */
struct naming {
	CUdeviceptr address;
	size_t n_bytes;
	enum glake__pin pin;
	bool is_new; /* no part of it had the pin */
};

/* If the call fails the pin is undone. If a part had it before, all stays pinned, which only keeps it private. */
static CUresult settle_naming(const struct naming *naming, CUresult result)
{
	if (result != CUDA_SUCCESS && naming->is_new) {
		glake__pin_range(naming->address, naming->n_bytes, naming->pin, false);
	}
	return result;
}

/*
 * The pin is noted before the driver's call, and undone if the call fails. Sealed memory becomes private first,
 * because the name is good for writing; once it is pinned, nobody seals it.
 */
static CUresult begin_naming(struct naming *naming)
{
	if (shim_is_forked()) {
		return CUDA_SUCCESS;
	}
	naming->is_new = true;
	/* Another thread may seal the memory between the two calls, again and again. */
	for (int i = 0; i < UNSEAL_TRIES; i++) {
		CUresult result = writes_unseal_to_name(naming->address, naming->n_bytes);
		if (result != CUDA_SUCCESS) {
			return i == 0 ? result : settle_naming(naming, result);
		}
		naming->is_new &= !glake__pin_range(naming->address, naming->n_bytes, naming->pin,
		                                    true);
		/* Guard memory in a hole cannot be named. Pinned memory does not become a hole. */
		if (glake__has_guard(naming->address, naming->n_bytes)) {
			return settle_naming(naming, CUDA_ERROR_INVALID_VALUE);
		}
		if (!writes_have_sealed(naming->address, naming->n_bytes)) {
			/* Other processes may write to named memory, so glaked must not keep it for an heir. */
			int r = glake__elastic_named(naming->address, naming->n_bytes);
			return r == 0 ? CUDA_SUCCESS
			              : settle_naming(naming, CUDA_ERROR_OUT_OF_MEMORY);
		}
	}
	return settle_naming(naming, CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult shim_cuMemGetHandleForAddressRange(void *handle_out, CUdeviceptr address, size_t n_bytes,
                                            CUmemRangeHandleType type, unsigned long long flags)
{
	struct naming naming = {.address = address, .n_bytes = n_bytes, .pin = GLAKE__PIN_DMABUF};
	CUresult result = begin_naming(&naming);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	return settle_naming(&naming, real(cuMemGetHandleForAddressRange)(handle_out, address,
	                                                                  n_bytes, type, flags));
}

CUresult shim_cuMulticastCreate(vmm_handle *handle_out, const CUmulticastObjectProp *properties)
{
	CUresult result = real(cuMulticastCreate)(handle_out, properties);
	return result == CUDA_SUCCESS ? vmm_admit(*handle_out) : result;
}

/* A number is no multicast object, so the driver must not get it as one. */
CUresult shim_cuMulticastAddDevice(vmm_handle multicast, CUdevice device)
{
	return glake__is_number(multicast) ? CUDA_ERROR_INVALID_VALUE
	                                   : real(cuMulticastAddDevice)(multicast, device);
}

CUresult shim_cuMulticastUnbind(vmm_handle multicast, CUdevice device, size_t offset,
                                size_t n_bytes)
{
	return glake__is_number(multicast)
	               ? CUDA_ERROR_INVALID_VALUE
	               : real(cuMulticastUnbind)(multicast, device, offset, n_bytes);
}

CUresult shim_cuMulticastBindAddr(vmm_handle multicast, size_t offset, CUdeviceptr address,
                                  size_t n_bytes, unsigned long long flags)
{
	struct naming naming = {
		.address = address, .n_bytes = n_bytes, .pin = GLAKE__PIN_MULTICAST};
	CUresult result = glake__is_number(multicast) ? CUDA_ERROR_INVALID_VALUE
	                                              : begin_naming(&naming);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	return settle_naming(&naming,
	                     real(cuMulticastBindAddr)(multicast, offset, address, n_bytes, flags));
}

static CUresult bind_number(vmm_handle multicast, size_t offset, vmm_handle value,
                            size_t value_offset, size_t n_bytes, unsigned long long flags)
{
	struct glake__number *number = glake__number_take(value);
	unsigned long long handle;
	uint64_t id;
	int r = number ? vmm_pin(number, GLAKE__PIN_MULTICAST, &id, &handle) : -EINVAL;
	CUresult result = r < 0 ? vmm_result(r)
	                        : real(cuMulticastBindMem)(multicast, offset, handle, value_offset,
	                                                   n_bytes, flags);
	glake__number_give(number);
	return result;
}

CUresult shim_cuMulticastBindMem(vmm_handle multicast, size_t offset, vmm_handle handle,
                                 size_t handle_offset, size_t n_bytes, unsigned long long flags)
{
	if (vmm_is_parents(handle)) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (glake__is_number(multicast)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (glake__is_number(handle)) {
		return bind_number(multicast, offset, handle, handle_offset, n_bytes, flags);
	}
	/* Until the call returns, the driver's handle pins the chunk. */
	CUresult result = real(cuMulticastBindMem)(multicast, offset, handle, handle_offset,
	                                           n_bytes, flags);
	struct glake__chunk *chunk = result == CUDA_SUCCESS && !shim_is_forked()
	                                     ? glake__program_take(handle)
	                                     : NULL;
	if (chunk) {
		glake__program_pin(chunk, GLAKE__PIN_MULTICAST);
		glake__program_give(chunk);
	}
	return result;
}

/* Sparse arrays map the memory where the library does not see it. */
static int pin_for_arrays(CUarrayMapInfo *list, unsigned n)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < n; i++) {
		unsigned long long *handle = &list[i].memHandle.memHandle;
		uint64_t id;
		if (glake__is_number(*handle)) {
			struct glake__number *number = glake__number_take(*handle);
			r = number ? vmm_pin(number, GLAKE__PIN_HANDLE, &id, handle) : -EINVAL;
			glake__number_give(number);
		}
	}
	return r;
}

typedef CUresult map_array_fn(CUarrayMapInfo *list, unsigned n, CUstream stream);

static CUresult map_array(map_array_fn *call, CUarrayMapInfo *list, unsigned n, CUstream stream)
{
	if (!list || n == 0) {
		return call(list, n, stream);
	}
	for (unsigned i = 0; i < n && shim_is_forked(); i++) {
		if (vmm_is_parents(list[i].memHandle.memHandle)) {
			return CUDA_ERROR_NOT_INITIALIZED;
		}
	}
	CUarrayMapInfo *copy = malloc(n * sizeof(*copy));
	if (!copy) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(copy, list, n * sizeof(*copy));
	int r = pin_for_arrays(copy, n);
	CUresult result = r < 0 ? vmm_result(r) : call(copy, n, stream);
	free(copy);
	return result;
}

CUresult shim_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned n, CUstream stream)
{
	return map_array(real(cuMemMapArrayAsync), list, n, stream);
}

CUresult shim_cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned n, CUstream stream)
{
	return map_array(real(cuMemMapArrayAsync_ptsz), list, n, stream);
}

/* With SYNC_MEMOPS the driver notes something about the memory that a new backing would lose. */
CUresult shim_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr address)
{
	if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
		return real(cuPointerSetAttribute)(value, attribute, address);
	}
	struct naming naming = {.address = address, .n_bytes = 1, .pin = GLAKE__PIN_SYNC_MEMOPS};
	CUresult result = begin_naming(&naming);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	return settle_naming(&naming, real(cuPointerSetAttribute)(value, attribute, address));
}

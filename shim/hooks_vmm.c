/* SPDX-License-Identifier: Apache-2.0 */
/* The program's own virtual memory management (vmm.h). */
#include <errno.h>

#include "proto/cleanup.h"
#include "shim/alloc_result.h"
#include "shim/vmm.h"
#include "shim/writes.h"

static bool owns_vmm(void)
{
	return shim_policy()->owns_vmm && shim_can_own() && !shim_is_forked();
}

static CUresult create_by_driver(vmm_handle *handle_out, size_t n_bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags)
{
	CUresult result = real(cuMemCreate)(handle_out, n_bytes, properties, flags);
	result = result == CUDA_SUCCESS ? vmm_admit(*handle_out) : result;
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		vmm_made_by_driver(*handle_out, n_bytes, properties);
	}
	return result;
}

CUresult shim_cuMemCreate(vmm_handle *handle_out, size_t n_bytes,
                          const CUmemAllocationProp *properties, unsigned long long flags)
{
	if (!handle_out || !owns_vmm() || !vmm_is_plain(n_bytes, properties, flags)) {
		return create_by_driver(handle_out, n_bytes, properties, flags);
	}
	CUresult result;
	int r = vmm_create(n_bytes, properties, handle_out);
	if (alloc_result_of(r, &result) == ANSWERED) {
		return result;
	}
	return create_by_driver(handle_out, n_bytes, properties, flags);
}

/* The handle is released in the map before the driver's call, which may give it out again at once. */
CUresult shim_cuMemRelease(vmm_handle handle)
{
	if (vmm_is_parents(handle)) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (glake__is_number(handle)) {
		return glake__number_release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	struct glake__chunk *chunk = shim_is_forked() ? NULL : glake__program_take(handle);
	if (!chunk) {
		return real(cuMemRelease)(handle);
	}
	glake__program_released(handle);
	CUresult result = real(cuMemRelease)(handle);
	glake__program_give(chunk);
	return result;
}

/* ---- addresses -------------------------------------------------------------------------------- */

/* True: there is a window, and a map of its ranges. */
static bool has_map(void)
{
	return shim_can_own() && !shim_is_forked();
}

CUresult shim_cuMemAddressReserve(CUdeviceptr *address_out, size_t n_bytes, size_t alignment,
                                  CUdeviceptr hint, unsigned long long flags)
{
	glake_ptr address;
	if (address_out && flags == 0 && has_map() &&
	    glake__program_reserve(n_bytes, alignment, hint, &address) == 0) {
		*address_out = address;
		return CUDA_SUCCESS;
	}
	return real(cuMemAddressReserve)(address_out, n_bytes, alignment, hint, flags);
}

CUresult shim_cuMemAddressFree(CUdeviceptr address, size_t n_bytes)
{
	int r = shim_is_forked() ? -ENOENT : glake__program_unreserve(address, n_bytes);
	if (r == -ENOENT) {
		return real(cuMemAddressFree)(address, n_bytes);
	}
	return r == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- mappings --------------------------------------------------------------------------------- */

/*
 * Map a number at a place that the library does not know. The library does not see when the mapping ends, so the memory is
 * pinned, and counts as used until the process ends.
 */
static CUresult map_elsewhere(struct glake__number *number, vmm_handle value, CUdeviceptr address,
                              size_t n_bytes)
{
	unsigned long long handle;
	uint64_t id;
	int r = vmm_pin(number, GLAKE__PIN_HANDLE, &id, &handle);
	CUresult result = r < 0 ? vmm_result(r) : real(cuMemMap)(address, n_bytes, 0, handle, 0);
	if (result == CUDA_SUCCESS) {
		glake__number_take(value);
	}
	return result;
}

static CUresult map_number(CUdeviceptr address, size_t n_bytes, size_t offset, vmm_handle value,
                           unsigned long long flags)
{
	struct glake__number *number = glake__number_take(value);
	if (!number) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	int r = flags != 0    ? -EINVAL
	        : offset != 0 ? -EOPNOTSUPP
	                      : glake__number_map(number, address, n_bytes);
	CUresult result = r == -ENOENT ? map_elsewhere(number, value, address, n_bytes)
	                               : vmm_result(r);
	glake__number_give(number);
	return result;
}

/*
 * For the driver the whole window is one reservation. So the shim itself refuses a program's
 * mapping where the program has not reserved, or where memory of ours is.
 */
CUresult shim_cuMemMap(CUdeviceptr address, size_t n_bytes, size_t offset, vmm_handle handle,
                       unsigned long long flags)
{
	cleanup_cancel int cancel = cancel_disable();
	if (vmm_is_parents(handle)) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (shim_is_forked()) {
		return real(cuMemMap)(address, n_bytes, offset, handle, flags);
	}
	if (glake__is_number(handle)) {
		return map_number(address, n_bytes, offset, handle, flags);
	}
	struct glake__chunk *chunk = glake__program_take(handle);
	struct glake__mapping *mapping = NULL;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	int r = glake__program_map(address, n_bytes, chunk, &mapping);
	if (r == 0 || r == -ENOENT) {
		result = real(cuMemMap)(address, n_bytes, offset, handle, flags);
	} else if (r == -ENOMEM) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	glake__program_settle(mapping, result == CUDA_SUCCESS);
	if (chunk) {
		glake__program_give(chunk);
	}
	return result;
}

CUresult shim_cuMemUnmap(CUdeviceptr address, size_t n_bytes)
{
	cleanup_cancel int cancel = cancel_disable();
	if (shim_is_forked()) {
		return real(cuMemUnmap)(address, n_bytes);
	}
	struct glake__mapping *mapping = NULL;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	int r = glake__program_unmap(address, n_bytes, &mapping);
	if (r == 0 || r == -ENOENT) {
		result = real(cuMemUnmap)(address, n_bytes);
	} else if (r == -ENOMEM) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	glake__program_settle(mapping, result == CUDA_SUCCESS);
	return result;
}

/* Must the memory become private? Yes for access to write, and for access by the CPU, for which memory must stay in place. */
static bool needs_private(const CUmemAccessDesc *access, size_t n)
{
	bool needs = false;
	for (size_t i = 0; i < n; i++) {
		needs |= access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
		         (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		          access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE);
	}
	return needs;
}

/* Hold the mapping at @address. @is_private: sealed memory becomes private first. */
static CUresult hold_to_open(CUdeviceptr address, size_t n_bytes, bool is_private,
                             struct glake__mapping **mapping_out)
{
	for (int i = 0; i < UNSEAL_TRIES; i++) {
		int r = glake__program_hold_whole(address, n_bytes, mapping_out);
		if (r < 0) {
			return r == -ENOENT ? CUDA_ERROR_NOT_FOUND : vmm_result(r);
		}
		if (!is_private || !writes_have_sealed(address, n_bytes)) {
			return CUDA_SUCCESS;
		}
		glake__program_settle(*mapping_out, true);
		*mapping_out = NULL;
		CUresult result = writes_unseal_to_name(address, n_bytes);
		if (result != CUDA_SUCCESS) {
			return result;
		}
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult shim_cuMemSetAccess(CUdeviceptr address, size_t n_bytes, const CUmemAccessDesc *access,
                             size_t n)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__mapping *mapping = NULL;
	if (shim_is_forked() || !access) {
		return real(cuMemSetAccess)(address, n_bytes, access, n);
	}
	CUresult held = hold_to_open(address, n_bytes, needs_private(access, n), &mapping);
	if (held != CUDA_SUCCESS && held != CUDA_ERROR_NOT_FOUND) {
		return held;
	}
	CUresult result = real(cuMemSetAccess)(address, n_bytes, access, n);
	for (size_t i = 0; mapping && result == CUDA_SUCCESS && i < n; i++) {
		int device = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
		                     ? access[i].location.id
		                     : -1;
		glake__program_opened(address, n_bytes, device,
		                      access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE,
		                      access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	}
	glake__program_settle(mapping, true);
	return result;
}

/* Sealed memory is read-only for now: a write makes it private. The program has what it has set. */
CUresult shim_cuMemGetAccess(unsigned long long *flags_out, const CUmemLocation *location,
                             CUdeviceptr address)
{
	bool may_read;
	bool may_write;
	CUresult result = real(cuMemGetAccess)(flags_out, location, address);
	if (result == CUDA_SUCCESS && !shim_is_forked() &&
	    location->type == CU_MEM_LOCATION_TYPE_DEVICE && writes_have_sealed(address, 1) &&
	    glake__program_access(address, location->id, &may_read, &may_write)) {
		*flags_out = may_write  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
		             : may_read ? CU_MEM_ACCESS_FLAGS_PROT_READ
		                        : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	}
	return result;
}

/* ---- what is handed out ----------------------------------------------------------------------- */

/* The driver cannot export an imported handle. glaked, which made the chunk, can. */
static CUresult export_number(void *shareable_out, vmm_handle value, CUmemAllocationHandleType type,
                              unsigned long long flags)
{
	struct glake__number *number = glake__number_take(value);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (number && shareable_out && flags == 0 &&
	    type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	    vmm_properties(number)->requestedHandleTypes & type) {
		result = vmm_export(number, shareable_out);
	}
	glake__number_give(number);
	return result;
}

CUresult shim_cuMemExportToShareableHandle(void *shareable_out, vmm_handle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags)
{
	if (vmm_is_parents(handle)) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (glake__is_number(handle)) {
		return export_number(shareable_out, handle, type, flags);
	}
	struct glake__chunk *chunk = shim_is_forked() ? NULL : glake__program_take(handle);
	CUresult result = real(cuMemExportToShareableHandle)(shareable_out, handle, type, flags);
	if (chunk) {
		if (result == CUDA_SUCCESS) {
			glake__program_pin(chunk, GLAKE__PIN_EXPORTED);
		}
		glake__program_give(chunk);
	}
	return result;
}

CUresult shim_cuMemImportFromShareableHandle(vmm_handle *handle_out, void *shareable,
                                             CUmemAllocationHandleType type)
{
	CUmemAllocationProp properties;
	CUresult result = real(cuMemImportFromShareableHandle)(handle_out, shareable, type);
	result = result == CUDA_SUCCESS ? vmm_admit(*handle_out) : result;
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		bool is_device = real(cuMemGetAllocationPropertiesFromHandle)(
					 &properties, *handle_out) == CUDA_SUCCESS &&
		                 properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
		glake__program_imported(*handle_out, is_device ? properties.location.id : -1);
	}
	return result;
}

/* Memory of cuMemAlloc() and memory opened by IPC have no handle. */
CUresult shim_cuMemRetainAllocationHandle(vmm_handle *handle_out, void *address)
{
	cleanup_cancel int cancel = cancel_disable();
	CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)address;
	struct glake__mapping *mapping = NULL;
	if (shim_is_forked() || !handle_out) {
		return real(cuMemRetainAllocationHandle)(handle_out, address);
	}
	int r = glake__program_hold(ptr, 1, &mapping);
	if (r < 0 && r != -ENOENT) {
		return vmm_result(r);
	}
	CUresult result = CUDA_SUCCESS;
	unsigned long long number = glake__number_retain(ptr);
	if (number) {
		*handle_out = number;
	} else {
		result = real(cuMemRetainAllocationHandle)(handle_out, address);
		result = result == CUDA_SUCCESS ? vmm_admit(*handle_out) : result;
		if (result == CUDA_SUCCESS) {
			glake__program_retained(*handle_out, ptr);
		}
	}
	glake__program_settle(mapping, true);
	return result;
}

CUresult shim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties_out,
                                                     vmm_handle handle)
{
	if (vmm_is_parents(handle)) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (!glake__is_number(handle)) {
		return real(cuMemGetAllocationPropertiesFromHandle)(properties_out, handle);
	}
	struct glake__number *number = glake__number_take(handle);
	CUresult result = number && properties_out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*properties_out = *vmm_properties(number);
	}
	glake__number_give(number);
	return result;
}

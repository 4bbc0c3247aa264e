/* SPDX-License-Identifier: Apache-2.0 */
/* The program's own virtual memory management (vmm.h), and the calls that pin memory. */
#include <errno.h>

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

/* Released in the map before the driver's call, which may give the number out again at once. */
CUresult shim_cuMemRelease(vmm_handle handle)
{
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
 * For the driver the whole window is one reservation. So the shim itself refuses a program's
 * mapping where the program has not reserved, or where memory of ours is.
 */
CUresult shim_cuMemMap(CUdeviceptr address, size_t n_bytes, size_t offset, vmm_handle handle,
                       unsigned long long flags)
{
	if (shim_is_forked()) {
		return real(cuMemMap)(address, n_bytes, offset, handle, flags);
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

CUresult shim_cuMemSetAccess(CUdeviceptr address, size_t n_bytes, const CUmemAccessDesc *access,
                             size_t n)
{
	struct glake__mapping *mapping = NULL;
	int r = shim_is_forked() ? -ENOENT : glake__program_hold(address, n_bytes, &mapping);
	if (r == -EINVAL || r == -ENOMEM) {
		return r == -EINVAL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(cuMemSetAccess)(address, n_bytes, access, n);
	for (size_t i = 0; r == 0 && result == CUDA_SUCCESS && i < n; i++) {
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

/* ---- what is handed out ----------------------------------------------------------------------- */

/* The driver cannot export an imported handle. glaked, which made the chunk, can. */
CUresult shim_cuMemExportToShareableHandle(void *shareable_out, vmm_handle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags)
{
	struct glake__chunk *chunk = shim_is_forked() ? NULL : glake__program_take(handle);
	const struct vmm_chunk *ours = vmm_ours(chunk);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (!ours) {
		result = real(cuMemExportToShareableHandle)(shareable_out, handle, type, flags);
	} else if (shareable_out && flags == 0 &&
	           type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	           vmm_properties(ours)->requestedHandleTypes & type) {
		result = vmm_export(ours, shareable_out);
	}
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
	CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)address;
	struct glake__mapping *mapping = NULL;
	if (shim_is_forked()) {
		return real(cuMemRetainAllocationHandle)(handle_out, address);
	}
	int r = glake__program_hold(ptr, 1, &mapping);
	if (r == -EINVAL || r == -ENOMEM) {
		return r == -EINVAL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(cuMemRetainAllocationHandle)(handle_out, address);
	if (result == CUDA_SUCCESS) {
		glake__program_retained(*handle_out, ptr);
	}
	glake__program_settle(mapping, true);
	return result;
}

CUresult shim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties_out,
                                                     vmm_handle handle)
{
	CUresult result = real(cuMemGetAllocationPropertiesFromHandle)(properties_out, handle);
	struct glake__chunk *chunk = NULL;
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		chunk = glake__program_take(handle);
	}
	if (vmm_ours(chunk)) {
		*properties_out = *vmm_properties(vmm_ours(chunk));
	}
	if (chunk) {
		glake__program_give(chunk);
	}
	return result;
}

/* ---- what pins -------------------------------------------------------------------------------- */

/* Memory that is being given another name. */
struct naming {
	CUdeviceptr address;
	size_t n_bytes;
	enum glake__pin pin;
	bool is_new; /* the pin */
};

/*
 * The pin is noted before the driver's call, and undone if the call fails. Sealed memory becomes private first,
 * because the name is good for writing; once it is pinned, nobody seals it.
 */
static CUresult begin_naming(struct naming *naming)
{
	if (shim_is_forked()) {
		return CUDA_SUCCESS;
	}
	for (;;) {
		CUresult result = writes_unseal_to_name(naming->address, naming->n_bytes);
		if (result != CUDA_SUCCESS) {
			return result;
		}
		naming->is_new = glake__pin_at(naming->address) != naming->pin;
		glake__pin_range(naming->address, naming->n_bytes, naming->pin, true);
		if (!writes_have_sealed(naming->address, naming->n_bytes)) {
			return CUDA_SUCCESS;
		}
		/* Another thread has sealed it between the two. */
		glake__pin_range(naming->address, naming->n_bytes, naming->pin, false);
	}
}

static CUresult settle_naming(const struct naming *naming, CUresult result)
{
	if (result != CUDA_SUCCESS && naming->is_new) {
		glake__pin_range(naming->address, naming->n_bytes, naming->pin, false);
	}
	return result;
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

CUresult shim_cuMulticastBindAddr(vmm_handle multicast, size_t offset, CUdeviceptr address,
                                  size_t n_bytes, unsigned long long flags)
{
	struct naming naming = {
		.address = address, .n_bytes = n_bytes, .pin = GLAKE__PIN_MULTICAST};
	CUresult result = begin_naming(&naming);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	return settle_naming(&naming,
	                     real(cuMulticastBindAddr)(multicast, offset, address, n_bytes, flags));
}

CUresult shim_cuMulticastBindMem(vmm_handle multicast, size_t offset, vmm_handle handle,
                                 size_t handle_offset, size_t n_bytes, unsigned long long flags)
{
	/* Until then the handle pins the chunk. */
	CUresult result = real(cuMulticastBindMem)(multicast, offset, handle, handle_offset,
	                                           n_bytes, flags);
	struct glake__chunk *chunk = NULL;
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		chunk = glake__program_take(handle);
	}
	if (chunk) {
		glake__program_pin(chunk, GLAKE__PIN_MULTICAST);
		glake__program_give(chunk);
	}
	return result;
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

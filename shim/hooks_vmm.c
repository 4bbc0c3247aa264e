/* SPDX-License-Identifier: Apache-2.0 */
/* The program's own virtual memory management: see vmm.h. */
#include "shim/ipc.h"
#include "shim/owner.h"
#include "shim/vmm.h"

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
	int r = vmm_create(n_bytes, properties, handle_out);
	if (r == 0) {
		shim_count(SHIM_COUNT_owned);
		return CUDA_SUCCESS;
	}
	if (r == OWNER_E_FULL || (r == OWNER_E_ABSENT && shim_policy()->refuses_absent)) {
		shim_count(SHIM_COUNT_refused);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == OWNER_E_ABSENT) {
		shim_count(SHIM_COUNT_passed);
	}
	return create_by_driver(handle_out, n_bytes, properties, flags);
}

/* Before the driver may give the number to somebody else, it is off our books. */
CUresult shim_cuMemRelease(vmm_handle handle)
{
	struct vmm_chunk *chunk = shim_is_forked() ? NULL : vmm_take(handle);
	if (!chunk) {
		return real(cuMemRelease)(handle);
	}
	vmm_released(handle);
	CUresult result = real(cuMemRelease)(handle);
	vmm_give(chunk);
	return result;
}

CUresult shim_cuMemMap(CUdeviceptr address, size_t n_bytes, size_t offset, vmm_handle handle,
                       unsigned long long flags)
{
	struct vmm_chunk *chunk = shim_is_forked() ? NULL : vmm_take(handle);
	CUresult result = real(cuMemMap)(address, n_bytes, offset, handle, flags);
	if (chunk) {
		if (result == CUDA_SUCCESS) {
			vmm_mapped(chunk, address, n_bytes);
		}
		vmm_give(chunk);
	}
	return result;
}

CUresult shim_cuMemUnmap(CUdeviceptr address, size_t n_bytes)
{
	CUresult result = real(cuMemUnmap)(address, n_bytes);
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		vmm_unmapped(address, n_bytes);
	}
	return result;
}

/* An import cannot be exported; its maker can, and glaked is that. */
CUresult shim_cuMemExportToShareableHandle(void *shareable_out, vmm_handle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags)
{
	struct vmm_chunk *chunk = shim_is_forked() ? NULL : vmm_take_ours(handle);
	if (!chunk) {
		return real(cuMemExportToShareableHandle)(shareable_out, handle, type, flags);
	}
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (shareable_out && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	    vmm_properties(chunk)->requestedHandleTypes & type) {
		result = vmm_export(chunk, shareable_out);
	}
	vmm_give(chunk);
	return result;
}

/* Memory of cuMemAlloc(), and such as was opened by IPC, has no handle. */
CUresult shim_cuMemRetainAllocationHandle(vmm_handle *handle_out, void *address)
{
	CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)address;
	if (!shim_is_forked() && (heap_find(ptr, NULL) || ipc_find(ptr, NULL))) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult result = real(cuMemRetainAllocationHandle)(handle_out, address);
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		vmm_retained(*handle_out, ptr);
	}
	return result;
}

CUresult shim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties_out,
                                                     vmm_handle handle)
{
	CUresult result = real(cuMemGetAllocationPropertiesFromHandle)(properties_out, handle);
	struct vmm_chunk *chunk = NULL;
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		chunk = vmm_take_ours(handle);
	}
	if (chunk) {
		*properties_out = *vmm_properties(chunk);
		vmm_give(chunk);
	}
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Legacy IPC (ipc.h). Other handles and addresses are the driver's. */
#include "shim/ipc.h"

CUresult shim_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUresult result;
	if (handle && !shim_is_forked() && ipc_name(address, handle, &result)) {
		return result;
	}
	return real(cuIpcGetMemHandle)(handle, address);
}

static CUresult open_handle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags,
                            __typeof__(cuIpcOpenMemHandle_v2) *leave)
{
	struct heap_target target;
	if (address && !shim_is_forked() && shim_can_own() && ipc_is_ours(&handle) &&
	    heap_target_here(&target)) {
		return flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
		               ? ipc_open(&handle, &target, address)
		               : CUDA_ERROR_INVALID_VALUE;
	}
	return leave(address, handle, flags);
}

CUresult shim_cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return open_handle(address, handle, flags, real(cuIpcOpenMemHandle));
}

CUresult shim_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return open_handle(address, handle, flags, real(cuIpcOpenMemHandle_v2));
}

CUresult shim_cuIpcCloseMemHandle(CUdeviceptr address)
{
	CUresult result;
	if (!shim_is_forked() && ipc_close(address, &result)) {
		return result;
	}
	return real(cuIpcCloseMemHandle)(address);
}

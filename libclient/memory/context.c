/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/context.h"

#include <errno.h>

/* With @context current. */
static CUresult copy(const struct cudrv *drv, CUcontext context, void *to, glake_ptr from,
                     uint64_t n_bytes)
{
	CUcontext previous = NULL;
	CUresult result = drv->cuCtxGetCurrent(&previous);
	if (result == CUDA_SUCCESS) {
		result = drv->cuCtxSetCurrent(context);
	}
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = drv->cuMemcpyDtoH(to, from, n_bytes);
	CUresult restored = drv->cuCtxSetCurrent(previous);
	return result != CUDA_SUCCESS ? result : restored;
}

int glake_read(struct glake_session *session, uint32_t device, void *to, glake_ptr from,
               uint64_t bytes)
{
	struct glake__device *found;
	int r = glake__session_check_device(session, device, &found);
	if (r < 0) {
		return r;
	}
	if (bytes == 0) {
		return 0;
	}
	const struct cudrv *drv = &session->drv;
	CUcontext context;
	CUresult result = drv->cuDevicePrimaryCtxRetain(&context, found->handle);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuDevicePrimaryCtxRetain: %s",
		                   cudrv_error(drv, result));
	}
	result = copy(drv, context, to, from, bytes);
	drv->cuDevicePrimaryCtxRelease(found->handle);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "copy of %llu bytes from 0x%llx: %s",
		                   (unsigned long long)bytes, (unsigned long long)from,
		                   cudrv_error(drv, result));
	}
	return 0;
}

void glake__context_quiesce(struct glake_session *session, const struct glake__device *device)
{
	const struct cudrv *drv = &session->drv;
	unsigned flags = 0;
	int is_active = 0;
	CUcontext context;
	CUcontext previous = NULL;
	if (drv->cuDevicePrimaryCtxGetState(device->handle, &flags, &is_active) != CUDA_SUCCESS ||
	    !is_active || drv->cuDevicePrimaryCtxRetain(&context, device->handle) != CUDA_SUCCESS) {
		return;
	}
	if (drv->cuCtxGetCurrent(&previous) == CUDA_SUCCESS &&
	    drv->cuCtxSetCurrent(context) == CUDA_SUCCESS) {
		drv->cuCtxSynchronize();
		drv->cuCtxSetCurrent(previous);
	}
	drv->cuDevicePrimaryCtxRelease(device->handle);
}

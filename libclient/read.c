/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying device memory to the host, the one thing here that needs a context. It is the primary one,
 * which a CUDA program has anyway, and only for the time of the call; the thread's own current
 * context is put back.
 */
#include <errno.h>

#include "libclient/session.h"

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
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/api/torch_uses.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/heap/async.h"
#include "libclient/space/ptr_table.h"

struct use {
	CUstream stream;
	struct use *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct glake__ptr_table by_ptr; /* lists of struct use, owned; under the lock */
static atomic_size_t n_used;           /* of by_ptr: spares others the lock */

int glake__torch_uses_add(glake_ptr ptr, CUstream stream)
{
	struct use *use = calloc(1, sizeof(*use));
	int r = 0;
	if (!use) {
		return -ENOMEM;
	}
	use->stream = stream;
	pthread_mutex_lock(&lock);
	struct use *first = glake__ptr_table_get(&by_ptr, ptr);
	const struct use *same = first;
	while (same && same->stream != stream) {
		same = same->next;
	}
	if (first && !same) {
		use->next = first->next;
		first->next = use;
	} else if (!first) {
		r = glake__ptr_table_add(&by_ptr, ptr, use);
		n_used = by_ptr.n_used;
	}
	pthread_mutex_unlock(&lock);
	if (same || r < 0) {
		free(use);
	}
	return r;
}

static struct use *take(glake_ptr ptr)
{
	pthread_mutex_lock(&lock);
	struct use *uses = glake__ptr_table_remove(&by_ptr, ptr);
	n_used = by_ptr.n_used;
	pthread_mutex_unlock(&lock);
	return uses;
}

/* Nobody adds a use of memory that is being freed. */
static int put_back(glake_ptr ptr, struct use *uses)
{
	pthread_mutex_lock(&lock);
	int r = glake__ptr_table_add(&by_ptr, ptr, uses);
	n_used = by_ptr.n_used;
	pthread_mutex_unlock(&lock);
	return r;
}

/* @later waits for what @stream has queued so far. */
static int join(struct glake_session *session, CUstream stream, CUstream later)
{
	const struct cudrv *drv = &session->drv;
	struct glake__async_target target;
	CUcontext current = NULL;
	CUevent event = NULL;
	int r = glake__async_target(session, stream, 0, &target);
	if (r < 0) {
		return r;
	}
	/* An event is of the context of the stream that records it. */
	CUresult result = drv->cuCtxGetCurrent(&current);
	if (result == CUDA_SUCCESS) {
		result = drv->cuCtxSetCurrent(target.stream.context);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventRecord(event, stream);
	}
	drv->cuCtxSetCurrent(current);
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamWaitEvent(later, event, 0);
	}
	if (event) {
		drv->cuEventDestroy(event);
	}
	return result == CUDA_SUCCESS ? 0
	                              : glake__fail(GLAKE_E_CUDA, "cannot order streams: %s",
	                                            cudrv_error(drv, result));
}

int glake__torch_uses_join(struct glake_session *session, glake_ptr ptr, CUstream stream)
{
	struct glake__async_target target;
	struct use *uses = n_used > 0 ? take(ptr) : NULL;
	/* A stream that is captured cannot wait. */
	int r = uses ? glake__async_target(session, stream, 0, &target) : 0;
	while (uses && r != -EBUSY) {
		int joined = uses->stream == stream ? 0 : join(session, uses->stream, stream);
		r = joined < 0 ? joined : r;
		if (joined != -EBUSY) {
			struct use *done = uses;
			uses = done->next;
			free(done);
		}
	}
	if (uses && put_back(ptr, uses) < 0) {
		r = -ENOMEM;
	}
	return r;
}

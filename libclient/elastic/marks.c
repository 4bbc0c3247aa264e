/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/marks.h"

#include <errno.h>
#include <string.h>

#include "libclient/glake.h"
#include "libclient/link/error.h"

void glake__marks_init(struct glake__elastic_marks *marks)
{
	memset(marks, 0, sizeof(*marks));
	pthread_mutex_init(&marks->lock, NULL);
}

void glake__marks_deinit(struct glake__elastic_marks *marks, const struct cudrv *drv,
                         bool is_forked)
{
	for (uint32_t i = 0; i < GLAKE__N_MARKS && !is_forked; i++) {
		if (marks->events[i]) {
			drv->cuEventDestroy(marks->events[i]);
		}
	}
	pthread_mutex_destroy(&marks->lock);
}

static int record(struct glake__elastic_marks *marks, const struct cudrv *drv, uint32_t slot,
                  CUstream stream)
{
	CUcontext context;
	CUresult result = drv->cuCtxGetCurrent(&context);
	if (result == CUDA_SUCCESS && !marks->events[slot]) {
		result = drv->cuEventCreate(&marks->events[slot], CU_EVENT_DISABLE_TIMING);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventRecord(marks->events[slot], stream);
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "a mark on a stream: %s",
		                   cudrv_error(drv, result));
	}
	marks->context = context;
	return 0;
}

int glake__marks_set(struct glake__elastic_marks *marks, const struct cudrv *drv, uint64_t number,
                     CUstream stream)
{
	pthread_mutex_lock(&marks->lock);
	int r = number > marks->last
	                ? 0
	                : glake__fail(-EINVAL, "mark %llu comes behind mark %llu",
	                              (unsigned long long)number, (unsigned long long)marks->last);
	const bool is_full = marks->n == GLAKE__N_MARKS;
	const uint32_t slot = (marks->first + marks->n - is_full) % GLAKE__N_MARKS;
	r = r < 0 ? r : record(marks, drv, slot, stream);
	if (r == 0) {
		marks->numbers[slot] = number;
		marks->last = number;
		marks->n += !is_full;
	}
	pthread_mutex_unlock(&marks->lock);
	return r;
}

uint64_t glake__marks_passed(struct glake__elastic_marks *marks, const struct cudrv *drv)
{
	/* A stream that is captured elsewhere does not mind: it has none of our events. */
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	pthread_mutex_lock(&marks->lock);
	if (marks->n > 0) {
		drv->cuCtxSetCurrent(marks->context);
		drv->cuThreadExchangeStreamCaptureMode(&mode);
		while (marks->n > 0 &&
		       drv->cuEventQuery(marks->events[marks->first]) == CUDA_SUCCESS) {
			marks->passed = marks->numbers[marks->first];
			marks->first = (marks->first + 1) % GLAKE__N_MARKS;
			marks->n--;
		}
		drv->cuThreadExchangeStreamCaptureMode(&mode);
	}
	const uint64_t passed = marks->passed;
	pthread_mutex_unlock(&marks->lock);
	return passed;
}

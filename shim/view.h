/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a device as the program's tenant sees it: the quota instead of the device's total,
 * and the memory that glaked would grant instead of the driver's free memory.
 *
 * Threads: any. Asks glaked: one round trip.
 */
#ifndef GLAKE_SHIM_VIEW_H
#define GLAKE_SHIM_VIEW_H

#include <stdint.h>

#include "glake.h"

struct view {
	uint64_t free_bytes;
	uint64_t total_bytes;
};

/*
 * Turn the driver's numbers of glaked's device @index into those of @session's tenant. Memory that the
 * session keeps warm counts as free, and so do @warm_bytes, of other sessions of the
 * program. Returns 0, or the error of the session; then nothing has changed.
 */
int view_apply(struct glake_session *session, uint32_t index, uint64_t warm_bytes,
               struct view *view);

#endif

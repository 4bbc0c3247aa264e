/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory there is, as the program's tenant sees it: its quota instead of the device, what
 * glaked would give it instead of what the driver has left.
 *
 * Threads: any. Asks glaked: two round trips.
 */
#ifndef GLAKE_SHIM_VIEW_H
#define GLAKE_SHIM_VIEW_H

#include "shim/shim.h"

struct view {
	uint64_t free_bytes;
	uint64_t total_bytes;
};

/* Turn the driver's numbers of @device into the tenant's. Unchanged where glaked cannot be asked. */
void view_apply(CUdevice device, struct view *view);

#endif

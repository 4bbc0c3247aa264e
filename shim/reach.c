/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/reach.h"

#include "shim/context.h"
#include "shim/heap.h"
#include "shim/order.h"
#include "shim/quiesce.h"

/* A GPU with memory of glaked, and the context that shall reach it. */
struct way {
	CUdevice device;
	CUcontext reader;
	bool is_noted; /* False: no host memory */
};

static void note_reader(void *user, CUcontext ctx, CUdevice device)
{
	struct way *way = user;
	if (device == way->device) {
		way->is_noted = quiesce_add_reader(context_primary(ctx), way->reader) &&
		                way->is_noted;
	}
}

/* Whoever frees memory waits for the reader from now on, and then the reader may access it. */
static bool open_way(struct way *way, CUdevice reader)
{
	order_hold_contexts();
	bool knows_all = context_each(note_reader, way);
	order_let_contexts();
	return knows_all && way->is_noted && heap_add_peer(way->device, reader) == CUDA_SUCCESS;
}

static bool open_all(void)
{
	CUcontext current = NULL;
	CUdevice reader;
	bool is_open = false;
	if (real(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current ||
	    real(cuCtxGetDevice)(&reader) != CUDA_SUCCESS) {
		return false;
	}
	for (CUdevice device = 0; device < SHIM_MAX_DEVICES; device++) {
		struct way way = {device, context_primary(current), true};
		int can = 0;
		if (device != reader && heap_is_closed_to(device, reader) &&
		    real(cuDeviceCanAccessPeer)(&can, reader, device) == CUDA_SUCCESS && can) {
			is_open = open_way(&way, reader) || is_open;
		}
	}
	return is_open;
}

bool reach_others(struct gate_thread **thread, CUresult *result)
{
	if (shim_is_forked()) {
		return false;
	}
	gate_leave(*thread);
	bool is_open = open_all();
	*thread = gate_enter();
	if (is_open || !*thread) {
		*result = *thread ? CUDA_SUCCESS : CUDA_ERROR_DEINITIALIZED;
	}
	return is_open || !*thread;
}

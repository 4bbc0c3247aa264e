/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/host_chunks.h"

#include <stdlib.h>

struct host_view {
	struct host_view *next;      /* link: host_chunks.views */
	const struct device *device; /* borrowed */
	uint64_t number;
	CUdeviceptr address;
	uint64_t bytes;
};

static void view_free(struct host_view *view)
{
	struct fault fault;
	const struct cudrv *drv = view->device->drv;
	if (device_enter(view->device, &fault) ||
	    chunk_unmap(drv, view->address, view->bytes, &fault)) {
		say("%s", fault.text);
	}
	chunk_unreserve(drv, view->address, view->bytes);
	free(view);
}

int host_chunks_map(struct host_chunks *chunks, const struct device *device, uint64_t number,
                    int fd, uint64_t bytes, CUdeviceptr *address_out, struct fault *fault)
{
	struct host_view *view = chunks->views;
	while (view && (view->number != number || view->device != device)) {
		view = view->next;
	}
	if (view) {
		*address_out = view->address;
		return view->bytes == bytes ? 0
		                            : fault_set(fault, FAULT_INTERNAL,
		                                        "a chunk of host memory changed its size");
	}
	view = calloc(1, sizeof(*view));
	if (!view) {
		return fault_set(fault, FAULT_NO_HOST_MEMORY, "out of host memory");
	}
	*view = (struct host_view){.device = device, .number = number, .bytes = bytes};
	int error = chunk_reserve(device->drv, bytes, &view->address, fault);
	if (!error) {
		error = chunk_map(device, fd, view->address, bytes, CHUNK_WRITE, fault);
		if (error) {
			chunk_unreserve(device->drv, view->address, bytes);
		}
	}
	if (error) {
		free(view);
		return error;
	}
	view->next = chunks->views;
	chunks->views = view;
	*address_out = view->address;
	return 0;
}

void host_chunks_forget(struct host_chunks *chunks, uint64_t number)
{
	struct host_view **link = &chunks->views;
	while (*link) {
		struct host_view *view = *link;
		if (view->number == number) {
			*link = view->next;
			view_free(view);
		} else {
			link = &view->next;
		}
	}
}

void host_chunks_deinit(struct host_chunks *chunks)
{
	while (chunks->views) {
		struct host_view *view = chunks->views;
		chunks->views = view->next;
		view_free(view);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/probe_run.h"

#include <string.h>

#include "proto/limits.h"

/* Small things that go to and from the device, at the same places in both memories. */
struct probe_words {
	struct kernel_root_item item;
	uint8_t root[DIGEST_BYTES];
	uint8_t edge[32]; /* where the content ends */
	uint32_t differs;
};

#define WORD(lane, field) ((lane)->words + offsetof(struct probe_words, field))

/* A chunk mapped for a while. */
struct view {
	CUdeviceptr address; /* 0 = none */
	uint64_t bytes;
};

static void view_close(struct view *view, const struct cudrv *drv)
{
	struct fault fault;
	if (!view->address) {
		return;
	}
	if (chunk_unmap(drv, view->address, view->bytes, &fault)) {
		say("%s", fault.text);
	}
	chunk_unreserve(drv, view->address, view->bytes);
	*view = (struct view){0};
}

static int view_open(struct view *view, const struct device *device, int fd, uint64_t bytes,
                     struct fault *fault)
{
	CUdeviceptr address;
	int error = chunk_reserve(device->drv, bytes, &address, fault);
	if (error) {
		return error;
	}
	error = chunk_map(device, fd, address, bytes, CHUNK_READ, fault);
	if (error) {
		chunk_unreserve(device->drv, address, bytes);
		return error;
	}
	*view = (struct view){.address = address, .bytes = bytes};
	return 0;
}

/* Accepts a zeroed lane. The lane's device is entered. */
static void lane_deinit(struct probe_lane *lane, const struct cudrv *drv)
{
	if (lane->leaves) {
		drv->cuMemFree(lane->leaves);
	}
	if (lane->host_words) {
		drv->cuMemFreeHost(lane->host_words);
	}
	if (lane->words) {
		drv->cuMemFree(lane->words);
	}
	if (lane->done) {
		drv->cuEventDestroy(lane->done);
	}
	if (lane->stream) {
		drv->cuStreamDestroy(lane->stream);
	}
	*lane = (struct probe_lane){0};
}

void probe_lanes_deinit(struct probe_lanes *lanes)
{
	struct fault fault;
	for (unsigned i = 0; i < DEVICE_MAX; i++) {
		if (lanes->lanes[i].stream &&
		    device_enter(&lanes->devices->devices[i], &fault) == 0) {
			lane_deinit(&lanes->lanes[i], lanes->devices->drv);
		}
	}
}

static int make_lane(struct probe_lane *lane, const struct cudrv *drv, struct fault *fault)
{
	CUresult result = drv->cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventCreate(&lane->done,
		                            CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemAlloc(&lane->words, sizeof(*lane->host_words));
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemHostAlloc((void **)&lane->host_words, sizeof(*lane->host_words),
		                             CU_MEMHOSTALLOC_PORTABLE);
	}
	if (result != CUDA_SUCCESS) {
		lane_deinit(lane, drv);
		return device_fault(drv, result, "preparing the device", fault);
	}
	return 0;
}

/* The probe's device, entered, and the lane on it. */
static int enter(struct probe_lanes *lanes, const struct probe *probe, struct device **device_out,
                 struct probe_lane **lane_out, struct fault *fault)
{
	if (probe->chunk_bytes == 0 || probe->chunk_bytes % GLAKE_CHUNK_GRANULARITY != 0 ||
	    probe->chunk_bytes > GLAKE_MAX_CHUNK_BYTES) {
		return fault_set(fault, FAULT_BAD_REQUEST, "no chunk has %llu bytes",
		                 (unsigned long long)probe->chunk_bytes);
	}
	int error = devices_find(lanes->devices, probe->uuid, probe->n_uuid_bytes, device_out,
	                         fault);
	if (error) {
		return error;
	}
	struct probe_lane *lane = &lanes->lanes[(*device_out)->index];
	*lane_out = lane;
	return lane->stream ? 0 : make_lane(lane, (*device_out)->drv, fault);
}

/* Wait for what is queued on the lane. @result is that of queueing it, by the call @call. */
static int finish(struct probe_lane *lane, const struct cudrv *drv, CUresult result,
                  const char *call, struct fault *fault)
{
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventRecord(lane->done, lane->stream);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventSynchronize(lane->done);
	}
	if (result != CUDA_SUCCESS) {
		/* Part of it may run, on memory that is about to be unmapped. */
		drv->cuStreamSynchronize(lane->stream);
	}
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, call, fault);
}

/* ---- digest --------------------------------------------------------------------------------- */

/* The buffer only grows: to free device memory waits for everything that runs on the device. */
static int need_leaves(struct probe_lane *lane, const struct cudrv *drv, uint64_t bytes,
                       struct fault *fault)
{
	if (bytes <= lane->leaves_bytes) {
		return 0;
	}
	if (lane->leaves) {
		drv->cuMemFree(lane->leaves);
		lane->leaves = 0;
		lane->leaves_bytes = 0;
	}
	CUresult result = drv->cuMemAlloc(&lane->leaves, bytes);
	if (result != CUDA_SUCCESS) {
		lane->leaves = 0;
		return device_fault(drv, result, "cuMemAlloc", fault);
	}
	lane->leaves_bytes = bytes;
	return 0;
}

static CUresult queue_digest(struct probe_lane *lane, const struct device *device, CUdeviceptr base,
                             uint64_t content_bytes)
{
	const struct cudrv *drv = device->drv;
	struct probe_words *words = lane->host_words;
	words->item = (struct kernel_root_item){
		.leaves = lane->leaves,
		.n_leaves = digest_n_leaves(content_bytes),
		.content_bytes = content_bytes,
		.root_out = WORD(lane, root),
	};
	CUresult result = drv->cuMemcpyHtoDAsync(WORD(lane, item), &words->item,
	                                         sizeof(words->item), lane->stream);
	if (result == CUDA_SUCCESS) {
		result = kernels_leaves(&device->kernels, lane->stream, base, words->item.n_leaves,
		                        lane->leaves);
	}
	if (result == CUDA_SUCCESS) {
		result = kernels_roots(&device->kernels, lane->stream, WORD(lane, item), 1);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemcpyDtoHAsync(words->root, WORD(lane, root), sizeof(words->root),
		                                lane->stream);
	}
	return result;
}

static CUresult queue_compare(struct probe_lane *lane, const struct device *device, CUdeviceptr a,
                              CUdeviceptr b, uint64_t n_bytes)
{
	const struct cudrv *drv = device->drv;
	CUresult result = drv->cuMemsetD32Async(WORD(lane, differs), 0, 1, lane->stream);
	if (result == CUDA_SUCCESS && n_bytes > 0) {
		result = kernels_compare(&device->kernels, lane->stream, a, b, n_bytes,
		                         WORD(lane, differs));
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemcpyDtoHAsync(&lane->host_words->differs, WORD(lane, differs),
		                                sizeof(lane->host_words->differs), lane->stream);
	}
	return result;
}

/*
 * Memory is zero if its first 16 bytes are and it equals itself 16 bytes further: no zeros to
 * compare it with are needed. The edge is the 16 bytes in which the content ends and the next 16.
 */
static int check_padding(struct probe_lane *lane, const struct device *device,
                         const struct view *view, uint64_t content_bytes, struct fault *fault)
{
	const uint64_t edge = content_bytes / 16 * 16;
	const uint64_t rest = view->bytes - edge;
	const size_t n_edge = rest < sizeof(lane->host_words->edge)
	                              ? (size_t)rest
	                              : sizeof(lane->host_words->edge);
	if (rest == 0) {
		return 0;
	}
	CUresult result = device->drv->cuMemcpyDtoHAsync(
		lane->host_words->edge, view->address + edge, n_edge, lane->stream);
	if (result == CUDA_SUCCESS) {
		CUdeviceptr zeros = view->address + edge + 16;
		result = queue_compare(lane, device, zeros, zeros + 16, rest > 32 ? rest - 32 : 0);
	}
	int error = finish(lane, device->drv, result, "checking the padding", fault);
	if (error) {
		return error;
	}
	bool is_zero = lane->host_words->differs == 0;
	for (size_t i = (size_t)(content_bytes - edge); i < n_edge; i++) {
		is_zero &= lane->host_words->edge[i] == 0;
	}
	return is_zero ? 0
	               : fault_set(fault, FAULT_BAD_REQUEST,
	                           "the chunk is not zero behind its %llu bytes of content",
	                           (unsigned long long)content_bytes);
}

int probe_digest(struct probe_lanes *lanes, const struct probe *probe, struct digest *digest_out,
                 struct fault *fault)
{
	struct device *device;
	struct probe_lane *lane;
	struct view view = {0};
	int error = enter(lanes, probe, &device, &lane, fault);
	if (error) {
		return error;
	}
	if (probe->content_bytes > probe->chunk_bytes) {
		return fault_set(fault, FAULT_BAD_REQUEST, "a content larger than its chunk");
	}
	uint64_t leaves_bytes = digest_n_leaves(probe->content_bytes) * DIGEST_BYTES;
	error = need_leaves(lane, device->drv, leaves_bytes, fault);
	if (!error) {
		error = view_open(&view, device, probe->fds[0], probe->chunk_bytes, fault);
	}
	if (!error) {
		error = check_padding(lane, device, &view, probe->content_bytes, fault);
	}
	if (!error) {
		CUresult result = queue_digest(lane, device, view.address, probe->content_bytes);
		error = finish(lane, device->drv, result, "digesting", fault);
	}
	if (!error) {
		*digest_out = digest_from_bytes(lane->host_words->root);
	}
	view_close(&view, device->drv);
	return error;
}

/* ---- compare -------------------------------------------------------------------------------- */

int probe_compare(struct probe_lanes *lanes, const struct probe *probe, bool *equal_out,
                  struct fault *fault)
{
	struct device *device;
	struct probe_lane *lane;
	struct view views[2] = {{0}, {0}};
	int error = enter(lanes, probe, &device, &lane, fault);
	if (error) {
		return error;
	}
	for (unsigned i = 0; i < 2 && !error; i++) {
		error = view_open(&views[i], device, probe->fds[i], probe->chunk_bytes, fault);
	}
	if (!error) {
		CUresult result = queue_compare(lane, device, views[0].address, views[1].address,
		                                probe->chunk_bytes);
		error = finish(lane, device->drv, result, "comparing", fault);
	}
	if (!error) {
		*equal_out = lane->host_words->differs == 0;
	}
	view_close(&views[0], device->drv);
	view_close(&views[1], device->drv);
	return error;
}

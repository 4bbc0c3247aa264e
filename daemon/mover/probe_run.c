/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/probe_run.h"

#include <stdlib.h>
#include <string.h>

#include "proto/clock.h"
#include "proto/limits.h"

/* A check reads this many bytes at a time. */
#define SCRATCH_BYTES (8ull * 1024 * 1024)

struct probe_digest {
	struct kernel_root_item item;
	uint8_t root[DIGEST_BYTES];
};

/*
 * Small things that kernels read and write in pinned memory. A copy of some bytes would wait behind all that is being copied
 * that way.
 */
struct probe_words {
	struct probe_digest digest;
	uint32_t differs;
	uint8_t edge[32]; /* the first of what is to be zero */
	uint32_t rest_differs;
};

/*
 * Where a chunk is looked at. One after the other would wait for the last step of each digest, which is one thread's, though
 * others have nothing to do.
 */
static CUstream look_stream(const struct probe_run *run)
{
	static const enum probe_stream streams[] = {STREAM_OUT, STREAM_BACK, STREAM_CHECK,
	                                            STREAM_IN_CHECK};
	return run->lane->streams[streams[run->i_slot % 4]];
}

/* Pinned memory has one address. */
static CUdeviceptr there(const void *word)
{
	return (CUdeviceptr)(uintptr_t)word;
}

/* ---- views ---------------------------------------------------------------------------------- */

static void view_close(struct probe_view *view, const struct cudrv *drv)
{
	struct fault fault;
	if (!view->address) {
		return;
	}
	if (chunk_unmap(drv, view->address, view->bytes, &fault)) {
		say("%s", fault.text);
	}
	chunk_unreserve(drv, view->address, view->bytes);
	*view = (struct probe_view){0};
}

static int view_open(struct probe_view *view, const struct device *device, int fd, uint64_t bytes,
                     enum chunk_access access, struct fault *fault)
{
	CUdeviceptr address;
	int error = chunk_reserve(device->drv, bytes, &address, fault);
	if (error) {
		return error;
	}
	error = chunk_map(device, fd, address, bytes, access, fault);
	if (error) {
		chunk_unreserve(device->drv, address, bytes);
		return error;
	}
	*view = (struct probe_view){.address = address, .bytes = bytes};
	return 0;
}

static void close_views(struct probe_run *run)
{
	view_close(&run->views[0], run->device->drv);
	view_close(&run->views[1], run->device->drv);
}

/* ---- lanes ---------------------------------------------------------------------------------- */

/* Accepts none. */
static void free_leaves(struct probe_leaves *leaves, const struct cudrv *drv)
{
	if (leaves->address && leaves->is_pinned) {
		drv->cuMemFreeHost((void *)(uintptr_t)leaves->address);
	} else if (leaves->address) {
		drv->cuMemFree(leaves->address);
	}
	*leaves = (struct probe_leaves){0};
}

/* Accepts a zeroed slot. The lane's device is entered. */
static void slot_deinit(struct probe_slot *slot, const struct cudrv *drv)
{
	free_leaves(&slot->leaves, drv);
	if (slot->host_words) {
		drv->cuMemFreeHost(slot->host_words);
	}
	if (slot->written) {
		drv->cuEventDestroy(slot->written);
	}
	if (slot->done) {
		drv->cuEventDestroy(slot->done);
	}
	*slot = (struct probe_slot){0};
}

/* Accepts one that is made in part. */
static void lane_deinit(struct probe_lane *lane, const struct cudrv *drv)
{
	for (unsigned i = 0; i < PROBES_AT_ONCE; i++) {
		slot_deinit(&lane->slots[i], drv);
	}
	if (lane->piece) {
		drv->cuMemFreeHost(lane->piece);
	}
	for (unsigned i = 0; i < N_SCRATCHES; i++) {
		const struct probe_scratch *scratch = &lane->scratches[i];
		if (scratch->address) {
			drv->cuMemFree(scratch->address);
		}
		if (scratch->filled) {
			drv->cuEventDestroy(scratch->filled);
		}
		if (scratch->compared) {
			drv->cuEventDestroy(scratch->compared);
		}
	}
	for (unsigned i = 0; i < N_PROBE_STREAMS; i++) {
		if (lane->streams[i]) {
			drv->cuStreamDestroy(lane->streams[i]);
		}
	}
	*lane = (struct probe_lane){0};
}

void probe_lanes_deinit(struct probe_lanes *lanes)
{
	struct fault fault;
	for (unsigned i = 0; i < DEVICE_MAX; i++) {
		if (lanes->lanes[i].is_made &&
		    device_enter(&lanes->devices->devices[i], &fault) == 0) {
			lane_deinit(&lanes->lanes[i], lanes->devices->drv);
		}
	}
	host_chunks_deinit(&lanes->hosts);
}

static int make_slot(struct probe_slot *slot, const struct cudrv *drv, struct fault *fault)
{
	CUresult result = drv->cuEventCreate(&slot->done,
	                                     CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventCreate(&slot->written, CU_EVENT_DISABLE_TIMING);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemHostAlloc((void **)&slot->host_words, sizeof(*slot->host_words),
		                             CU_MEMHOSTALLOC_PORTABLE);
	}
	if (result != CUDA_SUCCESS) {
		slot->host_words = NULL;
		slot_deinit(slot, drv);
		return device_fault(drv, result, "preparing the device", fault);
	}
	return 0;
}

/* Copies have the higher priority: the next copy goes before checks. */
static CUresult make_streams(struct probe_lane *lane, const struct cudrv *drv)
{
	int lowest;
	int highest;
	CUresult result = drv->cuCtxGetStreamPriorityRange(&lowest, &highest);
	for (unsigned i = 0; i < N_PROBE_STREAMS && result == CUDA_SUCCESS; i++) {
		bool copies = i == STREAM_OUT || i == STREAM_IN;
		result = drv->cuStreamCreateWithPriority(&lane->streams[i], CU_STREAM_NON_BLOCKING,
		                                         copies ? highest : lowest);
		lane->streams[i] = result == CUDA_SUCCESS ? lane->streams[i] : NULL;
	}
	return result;
}

static CUresult make_event(const struct cudrv *drv, CUevent *event_out)
{
	CUresult result = drv->cuEventCreate(event_out, CU_EVENT_DISABLE_TIMING);
	*event_out = result == CUDA_SUCCESS ? *event_out : NULL;
	return result;
}

/* Memory of the device, or 0 if it is full, or was. */
static CUresult ask_device(struct probe_lane *lane, const struct cudrv *drv, uint64_t bytes,
                           CUdeviceptr *address_out)
{
	*address_out = 0;
	if (lane->is_full) {
		return CUDA_SUCCESS;
	}
	CUdeviceptr address;
	CUresult result = drv->cuMemAlloc(&address, bytes);
	lane->is_full = result == CUDA_ERROR_OUT_OF_MEMORY;
	*address_out = result == CUDA_SUCCESS ? address : 0;
	return lane->is_full ? CUDA_SUCCESS : result;
}

static CUresult make_scratch(struct probe_lane *lane, struct probe_scratch *scratch,
                             const struct cudrv *drv)
{
	CUresult result = ask_device(lane, drv, SCRATCH_BYTES, &scratch->address);
	if (result == CUDA_SUCCESS) {
		result = make_event(drv, &scratch->filled);
	}
	return result == CUDA_SUCCESS ? make_event(drv, &scratch->compared) : result;
}

/* Whole or not at all. */
static CUresult make_lane(struct probe_lane *lane, const struct cudrv *drv)
{
	CUresult result = make_streams(lane, drv);
	for (unsigned i = 0; i < N_SCRATCHES && result == CUDA_SUCCESS; i++) {
		result = make_scratch(lane, &lane->scratches[i], drv);
	}
	lane->is_made = result == CUDA_SUCCESS;
	if (!lane->is_made) {
		lane_deinit(lane, drv);
	}
	return result;
}

static int need_lane(struct probe_run *run, unsigned i_slot, struct fault *fault)
{
	const struct cudrv *drv = run->device->drv;
	CUresult result = run->lane->is_made ? CUDA_SUCCESS : make_lane(run->lane, drv);
	if (result != CUDA_SUCCESS) {
		return device_fault(drv, result, "preparing the device", fault);
	}
	run->slot = &run->lane->slots[i_slot];
	int error = run->slot->host_words ? 0 : make_slot(run->slot, drv, fault);
	if (!error) {
		*run->slot->host_words = (struct probe_words){.differs = 0};
	}
	return error;
}

/* The probe's device, entered, and its lane and slot there. */
static int enter(struct probe_lanes *lanes, struct probe_run *run, unsigned i_slot,
                 struct fault *fault)
{
	const struct probe *probe = &run->probe;
	if (probe->chunk_bytes == 0 || probe->chunk_bytes % GLAKE_CHUNK_GRANULARITY != 0 ||
	    probe->chunk_bytes > GLAKE_MAX_CHUNK_BYTES) {
		return fault_set(fault, FAULT_BAD_REQUEST, "no chunk has %llu bytes",
		                 (unsigned long long)probe->chunk_bytes);
	}
	int error = devices_find(lanes->devices, probe->uuid, probe->n_uuid_bytes, &run->device,
	                         fault);
	if (error) {
		return error;
	}
	run->lane = &lanes->lanes[run->device->index];
	return need_lane(run, i_slot, fault);
}

/* ---- digest --------------------------------------------------------------------------------- */

/* Make the leaves of one digest. On failure there are none. */
static CUresult make_leaves(struct probe_lane *lane, struct probe_leaves *leaves,
                            const struct cudrv *drv, uint64_t bytes)
{
	struct probe_leaves made = {.bytes = bytes};
	CUresult result = ask_device(lane, drv, bytes, &made.address);
	if (result == CUDA_SUCCESS && !made.address) {
		void *memory;
		result = drv->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
		made.address = result == CUDA_SUCCESS ? there(memory) : 0;
		made.is_pinned = true;
	}
	*leaves = result == CUDA_SUCCESS ? made : (struct probe_leaves){0};
	return result;
}

/* The memory only grows: to free device memory waits for everything that runs on the device. */
static int need_leaves(struct probe_run *run, uint64_t bytes, struct fault *fault)
{
	const struct cudrv *drv = run->device->drv;
	struct probe_leaves *leaves = &run->slot->leaves;
	if (bytes <= leaves->bytes) {
		return 0;
	}
	free_leaves(leaves, drv);
	CUresult result = make_leaves(run->lane, leaves, drv, bytes);
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, "memory for leaves", fault);
}

/* Queue the digest of the content at @address, to @digest, one of the slot's words. */
static CUresult queue_digest(struct probe_run *run, CUstream stream, CUdeviceptr address,
                             struct probe_digest *digest)
{
	const struct kernels *kernels = &run->device->kernels;
	struct probe_slot *slot = run->slot;
	digest->item = (struct kernel_root_item){
		.leaves = slot->leaves.address,
		.n_leaves = digest_n_leaves(run->probe.content_bytes),
		.content_bytes = run->probe.content_bytes,
		.root_out = there(digest->root),
	};
	CUresult result = kernels_leaves(kernels, stream, address, digest->item.n_leaves,
	                                 slot->leaves.address);
	return result == CUDA_SUCCESS ? kernels_roots(kernels, stream, there(&digest->item), 1)
	                              : result;
}

/* Whether @n_bytes at @a and @b differ, to @word, one of the slot's. */
static CUresult queue_compare(struct probe_run *run, CUstream stream, CUdeviceptr a, CUdeviceptr b,
                              uint64_t n_bytes, const uint32_t *word)
{
	return n_bytes == 0
	               ? CUDA_SUCCESS
	               : kernels_compare(&run->device->kernels, stream, a, b, n_bytes, there(word));
}

/* Compare all of both chunks. */
static CUresult queue_views(struct probe_run *run)
{
	return queue_compare(run, look_stream(run), run->views[0].address, run->views[1].address,
	                     run->probe.chunk_bytes, &run->slot->host_words->differs);
}

/* The bytes of the chunk behind its first @n_bytes, from the 16 bytes in which they end. */
static uint64_t rest_of(const struct probe *probe, uint64_t n_bytes)
{
	return probe->chunk_bytes - n_bytes / 16 * 16;
}

/* The bytes of it that are looked at here. */
static size_t edge_of(const struct probe *probe, uint64_t n_bytes)
{
	const struct probe_words *words;
	uint64_t rest = rest_of(probe, n_bytes);
	return rest < sizeof(words->edge) ? (size_t)rest : sizeof(words->edge);
}

/*
 * Memory is zero if its first 16 bytes are and it equals itself 16 bytes further: no zeros to
 * compare it with are needed. The edge is the 16 bytes in which the first @n_bytes end and the next 16.
 */
static CUresult queue_rest(struct probe_run *run, uint64_t n_bytes)
{
	struct probe_slot *slot = run->slot;
	const uint64_t rest = rest_of(&run->probe, n_bytes);
	const CUdeviceptr edge = run->views[0].address + run->probe.chunk_bytes - rest;
	const CUdeviceptr zeros = edge + 16;
	if (rest == 0) {
		return CUDA_SUCCESS;
	}
	slot->host_words->rest_differs = 0;
	CUresult result = run->device->drv->cuMemcpyDtoHAsync(
		slot->host_words->edge, edge, edge_of(&run->probe, n_bytes), look_stream(run));
	return result != CUDA_SUCCESS
	               ? result
	               : queue_compare(run, look_stream(run), zeros, zeros + 16,
	                               rest > 32 ? rest - 32 : 0, &slot->host_words->rest_differs);
}

/* Whether queue_rest() has found only zeros. */
static bool is_rest_zero(const struct probe_run *run, uint64_t n_bytes)
{
	const struct probe *probe = &run->probe;
	const struct probe_words *words = run->slot->host_words;
	if (rest_of(probe, n_bytes) == 0) {
		return true;
	}
	bool is_zero = words->rest_differs == 0;
	for (size_t i = (size_t)(n_bytes % 16); i < edge_of(probe, n_bytes); i++) {
		is_zero &= words->edge[i] == 0;
	}
	return is_zero;
}

static int check_padding(const struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	return is_rest_zero(run, probe->content_bytes)
	               ? 0
	               : fault_set(fault, FAULT_BAD_REQUEST,
	                           "the chunk is not zero behind its %llu bytes of content",
	                           (unsigned long long)probe->content_bytes);
}

/* The content, and memory for its leaves. */
static int prepare_digest(struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	if (probe->content_bytes > probe->chunk_bytes) {
		return fault_set(fault, FAULT_BAD_REQUEST, "a content larger than its chunk");
	}
	return need_leaves(run, digest_n_leaves(probe->content_bytes) * DIGEST_BYTES, fault);
}

static int start_digest(struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	const struct cudrv *drv = run->device->drv;
	int error = prepare_digest(run, fault);
	if (!error) {
		error = view_open(&run->views[0], run->device, probe->fds[0], probe->chunk_bytes,
		                  CHUNK_READ, fault);
	}
	if (!error && probe->fds[1] >= 0) {
		error = view_open(&run->views[1], run->device, probe->fds[1], probe->chunk_bytes,
		                  CHUNK_READ, fault);
	}
	if (error) {
		return error;
	}
	CUresult result = queue_rest(run, probe->content_bytes);
	if (result == CUDA_SUCCESS) {
		result = queue_digest(run, look_stream(run), run->views[0].address,
		                      &run->slot->host_words->digest);
	}
	if (result == CUDA_SUCCESS && run->views[1].address) {
		result = queue_views(run);
	}
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, "digesting", fault);
}

/* ---- zeros ---------------------------------------------------------------------------------- */

/* Whether all bytes of the chunk are zero. Waits for what its stream has to do. */
static int look_for_zeros(struct probe_run *run, bool *are_out, struct fault *fault)
{
	CUresult result = queue_rest(run, 0);
	if (result == CUDA_SUCCESS) {
		result = run->device->drv->cuStreamSynchronize(look_stream(run));
	}
	if (result != CUDA_SUCCESS) {
		return device_fault(run->device->drv, result, "looking for zeros", fault);
	}
	*are_out = is_rest_zero(run, 0);
	return 0;
}

/* Have the digest of @n_bytes zeros ready. False: no memory. */
static bool need_zeros(struct probe_lanes *lanes, uint64_t n_bytes)
{
	const struct digest leaf = digest_leaf(NULL, 0);
	const uint64_t n_leaves = digest_n_leaves(n_bytes);
	if (lanes->zeros_bytes == n_bytes) {
		return true;
	}
	struct digest *leaves = malloc(n_leaves * sizeof(leaves[0]));
	if (!leaves) {
		return false;
	}
	for (uint64_t i = 0; i < n_leaves; i++) {
		leaves[i] = leaf;
	}
	lanes->zeros = digest_root(leaves, n_leaves, n_bytes);
	lanes->zeros_bytes = n_bytes;
	free(leaves);
	return true;
}

/* The digest says which chunks may be zero, so that the others need not be looked at. */
static int find_zeros(struct probe_run *run, struct probe_result *result, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	bool may_be = !run->views[1].address && probe->content_bytes == probe->chunk_bytes &&
	              need_zeros(run->lanes, probe->content_bytes) &&
	              digest_equal(&result->digest, &run->lanes->zeros);
	return may_be ? look_for_zeros(run, &result->zero, fault) : 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Compare the piece at @host with the one at @chunk where they are. STREAM_CHECK goes on behind that. */
static CUresult queue_piece_there(struct probe_run *run, const struct probe_scratch *scratch,
                                  CUdeviceptr host, CUdeviceptr chunk, uint64_t n_bytes)
{
	const struct cudrv *drv = run->device->drv;
	const CUstream *streams = run->lane->streams;
	CUresult result = queue_compare(run, streams[STREAM_BACK], host, chunk, n_bytes,
	                                &run->slot->host_words->differs);
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventRecord(scratch->filled, streams[STREAM_BACK]);
	}
	return result == CUDA_SUCCESS
	               ? drv->cuStreamWaitEvent(streams[STREAM_CHECK], scratch->filled, 0)
	               : result;
}

/* Read the piece at @host back, and compare it with the one at @chunk, while the next is read. */
static CUresult queue_piece(struct probe_run *run, CUdeviceptr host, CUdeviceptr chunk,
                            uint64_t n_bytes)
{
	const struct cudrv *drv = run->device->drv;
	struct probe_lane *lane = run->lane;
	const struct probe_scratch *scratch = &lane->scratches[lane->next_scratch++ % N_SCRATCHES];
	if (!scratch->address) {
		return queue_piece_there(run, scratch, host, chunk, n_bytes);
	}
	CUresult result = drv->cuStreamWaitEvent(lane->streams[STREAM_BACK], scratch->compared, 0);
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemcpyDtoDAsync(scratch->address, host, n_bytes,
		                                lane->streams[STREAM_BACK]);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuEventRecord(scratch->filled, lane->streams[STREAM_BACK]);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamWaitEvent(lane->streams[STREAM_CHECK], scratch->filled, 0);
	}
	if (result == CUDA_SUCCESS) {
		result = queue_compare(run, lane->streams[STREAM_CHECK], scratch->address, chunk,
		                       n_bytes, &run->slot->host_words->differs);
	}
	return result == CUDA_SUCCESS
	               ? drv->cuEventRecord(scratch->compared, lane->streams[STREAM_CHECK])
	               : result;
}

/*
 * Written bytes are read back over the link the other way, and compared with their source. Meanwhile the next copies go out: so
 * the check has streams of its own. The bytes come in pieces to memory of the GPU, since a kernel that reads over the link
 * takes twice as long. Without that memory, a kernel does.
 */
static CUresult queue_check(struct probe_run *run, CUdeviceptr host)
{
	const uint64_t n_bytes = run->probe.chunk_bytes;
	const CUdeviceptr chunk = run->views[0].address;
	CUresult result = CUDA_SUCCESS;
	for (uint64_t at = 0; result == CUDA_SUCCESS && at < n_bytes; at += SCRATCH_BYTES) {
		uint64_t n_piece = n_bytes - at < SCRATCH_BYTES ? n_bytes - at : SCRATCH_BYTES;
		result = queue_piece(run, host + at, chunk + at, n_piece);
	}
	return result;
}

/* @then goes on behind what @first has written. */
static CUresult queue_behind(struct probe_run *run, CUstream first, CUstream then)
{
	const struct cudrv *drv = run->device->drv;
	CUresult result = drv->cuEventRecord(run->slot->written, first);
	return result == CUDA_SUCCESS ? drv->cuStreamWaitEvent(then, run->slot->written, 0)
	                              : result;
}

static CUresult queue_digest_of_chunk(struct probe_run *run, CUstream stream)
{
	return queue_digest(run, stream, run->views[0].address, &run->slot->host_words->digest);
}

static CUresult queue_copy_out(struct probe_run *run, CUdeviceptr host)
{
	const struct cudrv *drv = run->device->drv;
	const CUstream *streams = run->lane->streams;
	CUresult result = drv->cuMemcpyDtoDAsync(host, run->views[0].address,
	                                         run->probe.chunk_bytes, streams[STREAM_OUT]);
	if (result == CUDA_SUCCESS) {
		result = queue_behind(run, streams[STREAM_OUT], streams[STREAM_BACK]);
	}
	if (result == CUDA_SUCCESS) {
		result = queue_digest_of_chunk(run, streams[STREAM_CHECK]);
	}
	return result == CUDA_SUCCESS ? queue_check(run, host) : result;
}

/*
 * Queue the digest of the bytes that STREAM_IN writes to the chunk. The next copies go on beside it: the last step of a digest
 * is slow.
 */
static CUresult queue_digest_in(struct probe_run *run)
{
	const CUstream *streams = run->lane->streams;
	CUresult result = queue_behind(run, streams[STREAM_IN], streams[STREAM_IN_CHECK]);
	return result == CUDA_SUCCESS ? queue_digest_of_chunk(run, streams[STREAM_IN_CHECK])
	                              : result;
}

/* Back comes what the digest covers: a fresh chunk is zero behind it. */
static CUresult queue_copy_in(struct probe_run *run, CUdeviceptr host)
{
	const uint64_t n_bytes = digest_n_leaves(run->probe.content_bytes) * DIGEST_LEAF_BYTES;
	const CUstream *streams = run->lane->streams;
	CUresult result = run->device->drv->cuMemcpyDtoDAsync(run->views[0].address, host, n_bytes,
	                                                      streams[STREAM_IN]);
	return result == CUDA_SUCCESS ? queue_digest_in(run) : result;
}

/* Map the chunk, and its part of host memory. */
static int open_host(struct probe_run *run, enum chunk_access access, CUdeviceptr *host_out,
                     struct fault *fault)
{
	const struct probe *probe = &run->probe;
	if (probe->host_bytes > GLAKE_MAX_CHUNK_BYTES || probe->host_offset > probe->host_bytes ||
	    probe->chunk_bytes > probe->host_bytes - probe->host_offset) {
		return fault_set(fault, FAULT_BAD_REQUEST, "a copy beyond its chunk");
	}
	int error = view_open(&run->views[0], run->device, probe->fds[0], probe->chunk_bytes,
	                      access, fault);
	if (!error) {
		error = host_chunks_map(&run->lanes->hosts, run->device, probe->host_chunk,
		                        probe->fds[1], probe->host_bytes, host_out, fault);
		*host_out += probe->host_offset;
	}
	return error;
}

static int start_copy(struct probe_run *run, struct fault *fault)
{
	bool is_out = run->probe.kind == PROBE_COPY_OUT;
	CUdeviceptr host = 0;
	int error = prepare_digest(run, fault);
	if (!error) {
		error = open_host(run, is_out ? CHUNK_READ : CHUNK_WRITE, &host, fault);
	}
	if (error) {
		return error;
	}
	CUresult result = is_out ? queue_copy_out(run, host) : queue_copy_in(run, host);
	return result == CUDA_SUCCESS ? 0
	                              : device_fault(run->device->drv, result, "copying", fault);
}

static int start_zero(struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	const struct cudrv *drv = run->device->drv;
	int error = prepare_digest(run, fault);
	if (!error) {
		error = view_open(&run->views[0], run->device, probe->fds[0], probe->chunk_bytes,
		                  CHUNK_WRITE, fault);
	}
	if (error) {
		return error;
	}
	CUresult result = drv->cuMemsetD8Async(run->views[0].address, 0, probe->chunk_bytes,
	                                       run->lane->streams[STREAM_IN]);
	if (result == CUDA_SUCCESS) {
		result = queue_digest_in(run);
	}
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, "setting", fault);
}

/* The digest is the source's: what was written has to equal it. */
static int check_copy(const struct probe_run *run, struct fault *fault)
{
	return run->slot->host_words->differs == 0
	               ? 0
	               : fault_set(fault, FAULT_MISCOPIED, "the copy is not what was copied");
}

/* ---- compare -------------------------------------------------------------------------------- */

static int start_compare(struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	int error = 0;
	for (unsigned i = 0; i < 2 && !error; i++) {
		error = view_open(&run->views[i], run->device, probe->fds[i], probe->chunk_bytes,
		                  CHUNK_READ, fault);
	}
	if (error) {
		return error;
	}
	CUresult result = queue_views(run);
	return result == CUDA_SUCCESS ? 0
	                              : device_fault(run->device->drv, result, "comparing", fault);
}

static int start_compare_host(struct probe_run *run, struct fault *fault)
{
	CUdeviceptr host = 0;
	int error = open_host(run, CHUNK_READ, &host, fault);
	if (error) {
		return error;
	}
	CUresult result = queue_check(run, host);
	return result == CUDA_SUCCESS ? 0
	                              : device_fault(run->device->drv, result, "comparing", fault);
}

/* ---- layout --------------------------------------------------------------------------------- */

/* The bytes that are copied at a time, and those behind them that a print needs which begins in them. */
#define PIECE_BYTES (2ull * 1024 * 1024)
#define TAIL_BYTES (LAYOUT_PRINT_BYTES - LAYOUT_STEP)

static CUresult copy_piece(struct probe_run *run, uint64_t at, uint64_t n_bytes)
{
	const struct cudrv *drv = run->device->drv;
	const CUstream stream = run->lane->streams[STREAM_BACK];
	const uint64_t began_ns = clock_now_ns();
	CUresult result = drv->cuMemcpyDtoHAsync(run->lane->piece, run->views[0].address + at,
	                                         n_bytes, stream);
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamSynchronize(stream);
	}
	run->copied_ns += clock_now_ns() - began_ns;
	return result;
}

/* The content comes to host memory, piece by piece, and is looked at here: it is done when this returns. */
static CUresult look_at_content(struct probe_run *run)
{
	const uint64_t content_bytes = run->probe.content_bytes;
	CUresult result = CUDA_SUCCESS;
	if (!run->lane->piece) {
		result = run->device->drv->cuMemHostAlloc((void **)&run->lane->piece,
		                                          PIECE_BYTES + TAIL_BYTES,
		                                          CU_MEMHOSTALLOC_PORTABLE);
		run->lane->piece = result == CUDA_SUCCESS ? run->lane->piece : NULL;
	}
	for (uint64_t at = 0; result == CUDA_SUCCESS && at < content_bytes; at += PIECE_BYTES) {
		const uint64_t n_left = content_bytes - at;
		const uint64_t n_there = n_left < PIECE_BYTES + TAIL_BYTES
		                                 ? n_left
		                                 : PIECE_BYTES + TAIL_BYTES;
		result = copy_piece(run, at, n_there);
		if (result == CUDA_SUCCESS) {
			layout_add(run->layout, run->lane->piece,
			           n_there < PIECE_BYTES ? n_there : PIECE_BYTES, n_there);
		}
	}
	layout_finish(run->layout);
	return result;
}

static int start_layout(struct probe_run *run, struct fault *fault)
{
	const struct probe *probe = &run->probe;
	if (probe->content_bytes > probe->chunk_bytes) {
		return fault_set(fault, FAULT_BAD_REQUEST, "a content larger than its chunk");
	}
	run->layout = calloc(1, sizeof(*run->layout));
	if (!run->layout) {
		return fault_set(fault, FAULT_NO_HOST_MEMORY, "out of host memory");
	}
	int error = view_open(&run->views[0], run->device, probe->fds[0], probe->chunk_bytes,
	                      CHUNK_READ, fault);
	CUresult result = error ? CUDA_SUCCESS : look_at_content(run);
	if (result != CUDA_SUCCESS) {
		error = device_fault(run->device->drv, result, "looking at content", fault);
	}
	return error;
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* The one where the last work of the run is, which comes after all of it. */
static CUstream last_stream(const struct probe_run *run)
{
	enum probe_kind kind = run->probe.kind;
	bool comes = kind == PROBE_COPY_IN || kind == PROBE_ZERO;
	return kind == PROBE_DIGEST || kind == PROBE_COMPARE
	               ? look_stream(run)
	               : run->lane->streams[comes ? STREAM_IN_CHECK : STREAM_CHECK];
}

static void await_streams(const struct probe_run *run)
{
	for (unsigned i = 0; i < N_PROBE_STREAMS; i++) {
		run->device->drv->cuStreamSynchronize(run->lane->streams[i]);
	}
}

static int (*const starts[])(struct probe_run *run, struct fault *fault) = {
	[PROBE_DIGEST] = start_digest, [PROBE_COMPARE] = start_compare,
	[PROBE_COPY_OUT] = start_copy, [PROBE_COMPARE_HOST] = start_compare_host,
	[PROBE_COPY_IN] = start_copy,  [PROBE_ZERO] = start_zero,
	[PROBE_LAYOUT] = start_layout,
};

int probe_start(struct probe_lanes *lanes, struct probe_run *run, unsigned i_slot,
                struct fault *fault)
{
	run->views[0] = run->views[1] = (struct probe_view){0};
	run->lanes = lanes;
	run->i_slot = i_slot;
	int error = enter(lanes, run, i_slot, fault);
	if (error) {
		return error;
	}
	error = starts[run->probe.kind](run, fault);
	const struct cudrv *drv = run->device->drv;
	if (!error) {
		CUresult result = drv->cuEventRecord(run->slot->done, last_stream(run));
		error = result == CUDA_SUCCESS ? 0
		                               : device_fault(drv, result, "cuEventRecord", fault);
	}
	if (error) {
		/* Part of it may run, on memory that is about to be unmapped. */
		await_streams(run);
		close_views(run);
	}
	return error;
}

bool probe_is_done(const struct probe_run *run)
{
	return run->device->drv->cuEventQuery(run->slot->done) != CUDA_ERROR_NOT_READY;
}

/* All of it is done: is it right? */
static int check(struct probe_run *run, struct probe_result *result_out, struct fault *fault)
{
	enum probe_kind kind = run->probe.kind;
	bool has_two = run->views[1].address || kind == PROBE_COMPARE_HOST;
	*result_out = (struct probe_result){
		.digest = digest_from_bytes(run->slot->host_words->digest.root),
		.equal = has_two && run->slot->host_words->differs == 0,
	};
	int error = kind == PROBE_DIGEST     ? check_padding(run, fault)
	            : kind == PROBE_COPY_OUT ? check_copy(run, fault)
	                                     : 0;
	return !error && (kind == PROBE_DIGEST || kind == PROBE_COPY_OUT)
	               ? find_zeros(run, result_out, fault)
	               : error;
}

int probe_finish(struct probe_run *run, struct probe_result *result_out, struct fault *fault)
{
	const struct cudrv *drv = run->device->drv;
	int error = device_enter(run->device, fault);
	if (!error) {
		CUresult result = drv->cuEventSynchronize(run->slot->done);
		error = result == CUDA_SUCCESS
		                ? 0
		                : device_fault(drv, result, "waiting for the device", fault);
	}
	error = error ? error : check(run, result_out, fault);
	if (error) {
		await_streams(run);
	}
	close_views(run);
	return error;
}

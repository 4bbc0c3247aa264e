/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in stream order, and its pools.
 *
 * During captures the driver serves these calls. On a captured stream they make nodes of a graph, unless
 * the session stitches (graphmem.h), and on other streams the shim cannot get memory without calls that may
 * end the capture.
 */
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/alloc_result.h"
#include "shim/capture.h"
#include "shim/driver_usage.h"
#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/order.h"
#include "shim/record.h"
#include "shim/sleep.h"

/* A free waits at most WAIT_NS, and looks every PAUSE_NS. */
#define WAIT_NS 1000000000ull
#define PAUSE_NS 20000

static bool owns_async(void)
{
	return shim_policy()->owns_async && shim_can_own() && !shim_is_forked();
}

/* The real calls, for one of the two meanings of the default stream. Some may be NULL. */
struct calls {
	unsigned flags; /* GLAKE_PER_THREAD or 0 (glake_order.h) */
	__typeof__(cuMemAllocAsync) *alloc;
	__typeof__(cuMemAllocFromPoolAsync) *alloc_from_pool;
	__typeof__(cuMemFreeAsync) *free;
	__typeof__(cuStreamIsCapturing) *is_capturing;
	__typeof__(cuStreamQuery) *query;
};

static struct calls calls_of_legacy(void)
{
	return (struct calls){
		.alloc = real(cuMemAllocAsync),
		.alloc_from_pool = real(cuMemAllocFromPoolAsync),
		.free = real(cuMemFreeAsync),
		.is_capturing = real(cuStreamIsCapturing),
		.query = real(cuStreamQuery),
	};
}

static struct calls calls_of_per_thread(void)
{
	return (struct calls){
		.flags = GLAKE_PER_THREAD,
		.alloc = real(cuMemAllocAsync_ptsz),
		.alloc_from_pool = real(cuMemAllocFromPoolAsync_ptsz),
		.free = real(cuMemFreeAsync_ptsz),
		.is_capturing = real(cuStreamIsCapturing_ptsz),
		.query = real(cuStreamQuery_ptsz) ? real(cuStreamQuery_ptsz) : real(cuStreamQuery),
	};
}

/* ---- allocating ------------------------------------------------------------------------------- */

/* Called in a capture; the capture may forbid this thread the driver calls for it. */
static int alloc_captured(const struct glake_stream *stream, struct cuda_pool *pool,
                          uint64_t n_bytes, CUdeviceptr *address_out)
{
	CUstreamCaptureMode mode = capture_relax();
	struct glake__wait wait = {0};
	int r = order_alloc_async(stream, pool, n_bytes, &wait, address_out);
	capture_restore(mode);
	return r;
}

/* @from NULL: the current pool of the stream's device. */
static enum alloc_result alloc_in_order(const struct calls *calls, CUdeviceptr *address_out,
                                        size_t n_bytes, CUmemoryPool from, CUstream handle,
                                        CUresult *result_out)
{
	struct glake_stream stream;
	if (!owns_async() || !address_out || n_bytes == 0) {
		return LEFT_TO_DRIVER;
	}
	bool is_capture = capture_is_any();
	if (is_capture ? !graphmem_find_stream(handle, calls->flags, &stream)
	               : !order_find_stream(handle, calls->flags, &stream)) {
		return LEFT_TO_DRIVER;
	}
	struct cuda_pool *pool = cuda_pool_current(stream.ordinal);
	if (from) {
		pool = cuda_pool_find(from);
	}
	/* The pool may belong to another device than the stream. */
	if (!pool || cuda_pool_device(pool) != stream.ordinal) {
		return LEFT_TO_DRIVER;
	}
	graphmem_collect();
	struct glake__wait wait = order_wait_on(handle, calls->flags);
	int r = is_capture ? alloc_captured(&stream, pool, n_bytes, address_out)
	                   : order_alloc_async(&stream, pool, n_bytes, &wait, address_out);
	if (r == 0) {
		record_alloc(stream.ordinal, *address_out, n_bytes, stream.id);
	}
	return alloc_result_of(r, result_out);
}

static CUresult alloc_async(const struct calls *calls, CUdeviceptr *address_out, size_t n_bytes,
                            CUstream stream)
{
	CUresult result;
	if (alloc_in_order(calls, address_out, n_bytes, NULL, stream, &result) == ANSWERED) {
		return result;
	}
	return calls->alloc(address_out, n_bytes, stream);
}

static CUresult alloc_from_pool(const struct calls *calls, CUdeviceptr *address_out, size_t n_bytes,
                                CUmemoryPool pool, CUstream stream)
{
	CUresult result;
	if (pool &&
	    alloc_in_order(calls, address_out, n_bytes, pool, stream, &result) == ANSWERED) {
		return result;
	}
	return calls->alloc_from_pool(address_out, n_bytes, pool, stream);
}

CUresult shim_cuMemAllocAsync(CUdeviceptr *address_out, size_t n_bytes, CUstream stream)
{
	struct calls calls = calls_of_legacy();
	return alloc_async(&calls, address_out, n_bytes, stream);
}

CUresult shim_cuMemAllocAsync_ptsz(CUdeviceptr *address_out, size_t n_bytes, CUstream stream)
{
	struct calls calls = calls_of_per_thread();
	return alloc_async(&calls, address_out, n_bytes, stream);
}

CUresult shim_cuMemAllocFromPoolAsync(CUdeviceptr *address_out, size_t n_bytes, CUmemoryPool pool,
                                      CUstream stream)
{
	struct calls calls = calls_of_legacy();
	return alloc_from_pool(&calls, address_out, n_bytes, pool, stream);
}

CUresult shim_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address_out, size_t n_bytes,
                                           CUmemoryPool pool, CUstream stream)
{
	struct calls calls = calls_of_per_thread();
	return alloc_from_pool(&calls, address_out, n_bytes, pool, stream);
}

/* ---- freeing ---------------------------------------------------------------------------------- */

static bool is_captured(const struct calls *calls, CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return calls->is_capturing && (calls->is_capturing(stream, &status) != CUDA_SUCCESS ||
	                               status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Wait for the stream, but not for long, because its work may depend on the caller's next call. */
static CUresult wait_for(const struct calls *calls, CUstream handle)
{
	cleanup_cancel int cancel = cancel_disable();
	const uint64_t end_ns = clock_now_ns() + WAIT_NS;
	CUstreamCaptureMode mode = capture_relax();
	CUresult result = calls->query(handle);
	while (result == CUDA_ERROR_NOT_READY && clock_now_ns() < end_ns) {
		clock_sleep_ns(PAUSE_NS);
		result = calls->query(handle);
	}
	capture_restore(mode);
	return result;
}

/*
 * Free memory that a graph keeps. It is the graph's again when the stream gets here, and until then the program cannot free
 * it once more.
 */
static CUresult free_later(const struct calls *calls, struct glake__allocation *allocation,
                           CUstream handle)
{
	struct glake_stream stream;
	return order_find_stream(handle, calls->flags, &stream) &&
	                       order_free_whole(handle, calls->flags, &stream, allocation)
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* If the shim cannot learn when the stream gets here, or a graph keeps the memory, the thread waits for the stream. */
static CUresult free_claimed(const struct calls *calls, struct glake__allocation *allocation,
                             CUstream handle)
{
	struct glake_stream stream = {0};
	bool is_known = !graphmem_has(allocation) &&
	                order_find_stream(handle, calls->flags, &stream);
	record_free(allocation->ordinal, allocation->address, stream.id);
	if (is_known && order_free(handle, calls->flags, &stream, allocation)) {
		return CUDA_SUCCESS;
	}
	CUresult result = wait_for(calls, handle);
	if (result == CUDA_ERROR_NOT_READY) {
		return free_later(calls, allocation, handle);
	}
	if (result == CUDA_SUCCESS && !graphmem_keep(allocation)) {
		heap_release(allocation);
	}
	return result;
}

/* Memory of the driver's cuMemAlloc() is noted; report.c asks the driver for the bytes of its pools. */
static CUresult free_by_driver(const struct calls *calls, CUdeviceptr address, CUstream stream)
{
	struct driver_usage_entry *entry = shim_is_forked()
	                                           ? NULL
	                                           : driver_usage_take(DRIVER_USAGE_BY_ADDRESS,
	                                                               address);
	CUresult result = calls->free(address, stream);
	driver_usage_settle(entry, result == CUDA_SUCCESS);
	return result;
}

static CUresult free_in_capture(const struct calls *calls, struct glake__allocation *allocation,
                                CUstream stream)
{
	CUdeviceptr address = allocation->address;
	record_free(allocation->ordinal, address, allocation->tag.stream - 1);
	if (!graphmem_free(stream, calls->flags, allocation)) {
		record_alloc(allocation->ordinal, address, allocation->n_bytes, 0);
		glake__heap_unclaim(allocation);
		return free_by_driver(calls, address, stream);
	}
	shim_count(SHIM_COUNT_freed);
	return CUDA_SUCCESS;
}

/* Free memory that the heap does not know. It may be a graph's, and have been freed before an earlier launch. */
static CUresult free_unknown(const struct calls *calls, CUdeviceptr address, CUstream stream)
{
	CUcontext ctx;
	if (!address || shim_is_forked() || !graphmem_has_freed(address, &ctx)) {
		return free_by_driver(calls, address, stream);
	}
	if (capture_may_have(stream, calls->flags)) {
		return CUDA_SUCCESS;
	}
	CUresult result = wait_for(calls, stream);
	struct glake__allocation *freed = result == CUDA_ERROR_NOT_READY ? graphmem_take(address)
	                                                                 : NULL;
	if (freed) {
		result = free_later(calls, freed, stream);
	}
	if (freed && result != CUDA_SUCCESS) {
		graphmem_keep(freed);
	}
	return result;
}

/* The usual free of a session that stitches. False for memory of graphs and during captures, which take the long way. */
static bool joins(const struct calls *calls, CUdeviceptr address, CUstream handle)
{
	struct glake_stream stream;
	if (!owns_async() || !shim_policy()->stitches || record_is_on || capture_is_any() ||
	    !order_find_stream(handle, calls->flags, &stream) || !heap_join(address, &stream)) {
		return false;
	}
	shim_count(SHIM_COUNT_freed);
	return true;
}

/*
 * A program may free memory of cuMemAlloc() in stream order too. On a captured stream that is an
 * error, which the driver reports, and memory of graphs alone can be freed.
 */
static CUresult free_awake(const struct calls *calls, CUdeviceptr address, CUstream stream)
{
	struct glake__allocation *allocation = NULL;
	if (address && joins(calls, address, stream)) {
		return CUDA_SUCCESS;
	}
	if (address && !shim_is_forked()) {
		bool is_ours = capture_is_any() && heap_find(address, NULL);
		bool is_in_capture = is_ours && is_captured(calls, stream);
		allocation = glake__heap_claim(address);
		if (allocation && is_in_capture) {
			return free_in_capture(calls, allocation, stream);
		}
	}
	if (!allocation) {
		return free_unknown(calls, address, stream);
	}
	CUresult result = free_claimed(calls, allocation, stream);
	if (result != CUDA_SUCCESS) {
		record_alloc(allocation->ordinal, address, allocation->n_bytes, 0);
		glake__heap_unclaim(allocation);
		return result;
	}
	shim_count(SHIM_COUNT_freed);
	return CUDA_SUCCESS;
}

/* While a program sleeps all its streams are idle, so sleep_free() may free at once. */
static CUresult free_async(const struct calls *calls, CUdeviceptr address, CUstream stream)
{
	if (sleep_free(address)) {
		return CUDA_SUCCESS;
	}
	return gate_pass() ? free_awake(calls, address, stream) : CUDA_ERROR_DEINITIALIZED;
}

CUresult shim_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	struct calls calls = calls_of_legacy();
	return free_async(&calls, address, stream);
}

CUresult shim_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	struct calls calls = calls_of_per_thread();
	return free_async(&calls, address, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/writes.h"

#include <errno.h>
#include <pthread.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/capture.h"
#include "shim/connection.h"
#include "shim/drain.h"
#include "shim/heap.h"

/* The largest element of an array. */
#define ARRAY_ELEMENT_BYTES 16u

/* ---- looking: inside the gate ----------------------------------------------------------------- */

/* Saturates: the driver refuses sizes larger than memory, so they only must not look small here. */
static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;
	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	uint64_t sum;
	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct writes_span writes_linear(CUdeviceptr dst, uint64_t n_bytes)
{
	struct writes_span span = {.ptr = glake__find_sealed(dst, n_bytes)};
	if (span.ptr) {
		span.n_bytes = n_bytes - (span.ptr - dst);
	}
	return span;
}

/* A box of rows that begins at (x, y, z) of a larger one. */
struct box {
	uint64_t x, y, z;
	uint64_t pitch, layer_rows;
	uint64_t width, height, depth; /* bytes, rows, layers */
};

static struct writes_rows rows_of(CUdeviceptr dst, const struct box *box)
{
	if (!dst || !box->width || !box->height || !box->depth) {
		return (struct writes_rows){.depth = 0};
	}
	uint64_t pitch = box->pitch ? box->pitch : box->width;
	uint64_t layer = times(pitch, box->layer_rows ? box->layer_rows : box->height);
	uint64_t first = plus(plus(times(box->z, layer), times(box->y, pitch)), box->x);
	return (struct writes_rows){
		.ptr = plus(dst, first),
		.pitch = pitch,
		.layer = layer,
		.width = box->width,
		.height = box->height,
		.depth = box->depth,
	};
}

struct writes_span writes_all_rows(const struct writes_rows *rows)
{
	if (rows->depth == 0) {
		return (struct writes_span){.n_bytes = 0};
	}
	uint64_t last = plus(times(rows->depth - 1, rows->layer),
	                     times(rows->height - 1, rows->pitch));
	return (struct writes_span){rows->ptr, plus(last, rows->width)};
}

static struct writes_span span_of(CUdeviceptr dst, const struct box *box)
{
	struct writes_rows rows = rows_of(dst, box);
	return writes_all_rows(&rows);
}

static struct writes_span find_in(struct writes_span all)
{
	return writes_linear(all.ptr, all.n_bytes);
}

struct writes_span writes_of_rows(CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                                  uint64_t width, uint64_t height)
{
	const struct box box = {
		.pitch = pitch,
		.width = times(width, element_bytes),
		.height = height,
		.depth = 1,
	};
	return span_of(dst, &box);
}

struct writes_span writes_rows(CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                               uint64_t width, uint64_t height)
{
	return find_in(writes_of_rows(dst, pitch, element_bytes, width, height));
}

static CUdeviceptr place_of(CUmemorytype type, CUdeviceptr device, const void *host)
{
	return type == CU_MEMORYTYPE_ARRAY  ? 0
	       : type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host
	                                    : device;
}

struct writes_rows writes_rows_of_2d(const CUDA_MEMCPY2D *copy)
{
	const struct box box = {
		.x = copy->dstXInBytes,
		.y = copy->dstY,
		.pitch = copy->dstPitch,
		.width = copy->WidthInBytes,
		.height = copy->Height,
		.depth = 1,
	};
	return rows_of(place_of(copy->dstMemoryType, copy->dstDevice, copy->dstHost), &box);
}

struct writes_span writes_copy_2d(const CUDA_MEMCPY2D *copy)
{
	if (!copy) {
		return (struct writes_span){.n_bytes = 0};
	}
	struct writes_rows rows = writes_rows_of_2d(copy);
	return find_in(writes_all_rows(&rows));
}

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have these members alike. */
#define BOX_3D(copy) \
	{ \
		.x = (copy)->dstXInBytes, .y = (copy)->dstY, .z = (copy)->dstZ, \
		.pitch = (copy)->dstPitch, .layer_rows = (copy)->dstHeight, \
		.width = (copy)->WidthInBytes, .height = (copy)->Height, .depth = (copy)->Depth, \
	}

struct writes_rows writes_rows_of_3d(const CUDA_MEMCPY3D *copy)
{
	const struct box box = BOX_3D(copy);
	return rows_of(place_of(copy->dstMemoryType, copy->dstDevice, copy->dstHost), &box);
}

struct writes_span writes_of_copy_3d(const CUDA_MEMCPY3D *copy)
{
	struct writes_rows rows = writes_rows_of_3d(copy);
	return writes_all_rows(&rows);
}

struct writes_span writes_copy_3d(const CUDA_MEMCPY3D *copy)
{
	return copy ? find_in(writes_of_copy_3d(copy)) : (struct writes_span){.n_bytes = 0};
}

struct writes_span writes_of_copy_peer(const CUDA_MEMCPY3D_PEER *copy)
{
	const struct box box = BOX_3D(copy);
	return span_of(place_of(copy->dstMemoryType, copy->dstDevice, copy->dstHost), &box);
}

struct writes_span writes_copy_peer(const CUDA_MEMCPY3D_PEER *copy)
{
	return copy ? find_in(writes_of_copy_peer(copy)) : (struct writes_span){.n_bytes = 0};
}

struct writes_span writes_batch(const CUdeviceptr *dsts, const size_t *sizes, size_t n)
{
	struct writes_span span = {.n_bytes = 0};
	for (size_t i = 0; dsts && sizes && span.n_bytes == 0 && i < n; i++) {
		span = writes_linear(dsts[i], sizes[i]);
	}
	return span;
}

/* Lengths are in elements: of the array, if one side is an array, else bytes. */
struct writes_rows writes_rows_of_op(const CUDA_MEMCPY3D_BATCH_OP *op)
{
	uint64_t n = op->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? ARRAY_ELEMENT_BYTES : 1;
	const struct box box = {
		.pitch = times(op->dst.op.ptr.rowLength, n),
		.layer_rows = op->dst.op.ptr.layerHeight,
		.width = times(op->extent.width, n),
		.height = op->extent.height,
		.depth = op->extent.depth,
	};
	bool is_pointer = op->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER;
	return rows_of(is_pointer ? op->dst.op.ptr.ptr : 0, &box);
}

struct writes_span writes_batch_3d(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t n)
{
	struct writes_span span = {.n_bytes = 0};
	for (size_t i = 0; ops && span.n_bytes == 0 && i < n; i++) {
		struct writes_rows rows = writes_rows_of_op(&ops[i]);
		span = find_in(writes_all_rows(&rows));
	}
	return span;
}

/* The size that a decompression writes is a hint, and may be left out. */
uint64_t writes_most_at(CUdeviceptr dst, uint64_t n_bytes)
{
	struct heap_facts facts;
	if (n_bytes == 0 && heap_find(dst, &facts)) {
		n_bytes = facts.address + facts.n_bytes - dst;
	}
	return n_bytes;
}

struct writes_span writes_batch_decompress(const CUmemDecompressParams *params, size_t n)
{
	struct writes_span span = {.n_bytes = 0};
	for (size_t i = 0; params && span.n_bytes == 0 && i < n; i++) {
		const CUmemDecompressParams *one = &params[i];
		CUdeviceptr dst = (CUdeviceptr)(uintptr_t)one->dst;
		span = writes_linear(dst, writes_most_at(dst, one->dstNumBytes));
		if (span.n_bytes == 0 && one->dstActBytes) {
			span = writes_linear((CUdeviceptr)(uintptr_t)one->dstActBytes,
			                     sizeof(*one->dstActBytes));
		}
	}
	return span;
}

/* An operation that only a newer driver knows counts as a write of the largest word. */
static uint64_t word_bytes(CUstreamBatchMemOpType operation)
{
	switch (operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
	case CU_STREAM_MEM_OP_BARRIER:
		return 0;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return 4;
	default:
		return 8;
	}
}

/* Known operations have the address in the second word. In others, any word that is an address of ours is taken for it. */
static CUdeviceptr address_of(const CUstreamBatchMemOpParams *op)
{
	size_t i = 1;
	while (i < sizeof(op->pad) / sizeof(op->pad[0]) &&
	       glake__page_kind(glake__page_of(op->pad[i])) == GLAKE__PAGE_NONE) {
		i++;
	}
	bool is_known = op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
	                op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
	                i == sizeof(op->pad) / sizeof(op->pad[0]);
	return is_known ? op->writeValue.address : op->pad[i];
}

struct writes_span writes_of_mem_op(const CUstreamBatchMemOpParams *op)
{
	uint64_t n_bytes = word_bytes(op->operation);
	return (struct writes_span){n_bytes ? address_of(op) : 0, n_bytes};
}

struct writes_span writes_batch_mem_op(const CUstreamBatchMemOpParams *ops, unsigned n)
{
	struct writes_span span = {.n_bytes = 0};
	for (unsigned i = 0; ops && span.n_bytes == 0 && i < n; i++) {
		span = find_in(writes_of_mem_op(&ops[i]));
	}
	return span;
}

/* ---- making private: outside ------------------------------------------------------------------ */

/* Threads take turns: closing the gate for one would time out for another, again and again. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
/* When work was last found to be stuck. Threads that were waiting for their turn then do not try again themselves. */
static uint64_t stuck_at_ns;

/*
 * Behind the closed gate a copy has 2 s (errand.h). Nobody else would try the write again, so it is tried until it has waited
 * so long, with the gate open between.
 */
#define TRY_AGAIN_NS 10000000000ull
#define TRY_PAUSE_NS 1000000u

struct request {
	CUdeviceptr ptr;
	uint64_t n_bytes;
	enum glake__unsealed why;
	int error; /* the library's */
};

static int request_copies(struct connection *connection, void *user)
{
	struct request *request = user;
	(void)connection;
	request->error = glake__unseal(request->ptr, request->n_bytes, request->why);
	return request->error;
}

/* Memory of a dead connection, or of a session that the program made itself, is not the current connection's. */
static int get_copies(const struct connection *owner, CUdeviceptr ptr, uint64_t n_bytes,
                      enum glake__unsealed why)
{
	struct request request = {.ptr = ptr, .n_bytes = n_bytes, .why = why};
	struct connection *connection = connection_peek();
	if (connection && connection == owner) {
		connection_ask(connection, request_copies, &request);
	} else {
		request_copies(NULL, &request);
	}
	connection_unref(connection);
	return request.error;
}

/* The allocation at @ptr, or the program's reservation. */
static bool find(CUdeviceptr ptr, struct heap_facts *facts_out)
{
	if (heap_find(ptr, facts_out)) {
		return true;
	}
	struct glake__address_info info = glake__space_look(ptr);
	*facts_out = (struct heap_facts){.address = info.address, .n_bytes = info.n_bytes};
	return info.kind == GLAKE__PROGRAMS;
}

/* Unseal one allocation after the other. Another thread may have done that meanwhile. */
static int unseal_all(CUdeviceptr ptr, uint64_t n_bytes, enum glake__unsealed why, bool *had_some)
{
	struct heap_facts facts;
	int r = find(ptr, &facts) ? 0 : -EINVAL;
	while (r == 0) {
		struct writes_span sealed = writes_linear(ptr, n_bytes);
		if (sealed.n_bytes == 0) {
			break;
		}
		*had_some = true;
		if (!find(sealed.ptr, &facts)) {
			return -EINVAL;
		}
		uint64_t n_left = facts.n_bytes - (sealed.ptr - facts.address);
		uint64_t n = sealed.n_bytes < n_left ? sealed.n_bytes : n_left;
		r = get_copies(facts.connection, sealed.ptr, n, why);
		ptr = sealed.ptr + n;
		n_bytes = sealed.n_bytes - n;
	}
	return r;
}

/* Unseal all of an allocation. The library holds it, which waits for a seal under way. */
static int unseal_whole(CUdeviceptr ptr, uint64_t n_bytes, enum glake__unsealed why, bool *had_some)
{
	struct heap_facts facts;
	if (!find(ptr, &facts)) {
		return -EINVAL;
	}
	*had_some = writes_linear(ptr, n_bytes).n_bytes > 0;
	int r = get_copies(facts.connection, ptr, n_bytes, why);
	/* Nobody is sealing it any more, so sealed memory that is left cannot be unsealed. */
	return r == 0 && writes_linear(ptr, n_bytes).n_bytes > 0 ? -ENOTSUP : r;
}

static int try_unseal(CUdeviceptr ptr, uint64_t n_bytes, enum glake__unsealed why, bool *had_some)
{
	return why == GLAKE__UNSEALED_LAUNCHED ? unseal_whole(ptr, n_bytes, why, had_some)
	                                       : unseal_all(ptr, n_bytes, why, had_some);
}

/* -EINVAL: the memory cannot be made private, and the call is left to the driver. */
static int unseal(CUdeviceptr ptr, uint64_t n_bytes, enum glake__unsealed why)
{
	cleanup_cancel int cancel = cancel_disable();
	const uint64_t since_ns = clock_now_ns();
	bool had_some = false;
	int r = -EBUSY;
	pthread_mutex_lock(&turn);
	if (since_ns >= stuck_at_ns) {
		while ((r = try_unseal(ptr, n_bytes, why, &had_some)) == -EBUSY &&
		       glake__errands_go_on() && clock_now_ns() - since_ns < TRY_AGAIN_NS) {
			clock_sleep_ns(TRY_PAUSE_NS);
		}
		shim_count_add(SHIM_COUNT_copies, had_some && r == 0);
		stuck_at_ns = r == -EBUSY ? clock_now_ns() : stuck_at_ns;
	}
	pthread_mutex_unlock(&turn);
	return r;
}

int writes_make_private(CUdeviceptr ptr, uint64_t n_bytes)
{
	return unseal(ptr, n_bytes, GLAKE__UNSEALED_LAUNCHED);
}

bool writes_have_sealed(CUdeviceptr ptr, uint64_t n_bytes)
{
	struct heap_facts facts;
	return writes_are_watched() && find(ptr, &facts) && glake__find_sealed(ptr, n_bytes);
}

CUresult writes_unseal_to_name(CUdeviceptr ptr, uint64_t n_bytes)
{
	int r = writes_have_sealed(ptr, n_bytes) ? unseal(ptr, n_bytes, GLAKE__UNSEALED_NAMED) : 0;
	return r == 0 || r == -EINVAL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool writes_give_copies_to(struct gate_thread **thread, struct writes_span span,
                           CUresult *result_out)
{
	gate_leave(*thread);
	int r = unseal(span.ptr, span.n_bytes, GLAKE__UNSEALED_WRITTEN);
	*result_out = r == 0 || r == -EINVAL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	*thread = gate_enter();
	if (!*thread) {
		*result_out = CUDA_ERROR_DEINITIALIZED;
	}
	return r == 0 && *thread;
}

bool writes_give_copies(struct gate_thread **thread, struct writes_span span, CUstream stream,
                        bool is_per_thread, CUresult *result_out)
{
	bool is_captured = capture_may_have(stream, is_per_thread ? GLAKE_PER_THREAD : 0);
	bool has_copies = (!is_captured || drain_is_calm) &&
	                  writes_give_copies_to(thread, span, result_out);
	if (is_captured && *thread) {
		*result_out = CUDA_SUCCESS;
	}
	return has_copies;
}

CUresult writes_refused(CUresult result, struct writes_span span, CUstream stream,
                        bool is_per_thread)
{
	struct heap_facts facts;
	bool is_ours = find(span.ptr, &facts) &&
	               capture_may_have(stream, is_per_thread ? GLAKE_PER_THREAD : 0);
	return is_ours ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a word of memory, and writing one, in the order of a stream. */
#include "work.h"

#include <string.h>
#include <time.h>

static bool is_wait(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
	       op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* The size of the word that the operation touches; 0: none. */
static unsigned word_bytes(const CUstreamBatchMemOpParams *op)
{
	switch (op->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return 4;
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		return 8;
	default:
		return 0;
	}
}

static bool is_op(const CUstreamBatchMemOpParams *op)
{
	return word_bytes(op) > 0 || op->operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES ||
	       op->operation == CU_STREAM_MEM_OP_BARRIER;
}

/* The members of the union begin alike: what to do, where, and the value. */
static bool is_good(const CUstreamBatchMemOpParams *op, bool is_captured)
{
	unsigned bytes = word_bytes(op);
	uint64_t addr = op->waitValue.address;

	if (bytes == 0) {
		return is_op(op);
	}
	if (addr % bytes != 0 || !space_is_known(addr) ||
	    (is_wait(op) && op->waitValue.flags & ~(unsigned)(CU_STREAM_WAIT_VALUE_NOR |
	                                                      CU_STREAM_WAIT_VALUE_FLUSH))) {
		return false;
	}
	return space_check(addr, bytes, is_wait(op) || is_captured ? SPACE_READ : SPACE_WRITE,
	                   SPACE_BY_API, 0);
}

static CUresult fill(struct memops *memops, const CUstreamBatchMemOpParams *ops, unsigned n,
                     bool is_captured)
{
	if (!ops || n == 0 || n > 256) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < n; i++) {
		if (!is_good(&ops[i], is_captured)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	memops->ops = blob_new(ops, n * sizeof(ops[0]));
	return memops->ops ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memops_fill(struct memops *memops, const CUstreamBatchMemOpParams *ops, unsigned n)
{
	return fill(memops, ops, n, false);
}

static bool is_met(const CUstreamBatchMemOpParams *op, uint64_t now)
{
	bool is_32 = word_bytes(op) == 4;
	uint64_t value = is_32 ? op->waitValue.value : op->waitValue.value64;

	switch (op->waitValue.flags & CU_STREAM_WAIT_VALUE_NOR) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return is_32 ? (int32_t)((uint32_t)now - (uint32_t)value) >= 0
		             : (int64_t)(now - value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return now == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (now & value) != 0;
	default:
		return (is_32 ? (uint32_t) ~(now | value) : ~(now | value)) != 0;
	}
}

/* If nobody writes the word, only the loss of the context ends the wait. */
static CUresult wait_for(struct ctx *ctx, const CUstreamBatchMemOpParams *op)
{
	const struct timespec pause = {.tv_nsec = 50000};

	for (;;) {
		uint64_t now = 0;
		if (!kernel_load(ctx, op->waitValue.address, &now, word_bytes(op))) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		if (is_met(op, now) || atomic_load(&ctx->poison) != CUDA_SUCCESS) {
			return CUDA_SUCCESS;
		}
		nanosleep(&pause, NULL);
	}
}

CUresult memops_run(struct ctx *ctx, const struct memops *memops)
{
	const CUstreamBatchMemOpParams *ops = (const void *)memops->ops->data;
	size_t n = memops->ops->bytes / sizeof(ops[0]);
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; err == CUDA_SUCCESS && i < n; i++) {
		if (is_wait(&ops[i])) {
			err = wait_for(ctx, &ops[i]);
		} else if (word_bytes(&ops[i]) > 0 &&
		           !kernel_store(ctx, ops[i].writeValue.address, &ops[i].writeValue.value64,
		                         word_bytes(&ops[i]))) {
			err = CUDA_ERROR_ILLEGAL_ADDRESS;
		}
	}
	return err;
}

static CUresult submit(const CUstreamBatchMemOpParams *ops, unsigned n, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);
	struct work work = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};

	if (!s) {
		return stream_missing(handle);
	}
	/* Write access of a captured operation is checked when it runs. */
	CUresult err = fill(&work.of.memops, ops, n, capture_is_of(s));
	return err == CUDA_SUCCESS ? work_submit(s, &work) : err;
}

static CUresult submit_one(CUstreamBatchMemOpType operation, CUdeviceptr addr, uint64_t value,
                           unsigned flags, CUstream stream)
{
	CUstreamBatchMemOpParams op = {
		.waitValue = {.operation = operation, .address = addr, .flags = flags},
	};

	op.waitValue.value64 = value;
	return submit(&op, 1, stream);
}

/* The calls exist by their first names, too, which need no attribute of the device any more. */
#define BATCH(SYMBOL) \
	CUresult SYMBOL(CUstream stream, unsigned int n, CUstreamBatchMemOpParams *ops, \
	                unsigned int flags) \
	{ \
		ENTER(SYMBOL); \
		return flags == 0 ? submit(ops, n, stream) : CUDA_ERROR_INVALID_VALUE; \
	}

#define ONE(SYMBOL, VALUE, OPERATION) \
	CUresult SYMBOL(CUstream stream, CUdeviceptr addr, VALUE value, unsigned int flags) \
	{ \
		ENTER(SYMBOL); \
		return submit_one(CU_STREAM_MEM_OP_##OPERATION, addr, value, flags, stream); \
	}

BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)
ONE(cuStreamWaitValue32, cuuint32_t, WAIT_VALUE_32)
ONE(cuStreamWaitValue32_v2, cuuint32_t, WAIT_VALUE_32)
ONE(cuStreamWaitValue64, cuuint64_t, WAIT_VALUE_64)
ONE(cuStreamWaitValue64_v2, cuuint64_t, WAIT_VALUE_64)
ONE(cuStreamWriteValue32, cuuint32_t, WRITE_VALUE_32)
ONE(cuStreamWriteValue32_v2, cuuint32_t, WRITE_VALUE_32)
ONE(cuStreamWriteValue64, cuuint64_t, WRITE_VALUE_64)
ONE(cuStreamWriteValue64_v2, cuuint64_t, WRITE_VALUE_64)

/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memory is found in each form of a call that writes. */
#include <stdint.h>
#include <string.h>

#include "shim/capture.h"
#include "shim/gate.h"
#include "shim/gates.h"
#include "shim/writes.h"
#include "tests/check_glake.h"
#include "tests/unit/fake_window.h"

#define ck_none(span) ck_assert_uint_eq((span).n_bytes, 0)
#define ck_span(span, ptr_, n_bytes_) \
	do { \
		struct writes_span found_ = (span); \
		ck_assert_uint_eq(found_.ptr, (ptr_)); \
		ck_assert_uint_eq(found_.n_bytes, (n_bytes_)); \
	} while (0)

START_TEST(bytes_in_a_row)
{
	make_window();
	ck_none(writes_linear(SEALED - 8, 8));
	ck_none(writes_linear(SEALED + PAGE, 8));
	ck_none(writes_linear(SEALED, 0));
	ck_none(writes_linear(0, 100 * PAGE));
	ck_none(writes_linear(BASE + 100 * PAGE, UINT64_MAX));
	ck_span(writes_linear(SEALED - 8, 9), SEALED, 1);
	ck_span(writes_linear(SEALED + 5, 3 * PAGE), SEALED + 5, 3 * PAGE);
	/* Nonsense, which the driver refuses, is looked at in finite time. */
	ck_span(writes_linear(1, UINT64_MAX), SEALED, UINT64_MAX - (SEALED - 1));
}
END_TEST

START_TEST(rows_and_layers)
{
	make_window();
	ck_none(writes_rows(SEALED - 32, 0, 4, 8, 1));
	ck_span(writes_rows(SEALED - 32, 0, 4, 9, 1), SEALED, 4);
	ck_none(writes_rows(SEALED - 4096, 1024, 2, 512, 4));
	ck_span(writes_rows(SEALED - 4096, 1024, 2, 512, 5), SEALED, 1024);
	ck_none(writes_rows(SEALED, 1024, 1, 8, 0));
	ck_assert_uint_gt(writes_rows(SEALED, UINT64_MAX, 4, UINT64_MAX, UINT64_MAX).n_bytes, 0);

	CUDA_MEMCPY2D flat = {
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = SEALED - 4096,
		.dstXInBytes = 16,
		.dstY = 2,
		.dstPitch = 1024,
		.WidthInBytes = 64,
		.Height = 2,
	};
	ck_none(writes_copy_2d(&flat));
	ck_none(writes_copy_2d(NULL));
	flat.Height = 3;
	ck_span(writes_copy_2d(&flat), SEALED, 80);
	flat.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	ck_none(writes_copy_2d(&flat));
	/* An address of the device is an address of the host, for the driver. */
	flat.dstMemoryType = CU_MEMORYTYPE_HOST;
	ck_none(writes_copy_2d(&flat));
	flat.dstHost = (void *)(uintptr_t)(SEALED - 4096);
	ck_span(writes_copy_2d(&flat), SEALED, 80);

	CUDA_MEMCPY3D deep = {
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = SEALED - 2 * 4096,
		.dstZ = 1,
		.dstY = 1,
		.dstPitch = 1024,
		.dstHeight = 4,
		.WidthInBytes = 64,
		.Height = 3,
		.Depth = 1,
	};
	ck_none(writes_copy_3d(&deep));
	ck_none(writes_copy_3d(NULL));
	deep.Depth = 2;
	ck_span(writes_copy_3d(&deep), SEALED, 3 * 1024 + 64);
	CUDA_MEMCPY3D_PEER peer = {
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = SEALED,
		.WidthInBytes = 64,
		.Height = 1,
		.Depth = 1,
	};
	ck_span(writes_copy_peer(&peer), SEALED, 64);
	ck_none(writes_copy_peer(NULL));
}
END_TEST

START_TEST(batches)
{
	make_window();
	CUdeviceptr dsts[] = {SEALED - PAGE, SEALED + 8};
	size_t sizes[] = {PAGE, 8};
	ck_none(writes_batch(dsts, sizes, 1));
	ck_none(writes_batch(NULL, NULL, 2));
	ck_span(writes_batch(dsts, sizes, 2), SEALED + 8, 8);

	CUDA_MEMCPY3D_BATCH_OP boxes[2];
	memset(boxes, 0, sizeof(boxes));
	boxes[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	boxes[0].dst.op.ptr.ptr = SEALED - 4096;
	boxes[0].dst.op.ptr.rowLength = 1024;
	boxes[0].extent = (CUextent3D){.width = 8, .height = 4, .depth = 1};
	boxes[1] = boxes[0];
	ck_none(writes_batch_3d(boxes, 2));
	boxes[1].extent.height = 5;
	ck_span(writes_batch_3d(boxes, 2), SEALED, 8);
	/* Four rows of elements that may have 16 bytes. */
	boxes[0].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	ck_span(writes_batch_3d(boxes, 1), SEALED, 3 * 1024 * 16 + 8 * 16 - 4096);
	boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	ck_none(writes_batch_3d(boxes, 1));

	uint32_t n_done = 0;
	CUmemDecompressParams packed = {
		.dst = (void *)(uintptr_t)(SEALED - 64),
		.dstNumBytes = 64,
		.dstActBytes = &n_done,
	};
	ck_none(writes_batch_decompress(&packed, 1));
	packed.dstNumBytes = 65;
	ck_span(writes_batch_decompress(&packed, 1), SEALED, 1);
	packed.dstNumBytes = 64;
	packed.dstActBytes = (void *)(uintptr_t)SEALED;
	ck_span(writes_batch_decompress(&packed, 1), SEALED, 4);

	CUstreamBatchMemOpParams ops[2];
	memset(ops, 0, sizeof(ops));
	ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	ops[0].waitValue.address = SEALED;
	ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
	ops[1].writeValue.address = SEALED - 8;
	ck_none(writes_batch_mem_op(ops, 2));
	ops[1].writeValue.address = SEALED + 16;
	ck_span(writes_batch_mem_op(ops, 2), SEALED + 16, 8);
	ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	ck_span(writes_batch_mem_op(ops, 2), SEALED + 16, 4);
	/* These have no address. */
	ops[1].operation = CU_STREAM_MEM_OP_BARRIER;
	ck_none(writes_batch_mem_op(ops, 2));
	ops[1].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
	ck_none(writes_batch_mem_op(ops, 2));
	/* The address of an operation that is not known yet may be in any word. */
	ops[1].operation = (CUstreamBatchMemOpType)77;
	ck_span(writes_batch_mem_op(ops, 2), SEALED + 16, 8);
	ops[1].pad[1] = 1;
	ck_none(writes_batch_mem_op(ops, 2));
	ops[1].pad[4] = SEALED + 24;
	ck_span(writes_batch_mem_op(ops, 2), SEALED + 24, 8);
}
END_TEST

static unsigned n_calls;

static CUresult copy_nothing(CUdeviceptr dst, const void *src, size_t n_bytes)
{
	n_calls++;
	return CUDA_SUCCESS;
}

static CUresult no_context(CUcontext *ctx)
{
	*ctx = NULL;
	return CUDA_SUCCESS;
}

/* The thread is inside, and is about to leave for its copies. */
static CUresult end_meanwhile(CUstream stream, CUstreamCaptureStatus *status)
{
	gate.state = GATE_ASLEEP | GATE_ENDING;
	*status = (CUstreamCaptureStatus)(uintptr_t)stream;
	return CUDA_SUCCESS;
}

/* The thread does not get in again: nothing is written, and nobody is left inside. */
START_TEST(a_call_fails_if_the_program_ends_meanwhile)
{
	size_t i = 0;
	make_window();
	ck_assert_int_eq(gate_init(), 0);
	glake__sealed.base = BASE;
	glake__sealed.n_bytes = N_PAGES * PAGE;
	glake__sealed.n = 1;
	shim_real.real_cuCtxGetCurrent = no_context;
	shim_real.real_cuStreamIsCapturing = end_meanwhile;
	capture_begins((CUstream)64, 0);
	while (strcmp(gated_calls[i].symbol, "cuMemcpyHtoD_v2") != 0) {
		i++;
	}
	*gated_calls[i].real = (void *)copy_nothing;
	CUresult (*body)(CUdeviceptr dst, const void *src, size_t n_bytes) = gated_calls[i].body;
	ck_assert_int_eq((int)body(SEALED, &i, sizeof(i)), (int)CUDA_ERROR_DEINITIALIZED);
	ck_assert_uint_eq(n_calls, 0);
	ck_assert_uint_eq(gate_me->depth, 0);
}
END_TEST

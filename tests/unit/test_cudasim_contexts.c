/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: contexts that the program creates, beside the primary one. */
#include "tests/cudasim/test_work.h"

static CUcontext create(int device)
{
	CUcontext ctx = NULL;

	ck_ok(cu.CtxCreate_v4(&ctx, NULL, CU_CTX_SCHED_BLOCKING_SYNC, device));
	return ctx;
}

static CUcontext now(void)
{
	CUcontext ctx = NULL;

	ck_ok(cu.CtxGetCurrent(&ctx));
	return ctx;
}

START_TEST(a_created_context_is_current_and_goes)
{
	CUcontext primary = driver_begin("1x64MiB");
	CUcontext ctx = create(0);
	unsigned flags = 0;
	int active = 0;

	ck_assert_ptr_eq(now(), ctx);
	ck_assert_ptr_ne(ctx, primary);
	ck_ok(cu.CtxGetFlags(&flags));
	ck_assert_uint_eq(flags, CU_CTX_SCHED_BLOCKING_SYNC);
	ck_ok(cu.CtxDestroy_v2(ctx));
	ck_assert_ptr_eq(now(), primary);
	ck_cu(cu.CtxDestroy_v2(ctx), CUDA_ERROR_INVALID_CONTEXT);
	ck_cu(cu.CtxDestroy_v2(primary), CUDA_ERROR_INVALID_CONTEXT);
	ck_cu(cu.CtxSetCurrent(ctx), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.DevicePrimaryCtxGetState(0, &flags, &active));
	ck_assert_int_eq(active, 1);
	ck_cu(cu.CtxCreate_v4(&ctx, NULL, 0, 7), CUDA_ERROR_INVALID_DEVICE);
	ck_cu(cu.CtxCreate_v4(&ctx, NULL, 0x10000, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(memory_goes_with_its_context)
{
	CUcontext primary = driver_begin("1x64MiB");
	CUdeviceptr of_primary = alloc(2 * GRANULE);
	CUcontext ctx = create(0), owner = NULL;
	CUdeviceptr ptr = alloc(4 * GRANULE);

	ck_ok(cu.PointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
	ck_assert_ptr_eq(owner, ctx);
	ck_ok(cu.MemsetD8_v2(of_primary, 1, 4)); /* addresses are the process's */
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxDestroy_v2(ctx));
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
	ck_assert_uint_eq(read_u32(of_primary), 0x01010101);
	ctx = create(0);
	ptr = alloc(GRANULE);
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.MemsetD8_v2(ptr, 1, 4));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxSetCurrent(primary));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

START_TEST(streams_are_of_their_context)
{
	CUcontext primary = driver_begin("1x64MiB");
	CUstream before = stream_new(0);
	CUcontext ctx = create(0), owner = NULL;
	struct gate gate;
	CUstream stream = stream_new(0);
	CUdeviceptr ptr = alloc(4);

	ck_ok(cu.StreamGetCtx(stream, &owner));
	ck_assert_ptr_eq(owner, ctx);
	ck_ok(cu.StreamGetCtx(before, &owner));
	ck_assert_ptr_eq(owner, primary);
	/* Each context has a default stream of its own, and waits for its own streams. */
	gate_close(&gate, before);
	ck_ok(cu.MemsetD8_v2(ptr, 1, 4));
	ck_ok(cu.StreamSynchronize(NULL));
	ck_ok(cu.CtxSynchronize());
	gate_open(&gate);
	ck_ok(cu.CtxSetCurrent(primary));
	ck_ok(cu.CtxSynchronize());
}
END_TEST

START_TEST(all_contexts_of_the_device_are_lost)
{
	CUcontext primary = driver_begin("2x64MiB");
	CUcontext other = create(1);
	CUcontext ctx = create(0);

	ck_ok(launch_fill(reserve(GRANULE), 4, 1, NULL));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_ok(cu.CtxDestroy_v2(ctx));
	ck_assert_ptr_eq(now(), other);
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxSetCurrent(primary));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

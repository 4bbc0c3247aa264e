/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: green contexts, and the multiprocessors that they are made of. */
#include "tests/cudasim/test_work.h"

static CUdevResource whole(CUdevice device)
{
	CUdevResource resource;
	ck_ok(cu.DeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
	return resource;
}

static CUdevResourceDesc describe(CUdevice device)
{
	CUdevResource resource = whole(device);
	CUdevResourceDesc desc;
	ck_ok(cu.DevResourceGenerateDesc(&desc, &resource, 1));
	return desc;
}

static CUgreenCtx green_new(CUdevice device)
{
	CUgreenCtx green = NULL;
	ck_ok(cu.GreenCtxCreate(&green, describe(device), device, CU_GREEN_CTX_DEFAULT_STREAM));
	return green;
}

static CUcontext context_of(CUgreenCtx green)
{
	CUcontext ctx = NULL;
	ck_ok(cu.CtxFromGreenCtx(&ctx, green));
	return ctx;
}

static CUstream green_stream(CUgreenCtx green)
{
	CUstream stream = NULL;
	ck_ok(cu.GreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

static bool is_active(CUdevice device)
{
	unsigned flags;
	int active;
	ck_ok(cu.DevicePrimaryCtxGetState(device, &flags, &active));
	return active;
}

START_TEST(multiprocessors_are_split_by_rule)
{
	CUdevResource groups[4];
	CUdevResource rest;
	CUdevResourceDesc desc;
	unsigned n = 4;
	driver_begin("2x64MiB");
	CUdevResource all = whole(0);
	CUdevResource others = whole(1);
	ck_assert_uint_eq(all.sm.smCount, 132);
	ck_cu(cu.DeviceGetDevResource(0, &rest, CU_DEV_RESOURCE_TYPE_INVALID),
	      CUDA_ERROR_INVALID_RESOURCE_TYPE);
	ck_cu(cu.DeviceGetDevResource(2, &rest, CU_DEV_RESOURCE_TYPE_SM),
	      CUDA_ERROR_INVALID_DEVICE);
	ck_ok(cu.DevSmResourceSplitByCount(groups, &n, &all, &rest, 0, 17));
	ck_assert_uint_eq(n, 4);
	ck_assert_uint_eq(groups[3].sm.smCount, 24);
	ck_assert_uint_eq(rest.sm.smCount, 36);
	ck_ok(cu.DevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 0));
	ck_assert_uint_eq(n, 15);
	ck_cu(cu.DevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 133), CUDA_ERROR_INVALID_VALUE);
	/* Groups that came of a split are not split again, and go together with their like only. */
	ck_cu(cu.DevSmResourceSplitByCount(NULL, &n, groups, NULL, 0, 0),
	      CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	ck_ok(cu.DevResourceGenerateDesc(&desc, groups, 2));
	groups[1] = all;
	ck_cu(cu.DevResourceGenerateDesc(&desc, groups, 2),
	      CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	groups[0] = others;
	ck_cu(cu.DevResourceGenerateDesc(&desc, groups, 2),
	      CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	groups[0].type = CU_DEV_RESOURCE_TYPE_INVALID;
	ck_cu(cu.DevResourceGenerateDesc(&desc, groups, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
	ck_cu(cu.DevResourceGenerateDesc(&desc, groups, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(what_is_required_is_asked_for)
{
	CUgreenCtx green;
	CUcontext ctx;
	CUstream stream;
	driver_begin("2x64MiB");
	CUdevResourceDesc desc = describe(0);
	ck_cu(cu.GreenCtxCreate(&green, desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.GreenCtxCreate(&green, NULL, 0, 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.GreenCtxCreate(&green, desc, 1, 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.GreenCtxCreate(&green, desc, 2, 1), CUDA_ERROR_INVALID_DEVICE);
	ck_assert(!is_active(1));
	green = green_new(0);
	ck_cu(cu.GreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0),
	      CUDA_ERROR_INVALID_VALUE);
	ck_assert_ptr_eq(context_of(green), (CUcontext)green);
	ck_cu(cu.CtxFromGreenCtx(&ctx, NULL), CUDA_ERROR_INVALID_CONTEXT);
	ck_cu(cu.GreenCtxDestroy((CUgreenCtx)&green), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.GreenCtxDestroy(green));
	ck_cu(cu.GreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
	ck_assert_ptr_ne(green_new(0), green);
}
END_TEST

START_TEST(one_retains_the_primary_context)
{
	driver_setup("1x64MiB");
	ck_ok(cu.Init(0));
	CUgreenCtx a = green_new(0);
	CUgreenCtx b = green_new(0);
	ck_ok(cu.CtxSetCurrent(context_of(a)));
	CUdeviceptr ptr = alloc(GRANULE);
	uint32_t value = 7;
	ck_ok(cu.MemcpyHtoD_v2(ptr, &value, sizeof(value)));
	ck_ok(cu.CtxSetCurrent(context_of(b)));
	ck_ok(cu.GreenCtxDestroy(a));
	ck_assert(is_active(0));
	ck_assert_uint_eq(read_u32(ptr), 7);
	CUcontext owner;
	CUcontext primary;
	ck_ok(cu.PointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
	ck_ok(cu.DevicePrimaryCtxRetain(&primary, 0));
	ck_assert_ptr_eq(owner, primary);
	ck_ok(cu.DevicePrimaryCtxRelease_v2(0));
	ck_ok(cu.GreenCtxDestroy(b));
	ck_assert(!is_active(0));
	ck_cu(cu.MemFree_v2(ptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	driver_start();
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(streams_are_of_one)
{
	CUcontext ctx;
	CUgreenCtx found;
	unsigned long long ids[2];
	CUcontext primary = driver_begin("1x64MiB");
	CUgreenCtx green = green_new(0);
	CUstream made = green_stream(green);
	ck_ok(cu.StreamGetId(NULL, &ids[0]));
	ck_ok(cu.StreamGetGreenCtx(NULL, &found));
	ck_assert_ptr_null(found);
	ck_ok(cu.CtxPushCurrent_v2(context_of(green)));
	ck_ok(cu.CtxGetCurrent(&ctx));
	ck_assert_ptr_eq(ctx, context_of(green));
	ck_ok(cu.StreamGetId(NULL, &ids[1]));
	ck_assert_uint_ne(ids[0], ids[1]);
	CUstream streams[3] = {made, stream_new(CU_STREAM_NON_BLOCKING), NULL};
	for (int i = 0; i < 3; i++) {
		ck_ok(cu.StreamGetCtx(streams[i], &ctx));
		ck_assert_ptr_eq(ctx, context_of(green));
		ck_ok(cu.StreamGetCtx_v2(streams[i], &ctx, &found));
		ck_assert_ptr_eq(ctx, primary);
		ck_assert_ptr_eq(found, green);
		ck_ok(cu.StreamGetGreenCtx(streams[i], &found));
		ck_assert_ptr_eq(found, green);
	}
	ck_cu(cu.StreamGetCtx_v2(CU_STREAM_PER_THREAD, &ctx, &found), CUDA_ERROR_INVALID_HANDLE);
	ck_ok(cu.CtxPopCurrent_v2(&ctx));
	ck_assert_ptr_eq(ctx, context_of(green));
	ck_ok(cu.StreamDestroy_v2(made));
	/* Nobody can use or destroy the other any more. */
	ck_ok(cu.GreenCtxDestroy(green));
	ck_cu(cu.StreamSynchronize(streams[1]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.StreamGetId(streams[1], &ids[0]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.StreamDestroy_v2(streams[1]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.StreamDestroy_v2(streams[1]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

static unsigned n_run;

static void CUDA_CB run_slowly(void *user)
{
	(void)user;
	usleep(10000);
	__atomic_add_fetch(&n_run, 1, __ATOMIC_SEQ_CST);
}

static void be_slow(CUstream stream)
{
	ck_ok(cu.LaunchHostFunc(stream, run_slowly, NULL));
}

static unsigned n_done(void)
{
	return __atomic_load_n(&n_run, __ATOMIC_SEQ_CST);
}

START_TEST(the_primary_waits_for_all_and_one_for_itself)
{
	struct gate gate;
	CUcontext primary = driver_begin("1x64MiB");
	CUgreenCtx a = green_new(0);
	CUgreenCtx b = green_new(0);
	CUstream stream = green_stream(b);
	ck_ok(cu.CtxSetCurrent(context_of(a)));
	CUdeviceptr ptr = alloc(GRANULE);
	gate_close(&gate, stream);
	be_slow(NULL);
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(n_done(), 1);
	gate_open(&gate);
	be_slow(stream);
	ck_ok(cu.MemFree_v2(ptr));
	ck_assert_uint_eq(n_done(), 2);
	/* Default streams know nothing of each other. */
	gate_close(&gate, NULL);
	ck_ok(cu.CtxSetCurrent(primary));
	ck_ok(cu.StreamSynchronize(NULL));
	gate_open(&gate);
	be_slow(stream);
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(n_done(), 3);
	ck_ok(cu.GreenCtxDestroy(a));
	ck_ok(cu.GreenCtxDestroy(b));
}
END_TEST

/* One of the green context's two streams waits for the other. */
START_TEST(its_end_waits_for_nothing)
{
	struct gate gate;
	CUevent events[2];
	CUstream blocking = NULL;
	CUcontext primary = driver_begin("1x64MiB");
	CUgreenCtx green = green_new(0);
	ck_ok(cu.EventCreate(&events[0], CU_EVENT_DISABLE_TIMING));
	ck_ok(cu.CtxSetCurrent(context_of(green)));
	ck_ok(cu.EventCreate(&events[1], CU_EVENT_DISABLE_TIMING));
	ck_ok(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
	gate_close(&gate, NULL);
	be_slow(NULL);
	be_slow(blocking);
	ck_ok(cu.EventRecord(events[0], blocking));
	ck_ok(cu.EventRecord(events[1], NULL));
	ck_ok(cu.CtxSetCurrent(primary));
	ck_ok(cu.GreenCtxDestroy(green));
	ck_cu(cu.EventQuery(events[0]), CUDA_ERROR_NOT_READY);
	ck_cu(cu.EventQuery(events[1]), CUDA_ERROR_NOT_READY);
	usleep(20000);
	ck_assert_uint_eq(n_done(), 0);
	gate_open(&gate);
	ck_ok(cu.EventSynchronize(events[0]));
	ck_assert_uint_eq(n_done(), 2);
	ck_ok(cu.CtxSynchronize());
	for (int i = 0; i < 2; i++) {
		ck_ok(cu.EventQuery(events[i]));
		ck_ok(cu.EventRecord(events[i], NULL));
		ck_ok(cu.EventDestroy_v2(events[i]));
	}
}
END_TEST

/* Where it is current, too. */
START_TEST(one_that_has_ended_is_of_no_use)
{
	CUcontext ctx;
	CUdevice device;
	CUdeviceptr ptr;
	driver_begin("2x64MiB");
	CUgreenCtx green = green_new(1);
	ck_ok(cu.CtxSetCurrent(context_of(green)));
	ck_ok(cu.GreenCtxDestroy(green));
	ck_ok(cu.CtxGetCurrent(&ctx));
	ck_assert_ptr_eq(ctx, (CUcontext)green);
	ck_ok(cu.CtxGetDevice(&device));
	ck_assert_int_eq(device, 1);
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.MemAlloc_v2(&ptr, 1000), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.MemAllocAsync(&ptr, 1000, NULL), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.CtxFromGreenCtx(&ctx, green), CUDA_ERROR_INVALID_CONTEXT);
	ck_cu(cu.CtxSetCurrent((CUcontext)green), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.CtxPopCurrent_v2(&ctx));
	ck_assert_ptr_eq(ctx, (CUcontext)green);
}
END_TEST

START_TEST(the_primary_of_one_is_not_reset)
{
	CUcontext primary = driver_begin("1x64MiB");
	CUgreenCtx green = green_new(0);
	ck_ok(cu.CtxSetCurrent(context_of(green)));
	CUdeviceptr ptr = alloc(GRANULE);
	ck_cu(cu.DevicePrimaryCtxReset_v2(0), CUDA_ERROR_NOT_PERMITTED);
	ck_assert(is_active(0));
	ck_ok(cu.MemFree_v2(ptr));
	ck_ok(cu.MemFree_v2(alloc(GRANULE)));
	ck_ok(cu.CtxSetCurrent(primary));
	ck_ok(cu.MemFree_v2(alloc(GRANULE)));
	/* The green context alone releases what it retains. */
	ck_ok(cu.DevicePrimaryCtxRelease_v2(0));
	ck_cu(cu.DevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	ck_assert(is_active(0));
	ck_ok(cu.GreenCtxDestroy(green));
	ck_assert(!is_active(0));
	driver_start();
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	ck_assert(!is_active(0));
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of a program wait while it is asleep, and which go on: with the shim in this program, no glaked, and nothing
 * that is really elsewhere.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

#include "proto/cleanup.h"
#include "shim/gate.h"
#include "tests/check_glake.h"
#include "tests/unit/drained.h"

static CUcontext ctx;
static CUdeviceptr ptr;
static CUstream stream;
static CUevent event;
static CUmodule module;
static CUfunction spin;
static CUgraph graph;
static CUgraphNode node;
static CUmemGenericAllocationHandle handle;
static CUmemoryPool pool;
static CUdeviceptr reserved;
static const CUmemAllocationProp on_device = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};
static const CUmemAccessDesc to_device = {
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static void begin_all(void)
{
	const CUmemPoolProps in_pool = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	ctx = begin();
	spin = kernel("spin");
	stream = new_stream();
	ck_ok(cuMemAlloc(&ptr, 2 * MIB));
	ck_ok(cuEventCreate(&event, 0));
	ck_ok(cuGraphCreate(&graph, 0));
	ck_ok(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
	ck_ok(cuMemPoolCreate(&pool, &in_pool));
	ck_ok(cuMemAddressReserve(&reserved, 2 * MIB, 0, 0, 0));
	words[FLAG] = 1;
}

/* ---- those that wait -------------------------------------------------------------------------- */

static CUresult alloc(void)
{
	return cuMemAlloc(&(CUdeviceptr){0}, 4096);
}

static CUresult alloc_pitch(void)
{
	return cuMemAllocPitch(&(CUdeviceptr){0}, &(size_t){0}, 100, 100, 4);
}

static CUresult alloc_managed(void)
{
	return cuMemAllocManaged(&(CUdeviceptr){0}, 4096, CU_MEM_ATTACH_GLOBAL);
}

static CUresult alloc_async(void)
{
	return cuMemAllocAsync(&(CUdeviceptr){0}, 4096, stream);
}

static CUresult alloc_from_pool(void)
{
	return cuMemAllocFromPoolAsync(&(CUdeviceptr){0}, 4096, pool, stream);
}

static CUresult free_it(void)
{
	return cuMemFree(ptr);
}

static CUresult free_async(void)
{
	return cuMemFreeAsync(ptr, stream);
}

static CUresult trim_pool(void)
{
	return cuMemPoolTrimTo(pool, 0);
}

static CUresult make_chunk(void)
{
	return cuMemCreate(&(CUmemGenericAllocationHandle){0}, 2 * MIB, &on_device, 0);
}

static CUresult map_chunk(void)
{
	CUresult result = cuMemMap(reserved, 2 * MIB, 0, handle, 0);
	return result == CUDA_SUCCESS ? cuMemSetAccess(reserved, 2 * MIB, &to_device, 1) : result;
}

static CUresult release_chunk(void)
{
	return cuMemRelease(handle);
}

static CUresult name_by_ipc(void)
{
	return cuIpcGetMemHandle(&(CUipcMemHandle){0}, ptr);
}

static CUresult make_context(void)
{
	return cuCtxCreate_v2(&(CUcontext){0}, 0, 0);
}

static CUresult release_context(void)
{
	return cuDevicePrimaryCtxRelease(0);
}

static CUresult load_module(void)
{
	return cuModuleLoadData(&module, spin_image_of(cuDeviceGetName));
}

static CUresult make_array(void)
{
	const CUDA_ARRAY_DESCRIPTOR descriptor = {
		.Width = 64,
		.Height = 64,
		.Format = CU_AD_FORMAT_UNSIGNED_INT8,
		.NumChannels = 1,
	};
	return cuArrayCreate(&(CUarray){0}, &descriptor);
}

static CUresult add_node(void)
{
	const CUDA_MEMSET_NODE_PARAMS params = {
		.dst = ptr,
		.elementSize = 1,
		.width = 16,
		.height = 1,
	};
	return cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, ctx);
}

static CUresult make_executable(void)
{
	return cuGraphInstantiate(&(CUgraphExec){0}, graph, 0);
}

static CUresult launch(void)
{
	return launch_spin(spin, stream, FLAG, DONE);
}

static CUresult copy(void)
{
	return cuMemcpyDtoH(&(uint32_t){0}, ptr, 4);
}

static CUresult set(void)
{
	return cuMemsetD8(ptr, 0, 16);
}

static CUresult capture(void)
{
	CUgraph captured;
	CUresult result = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	return result == CUDA_SUCCESS ? cuStreamEndCapture(stream, &captured) : result;
}

static CUresult (*const waiting[])(void) = {
	alloc,
	alloc_pitch,
	alloc_managed,
	alloc_async,
	alloc_from_pool,
	trim_pool,
	make_chunk,
	map_chunk,
	name_by_ipc,
	make_context,
	load_module,
	make_array,
	add_node,
	make_executable,
	launch,
	copy,
	set,
	capture,
	release_chunk,
	free_it,
	free_async,
	release_context,
};

struct caller {
	pthread_t thread;
	CUresult (*call)(void);
	_Atomic CUresult result;
	atomic_bool is_back;
};

static void *make_call(void *argument)
{
	struct caller *caller = argument;
	cuCtxSetCurrent(ctx);
	caller->result = caller->call();
	caller->is_back = true;
	return NULL;
}

static void caller_start(struct caller *caller, CUresult (*call)(void))
{
	*caller = (struct caller){.call = call};
	ck_assert_int_eq(pthread_create(&caller->thread, NULL, make_call, caller), 0);
}

static CUresult caller_end(struct caller *caller)
{
	pthread_join(caller->thread, NULL);
	return caller->result;
}

START_TEST_WITH(what_uses_memory_wants_it_back, .n = n_elements(waiting))
{
	struct caller caller;
	begin_all();
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	caller_start(&caller, waiting[_i]);
	while (!gate_is_wanted()) {
		ck_assert(!caller.is_back);
		usleep(100);
	}
	usleep(2000);
	ck_assert(!caller.is_back);
	gate_wake();
	CUresult result = caller_end(&caller);
	/* The memory is cuMemAlloc()'s: the driver may refuse to free it in the order of a stream. */
	ck_assert_int_eq(result, waiting[_i] == free_async ? result : CUDA_SUCCESS);
	ck_assert(!gate_is_wanted());
}
END_TEST

START_TEST_WITH(what_uses_memory_fails_when_the_program_ends, .n = n_elements(waiting))
{
	begin_all();
	gate.state |= GATE_ASLEEP | GATE_ENDING;
	ck_assert_int_eq((int)waiting[_i](), (int)CUDA_ERROR_DEINITIALIZED);
	gate_wake();
}
END_TEST

/* ---- those that go on ------------------------------------------------------------------------- */

/* Whoever looks after a program asks these again and again. */
START_TEST(questions_and_waits_wake_nobody)
{
	size_t n_free;
	size_t n_total;
	unsigned type = 0;
	unsigned ordinal = 7;
	CUdeviceptr base;
	void *host;
	CUstream another;
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *answers[] = {&type, &ordinal};
	begin_all();
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	ck_ok(cuMemGetInfo(&n_free, &n_total));
	ck_ok(cuDeviceTotalMem(&n_total, 0));
	ck_ok(cuMemGetAddressRange(&base, &n_total, ptr + 10));
	ck_ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
	ck_ok(cuPointerGetAttributes(2, attributes, answers, ptr));
	ck_assert_uint_eq(ordinal, 0);
	ck_ok(cuCtxSynchronize());
	ck_ok(cuStreamSynchronize(stream));
	ck_ok(cuStreamQuery(stream));
	ck_ok(cuEventRecord(event, stream));
	ck_ok(cuEventSynchronize(event));
	ck_ok(cuEventQuery(event));
	ck_ok(cuStreamWaitEvent(stream, event, 0));
	ck_ok(cuStreamCreate(&another, 0));
	ck_ok(cuStreamDestroy(another));
	ck_ok(cuEventDestroy(event));
	ck_ok(cuMemHostAlloc(&host, 4096, 0));
	ck_ok(cuMemFreeHost(host));
	ck_assert(!gate_is_wanted());
	gate_wake();
}
END_TEST

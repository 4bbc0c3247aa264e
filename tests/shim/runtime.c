/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that calls the driver as the CUDA 13 runtime does for cudaMalloc, cudaMallocAsync,
 * cudaMallocHost, cudaMemcpy*, cudaMemset*, streams, events and pools: the same names and versions,
 * all by cuGetProcAddress. It prints what memory holds in the end.
 *
 * It stands in for the runtime itself, which asks the driver for a proof of being NVIDIA's
 * (cudaErrorSoftwareValidityNotEstablished) that cudasim does not give.
 *
 *   runtime [own]      own: as built for default streams by thread
 */
#include <stdbool.h>
#include <string.h>

#include "tests/shim/compared.h"
#include "tests/shim/device.h"

#define CALLS(CALL) \
	CALL(cuMemAlloc_v2, "cuMemAlloc", 3020) \
	CALL(cuMemFree_v2, "cuMemFree", 3020) \
	CALL(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020) \
	CALL(cuMemHostAlloc, "cuMemHostAlloc", 2020) \
	CALL(cuMemFreeHost, "cuMemFreeHost", 2000) \
	CALL(cuMemAllocAsync, "cuMemAllocAsync", 11020) \
	CALL(cuMemFreeAsync, "cuMemFreeAsync", 11020) \
	CALL(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020) \
	CALL(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020) \
	CALL(cuMemcpyAsync, "cuMemcpyAsync", 4000) \
	CALL(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020) \
	CALL(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020) \
	CALL(cuMemcpy3D_v2, "cuMemcpy3D", 3020) \
	CALL(cuMemsetD8_v2, "cuMemsetD8", 3020) \
	CALL(cuMemsetD8Async, "cuMemsetD8Async", 3020) \
	CALL(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020) \
	CALL(cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020) \
	CALL(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050) \
	CALL(cuStreamGetFlags, "cuStreamGetFlags", 5050) \
	CALL(cuStreamGetPriority, "cuStreamGetPriority", 5050) \
	CALL(cuStreamGetDevice, "cuStreamGetDevice", 12080) \
	CALL(cuStreamSynchronize, "cuStreamSynchronize", 2000) \
	CALL(cuStreamWaitEvent, "cuStreamWaitEvent", 3020) \
	CALL(cuStreamAddCallback, "cuStreamAddCallback", 5000) \
	CALL(cuStreamDestroy_v2, "cuStreamDestroy", 4000) \
	CALL(cuEventCreate, "cuEventCreate", 2000) \
	CALL(cuEventRecordWithFlags, "cuEventRecordWithFlags", 11010) \
	CALL(cuEventSynchronize, "cuEventSynchronize", 2000) \
	CALL(cuEventDestroy_v2, "cuEventDestroy", 4000) \
	CALL(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000) \
	CALL(cuMemGetMemPool, "cuMemGetMemPool", 13000) \
	CALL(cuMemPoolGetAccess, "cuMemPoolGetAccess", 11020) \
	CALL(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020) \
	CALL(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020) \
	CALL(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020) \
	CALL(cuCtxCreate_v4, "cuCtxCreate", 13000) \
	CALL(cuCtxDestroy_v2, "cuCtxDestroy", 4000) \
	CALL(cuCtxGetFlags, "cuCtxGetFlags", 7000) \
	CALL(cuCtxGetLimit, "cuCtxGetLimit", 3010)

#define CALL(symbol, name, version) static __typeof__(symbol) *call_##symbol;
CALLS(CALL)
#undef CALL

static void load(bool is_own)
{
	cuuint64_t flags = is_own ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;

#define CALL(symbol, name, version) \
	must_ok(cuGetProcAddress(name, (void **)&call_##symbol, version, flags, NULL)); \
	must(call_##symbol);
	CALLS(CALL)
#undef CALL
}

static CUstream stream;

static void use_memory(void)
{
	CUdeviceptr ptr;
	uint8_t *pinned;
	uint8_t host[256];
	must_ok(call_cuMemAlloc_v2(&ptr, 3 * MIB));
	must_ok(call_cuMemHostAlloc((void **)&pinned, MIB, 0));
	memset(pinned, 7, MIB);
	must_ok(call_cuMemsetD8_v2(ptr, 0x11, 3 * MIB));
	must_ok(call_cuMemcpyDtoH_v2(host, ptr + 1000, sizeof(host)));
	must(host[0] == 0x11 && host[255] == 0x11);
	must_ok(call_cuMemcpyHtoD_v2(ptr + 100, "cuda", 5));
	must_ok(call_cuMemcpyAsync(ptr + MIB, (uintptr_t)pinned, MIB, stream));
	must_ok(call_cuMemcpyAsync(ptr + 2 * MIB, ptr, MIB, stream));
	must_ok(call_cuStreamSynchronize(stream));
	print("memory", digest(ptr, 3 * MIB));
	must_ok(call_cuMemFreeHost(pinned));
	must_ok(call_cuMemFree_v2(ptr));
}

static void use_planes(void)
{
	CUdeviceptr ptr;
	size_t pitch = 0;
	uint8_t host[10][100];
	must_ok(call_cuMemAllocPitch_v2(&ptr, &pitch, 100, 10, 4));
	must_ok(call_cuMemsetD8_v2(ptr, 0, pitch * 10));
	must_ok(call_cuMemsetD2D8_v2(ptr, pitch, 5, 100, 10));
	must_ok(call_cuMemsetD2D32Async(ptr, pitch, 0x01020304, 10, 5, stream));
	must_ok(call_cuStreamSynchronize(stream));
	CUDA_MEMCPY2D plane = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = ptr,
		.srcPitch = pitch,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = host,
		.dstPitch = 100,
		.WidthInBytes = 100,
		.Height = 10,
	};
	must_ok(call_cuMemcpy2DUnaligned_v2(&plane));
	must(host[0][0] == 4 && host[9][99] == 5);
	plane.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
	plane.dstDevice = ptr + 3;
	plane.dstPitch = pitch;
	plane.WidthInBytes = 3;
	must_ok(call_cuMemcpy2DAsync_v2(&plane, stream));
	must_ok(call_cuStreamSynchronize(stream));
	CUDA_MEMCPY3D box = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = ptr,
		.srcPitch = pitch,
		.srcHeight = 5,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = ptr + 200,
		.dstPitch = pitch,
		.dstHeight = 5,
		.WidthInBytes = 50,
		.Height = 2,
		.Depth = 2,
	};
	must_ok(call_cuMemcpy3D_v2(&box));
	print("planes", digest(ptr, pitch * 10));
	must_ok(call_cuMemFree_v2(ptr));
}

static void CUDA_CB count_up(CUstream unused, CUresult status, void *data)
{
	(void)unused;
	*(int *)data += status == CUDA_SUCCESS;
}

static void use_streams(void)
{
	CUdeviceptr a;
	CUdeviceptr b;
	CUstream other;
	CUevent event;
	unsigned flags = 9;
	int priority = 9;
	CUdevice device = -1;
	int n_called = 0;
	must_ok(call_cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -1));
	must_ok(call_cuStreamGetFlags(other, &flags));
	must_ok(call_cuStreamGetPriority(other, &priority));
	must_ok(call_cuStreamGetDevice(other, &device));
	must(flags == CU_STREAM_NON_BLOCKING && priority == -1 && device == 0);
	must_ok(call_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	must_ok(call_cuMemAllocAsync(&a, 5 * MIB, stream));
	must_ok(call_cuMemsetD8Async(a, 3, 5 * MIB, stream));
	must_ok(call_cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT));
	must_ok(call_cuStreamWaitEvent(other, event, 0));
	must_ok(call_cuMemAllocAsync(&b, 5 * MIB, other));
	must_ok(call_cuMemcpyAsync(b, a, 5 * MIB, other));
	must_ok(call_cuStreamAddCallback(other, count_up, &n_called, 0));
	must_ok(call_cuEventRecordWithFlags(event, other, CU_EVENT_RECORD_DEFAULT));
	must_ok(call_cuEventSynchronize(event));
	must(n_called == 1);
	print("async", digest(b, 5 * MIB));
	must_ok(call_cuMemFreeAsync(a, other));
	must_ok(call_cuMemFreeAsync(b, other));
	must_ok(call_cuStreamSynchronize(other));
	must_ok(call_cuEventDestroy_v2(event));
	must_ok(call_cuStreamDestroy_v2(other));
}

static void use_pools(void)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	CUmemoryPool standard;
	CUmemoryPool now;
	CUmemAccess_flags access = 0;
	cuuint64_t threshold = 64 * MIB;
	cuuint64_t used = 1;
	must_ok(call_cuMemGetDefaultMemPool(&standard, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
	must_ok(call_cuMemGetMemPool(&now, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
	must(standard == now);
	must_ok(call_cuMemPoolGetAccess(&access, standard, &location));
	must(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	must_ok(call_cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
	                                   &threshold));
	for (unsigned i = 0; i < 10; i++) {
		CUdeviceptr ptr;
		must_ok(call_cuMemAllocAsync(&ptr, (1 + i) * MIB, stream));
		must_ok(call_cuMemsetD8Async(ptr, (unsigned char)i, (1 + i) * MIB, stream));
		must_ok(call_cuMemFreeAsync(ptr, stream));
	}
	must_ok(call_cuStreamSynchronize(stream));
	must_ok(call_cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	must_ok(call_cuMemPoolTrimTo(standard, 0));
	print("pool", used);
}

static void use_context(CUcontext primary)
{
	CUcontext ctx;
	CUcontext now;
	CUdeviceptr ptr;
	unsigned flags = 0;
	size_t limit = 0;
	must_ok(call_cuCtxCreate_v4(&ctx, NULL, CU_CTX_SCHED_YIELD, 0));
	must_ok(call_cuCtxGetFlags(&flags));
	must_ok(call_cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	must(flags == CU_CTX_SCHED_YIELD && limit > 0);
	must_ok(call_cuMemAlloc_v2(&ptr, 5 * MIB));
	must_ok(call_cuMemsetD8_v2(ptr, 6, 5 * MIB));
	print("created", digest(ptr, 5 * MIB));
	must_ok(call_cuCtxDestroy_v2(ctx));
	must_ok(cuCtxGetCurrent(&now));
	must(now == primary);
}

int main(int argc, char **argv)
{
	CUcontext ctx;
	must_ok(cuInit(0));
	load(argc > 1 && strcmp(argv[1], "own") == 0);
	ctx = use_device(0);
	must_ok(call_cuStreamCreateWithPriority(&stream, 0, 0));
	use_memory();
	use_planes();
	use_streams();
	use_pools();
	use_context(ctx);
	must_ok(call_cuStreamDestroy_v2(stream));
	stream = NULL;
	use_memory();
	use_planes();
	note_counts();
	return 0;
}

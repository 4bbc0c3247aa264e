/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the driver API, linked against the driver as such programs are: every family of
 * calls that makes memory, kernels from PTX, a second process.
 *
 *   driver_api [PART...]     memory, async, pools, vmm, places, peers, ipc, graphs, pins (shim only); without a PART, all of them
 *   driver_api open HANDLE   the second process: what it gets from the first
 *
 * It prints what it computed, and what the driver answered to what is wrong: the same with the shim
 * and without. Built with CUDA_API_PER_THREAD_DEFAULT_STREAM it uses the other entries of the
 * driver, _ptsz and _ptds. What the shim counted, if it is there, is added to the file that
 * $SHIM_COUNTS names.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/compared.h"
#include "tests/shim/device.h"

#define N_THREADS 4

/* The simulator has these two by name, and does what they do. */
static const char ptx[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	/* All bytes of a range to one value. */
	".visible .entry cudasim_fill(.param .u64 base, .param .u64 n_bytes, .param .u32 value)\n"
	"{\n"
	"	.reg .pred %p;\n	.reg .b32 %r<6>;\n	.reg .b64 %d<6>;\n"
	"	ld.param.u64 %d0, [base];\n"
	"	cvta.to.global.u64 %d0, %d0;\n"
	"	ld.param.u64 %d1, [n_bytes];\n"
	"	ld.param.u32 %r0, [value];\n"
	"	mov.u32 %r1, %ctaid.x;\n	mov.u32 %r2, %ntid.x;\n	mov.u32 %r3, %tid.x;\n"
	"	mov.u32 %r4, %nctaid.x;\n"
	"	mul.wide.u32 %d2, %r1, %r2;\n"
	"	cvt.u64.u32 %d3, %r3;\n"
	"	add.u64 %d2, %d2, %d3;\n"
	"	mul.wide.u32 %d4, %r4, %r2;\n"
	"next:\n"
	"	setp.ge.u64 %p, %d2, %d1;\n"
	"	@%p ret;\n"
	"	add.u64 %d5, %d0, %d2;\n"
	"	st.global.u8 [%d5], %r0;\n"
	"	add.u64 %d2, %d2, %d4;\n"
	"	bra next;\n"
	"}\n"
	/* The sum of all bytes of a range, added to *out. */
	".visible .entry cudasim_sum(.param .u64 base, .param .u64 n_bytes, .param .u64 out)\n"
	"{\n"
	"	.reg .pred %p;\n	.reg .b32 %r<6>;\n	.reg .b64 %d<8>;\n"
	"	ld.param.u64 %d0, [base];\n"
	"	cvta.to.global.u64 %d0, %d0;\n"
	"	ld.param.u64 %d1, [n_bytes];\n"
	"	ld.param.u64 %d6, [out];\n"
	"	cvta.to.global.u64 %d6, %d6;\n"
	"	mov.u32 %r1, %ctaid.x;\n	mov.u32 %r2, %ntid.x;\n	mov.u32 %r3, %tid.x;\n"
	"	mov.u32 %r4, %nctaid.x;\n"
	"	mul.wide.u32 %d2, %r1, %r2;\n"
	"	cvt.u64.u32 %d3, %r3;\n"
	"	add.u64 %d2, %d2, %d3;\n"
	"	mul.wide.u32 %d4, %r4, %r2;\n"
	"	mov.u64 %d7, 0;\n"
	"next:\n"
	"	setp.ge.u64 %p, %d2, %d1;\n"
	"	@%p bra done;\n"
	"	add.u64 %d5, %d0, %d2;\n"
	"	ld.global.u8 %d3, [%d5];\n"
	"	add.u64 %d7, %d7, %d3;\n"
	"	add.u64 %d2, %d2, %d4;\n"
	"	bra next;\n"
	"done:\n"
	"	red.global.add.u64 [%d6], %d7;\n"
	"	ret;\n"
	"}\n";

static CUcontext contexts[2];
static CUmodule modules[2];
static CUfunction fills[2];
static CUfunction sums[2];

/* ---- help ---- */

static void start_device(int device)
{
	contexts[device] = use_device(device);
	must_ok(cuModuleLoadData(&modules[device], ptx));
	must_ok(cuModuleGetFunction(&fills[device], modules[device], "cudasim_fill"));
	must_ok(cuModuleGetFunction(&sums[device], modules[device], "cudasim_sum"));
}

static void stop_device(int device)
{
	if (modules[device]) {
		must_ok(cuCtxSetCurrent(contexts[device]));
		must_ok(cuModuleUnload(modules[device]));
		must_ok(cuDevicePrimaryCtxRelease(device));
	}
}

static void launch(CUfunction function, CUstream stream, void **parameters)
{
	must_ok(cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static void fill_on(int device, CUstream stream, CUdeviceptr ptr, uint64_t n_bytes, unsigned value)
{
	launch(fills[device], stream, (void *[]){&ptr, &n_bytes, &value});
}

/* Waits for the stream. */
static uint64_t sum_on(int device, CUstream stream, CUdeviceptr ptr, uint64_t n_bytes)
{
	CUdeviceptr out;
	uint64_t sum = 0;
	out = alloc_on(stream, sizeof(sum));
	must_ok(cuMemsetD8Async(out, 0, sizeof(sum), stream));
	launch(sums[device], stream, (void *[]){&ptr, &n_bytes, &out});
	must_ok(cuMemcpyDtoHAsync(&sum, out, sizeof(sum), stream));
	must_ok(cuMemFreeAsync(out, stream));
	must_ok(cuStreamSynchronize(stream));
	return sum;
}

/* ---- parts ---- */

static void use_memory(void)
{
	static const size_t sizes[] = {4, 1000, 100000, 2 * MIB - 1, 2 * MIB, 5 * MIB + 3};
	enum { N = sizeof(sizes) / sizeof(sizes[0]) };
	CUdeviceptr ptrs[N];
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++) {
			ptrs[i] = alloc(sizes[i]);
			write_pattern(ptrs[i], sizes[i], (uint64_t)(round * N + i));
		}
		for (int i = 0; i < N; i++) {
			CUdeviceptr base;
			size_t n_bytes;
			must_ok(cuMemGetAddressRange(&base, &n_bytes, ptrs[i] + sizes[i] / 2));
			must(base == ptrs[i] && n_bytes == sizes[i]);
			print("memory", digest(ptrs[i], sizes[i]));
			print("sum", sum_on(0, 0, ptrs[i], sizes[i]));
		}
		for (int i = 0; i < N; i++) {
			must_ok(cuMemFree(ptrs[(i * 5 + round) % N]));
		}
	}
	size_t pitch;
	must_ok(cuMemAllocPitch(ptrs, &pitch, 1000, 77, 8));
	print("pitch", pitch);
	fill_on(0, 0, ptrs[0], pitch * 77, 0x5a);
	must_ok(cuStreamSynchronize(0));
	print("pitched", digest(ptrs[0], pitch * 77));
	print("interior", (uint64_t)cuMemFree(ptrs[0] + 512));
	must_ok(cuMemFree(ptrs[0]));
	print("twice", (uint64_t)cuMemFree(ptrs[0]));
	print("foreign", (uint64_t)cuMemFree(0x1234000));
	print("null", (uint64_t)cuMemFree(0));
	print("none", (uint64_t)cuMemAlloc(ptrs, 0));
	print("too much", (uint64_t)cuMemAlloc(ptrs, 1ull << 50));
	print("nowhere", (uint64_t)cuMemAlloc(NULL, 100));
}

/* On its default stream, which may be its own, and on another. */
static void *use_streams(void *argument)
{
	unsigned number = (unsigned)(uintptr_t)argument;
	static uint64_t sums_out[N_THREADS];
	CUstream other;
	CUevent event;
	must_ok(cuCtxSetCurrent(contexts[0]));
	other = new_stream();
	must_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	sums_out[number] = 0;
	for (unsigned i = 0; i < 12; i++) {
		CUstream stream = i % 3 == 2 ? other : 0;
		size_t n_bytes = (i * 7919 + number * 104729) % 100 * 32768 + 1 + i;
		CUdeviceptr ptr;
		CUdeviceptr brief;
		ptr = alloc_on(stream, n_bytes);
		fill_on(0, stream, ptr, n_bytes, (number + 1) * (i + 1) % 251);
		/* Gone before its work has begun; the next one may have its place. */
		brief = alloc_on(stream, n_bytes);
		fill_on(0, stream, brief, n_bytes, 0xff);
		must_ok(cuMemFreeAsync(brief, stream));
		must_ok(cuEventRecord(event, stream));
		must_ok(cuStreamWaitEvent(other, event, 0));
		sums_out[number] = sums_out[number] * 31 + sum_on(0, other, ptr, n_bytes);
		must_ok(cuMemFreeAsync(ptr, other));
	}
	must_ok(cuEventDestroy(event));
	must_ok(cuStreamDestroy(other));
	return &sums_out[number];
}

static void use_async(void)
{
	pthread_t threads[N_THREADS];
	for (uintptr_t i = 0; i < N_THREADS; i++) {
		must(pthread_create(&threads[i], NULL, use_streams, (void *)i) == 0);
	}
	for (int i = 0; i < N_THREADS; i++) {
		void *sum;
		must(pthread_join(threads[i], &sum) == 0);
		print("async", *(uint64_t *)sum);
	}
}

static CUmemoryPool new_pool(void)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	cuuint64_t keep_bytes = UINT64_MAX;
	CUmemoryPool pool;
	must_ok(cuMemPoolCreate(&pool, &properties));
	must_ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes));
	return pool;
}

static CUmemAccessDesc access_of(int device)
{
	return (CUmemAccessDesc){
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
}

static void use_pools(void)
{
	CUmemAccessDesc own = access_of(0);
	CUmemoryPool pool = new_pool();
	cuuint64_t used_bytes;
	print("access", (uint64_t)cuMemPoolSetAccess(pool, &own, 1));
	for (unsigned i = 0; i < 10; i++) {
		CUdeviceptr ptr;
		size_t n_bytes = (i * 37 % 5 + 1) * MIB;
		must_ok(cuMemAllocFromPoolAsync(&ptr, n_bytes, pool, 0));
		fill_on(0, 0, ptr, n_bytes, i);
		print("pool", sum_on(0, 0, ptr, n_bytes));
		must_ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes));
		must(used_bytes >= n_bytes);
		must_ok(cuMemFreeAsync(ptr, 0));
		must_ok(cuStreamSynchronize(0));
	}
	must_ok(cuMemPoolTrimTo(pool, 0));
	must_ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &used_bytes));
	print("reserved", used_bytes);
	must_ok(cuMemPoolDestroy(pool));
}

static void use_vmm(void)
{
	enum { N = 6 };
	const size_t each = 2 * MIB;
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemAccessDesc own = access_of(0);
	CUmemGenericAllocationHandle handles[N];
	CUmemGenericAllocationHandle imported;
	CUdeviceptr base;
	int fd = -1;
	must_ok(cuMemAddressReserve(&base, 2 * N * each, 0, 0, 0));
	for (unsigned i = 0; i < N; i++) {
		must_ok(cuMemCreate(&handles[i], each, &properties, 0));
		must_ok(cuMemMap(base + i * each, each, 0, handles[i], 0));
	}
	must_ok(cuMemSetAccess(base, N * each, &own, 1));
	for (unsigned i = 0; i < N; i++) {
		fill_on(0, 0, base + i * each, each, 17 * i + 3);
	}
	print("vmm", sum_on(0, 0, base, N * each));
	/* Map the memory at another address, in another order. */
	for (unsigned i = 0; i < N; i++) {
		CUdeviceptr at = base + (2 * N - 1 - i) * each;
		must_ok(cuMemExportToShareableHandle(&fd, handles[i],
		                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		must_ok(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
		                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		must_ok(cuMemMap(at, each, 0, imported, 0));
		must_ok(cuMemRelease(imported));
		must_ok(cuMemRelease(handles[i]));
	}
	must_ok(cuMemSetAccess(base + N * each, N * each, &own, 1));
	print("turned", digest(base + N * each, N * each));
	must_ok(cuMemUnmap(base, N * each));
	print("still", digest(base + N * each, N * each));
	must_ok(cuMemUnmap(base + N * each, N * each));
	must_ok(cuMemAddressFree(base, 2 * N * each));
	print("odd", (uint64_t)cuMemCreate(&imported, 12345, &properties, 0));
}

/* The driver's answers for an address in a reservation: its start, its size, the mapping's size. */
static void print_range(const char *what, CUdeviceptr base, CUdeviceptr at)
{
	uint64_t start = 0;
	uint64_t size = 0;
	uint64_t mapped = 0;
	uint64_t alone = 0;
	void *data[] = {&start, &size, &mapped};
	CUpointer_attribute attributes[] = {
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
	};
	must_ok(cuPointerGetAttributes(3, attributes, data, at));
	print(what, start ? start - base : 7);
	print("  size", size);
	print("  mapping", mapped);
	print("  alone",
	      (uint64_t)cuPointerGetAttribute(&alone, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
	print("  size", alone);
}

/* Reservations, and what may be done where: as the driver says, mistakes included. */
static void use_places(void)
{
	const size_t each = 2 * MIB;
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemAccessDesc own = access_of(0);
	CUmemGenericAllocationHandle small;
	CUmemGenericAllocationHandle large;
	CUmemGenericAllocationHandle retained;
	CUdeviceptr base;
	CUdeviceptr aligned;
	CUdeviceptr plain = alloc(4 * MIB);
	must_ok(cuMemCreate(&small, each, &properties, 0));
	must_ok(cuMemCreate(&large, 3 * each, &properties, 0));
	must_ok(cuMemAddressReserve(&base, 8 * each, 0, 0, 0));
	must_ok(cuMemAddressReserve(&aligned, 2 * each, 1ull << 30, 0, 0));
	print("aligned", aligned & ((1ull << 30) - 1));
	must_ok(cuMemMap(base + 2 * each, each, 0, small, 0));
	must_ok(cuMemMap(base + 3 * each, 3 * each, 0, large, 0));
	must_ok(cuMemSetAccess(base + 2 * each, 4 * each, &own, 1));
	print_range("mapped", base, base + 4 * each);
	print_range("hole", base, base + 7 * each);
	print("twice", (uint64_t)cuMemMap(base + 5 * each, each, 0, small, 0));
	print("odd", (uint64_t)cuMemMap(base + 7 * each + 4096, each, 0, small, 0));
	print("cut", (uint64_t)cuMemUnmap(base + 2 * each, 2 * each));
	print("open hole", (uint64_t)cuMemSetAccess(base, 4 * each, &own, 1));
	print("open cut", (uint64_t)cuMemSetAccess(base + 4 * each, each, &own, 1));
	print("other's", (uint64_t)cuMemUnmap(plain, 4 * MIB));
	print("open other's", (uint64_t)cuMemSetAccess(plain, 4 * MIB, &own, 1));
	print("map other's", (uint64_t)cuMemMap(plain, each, 0, small, 0));
	print("retain other's",
	      (uint64_t)cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)plain));
	print("free other's", (uint64_t)cuMemAddressFree(plain, 4 * MIB));
	print("free full", (uint64_t)cuMemAddressFree(base, 8 * each));
	print("free part", (uint64_t)cuMemAddressFree(aligned, each));
	print("unmap holes", (uint64_t)cuMemUnmap(base, 8 * each));
	print("unmap hole", (uint64_t)cuMemUnmap(base, each));
	print("unmap both", (uint64_t)cuMemUnmap(base + 2 * each, 4 * each));
	print_range("unmapped", base, base + 4 * each);
	must_ok(cuMemMap(base + 5 * each, 3 * each, 0, large, 0));
	must_ok(cuMemUnmap(base + 5 * each, 3 * each));
	must_ok(cuMemAddressFree(base, 8 * each));
	print_range("gone", base, base + 4 * each);
	print("map gone", (uint64_t)cuMemMap(base, each, 0, small, 0));
	print("unmap gone", (uint64_t)cuMemUnmap(base, each));
	print("free gone", (uint64_t)cuMemAddressFree(base, 8 * each));
	print("reserve odd", (uint64_t)cuMemAddressReserve(&base, 4096, 0, 0, 0));
	print("reserve none", (uint64_t)cuMemAddressReserve(&base, 0, 0, 0, 0));
	must_ok(cuMemRelease(small));
	must_ok(cuMemRelease(large));
	must_ok(cuMemAddressFree(aligned, 2 * each));
	must_ok(cuMemFree(plain));
}

static CUgraphNodeParams set_of(CUdeviceptr dst, unsigned value)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	params.memset.dst = dst;
	params.memset.elementSize = 1;
	params.memset.width = 1000;
	params.memset.height = 1;
	params.memset.value = value;
	return params;
}

static CUgraphNodeParams copy_of(CUdeviceptr dst, CUdeviceptr src)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	params.memcpy.copyParams = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = src,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = dst,
		.WidthInBytes = 1000,
		.Height = 1,
		.Depth = 1,
	};
	return params;
}

/* Nodes that name no context, by the generic calls and by their own, in small memory and in large. */
static void use_graph_of(size_t n_bytes)
{
	CUdeviceptr ptr;
	CUstream stream;
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode nodes[3];
	const CUDA_MEMSET_NODE_PARAMS own = {.elementSize = 4, .width = 8, .height = 2};
	ptr = alloc(n_bytes);
	stream = new_stream();
	write_pattern(ptr, n_bytes, 17);
	CUgraphNodeParams set = set_of(ptr, 1);
	CUgraphNodeParams copy = copy_of(ptr + 2048, ptr + 512);
	CUDA_MEMSET_NODE_PARAMS rows = own;
	rows.dst = ptr + 1024;
	rows.pitch = 64;
	rows.value = 0x01020304;
	must_ok(cuGraphCreate(&graph, 0));
	print("add set", (uint64_t)cuGraphAddNode(&nodes[0], graph, NULL, NULL, 0, &set));
	print("add copy", (uint64_t)cuGraphAddNode(&nodes[1], graph, &nodes[0], NULL, 1, &copy));
	print("add rows",
	      (uint64_t)cuGraphAddMemsetNode(&nodes[2], graph, &nodes[1], 1, &rows, NULL));
	print("context stays", set.memset.ctx != NULL);
	must_ok(cuGraphInstantiate(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
	print("graph", digest(ptr, n_bytes));
	set = set_of(ptr + 100, 2);
	copy = copy_of(ptr + 3000, ptr + 50);
	print("set nodes", (uint64_t)cuGraphNodeSetParams(nodes[1], &copy));
	print("set exec", (uint64_t)cuGraphExecNodeSetParams(exec, nodes[0], &set));
	print("set exec copy", (uint64_t)cuGraphExecNodeSetParams(exec, nodes[1], &copy));
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
	print("changed", digest(ptr, n_bytes));
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	must_ok(cuStreamDestroy(stream));
	must_ok(cuMemFree(ptr));
}

static void use_graphs(void)
{
	use_graph_of(4096);
	use_graph_of(4 * MIB);
}

/* Says of memory that is handed out, in one way after the other, why it must stay where it is. */
static void use_pins(void)
{
	const char *(*pin)(uint64_t) = dlsym(RTLD_DEFAULT, "glake_shim_pin");
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemGenericAllocationHandle handle;
	CUmemGenericAllocationHandle again;
	CUipcMemHandle ipc;
	CUdeviceptr base;
	CUdeviceptr plain;
	int fd = -1;
	must(pin);
	plain = alloc(4 * MIB);
	printf("plain: %s\n", pin(plain));
	must_ok(cuIpcGetMemHandle(&ipc, plain));
	printf("named: %s\n", pin(plain));
	must_ok(cuMemFree(plain));
	plain = alloc(4 * MIB);
	printf("the next: %s\n", pin(plain));
	must_ok(cuMemFree(plain));

	must_ok(cuMemAddressReserve(&base, 8 * MIB, 0, 0, 0));
	must_ok(cuMemCreate(&handle, 2 * MIB, &properties, 0));
	must_ok(cuMemMap(base, 2 * MIB, 0, handle, 0));
	printf("with a handle: %s\n", pin(base));
	must_ok(cuMemMap(base + 4 * MIB, 2 * MIB, 0, handle, 0));
	must_ok(cuMemRelease(handle));
	printf("twice: %s\n", pin(base + MIB));
	must_ok(cuMemUnmap(base + 4 * MIB, 2 * MIB));
	printf("once: %s\n", pin(base));
	must_ok(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base));
	printf("retained: %s\n", pin(base));
	must_ok(cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                     0));
	must_ok(cuMemRelease(again));
	printf("exported: %s\n", pin(base));
	must_ok(cuMemUnmap(base, 2 * MIB));
	must_ok(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
	                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	must_ok(cuMemMap(base, 2 * MIB, 0, again, 0));
	must_ok(cuMemRelease(again));
	printf("imported: %s\n", pin(base));
	must_ok(cuMemUnmap(base, 2 * MIB));
	must_ok(cuMemAddressFree(base, 8 * MIB));
}

/* Kernels of device 1 in memory of device 0: a pool opens what it has and will have. */
static void use_peer_pool(void)
{
	CUmemoryPool pool = new_pool();
	CUmemAccessDesc other = access_of(1);
	CUdeviceptr before;
	CUdeviceptr after;
	must_ok(cuMemAllocFromPoolAsync(&before, 4 * MIB, pool, 0));
	must_ok(cuMemPoolSetAccess(pool, &other, 1));
	must_ok(cuMemAllocFromPoolAsync(&after, 1000, pool, 0));
	must_ok(cuStreamSynchronize(0));
	must_ok(cuCtxSetCurrent(contexts[1]));
	fill_on(1, 0, before, 4 * MIB, 7);
	fill_on(1, 0, after, 1000, 9);
	print("pooled", sum_on(1, 0, before, 4 * MIB) + sum_on(1, 0, after, 1000));
	must_ok(cuCtxSetCurrent(contexts[0]));
	print("back", digest(before, 4 * MIB) ^ digest(after, 1000) << 1);
	must_ok(cuMemFreeAsync(before, 0));
	must_ok(cuMemFreeAsync(after, 0));
	must_ok(cuStreamSynchronize(0));
	must_ok(cuMemPoolDestroy(pool));
}

static void use_peers(void)
{
	int n_devices;
	int can_reach = 0;
	CUdeviceptr ptr;
	must_ok(cuDeviceGetCount(&n_devices));
	if (n_devices > 1) {
		must_ok(cuDeviceCanAccessPeer(&can_reach, 1, 0));
	}
	if (!can_reach) {
		return;
	}
	start_device(1);
	must_ok(cuCtxSetCurrent(contexts[0]));
	use_peer_pool();
	ptr = alloc(4 * MIB);
	must_ok(cuCtxSetCurrent(contexts[1]));
	must_ok(cuCtxEnablePeerAccess(contexts[0], 0));
	fill_on(1, 0, ptr, 4 * MIB, 5);
	print("peer", sum_on(1, 0, ptr, 4 * MIB));
	must_ok(cuCtxSetCurrent(contexts[0]));
	print("back", digest(ptr, 4 * MIB));
	must_ok(cuMemFree(ptr));
}

static void use_ipc(void)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	char text[2 * sizeof(handle) + 1];
	int status;
	ptr = alloc(3 * MIB);
	write_pattern(ptr, 3 * MIB, 99);
	must_ok(cuIpcGetMemHandle(&handle, ptr));
	for (size_t i = 0; i < sizeof(handle); i++) {
		sprintf(text + 2 * i, "%02x", ((unsigned char *)&handle)[i]);
	}
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "driver_api", "open", text, NULL);
		_exit(127);
	}
	must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	print("answered", digest(ptr, 3 * MIB));
	must_ok(cuMemFree(ptr));
}

/* In the second process. */
static void open_handle(const char *text)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	for (size_t i = 0; i < sizeof(handle); i++) {
		unsigned byte;
		must(sscanf(text + 2 * i, "%2x", &byte) == 1);
		((unsigned char *)&handle)[i] = (unsigned char)byte;
	}
	must_ok(cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	print("given", digest(ptr, 3 * MIB));
	fill_on(0, 0, ptr + MIB, MIB, 0x42);
	must_ok(cuCtxSynchronize());
	must_ok(cuIpcCloseMemHandle(ptr));
}

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{"memory", use_memory}, {"async", use_async},   {"pools", use_pools},
	{"vmm", use_vmm},       {"places", use_places}, {"peers", use_peers},
	{"ipc", use_ipc},       {"graphs", use_graphs}, {"pins", use_pins},
};

static int is_asked(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], name) == 0) {
			return 1;
		}
	}
	/* Without the shim there is nothing to say of pins. */
	return argc == 1 && strcmp(name, "pins") != 0;
}

int main(int argc, char **argv)
{
	must_ok(cuInit(0));
	start_device(0);
	if (argc == 3 && strcmp(argv[1], "open") == 0) {
		open_handle(argv[2]);
	} else {
		for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
			if (is_asked(argc, argv, parts[i].name)) {
				parts[i].run();
			}
		}
	}
	stop_device(1);
	stop_device(0);
	note_counts();
	return 0;
}

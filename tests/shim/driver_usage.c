/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that takes memory of the driver in all the ways that there are, linked against it.
 *
 *   driver_usage STEP...
 *
 * It does one step after the other and ends with 0, or with 1 and a line on stderr. "wait": it prints
 * "ready" and reads a line.
 */
#include <cuda.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/green.h"
#include "tests/shim/device.h"

#define MIB (1ull << 20)

static CUstream stream;
static CUdeviceptr managed;
static CUarray flat;
static CUarray layered;
static CUmipmappedArray pyramid;
static CUdeviceptr address;
static CUdeviceptr pitched;
static CUdeviceptr of_graph;
static CUdeviceptr of_pool;
static CUmemoryPool pool;
static CUmemGenericAllocationHandle handle;
static CUdeviceptr range;
static struct green green;

static void init(void)
{
	use_device(0);
	stream = new_stream();
}

/* From here on all is made in a green context. */
static void enter_green(void)
{
	must(green_split());
	green = green_new(0);
	must_ok(cuCtxSetCurrent(green.ctx));
}

static void take_managed(void)
{
	must_ok(cuMemAllocManaged(&managed, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
	/* The host can use managed memory. */
	memset((void *)managed, 1, 3 * MIB);
	must_be(cuMemAllocManaged(&managed, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
}

static void free_managed(void)
{
	must_ok(cuMemFree(managed));
}

/* 8 MiB, 40000 bytes, and 348160 bytes of four levels; a sparse one has no memory. */
static void take_arrays(void)
{
	CUarray sparse;
	const CUDA_ARRAY_DESCRIPTOR plain = {1024, 512, CU_AD_FORMAT_FLOAT, 4};
	CUDA_ARRAY3D_DESCRIPTOR layers = {
		100, 100, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED};
	const CUDA_ARRAY3D_DESCRIPTOR levels = {256, 256, 0, CU_AD_FORMAT_FLOAT, 1, 0};
	must_ok(cuArrayCreate(&flat, &plain));
	must_ok(cuArray3DCreate(&layered, &layers));
	must_ok(cuMipmappedArrayCreate(&pyramid, &levels, 4));
	layers.Flags = CUDA_ARRAY3D_SPARSE;
	must_ok(cuArray3DCreate(&sparse, &layers));
	must_ok(cuArrayDestroy(sparse));
	layers.Width = 0;
	must_be(cuArray3DCreate(&sparse, &layers), CUDA_ERROR_INVALID_VALUE);
}

static void free_arrays(void)
{
	must_ok(cuArrayDestroy(flat));
	must_ok(cuArrayDestroy(layered));
	must_ok(cuMipmappedArrayDestroy(pyramid));
	must_be(cuArrayDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void take_plain(void)
{
	size_t pitch;
	address = alloc(4 * MIB);
	must_ok(cuMemAllocPitch(&pitched, &pitch, 1024, 1024, 4));
}

static void free_plain(void)
{
	must_ok(cuMemFree(address));
	must_ok(cuMemFreeAsync(pitched, stream));
	must_ok(cuStreamSynchronize(stream));
}

/* Memory of a graph: 2 MiB on a captured stream, which are there once it is launched. */
static void take_graph(void)
{
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	of_graph = alloc_on(stream, 2 * MIB);
	must_ok(cuStreamEndCapture(stream, &graph));
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
}

/* A capture of the strict kind, which begins after a while and lasts as long. */
static void capture(void)
{
	CUgraph graph;
	usleep(3500000);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	usleep(3500000);
	must_ok(cuStreamEndCapture(stream, &graph));
}

/* A pool that is made to be shared is not for glaked. */
static void take_pool(void)
{
	const CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	must_ok(cuMemPoolCreate(&pool, &properties));
	must_ok(cuMemAllocFromPoolAsync(&of_pool, 6 * MIB, pool, stream));
}

static void free_pool(void)
{
	must_ok(cuMemFreeAsync(of_pool, stream));
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuMemPoolDestroy(pool));
}

/* 2 MiB of the device, mapped and then without a handle; 2 MiB of the host beside. */
static void take_vmm(void)
{
	CUmemGenericAllocationHandle of_host;
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	must_ok(cuMemCreate(&handle, 2 * MIB, &properties, 0));
	must_ok(cuMemAddressReserve(&range, 2 * MIB, 0, 0, 0));
	must_ok(cuMemMap(range, 2 * MIB, 0, handle, 0));
	must_ok(cuMemRelease(handle));
	properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	must_ok(cuMemCreate(&of_host, 2 * MIB, &properties, 0));
	must_ok(cuMemRelease(of_host));
}

static void free_vmm(void)
{
	must_ok(cuMemUnmap(range, 2 * MIB));
	must_ok(cuMemAddressFree(range, 2 * MIB));
}

/* The primary context of a green one cannot be reset. */
static void reset(void)
{
	if (green.handle) {
		green_end(&green);
	}
	must_ok(cuDevicePrimaryCtxReset(0));
	init();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} steps[] = {
		{"managed", take_managed}, {"-managed", free_managed}, {"arrays", take_arrays},
		{"-arrays", free_arrays},  {"plain", take_plain},      {"-plain", free_plain},
		{"graph", take_graph},     {"pool", take_pool},        {"-pool", free_pool},
		{"vmm", take_vmm},         {"-vmm", free_vmm},         {"reset", reset},
		{"capture", capture},      {"green", enter_green},     {"wait", wait_for_line},
	};
	init();
	for (int i = 1; i < argc; i++) {
		for (size_t j = 0; j < sizeof(steps) / sizeof(steps[0]); j++) {
			if (strcmp(argv[i], steps[j].name) == 0) {
				steps[j].run();
			}
		}
	}
	return 0;
}

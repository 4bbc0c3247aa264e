/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has memory from the driver and seals it with the library, linked against both.
 *
 *   seal SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. Where it waits, it prints "ready" and reads a line.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "tests/shim/device.h"
#include "tests/shim/scenario.h"
#include "tests/shim/seal_in_time.h"

#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define N_BYTES (2 * PAGE)

/* ---- help ---- */

static CUstream stream;
static CUcontext ctx;

static CUcontext start(int device)
{
	ctx = use_device(device);
	stream = new_stream();
	return ctx;
}

static uint64_t n_copies(void)
{
	uint64_t (*count)(const char *) = (uint64_t(*)(const char *))dlsym(RTLD_DEFAULT,
	                                                                   "glake_shim_count");
	must(count);
	return count("copies");
}

/* The content of memory, on the host. */
static uint8_t bytes[N_BYTES];
static uint8_t seen[N_BYTES];

TEST_BYTE_LOOP static void fill(CUdeviceptr ptr, unsigned seed)
{
	for (size_t i = 0; i < N_BYTES; i++) {
		bytes[i] = (uint8_t)(i * 31 + i / 977 + seed);
	}
	must_ok(cuMemcpyHtoD(ptr, bytes, N_BYTES));
}

static void expect(CUdeviceptr ptr, const uint8_t *want, const char *what)
{
	must_ok(cuMemcpyDtoH(seen, ptr, N_BYTES));
	if (!same_bytes(seen, want, N_BYTES)) {
		size_t i = 0;
		while (seen[i] == want[i]) {
			i++;
		}
		fprintf(stderr, "%s: byte 0x%zx is 0x%x, not 0x%x\n", what, i, seen[i], want[i]);
		_exit(1);
	}
}

/* How much of it is sealed, having tried. */
static struct glake_sealed try_seal(CUdeviceptr ptr)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	const struct glake_span span = {ptr, N_BYTES};
	must(seal_in_time(&span, 1, &sealed) == 0);
	return sealed;
}

/* A block for each page. Returns the bytes that the realm had already. */
static uint64_t seal(CUdeviceptr ptr)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	const struct glake_span spans[] = {{ptr, PAGE}, {ptr + PAGE, PAGE}};
	int r = seal_in_time(spans, 2, &sealed);
	if (r < 0) {
		fprintf(stderr, "glake_seal: %s\n", glake_error());
		_exit(1);
	}
	must(sealed.sealed_bytes == N_BYTES);
	return sealed.shared_bytes;
}

static void unseal(CUdeviceptr ptr)
{
	int r;
	while ((r = glake_unseal(ptr, N_BYTES)) == -EBUSY) {
		usleep(1000);
	}
	if (r != 0) {
		fprintf(stderr, "glake_unseal: %s\n", glake_error());
		_exit(1);
	}
}

/* Memory that is filled and sealed. */
static CUdeviceptr alloc_sealed(unsigned seed)
{
	CUdeviceptr ptr = alloc(N_BYTES);
	fill(ptr, seed);
	seal(ptr);
	return ptr;
}

/* ---- writes ---- */

/* The bytes that are written: two rows around the border of the blocks, or all between them. */
#define AT (PAGE - 65536)
#define PITCH 65536u
#define WIDTH 4096u
#define HEIGHT 2u
#define N (PITCH + WIDTH)

static uint8_t source[N_BYTES]; /* on the host */
static CUdeviceptr device_source;

static void set_rows(size_t width, size_t height, const uint8_t *from, size_t pitch)
{
	for (size_t y = 0; y < height; y++) {
		memcpy(bytes + AT + y * PITCH, from + y * pitch, width);
	}
}

static void set_words(const void *word, size_t word_bytes, size_t width, size_t height)
{
	for (size_t y = 0; y < height; y++) {
		for (size_t x = 0; x < width; x++) {
			memcpy(bytes + AT + y * PITCH + x * word_bytes, word, word_bytes);
		}
	}
}

static void mirror(void)
{
	memcpy(bytes + AT, source, N);
}

/* Each writes at @to, which is AT in the memory, and to bytes[]. */
#define COPY(name, call) \
	static void name(CUdeviceptr to) \
	{ \
		must_ok(call); \
		mirror(); \
	}
COPY(copy, cuMemcpy(to, device_source, N))
COPY(copy_async, cuMemcpyAsync(to, device_source, N, stream))
COPY(host, cuMemcpyHtoD(to, source, N))
COPY(host_async, cuMemcpyHtoDAsync(to, source, N, stream))
COPY(device, cuMemcpyDtoD(to, device_source, N))
COPY(device_async, cuMemcpyDtoDAsync(to, device_source, N, stream))
COPY(peer, cuMemcpyPeer(to, ctx, device_source, ctx, N))
COPY(peer_async, cuMemcpyPeerAsync(to, ctx, device_source, ctx, N, stream))

#define SET(name, type, value, n_words, n_rows, call) \
	static void name(CUdeviceptr to) \
	{ \
		const type word = value; \
		must_ok(call); \
		set_words(&word, sizeof(word), n_words, n_rows); \
	}
SET(set_8, uint8_t, 0xa1, N, 1, cuMemsetD8(to, word, N))
SET(set_8_async, uint8_t, 0xa2, N, 1, cuMemsetD8Async(to, word, N, stream))
SET(set_16, uint16_t, 0xa3b4, N / 2, 1, cuMemsetD16(to, word, N / 2))
SET(set_16_async, uint16_t, 0xa4b4, N / 2, 1, cuMemsetD16Async(to, word, N / 2, stream))
SET(set_32, uint32_t, 0xa5b4c3d2, N / 4, 1, cuMemsetD32(to, word, N / 4))
SET(set_32_async, uint32_t, 0xa6b4c3d2, N / 4, 1, cuMemsetD32Async(to, word, N / 4, stream))
SET(set_rows_8, uint8_t, 0xb1, WIDTH, HEIGHT, cuMemsetD2D8(to, PITCH, word, WIDTH, HEIGHT))
SET(set_rows_8_async, uint8_t, 0xb2, WIDTH, HEIGHT,
    cuMemsetD2D8Async(to, PITCH, word, WIDTH, HEIGHT, stream))
SET(set_rows_16, uint16_t, 0xb3a4, WIDTH, HEIGHT, cuMemsetD2D16(to, PITCH, word, WIDTH, HEIGHT))
SET(set_rows_16_async, uint16_t, 0xb4a4, WIDTH, HEIGHT,
    cuMemsetD2D16Async(to, PITCH, word, WIDTH, HEIGHT, stream))
SET(set_rows_32, uint32_t, 0xb5a4c3d2, WIDTH, HEIGHT, cuMemsetD2D32(to, PITCH, word, WIDTH, HEIGHT))
SET(set_rows_32_async, uint32_t, 0xb6a4c3d2, WIDTH, HEIGHT,
    cuMemsetD2D32Async(to, PITCH, word, WIDTH, HEIGHT, stream))
SET(word_32, uint32_t, 0xc1a4c3d2, 1, 1, cuStreamWriteValue32(stream, to, word, 0))
SET(word_64, uint64_t, 0xc2a4c3d2e1f00123, 1, 1, cuStreamWriteValue64(stream, to, word, 0))

/* The rows, as ones that begin at (64, 1) of something larger. */
static CUDA_MEMCPY2D rows_of(CUdeviceptr to, CUmemorytype type)
{
	return (CUDA_MEMCPY2D){
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = source,
		.srcPitch = WIDTH,
		.dstMemoryType = type,
		.dstDevice = to - PITCH - 64,
		.dstXInBytes = 64,
		.dstY = 1,
		.dstPitch = PITCH,
		.WidthInBytes = WIDTH,
		.Height = HEIGHT,
	};
}
static void copy_2d_async(CUdeviceptr to)
{
	const CUDA_MEMCPY2D form = rows_of(to, CU_MEMORYTYPE_UNIFIED);
	CUDA_MEMCPY2D unified = form;
	unified.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
	unified.srcDevice = device_source;
	must_ok(cuMemcpy2DAsync(&unified, stream));
	set_rows(WIDTH, HEIGHT, source, WIDTH);
}

#define COPY_ROWS(name, type, form_of, call) \
	static void name(CUdeviceptr to) \
	{ \
		const type form = form_of; \
		must_ok(call); \
		set_rows(WIDTH, HEIGHT, source, WIDTH); \
	}
COPY_ROWS(copy_2d, CUDA_MEMCPY2D, rows_of(to, CU_MEMORYTYPE_DEVICE), cuMemcpy2D(&form))
COPY_ROWS(copy_2d_unaligned, CUDA_MEMCPY2D, rows_of(to, CU_MEMORYTYPE_DEVICE),
          cuMemcpy2DUnaligned(&form))

/* Two layers of one row each. */
static CUDA_MEMCPY3D layers_of(CUdeviceptr to)
{
	return (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = source,
		.srcPitch = WIDTH,
		.srcHeight = 1,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = to - PITCH - PITCH / 4 - 64,
		.dstXInBytes = 64,
		.dstY = 1,
		.dstZ = 1,
		.dstPitch = PITCH / 4,
		.dstHeight = 4,
		.WidthInBytes = WIDTH,
		.Height = 1,
		.Depth = 2,
	};
}
COPY_ROWS(copy_3d, CUDA_MEMCPY3D, layers_of(to), cuMemcpy3D(&form))
COPY_ROWS(copy_3d_async, CUDA_MEMCPY3D, layers_of(to), cuMemcpy3DAsync(&form, stream))
static CUDA_MEMCPY3D_PEER peer_layers_of(CUdeviceptr to)
{
	const CUDA_MEMCPY3D form = layers_of(to);
	return (CUDA_MEMCPY3D_PEER){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = device_source,
		.srcContext = ctx,
		.srcPitch = WIDTH,
		.srcHeight = 1,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = form.dstDevice,
		.dstContext = ctx,
		.dstXInBytes = form.dstXInBytes,
		.dstY = form.dstY,
		.dstZ = form.dstZ,
		.dstPitch = form.dstPitch,
		.dstHeight = form.dstHeight,
		.WidthInBytes = WIDTH,
		.Height = 1,
		.Depth = 2,
	};
}
COPY_ROWS(copy_3d_peer, CUDA_MEMCPY3D_PEER, peer_layers_of(to), cuMemcpy3DPeer(&form))
COPY_ROWS(copy_3d_peer_async, CUDA_MEMCPY3D_PEER, peer_layers_of(to),
          cuMemcpy3DPeerAsync(&form, stream))
static void batch(CUdeviceptr to)
{
	CUdeviceptr dsts[] = {device_source + N_BYTES / 2, to, to + PITCH};
	CUdeviceptr srcs[] = {device_source, device_source, device_source};
	size_t sizes[] = {16, WIDTH, WIDTH};
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t first = 0;
	must_ok(cuMemcpyBatchAsync(dsts, srcs, sizes, 3, &attributes, &first, 1, stream));
	set_rows(WIDTH, HEIGHT, source, 0);
}
static CUstreamBatchMemOpParams word_op(CUdeviceptr to, uint32_t value)
{
	CUstreamBatchMemOpParams op;
	memset(&op, 0, sizeof(op));
	op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	op.writeValue.address = to;
	op.writeValue.value = value;
	return op;
}
static void words(CUdeviceptr to)
{
	const uint32_t word = 0xc3a4c3d2;
	CUstreamBatchMemOpParams ops[] = {word_op(to, word), word_op(to + PITCH, word)};
	must_ok(cuStreamBatchMemOp(stream, 2, ops, 0));
	set_words(&word, 4, 1, 2);
}

static const struct {
	const char *name;
	void (*write)(CUdeviceptr to);
} writes[] = {
	{"cuMemcpy", copy},
	{"cuMemcpyAsync", copy_async},
	{"cuMemcpyHtoD", host},
	{"cuMemcpyHtoDAsync", host_async},
	{"cuMemcpyDtoD", device},
	{"cuMemcpyDtoDAsync", device_async},
	{"cuMemcpyPeer", peer},
	{"cuMemcpyPeerAsync", peer_async},
	{"cuMemsetD8", set_8},
	{"cuMemsetD8Async", set_8_async},
	{"cuMemsetD16", set_16},
	{"cuMemsetD16Async", set_16_async},
	{"cuMemsetD32", set_32},
	{"cuMemsetD32Async", set_32_async},
	{"cuMemsetD2D8", set_rows_8},
	{"cuMemsetD2D8Async", set_rows_8_async},
	{"cuMemsetD2D16", set_rows_16},
	{"cuMemsetD2D16Async", set_rows_16_async},
	{"cuMemsetD2D32", set_rows_32},
	{"cuMemsetD2D32Async", set_rows_32_async},
	{"cuMemcpy2D", copy_2d},
	{"cuMemcpy2DAsync", copy_2d_async},
	{"cuMemcpy2DUnaligned", copy_2d_unaligned},
	{"cuMemcpy3D", copy_3d},
	{"cuMemcpy3DAsync", copy_3d_async},
	{"cuMemcpy3DPeer", copy_3d_peer},
	{"cuMemcpy3DPeerAsync", copy_3d_peer_async},
	{"cuMemcpyBatchAsync", batch},
	{"cuStreamWriteValue32", word_32},
	{"cuStreamWriteValue64", word_64},
	{"cuStreamBatchMemOp", words},
};
#define N_WRITES (sizeof(writes) / sizeof(writes[0]))

TEST_BYTE_LOOP static void make_sources(void)
{
	for (size_t i = 0; i < N_BYTES; i++) {
		source[i] = (uint8_t)(i * 7 + 1);
	}
	device_source = alloc(N_BYTES);
	must_ok(cuMemcpyHtoD(device_source, source, N_BYTES));
}

/* ---- kernels ---- */

/* The simulator knows it by its name. */
static const uint32_t image[4] = {0xba55ed50};

/* Write @value over @n_bytes by a kernel of the current context. Returns what that ends with. */
static CUresult write_by_kernel(CUdeviceptr ptr, uint64_t n_bytes, uint32_t value)
{
	CUmodule module;
	CUfunction kernel;
	void *params[] = {&ptr, &n_bytes, &value};
	must_ok(cuModuleLoadData(&module, image));
	must_ok(cuModuleGetFunction(&kernel, module, "cudasim_fill"));
	must_ok(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	return cuCtxSynchronize();
}

/* ---- scenarios ---- */

static const CUmemAccessDesc writable = {
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* The library that the program is linked with is the shim's, so that it knows the shim's memory. */
static void one_library(void)
{
	Dl_info shim;
	Dl_info library;
	must(dladdr(dlsym(RTLD_DEFAULT, "glake_shim_count"), &shim));
	must(dladdr(dlsym(RTLD_DEFAULT, "glake_seal"), &library));
	must(strcmp(shim.dli_fname, library.dli_fname) == 0);
	start(0);
	CUdeviceptr one = alloc(N_BYTES);
	CUdeviceptr two = alloc(N_BYTES);
	fill(one, 1);
	fill(two, 1);
	must(seal(one) == 0);
	must(seal(two) == N_BYTES);
	expect(one, bytes, "sealed");
	expect(two, bytes, "shared");
}

/*
 * A session of the program's own, that looks for the driver by its name and finds the shim. Sealing by a thread
 * without a context works behind the closed gate all the same.
 */
static void own_session(void)
{
	struct glake_session *session;
	glake_ptr ptr;
	must(glake_connect(NULL, &session) == 0);
	start(0);
	must(glake_alloc(session, 0, N_BYTES, 0, &ptr) == 0);
	fill(ptr, 1);
	must_ok(cuCtxSetCurrent(NULL));
	seal(ptr);
	must_ok(cuCtxSetCurrent(ctx));
	expect(ptr, bytes, "sealed");
	must_ok(cuMemsetD8(ptr, 3, N_BYTES));
	memset(bytes, 3, N_BYTES);
	expect(ptr, bytes, "written");
	must(glake_free(session, ptr) == 0);
	glake_disconnect(session);
}

/*
 * Memory of the driver's allocations and of the program's own session under one key. What the program writes
 * afterwards goes to copies of its own.
 */
static void weights(void)
{
	struct glake_session *session;
	struct glake_model *model;
	struct glake_published published = {.size = sizeof(published)};
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	glake_ptr own;
	start(0);
	must(glake_connect(NULL, &session) == 0);
	must(glake_alloc(session, 0, N_BYTES, 0, &own) == 0);
	CUdeviceptr ptr = alloc(N_BYTES);
	fill(own, 1);
	fill(ptr, 2);
	const uint64_t shape[] = {N_BYTES};
	const struct glake_tensor tensors[] = {
		{sizeof(tensor), "driver", GLAKE_U8, 1, shape, 0, ptr, NULL},
		{sizeof(tensor), "own", GLAKE_U8, 1, shape, 0, own, NULL},
	};
	if (glake_weights_publish(session, "key", tensors, 2, NULL, &published) != 0) {
		fprintf(stderr, "glake_weights_publish: %s\n", glake_error());
		_exit(1);
	}
	must(published.in_place_bytes == 2 * N_BYTES && published.copied_bytes == 0);
	must_ok(cuMemsetD8(ptr, 3, N_BYTES));
	must_ok(cuMemFree(ptr));
	must(glake_weights_attach(session, "key", NULL, &model) == 0);
	must(glake_model_tensor(model, "driver", &tensor) == 0);
	expect(tensor.ptr, bytes, "driver");
	must(glake_model_tensor(model, "own", &tensor) == 0);
	fill(own, 1);
	expect(tensor.ptr, bytes, "own");
	glake_model_close(model);
	glake_disconnect(session);
}

/* Each call that writes gets its copies, where it writes, and nobody else notices. */
static void all_writes(void)
{
	static uint8_t before[N_BYTES];
	start(0);
	make_sources();
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr twin = alloc(N_BYTES);
	for (unsigned i = 0; i < N_WRITES; i++) {
		fill(ptr, i);
		fill(twin, i);
		seal(ptr);
		must(seal(twin) == N_BYTES);
		memcpy(before, bytes, N_BYTES);
		uint64_t n = n_copies();
		/* The border of the blocks is what is between the rows. */
		writes[i].write(ptr + AT);
		must_ok(cuStreamSynchronize(stream));
		expect(ptr, bytes, writes[i].name);
		expect(twin, before, writes[i].name);
		must(n_copies() > n);
		n = n_copies();
		/* And a second time, there is nothing left to do. */
		writes[i].write(ptr + AT);
		must_ok(cuStreamSynchronize(stream));
		expect(ptr, bytes, writes[i].name);
		must(n_copies() == n);
		must(glake_unseal(twin, N_BYTES) == 0);
	}
}

/* Names of sealed memory are not given, or end the sealing of what they name. */
static void names(void)
{
	static const int yes = 1;
	start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr twin = alloc(N_BYTES);
	CUmemGenericAllocationHandle handle;
	fill(ptr, 1);
	fill(twin, 1);
	seal(ptr);
	seal(twin);
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuMemSetAccess(ptr, PAGE, &writable, 1), CUDA_ERROR_INVALID_VALUE);
	must(n_copies() == 0);
	must_ok(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr + PAGE));
	must(n_copies() == 1);
	struct glake_sealed sealed = try_seal(ptr);
	must(sealed.sealed_bytes == PAGE && sealed.pinned_bytes == PAGE);
	expect(ptr, bytes, "half");
	int fd = -1;
	must_ok(cuMemGetHandleForAddressRange(&fd, ptr, PAGE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
	                                      0));
	must(fd >= 0 && n_copies() == 2);
	must(try_seal(ptr).pinned_bytes == N_BYTES);
	expect(ptr, bytes, "all of it");
	/* An IPC handle pins all of the memory, which nothing else pins here. */
	CUdeviceptr other = alloc_sealed(1);
	CUipcMemHandle name;
	must_ok(cuIpcGetMemHandle(&name, other));
	sealed = try_seal(other);
	must(sealed.sealed_bytes == 0 && sealed.pinned_bytes == N_BYTES);
	must_ok(cuMemsetD8(other, 1, N_BYTES));
	must_ok(cuMemsetD8(ptr + PAGE, 1, PAGE));
	expect(twin, bytes, "twin");
	/* A call that fails leaves no pin. */
	must(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, twin) != CUDA_SUCCESS);
	seal(twin);
	/* Nor does it take one away that another call has left on a part. */
	must_ok(cuMemGetHandleForAddressRange(&fd, twin + PAGE, PAGE,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	must(cuMemGetHandleForAddressRange(&fd, twin, N_BYTES, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
	                                   99) != CUDA_SUCCESS);
	must(try_seal(twin).pinned_bytes == N_BYTES);
}

/* For memory that the program maps itself. */
static const CUmemAllocationProp plain = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
};
/* Memory of these properties is glaked's, and can be sealed. */
static const CUmemAllocationProp shareable = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
};

/* Filled, in the first half of a reservation. */
static CUdeviceptr map_own(const CUmemAllocationProp *properties,
                           CUmemGenericAllocationHandle *handle_out)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemCreate(handle_out, N_BYTES, properties, 0));
	must_ok(cuMemAddressReserve(&ptr, 2 * N_BYTES, 0, 0, 0));
	must_ok(cuMemMap(ptr, N_BYTES, 0, *handle_out, 0));
	must_ok(cuMemSetAccess(ptr, N_BYTES, &writable, 1));
	fill(ptr, 1);
	return ptr;
}

/* Memory that the driver has made and the program maps itself is private, with its reason. */
static void own_mappings(void)
{
	start(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr = map_own(&plain, &handle);
	struct glake_sealed sealed = try_seal(ptr);
	must(sealed.sealed_bytes == 0 && sealed.pinned_bytes == N_BYTES);
	must(sealed.pinned_why && *sealed.pinned_why);
	must_ok(cuMemRelease(handle));
	sealed = try_seal(ptr);
	must(sealed.sealed_bytes == 0 && sealed.pinned_bytes == N_BYTES);
	must(sealed.pinned_why && strstr(sealed.pinned_why, "driver"));
	/* A span that is not mapped is no memory. */
	const struct glake_span hole = {ptr + N_BYTES, N_BYTES};
	must(glake_seal(&hole, 1, NULL) == -EINVAL);
	unseal(ptr);
	expect(ptr, bytes, "as before");
	must_ok(cuMemsetD8(ptr, 2, N_BYTES));
	must(n_copies() == 0);
	must_ok(cuMemUnmap(ptr, N_BYTES));
	must_ok(cuMemAddressFree(ptr, 2 * N_BYTES));
}

static uint64_t seal_span(CUdeviceptr ptr, uint64_t n_bytes)
{
	const struct glake_span span = {ptr, n_bytes};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	must(seal_in_time(&span, 1, &sealed) == 0);
	return sealed.sealed_bytes;
}

/* Whoever exports sealed memory gives away what is good for writing: it is private then, if it is one chunk. */
static void numbers_given(void)
{
	start(0);
	CUmemGenericAllocationHandle handles[2];
	CUdeviceptr ptr = 0;
	int fd = -1;
	must_ok(cuMemAddressReserve(&ptr, 2 * N_BYTES, 0, 0, 0));
	for (size_t i = 0; i < 2; i++) {
		must_ok(cuMemCreate(&handles[i], N_BYTES, &shareable, 0));
		must_ok(cuMemMap(ptr + i * N_BYTES, N_BYTES, 0, handles[i], 0));
		must_ok(cuMemSetAccess(ptr + i * N_BYTES, N_BYTES, &writable, 1));
		fill(ptr + i * N_BYTES, 1);
	}
	must(seal_span(ptr, N_BYTES) == N_BYTES);
	uint64_t n = n_copies();
	must_ok(cuMemExportToShareableHandle(&fd, handles[0],
	                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	must(n_copies() == n + 1);
	expect(ptr, bytes, "exported");
	must(seal_span(ptr, N_BYTES) == 0);
	/* There is no one fd of several chunks. */
	must(seal_span(ptr + N_BYTES, PAGE) == PAGE);
	must_be(cuMemExportToShareableHandle(&fd, handles[1],
	                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	        CUDA_ERROR_OUT_OF_MEMORY);
	expect(ptr + N_BYTES, bytes, "not exported");
	must_ok(cuMemUnmap(ptr, 2 * N_BYTES));
	must_ok(cuMemRelease(handles[0]));
	must_ok(cuMemRelease(handles[1]));
	must_ok(cuMemAddressFree(ptr, 2 * N_BYTES));
}

enum { MAPS, OPENS, UNMAPS, N_CALLS };

struct call {
	unsigned what;
	CUdeviceptr ptr;
	CUmemGenericAllocationHandle handle;
};

/* A call of the driver may be where a thread is cancelled. */
static void *call_cancelled(void *user)
{
	const struct call *call = user;
	must(pthread_cancel(pthread_self()) == 0);
	switch (call->what) {
	case MAPS:
		cuMemMap(call->ptr, N_BYTES, 0, call->handle, 0);
		break;
	case OPENS:
		cuMemSetAccess(call->ptr, N_BYTES, &writable, 1);
		break;
	default:
		cuMemUnmap(call->ptr, N_BYTES);
	}
	pthread_testcancel();
	return NULL;
}

/* A cancelled thread leaves nothing half done: others would wait for it for ever. */
static void cancelled(void)
{
	struct call call = {.ptr = 0};
	start(0);
	must_ok(cuMemCreate(&call.handle, N_BYTES, &plain, 0));
	must_ok(cuMemAddressReserve(&call.ptr, N_BYTES, 0, 0, 0));
	alarm(20);
	for (call.what = MAPS; call.what < N_CALLS; call.what++) {
		pthread_t thread;
		void *result = NULL;
		must(pthread_create(&thread, NULL, call_cancelled, &call) == 0);
		pthread_join(thread, &result);
		must(result == PTHREAD_CANCELED);
	}
	must_ok(cuMemMap(call.ptr, N_BYTES, 0, call.handle, 0));
	must_ok(cuMemUnmap(call.ptr, N_BYTES));
	must_ok(cuMemRelease(call.handle));
	must_ok(cuMemAddressFree(call.ptr, N_BYTES));
}

/* One call may be for mappings of two reservations, of which the second has sealed memory. */
static void side_by_side(void)
{
	start(0);
	CUmemGenericAllocationHandle handles[2];
	CUdeviceptr ptr = 0;
	CUdeviceptr second = 0;
	int fd = -1;
	must_ok(cuMemAddressReserve(&ptr, N_BYTES, 0, 0, 0));
	must_ok(cuMemAddressReserve(&second, N_BYTES, 0, ptr + N_BYTES, 0));
	must(second == ptr + N_BYTES);
	for (size_t i = 0; i < 2; i++) {
		must_ok(cuMemCreate(&handles[i], N_BYTES, &plain, 0));
		must_ok(cuMemMap(ptr + i * N_BYTES, N_BYTES, 0, handles[i], 0));
		must_ok(cuMemRelease(handles[i]));
	}
	must_ok(cuMemSetAccess(ptr, 2 * N_BYTES, &writable, 1));
	fill(ptr, 1);
	fill(second, 2);
	seal(second);
	must_ok(cuMemSetAccess(ptr, 2 * N_BYTES, &writable, 1));
	must(n_copies() == 1);
	expect(second, bytes, "opened");
	seal(second);
	/* The call must not try for ever. */
	alarm(20);
	must_ok(cuMemGetHandleForAddressRange(&fd, ptr, 2 * N_BYTES,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	must(n_copies() == 2);
	must(try_seal(second).pinned_bytes == N_BYTES);
	expect(second, bytes, "named");
	/* Nor at all that is said to follow. */
	must_be(cuMemGetHandleForAddressRange(&fd, ptr, 1ull << 60,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
	        CUDA_ERROR_INVALID_VALUE);
	must_ok(cuMemUnmap(ptr, 2 * N_BYTES));
	must_ok(cuMemAddressFree(ptr, N_BYTES));
	must_ok(cuMemAddressFree(second, N_BYTES));
}

/* The program's handle is a number, which names what becomes of its memory. */
static void numbers(void)
{
	static uint8_t before[N_BYTES];
	start(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr = map_own(&plain, &handle);
	CUdeviceptr twin = alloc(N_BYTES);
	fill(twin, 1);
	memcpy(before, bytes, N_BYTES);
	seal(twin);
	/* With a handle, and mapped twice. */
	must_ok(cuMemMap(ptr + N_BYTES, N_BYTES, 0, handle, 0));
	must_ok(cuMemSetAccess(ptr + N_BYTES, N_BYTES, &writable, 1));
	must(seal(ptr) == N_BYTES);
	expect(ptr, bytes, "sealed");
	expect(ptr + N_BYTES, bytes, "its alias");
	const struct glake_span both[] = {{ptr, N_BYTES}, {ptr + N_BYTES, N_BYTES}};
	must(glake_unseal_spans(both, 2) == 0);
	must_ok(cuMemsetD8(ptr + N_BYTES, bytes[0], 1));
	expect(ptr, bytes, "unsealed");
	expect(ptr + N_BYTES, bytes, "unsealed by its alias");
	must(n_copies() == 0);
	must(seal(ptr) == N_BYTES);
	/* A write by either address is a private copy in both. */
	must_ok(cuMemsetD8(ptr + N_BYTES, 2, PAGE));
	must(n_copies() == 1);
	memset(bytes, 2, PAGE);
	expect(ptr, bytes, "written");
	expect(ptr + N_BYTES, bytes, "written by its alias");
	/* Its parts are unmapped as one mapping, or not at all. */
	const struct glake_span front = {ptr, PAGE};
	struct glake_sealed sum = {.size = sizeof(sum)};
	must(seal_in_time(&front, 1, &sum) == 0 && sum.sealed_bytes == PAGE);
	must_be(cuMemUnmap(ptr, PAGE), CUDA_ERROR_INVALID_VALUE);
	must_ok(cuMemUnmap(ptr, 2 * N_BYTES));
	/* A number names memory that is mapped nowhere, too: in pieces now, of which one is sealed. */
	must_ok(cuMemMap(ptr, N_BYTES, 0, handle, 0));
	CUmemAccessDesc reading = writable;
	reading.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	must_ok(cuMemSetAccess(ptr, N_BYTES, &reading, 1));
	expect(ptr, bytes, "mapped again");
	/* Nobody writes to a block: who may write has a copy. */
	uint64_t n = n_copies();
	must_ok(cuMemSetAccess(ptr, N_BYTES, &writable, 1));
	must(n_copies() > n);
	must_ok(cuMemsetD8(ptr, 3, N_BYTES));
	expect(twin, before, "twin");
	fill(ptr, 1);
	/* Memory that the CPU may read has to stay in its place: no block does. Not every driver has that. */
	CUmemAccessDesc by_cpu = reading;
	by_cpu.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
	must(seal(ptr) == N_BYTES);
	n = n_copies();
	CUresult opened = cuMemSetAccess(ptr, N_BYTES, &by_cpu, 1);
	must(opened == CUDA_SUCCESS || opened == CUDA_ERROR_NOT_SUPPORTED);
	must(n_copies() > n);
	must_ok(cuMemsetD8(ptr, 1, 1));
	fill(ptr, 1);
	/* Without a number, too; and what is not mapped is no memory. */
	must_ok(cuMemRelease(handle));
	must(seal(ptr) == N_BYTES);
	const struct glake_span hole = {ptr + N_BYTES, N_BYTES};
	must(glake_seal(&hole, 1, NULL) == -EINVAL);
	unseal(ptr);
	expect(ptr, bytes, "as before");
	must_ok(cuMemUnmap(ptr, N_BYTES));
	must_ok(cuMemAddressFree(ptr, 2 * N_BYTES));
}

/* Another device reads sealed memory, and writes it as any: by the API it gets copies, a kernel faults. */
static void peers(void)
{
	CUcontext zero = start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr twin = alloc(N_BYTES);
	fill(ptr, 1);
	fill(twin, 1);
	seal(ptr);
	seal(twin);
	CUcontext one = start(1);
	must_ok(cuCtxEnablePeerAccess(zero, 0));
	expect(ptr, bytes, "of a peer");
	must_ok(cuMemsetD8(ptr, 7, PAGE));
	must_ok(write_by_kernel(ptr, PAGE, 9));
	must_be(write_by_kernel(twin, PAGE, 9), CUDA_ERROR_ILLEGAL_ADDRESS);
	must_ok(cuCtxSetCurrent(zero));
	expect(twin, bytes, "twin");
	memset(bytes, 9, PAGE);
	expect(ptr, bytes, "written by a peer");
	(void)one;
}

static void run_graph(CUgraph graph)
{
	CUgraphExec exec;
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
}

/* Writes to sealed memory are captured, in all modes: as if it was not sealed. Nothing is written yet. */
static void captures(void)
{
	static uint8_t before[N_BYTES];
	CUgraph graph;
	start(0);
	make_sources();
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr twin = alloc(N_BYTES);
	for (unsigned mode = 0; mode < 3; mode++) {
		fill(ptr, mode);
		fill(twin, mode);
		seal(ptr);
		seal(twin);
		memcpy(before, bytes, N_BYTES);
		uint64_t n = n_copies();
		must_ok(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
		must_ok(cuMemcpyDtoDAsync(ptr, device_source, 64, stream));
		must_ok(cuMemsetD8Async(ptr + 64, 7, 64, stream));
		must_ok(cuMemcpyHtoDAsync(ptr + PAGE, source, 64, stream));
		must_ok(cuStreamWriteValue32(stream, ptr + PAGE + 64, 0x08080808, 0));
		must_ok(cuStreamEndCapture(stream, &graph));
		must(n_copies() == n + 2);
		expect(ptr, before, "captured");
		run_graph(graph);
		memcpy(bytes, source, 64);
		memset(bytes + 64, 7, 64);
		memcpy(bytes + PAGE, source, 64);
		memset(bytes + PAGE + 64, 8, 4);
		expect(ptr, bytes, "run");
		expect(twin, before, "twin");
	}
}

/*
 * Work that another stream was given meanwhile cannot be waited for: a copy cannot be captured, and says so at once;
 * what the driver takes all the same gets its private copy when the capture is over.
 */
static void captures_beside_work(void)
{
	CUgraph graph;
	CUstream other;
	start(0);
	make_sources();
	other = new_stream();
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr private = alloc(N_BYTES);
	fill(private, 2);
	fill(ptr, 1);
	seal(ptr);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	/* The first write of another stream finds the GPU idle. */
	must_ok(cuMemsetD8Async(ptr, 8, 64, other));
	must(n_copies() == 1);
	must_be(cuMemcpyDtoDAsync(ptr + PAGE, device_source, 64, stream), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(cuMemcpyDtoDAsync(private, 0, 64, stream), CUDA_ERROR_INVALID_VALUE);
	must_be(cuMemsetD8Async(ptr + PAGE, 8, 64, other), CUDA_ERROR_OUT_OF_MEMORY);
	must_ok(cuMemsetD8Async(ptr + PAGE, 7, 64, stream));
	must_ok(cuMemcpyDtoDAsync(private, device_source, 64, stream));
	must_ok(cuStreamEndCapture(stream, &graph));
	must(n_copies() == 1);
	must_ok(cuStreamSynchronize(other));
	memset(bytes, 8, 64);
	expect(ptr, bytes, "before the run");
	run_graph(graph);
	must(n_copies() == 2);
	memset(bytes + PAGE, 7, 64);
	expect(ptr, bytes, "run");
	must_ok(cuMemsetD8Async(ptr, 9, N_BYTES, stream));
	must_ok(cuStreamSynchronize(stream));
	memset(bytes, 9, N_BYTES);
	expect(ptr, bytes, "after the capture");
}

static void *submit_beside(void *user)
{
	CUstream own;
	must_ok(cuCtxSetCurrent(ctx));
	own = new_stream();
	must_ok(cuMemsetD8Async(*(CUdeviceptr *)user, 1, 64, own));
	must_ok(cuStreamSynchronize(own));
	return NULL;
}

/* Work from before the capture is waited for, in other threads' streams as well. */
static void captures_behind_work(void)
{
	pthread_t thread;
	CUgraph graph;
	CUstream other;
	start(0);
	make_sources();
	other = new_stream();
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr private = alloc(N_BYTES);
	fill(ptr, 1);
	seal(ptr);
	close_gate(other);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_be(cuMemcpyDtoDAsync(ptr, device_source, 64, stream), CUDA_ERROR_OUT_OF_MEMORY);
	open_gate();
	must_ok(cuMemcpyDtoDAsync(ptr, device_source, 64, stream));
	must(pthread_create(&thread, NULL, submit_beside, &private) == 0);
	pthread_join(thread, NULL);
	must_be(cuMemcpyDtoDAsync(ptr + PAGE, device_source, 64, stream), CUDA_ERROR_OUT_OF_MEMORY);
	must_ok(cuStreamEndCapture(stream, &graph));
	expect(ptr, bytes, "captured");
	run_graph(graph);
	memcpy(bytes, source, 64);
	expect(ptr, bytes, "run");
	/* The next capture begins anew. */
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuMemcpyDtoDAsync(ptr + PAGE, device_source, 64, stream));
	must_ok(cuStreamEndCapture(stream, &graph));
	run_graph(graph);
	memcpy(bytes + PAGE, source, 64);
	expect(ptr, bytes, "run again");
}

/* ---- graphs ---- */

static CUgraphNode add_set(CUgraph graph, CUdeviceptr dst, unsigned value)
{
	CUgraphNode node;
	const CUDA_MEMSET_NODE_PARAMS params = {
		.dst = dst,
		.value = value,
		.elementSize = 1,
		.width = 64,
		.height = 1,
	};
	must_ok(cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, ctx));
	return node;
}

static CUDA_MEMCPY3D row_copy(CUdeviceptr dst)
{
	return (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = device_source,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = dst,
		.WidthInBytes = 64,
		.Height = 1,
		.Depth = 1,
	};
}

static void launch(CUgraphExec exec)
{
	must_ok(cuGraphLaunch(exec, stream));
	must_ok(cuStreamSynchronize(stream));
}

/* Nodes of graphs that write, on four pages: as they were made, and as they were changed. */
static void graphs(void)
{
	static uint8_t before[N_BYTES];
	CUdeviceptr ptrs[3];
	CUgraph graph;
	CUgraph child;
	CUgraphNode nodes[4];
	CUgraphExec exec;
	start(0);
	make_sources();
	for (int i = 0; i < 3; i++) {
		ptrs[i] = alloc(N_BYTES);
		fill(ptrs[i], 1);
	}
	memcpy(before, bytes, N_BYTES);
	CUstreamBatchMemOpParams op = word_op(ptrs[1], 0x03030303);
	CUDA_BATCH_MEM_OP_NODE_PARAMS words = {.ctx = ctx, .count = 1, .paramArray = &op};
	CUDA_MEMCPY3D row = row_copy(ptrs[0] + PAGE);
	must_ok(cuGraphCreate(&child, 0));
	CUgraphNode inner = add_set(child, ptrs[1] + PAGE, 4);
	must_ok(cuGraphCreate(&graph, 0));
	nodes[0] = add_set(graph, ptrs[0], 1);
	must_ok(cuGraphAddMemcpyNode(&nodes[1], graph, NULL, 0, &row, ctx));
	must_ok(cuGraphAddBatchMemOpNode(&nodes[2], graph, NULL, 0, &words));
	must_ok(cuGraphAddChildGraphNode(&nodes[3], graph, NULL, 0, child));
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));

	for (int i = 0; i < 3; i++) {
		seal(ptrs[i]);
	}
	launch(exec);
	must(n_copies() == 4);
	memset(bytes, 1, 64);
	memcpy(bytes + PAGE, source, 64);
	expect(ptrs[0], bytes, "first");
	memcpy(bytes, before, N_BYTES);
	memset(bytes, 3, 4);
	memset(bytes + PAGE, 4, 64);
	expect(ptrs[1], bytes, "second");
	expect(ptrs[2], before, "third");
	launch(exec);
	must(n_copies() == 4);

	/* All of them write to the third now, one after the other. It is private when they are told. */
	memcpy(bytes, before, N_BYTES);
	CUDA_MEMSET_NODE_PARAMS set = {
		.dst = ptrs[2], .value = 5, .elementSize = 1, .width = 64, .height = 1};
	must(glake_unseal(ptrs[2], N_BYTES) == 0);
	must_ok(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &set, ctx));
	seal(ptrs[2]);
	launch(exec);
	must(n_copies() == 5);
	memset(bytes, 5, 64);
	expect(ptrs[2], bytes, "set");
	row.dstDevice = ptrs[2] + PAGE;
	must(glake_unseal(ptrs[2], N_BYTES) == 0);
	must_ok(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &row, ctx));
	seal(ptrs[2]);
	launch(exec);
	memcpy(bytes + PAGE, source, 64);
	expect(ptrs[2], bytes, "copied");
	op.writeValue.address = ptrs[2] + 128;
	must(glake_unseal(ptrs[2], N_BYTES) == 0);
	must_ok(cuGraphExecBatchMemOpNodeSetParams(exec, nodes[2], &words));
	seal(ptrs[2]);
	CUDA_BATCH_MEM_OP_NODE_PARAMS wrong = {.ctx = ctx, .count = 1};
	must(cuGraphExecBatchMemOpNodeSetParams(exec, nodes[2], &wrong) != CUDA_SUCCESS);
	must(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], NULL, ctx) != CUDA_SUCCESS);
	must(cuGraphExecMemsetNodeSetParams(exec, nodes[0], NULL, ctx) != CUDA_SUCCESS);
	launch(exec);
	memset(bytes + 128, 3, 4);
	expect(ptrs[2], bytes, "words");
	set.dst = ptrs[2] + PAGE + 128;
	must(glake_unseal(ptrs[2], N_BYTES) == 0);
	must_ok(cuGraphMemsetNodeSetParams(inner, &set));
	must_ok(cuGraphExecChildGraphNodeSetParams(exec, nodes[3], child));
	seal(ptrs[2]);
	launch(exec);
	memset(bytes + PAGE + 128, 5, 64);
	expect(ptrs[2], bytes, "child");

	/* Nothing of it writes to the others any more; and as it was made, again. */
	seal(ptrs[0]);
	seal(ptrs[1]);
	uint64_t n = n_copies();
	launch(exec);
	must(n_copies() == n);
	CUgraphExecUpdateResultInfo why;
	must(glake_unseal(ptrs[0], N_BYTES) == 0);
	must(glake_unseal(ptrs[1], N_BYTES) == 0);
	must_ok(cuGraphExecUpdate(exec, graph, &why));
	for (int i = 0; i < 3; i++) {
		seal(ptrs[i]);
	}
	launch(exec);
	must(n_copies() == n + 4);
	expect(ptrs[2], bytes, "not any more");
	must_ok(cuGraphExecDestroy(exec));
}

/*
 * Memory is sealed when nodes that write there are made and changed, and when executables are. Nothing is written
 * before the launch, and then all.
 */
static void sealed_destinations(void)
{
	CUgraph graph;
	CUgraph child;
	CUgraphNode nodes[4];
	CUgraphExec exec;
	CUgraphExecUpdateResultInfo why;
	start(0);
	make_sources();
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr next = alloc(N_BYTES);
	fill(ptr, 1);
	fill(next, 1);
	CUstreamBatchMemOpParams op = word_op(ptr + 256, 0x03030303);
	CUDA_BATCH_MEM_OP_NODE_PARAMS words = {.ctx = ctx, .count = 1, .paramArray = &op};
	CUDA_MEMCPY3D row = row_copy(ptr + 128);
	CUDA_MEMSET_NODE_PARAMS set = {
		.dst = ptr + PAGE, .value = 4, .elementSize = 1, .width = 64, .height = 1};
	must_ok(cuGraphCreate(&graph, 0));
	must_ok(cuGraphCreate(&child, 0));

	/* Made. */
	seal(ptr);
	nodes[0] = add_set(graph, ptr, 1);
	seal(ptr);
	must_ok(cuGraphAddMemcpyNode(&nodes[1], graph, NULL, 0, &row, ctx));
	seal(ptr);
	must_ok(cuGraphAddBatchMemOpNode(&nodes[2], graph, NULL, 0, &words));
	CUgraphNode inner = add_set(child, ptr + PAGE, 4);
	must_ok(cuGraphAddChildGraphNode(&nodes[3], graph, NULL, 0, child));
	seal(ptr);
	must(n_copies() == 4);
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	must(n_copies() == 6);
	expect(ptr, bytes, "before the launch");
	launch(exec);
	memset(bytes, 1, 64);
	memcpy(bytes + 128, source, 64);
	memset(bytes + 256, 3, 4);
	memset(bytes + PAGE, 4, 64);
	expect(ptr, bytes, "made");

	/* Changed, in the graph and in the executable: all to the other memory. */
	fill(next, 2);
	set.dst = next;
	set.value = 5;
	seal(next);
	must_ok(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &set, ctx));
	row.dstDevice = next + 128;
	seal(next);
	must_ok(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &row, ctx));
	op.writeValue.address = next + 256;
	seal(next);
	must_ok(cuGraphExecBatchMemOpNodeSetParams(exec, nodes[2], &words));
	set.dst = next + PAGE;
	seal(next);
	must_ok(cuGraphMemsetNodeSetParams(inner, &set));
	seal(next);
	must_ok(cuGraphExecChildGraphNodeSetParams(exec, nodes[3], child));
	seal(next);
	launch(exec);
	memset(bytes, 5, 64);
	memcpy(bytes + 128, source, 64);
	memset(bytes + 256, 3, 4);
	memset(bytes + PAGE, 5, 64);
	expect(next, bytes, "changed");

	/* By the generic calls, and all at once. */
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	memcpy(&params.memset, &set, sizeof(set));
	params.memset.dst = next + 512;
	params.memset.value = 6;
	params.memset.ctx = ctx;
	seal(next);
	must_ok(cuGraphExecNodeSetParams(exec, nodes[0], &params));
	seal(next);
	must_ok(cuGraphNodeSetParams(nodes[0], &params));
	must_ok(cuGraphMemcpyNodeSetParams(nodes[1], &row));
	must_ok(cuGraphBatchMemOpNodeSetParams(nodes[2], &words));
	seal(next);
	seal(ptr);
	must_ok(cuGraphExecUpdate(exec, graph, &why));
	launch(exec);
	memset(bytes + 512, 6, 64);
	expect(next, bytes, "by the generic calls");
	must_ok(cuGraphExecDestroy(exec));
}

/* Work that does not end: the write fails, and works once it has. */
static void work_under_way(void)
{
	CUstream other;
	start(0);
	other = new_stream();
	CUdeviceptr ptr = alloc_sealed(1);
	close_gate(stream);
	must_be(cuMemsetD8Async(ptr, 8, N_BYTES, other), CUDA_ERROR_OUT_OF_MEMORY);
	must_ok(cuMemcpyDtoHAsync(seen, ptr, N_BYTES, other));
	must_ok(cuStreamSynchronize(other));
	must(same_bytes(seen, bytes, N_BYTES));
	open_gate();
	must_ok(cuMemsetD8Async(ptr, 9, N_BYTES, other));
	must_ok(cuStreamSynchronize(other));
	memset(bytes, 9, N_BYTES);
	expect(ptr, bytes, "in the end");
}

/* How long it was held back: not at all for work that does not end. */
static void held_back(void)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	const struct glake_span span = {ptr, N_BYTES};
	fill(ptr, 1);
	close_gate(stream);
	must(glake_seal(&span, 1, &sealed) == -EBUSY);
	must(sealed.sealed_bytes == 0);
	open_gate();
	must_ok(cuStreamSynchronize(stream));
	sealed = try_seal(ptr);
	must(sealed.sealed_bytes == N_BYTES);
	must(sealed.longest_held_ns > 0 && sealed.held_ns >= sealed.longest_held_ns);
	must(try_seal(ptr).held_ns == 0);
}

/* Many parts, by a driver that is slow: not all at once. */
static void in_pieces(void)
{
	enum { N_SPANS = 20 };
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	struct glake_span spans[2][N_SPANS];
	start(0);
	for (unsigned k = 0; k < 2; k++) {
		for (unsigned i = 0; i < N_SPANS; i++) {
			spans[k][i] = (struct glake_span){alloc(PAGE), PAGE};
			must_ok(cuMemsetD8(spans[k][i].ptr, (unsigned char)i, PAGE));
		}
		must_ok(cuCtxSynchronize());
		must(seal_in_time(spans[k], N_SPANS, &sealed) == 0);
		must(sealed.sealed_bytes == N_SPANS * PAGE);
		must(sealed.shared_bytes == k * N_SPANS * PAGE);
		must(sealed.held_ns > 20000000);
		must(sealed.longest_held_ns < sealed.held_ns / 4 * 3);
	}
}

/* Memory that no work uses is sealed in large and small, while work goes on. */
static void idle(void)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr twin = alloc(N_BYTES);
	CUdeviceptr used = alloc(N_BYTES);
	const struct glake_span cut = {ptr, PAGE};
	const struct glake_span whole = {ptr, N_BYTES};
	const struct glake_span equal[] = {{twin, PAGE}, {twin + PAGE, PAGE}};
	const struct glake_span other = {used, N_BYTES};
	fill(used, 1);
	fill(ptr, 1);
	fill(twin, 1);
	close_gate(stream);
	must(glake_seal_idle(&cut, 1, &sealed) == 0);
	must(sealed.sealed_bytes == PAGE && sealed.held_ns == 0);
	must(glake_seal_idle(&whole, 1, &sealed) == 0);
	must(sealed.sealed_bytes == N_BYTES);
	must(glake_seal_idle(equal, 2, &sealed) == 0);
	must(sealed.shared_bytes == N_BYTES && sealed.held_ns == 0);
	/* Only that memory was said to be idle, and only at that time. */
	must(glake_seal(&other, 1, &sealed) == -EBUSY);
	open_gate();
	must_ok(cuStreamSynchronize(stream));
	must(try_seal(used).held_ns > 0);
	expect(ptr, bytes, "first");
	expect(twin, bytes, "second");
	expect(used, bytes, "third");
	must_ok(cuMemsetD8(twin, 3, 1));
	must(n_copies() > 0);
	expect(ptr, bytes, "after a write to its twin");
}

/* On a slow machine the others' work does not end in time, and nothing is written. */
static void set_when_others_let(CUdeviceptr ptr, unsigned value, size_t n_words, CUstream on)
{
	CUresult result;
	do {
		result = cuMemsetD32Async(ptr, value, n_words, on);
	} while (result == CUDA_ERROR_OUT_OF_MEMORY);
	must_ok(result);
	must_ok(cuStreamSynchronize(on));
}

#define N_WRITERS 40

static struct writer {
	pthread_t thread;
	CUdeviceptr ptr;
} writers[N_WRITERS];
static pthread_barrier_t all_there;

static void *write_at_once(void *user)
{
	const struct writer *writer = user;
	CUstream own;
	must_ok(cuCtxSetCurrent(ctx));
	own = new_stream();
	pthread_barrier_wait(&all_there);
	set_when_others_let(writer->ptr, (unsigned)(writer - writers), PAGE / 4, own);
	return NULL;
}

/* Many threads write to sealed memory at once. */
static void crowd(void)
{
	start(0);
	must(pthread_barrier_init(&all_there, NULL, N_WRITERS) == 0);
	for (unsigned i = 0; i < N_WRITERS; i++) {
		writers[i].ptr = alloc(PAGE);
		const struct glake_span span = {writers[i].ptr, PAGE};
		must_ok(cuMemsetD8(writers[i].ptr, 7, PAGE));
		must(seal_in_time(&span, 1, NULL) == 0);
	}
	for (unsigned i = 0; i < N_WRITERS; i++) {
		must(pthread_create(&writers[i].thread, NULL, write_at_once, &writers[i]) == 0);
	}
	for (unsigned i = 0; i < N_WRITERS; i++) {
		pthread_join(writers[i].thread, NULL);
	}
	must(n_copies() == N_WRITERS);
	for (unsigned i = 0; i < N_WRITERS; i++) {
		unsigned words[2];
		must_ok(cuMemcpyDtoH(&words[0], writers[i].ptr, 4));
		must_ok(cuMemcpyDtoH(&words[1], writers[i].ptr + PAGE - 4, 4));
		must(words[0] == i && words[1] == i);
	}
}

static void expect_of_the_gpu(CUdeviceptr ptr)
{
	unsigned type = 0;
	int ordinal = -1;
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *to[] = {&type, &ordinal};
	must_ok(cuPointerGetAttribute(&type, which[0], ptr));
	must_ok(cuPointerGetAttribute(&ordinal, which[1], ptr));
	must(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
	type = 0;
	ordinal = -1;
	must_ok(cuPointerGetAttributes(2, which, to, ptr));
	must(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
}

/* The GPU has no memory for copies until the second line has come, but the host has. */
static void refuge(void)
{
	CUmemGenericAllocationHandle handle;
	start(0);
	CUdeviceptr own = map_own(&shareable, &handle);
	CUdeviceptr ptr = alloc(N_BYTES);
	CUdeviceptr freed = alloc(N_BYTES);
	CUdeviceptr other_one = alloc(N_BYTES);
	fill(other_one, 2);
	fill(ptr, 1);
	fill(freed, 1);
	seal(other_one);
	seal(ptr);
	seal(freed);
	must(seal_span(own, N_BYTES) == N_BYTES);
	wait_for_line();
	must_ok(cuMemsetD8(ptr, 8, N_BYTES));
	must_ok(cuMemsetD8(freed, 8, N_BYTES));
	must_ok(cuMemsetD8(own, 8, N_BYTES));
	memset(bytes, 8, N_BYTES);
	expect(ptr, bytes, "in host memory");
	expect(own, bytes, "in host memory, mapped by the program");
	/* To the program the memory is where it was made. */
	expect_of_the_gpu(ptr);
	expect_of_the_gpu(own);
	must_ok(cuMemUnmap(own, N_BYTES));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemAddressFree(own, 2 * N_BYTES));
	/* Kernels write there as well, and it is not sealed. */
	must(seal_span(ptr, N_BYTES) == 0);
	must_ok(write_by_kernel(ptr, PAGE, 0x07070707));
	memset(bytes, 7, PAGE);
	expect(ptr, bytes, "worked on");
	/* The memory that was there is nobody's warm memory. */
	must_ok(cuMemFree(freed));
	wait_for_line();
	expect(ptr, bytes, "asked for");
	wait_for_line();
	must_ok(cuMemsetD8(ptr, 9, N_BYTES));
	memset(bytes, 9, N_BYTES);
	expect(ptr, bytes, "on the GPU again");
	must(seal_span(ptr, N_BYTES) == N_BYTES);
	expect(ptr, bytes, "sealed again");
}

/* Memory of the program's own, @n_blocks of N_BYTES side by side, each sealed: one write to it is as many copies. */
static CUdeviceptr map_blocks(unsigned n_blocks)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemAddressReserve(&ptr, n_blocks * N_BYTES, 0, 0, 0));
	for (unsigned i = 0; i < n_blocks; i++) {
		CUmemGenericAllocationHandle handle;
		must_ok(cuMemCreate(&handle, N_BYTES, &shareable, 0));
		must_ok(cuMemMap(ptr + i * N_BYTES, N_BYTES, 0, handle, 0));
		must_ok(cuMemRelease(handle));
		must_ok(cuMemSetAccess(ptr + i * N_BYTES, N_BYTES, &writable, 1));
		fill(ptr + i * N_BYTES, i);
	}
	must(seal_span(ptr, n_blocks * N_BYTES) == n_blocks * N_BYTES);
	return ptr;
}

/* Write to all of them at once. */
static void write_blocks(CUdeviceptr ptr, unsigned n_blocks)
{
	must_ok(cuMemsetD8(ptr, 8, n_blocks * N_BYTES));
	memset(bytes, 8, N_BYTES);
	for (unsigned i = 0; i < n_blocks; i++) {
		expect(ptr + i * N_BYTES, bytes, "written");
	}
}

/* One write to several blocks, while the GPU has no memory for copies. */
static void one_refuge(void)
{
	enum { N_BLOCKS = 4 };
	start(0);
	CUdeviceptr ptr = map_blocks(N_BLOCKS);
	wait_for_line();
	write_blocks(ptr, N_BLOCKS);
	wait_for_line();
}

static bool is_over;

/* One after the other, until it is over. */
static void *end_contexts(void *user)
{
	(void)user;
	while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
		CUcontext other = NULL;
		must_ok(cuCtxCreate_v2(&other, 0, 0));
		usleep(5000);
		must_ok(cuCtxDestroy(other));
	}
	return NULL;
}

/* Another thread ends contexts while memory becomes private: each copy finds a context all the same. */
static void contexts_end(void)
{
	enum { N_BLOCKS = 8 };
	pthread_t thread;
	start(0);
	CUdeviceptr ptr = map_blocks(N_BLOCKS);
	must(pthread_create(&thread, NULL, end_contexts, NULL) == 0);
	for (unsigned round = 0; round < 4; round++) {
		must(round == 0 || seal_span(ptr, N_BLOCKS * N_BYTES) == N_BLOCKS * N_BYTES);
		write_blocks(ptr, N_BLOCKS);
	}
	__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
}

/* There is no memory for copies until the second line has come. */
static void poor(void)
{
	start(0);
	CUdeviceptr ptr = alloc_sealed(1);
	wait_for_line();
	must_be(cuMemsetD8(ptr, 8, N_BYTES), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(cuMemsetD32(ptr, 8, 1), CUDA_ERROR_OUT_OF_MEMORY);
	expect(ptr, bytes, "without memory");
	wait_for_line();
	must_ok(cuMemsetD8(ptr, 9, N_BYTES));
	memset(bytes, 9, N_BYTES);
	expect(ptr, bytes, "with memory");
}

/* Two threads write to memory of theirs, page by page, which a third seals all the time. */
#define N_ROUNDS 60u

static struct {
	pthread_t thread;
	CUdeviceptr ptr;
	unsigned first; /* the value of its first round */
} pairs[2];

static void *write_on(void *user)
{
	uint32_t words[8];
	const unsigned me = (unsigned)(uintptr_t)user;
	must_ok(cuCtxSetCurrent(ctx));
	for (unsigned i = 0; i < N_ROUNDS; i++) {
		uint32_t value = pairs[me].first + i;
		CUdeviceptr at = pairs[me].ptr + i % 2 * PAGE;
		set_when_others_let(at, value, PAGE / 4, NULL);
		must_ok(cuMemcpyDtoH(words, at + PAGE / 2, sizeof(words)));
		must(words[0] == value && words[7] == value);
		/* The other page is that of the round before. */
		must_ok(cuMemcpyDtoH(words, pairs[me].ptr + (i + 1) % 2 * PAGE, sizeof(words)));
		must(words[3] == (i ? value - 1 : 0));
	}
	return NULL;
}

static void *seal_on(void *user)
{
	unsigned *n_sealed = user;
	must_ok(cuCtxSetCurrent(ctx));
	while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
		struct glake_sealed sealed = {.size = sizeof(sealed)};
		const struct glake_span spans[] = {{pairs[0].ptr, N_BYTES},
		                                   {pairs[1].ptr, N_BYTES}};
		int r = glake_seal(spans, 2, &sealed);
		must(r == 0 || r == -EBUSY || r == -EAGAIN);
		*n_sealed += (unsigned)(sealed.sealed_bytes / PAGE);
	}
	return NULL;
}

static void two_writers(void)
{
	pthread_t sealer;
	unsigned n_sealed = 0;
	start(0);
	for (unsigned i = 0; i < 2; i++) {
		pairs[i].ptr = alloc(N_BYTES);
		pairs[i].first = 1 + i * 1000;
		must_ok(cuMemsetD8(pairs[i].ptr, 0, N_BYTES));
	}
	must(pthread_create(&sealer, NULL, seal_on, &n_sealed) == 0);
	for (unsigned i = 0; i < 2; i++) {
		must(pthread_create(&pairs[i].thread, NULL, write_on, (void *)(uintptr_t)i) == 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(pairs[i].thread, NULL);
	}
	__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
	pthread_join(sealer, NULL);
	must(n_sealed > 0);
}

/* Seals, and says at each line whether its bytes are what they were. */
static void keep(void)
{
	start(0);
	CUdeviceptr ptr = alloc_sealed(1);
	for (;;) {
		wait_for_line();
		expect(ptr, bytes, "kept");
	}
}

/* Has the bytes of keep(); at some call from the line on it may be killed. */
static void be_killed(void)
{
	/* Rules are about those called so: the service thread of the one that keeps makes calls as well. */
	static char name[] = "victim";
	program_invocation_short_name = name;
	start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	fill(ptr, 1);
	wait_for_line();
	must(seal(ptr) == N_BYTES);
	must_ok(cuMemsetD8(ptr + PAGE, 8, 16));
	memset(bytes + PAGE, 8, 16);
	expect(ptr, bytes, "written");
	seal(ptr);
	unseal(ptr);
	expect(ptr, bytes, "unsealed");
	must_ok(cuMemFree(ptr));
}

/* Writes what it likes, whatever becomes of glaked and of sealing from the line on. */
static void endure(void)
{
	start(0);
	CUdeviceptr ptr = alloc(N_BYTES);
	const struct glake_span spans[] = {{ptr, PAGE}, {ptr + PAGE, PAGE}};
	fill(ptr, 1);
	wait_for_line();
	for (uint8_t i = 0; i < 2; i++) {
		glake_seal(spans, 2, NULL);
		expect(ptr, bytes, "sealed");
		must_ok(cuMemsetD8(ptr + PAGE, i, 16));
		memset(bytes + PAGE, i, 16);
		expect(ptr, bytes, "written");
	}
	unseal(ptr);
	fill(ptr, 2);
	expect(ptr, bytes, "written whole");
	must_ok(cuMemFree(ptr));
}

/* glaked has gone when the first line has come, and another is there with the second. */
static void orphaned(void)
{
	CUdeviceptr ptrs[2];
	start(0);
	for (unsigned i = 0; i < 2; i++) {
		ptrs[i] = alloc_sealed(1);
	}
	for (unsigned i = 0; i < 2; i++) {
		wait_for_line();
		fill(ptrs[0], 1 + i);
		expect(ptrs[0], bytes, "written whole");
		must_ok(cuMemsetD8Async(ptrs[i] + i * PAGE, 9, 16, stream));
		must_ok(cuStreamSynchronize(stream));
	}
	fill(ptrs[1], 5);
	expect(ptrs[1], bytes, "the other");
	must_ok(cuMemFree(ptrs[0]));
	must_ok(cuMemFree(ptrs[1]));
}

/* Whichever call ends sealed memory: then nothing is held any more. */
static void ends(void)
{
	CUcontext made;
	CUdeviceptr ptr;
	for (unsigned i = 0; i < 6; i++) {
		start(0);
		if (i < 3) {
			ptr = alloc(N_BYTES);
		} else if (i == 5) {
			must_ok(cuCtxCreate(&made, NULL, 0, 0));
			ptr = alloc(N_BYTES);
		} else {
			ptr = alloc_on(stream, N_BYTES);
			must_ok(cuStreamSynchronize(stream));
		}
		fill(ptr, 1);
		seal(ptr);
		/* Half of it is private again. */
		must_ok(cuMemsetD8Async(ptr, 1, 1, stream));
		must_ok(cuStreamSynchronize(stream));
		switch (i) {
		case 0:
		case 3:
			must_ok(cuMemFree(ptr));
			break;
		case 1:
		case 4:
			must_ok(cuMemFreeAsync(ptr, stream));
			must_ok(cuStreamSynchronize(stream));
			break;
		case 2:
			must_ok(cuDevicePrimaryCtxReset(0));
			start(0);
			break;
		default:
			must_ok(cuCtxDestroy(made));
			must_ok(cuCtxSetCurrent(ctx));
		}
		/* In stream order it is back with the next allocation. */
		CUdeviceptr next = alloc_on(stream, N_BYTES);
		must_ok(cuMemsetD8Async(next, 3, N_BYTES, stream));
		must_ok(cuStreamSynchronize(stream));
		must_ok(cuMemFree(next));
		wait_for_line();
	}
}

/* One chunk has all three: it is cut while work on those beside the sealed one is held back. */
static void stitched(void)
{
	start(0);
	must_ok(cuMemFreeAsync(alloc_on(stream, 16 * N_BYTES), stream));
	CUdeviceptr first = alloc_on(stream, N_BYTES);
	CUdeviceptr ptr = alloc_on(stream, N_BYTES);
	CUdeviceptr last = alloc_on(stream, N_BYTES);
	must(ptr == first + N_BYTES && last == ptr + N_BYTES);
	must_ok(cuMemsetD8Async(first, 1, N_BYTES, stream));
	fill(ptr, 5);
	must_ok(cuStreamSynchronize(stream));
	close_gate(stream);
	must_ok(cuMemsetD8Async(last, 3, N_BYTES, stream));
	must_ok(cuMemsetD8Async(first, 4, N_BYTES, stream));
	open_gate();
	seal(ptr);
	expect(ptr, bytes, "sealed");
	uint64_t n_before = n_copies();
	must_ok(cuMemsetD8(ptr + 7, 9, 1));
	must(n_copies() == n_before + 1);
	bytes[7] = 9;
	expect(ptr, bytes, "written");
	must_ok(cuMemFreeAsync(ptr, stream));
	for (unsigned i = 0; i < 8; i++) {
		/* Memory that is allocated anew is nobody's block, so nobody needs a copy. */
		ptr = alloc_on(stream, N_BYTES);
		n_before = n_copies();
		must_ok(cuMemsetD8Async(ptr, 6, N_BYTES, stream));
		must(n_copies() == n_before);
		must_ok(cuStreamSynchronize(stream));
		memset(bytes, 6, N_BYTES);
		expect(ptr, bytes, "allocated anew");
	}
	memset(bytes, 4, N_BYTES);
	expect(first, bytes, "in front");
	memset(bytes, 3, N_BYTES);
	expect(last, bytes, "behind");
	/* The context ends with sealed memory in it. */
	memset(bytes, 4, N_BYTES);
	seal(first);
	must_ok(cuDevicePrimaryCtxReset(0));
	start(0);
	ptr = alloc_on(stream, N_BYTES);
	must_ok(cuMemsetD8Async(ptr, 2, N_BYTES, stream));
	must_ok(cuStreamSynchronize(stream));
	memset(bytes, 2, N_BYTES);
	expect(ptr, bytes, "after a reset");
}

static const struct scenario scenarios[] = {
	{"stitched", stitched},
	{"one_library", one_library},
	{"own_session", own_session},
	{"weights", weights},
	{"all_writes", all_writes},
	{"graphs", graphs},
	{"sealed_destinations", sealed_destinations},
	{"names", names},
	{"own_mappings", own_mappings},
	{"numbers", numbers},
	{"numbers_given", numbers_given},
	{"side_by_side", side_by_side},
	{"cancelled", cancelled},
	{"peers", peers},
	{"captures", captures},
	{"captures_beside_work", captures_beside_work},
	{"captures_behind_work", captures_behind_work},
	{"work_under_way", work_under_way},
	{"held_back", held_back},
	{"idle", idle},
	{"in_pieces", in_pieces},
	{"crowd", crowd},
	{"two_writers", two_writers},
	{"keep", keep},
	{"be_killed", be_killed},
	{"poor", poor},
	{"refuge", refuge},
	{"one_refuge", one_refuge},
	{"contexts_end", contexts_end},
	{"endure", endure},
	{"orphaned", orphaned},
	{"ends", ends},
};

int main(int argc, char **argv)
{
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}

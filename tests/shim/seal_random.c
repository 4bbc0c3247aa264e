/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that does random things with memory that it seals, linked against the driver and the library.
 *
 *   seal_random SEED SECONDS
 *
 * It has a plain model of its memory, byte by byte, and compares all of it after each step. What it writes is
 * often what others of its kind write, so that blocks are shared. A second thread seals whatever there is at
 * any time; only kernels are kept apart from it, as the library wants. Where there is no memory for a copy,
 * a write fails and the old bytes stay.
 *
 * It ends with 0 and a line of numbers, or with 1 and a line on stderr.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "tests/harness/churn.h"
#include "tests/shim/device.h"

#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define MAX_BYTES (3 * PAGE)
#define N_BUFFERS 3u
#define N_CONTENTS 3u

struct buffer {
	_Atomic CUdeviceptr ptr; /* 0: there is none */
	_Atomic size_t n_bytes;
	uint8_t *model; /* MAX_BYTES */
};

static struct buffer buffers[N_BUFFERS];
static uint8_t scratch[MAX_BYTES];
static uint8_t contents[N_CONTENTS][MAX_BYTES];
static CUstream stream;
static CUfunction fill_kernel;
static CUdeviceptr source; /* on the device: content 0 */
static pthread_mutex_t no_seal = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_over;
static atomic_uint n_sealed, n_shared, n_seals_failed;
static unsigned n_steps, n_failed;
static unsigned seed;

/* All programs make the same contents. */
TEST_BYTE_LOOP static void make_contents(void)
{
	for (unsigned content = 0; content < N_CONTENTS; content++) {
		for (size_t i = 0; i < MAX_BYTES; i++) {
			contents[content][i] = (uint8_t)(i * (2 * content + 1) + i / 4099);
		}
	}
}

/* ---- steps ---- */

static struct buffer *pick_buffer(void)
{
	return &buffers[churn_pick(&seed, N_BUFFERS)];
}

/* Some bytes of a buffer; often whole pages. */
static void pick_part(const struct buffer *buffer, size_t *offset_out, size_t *n_out)
{
	size_t n_words = buffer->n_bytes / 16;
	size_t begin = churn_pick(&seed, (unsigned)n_words) * 16ull;
	size_t n = (1 + churn_pick(&seed, (unsigned)n_words)) * 16ull;
	if (churn_pick(&seed, 3) == 0) {
		begin = 0;
		n = buffer->n_bytes;
	}
	*offset_out = begin;
	*n_out = n < buffer->n_bytes - begin ? n : buffer->n_bytes - begin;
}

/* True: it has happened. */
static bool did(CUresult result, const char *what)
{
	n_failed += result == CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "%s: %d, in step %u\n", what, (int)result, n_steps);
		_exit(1);
	}
	return result == CUDA_SUCCESS;
}

static void allocate(struct buffer *buffer)
{
	CUdeviceptr ptr = 0;
	size_t n_bytes = (1 + churn_pick(&seed, (unsigned)(MAX_BYTES / 4096))) * 4096ull;
	if (churn_pick(&seed, 2) == 0) {
		n_bytes = (1 + churn_pick(&seed, MAX_BYTES / PAGE)) * PAGE;
	}
	CUresult result = churn_pick(&seed, 2) ? cuMemAlloc(&ptr, n_bytes)
	                                       : cuMemAllocAsync(&ptr, n_bytes, stream);
	if (!did(result, "allocate")) {
		return;
	}
	must_ok(cuStreamSynchronize(stream));
	/* A new buffer may hold anything: the copy is the model. */
	must_ok(cuMemcpyDtoH(buffer->model, ptr, n_bytes));
	buffer->n_bytes = n_bytes;
	buffer->ptr = ptr;
}

static void release(struct buffer *buffer)
{
	CUdeviceptr ptr = buffer->ptr;
	buffer->ptr = 0;
	if (churn_pick(&seed, 2)) {
		must_ok(cuMemFree(ptr));
	} else {
		must_ok(cuMemFreeAsync(ptr, stream));
	}
}

static void write_content(struct buffer *buffer)
{
	size_t at;
	size_t n;
	unsigned content = churn_pick(&seed, N_CONTENTS);
	pick_part(buffer, &at, &n);
	const uint8_t *bytes = contents[content] + at;
	CUdeviceptr to = buffer->ptr + at;
	CUresult result = content == 0 ? cuMemcpyDtoDAsync(to, source + at, n, stream)
	                               : cuMemcpyHtoD(to, bytes, n);
	if (did(result, "copy")) {
		memcpy(buffer->model + at, bytes, n);
	}
}

static void write_value(struct buffer *buffer)
{
	size_t at;
	size_t n;
	uint8_t value = (uint8_t)churn_pick(&seed, 256);
	uint32_t word = value * 0x01010101u;
	pick_part(buffer, &at, &n);
	CUdeviceptr to = buffer->ptr + at;
	CUresult result;
	switch (churn_pick(&seed, 4)) {
	case 0:
		result = cuMemsetD8(to, value, n);
		break;
	case 1:
		result = cuMemsetD32Async(to, word, n / 4, stream);
		break;
	case 2:
		result = cuStreamWriteValue32(stream, to, word, 0);
		n = 4;
		break;
	default:
		n = n < 4096 ? n : 4096;
		result = cuMemsetD2D8Async(to, n, value, n, 1, stream);
	}
	if (did(result, "set")) {
		memset(buffer->model + at, value, n);
	}
}

/* A block in a row of rows, around a border of pages. */
static void write_rows(struct buffer *buffer)
{
	const size_t pitch = 65536;
	size_t width = 16 * (1 + churn_pick(&seed, 256));
	size_t height = 1 + churn_pick(&seed, (unsigned)(buffer->n_bytes / pitch + 1));
	if (height * pitch > buffer->n_bytes || width * height > MAX_BYTES) {
		return;
	}
	const CUDA_MEMCPY2D form = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = contents[1],
		.srcPitch = width,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = buffer->ptr,
		.dstPitch = pitch,
		.WidthInBytes = width,
		.Height = height,
	};
	if (did(cuMemcpy2D(&form), "rows")) {
		for (size_t y = 0; y < height; y++) {
			memcpy(buffer->model + y * pitch, contents[1] + y * width, width);
		}
	}
}

/* To memory that is not sealed, and that nobody seals meanwhile. */
static void write_by_kernel(struct buffer *buffer)
{
	size_t at;
	size_t n;
	pick_part(buffer, &at, &n);
	CUdeviceptr to = buffer->ptr + at;
	uint64_t n_bytes = n;
	uint32_t value = churn_pick(&seed, 256);
	void *params[] = {&to, &n_bytes, &value};
	pthread_mutex_lock(&no_seal);
	if (glake_unseal(to, n) == 0) {
		must_ok(cuLaunchKernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
		must_ok(cuStreamSynchronize(stream));
		memset(buffer->model + at, (int)value, n);
	}
	pthread_mutex_unlock(&no_seal);
}

/* ---- sealing: both threads ---- */

static void seal_some(unsigned *state)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	struct glake_span spans[N_BUFFERS];
	size_t n_spans = 0;
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		CUdeviceptr ptr = buffers[i].ptr;
		size_t n_bytes = buffers[i].n_bytes;
		if (ptr && churn_pick(state, 2)) {
			size_t at = churn_pick(state, 2) *
			            churn_pick(state, (unsigned)(n_bytes / PAGE + 1)) * PAGE;
			if (at < n_bytes) {
				spans[n_spans++] = (struct glake_span){ptr + at, n_bytes - at};
			}
		}
	}
	pthread_mutex_lock(&no_seal);
	int r = glake_seal(spans, n_spans, &sealed);
	pthread_mutex_unlock(&no_seal);
	/* -EINVAL: one has been freed since. */
	n_seals_failed += r < 0 && r != -EINVAL;
	if (r == 0) {
		n_sealed += (unsigned)(sealed.sealed_bytes / PAGE);
		n_shared += (unsigned)(sealed.shared_bytes / PAGE);
	}
}

static void unseal_some(struct buffer *buffer)
{
	size_t at;
	size_t n;
	pick_part(buffer, &at, &n);
	n_failed += glake_unseal(buffer->ptr + at, n) < 0;
}

static void *seal_on_and_on(void *user)
{
	CUcontext ctx = user;
	unsigned state = seed ^ 0x5ea1;
	must_ok(cuCtxSetCurrent(ctx));
	while (!is_over) {
		seal_some(&state);
		usleep(churn_pick(&state, 5000));
	}
	return NULL;
}

/* ---- all of it ---- */

static void compare(const struct buffer *buffer, const char *what)
{
	size_t i = 0;
	if (!buffer->ptr) {
		return;
	}
	must_ok(cuMemcpyDtoH(scratch, buffer->ptr, buffer->n_bytes));
	if (same_bytes(scratch, buffer->model, buffer->n_bytes)) {
		return;
	}
	while (scratch[i] == buffer->model[i]) {
		i++;
	}
	fprintf(stderr, "after step %u (%s): byte 0x%zx of 0x%zx is 0x%x, not 0x%x\n", n_steps,
	        what, i, (size_t)buffer->n_bytes, scratch[i], buffer->model[i]);
	_exit(1);
}

static const struct {
	const char *name;
	void (*act)(struct buffer *buffer);
} acts[] = {
	{"content", write_content}, {"content", write_content},  {"value", write_value},
	{"rows", write_rows},       {"kernel", write_by_kernel}, {"unseal", unseal_some},
	{"release", release},
};
#define N_ACTS (sizeof(acts) / sizeof(acts[0]))

static void step(void)
{
	struct buffer *buffer = pick_buffer();
	const char *what = "allocate";
	n_steps++;
	if (!buffer->ptr) {
		allocate(buffer);
	} else if (churn_pick(&seed, 4) == 0) {
		what = "seal";
		seal_some(&seed);
	} else {
		unsigned i = churn_pick(&seed, N_ACTS);
		what = acts[i].name;
		acts[i].act(buffer);
	}
	must_ok(cuStreamSynchronize(stream));
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		compare(&buffers[i], what);
	}
}

static void start(CUcontext *ctx_out)
{
	static const uint32_t image[4] = {0xba55ed50}; /* the simulator knows kernels by name */
	CUmodule module;
	*ctx_out = use_device(0);
	stream = new_stream();
	must_ok(cuModuleLoadData(&module, image));
	must_ok(cuModuleGetFunction(&fill_kernel, module, "cudasim_fill"));
	/* The others may have all there is. */
	while (cuMemAlloc(&source, MAX_BYTES) == CUDA_ERROR_OUT_OF_MEMORY) {
		usleep(1000);
	}
	make_contents();
	must_ok(cuMemcpyHtoD(source, contents[0], MAX_BYTES));
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		buffers[i].model = malloc(MAX_BYTES);
		must(buffers[i].model);
	}
}

int main(int argc, char **argv)
{
	must(argc == 3);
	seed = (unsigned)strtoul(argv[1], NULL, 10);
	time_t end = time(NULL) + atoi(argv[2]);
	pthread_t sealer;
	CUcontext ctx;
	start(&ctx);
	must(pthread_create(&sealer, NULL, seal_on_and_on, ctx) == 0);
	/* On a slow machine the first seal may come late; if it never does, the test's own limit ends this. */
	while (time(NULL) < end || n_sealed == 0) {
		step();
	}
	is_over = true;
	pthread_join(sealer, NULL);
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		compare(&buffers[i], "all");
	}
	printf("%u steps, %u without memory; pages sealed %u, shared %u; seals failed %u\n",
	       n_steps, n_failed, n_sealed, n_shared, n_seals_failed);
	must(n_sealed > 0);
	return 0;
}

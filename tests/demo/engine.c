/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program as any other: it allocates and fills its weights by itself, with the driver's API. It
 * knows nothing of glake.
 *
 *   engine MODEL.safetensors forward|backward    the order in which it loads the tensors
 *
 * Then it says "ready ..." and takes commands: "verify" (compare all tensors with the file, or with what it has
 * written), "write" (overwrite one tensor), "quit". Each is answered by one line that starts with
 * the command's name. It ends with its parent.
 */
#include <cuda.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>

#include "tests/demo/weights.h"

#define MIB (1024ull * 1024)
#define PIECE_BYTES (8 * MIB)
#define MAX_TENSORS 4096u
#define WRITTEN_NAME "lm_head.weight"
#define WRITTEN_BYTE 0x3c

struct tensor {
	const char *name; /* of the file's header */
	const uint8_t *bytes;
	uint64_t n_bytes;
	CUdeviceptr ptr;
	bool is_written;
};

struct engine {
	struct file file;
	struct tensor tensors[MAX_TENSORS];
	size_t n_tensors;
	uint64_t n_bytes;
	uint8_t *piece; /* PIECE_BYTES of pinned memory */
	CUstream stream;
};

static void check(CUresult result, const char *what)
{
	const char *text = NULL;
	if (result != CUDA_SUCCESS) {
		cuGetErrorString(result, &text);
		fail("%s: %s", what, text ? text : "unknown error");
	}
}

static void make_context(struct engine *engine)
{
	CUdevice device;
	CUcontext context;
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuStreamCreate(&engine->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cuMemAllocHost((void **)&engine->piece, PIECE_BYTES), "cuMemAllocHost");
}

static void list_tensors(struct engine *engine)
{
	const char *name;
	json_t *value;
	json_object_foreach(engine->file.header, name, value)
	{
		struct tensor *tensor = &engine->tensors[engine->n_tensors];
		if (strcmp(name, "__metadata__") == 0) {
			continue;
		}
		if (++engine->n_tensors == MAX_TENSORS) {
			fail("more tensors than a demo has");
		}
		tensor->name = name;
		tensor->bytes = find_tensor(&engine->file, name, &tensor->n_bytes);
		engine->n_bytes += tensor->n_bytes;
	}
}

static void load(struct engine *engine, struct tensor *tensor)
{
	check(cuMemAlloc(&tensor->ptr, tensor->n_bytes), "cuMemAlloc");
	for (uint64_t at = 0; at < tensor->n_bytes; at += PIECE_BYTES) {
		uint64_t n_left = tensor->n_bytes - at;
		uint64_t n_bytes = n_left < PIECE_BYTES ? n_left : PIECE_BYTES;
		memcpy(engine->piece, tensor->bytes + at, n_bytes);
		check(cuMemcpyHtoDAsync(tensor->ptr + at, engine->piece, n_bytes, engine->stream),
		      "cuMemcpyHtoDAsync");
		check(cuStreamSynchronize(engine->stream), "cuStreamSynchronize");
	}
}

static void compare(struct engine *engine, const struct tensor *tensor)
{
	for (uint64_t at = 0; at < tensor->n_bytes; at += PIECE_BYTES) {
		uint64_t n_left = tensor->n_bytes - at;
		uint64_t n_bytes = n_left < PIECE_BYTES ? n_left : PIECE_BYTES;
		check(cuMemcpyDtoH(engine->piece, tensor->ptr + at, n_bytes), "cuMemcpyDtoH");
		bool is_equal = memcmp(engine->piece, tensor->bytes + at, n_bytes) == 0;
		if (tensor->is_written) {
			is_equal = engine->piece[0] == WRITTEN_BYTE &&
			           memcmp(engine->piece, engine->piece + 1, n_bytes - 1) == 0;
		}
		if (!is_equal) {
			fail("%s: wrong bytes in GPU memory", tensor->name);
		}
	}
}

static void compare_all(struct engine *engine)
{
	for (size_t i = 0; i < engine->n_tensors; i++) {
		compare(engine, &engine->tensors[i]);
	}
}

static const char *overwrite(struct engine *engine)
{
	for (size_t i = 0; i < engine->n_tensors; i++) {
		struct tensor *tensor = &engine->tensors[i];
		if (strcmp(tensor->name, WRITTEN_NAME) == 0) {
			check(cuMemsetD8(tensor->ptr, WRITTEN_BYTE, tensor->n_bytes), "cuMemsetD8");
			check(cuCtxSynchronize(), "cuCtxSynchronize");
			tensor->is_written = true;
		}
	}
	return WRITTEN_NAME;
}

static void serve(struct engine *engine)
{
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "write") == 0) {
			printf("write done %s\n", overwrite(engine));
		} else if (strcmp(line, "verify") == 0) {
			compare_all(engine);
			printf("verify ok tensors=%zu\n", engine->n_tensors);
		} else if (strcmp(line, "quit") == 0) {
			return;
		}
	}
}

int main(int argc, char **argv)
{
	static struct engine engine;
	bool is_backward = argc == 3 && strcmp(argv[2], "backward") == 0;
	if (argc != 3 || (!is_backward && strcmp(argv[2], "forward") != 0)) {
		fprintf(stderr, "usage: engine MODEL.safetensors forward|backward\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_file(&engine.file, argv[1]);
	make_context(&engine);
	list_tensors(&engine);
	for (size_t i = 0; i < engine.n_tensors; i++) {
		load(&engine, &engine.tensors[is_backward ? engine.n_tensors - 1 - i : i]);
	}
	compare_all(&engine);
	printf("ready tensors=%zu bytes=%" PRIu64 "\n", engine.n_tensors, engine.n_bytes);
	serve(&engine);
	for (size_t i = 0; i < engine.n_tensors; i++) {
		check(cuMemFree(engine.tensors[i].ptr), "cuMemFree");
	}
	json_decref(engine.file.header);
	puts("quit ok");
	return 0;
}

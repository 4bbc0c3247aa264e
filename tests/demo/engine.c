/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program as any other: it allocates and fills its weights by itself, with the driver's API, and has a kernel that
 * reads them. It knows nothing of glake.
 *
 *   engine MODEL.safetensors forward|backward    the order in which it loads the tensors
 *   engine --table                               print the table of readers for its kernel, and end
 *
 * Then it says "ready ..." and takes commands: "work" (from then on, whenever nothing else is to be done, a kernel reads the
 * next tensor, and its sum is compared), "verify" (compare all tensors with the file, or with what it has
 * written), "write" (overwrite one tensor), "quit". Each is answered by one line that starts with
 * the command's name. It ends with its parent.
 */
#include <cuda.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/cudasim/kernel_image.h"
#include "tests/demo/weights.h"
#include "tests/own_image.h"

#define MIB (1024ull * 1024)
#define PIECE_BYTES (8 * MIB)
#define MAX_TENSORS 4096u
#define WRITTEN_NAME "lm_head.weight"
#define WRITTEN_BYTE 0x3c
/* The time between two kernels. */
#define WORK_MS 10

struct tensor {
	const char *name; /* of the file's header */
	const uint8_t *bytes;
	uint64_t n_bytes;
	CUdeviceptr ptr;
	uint32_t sum; /* of its words of 4 bytes */
	bool is_written;
};

struct engine {
	struct file file;
	struct tensor tensors[MAX_TENSORS];
	size_t n_tensors;
	uint64_t n_bytes;
	uint8_t *piece; /* PIECE_BYTES of pinned memory */
	CUstream stream;
	CUfunction sum;
	CUdeviceptr result; /* of the kernel */
	bool works;
	size_t n_steps;
};

static uint32_t sum_of(const uint32_t *words, uint64_t n)
{
	uint32_t sum = 0;
	for (uint64_t i = 0; i < n; i++) {
		sum += words[i];
	}
	return sum;
}

/* ---- the kernel: *to += the sum of the words ---------------------------------------------------- */

struct sum_params {
	CUdeviceptr from;
	uint64_t n_words;
	CUdeviceptr to;
};

static const char ptx[] =
	".version 7.0\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry sum(.param .u64 from, .param .u64 n_words, .param .u64 to)\n"
	"{\n"
	"	.reg .pred over;\n"
	"	.reg .b32 word, all, t, b, s, g;\n"
	"	.reg .b64 base, at, i, n, step, out;\n"
	"	ld.param.u64 base, [from];\n"
	"	ld.param.u64 n, [n_words];\n"
	"	ld.param.u64 out, [to];\n"
	"	mov.u32 t, %tid.x;\n"
	"	mov.u32 b, %ctaid.x;\n"
	"	mov.u32 s, %ntid.x;\n"
	"	mov.u32 g, %nctaid.x;\n"
	"	mad.lo.u32 t, b, s, t;\n"
	"	mul.lo.u32 s, s, g;\n"
	"	cvt.u64.u32 i, t;\n"
	"	cvt.u64.u32 step, s;\n"
	"	mov.u32 all, 0;\n"
	"next:\n"
	"	setp.ge.u64 over, i, n;\n"
	"	@over bra end;\n"
	"	shl.b64 at, i, 2;\n"
	"	add.u64 at, at, base;\n"
	"	ld.u32 word, [at];\n"
	"	add.u32 all, all, word;\n"
	"	add.u64 i, i, step;\n"
	"	bra next;\n"
	"end:\n"
	"	red.add.u32 [out], all;\n"
	"	ret;\n"
	"}\n";

/* The kernel on cudasim. */
static void run_sum(const struct cudasim_run *run, const void *user)
{
	const struct sum_params *params = user;
	uint32_t words[4096];
	const uint64_t n_most = sizeof(words) / sizeof(words[0]);
	uint32_t sum;
	if (!run->load(run, params->to, &sum, sizeof(sum))) {
		return;
	}
	for (uint64_t at = 0; at < params->n_words; at += n_most) {
		uint64_t n = params->n_words - at < n_most ? params->n_words - at : n_most;
		if (!run->load(run, params->from + 4 * at, words, 4 * n)) {
			return;
		}
		sum += sum_of(words, n);
	}
	run->store(run, params->to, &sum, sizeof(sum));
}

static const struct cudasim_kernel kernels[] = {{"sum", run_sum, 3, {8, 8, 8}}};
static const struct cudasim_image image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = sizeof(kernels) / sizeof(kernels[0]),
	.kernels = kernels,
};

/* Whoever knows the source knows what it reads: through the word at byte 0 of its parameters. */
static void print_table(void)
{
	const void *const images[] = {ptx, &image};
	puts("glake-readers 1\nfor \"glake's demo\"");
	for (unsigned i = 0; i < 2; i++) {
		own_image_print(images[i], stdout);
		puts("function sum\n  reads 0");
	}
}

/* ---- weights ------------------------------------------------------------------------------------ */

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
	CUmodule module;
	char name[64] = "";
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuStreamCreate(&engine->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cuMemAllocHost((void **)&engine->piece, PIECE_BYTES), "cuMemAllocHost");
	check(cuDeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
	check(cuModuleLoadData(&module, strcmp(name, "CUDASIM") == 0 ? (const void *)&image : ptx),
	      "cuModuleLoadData");
	check(cuModuleGetFunction(&engine->sum, module, "sum"), "cuModuleGetFunction");
	check(cuMemAlloc(&engine->result, sizeof(uint32_t)), "cuMemAlloc");
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
		tensor->sum += sum_of((const uint32_t *)(const void *)engine->piece, n_bytes / 4);
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
			tensor->sum = (uint32_t)(tensor->n_bytes / 4) *
			              (WRITTEN_BYTE * 0x01010101u);
		}
	}
	return WRITTEN_NAME;
}

/* A kernel reads the next tensor. */
static void work(struct engine *engine)
{
	struct tensor *tensor = &engine->tensors[engine->n_steps++ % engine->n_tensors];
	struct sum_params params = {tensor->ptr, tensor->n_bytes / 4, engine->result};
	void *list[] = {&params.from, &params.n_words, &params.to};
	check(cuMemsetD32Async(engine->result, 0, 1, engine->stream), "cuMemsetD32Async");
	check(cuLaunchKernel(engine->sum, 64, 1, 1, 256, 1, 1, 0, engine->stream, list, NULL),
	      "cuLaunchKernel");
	check(cuMemcpyDtoHAsync(engine->piece, engine->result, sizeof(uint32_t), engine->stream),
	      "cuMemcpyDtoHAsync");
	check(cuStreamSynchronize(engine->stream), "cuStreamSynchronize");
	if (memcmp(engine->piece, &tensor->sum, sizeof(tensor->sum)) != 0) {
		fail("%s: a kernel has read wrong bytes", tensor->name);
	}
}

/* The next command; until it comes, the engine works. */
static char *await_command(struct engine *engine, char *line, int n_bytes)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	while (engine->works && poll(&input, 1, WORK_MS) == 0) {
		work(engine);
	}
	return fgets(line, n_bytes, stdin);
}

static void serve(struct engine *engine)
{
	char line[64];
	while (await_command(engine, line, sizeof(line))) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "work") == 0) {
			engine->works = true;
			puts("work begun");
		} else if (strcmp(line, "write") == 0) {
			printf("write done %s\n", overwrite(engine));
		} else if (strcmp(line, "verify") == 0) {
			compare_all(engine);
			printf("verify ok tensors=%zu, read by kernels %zu times\n",
			       engine->n_tensors, engine->n_steps);
		} else if (strcmp(line, "quit") == 0) {
			return;
		}
	}
}

int main(int argc, char **argv)
{
	static struct engine engine;
	bool is_backward = argc == 3 && strcmp(argv[2], "backward") == 0;
	if (argc == 2 && strcmp(argv[1], "--table") == 0) {
		print_table();
		return 0;
	}
	if (argc != 3 || (!is_backward && strcmp(argv[2], "forward") != 0)) {
		fprintf(stderr, "usage: engine MODEL.safetensors forward|backward\n"
		                "       engine --table\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0); /* poll() sees what has come */
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
	check(cuMemFree(engine.result), "cuMemFree");
	json_decref(engine.file.header);
	puts("quit ok");
	return 0;
}

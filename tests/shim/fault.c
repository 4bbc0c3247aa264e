/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose kernel writes to sealed memory, and what it is told.
 *
 *   fault FORM SEEN_BY END
 *
 * FORM: how the kernel is launched and given its pointer; SEEN_BY: the call that is told of the fault; END: how the
 * program ends with it. It prints "ready", reads a line, and prints where the kernel has written.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "tests/cudasim/kernel_image.h"
#include "tests/shim/device.h"
#include "tests/shim/seal_in_time.h"

#define PAGE (2ull << 20)
#define AT 4096u /* where it is written to */

/* As programs call them that are built for default streams by thread. */
__typeof__(cuLaunchKernel) cuLaunchKernel_ptsz;
__typeof__(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;

/* ---- kernels ---- */

struct plain {
	CUdeviceptr ptr;
};

struct nested {
	uint32_t n;
	struct {
		uint64_t strides[3];
		CUdeviceptr ptrs[2];
	} inner;
};

/* Words of 4 bytes, that side by side are an address. */
struct halves {
	uint32_t low, high;
	CUdeviceptr place;
};

static void read_it(const struct cudasim_run *run, const void *params)
{
	const struct plain *plain = params;
	uint32_t word;
	run->load(run, plain->ptr, &word, sizeof(word));
}

static void store(const struct cudasim_run *run, CUdeviceptr ptr)
{
	const uint32_t word = 0xbadbad;
	run->store(run, ptr, &word, sizeof(word));
}

static void write_plain(const struct cudasim_run *run, const void *params)
{
	store(run, ((const struct plain *)params)->ptr);
}

static void write_nested(const struct cudasim_run *run, const void *params)
{
	store(run, ((const struct nested *)params)->inner.ptrs[1]);
}

/* By a pointer that nobody sees. */
static void write_hidden(const struct cudasim_run *run, const void *params)
{
	CUdeviceptr ptr;
	if (run->load(run, ((const struct halves *)params)->place, &ptr, sizeof(ptr))) {
		store(run, ptr);
	}
}

static const struct cudasim_kernel kernels[] = {
	{"reader", read_it, 1, {sizeof(struct plain)}},
	{"guilty_plain", write_plain, 1, {sizeof(struct plain)}},
	{"guilty_nested", write_nested, 1, {sizeof(struct nested)}},
	{"guilty_hidden", write_hidden, 3, {4, 4, 8}},
};
static const struct cudasim_image image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = sizeof(kernels) / sizeof(kernels[0]),
	.kernels = kernels,
};

static CUmodule module;
static CUcontext ctx;
static CUstream stream;
static CUevent event;
static CUdeviceptr spare;
static CUfunction reader;

static CUfunction kernel(const char *name)
{
	CUfunction found;
	must_ok(cuModuleGetFunction(&found, module, name));
	return found;
}

static void launch(const char *name, void **params, void **extra)
{
	must_ok(cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, stream, params, extra));
}

/* ---- forms ---- */

static void seal(CUdeviceptr ptr)
{
	const struct glake_span span = {ptr, PAGE};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	must_ok(cuMemsetD8(ptr, 7, PAGE));
	must(seal_in_time(&span, 1, &sealed) == 0);
	must(sealed.sealed_bytes == PAGE);
}

static void read_many(CUdeviceptr ptr)
{
	reader = kernel("reader");
	for (unsigned i = 0; i < 100; i++) {
		void *params[] = {&ptr};
		launch("reader", params, NULL);
	}
}

static void plain(CUdeviceptr to)
{
	void *params[] = {&to};
	launch("guilty_plain", params, NULL);
}

static void nested(CUdeviceptr to)
{
	struct nested all = {.n = 7, .inner = {.ptrs = {0, to}}};
	void *params[] = {&all};
	launch("guilty_nested", params, NULL);
}

static void packed(CUdeviceptr to)
{
	struct nested all = {.n = 7, .inner = {.ptrs = {0, to}}};
	size_t n_bytes = sizeof(all);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE,
	                 &n_bytes, CU_LAUNCH_PARAM_END};
	launch("guilty_nested", NULL, extra);
}

static void cooperative(CUdeviceptr to)
{
	void *params[] = {&to};
	must_ok(cuLaunchCooperativeKernel(kernel("guilty_plain"), 1, 1, 1, 1, 1, 1, 0, stream,
	                                  params));
}

static const CUlaunchConfig *config(void)
{
	static CUlaunchConfig one = {
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
	};
	one.hStream = stream;
	return &one;
}

static void extended(CUdeviceptr to)
{
	void *params[] = {&to};
	must_ok(cuLaunchKernelEx(config(), kernel("guilty_plain"), params, NULL));
}

static void extended_own(CUdeviceptr to)
{
	void *params[] = {&to};
	must_ok(cuLaunchKernelEx_ptsz(config(), kernel("guilty_plain"), params, NULL));
}

static void own(CUdeviceptr to)
{
	void *params[] = {&to};
	must_ok(cuLaunchKernel_ptsz(kernel("guilty_plain"), 1, 1, 1, 1, 1, 1, 0, stream, params,
	                            NULL));
}

static void *in_thread(void *user)
{
	must_ok(cuCtxSetCurrent(ctx));
	plain(*(CUdeviceptr *)user);
	return NULL;
}

static void thread(CUdeviceptr to)
{
	pthread_t other;
	must(pthread_create(&other, NULL, in_thread, &to) == 0);
	must(pthread_join(other, NULL) == 0);
}

/* A child of the process knows nothing of its memory, and disturbs nobody. */
static void fork_first(CUdeviceptr to)
{
	int status;
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		must(cuCtxSynchronize() != CUDA_SUCCESS);
		_exit(0);
	}
	must(waitpid(child, &status, 0) == child && status == 0);
	plain(to);
}

static void hidden(CUdeviceptr to)
{
	CUdeviceptr place;
	uint32_t low = (uint32_t)to;
	uint32_t high = (uint32_t)(to >> 32);
	place = alloc(PAGE);
	must_ok(cuMemcpyHtoD(place, &to, sizeof(to)));
	void *params[] = {&low, &high, &place};
	launch("guilty_hidden", params, NULL);
}

/* Nobody has written to it. */
static void look(CUdeviceptr to)
{
	static uint8_t bytes[PAGE];
	must_ok(cuMemcpyDtoH(bytes, to - AT, PAGE));
	for (size_t i = 0; i < PAGE; i++) {
		must(bytes[i] == 7);
	}
}

static void elsewhere(CUdeviceptr to)
{
	must(glake_unseal(to - AT, PAGE) == 0);
	plain(8);
}

/* The first of these is a graph that is older than the sealing; the other one is captured now. */
static CUgraphExec old_graph;
static void replayed(CUdeviceptr to)
{
	(void)to;
	must_ok(cuGraphLaunch(old_graph, stream));
}

static CUgraphExec capture(CUdeviceptr to)
{
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	plain(to);
	must_ok(cuStreamEndCapture(stream, &graph));
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	must_ok(cuGraphDestroy(graph));
	return exec;
}

static void captured(CUdeviceptr to)
{
	must_ok(cuGraphLaunch(capture(to), stream));
}

/* Kernels are launched between sealings. */
static void resealed(CUdeviceptr to)
{
	for (unsigned i = 0; i < 10; i++) {
		CUdeviceptr other = alloc(PAGE);
		seal(other);
		read_many(other);
		must_ok(cuStreamSynchronize(stream));
	}
	plain(to);
}

static void unsealed(CUdeviceptr to)
{
	must(glake_unseal(to, 1) == 0);
	plain(to);
}

/* ---- who is told ---- */

static CUresult by_context(void)
{
	return cuCtxSynchronize();
}
static CUresult by_stream(void)
{
	return cuStreamSynchronize(stream);
}
static CUresult by_query(void)
{
	CUresult result;
	while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
	}
	return result;
}
static CUresult by_event(void)
{
	return cuEventSynchronize(event);
}
static CUresult by_event_query(void)
{
	CUresult result;
	while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
	}
	return result;
}
static CUresult by_copy(void)
{
	uint32_t word;
	return cuMemcpyDtoHAsync(&word, spare, sizeof(word), stream);
}
static CUresult by_launch(void)
{
	CUresult result = CUDA_SUCCESS;
	void *params[] = {&spare};
	while (result == CUDA_SUCCESS) {
		result = cuLaunchKernel(reader, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	}
	return result;
}
static CUresult by_free(void)
{
	return cuMemFree(spare);
}

/* ---- the end ---- */

static void end_at_once(void)
{
	_exit(0);
}
static void end_well(void)
{
	exit(0);
}
static void end_badly(void)
{
	abort();
}

#define ROW(name) \
	{ \
#name, name \
	}
static const struct {
	const char *name;
	void (*run)(CUdeviceptr to);
} forms[] = {
	ROW(plain),      ROW(nested),       ROW(packed),   ROW(cooperative),
	ROW(extended),   ROW(extended_own), ROW(own),      ROW(thread),
	ROW(fork_first), ROW(hidden),       ROW(look),     ROW(elsewhere),
	ROW(replayed),   ROW(captured),     ROW(resealed), ROW(unsealed),
};
static const struct {
	const char *name;
	CUresult (*run)(void);
} seers[] = {
	ROW(by_context),     ROW(by_stream), ROW(by_query),  ROW(by_event),
	ROW(by_event_query), ROW(by_copy),   ROW(by_launch), ROW(by_free),
};
static const struct {
	const char *name;
	void (*run)(void);
} ends[] = {ROW(end_at_once), ROW(end_well), ROW(end_badly)};

/* The kernels have had private memory before. */
static void prepare(CUdeviceptr ptr)
{
	CUdeviceptr other = alloc(PAGE);
	must_ok(cuModuleLoadData(&module, &image));
	stream = new_stream();
	must_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	plain(other);
	nested(other);
	hidden(other);
	must_ok(cuStreamSynchronize(stream));
	old_graph = capture(ptr + AT);
	seal(ptr);
	read_many(ptr);
	must_ok(cuStreamSynchronize(stream));
}

#define PICK(table, wanted) \
	({ \
		size_t i_ = 0; \
		while (strcmp((table)[i_].name, wanted) != 0) { \
			must(++i_ < sizeof(table) / sizeof((table)[0])); \
		} \
		(table)[i_].run; \
	})

int main(int argc, char **argv)
{
	char line[64];
	must(argc == 4);
	ctx = use_device(0);
	CUdeviceptr ptr = alloc(PAGE);
	spare = alloc(PAGE);
	prepare(ptr);
	puts("ready");
	fflush(stdout);
	must(fgets(line, sizeof(line), stdin));
	printf("written at 0x%llx\n", ptr + AT);
	fflush(stdout);
	bool is_good = strcmp(argv[1], "unsealed") == 0 || strcmp(argv[1], "look") == 0;
	/* The call that is told is made before the stream works; sealing waits for the stream. */
	if (!is_good && strcmp(argv[1], "elsewhere") != 0 && strcmp(argv[1], "resealed") != 0) {
		close_gate(stream);
	}
	PICK(forms, argv[1])(ptr + AT);
	cuEventRecord(event, stream);
	open_gate();
	must_be(PICK(seers, argv[2])(), is_good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
	PICK(ends, argv[3])();
	return 1;
}

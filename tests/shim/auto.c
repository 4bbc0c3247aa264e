/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that knows nothing of sealing, run with GLAKE_DEDUP=auto. It says a line for what the test waits for.
 *
 *   auto table FILE       write the table of readers that is true for this program, and end
 *   auto SCENARIO
 *   auto SEED SECONDS     all of it, at random
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cudasim/kernel_image.h"
#include "tests/harness/churn.h"
#include "tests/own_image.h"
#include "tests/shim/device.h"

#define PAGE (2ull << 20)
#define W_BYTES (2 * PAGE)
#define N_WORDS 64u /* that a reader reads, spread over the memory */

/* ---- kernels ---- */

struct read_params {
	CUdeviceptr from;
	CUdeviceptr to;
	uint64_t n_bytes;
};
struct write_params {
	CUdeviceptr to;
	uint32_t value;
};
struct place_params {
	CUdeviceptr place;
	uint32_t value;
};
struct add_params {
	CUdeviceptr x;
	uint32_t value; /* 0: it only reads */
};

static bool sum_of(const struct cudasim_run *run, CUdeviceptr from, uint64_t n_bytes,
                   uint64_t *sum_out)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < N_WORDS; i++) {
		uint32_t word;
		if (!run->load(run, from + n_bytes / N_WORDS * i, &word, sizeof(word))) {
			return false;
		}
		sum = sum * 31 + word;
	}
	*sum_out = sum;
	return true;
}

static void run_read(const struct cudasim_run *run, const void *params)
{
	const struct read_params *read = params;
	uint64_t sum;
	if (sum_of(run, read->from, read->n_bytes, &sum)) {
		run->store(run, read->to, &sum, sizeof(sum));
	}
}

static void run_write(const struct cudasim_run *run, const void *params)
{
	const struct write_params *write = params;
	run->store(run, write->to, &write->value, sizeof(write->value));
}

/* A kernel that writes what is there already. */
static void run_same(const struct cudasim_run *run, const void *params)
{
	const struct write_params *write = params;
	uint32_t word;
	if (run->load(run, write->to, &word, sizeof(word))) {
		run->store(run, write->to, &word, sizeof(word));
	}
}

/* By a pointer in device memory. */
static void run_hidden(const struct cudasim_run *run, const void *params)
{
	const struct place_params *place = params;
	CUdeviceptr to;
	if (run->load(run, place->place, &to, sizeof(to)) && to) {
		run->store(run, to, &place->value, sizeof(place->value));
	}
}

static void run_add(const struct cudasim_run *run, const void *params)
{
	const struct add_params *add = params;
	uint32_t word;
	if (run->load(run, add->x, &word, sizeof(word)) && add->value) {
		word += add->value;
		run->store(run, add->x, &word, sizeof(word));
	}
}

struct pair_params {
	CUdeviceptr from;
	CUdeviceptr to;
};

static void run_pair(const struct cudasim_run *run, const void *params)
{
	const struct pair_params *pair = params;
	uint32_t word;
	if (run->load(run, pair->from, &word, sizeof(word))) {
		run->store(run, pair->to, &word, sizeof(word));
	}
}

/* Words of the list that the kernel does not use may be left from anybody. */
struct gather_params {
	CUdeviceptr to;
	CUdeviceptr list[3]; /* with four the simulator would align it to 16 */
};

static void run_gather(const struct cudasim_run *run, const void *params)
{
	const struct gather_params *gather = params;
	uint32_t word;
	if (run->load(run, gather->list[0], &word, sizeof(word))) {
		run->store(run, gather->to, &word, sizeof(word));
	}
}

static atomic_bool is_released;

/* Until somebody else lets it. */
static void run_wait(const struct cudasim_run *run, const void *params)
{
	(void)run;
	(void)params;
	while (!is_released) {
		usleep(1000);
	}
}

/* The kernel writes long after it was launched. */
static void run_later(const struct cudasim_run *run, const void *params)
{
	run_wait(run, params);
	run_write(run, params);
}

static const struct cudasim_kernel kernels[] = {
	{"later", run_later, 2, {8, 4}},    {"read", run_read, 3, {8, 8, 8}},
	{"write", run_write, 2, {8, 4}},    {"same", run_same, 2, {8, 4}},
	{"hidden", run_hidden, 2, {8, 4}},  {"add", run_add, 2, {8, 4}},
	{"unlisted", run_write, 2, {8, 4}}, {"pair", run_pair, 2, {8, 8}},
	{"wait", run_wait, 1, {8}},         {"gather", run_gather, 2, {8, 24}},
};
static const struct cudasim_image image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = sizeof(kernels) / sizeof(kernels[0]),
	.kernels = kernels,
};

/* ---- the table ---- */

static const char table_text[] = "function read\n"
				 "  reads 0\n"
				 "function write\n"
				 "function same\n"
				 "opaque hidden\n"
				 "function gather\n"
				 "  writes 0\n"
				 "  reads 0\n" /* the line before it counts */
				 "function add # beta\n"
				 "  reads 0 if u32 8 = 0\n";

static void write_table(FILE *file)
{
	fputs("glake-readers 1\nfor \"tests/shim/auto\"\n", file);
	own_image_print(&image, file);
	fputs(table_text, file);
}

/* ---- the program ---- */

static CUmodule first_module; /* of the first thread */
static _Thread_local CUmodule module;
static _Thread_local CUstream stream;
/* Threads of others have such, too: it must not keep theirs from starting. */
static _Thread_local volatile char large[1 << 20];
static _Thread_local CUdeviceptr small; /* for sums and pointers */
static uint64_t (*count_of)(const char *name);

static CUfunction function_of(const char *name)
{
	CUfunction found;
	must_ok(cuModuleGetFunction(&found, module, name));
	return found;
}

/* The context, and a stream of this thread. */
static void begin_thread(void)
{
	use_device(0);
	stream = new_stream();
}

static void begin(void)
{
	large[0] = 1;
	must_ok(cuInit(0));
	begin_thread();
	must_ok(cuModuleLoadData(&module, &image));
}

/* The first memory, and with it the connection to glaked. */
static void start(void)
{
	first_module = module;
	small = alloc(4096);
	*(void **)&count_of = dlsym(RTLD_DEFAULT, "glake_shim_count");
	must(count_of);
}

struct weights {
	CUdeviceptr ptr;
	uint8_t *model;
};

/* The models of all weights: a scenario ends without freeing its own. */
static uint8_t *models[32];
static pthread_mutex_t models_lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t **model_of(const uint8_t *bytes)
{
	uint8_t **at = models;
	while (*at != bytes) {
		must(++at < models + sizeof(models) / sizeof(models[0]));
	}
	return at;
}

/* Returns memory, and the content that is to be copied to it. */
TEST_BYTE_LOOP static struct weights allocate(unsigned content)
{
	pthread_mutex_lock(&models_lock);
	uint8_t **model = model_of(NULL);
	*model = malloc(W_BYTES);
	must(*model);
	struct weights weights = {.model = *model};
	pthread_mutex_unlock(&models_lock);
	for (size_t i = 0; i < W_BYTES; i++) {
		weights.model[i] = (uint8_t)(i * (2 * content + 1) + i / 4099);
	}
	weights.ptr = alloc(W_BYTES);
	return weights;
}

static struct weights load(unsigned content)
{
	struct weights weights = allocate(content);
	must_ok(cuMemcpyHtoD(weights.ptr, weights.model, W_BYTES));
	return weights;
}

static void launch(const char *name, void **list)
{
	must_ok(cuLaunchKernel(function_of(name), 1, 1, 1, 1, 1, 1, 0, stream, list, NULL));
}

/* A kernel that is given an address and a word. */
static void launch_at(const char *name, CUdeviceptr to, uint32_t value)
{
	void *list[] = {&to, &value};
	launch(name, list);
}

static void launch_read(CUdeviceptr from, CUdeviceptr to, uint64_t n_bytes)
{
	void *list[] = {&from, &to, &n_bytes};
	launch("read", list);
}

static uint64_t sum_in(const struct weights *weights)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < N_WORDS; i++) {
		uint32_t word;
		memcpy(&word, weights->model + W_BYTES / N_WORDS * i, sizeof(word));
		sum = sum * 31 + word;
	}
	return sum;
}

static void read_it(const struct weights *weights)
{
	uint64_t sum;
	launch_read(weights->ptr, small, W_BYTES);
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuMemcpyDtoH(&sum, small, sizeof(sum)));
	must(sum == sum_in(weights));
}

static void compare(const struct weights *weights)
{
	uint8_t *bytes = malloc(W_BYTES);
	must(bytes);
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuMemcpyDtoH(bytes, weights->ptr, W_BYTES));
	must(same_bytes(bytes, weights->model, W_BYTES));
	free(bytes);
}

/* Read, as programs do, until @n allocations were sealed. */
static void read_until_sealed(const struct weights *weights, uint64_t n)
{
	while (count_of("sealed_alone") < n) {
		read_it(weights);
		usleep(1000);
	}
}

static struct weights load_sealed(void)
{
	struct weights weights = load(0);
	read_until_sealed(&weights, 1);
	return weights;
}

static void read_for_a_while(const struct weights *weights)
{
	for (unsigned i = 0; i < 2000; i++) {
		read_it(weights);
		usleep(1000);
	}
}

static void write_by(const char *name, const struct weights *weights, size_t at, uint32_t value)
{
	launch_at(name, weights->ptr + at, value);
	if (strcmp(name, "same") != 0) {
		memcpy(weights->model + at, &value, sizeof(value));
	}
}

static void add_by(const struct weights *weights, size_t at, uint32_t value)
{
	uint32_t word;
	launch_at("add", weights->ptr + at, value);
	memcpy(&word, weights->model + at, sizeof(word));
	word += value;
	memcpy(weights->model + at, &word, sizeof(word));
}

static void write_hidden(const struct weights *weights, size_t at, uint32_t value)
{
	CUdeviceptr to = weights->ptr + at;
	CUdeviceptr place = small + 512;
	must_ok(cuMemcpyHtoD(place, &to, sizeof(to)));
	launch_at("hidden", place, value);
	memcpy(weights->model + at, &value, sizeof(value));
}

/* ---- scenarios ---- */

static void pause_here(void)
{
	(void)!getchar();
}

/* Two programs of these have one copy, and it stays. */
static void reads(void)
{
	struct weights weights = load_sealed();
	say("sealed");
	pause_here();
	read_for_a_while(&weights);
	compare(&weights);
	must(count_of("copies") == 0);
}

static void gather(CUdeviceptr to, const struct weights *weights)
{
	struct gather_params gather = {to, {weights->ptr + 128, weights->ptr + PAGE, weights->ptr}};
	void *list[] = {&gather.to, gather.list};
	launch("gather", list);
}

/* The table names the word that this function writes through: no other word hurts, whatever it has. */
static void gathers(void)
{
	struct weights weights = load_sealed();
	gather(small, &weights);
	must_ok(cuStreamSynchronize(stream));
	must(count_of("copies") == 0);
	gather(weights.ptr + 4096, &weights);
	memcpy(weights.model + 4096, weights.model + 128, sizeof(uint32_t));
	compare(&weights);
	must(count_of("copies") > 0);
}

/* Each of these takes it back before it writes; and nothing is lost. */
static void write_plain(const struct weights *weights)
{
	write_by("write", weights, 4096, 7);
}
static void write_same(const struct weights *weights)
{
	write_by("same", weights, 8192, 7);
}
static void write_added(const struct weights *weights)
{
	add_by(weights, 0, 0);
	must_ok(cuStreamSynchronize(stream));
	must(count_of("copies") == 0);
	add_by(weights, 0, 5);
}
static void write_unlisted(const struct weights *weights)
{
	write_by("unlisted", weights, 4096, 9);
}
static void write_hiding(const struct weights *weights)
{
	write_hidden(weights, PAGE + 64, 11);
}
/* Its reading word is a reader's, and so is not the other one. */
static void write_itself(const struct weights *weights)
{
	uint64_t sum = sum_in(weights);
	launch_read(weights->ptr, weights->ptr + PAGE, W_BYTES);
	memcpy(weights->model + PAGE, &sum, sizeof(sum));
}
static void write_packed(const struct weights *weights)
{
	struct write_params write = {weights->ptr + 4096, 13};
	size_t n_bytes = sizeof(write);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &write, CU_LAUNCH_PARAM_BUFFER_SIZE,
	                 &n_bytes, CU_LAUNCH_PARAM_END};
	must_ok(cuLaunchKernel(function_of("write"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
	memcpy(weights->model + 4096, &write.value, sizeof(write.value));
}

/* One thread of that kernel. */
static CUDA_KERNEL_NODE_PARAMS node_of(CUfunction function, void **list)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = function,
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = list,
	};
}

static CUgraphExec graph_of(const char *name, CUdeviceptr to, uint32_t value, CUgraphNode *node_out,
                            CUgraph *graph_out)
{
	void *list[] = {&to, &value};
	const CUDA_KERNEL_NODE_PARAMS params = node_of(function_of(name), list);
	CUgraphExec exec;
	must_ok(cuGraphCreate(graph_out, 0));
	must_ok(cuGraphAddKernelNode(node_out, *graph_out, NULL, 0, &params));
	must_ok(cuGraphInstantiate(&exec, *graph_out, 0));
	return exec;
}

static void write_graph(const struct weights *weights)
{
	CUgraph graph;
	CUgraphNode node;
	uint32_t value = 15;
	CUgraphExec exec = graph_of("write", weights->ptr + 64, value, &node, &graph);
	must_ok(cuGraphLaunch(exec, stream));
	memcpy(weights->model + 64, &value, sizeof(value));
}

static void write_captured(const struct weights *weights)
{
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	write_by("write", weights, 4096, 17);
	must_ok(cuStreamEndCapture(stream, &graph));
	must(count_of("copies") == 0);
	must_ok(cuGraphInstantiate(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, stream));
}

/* A graph that writes elsewhere, and then here. */
static _Thread_local CUgraphExec old_exec;
static _Thread_local CUgraphNode old_node;
static _Thread_local CUgraph old_graph;

static void set_node(const struct weights *weights, const char *name, size_t at, uint32_t value)
{
	CUdeviceptr to = weights ? weights->ptr + at : small + 1024;
	void *list[] = {&to, &value};
	const CUDA_KERNEL_NODE_PARAMS params = node_of(function_of(name), list);
	must_ok(cuGraphExecKernelNodeSetParams(old_exec, old_node, &params));
	must_ok(cuGraphLaunch(old_exec, stream));
	if (weights) {
		memcpy(weights->model + at, &value, sizeof(value));
	}
}

static void write_updated(const struct weights *weights)
{
	for (uint32_t i = 0; i < 10; i++) {
		set_node(NULL, "write", 0, i);
	}
	must(count_of("copies") == 0);
	set_node(weights, "write", PAGE, 19);
}

static const struct {
	const char *name;
	void (*write)(const struct weights *weights);
} writes[] = {
	{"plain", write_plain},       {"same", write_same},     {"added", write_added},
	{"unlisted", write_unlisted}, {"hidden", write_hiding}, {"itself", write_itself},
	{"packed", write_packed},     {"graph", write_graph},   {"captured", write_captured},
	{"updated", write_updated},
};

static void write_one(const char *name)
{
	struct weights weights = load(0);
	size_t i = 0;
	old_exec = graph_of("write", small + 1024, 1, &old_node, &old_graph);
	while (strcmp(writes[i].name, name) != 0) {
		must(++i < sizeof(writes) / sizeof(writes[0]));
	}
	read_until_sealed(&weights, 1);
	must(count_of("copies") == 0);
	writes[i].write(&weights);
	compare(&weights);
	must(count_of("copies") == 1);
	read_it(&weights);
	compare(&weights);
}

/* Nobody may seal it: the reason is the test's. */
static void unsealed(void)
{
	struct weights weights = load(0);
	read_for_a_while(&weights);
	must(count_of("sealed_alone") == 0);
	compare(&weights);
}

/* The table calls it a reader. */
static void faults(void)
{
	struct weights weights = load_sealed();
	launch_at("write", weights.ptr + 4096, 1);
	must_be(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	exit(0);
}

/* A program of the same user has faulted: these are no readers, whatever the table says. */
static void is_doubted(void)
{
	struct weights weights = load(0);
	CUgraph graph;
	CUgraphNode node;
	while (count_of("sealed_alone") < 1) {
		add_by(&weights, 64, 0);
		usleep(1000);
	}
	must(count_of("copies") == 0);
	write_by("write", &weights, 4096, 7);
	compare(&weights);
	must(count_of("copies") == 1);
	while (count_of("sealed_alone") < 2) {
		add_by(&weights, 64, 0);
		usleep(1000);
	}
	uint32_t value = 15;
	must_ok(cuGraphLaunch(graph_of("write", weights.ptr + 64, value, &node, &graph), stream));
	memcpy(weights.model + 64, &value, sizeof(value));
	compare(&weights);
	must(count_of("copies") == 2);
}

/* Another process of this program has faulted. */
static void is_told(void)
{
	struct weights weights = load_sealed();
	say("sealed");
	pause_here();
	while (count_of("copies") == 0) {
		read_it(&weights);
		usleep(1000);
	}
	compare(&weights);
}

/* As unsealed(), in a program that has begun, and waits for a line. */
static void unsealed_later(void)
{
	say("started");
	pause_here();
	unsealed();
}

/* Made before anything is sealed. */
static void old_graph_writes(void)
{
	struct weights weights = load(0);
	struct weights other = load(1);
	uint32_t value = 23;
	old_exec = graph_of("write", weights.ptr + 64, value, &old_node, &old_graph);
	/* The other one is sealed, and this one is not. */
	read_until_sealed(&other, 1);
	for (unsigned i = 0; i < 300; i++) {
		must_ok(cuGraphLaunch(old_exec, stream));
		memcpy(weights.model + 64, &value, sizeof(value));
		compare(&weights);
		usleep(1000);
	}
	must(count_of("sealed_alone") == 1);
	must(count_of("copies") == 0);
	compare(&other);
}

/* A graph's function is of a module that the program has never asked for. */
static void graph_of_library_reads(void)
{
	struct weights weights = load(0);
	struct read_params read = {weights.ptr, small, W_BYTES};
	void *list[] = {&read.from, &read.to, &read.n_bytes};
	CUlibrary library;
	CUkernel kernel;
	CUgraphNode node;
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0));
	must_ok(cuLibraryGetKernel(&kernel, library, "read"));
	const CUDA_KERNEL_NODE_PARAMS params = node_of((CUfunction)kernel, list);
	must_ok(cuGraphCreate(&graph, 0));
	must_ok(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
	must_ok(cuGraphInstantiate(&exec, graph, 0));
	while (count_of("sealed_alone") < 1) {
		must_ok(cuGraphLaunch(exec, stream));
		must_ok(cuStreamSynchronize(stream));
		usleep(1000);
	}
	compare(&weights);
}

/* The kernel was launched before anything was marked, and stores once all has been quiet for long. */
static void stored_late(void)
{
	struct weights weights = load(0);
	uint32_t value = 29;
	CUstream first = stream;
	launch_at("later", weights.ptr + 4096, value);
	stream = new_stream();
	read_for_a_while(&weights);
	must(count_of("sealed_alone") == 0);
	is_released = true;
	must_ok(cuStreamSynchronize(first));
	memcpy(weights.model + 4096, &value, sizeof(value));
	read_until_sealed(&weights, 1);
	compare(&weights);
	must(count_of("copies") == 0);
}

/* Nothing that was seen so far says what comes. */
static void written_after_many(void)
{
	struct weights weights = load_sealed();
	for (unsigned i = 0; i < 10000; i++) {
		read_it(&weights);
	}
	write_by("write", &weights, 4096, 7);
	compare(&weights);
	must(count_of("copies") == 1);
}

/* Memory that the program maps itself stays private; memory that it allocates does not. */
static void maps_itself(void)
{
	struct weights weights = load(0);
	struct weights mapped = load(1);
	CUmemGenericAllocationHandle handle;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	const CUmemAccessDesc access = {.location = prop.location,
	                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	must_ok(cuMemFree(mapped.ptr));
	must_ok(cuMemAddressReserve(&mapped.ptr, W_BYTES, 0, 0, 0));
	must_ok(cuMemCreate(&handle, W_BYTES, &prop, 0));
	must_ok(cuMemMap(mapped.ptr, W_BYTES, 0, handle, 0));
	must_ok(cuMemSetAccess(mapped.ptr, W_BYTES, &access, 1));
	must_ok(cuMemcpyHtoD(mapped.ptr, mapped.model, W_BYTES));
	read_until_sealed(&weights, 1);
	for (unsigned i = 0; i < 1000; i++) {
		read_it(&mapped);
		usleep(1000);
	}
	must(count_of("sealed_alone") == 1);
	say("mapped");
	pause_here();
	write_by("write", &mapped, 4096, 5);
	compare(&mapped);
	must(count_of("copies") == 0);
	compare(&weights);
	must_ok(cuMemUnmap(mapped.ptr, W_BYTES));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemAddressFree(mapped.ptr, W_BYTES));
}

/* Twice, and then no more. */
static void unsealed_twice(void)
{
	struct weights weights = load(0);
	for (uint64_t n = 1; n <= 2; n++) {
		read_until_sealed(&weights, n);
		write_by("write", &weights, 4096 * n, (uint32_t)n);
		compare(&weights);
	}
	read_for_a_while(&weights);
	must(count_of("sealed_alone") == 2);
	compare(&weights);
}

/* Memory that is freed and allocated anew is another one. */
static void used_again(void)
{
	struct weights weights = load_sealed();
	must_ok(cuMemFree(weights.ptr));
	CUdeviceptr before = weights.ptr;
	weights.ptr = alloc(W_BYTES);
	must(weights.ptr == before);
	must_ok(cuMemcpyHtoD(weights.ptr, weights.model, W_BYTES));
	for (unsigned i = 0; i < 100; i++) {
		write_by("write", &weights, 4096 * i, i);
		compare(&weights);
	}
	must(count_of("copies") == 0);
}

/* A function of the same name in another image is another function: nobody knows it. */
static void loaded_anew(void)
{
	struct weights weights = load(0);
	struct cudasim_image *copy = malloc(sizeof(*copy));
	CUmodule other;
	CUfunction reader;
	must(copy);
	*copy = image;
	read_until_sealed(&weights, 1);
	must_ok(cuModuleUnload(module));
	must_ok(cuModuleLoadData(&other, copy));
	must_ok(cuModuleGetFunction(&reader, other, "read"));
	struct read_params read = {weights.ptr, small, W_BYTES};
	void *list[] = {&read.from, &read.to, &read.n_bytes};
	must_ok(cuLaunchKernel(reader, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL));
	compare(&weights);
	must(count_of("copies") == 1);
}

static void shown(void)
{
	struct weights weights = load_sealed();
	say("sealed");
	pause_here();
	write_by("unlisted", &weights, 4096, 9);
	compare(&weights);
	say("written");
	pause_here();
}

static void beside(void)
{
	struct weights weights = load(0);
	while (count_of("sealed_alone") == 0) {
		read_it(&weights);
		launch_at("unlisted", small + 2048, 1);
		usleep(1000);
	}
	for (unsigned i = 0; i < 100; i++) {
		launch_at("unlisted", small + 2048, 1);
		read_it(&weights);
	}
	must(count_of("copies") == 0);
	compare(&weights);
}

#define N_REST 1024u

/* All that there is, but what sealing has freed, goes to others. Returns in how many pages. */
static size_t take_rest(CUdeviceptr *rest)
{
	size_t n = 0;
	while (n < N_REST && cuMemAlloc(&rest[n], PAGE) == CUDA_SUCCESS) {
		n++;
	}
	must(n < N_REST);
	return n;
}

/* The private copy is in host memory. */
static void host_room(void)
{
	struct weights weights = load_sealed();
	CUdeviceptr rest[N_REST];
	take_rest(rest);
	write_by("write", &weights, 4096, 1);
	must(count_of("unlaunched") == 0);
	compare(&weights);
	read_it(&weights);
}

/* ---- the reserve for unsealing ---- */

#define N_LARGE 6u
#define LARGE_BYTES (32ull << 20)

/* All programs fill in the same words. */
TEST_BYTE_LOOP static void fill_large(unsigned number, uint32_t *words)
{
	for (uint32_t i = 0; i < LARGE_BYTES / 4; i++) {
		words[i] = (i * 2654435761u) ^ (number * 40503u + i / 1021);
	}
}

static void read_large(CUdeviceptr from)
{
	launch_read(from, small, LARGE_BYTES);
	must_ok(cuStreamSynchronize(stream));
}

static void compare_large(unsigned number, CUdeviceptr from, uint32_t *model, uint32_t *bytes,
                          uint32_t value)
{
	fill_large(number, model);
	model[1024] = value ? value : model[1024];
	must_ok(cuMemcpyDtoH(bytes, from, LARGE_BYTES));
	must(same_bytes(model, bytes, LARGE_BYTES));
}

/* Reads words: a number is how many more are written to, and what is there is right; "end" ends it. */
static void writes_when_told(void)
{
	static CUdeviceptr larges[N_LARGE];
	uint32_t *model = malloc(LARGE_BYTES);
	uint32_t *bytes = malloc(LARGE_BYTES);
	unsigned n_written = 0;
	unsigned n;
	must(model && bytes);
	for (unsigned i = 0; i < N_LARGE; i++) {
		fill_large(i, model);
		larges[i] = alloc(LARGE_BYTES);
		must_ok(cuMemcpyHtoD(larges[i], model, LARGE_BYTES));
	}
	while (count_of("sealed_alone") < N_LARGE) {
		for (unsigned i = 0; i < N_LARGE; i++) {
			read_large(larges[i]);
		}
		usleep(1000);
	}
	say("sealed");
	while (scanf("%u", &n) == 1) {
		for (; n > 0; n--) {
			launch_at("write", larges[n_written++] + 4096, 7);
		}
		must_ok(cuStreamSynchronize(stream));
		for (unsigned i = 0; i < N_LARGE; i++) {
			compare_large(i, larges[i], model, bytes, i < n_written ? 7 : 0);
		}
		say("written");
	}
	free(model);
	free(bytes);
}

/* A neighbour, who wants all that there is. */
static void takes_rest(void)
{
	CUdeviceptr rest[N_REST];
	size_t n = take_rest(rest);
	printf("took %zu\n", n);
	say("full");
	pause_here();
}

static void no_room(void)
{
	struct weights weights = load_sealed();
	CUdeviceptr to = weights.ptr + 4096;
	uint32_t value = 1;
	void *list[] = {&to, &value};
	CUdeviceptr rest[N_REST];
	size_t n = take_rest(rest);
	CUfunction write = function_of("write");
	must_be(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL),
	        CUDA_ERROR_OUT_OF_MEMORY);
	must(count_of("unlaunched") == 1);
	say("refused");
	pause_here();
	compare(&weights);
	read_it(&weights);
	while (n > 0) {
		must_ok(cuMemFree(rest[--n]));
	}
	write_by("write", &weights, 4096, value);
	compare(&weights);
}

/* ---- for `glake learn` ---- */

/* Until launches run alone, and all that was loaded is what they are given or not. */
static void read_until_looked_at(const struct weights *weights, uint64_t n_bytes)
{
	while (count_of("learn_bytes") < n_bytes) {
		read_it(weights);
		usleep(1000);
	}
	for (unsigned i = 0; i < 8; i++) {
		read_it(weights);
	}
}

/* Each of its kernels in turn; the first that may not do what it does ends it. */
static void is_learned(void)
{
	struct weights one = load(0);
	struct weights other = load(1);
	struct weights third = load(0);
	/* Two pages of weights, and one that kernels write to. */
	CUdeviceptr mixed = alloc(W_BYTES + PAGE);
	must_ok(cuMemcpyHtoD(mixed, one.model, W_BYTES));
	const struct weights part = {mixed, one.model};
	read_until_looked_at(&one, 4 * W_BYTES);
	must(count_of("learn_bytes") == 4 * W_BYTES);
	launch_at("unlisted", mixed + W_BYTES, 1);
	read_it(&part);
	add_by(&one, 0, 0);
	write_by("write", &one, 4096, 7);
	write_by("same", &other, 8192, 7);
	add_by(&one, 0, 5);
	launch_at("unlisted", small + 2048, 1);
	write_hidden(&other, PAGE + 64, 11);
	struct pair_params pair = {one.ptr + 64, other.ptr + PAGE};
	void *of_pair[] = {&pair.from, &pair.to};
	launch("pair", of_pair);
	memcpy(other.model + PAGE, one.model + 64, 4);
	CUgraph graph;
	CUgraphExec exec;
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	launch_read(other.ptr, small, W_BYTES);
	must_ok(cuStreamEndCapture(stream, &graph));
	must_ok(cuGraphInstantiate(&exec, graph, 0));
	must_ok(cuGraphLaunch(exec, stream));
	compare(&one);
	compare(&other);
	read_it(&one);
	read_it(&other);
	read_it(&third);
	must_ok(cuMemFree(one.ptr));
	one.ptr = alloc(W_BYTES);
	must_ok(cuMemcpyHtoD(one.ptr, one.model, W_BYTES));
	read_it(&one);
	compare(&one);
	must(count_of("sealed_alone") == 0);
}

/* All is in one allocation: what lies before the words of a launch is closed for it. */
static void is_learned_in_one(void)
{
	struct weights one = allocate(0);
	CUdeviceptr lower = one.ptr + 64;
	uint32_t value = 3;
	memcpy(one.model + PAGE + 64, &lower, sizeof(lower));
	must_ok(cuMemcpyHtoD(one.ptr, one.model, W_BYTES));
	read_until_looked_at(&one, W_BYTES);
	struct pair_params pair = {one.ptr + PAGE, small};
	void *of_pair[] = {&pair.from, &pair.to};
	launch("pair", of_pair);
	launch_at("hidden", one.ptr + PAGE + 64, value);
	memcpy(one.model + 64, &value, sizeof(value));
	compare(&one);
}

/* Work from before is in the way of the first looks, for longer than a look waits. */
static void is_learned_later(void)
{
	struct weights weights = load(0);
	struct weights beside = load(1);
	launch_at("later", small + 2048, 29);
	stream = new_stream();
	read_for_a_while(&weights);
	must(count_of("learn_bytes") == 0);
	is_released = true;
	read_until_looked_at(&weights, 2 * W_BYTES);
	compare(&weights);
	compare(&beside);
}

/* Its kernel waits for what the program does next. */
static void is_stuck(void)
{
	struct weights weights = load(0);
	void *list[] = {&weights.ptr};
	read_until_looked_at(&weights, W_BYTES);
	launch("wait", list);
	is_released = true;
	read_it(&weights);
	compare(&weights);
}

static void *read_in_thread(void *user)
{
	const struct weights *weights = user;
	begin_thread();
	module = first_module;
	small = alloc(512);
	for (unsigned i = 0; i < 200; i++) {
		CUdeviceptr other = alloc(W_BYTES);
		must_ok(cuMemcpyHtoD(other, weights->model, W_BYTES));
		read_it(weights);
		must_ok(cuMemFree(other));
	}
	return NULL;
}

/* Threads launch, copy, allocate and free beside each other. */
static void in_threads(void)
{
	struct weights weights[4];
	pthread_t threads[4];
	for (unsigned i = 0; i < 4; i++) {
		weights[i] = load(i);
	}
	read_until_looked_at(&weights[0], 4 * W_BYTES);
	for (unsigned i = 0; i < 4; i++) {
		must(pthread_create(&threads[i], NULL, read_in_thread, &weights[i]) == 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		must(pthread_join(threads[i], NULL) == 0);
		compare(&weights[i]);
	}
	must(count_of("looked_at") > 600);
}

static atomic_bool is_written;

static void *write_in_thread(void *user)
{
	begin_thread();
	module = first_module;
	write_by("write", user, 4096, 7);
	must_ok(cuStreamSynchronize(stream));
	is_written = true;
	return NULL;
}

/* A thread that writes; this one ends the program as soon as it has the error, of @call. */
static void ends_by(CUresult (*call)(void))
{
	pthread_t thread;
	struct weights weights = load(0);
	read_until_looked_at(&weights, W_BYTES);
	must(pthread_create(&thread, NULL, write_in_thread, &weights) == 0);
	while (!is_written) {
		must_ok(call());
		usleep(1000);
	}
	must(pthread_join(thread, NULL) == 0);
	compare(&weights);
}

static CUresult query_stream(void)
{
	return cuStreamQuery(stream);
}

static void ends_by_query(void)
{
	ends_by(query_stream);
}

static CUresult search_function(void)
{
	CUfunction found;
	return cuModuleGetFunction(&found, module, "read");
}

static void ends_by_search(void)
{
	ends_by(search_function);
}

static void fails(void)
{
	struct weights weights = load(0);
	read_until_looked_at(&weights, W_BYTES);
	must(!"so that it fails");
}

static void takes_long(void)
{
	struct weights weights = load(0);
	load(1);
	read_until_looked_at(&weights, 2 * W_BYTES);
	say("ready");
	for (;;) {
		pause();
	}
}

/* ---- at random ---- */

#define N_WEIGHTS 3u
#define N_THREADS 3u

static _Thread_local struct weights all[N_WEIGHTS];
static _Thread_local unsigned seed;

static void random_write(struct weights *weights)
{
	static const char *const names[] = {"write", "same", "write"};
	size_t at = churn_pick(&seed, W_BYTES / 16) * 16ull;
	uint32_t value = churn_pick(&seed, 1000);
	switch (churn_pick(&seed, 8)) {
	case 0:
		add_by(weights, at, value);
		break;
	case 1:
		set_node(weights, "write", at, value);
		break;
	case 2:
		write_graph(weights);
		break;
	case 3:
		must_ok(cuMemsetD32Async(weights->ptr + at, value, 4, stream));
		for (unsigned i = 0; i < 4; i++) {
			memcpy(weights->model + at + 4ull * i, &value, 4);
		}
		break;
	case 4:
		write_itself(weights);
		break;
	default:
		write_by(names[churn_pick(&seed, 3)], weights, at, value);
	}
}

static void replace(struct weights *weights)
{
	must_ok(cuMemFree(weights->ptr));
	pthread_mutex_lock(&models_lock);
	*model_of(weights->model) = NULL;
	pthread_mutex_unlock(&models_lock);
	free(weights->model);
	*weights = load(churn_pick(&seed, 2));
}

/* Functions of the same names, at handles that may have been others'. */
static void load_again(void)
{
	set_node(NULL, "write", 0, 1);
	must_ok(cuStreamSynchronize(stream));
	must_ok(cuGraphExecDestroy(old_exec));
	must_ok(cuModuleUnload(module));
	must_ok(cuModuleLoadData(&module, &image));
	old_exec = graph_of("write", small + 1024, 1, &old_node, &old_graph);
}

/* One thread's, each with weights, a module, a graph and a stream of its own. */
struct steps {
	pthread_t thread;
	unsigned seed;
	time_t end;
};

static void random_steps(const struct steps *steps)
{
	unsigned n = 0;
	seed = steps->seed;
	for (unsigned i = 0; i < N_WEIGHTS; i++) {
		all[i] = load(churn_pick(&seed, 2));
	}
	old_exec = graph_of("write", small + 1024, 1, &old_node, &old_graph);
	while (time(NULL) < steps->end ||
	       (count_of("sealed_alone") == 0 && count_of("looked_at") == 0)) {
		struct weights *weights = &all[churn_pick(&seed, N_WEIGHTS)];
		unsigned what = churn_pick(&seed, 1000);
		if (what < 4) {
			random_write(weights);
		} else if (what < 6) {
			replace(weights);
		} else if (what < 8) {
			load_again();
		} else if (what < 10) {
			add_by(weights, 64, 0);
		} else {
			read_it(weights);
		}
		/* Now and then for all others, since it is slow. */
		compare(what < 10 ? weights : &all[++n % N_WEIGHTS]);
	}
}

static void *random_thread(void *user)
{
	begin();
	small = alloc(4096);
	random_steps(user);
	for (unsigned i = 0; i < N_WEIGHTS; i++) {
		compare(&all[i]);
	}
	return NULL;
}

static void random_threads(unsigned first, unsigned seconds)
{
	struct steps steps[N_THREADS];
	for (unsigned i = 0; i < N_THREADS; i++) {
		steps[i] = (struct steps){
			.seed = first + 1000 * i,
			.end = time(NULL) + (time_t)seconds,
		};
		must(i == 0 ||
		     pthread_create(&steps[i].thread, NULL, random_thread, &steps[i]) == 0);
	}
	random_steps(&steps[0]);
	for (unsigned i = 1; i < N_THREADS; i++) {
		must(pthread_join(steps[i].thread, NULL) == 0);
	}
	/* The last one ends it for good. */
	write_hidden(&all[0], 128, 31);
	compare(&all[0]);
	printf("sealed %llu, copies %llu, refused %llu\n",
	       (unsigned long long)count_of("sealed_alone"), (unsigned long long)count_of("copies"),
	       (unsigned long long)count_of("unlaunched"));
	for (unsigned i = 0; i < N_WEIGHTS; i++) {
		compare(&all[i]);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{"reads", reads},
	{"gathers", gathers},
	{"unsealed", unsealed},
	{"old_graph", old_graph_writes},
	{"twice", unsealed_twice},
	{"again", used_again},
	{"anew", loaded_anew},
	{"shown", shown},
	{"ends by a query", ends_by_query},
	{"ends by a search", ends_by_search},
	{"host_room", host_room},
	{"no_room", no_room},
	{"told_to_write", writes_when_told},
	{"rest", takes_rest},
	{"learn", is_learned},
	{"learn in one", is_learned_in_one},
	{"learn later", is_learned_later},
	{"beside", beside},
	{"stuck", is_stuck},
	{"threads", in_threads},
	{"fails", fails},
	{"long", takes_long},
	{"library", graph_of_library_reads},
	{"early", unsealed},
	{"untold", unsealed_later},
	{"doubted", is_doubted},
	{"faults", faults},
	{"told", is_told},
	{"late", stored_late},
	{"many", written_after_many},
	{"mapped", maps_itself},
};

static void run(const char *name)
{
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(scenarios[i].name, name) == 0) {
			scenarios[i].run();
			return;
		}
	}
	write_one(name);
}

int main(int argc, char **argv)
{
	must(argc >= 2);
	const char *what = argv[1];
	if (strcmp(what, "table") == 0) {
		FILE *file = fopen(argv[2], "w");
		must(file);
		write_table(file);
		must(fclose(file) == 0);
		return 0;
	}
	begin();
	if (strcmp(what, "early") == 0) {
		/* Before it is known that anything will be sealed. */
		graph_of("hidden", 0, 1, &old_node, &old_graph);
	}
	start();
	if (argc == 3) {
		random_threads((unsigned)strtoul(what, NULL, 10),
		               (unsigned)strtoul(argv[2], NULL, 10));
	} else {
		run(what);
	}
	must_ok(cuCtxSynchronize());
	return 0;
}

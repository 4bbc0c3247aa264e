/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that does random things with memory of graphs and other memory beside it, linked against the driver.
 *
 *   graphmem_random SEED STEPS
 *
 * It knows what each of its buffers holds, and what each launch leaves. It ends with 0 and a line of numbers, or
 * with 1 and a line on stderr.
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/harness/churn.h"
#include "tests/shim/device.h"

#define MIB (1ull << 20)
#define QUOTA (20 * MIB)
#define MAX_BYTES (3 * MIB)
#define N_STREAMS 3u
#define N_BUFFERS 12u
#define N_GRAPHS 4u
#define N_NODES 10u
#define N_COPIED 512u

struct buffer {
	CUdeviceptr ptr; /* 0: there is none */
	size_t n_bytes;
	unsigned char value;
	CUstream stream;
};

/* A graph allocates and sets buffers, of which it frees some; the start and end of each go to its place in checked. */
struct graph {
	CUgraphExec exec; /* NULL: there is none */
	struct buffer left[N_NODES];
	unsigned char values[N_NODES]; /* of all, also those that were freed */
	size_t sizes[N_NODES];
	unsigned n;
	bool is_launched;
	CUstream stream; /* of the last launch */
	CUdeviceptr checked;
};

static CUstream streams[N_STREAMS];
static CUstream origin;
static CUstream side;
static struct buffer buffers[N_BUFFERS];
static struct graph graphs[N_GRAPHS];
static unsigned char bytes[MAX_BYTES];
static unsigned seed;
static unsigned step;
static unsigned n_captures, n_launches, n_lost, n_refused;

static size_t pick_size(void)
{
	size_t most = churn_pick(&seed, 2) ? 40000 : MAX_BYTES;
	return 1 + (size_t)rand_r(&seed) % most;
}

static bool has(CUresult result)
{
	must(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
	n_refused += result != CUDA_SUCCESS;
	return result == CUDA_SUCCESS;
}

TEST_BYTE_LOOP static void expect(CUdeviceptr ptr, size_t n_bytes, unsigned char value,
                                  const char *what)
{
	must_ok(cuMemcpyDtoH(bytes, ptr, n_bytes));
	for (size_t i = 0; i < n_bytes; i++) {
		if (bytes[i] != value) {
			fprintf(stderr, "step %u: %s at %llx: byte %zu of %zu is %u, not %u\n",
			        step, what, ptr, i, n_bytes, bytes[i], value);
			_exit(1);
		}
	}
}

static bool make(struct buffer *buffer, CUstream stream)
{
	buffer->n_bytes = pick_size();
	buffer->value = (unsigned char)(1 + churn_pick(&seed, 255));
	buffer->stream = stream;
	if (!has(cuMemAllocAsync(&buffer->ptr, buffer->n_bytes, stream))) {
		buffer->ptr = 0;
		return false;
	}
	must_ok(cuMemsetD8Async(buffer->ptr, buffer->value, buffer->n_bytes, stream));
	return true;
}

static void look(const struct buffer *buffer)
{
	must_ok(cuStreamSynchronize(buffer->stream));
	expect(buffer->ptr, buffer->n_bytes, buffer->value, "a buffer");
}

static void drop(struct buffer *buffer)
{
	must_ok(churn_pick(&seed, 4) ? cuMemFreeAsync(buffer->ptr, buffer->stream)
	                             : cuMemFree(buffer->ptr));
	buffer->ptr = 0;
}

static void join(CUstream from, CUstream to)
{
	CUevent event;
	must_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	must_ok(cuEventRecord(event, from));
	must_ok(cuStreamWaitEvent(to, event, 0));
	must_ok(cuEventDestroy(event));
}

/* ---- graphs ---- */

static void note(const struct graph *graph, unsigned i, const struct buffer *buffer)
{
	size_t n = buffer->n_bytes < N_COPIED / 2 ? buffer->n_bytes : N_COPIED / 2;
	CUdeviceptr to = graph->checked + (size_t)i * N_COPIED;
	must_ok(cuMemcpyDtoDAsync(to, buffer->ptr, n, buffer->stream));
	must_ok(cuMemcpyDtoDAsync(to + N_COPIED / 2, buffer->ptr + buffer->n_bytes - n, n,
	                          buffer->stream));
}

/* Buffers come and go on two streams; what is freed was looked at before. */
static void capture_work(struct graph *graph)
{
	struct buffer *here[N_NODES];
	unsigned n_here = 0;
	join(origin, side);
	while (graph->n < N_NODES) {
		struct buffer *made = &graph->left[graph->n];
		if (!make(made, churn_pick(&seed, 3) ? origin : side)) {
			break;
		}
		graph->values[graph->n] = made->value;
		graph->sizes[graph->n++] = made->n_bytes;
		here[n_here++] = made;
		while (n_here > 0 && churn_pick(&seed, 2)) {
			unsigned at = churn_pick(&seed, n_here);
			struct buffer *gone = here[at];
			note(graph, (unsigned)(gone - graph->left), gone);
			must_ok(cuMemFreeAsync(gone->ptr, gone->stream));
			gone->ptr = 0;
			here[at] = here[--n_here];
		}
	}
	for (unsigned i = 0; i < n_here; i++) {
		note(graph, (unsigned)(here[i] - graph->left), here[i]);
		here[i]->stream = streams[0];
	}
	join(side, origin);
}

static void capture(struct graph *graph)
{
	CUgraph made = NULL;
	CUgraph clone = NULL;
	graph->n = 0;
	graph->is_launched = false;
	must_ok(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
	capture_work(graph);
	struct buffer *beside = &buffers[churn_pick(&seed, N_BUFFERS)];
	if (beside->ptr) {
		must_ok(cuMemFreeAsync(beside->ptr, beside->stream));
		beside->ptr = 0;
	}
	n_captures++;
	if (churn_pick(&seed, 6) == 0) {
		n_lost++;
		must(cuStreamSynchronize(origin) != CUDA_SUCCESS);
		must(cuStreamEndCapture(origin, &made) != CUDA_SUCCESS);
	} else {
		must_ok(cuStreamEndCapture(origin, &made));
		must_ok(cuGraphClone(&clone, made));
		must_ok(cuGraphDestroy(made));
		must_ok(cuGraphInstantiateWithFlags(&graph->exec, clone, 0));
		must_ok(cuGraphDestroy(clone));
	}
	for (unsigned i = 0; i < graph->n; i++) {
		if (graph->left[i].ptr && (!graph->exec || churn_pick(&seed, 3) == 0)) {
			drop(&graph->left[i]);
		}
	}
}

static void launch(struct graph *graph)
{
	CUstream stream = streams[churn_pick(&seed, N_STREAMS)];
	/* The memory that it writes to is looked at on the stream of the last launch. */
	must_ok(cuStreamSynchronize(graph->stream ? graph->stream : stream));
	must_ok(cuMemsetD8Async(graph->checked, 0, N_NODES * N_COPIED, stream));
	must_ok(cuGraphLaunch(graph->exec, stream));
	graph->stream = stream;
	graph->is_launched = true;
	n_launches++;
	for (unsigned i = 0; i < graph->n; i++) {
		graph->left[i].stream = stream;
	}
}

static void look_at_graph(const struct graph *graph)
{
	if (!graph->is_launched) {
		return;
	}
	must_ok(cuStreamSynchronize(graph->stream));
	for (unsigned i = 0; i < graph->n; i++) {
		const struct buffer *left = &graph->left[i];
		size_t n = graph->sizes[i] < N_COPIED / 2 ? graph->sizes[i] : N_COPIED / 2;
		CUdeviceptr at = graph->checked + (size_t)i * N_COPIED;
		expect(at, n, graph->values[i], "the start of what a graph set");
		expect(at + N_COPIED / 2, n, graph->values[i], "the end of what a graph set");
		if (left->ptr) {
			expect(left->ptr, left->n_bytes, left->value, "what a graph left");
		}
	}
}

/* Its launches may be under way; what it left may live on. */
static void destroy(struct graph *graph)
{
	must_ok(cuGraphExecDestroy(graph->exec));
	graph->exec = NULL;
	if (graph->is_launched && churn_pick(&seed, 2)) {
		look_at_graph(graph);
	}
	for (unsigned i = 0; i < graph->n; i++) {
		struct buffer *left = &graph->left[i];
		struct buffer *free_one = &buffers[churn_pick(&seed, N_BUFFERS)];
		if (left->ptr && graph->is_launched && !free_one->ptr) {
			*free_one = *left;
			left->ptr = 0;
		} else if (left->ptr) {
			drop(left);
		}
	}
}

/* ---- steps ---- */

static void change_buffer(struct buffer *buffer)
{
	if (!buffer->ptr) {
		make(buffer, streams[churn_pick(&seed, N_STREAMS)]);
	} else if (churn_pick(&seed, 3)) {
		drop(buffer);
	} else {
		look(buffer);
	}
}

static void change_graph(struct graph *graph)
{
	struct buffer *left = &graph->left[churn_pick(&seed, N_NODES)];
	if (!graph->exec) {
		capture(graph);
		return;
	}
	switch (churn_pick(&seed, 8)) {
	case 0:
		destroy(graph);
		break;
	case 1:
		if (left->ptr && left < graph->left + graph->n) {
			drop(left);
		}
		break;
	case 2:
	case 3:
		look_at_graph(graph);
		break;
	default:
		launch(graph);
	}
}

static void end_all(CUmemoryPool pool)
{
	for (unsigned i = 0; i < N_GRAPHS; i++) {
		if (graphs[i].exec) {
			destroy(&graphs[i]);
		}
	}
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		if (buffers[i].ptr) {
			look(&buffers[i]);
			drop(&buffers[i]);
		}
	}
	must_ok(cuCtxSynchronize());
	must_ok(cuMemPoolTrimTo(pool, 0));
	alloc_on(streams[0], QUOTA - 4 * MIB);
}

int main(int argc, char **argv)
{
	CUmemoryPool pool;
	must(argc == 3);
	seed = (unsigned)strtoul(argv[1], NULL, 10);
	unsigned n_steps = (unsigned)strtoul(argv[2], NULL, 10);
	use_device(0);
	must_ok(cuDeviceGetDefaultMemPool(&pool, 0));
	origin = new_stream();
	side = new_stream();
	for (unsigned i = 0; i < N_STREAMS; i++) {
		streams[i] = new_stream();
	}
	for (unsigned i = 0; i < N_GRAPHS; i++) {
		graphs[i].checked = alloc(N_NODES * N_COPIED);
	}
	for (step = 0; step < n_steps; step++) {
		if (churn_pick(&seed, 3)) {
			change_buffer(&buffers[churn_pick(&seed, N_BUFFERS)]);
		} else {
			change_graph(&graphs[churn_pick(&seed, N_GRAPHS)]);
		}
		if (churn_pick(&seed, 100) == 0) {
			must_ok(cuMemPoolTrimTo(pool, churn_pick(&seed, 40) * MIB));
		}
	}
	end_all(pool);
	printf("%u captures, %u of them lost, %u launches, %u requests refused\n", n_captures,
	       n_lost, n_launches, n_refused);
	return 0;
}

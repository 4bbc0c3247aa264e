/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/graphmem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "shim/capture.h"

/* Ids of captured streams: GLAKE__GRAPH_STREAM + the number of the graph, and of the stream in it. */
#define MAX_STREAMS (1u << 20)

/* Default streams of threads have one handle in all threads and contexts. */
struct captured {
	CUstream stream; /* NULL: destroyed */
	pthread_t thread;
	CUcontext ctx;
	uint64_t id;
	struct captured *next; /* link: of a graph */
};

/* The memory of one capture's graph. */
struct graph {
	uint64_t number;
	uint64_t capture;         /* the driver's id of the capture */
	atomic_bool is_over;      /* set by the driver's thread, once */
	struct captured *streams; /* owned list */
	unsigned n_streams;
	struct glake__allocation *kept; /* claimed; by next */
	struct graph *next;             /* link: graphs */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph *graphs; /* owned list, the newest first */
static uint64_t n_graphs;    /* so far */
static atomic_uint n_over;

static uint64_t number_of(uint64_t stream_id)
{
	return (stream_id - GLAKE__GRAPH_STREAM) / MAX_STREAMS;
}

/* Was @allocation made on a captured stream, whether its graph is over or not? */
static bool is_captured(const struct glake__allocation *allocation)
{
	return allocation->tag.stream > GLAKE__GRAPH_STREAM;
}

/* ---- graphs, with the lock held ----------------------------------------------------------------- */

static struct graph *find_number(uint64_t number)
{
	struct graph *graph = graphs;
	while (graph && graph->number != number) {
		graph = graph->next;
	}
	return graph && !graph->is_over ? graph : NULL;
}

static struct graph *find_capture(uint64_t capture)
{
	struct graph *graph = graphs;
	while (graph && (graph->capture != capture || graph->is_over)) {
		graph = graph->next;
	}
	return graph;
}

/* The graph that @allocation was made for; NULL: that graph is over. */
static struct graph *graph_of(const struct glake__allocation *allocation)
{
	return find_number(number_of(allocation->tag.stream - 1));
}

static void keep(struct graph *graph, struct glake__allocation *allocation)
{
	allocation->next = graph->kept;
	graph->kept = allocation;
}

/* ---- captures ----------------------------------------------------------------------------------- */

/* Called by a thread of the driver, which must not call the driver. */
static void end_graph(void *user)
{
	struct graph *graph = user;
	n_over++;
	graph->is_over = true;
}

static bool make_graph(uint64_t capture, CUgraph handle)
{
	CUuserObject object;
	struct graph *graph = real(cuUserObjectCreate) && real(cuGraphRetainUserObject) &&
	                                      real(cuUserObjectRelease)
	                              ? calloc(1, sizeof(*graph))
	                              : NULL;
	if (!graph || real(cuUserObjectCreate)(&object, graph, end_graph, 1,
	                                       CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
		free(graph);
		return false;
	}
	graph->capture = capture;
	pthread_mutex_lock(&lock);
	graph->number = n_graphs++;
	graph->next = graphs;
	graphs = graph;
	pthread_mutex_unlock(&lock);
	if (real(cuGraphRetainUserObject)(handle, object, 1, CU_GRAPH_USER_OBJECT_MOVE) !=
	    CUDA_SUCCESS) {
		real(cuUserObjectRelease)(object, 1);
		return false;
	}
	return true;
}

static struct captured describe(CUstream handle, unsigned flags)
{
	struct captured captured = {.stream = handle};
	if (handle == CU_STREAM_PER_THREAD || (!handle && flags & GLAKE_PER_THREAD)) {
		captured.stream = CU_STREAM_PER_THREAD;
		captured.thread = pthread_self();
		real(cuCtxGetCurrent)(&captured.ctx);
	}
	return captured;
}

/* Called with the lock held. 0: no memory. */
static uint64_t id_in(struct graph *graph, const struct captured *wanted)
{
	struct captured *found = graph->streams;
	while (found && (found->stream != wanted->stream || found->ctx != wanted->ctx ||
	                 !pthread_equal(found->thread, wanted->thread))) {
		found = found->next;
	}
	if (!found && graph->n_streams < MAX_STREAMS && (found = malloc(sizeof(*found)))) {
		*found = *wanted;
		found->id = GLAKE__GRAPH_STREAM + graph->number * MAX_STREAMS + graph->n_streams++;
		found->next = graph->streams;
		graph->streams = found;
	}
	return found ? found->id : 0;
}

/* The id of a captured stream whose graph's memory is ours; 0: it is not captured, or the memory is the driver's. */
static uint64_t find_id(CUstream handle, unsigned flags)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t capture;
	CUgraph made_in;
	shim_capture_info_fn *ask = capture_info_call(flags);
	if (!shim_policy()->stitches || !ask ||
	    ask(handle, &status, &capture, &made_in, NULL, NULL) != CUDA_SUCCESS ||
	    status != CU_STREAM_CAPTURE_STATUS_ACTIVE || capture_is_in_graph(capture)) {
		return 0;
	}
	const struct captured wanted = describe(handle, flags);
	pthread_mutex_lock(&lock);
	bool is_known = find_capture(capture) != NULL;
	pthread_mutex_unlock(&lock);
	if (!is_known && !make_graph(capture, made_in)) {
		return 0;
	}
	pthread_mutex_lock(&lock);
	struct graph *graph = find_capture(capture);
	uint64_t id = graph ? id_in(graph, &wanted) : 0;
	pthread_mutex_unlock(&lock);
	return id;
}

bool graphmem_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out)
{
	struct heap_target here;
	if (!heap_target_here(&here) || !capture_may_be_in(handle, flags, here.ctx)) {
		return false;
	}
	*stream_out = (struct glake_stream){
		.id = find_id(handle, flags),
		.context = here.ctx,
		.ordinal = here.device,
	};
	return stream_out->id != 0;
}

void graphmem_forget_stream(CUstream stream)
{
	pthread_mutex_lock(&lock);
	for (const struct graph *graph = graphs; graph; graph = graph->next) {
		for (struct captured *one = graph->streams; one; one = one->next) {
			one->stream = one->stream == stream ? NULL : one->stream;
		}
	}
	pthread_mutex_unlock(&lock);
}

/* ---- freeing ------------------------------------------------------------------------------------ */

/* Memory of another graph is kept by this graph first, and then by its own, because the capture orders no launch of that. */
bool graphmem_free(CUstream handle, unsigned flags, struct glake__allocation *allocation)
{
	struct glake_stream stream = {.id = 0};
	struct glake__parking parking;
	if (is_captured(allocation)) {
		stream.id = find_id(handle, flags);
	}
	if (stream.id == 0) {
		return false;
	}
	if (number_of(stream.id) == number_of(allocation->tag.stream - 1) &&
	    heap_park(allocation, &stream, &parking)) {
		heap_parked(&parking);
	}
	pthread_mutex_lock(&lock);
	struct graph *graph = find_number(number_of(stream.id));
	if (graph) {
		keep(graph, allocation);
	}
	pthread_mutex_unlock(&lock);
	if (!graph) {
		heap_release(allocation);
	}
	return true;
}

bool graphmem_has(const struct glake__allocation *allocation)
{
	if (!is_captured(allocation)) {
		return false;
	}
	pthread_mutex_lock(&lock);
	bool has = graph_of(allocation) != NULL;
	pthread_mutex_unlock(&lock);
	return has;
}

bool graphmem_keep(struct glake__allocation *allocation)
{
	if (!is_captured(allocation)) {
		return false;
	}
	pthread_mutex_lock(&lock);
	struct graph *graph = graph_of(allocation);
	if (graph) {
		keep(graph, allocation);
	}
	pthread_mutex_unlock(&lock);
	return graph != NULL;
}

bool graphmem_has_freed(CUdeviceptr address, CUcontext *ctx_out)
{
	const struct glake__allocation *found = NULL;
	pthread_mutex_lock(&lock);
	for (const struct graph *graph = graphs; !found && graph; graph = graph->next) {
		found = graph->kept;
		while (found && (found->address != address || found->is_parked)) {
			found = found->next;
		}
	}
	if (found) {
		*ctx_out = found->tag.ctx;
	}
	pthread_mutex_unlock(&lock);
	return found != NULL;
}

struct glake__allocation *graphmem_take(CUdeviceptr address)
{
	struct glake__allocation *found = NULL;
	pthread_mutex_lock(&lock);
	for (struct graph *graph = graphs; !found && graph; graph = graph->next) {
		struct glake__allocation **link = &graph->kept;
		while (*link && ((*link)->address != address || (*link)->is_parked)) {
			link = &(*link)->next;
		}
		found = *link;
		if (found) {
			*link = found->next;
		}
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* ---- ends --------------------------------------------------------------------------------------- */

static void release_all(struct glake__allocation *list)
{
	while (list) {
		struct glake__allocation *allocation = list;
		list = allocation->next;
		if (allocation->is_parked || !graphmem_keep(allocation)) {
			heap_release(allocation);
		}
	}
}

static void free_graph(struct graph *graph)
{
	while (graph->streams) {
		struct captured *captured = graph->streams;
		graph->streams = captured->next;
		free(captured);
	}
	free(graph);
}

void graphmem_collect(void)
{
	struct graph *list = NULL;
	if (atomic_load_explicit(&n_over, memory_order_relaxed) == 0 || shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	for (struct graph **link = &graphs; *link;) {
		struct graph *graph = *link;
		if (graph->is_over) {
			*link = graph->next;
			graph->next = list;
			list = graph;
			n_over--;
		} else {
			link = &graph->next;
		}
	}
	pthread_mutex_unlock(&lock);
	while (list) {
		struct graph *graph = list;
		list = graph->next;
		release_all(graph->kept);
		free_graph(graph);
	}
}

void graphmem_drop_ctx(CUcontext ctx, uint64_t generation)
{
	struct glake__allocation *list = NULL;
	pthread_mutex_lock(&lock);
	for (struct graph *graph = graphs; graph; graph = graph->next) {
		for (struct glake__allocation **link = &graph->kept; *link;) {
			struct glake__allocation *allocation = *link;
			if (allocation->tag.ctx == ctx && allocation->tag.generation < generation) {
				*link = allocation->next;
				allocation->next = list;
				list = allocation;
			} else {
				link = &allocation->next;
			}
		}
	}
	pthread_mutex_unlock(&lock);
	while (list) {
		struct glake__allocation *allocation = list;
		list = allocation->next;
		heap_release(allocation);
	}
}

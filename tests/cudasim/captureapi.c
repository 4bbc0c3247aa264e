/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that begin and end captures, and tell their state. */
#include "capture.h"

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, struct graph *given,
                      struct node *const *deps, size_t n_deps)
{
	static uint64_t last_id;
	struct stream *s = stream_from_handle(handle);
	CUresult err = CUDA_ERROR_ILLEGAL_STATE;

	if (!s || stream_flags(s) & STREAM_IS_LEGACY) {
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct graph *graph = given ? given : graph_new();
	pthread_mutex_lock(&capture_lock);
	struct capture *capture = graph && !capture_find(s) ? capture_of_id(0) : NULL;
	struct member *member = capture ? capture_enter(s, capture) : NULL;
	if (member && (err = capture_stand_at(member, deps, n_deps)) == CUDA_SUCCESS) {
		*capture = (struct capture){
			.id = ++last_id,
			.stream = s,
			.mode = mode,
			.thread = pthread_self(),
			.is_given = given != NULL,
			.graph = graph,
		};
		capture_count();
	} else if (member) {
		capture_leave(member);
	}
	pthread_mutex_unlock(&capture_lock);
	if (err != CUDA_SUCCESS && !given) {
		graph_free(graph);
	}
	return err;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	ENTER(cuStreamBeginCapture);
	return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCapture_v2);
	return begin(stream, mode, NULL, NULL, 0);
}

static bool are_of(const struct graph *graph, const CUgraphNode *nodes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct node *node = nodes ? node_from_handle(nodes[i]) : NULL;
		if (!node || node->graph != graph) {
			return false;
		}
	}
	return true;
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode *deps,
                                     const CUgraphEdgeData *edges, size_t n_deps,
                                     CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCaptureToGraph);
	struct graph *graph = graph_from_handle(handle);

	(void)edges;
	if (!graph || !are_of(graph, deps, n_deps)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return capture_is_to(graph)
	               ? CUDA_ERROR_ILLEGAL_STATE
	               : begin(stream, mode, graph, (struct node *const *)deps, n_deps);
}

/* Does all that was captured come before where the first stream stands? */
static bool is_joined(const struct capture *capture)
{
	const struct member *origin = capture_find(capture->stream);

	graph_color_before(capture->graph, origin->deps, origin->n_deps);
	for (size_t i = 0; i < CAPTURE_MAX_MEMBERS; i++) {
		for (size_t k = 0;
		     capture_members[i].capture == capture && k < capture_members[i].n_deps; k++) {
			if (capture_members[i].deps[k]->color != 1) {
				return false;
			}
		}
	}
	return true;
}

static CUresult end_on(struct stream *s, CUgraph *graph_out)
{
	struct member *member = capture_find(s);
	struct capture *capture = member ? member->capture : NULL;

	if (!capture) {
		return CUDA_ERROR_ILLEGAL_STATE;
	}
	if (capture->stream != s) {
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self())) {
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	}
	CUresult err = capture->is_broken   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	               : is_joined(capture) ? CUDA_SUCCESS
	                                    : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*graph_out = NULL;
	if (err == CUDA_SUCCESS) {
		*graph_out = (CUgraph)capture->graph;
		capture_end(capture);
	} else {
		capture_drop(capture);
	}
	return err;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph_out)
{
	ENTER(cuStreamEndCapture);
	struct stream *s = stream_from_handle(handle);

	if (!s || !graph_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&capture_lock);
	CUresult err = end_on(s, graph_out);
	pthread_mutex_unlock(&capture_lock);
	return err;
}

/* Locked. */
static CUstreamCaptureStatus status_of(const struct member *member)
{
	return !member                      ? CU_STREAM_CAPTURE_STATUS_NONE
	       : member->capture->is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status_out)
{
	ENTER(cuStreamIsCapturing);
	struct stream *s = stream_from_handle(handle);

	if (!s || !status_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&capture_lock);
	*status_out = status_of(capture_find(s));
	CUresult err = capture_is_implicit(s, false) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	                                             : CUDA_SUCCESS;
	pthread_mutex_unlock(&capture_lock);
	return err;
}

/* Only outputs that are not NULL are written. The dependencies are the capture's, valid until the stream goes on. */
static CUresult get_info(CUstream handle, CUstreamCaptureStatus *status_out, cuuint64_t *id_out,
                         CUgraph *graph_out, const CUgraphNode **deps_out, size_t *n_deps_out)
{
	struct stream *s = stream_from_handle(handle);

	if (!s || !status_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&capture_lock);
	const struct member *member = capture_find(s);
	CUresult err = capture_is_implicit(s, false) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	                                             : CUDA_SUCCESS;
	*status_out = status_of(member);
	if (*status_out == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
		cuuint64_t no_id;
		CUgraph no_graph;
		const CUgraphNode *no_deps;
		size_t no_n;
		*(id_out ? id_out : &no_id) = member->capture->id;
		*(graph_out ? graph_out : &no_graph) = (CUgraph)member->capture->graph;
		*(deps_out ? deps_out : &no_deps) = (const CUgraphNode *)member->deps;
		*(n_deps_out ? n_deps_out : &no_n) = member->n_deps;
	}
	pthread_mutex_unlock(&capture_lock);
	return err;
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status_out,
                                cuuint64_t *id_out)
{
	ENTER(cuStreamGetCaptureInfo);
	return get_info(stream, status_out, id_out, NULL, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status_out,
                                   cuuint64_t *id_out, CUgraph *graph_out,
                                   const CUgraphNode **deps_out, size_t *n_deps_out)
{
	ENTER(cuStreamGetCaptureInfo_v2);
	return get_info(stream, status_out, id_out, graph_out, deps_out, n_deps_out);
}

/* No edge has data here. */
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status_out,
                                   cuuint64_t *id_out, CUgraph *graph_out,
                                   const CUgraphNode **deps_out, const CUgraphEdgeData **edges_out,
                                   size_t *n_deps_out)
{
	ENTER(cuStreamGetCaptureInfo_v3);
	if (edges_out) {
		*edges_out = NULL;
	}
	return get_info(stream, status_out, id_out, graph_out, deps_out, n_deps_out);
}

static CUresult update(CUstream handle, CUgraphNode *deps, size_t n_deps, unsigned flags)
{
	struct stream *s = stream_from_handle(handle);
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	if (!s || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&capture_lock);
	struct member *member = capture_find(s);
	if (status_of(member) != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
		err = CUDA_ERROR_ILLEGAL_STATE;
	} else if (are_of(member->capture->graph, deps, n_deps)) {
		err = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
		              ? capture_stand_at(member, (struct node *const *)deps, n_deps)
		              : capture_stand_also_at(member, (struct node *const *)deps, n_deps);
	}
	pthread_mutex_unlock(&capture_lock);
	return err;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *deps, size_t n_deps,
                                           unsigned int flags)
{
	ENTER(cuStreamUpdateCaptureDependencies);
	return update(stream, deps, n_deps, flags);
}

#if CUDA_VERSION >= 13000
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *deps,
                                              const CUgraphEdgeData *edges, size_t n_deps,
                                              unsigned int flags)
{
	ENTER(cuStreamUpdateCaptureDependencies_v2);
	(void)edges;
	return update(stream, deps, n_deps, flags);
}
#endif

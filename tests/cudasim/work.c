/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *all_kept;

void kept_add(struct kept *kept)
{
	pthread_mutex_lock(&lock);
	*kept = (struct kept){.next = all_kept, .at = &all_kept};
	if (all_kept) {
		all_kept->at = &kept->next;
	}
	all_kept = kept;
	pthread_mutex_unlock(&lock);
}

void kept_remove(struct kept *kept)
{
	pthread_mutex_lock(&lock);
	*kept->at = kept->next;
	if (kept->next) {
		kept->next->at = kept->at;
	}
	pthread_mutex_unlock(&lock);
}

struct blob *blob_new(const void *data, size_t bytes)
{
	struct blob *blob = calloc(1, sizeof(*blob) + bytes);

	if (blob) {
		atomic_init(&blob->n_refs, 1);
		blob->bytes = bytes;
		if (data) {
			memcpy(blob->data, data, bytes);
		}
	}
	return blob;
}

struct blob *blob_ref(struct blob *blob)
{
	if (blob) {
		atomic_fetch_add(&blob->n_refs, 1);
	}
	return blob;
}

void blob_unref(struct blob *blob)
{
	if (blob && atomic_fetch_sub(&blob->n_refs, 1) == 1) {
		free(blob);
	}
}

/* The place of the work's blob; NULL: its type has none. */
static struct blob **blob_of(struct work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return &work->of.launch.params;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return &work->of.memops.ops;
	default:
		return NULL;
	}
}

static bool is_event(const struct work *work)
{
	return work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ||
	       work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
}

struct work work_copy(const struct work *work)
{
	struct work copy = *work;
	struct blob **blob = blob_of(&copy);

	if (blob) {
		blob_ref(*blob);
	} else if (is_event(&copy) && copy.of.event.mark) {
		mark_ref(copy.of.event.mark);
	} else if (copy.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		graphmem_ref(copy.of.memory);
	}
	return copy;
}

void work_drop(struct work *work)
{
	struct blob **blob = blob_of(work);

	if (blob) {
		blob_unref(*blob);
		*blob = NULL;
	} else if (is_event(work)) {
		mark_unref(work->of.event.mark);
	} else if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		graphmem_unref(work->of.memory);
	} else if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
		graph_free(work->of.child);
	}
}

static uint64_t n_threads(const struct launch *launch)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < 3; i++) {
		n *= (uint64_t)launch->grid[i] * launch->block[i];
	}
	return n;
}

/* How many threads the work has on the device; 0: it is no kernel. */
static uint64_t threads_of(const struct work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return n_threads(&work->of.launch);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return copy_is_kernel(&work->of.copy);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return 1;
	default:
		return 0;
	}
}

static CUresult run_in_context(struct work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return launch_run(work->ctx, &work->of.launch);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return copy_run(work->ctx, &work->of.copy);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return set_run(work->ctx, &work->of.set);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return memops_run(work->ctx, &work->of.memops);
	case CU_GRAPH_NODE_TYPE_HOST:
		work->of.call.fn(work->of.call.data);
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return alloc_free(work->of.freed) == CUDA_SUCCESS ? CUDA_SUCCESS
		                                                  : CUDA_ERROR_ILLEGAL_ADDRESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		if (work->of.event.mark) {
			mark_wait(work->of.event.mark);
		}
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		mark_reach(work->of.event.mark);
		return CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS;
	}
}

CUresult work_run(struct work *work)
{
	uint64_t n_wanted = threads_of(work);
	uint64_t n_taken = n_wanted ? sms_take(work->ctx, n_wanted) : 0;
	CUresult err = run_in_context(work);

	sms_give(work->ctx, n_taken);
	if (err != CUDA_SUCCESS) {
		ctx_poison(work->ctx, err);
	}
	return err;
}

static CUresult run_op(struct ctx *ctx, void *arg)
{
	(void)ctx;
	return work_run(arg);
}

static void drop_op(void *arg)
{
	work_drop(arg);
}

CUresult work_submit(struct stream *s, struct work *work)
{
	CUresult err;

	work->ctx = stream_ctx(s);
	if (capture_add(s, work, &err)) {
		return err;
	}
	err = stream_submit(s, run_op, drop_op, work, sizeof(*work));
	if (err != CUDA_SUCCESS) {
		work_drop(work);
	}
	return err;
}

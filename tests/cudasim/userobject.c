/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the program that live as long as graphs refer to them. */
#include "graph.h"

#include <pthread.h>

#define OBJECT_MAGIC 0x6a626f72657375ULL

struct object {
	struct kept kept;
	uint64_t magic;
	void *data;
	CUhostFn destroy;
	unsigned n_refs;
};

/* The references of a graph to one object. */
struct held {
	struct held *next;
	struct object *object;
	unsigned n;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct object *object_from_handle(CUuserObject handle)
{
	struct object *object = (struct object *)handle;

	return object && object->magic == OBJECT_MAGIC ? object : NULL;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *data, CUhostFn destroy, unsigned int n,
                            unsigned int flags)
{
	ENTER(cuUserObjectCreate);
	if (!object_out || !destroy || n == 0 || n > INT32_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct object *object = calloc(1, sizeof(*object));
	if (!object) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	kept_add(&object->kept);
	object->magic = OBJECT_MAGIC;
	object->data = data;
	object->destroy = destroy;
	object->n_refs = n;
	*object_out = (CUuserObject)object;
	return CUDA_SUCCESS;
}

/* A driver calls the destructor from a thread of its own, some time. */
static CUresult release(struct object *object, unsigned n)
{
	pthread_mutex_lock(&lock);
	bool is_good = n > 0 && n <= object->n_refs;
	bool is_last = is_good && n == object->n_refs;
	object->n_refs -= is_good ? n : 0;
	pthread_mutex_unlock(&lock);
	if (is_last) {
		object->magic = 0;
		kept_remove(&object->kept);
		object->destroy(object->data);
		free(object);
	}
	return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult retain(struct object *object, unsigned n)
{
	if (n == 0 || n > INT32_MAX) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&lock);
	object->n_refs += n;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int n)
{
	ENTER(cuUserObjectRetain);
	struct object *object = object_from_handle(handle);

	return object ? retain(object, n) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int n)
{
	ENTER(cuUserObjectRelease);
	struct object *object = object_from_handle(handle);

	return object ? release(object, n) : CUDA_ERROR_INVALID_VALUE;
}

static struct held *find(const struct graph *graph, const struct object *object)
{
	struct held *held = graph->held;

	while (held && held->object != object) {
		held = held->next;
	}
	return held;
}

/* Let the graph take over references. */
static CUresult hold(struct graph *graph, struct object *object, unsigned n)
{
	struct held *held = find(graph, object);

	if (!held) {
		held = calloc(1, sizeof(*held));
		if (!held) {
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		*held = (struct held){.next = graph->held, .object = object};
		graph->held = held;
	}
	held->n += n;
	return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int n,
                                 unsigned int flags)
{
	ENTER(cuGraphRetainUserObject);
	struct graph *graph = graph_from_handle(graph_handle);
	struct object *object = object_from_handle(handle);

	if (!graph || !object || n == 0 || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = flags & CU_GRAPH_USER_OBJECT_MOVE ? CUDA_SUCCESS : retain(object, n);
	return err == CUDA_SUCCESS ? hold(graph, object, n) : err;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int n)
{
	ENTER(cuGraphReleaseUserObject);
	struct graph *graph = graph_from_handle(graph_handle);
	struct object *object = object_from_handle(handle);
	struct held *held = graph && object ? find(graph, object) : NULL;

	if (!held || n == 0 || n > held->n) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	held->n -= n;
	return release(object, n);
}

CUresult held_copy(const struct graph *graph, struct graph *clone)
{
	CUresult err = CUDA_SUCCESS;

	for (const struct held *held = graph->held; err == CUDA_SUCCESS && held;
	     held = held->next) {
		err = held->n > 0 ? retain(held->object, 1) : CUDA_SUCCESS;
		if (err == CUDA_SUCCESS && held->n > 0) {
			err = hold(clone, held->object, 1);
		}
	}
	return err;
}

void held_drop(struct graph *graph)
{
	while (graph->held) {
		struct held *held = graph->held;
		graph->held = held->next;
		if (held->n > 0) {
			release(held->object, held->n);
		}
		free(held);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/digester.h"

#include <string.h>

#include "proto/limits.h"

/* The item and its root, as they lie in both memories. */
#define ITEM_BYTES (sizeof(struct kernel_root_item) + DIGEST_BYTES)
#define LEAVES_BYTES (GLAKE_MAX_BLOCK_BYTES / DIGEST_LEAF_BYTES * DIGEST_BYTES)
/* Waiting threads sleep. */
#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)

static void *harvest(void *argument);

static CUresult make_tickets(struct digester *digester)
{
	const struct cudrv *drv = digester->drv;
	for (unsigned i = 0; i < DIGESTER_TICKETS; i++) {
		struct ticket *ticket = &digester->tickets[i];
		CUresult result = drv->cuEventCreate(&ticket->copied, EVENT_FLAGS);
		if (result == CUDA_SUCCESS) {
			result = drv->cuEventCreate(&ticket->done, EVENT_FLAGS);
		}
		if (result != CUDA_SUCCESS) {
			return result;
		}
		ticket->item = digester->items + i * ITEM_BYTES;
		ticket->host_item = (void *)((char *)digester->host_items + i * ITEM_BYTES);
		ticket->next = digester->free;
		digester->free = ticket;
	}
	return CUDA_SUCCESS;
}

static CUresult make(struct digester *digester)
{
	const struct cudrv *drv = digester->drv;
	const size_t items_bytes = DIGESTER_TICKETS * ITEM_BYTES;
	CUresult result = drv->cuStreamCreate(&digester->stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemAlloc(&digester->leaves, LEAVES_BYTES);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemAlloc(&digester->items, items_bytes);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemHostAlloc(&digester->host_items, items_bytes,
		                             CU_MEMHOSTALLOC_PORTABLE);
	}
	return result == CUDA_SUCCESS ? make_tickets(digester) : result;
}

CUresult digester_init(struct digester *digester, const struct kernels *kernels, CUcontext context,
                       CUstream copy_stream)
{
	*digester = (struct digester){
		.drv = kernels->drv,
		.kernels = kernels,
		.context = context,
		.copy_stream = copy_stream,
	};
	pthread_mutex_init(&digester->lock, NULL);
	pthread_cond_init(&digester->given, NULL);
	pthread_cond_init(&digester->submitted, NULL);
	CUresult result = make(digester);
	if (result == CUDA_SUCCESS) {
		digester->has_thread = pthread_create(&digester->thread, NULL, harvest, digester) ==
		                       0;
		result = digester->has_thread ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (result != CUDA_SUCCESS) {
		digester_deinit(digester);
	}
	return result;
}

static void stop_thread(struct digester *digester)
{
	if (!digester->has_thread) {
		return;
	}
	pthread_mutex_lock(&digester->lock);
	digester->is_stopping = true;
	pthread_cond_signal(&digester->submitted);
	pthread_mutex_unlock(&digester->lock);
	pthread_join(digester->thread, NULL);
}

void digester_deinit(struct digester *digester)
{
	const struct cudrv *drv = digester->drv;
	if (!drv) {
		return;
	}
	stop_thread(digester);
	for (unsigned i = 0; i < DIGESTER_TICKETS; i++) {
		if (digester->tickets[i].copied) {
			drv->cuEventDestroy(digester->tickets[i].copied);
		}
		if (digester->tickets[i].done) {
			drv->cuEventDestroy(digester->tickets[i].done);
		}
	}
	if (digester->host_items) {
		drv->cuMemFreeHost(digester->host_items);
	}
	if (digester->items) {
		drv->cuMemFree(digester->items);
	}
	if (digester->leaves) {
		drv->cuMemFree(digester->leaves);
	}
	if (digester->stream) {
		drv->cuStreamDestroy(digester->stream);
	}
	pthread_cond_destroy(&digester->submitted);
	pthread_cond_destroy(&digester->given);
	pthread_mutex_destroy(&digester->lock);
	*digester = (struct digester){0};
}

struct ticket *digester_take(struct digester *digester)
{
	pthread_mutex_lock(&digester->lock);
	while (!digester->free) {
		pthread_cond_wait(&digester->given, &digester->lock);
	}
	struct ticket *ticket = digester->free;
	digester->free = ticket->next;
	pthread_mutex_unlock(&digester->lock);
	ticket->next = NULL;
	return ticket;
}

void digester_give(struct digester *digester, struct ticket *ticket)
{
	pthread_mutex_lock(&digester->lock);
	ticket->next = digester->free;
	digester->free = ticket;
	pthread_cond_signal(&digester->given);
	pthread_mutex_unlock(&digester->lock);
}

static CUresult queue_digest(struct digester *digester, struct ticket *ticket, CUdeviceptr address,
                             uint64_t content_bytes)
{
	const struct cudrv *drv = digester->drv;
	const size_t root_offset = sizeof(struct kernel_root_item);
	*ticket->host_item = (struct kernel_root_item){
		.leaves = digester->leaves,
		.n_leaves = digest_n_leaves(content_bytes),
		.content_bytes = content_bytes,
		.root_out = ticket->item + root_offset,
	};
	CUresult result = drv->cuMemcpyHtoDAsync(ticket->item, ticket->host_item, root_offset,
	                                         digester->stream);
	if (result == CUDA_SUCCESS) {
		result = kernels_leaves(digester->kernels, digester->stream, address,
		                        ticket->host_item->n_leaves, digester->leaves);
	}
	if (result == CUDA_SUCCESS) {
		result = kernels_roots(digester->kernels, digester->stream, ticket->item, 1);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuMemcpyDtoHAsync(ticket->host_item + 1, ticket->item + root_offset,
		                                DIGEST_BYTES, digester->stream);
	}
	return result;
}

void digester_submit(struct digester *digester, struct ticket *ticket, CUdeviceptr address,
                     uint64_t content_bytes, bool skip, digest_done_fn done_fn, void *user)
{
	const struct cudrv *drv = digester->drv;
	ticket->done_fn = done_fn;
	ticket->user = user;
	ticket->next = NULL;
	pthread_mutex_lock(&digester->lock);
	CUresult result = drv->cuEventRecord(ticket->copied, digester->copy_stream);
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamWaitEvent(digester->stream, ticket->copied, 0);
	}
	if (result == CUDA_SUCCESS && !skip) {
		result = queue_digest(digester, ticket, address, content_bytes);
	}
	/* Also after a failure: the block may only be unmapped once the GPU is done with it. */
	CUresult recorded = drv->cuEventRecord(ticket->done, digester->stream);
	ticket->result = result != CUDA_SUCCESS ? result : recorded;
	if (digester->last) {
		digester->last->next = ticket;
	} else {
		digester->first = ticket;
	}
	digester->last = ticket;
	pthread_cond_signal(&digester->submitted);
	pthread_mutex_unlock(&digester->lock);
}

/* The oldest submitted ticket, or NULL when the digester stops. */
static struct ticket *next_submitted(struct digester *digester)
{
	pthread_mutex_lock(&digester->lock);
	while (!digester->first && !digester->is_stopping) {
		pthread_cond_wait(&digester->submitted, &digester->lock);
	}
	struct ticket *ticket = digester->first;
	if (ticket) {
		digester->first = ticket->next;
		if (!digester->first) {
			digester->last = NULL;
		}
	}
	pthread_mutex_unlock(&digester->lock);
	return ticket;
}

static void *harvest(void *argument)
{
	struct digester *digester = argument;
	const struct cudrv *drv = digester->drv;
	struct ticket *ticket;
	drv->cuCtxSetCurrent(digester->context);
	while ((ticket = next_submitted(digester))) {
		CUresult result = drv->cuEventSynchronize(ticket->done);
		result = ticket->result != CUDA_SUCCESS ? ticket->result : result;
		if (result != CUDA_SUCCESS) {
			/*
			 * Queueing broke off somewhere, so `done` may be an older record. Nothing
			 * of this block may run any more before its mapping goes.
			 */
			drv->cuStreamSynchronize(digester->copy_stream);
			drv->cuStreamSynchronize(digester->stream);
		}
		struct digest digest;
		memcpy(&digest, ticket->host_item + 1, sizeof(digest));
		ticket->done_fn(ticket->user, result, &digest);
	}
	return NULL;
}

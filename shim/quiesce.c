/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/quiesce.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "shim/capture.h"
#include "shim/context.h"

struct pair {
	CUcontext maker;
	CUcontext reader;
	uint64_t generation; /* of maker and reader */
	unsigned n;          /* access was given so often */
	struct pair *next;   /* link: pairs */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pair *pairs;    /* owned list; no two are the same */
static atomic_bool has_pairs; /* stays set; programs without peers need no lock */

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Waits for the current context. During captures only a free may wait. */
static CUresult wait_here(void)
{
	return capture_is_any() ? capture_ask_free() : real(cuCtxSynchronize)();
}

static CUresult wait_for(CUcontext ctx)
{
	CUcontext current = NULL;
	CUresult result = real(cuCtxGetCurrent)(&current);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	if (current == ctx) {
		return wait_here();
	}
	result = real(cuCtxPushCurrent_v2)(ctx);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = wait_here();
	real(cuCtxPopCurrent_v2)(&current);
	return result;
}

/* The next reader of @maker after @last, in the order of handles; NULL: there are no more. */
static CUcontext next_reader(CUcontext maker, CUcontext last)
{
	CUcontext next = NULL;
	pthread_mutex_lock(&lock);
	for (const struct pair *pair = pairs; pair; pair = pair->next) {
		if (pair->maker == maker && pair->reader > last && (!next || pair->reader < next)) {
			next = pair->reader;
		}
	}
	pthread_mutex_unlock(&lock);
	return next;
}

static CUresult wait_for_readers(CUcontext maker)
{
	CUresult result = CUDA_SUCCESS;
	CUcontext reader = NULL;
	while (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
	       (reader = next_reader(maker, reader))) {
		result = wait_for(reader);
	}
	return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? result : CUDA_SUCCESS;
}

CUresult quiesce_ctx(CUcontext ctx)
{
	CUresult result = wait_for(ctx);
	return result == CUDA_SUCCESS && has_pairs ? wait_for_readers(ctx) : result;
}

/* ---- peers ------------------------------------------------------------------------------------ */

/* Called with the lock held. */
static struct pair **link_of(CUcontext maker, CUcontext reader)
{
	struct pair **link = &pairs;
	while (*link && ((*link)->maker != maker || (*link)->reader != reader)) {
		link = &(*link)->next;
	}
	return link;
}

static void drop(struct pair **link)
{
	struct pair *pair = *link;
	*link = pair->next;
	free(pair);
}

bool quiesce_add_reader(CUcontext maker, CUcontext reader)
{
	struct pair *pair = calloc(1, sizeof(*pair));
	if (!pair) {
		return false;
	}
	*pair = (struct pair){
		.maker = maker, .reader = reader, .generation = context_generation(), .n = 1};
	pthread_mutex_lock(&lock);
	struct pair **link = link_of(maker, reader);
	if (*link) {
		/* Access was given twice; or the older pair is of contexts that have ended: then a wait too many is made. */
		pair->n += (*link)->n;
		drop(link);
	}
	pair->next = pairs;
	pairs = pair;
	has_pairs = true;
	pthread_mutex_unlock(&lock);
	return true;
}

void quiesce_drop_reader(CUcontext maker, CUcontext reader)
{
	pthread_mutex_lock(&lock);
	struct pair **link = link_of(maker, reader);
	if (*link && --(*link)->n == 0) {
		drop(link);
	}
	pthread_mutex_unlock(&lock);
}

void quiesce_drop_ctx(CUcontext ctx, uint64_t generation)
{
	pthread_mutex_lock(&lock);
	for (struct pair **link = &pairs; *link;) {
		const struct pair *pair = *link;
		if ((pair->maker == ctx || pair->reader == ctx) && pair->generation < generation) {
			drop(link);
		} else {
			link = &(*link)->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

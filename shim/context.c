/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* So many that ended last are remembered. Nobody uses one but by mistake. */
#define MAX_ENDED 64

struct green {
	struct context_green is;
	struct green *next; /* link: greens */
};

static atomic_uint_fast64_t era;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct green *greens;       /* owned list */
static CUcontext ended[MAX_ENDED]; /* NULL: none, or it is in use again */
static size_t n_ended;             /* ever */
static atomic_bool has_greens; /* stays set: they are rare, and this spares all others the lock */

bool context_is_active(CUdevice device)
{
	unsigned flags;
	int is_active = 0;
	return real(cuDevicePrimaryCtxGetState)(device, &flags, &is_active) == CUDA_SUCCESS &&
	       is_active;
}

uint64_t context_era(void)
{
	return atomic_load_explicit(&era, memory_order_acquire);
}

uint64_t context_next_era(void)
{
	return atomic_fetch_add(&era, 1) + 1;
}

CUcontext context_primary(CUcontext ctx)
{
	if (!has_greens) {
		return ctx;
	}
	pthread_mutex_lock(&lock);
	const struct green *green = greens;
	while (green && green->is.ctx != ctx) {
		green = green->next;
	}
	CUcontext primary = green ? green->is.primary : ctx;
	pthread_mutex_unlock(&lock);
	return primary;
}

/* Called with the lock held. Its place in `ended`, or NULL. */
static CUcontext *find_ended(CUcontext ctx)
{
	for (size_t i = 0; ctx && i < MAX_ENDED; i++) {
		if (ended[i] == ctx) {
			return &ended[i];
		}
	}
	return NULL;
}

static void forget_ended(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	CUcontext *found = find_ended(ctx);
	if (found) {
		*found = NULL;
	}
	pthread_mutex_unlock(&lock);
}

void context_add_green(const struct context_green *green)
{
	struct green *added = malloc(sizeof(*added));
	if (!added) {
		return;
	}
	added->is = *green;
	forget_ended(green->ctx);
	pthread_mutex_lock(&lock);
	added->next = greens;
	greens = added;
	has_greens = true;
	pthread_mutex_unlock(&lock);
}

bool context_end_green(CUgreenCtx handle, struct context_green *green_out)
{
	struct green **link = &greens;
	pthread_mutex_lock(&lock);
	while (*link && (*link)->is.handle != handle) {
		link = &(*link)->next;
	}
	struct green *removed = *link;
	if (removed) {
		*link = removed->next;
		*green_out = removed->is;
		ended[n_ended++ % MAX_ENDED] = removed->is.ctx;
	}
	pthread_mutex_unlock(&lock);
	bool is_known = removed != NULL;
	free(removed);
	return is_known;
}

/* It may also be one of another kind by now, that has the handle: to allocate in it tells. */
bool context_has_ended(CUcontext current)
{
	CUdeviceptr probe = 0;
	if (!has_greens) {
		return false;
	}
	pthread_mutex_lock(&lock);
	bool is_noted = find_ended(current) != NULL;
	pthread_mutex_unlock(&lock);
	if (!is_noted) {
		return false;
	}
	CUresult result = real(cuMemAlloc_v2)(&probe, 1);
	if (result == CUDA_SUCCESS) {
		forget_ended(current);
		real(cuMemFree_v2)(probe);
	}
	return result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

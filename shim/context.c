/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct green {
	struct context_green is;
	struct green *next; /* link: greens */
};

static atomic_uint_fast64_t era;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct green *greens;   /* owned list */
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

void context_add_green(const struct context_green *green)
{
	struct green *added = malloc(sizeof(*added));
	if (!added) {
		return;
	}
	added->is = *green;
	pthread_mutex_lock(&lock);
	added->next = greens;
	greens = added;
	has_greens = true;
	pthread_mutex_unlock(&lock);
}

bool context_remove_green(CUgreenCtx handle, struct context_green *green_out)
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
	}
	pthread_mutex_unlock(&lock);
	bool is_known = removed != NULL;
	free(removed);
	return is_known;
}

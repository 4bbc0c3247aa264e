/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct green {
	CUcontext ctx;
	CUcontext primary;
	CUdevice device;
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

/* Called with the lock held. */
static struct green **link_of(CUcontext ctx)
{
	struct green **link = &greens;
	while (*link && (*link)->ctx != ctx) {
		link = &(*link)->next;
	}
	return link;
}

CUcontext context_primary(CUcontext ctx)
{
	if (!has_greens) {
		return ctx;
	}
	pthread_mutex_lock(&lock);
	const struct green *green = *link_of(ctx);
	CUcontext primary = green ? green->primary : ctx;
	pthread_mutex_unlock(&lock);
	return primary;
}

void context_add_green(CUcontext ctx, CUcontext primary, CUdevice device)
{
	struct green *green = malloc(sizeof(*green));
	if (!green) {
		return;
	}
	*green = (struct green){.ctx = ctx, .primary = primary, .device = device};
	pthread_mutex_lock(&lock);
	green->next = greens;
	greens = green;
	has_greens = true;
	pthread_mutex_unlock(&lock);
}

bool context_remove_green(CUcontext ctx, CUdevice *device_out)
{
	pthread_mutex_lock(&lock);
	struct green **link = link_of(ctx);
	struct green *green = *link;
	if (green) {
		*link = green->next;
		*device_out = green->device;
	}
	pthread_mutex_unlock(&lock);
	bool is_known = green != NULL;
	free(green);
	return is_known;
}

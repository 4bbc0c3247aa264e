/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* The last green contexts that ended are remembered. Only a mistaken program uses one. */
#define MAX_ENDED 64

struct green {
	struct context_green is;
	struct green *next; /* link: greens */
};

struct created {
	CUcontext ctx;
	CUdevice device;
	uint64_t generation;
	struct created *next; /* link: created */
};

static atomic_uint_fast64_t generation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct green *greens;       /* owned list */
static struct created *created;    /* owned list */
static CUcontext ended[MAX_ENDED]; /* NULL: none, or the handle is in use again */
static size_t n_ended;             /* since the start; the next slot */
static atomic_bool is_one_unknown; /* no memory to note a created context */
static atomic_bool has_greens;     /* stays set; programs without green contexts need no lock */

bool context_is_active(CUdevice device)
{
	unsigned flags;
	int is_active = 0;
	return real(cuDevicePrimaryCtxGetState)(device, &flags, &is_active) == CUDA_SUCCESS &&
	       is_active;
}

uint64_t context_generation(void)
{
	return atomic_load_explicit(&generation, memory_order_acquire);
}

uint64_t context_next_generation(void)
{
	return atomic_fetch_add(&generation, 1) + 1;
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

/* Called with the lock held. The slot of `ended` with @ctx, or NULL. */
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

/*
 * The handle may be another context's by now. Only an allocation in it tells. That is a byte, which stays the context's:
 * freeing it would wait for the GPU.
 */
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
	}
	return result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- all of them ------------------------------------------------------------------------------ */

/* Called with the lock held. Forgets @ctx if it was created before generation @before. */
static void forget_created(CUcontext ctx, uint64_t before)
{
	for (struct created **link = &created; *link;) {
		struct created *one = *link;
		if (one->ctx == ctx && one->generation < before) {
			*link = one->next;
			free(one);
		} else {
			link = &one->next;
		}
	}
}

void context_created(CUcontext ctx, CUdevice device)
{
	struct created *one = malloc(sizeof(*one));
	if (!one) {
		is_one_unknown = true;
		return;
	}
	*one = (struct created){.ctx = ctx, .device = device, .generation = context_generation()};
	pthread_mutex_lock(&lock);
	/* A context that ended unnoticed may have had the handle. */
	forget_created(ctx, UINT64_MAX);
	one->next = created;
	created = one;
	pthread_mutex_unlock(&lock);
}

void context_gone(CUcontext ctx, uint64_t before)
{
	pthread_mutex_lock(&lock);
	forget_created(ctx, before);
	pthread_mutex_unlock(&lock);
}

static bool visit_primary(CUdevice device, context_fn *fn, void *user)
{
	CUcontext primary = NULL;
	if (real(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS) {
		return false;
	}
	fn(user, primary, device);
	real(cuDevicePrimaryCtxRelease_v2)(device);
	return true;
}

static bool visit_primaries(context_fn *fn, void *user)
{
	CUresult result = CUDA_SUCCESS;
	bool is_all = true;
	for (CUdevice device = 0; device < SHIM_MAX_DEVICES && result != CUDA_ERROR_INVALID_DEVICE;
	     device++) {
		unsigned flags;
		int is_active = 0;
		result = real(cuDevicePrimaryCtxGetState)(device, &flags, &is_active);
		if (result == CUDA_SUCCESS && is_active) {
			is_all &= visit_primary(device, fn, user);
		}
	}
	return is_all;
}

/* The @n-th created context, green or not. False: there are no more. */
static bool find_nth(size_t n, CUcontext *ctx_out, CUdevice *device_out)
{
	const struct created *one;
	const struct green *green;
	pthread_mutex_lock(&lock);
	for (one = created; one && n > 0; one = one->next) {
		n--;
	}
	for (green = one ? NULL : greens; green && n > 0; green = green->next) {
		n--;
	}
	bool is_there = one || green;
	if (is_there) {
		*ctx_out = one ? one->ctx : green->is.ctx;
		*device_out = one ? one->device : green->is.device;
	}
	pthread_mutex_unlock(&lock);
	return is_there;
}

/* No context ends meanwhile. A new one is put first, so at worst a context is visited twice. */
bool context_each(context_fn *fn, void *user)
{
	CUcontext ctx;
	CUdevice device;
	bool is_all = visit_primaries(fn, user);
	for (size_t n = 0; find_nth(n, &ctx, &device); n++) {
		fn(user, ctx, device);
	}
	return is_all && !is_one_unknown;
}

struct search {
	CUdevice device;
	CUcontext found;
};

static void take_first(void *user, CUcontext ctx, CUdevice device)
{
	struct search *search = user;
	if (!search->found && device == search->device) {
		search->found = ctx;
	}
}

CUcontext context_of(CUdevice device)
{
	struct search search = {.device = device};
	context_each(take_first, &search);
	return search.found;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts, one per device, and each thread's stack of current ones, green ones too. */
#include "sim.h"

#include <pthread.h>

#define MAX_STACK 64
#define API_VERSION 3020 /* what a driver answers, whatever it is */

static struct ctx contexts[SIM_MAX_DEVICES];
/* Held over the making and the end of a context. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct place {
	struct ctx *ctx;     /* NULL: nowhere */
	struct green *green; /* NULL: in the primary one itself */
};

static _Thread_local struct place stack[MAX_STACK];
static _Thread_local unsigned depth;

uint64_t ctx_new_id(void)
{
	static atomic_uint_fast64_t last_id;

	return atomic_fetch_add(&last_id, 1) + 1;
}

static struct place current(void)
{
	return depth > 0 ? stack[depth - 1] : (struct place){NULL, NULL};
}

struct ctx *ctx_current(void)
{
	return current().ctx;
}

struct green *ctx_current_green(void)
{
	return current().green;
}

struct ctx *ctx_of_device(unsigned device)
{
	return &contexts[device];
}

static struct place place_from_handle(CUcontext handle)
{
	for (int i = 0; i < device_count(); i++) {
		if (handle == (CUcontext)&contexts[i]) {
			return (struct place){&contexts[i], NULL};
		}
	}
	struct green *green = green_from_handle(handle);
	return (struct place){green ? green->ctx : NULL, green};
}

static CUcontext handle_of(struct place place)
{
	return place.green ? (CUcontext)place.green : (CUcontext)place.ctx;
}

struct ctx *ctx_from_handle(CUcontext handle)
{
	return place_from_handle(handle).ctx;
}

CUresult ctx_check(const struct ctx *ctx)
{
	if (!ctx) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (!atomic_load(&ctx->active)) {
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	return atomic_load(&ctx->poison);
}

CUresult ctx_check_current(void)
{
	struct place place = current();

	if (place.green && !atomic_load(&place.green->active)) {
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	return ctx_check(place.ctx);
}

void ctx_poison(struct ctx *ctx, CUresult err)
{
	int clean = CUDA_SUCCESS;

	atomic_compare_exchange_strong(&ctx->poison, &clean, err);
}

void ctx_poison_all(CUresult err)
{
	for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
		if (atomic_load(&contexts[i].active)) {
			ctx_poison(&contexts[i], err);
		}
	}
}

static CUresult ctx_charge_overhead(struct ctx *ctx)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)ctx->device},
	};

	if (device_context_bytes() == 0) {
		return CUDA_SUCCESS;
	}
	return phys_new(&prop, device_context_bytes(), &ctx->overhead);
}

/* Locked. A poisoned context can never be made again in this process. */
static CUresult ctx_open(struct ctx *ctx)
{
	if (atomic_load(&ctx->poison) != CUDA_SUCCESS) {
		return atomic_load(&ctx->poison);
	}
	CUresult err = ctx_charge_overhead(ctx);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = stream_new(ctx, NULL, STREAM_IS_LEGACY, 0, &ctx->null_stream);
	if (err != CUDA_SUCCESS) {
		phys_unref(ctx->overhead);
		ctx->overhead = NULL;
		return err;
	}
	atomic_store(&ctx->peers, 0);
	ctx->id = ctx_new_id();
	atomic_store(&ctx->active, true);
	return CUDA_SUCCESS;
}

/* Locked. Frees all that was made in the context and is still there. */
static void ctx_close(struct ctx *ctx)
{
	if (!atomic_load(&ctx->active)) {
		return;
	}
	stream_wait_ctx(ctx);
	atomic_store(&ctx->active, false);
	capture_end_of_ctx(ctx);
	stream_free_all(ctx);
	ctx->null_stream = NULL;
	alloc_free_all(ctx->device);
	hostmem_free_all(ctx->device);
	array_free_all(ctx->device);
	phys_unref(ctx->overhead);
	ctx->overhead = NULL;
	ctx->flags = 0;
}

/* Locked. */
static unsigned *count_of(struct ctx *ctx, bool is_for_green)
{
	return is_for_green ? &ctx->n_greens : &ctx->n_retained;
}

CUresult ctx_retain(CUdevice dev, bool is_for_green, struct ctx **ctx_out)
{
	struct ctx *ctx = &contexts[dev];
	CUresult err = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!atomic_load(&ctx->active)) {
		/* Streams of an open context read it without the lock. */
		ctx->device = (unsigned)dev;
		err = ctx_open(ctx);
	}
	if (err == CUDA_SUCCESS) {
		++*count_of(ctx, is_for_green);
		*ctx_out = ctx;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult ctx_release(struct ctx *ctx, bool is_for_green)
{
	CUresult err = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	unsigned *count = count_of(ctx, is_for_green);
	if (*count == 0) {
		err = CUDA_ERROR_INVALID_CONTEXT;
	} else {
		--*count;
		if (ctx->n_retained == 0 && ctx->n_greens == 0) {
			ctx_close(ctx);
		}
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx_out, CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRetain);
	struct ctx *ctx;

	if (!ctx_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	CUresult err = ctx_retain(dev, false, &ctx);
	if (err == CUDA_SUCCESS) {
		*ctx_out = (CUcontext)ctx;
	}
	return err;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRelease_v2);
	return device_is_valid(dev) ? ctx_release(&contexts[dev], false)
	                            : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxReset_v2);
	CUresult err = CUDA_SUCCESS;

	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	pthread_mutex_lock(&lock);
	if (contexts[dev].n_greens > 0) {
		err = CUDA_ERROR_NOT_PERMITTED;
	} else {
		ctx_close(&contexts[dev]);
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags_out, int *active_out)
{
	ENTER(cuDevicePrimaryCtxGetState);
	if (!flags_out || !active_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	pthread_mutex_lock(&lock);
	*flags_out = contexts[dev].flags;
	*active_out = atomic_load(&contexts[dev].active);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	ENTER(cuDevicePrimaryCtxSetFlags_v2);
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	pthread_mutex_lock(&lock);
	contexts[dev].flags = flags;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx_out)
{
	ENTER(cuCtxGetCurrent);
	if (!ctx_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*ctx_out = handle_of(current());
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	ENTER(cuCtxSetCurrent);
	struct place place = place_from_handle(handle);

	if (handle && !place.ctx) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (depth > 0) {
		depth--;
	}
	if (place.ctx) {
		stack[depth++] = place;
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	ENTER(cuCtxPushCurrent_v2);
	struct place place = place_from_handle(handle);

	if (!handle) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!place.ctx || depth == MAX_STACK) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	stack[depth++] = place;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx_out)
{
	ENTER(cuCtxPopCurrent_v2);
	if (depth == 0) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	depth--;
	if (ctx_out) {
		*ctx_out = handle_of(stack[depth]);
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev_out)
{
	ENTER(cuCtxGetDevice);
	if (!dev_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!ctx_current()) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*dev_out = (CUdevice)ctx_current()->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id_out)
{
	ENTER(cuCtxGetId);
	struct place place = handle ? place_from_handle(handle) : current();

	if (!id_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!place.ctx || !atomic_load(&place.ctx->active) ||
	    (place.green && !atomic_load(&place.green->active))) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&lock);
	*id_out = place.green ? place.green->id : place.ctx->id;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version_out)
{
	ENTER(cuCtxGetApiVersion);
	if (!version_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!(handle ? ctx_from_handle(handle) : ctx_current())) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*version_out = API_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least_out, int *greatest_out)
{
	ENTER(cuCtxGetStreamPriorityRange);
	if (least_out) {
		*least_out = 0;
	}
	if (greatest_out) {
		*greatest_out = -5;
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	struct ctx *ctx = ctx_current();
	CUresult err = capture_check_ctx(ctx);

	if (err != CUDA_SUCCESS) {
		return err;
	}
	if (ctx_current_green()) {
		stream_wait_green(ctx_current_green());
	} else {
		stream_wait_ctx(ctx);
	}
	return atomic_load(&ctx->poison);
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	ENTER(cuCtxEnablePeerAccess);
	struct ctx *peer = ctx_from_handle(handle);

	if (flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!peer || !atomic_load(&peer->active)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (peer == ctx_current()) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	unsigned bit = 1U << peer->device;
	return atomic_fetch_or(&ctx_current()->peers, bit) & bit
	               ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	               : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	ENTER(cuCtxDisablePeerAccess);
	struct ctx *peer = ctx_from_handle(handle);

	if (!peer) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	unsigned bit = 1U << peer->device;
	return atomic_fetch_and(&ctx_current()->peers, ~bit) & bit
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

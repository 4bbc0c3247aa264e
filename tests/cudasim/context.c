/* SPDX-License-Identifier: Apache-2.0 */
/* The life of contexts: a primary one per device, and those that the program creates. */
#include "sim.h"

#include <pthread.h>

#define MAX_CREATED 32

static struct ctx contexts[SIM_MAX_DEVICES];
/* Slots are used in turn, so that no handle is used again at once. */
static struct ctx created[MAX_CREATED];
static size_t next_created;
/* Held over the making and the end of a context. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t ctx_new_id(void)
{
	static atomic_uint_fast64_t last_id;

	return atomic_fetch_add(&last_id, 1) + 1;
}

struct ctx *ctx_of_device(unsigned device)
{
	return &contexts[device];
}

bool ctx_is_created(const struct ctx *ctx)
{
	return ctx >= created && ctx < created + MAX_CREATED;
}

struct ctx *ctx_find(const void *handle)
{
	for (int i = 0; i < device_count(); i++) {
		if (handle == &contexts[i]) {
			return &contexts[i];
		}
	}
	for (size_t i = 0; i < MAX_CREATED; i++) {
		if (handle == &created[i] && atomic_load(&created[i].active)) {
			return &created[i];
		}
	}
	return NULL;
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

uint64_t ctx_id(const struct ctx *ctx)
{
	pthread_mutex_lock(&lock);
	uint64_t id = ctx->id;
	pthread_mutex_unlock(&lock);
	return id;
}

static void poison_one(struct ctx *ctx, CUresult err)
{
	int clean = CUDA_SUCCESS;

	atomic_compare_exchange_strong(&ctx->poison, &clean, err);
}

/* Poison @ctx and all others of its device; NULL: all. */
static void poison_those(struct ctx *list, size_t n, const struct ctx *ctx, CUresult err)
{
	for (size_t i = 0; i < n; i++) {
		if (atomic_load(&list[i].active) && (!ctx || list[i].device == ctx->device)) {
			poison_one(&list[i], err);
		}
	}
}

void ctx_poison(struct ctx *ctx, CUresult err)
{
	poison_one(ctx, err);
	poison_those(contexts, SIM_MAX_DEVICES, ctx, err);
	poison_those(created, MAX_CREATED, ctx, err);
}

void ctx_poison_all(CUresult err)
{
	poison_those(contexts, SIM_MAX_DEVICES, NULL, err);
	poison_those(created, MAX_CREATED, NULL, err);
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

/* Locked. A poisoned primary context can never be made again in this process. */
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
	alloc_free_all(ctx);
	hostmem_free_all(ctx);
	array_free_all(ctx);
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

/* Locked. NULL: there is no place. */
static struct ctx *take_place(void)
{
	for (size_t i = 0; i < MAX_CREATED; i++) {
		struct ctx *ctx = &created[next_created++ % MAX_CREATED];
		if (!atomic_load(&ctx->active)) {
			return ctx;
		}
	}
	return NULL;
}

static CUresult create(CUcontext *ctx_out, unsigned flags, CUdevice dev)
{
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (!ctx_out || flags & ~(unsigned)CU_CTX_FLAGS_MASK) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	pthread_mutex_lock(&lock);
	struct ctx *ctx = take_place();
	if (ctx) {
		ctx->device = (unsigned)dev;
		ctx->flags = flags;
		atomic_store(&ctx->poison, CUDA_SUCCESS);
		err = ctx_open(ctx);
	}
	pthread_mutex_unlock(&lock);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	*ctx_out = (CUcontext)ctx;
	return ctx_push(ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx_out, unsigned int flags, CUdevice dev)
{
	ENTER(cuCtxCreate_v2);
	return create(ctx_out, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *ctx_out, CUexecAffinityParam *params, int n_params,
                        unsigned int flags, CUdevice dev)
{
	ENTER(cuCtxCreate_v3);
	if (params || n_params != 0) {
		return CUDA_ERROR_NOT_SUPPORTED; /* without MPS, by a driver too */
	}
	return create(ctx_out, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *ctx_out, CUctxCreateParams *params, unsigned int flags,
                        CUdevice dev)
{
	ENTER(cuCtxCreate_v4);
	if (params && (params->execAffinityParams || params->cigParams)) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return create(ctx_out, flags, dev);
}

/* There is no graphics here, so the context is like any other. */
CUresult cuGLCtxCreate_v2(CUcontext *ctx_out, unsigned int flags, CUdevice dev)
{
	ENTER(cuGLCtxCreate_v2);
	return create(ctx_out, flags, dev);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx_out, unsigned int flags, CUdevice dev,
                             uint32_t vdp_device, void *vdp_get_proc)
{
	ENTER(cuVDPAUCtxCreate_v2);
	(void)vdp_device;
	(void)vdp_get_proc;
	return create(ctx_out, flags, dev);
}

/* A lost context can be destroyed, too. Where it is current in other threads it stays so, and is of no use. */
CUresult cuCtxDestroy_v2(CUcontext handle)
{
	ENTER(cuCtxDestroy_v2);
	struct ctx *ctx = ctx_find(handle);

	if (!handle) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* A primary one can only be released. */
	if (!ctx || !ctx_is_created(ctx)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&lock);
	ctx_close(ctx);
	pthread_mutex_unlock(&lock);
	ctx_pop_if(ctx);
	return CUDA_SUCCESS;
}

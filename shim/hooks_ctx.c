/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that are created and that end: plain, primary and green ones. */
#include "shim/capture.h"
#include "shim/context.h"
#include "shim/drain.h"
#include "shim/driver_usage.h"
#include "shim/code.h"
#include "shim/kernels.h"
#include "shim/graphmem.h"
#include "shim/heap.h"
#include "shim/ipc.h"
#include "shim/order.h"
#include "shim/quiesce.h"

/* ---- contexts that are made -------------------------------------------------------------------- */

static CUresult made(CUresult result, const CUcontext *ctx, CUdevice device)
{
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		context_created(*ctx, device);
		shim_count(SHIM_COUNT_contexts);
	}
	return result;
}

CUresult shim_cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device)
{
	return made(real(cuCtxCreate)(ctx, flags, device), ctx, device);
}

CUresult shim_cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device)
{
	return made(real(cuCtxCreate_v2)(ctx, flags, device), ctx, device);
}

CUresult shim_cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinities, int n, unsigned flags,
                             CUdevice device)
{
	return made(real(cuCtxCreate_v3)(ctx, affinities, n, flags, device), ctx, device);
}

CUresult shim_cuCtxCreate_v4(CUcontext *ctx, void *parameters, unsigned flags, CUdevice device)
{
	return made(real(cuCtxCreate_v4)(ctx, parameters, flags, device), ctx, device);
}

CUresult shim_cuGLCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device)
{
	return made(real(cuGLCtxCreate)(ctx, flags, device), ctx, device);
}

CUresult shim_cuGLCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device)
{
	return made(real(cuGLCtxCreate_v2)(ctx, flags, device), ctx, device);
}

CUresult shim_cuVDPAUCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device, uint32_t vdp_device,
                               void *vdp_get_proc)
{
	return made(real(cuVDPAUCtxCreate)(ctx, flags, device, vdp_device, vdp_get_proc), ctx,
	            device);
}

CUresult shim_cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device,
                                  uint32_t vdp_device, void *vdp_get_proc)
{
	return made(real(cuVDPAUCtxCreate_v2)(ctx, flags, device, vdp_device, vdp_get_proc), ctx,
	            device);
}

/* ---- contexts that end ------------------------------------------------------------------------ */

/* A context that may be about to end. */
struct ending {
	CUcontext ctx; /* NULL: there is none */
	unsigned long long id;
	uint64_t generation; /* begins with the call */
};

/* Called after order_hold_contexts(). ending_settle() lets the contexts again. */
static void ending_prepare(struct ending *ending)
{
	ending->generation = context_next_generation();
	order_hide_ctx(ending->ctx);
	kernels_hide_code();
}

/* The contexts are let before parts that ask glaked, so that other contexts can end meanwhile. */
static void ending_settle(const struct ending *ending, bool is_gone)
{
	if (is_gone) {
		code_ctx_ends();
	}
	kernels_show_code(is_gone);
	if (!is_gone) {
		order_show_ctx(ending->ctx);
		order_let_contexts();
		return;
	}
	drain_ctx_ends(ending->ctx);
	capture_drop_ctx(ending->ctx, ending->generation);
	quiesce_drop_ctx(ending->ctx, ending->generation);
	context_gone(ending->ctx, ending->generation);
	order_drop_ctx();
	order_let_contexts();
	ipc_release_ctx(ending->ctx, ending->generation);
	graphmem_drop_ctx(ending->ctx, ending->generation);
	heap_release_ctx(ending->ctx, ending->generation);
	driver_usage_release_ctx(ending->ctx, ending->generation);
}

static CUresult destroy_ctx(CUcontext ctx, shim_ctx_fn *destroy)
{
	struct ending ending = {.ctx = ctx};
	if (shim_is_forked()) {
		return destroy(ctx);
	}
	order_hold_contexts();
	ending_prepare(&ending);
	CUresult result = destroy(ctx);
	ending_settle(&ending, result == CUDA_SUCCESS);
	return result;
}

CUresult shim_cuCtxDestroy(CUcontext ctx)
{
	return destroy_ctx(ctx, real(cuCtxDestroy));
}

CUresult shim_cuCtxDestroy_v2(CUcontext ctx)
{
	return destroy_ctx(ctx, real(cuCtxDestroy_v2));
}

/* @ctx must be the current context. If this was its last use, it no longer is. */
CUresult shim_cuCtxDetach(CUcontext ctx)
{
	struct ending ending = {.ctx = ctx};
	CUcontext current = ctx;
	if (shim_is_forked()) {
		return real(cuCtxDetach)(ctx);
	}
	order_hold_contexts();
	ending_prepare(&ending);
	CUresult result = real(cuCtxDetach)(ctx);
	ending_settle(&ending, result == CUDA_SUCCESS &&
	                               real(cuCtxGetCurrent)(&current) == CUDA_SUCCESS &&
	                               current != ctx);
	return result;
}

/* ---- primary contexts ------------------------------------------------------------------------- */

/*
 * The primary context, if there is one. cudart may retain it unnoticed, so the driver is asked. A
 * new primary context has the handle of the last one, but another id (since CUDA 12.0).
 */
static struct ending primary_of(CUdevice device)
{
	struct ending primary = {.ctx = NULL};
	if (context_is_active(device) &&
	    real(cuDevicePrimaryCtxRetain)(&primary.ctx, device) == CUDA_SUCCESS) {
		if (real(cuCtxGetId)) {
			real(cuCtxGetId)(primary.ctx, &primary.id);
		}
		real(cuDevicePrimaryCtxRelease_v2)(device);
	}
	return primary;
}

/* Another thread may have created the next one already. */
static bool is_primary_gone(CUdevice device, const struct ending *ending)
{
	if (!ending->ctx || !context_is_active(device)) {
		return ending->ctx != NULL;
	}
	struct ending now = primary_of(device);
	return now.ctx && now.id != ending->id;
}

static struct ending hold_primary(CUdevice device)
{
	order_hold_contexts();
	struct ending ending = primary_of(device);
	ending_prepare(&ending);
	return ending;
}

static CUresult end_primary(CUdevice device, shim_device_fn *end)
{
	if (shim_is_forked() || !real(cuDevicePrimaryCtxRelease_v2)) {
		return end(device);
	}
	struct ending ending = hold_primary(device);
	CUresult result = end(device);
	ending_settle(&ending, is_primary_gone(device, &ending));
	return result;
}

CUresult shim_cuDevicePrimaryCtxRelease(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxRelease));
}

CUresult shim_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxRelease_v2));
}

CUresult shim_cuDevicePrimaryCtxReset(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxReset));
}

CUresult shim_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxReset_v2));
}

/* ---- green contexts: each retains the primary one ------------------------------------ */

CUresult shim_cuGreenCtxCreate(CUgreenCtx *green_out, CUdevResourceDesc resources, CUdevice device,
                               unsigned flags)
{
	CUresult result = real(cuGreenCtxCreate)(green_out, resources, device, flags);
	struct context_green green = {.device = device};
	if (result != CUDA_SUCCESS || shim_is_forked() || !real(cuDevicePrimaryCtxRelease_v2) ||
	    !real(cuCtxFromGreenCtx) ||
	    real(cuCtxFromGreenCtx)(&green.ctx, *green_out) != CUDA_SUCCESS) {
		return result;
	}
	green.handle = *green_out;
	order_hold_contexts();
	green.primary = primary_of(device).ctx;
	order_let_contexts();
	if (green.primary) {
		context_add_green(&green);
	}
	return result;
}

CUresult shim_cuGreenCtxDestroy(CUgreenCtx handle)
{
	struct context_green green;
	if (shim_is_forked() || !context_end_green(handle, &green)) {
		return real(cuGreenCtxDestroy)(handle);
	}
	/* Streams of the green context cannot be marked after its end. */
	order_collect(green.primary);
	struct ending ending = hold_primary(green.device);
	CUresult result = real(cuGreenCtxDestroy)(handle);
	if (result == CUDA_SUCCESS) {
		drain_ctx_ends(green.ctx);
		capture_drop_ctx(green.ctx, ending.generation);
	} else {
		context_add_green(&green);
	}
	ending_settle(&ending, is_primary_gone(green.device, &ending));
	return result;
}

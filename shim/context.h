/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts, as what a program has in them is known by: a handle and a generation.
 *
 * The handle of a context that has ended may be the next one's at once, in another thread, before we
 * know of the end. So whatever is noted of a context is noted with the generation, and an end, which begins a
 * new one, concerns what was noted before.
 *
 * Green contexts are of the primary context of their device: memory that is allocated in one is the
 * primary's, stays when the green one goes, and may be in use in all of them.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_CONTEXT_H
#define GLAKE_SHIM_CONTEXT_H

#include "shim/shim.h"

/* Has @device a primary context in this process? To ask for it otherwise could make one. */
bool context_is_active(CUdevice device);

uint64_t context_generation(void);

/* Some context may be about to end: what is noted from now on is of no context that ends by that. */
uint64_t context_next_generation(void);

/* @ctx, or the primary context if it is a green one. */
CUcontext context_primary(CUcontext ctx);

/* The program has made one by itself. The life of @ctx before @generation is over. */
void context_created(CUcontext ctx, CUdevice device);
void context_gone(CUcontext ctx, uint64_t generation);

/*
 * All live contexts of the devices in @devices (bit per device), in which work may read what these
 * devices read: primary, created and green ones. Between order_hold_contexts() and order_let_contexts(),
 * so that none ends meanwhile. @fn is called with no lock of ours held.
 */
typedef void context_fn(void *user, CUcontext ctx, CUdevice device);
void context_each(uint64_t devices, context_fn *fn, void *user);

/* A green context by its two handles. */
struct context_green {
	CUgreenCtx handle;
	CUcontext ctx;
	CUcontext primary;
	CUdevice device;
};

/* The program has made one, or has it once more, and is about to end it. */
void context_add_green(const struct context_green *green);
/* False if it is not known. */
bool context_end_green(CUgreenCtx handle, struct context_green *green_out);

/*
 * Is @current a green context that has ended? It stays current where it was, still has a device, and
 * nothing can be allocated in it.
 */
bool context_has_ended(CUcontext current);

#endif

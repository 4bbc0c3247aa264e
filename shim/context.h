/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts. What the program has in a context is noted with the context's handle and a generation.
 *
 * The driver may give the handle of a context that has ended to a new one at once, in another
 * thread, before the shim knows of the end. Therefore the process counts generations: before each
 * call that may end a context, a new one begins. If the context has ended, everything that was
 * noted with its handle and an earlier generation was of that context.
 *
 * A green context belongs to the primary context of its device. Memory that is allocated in a green
 * context is the primary's: it stays when the green context ends, and may be in use in all of them.
 *
 * Ownership: the process. Blocking: no. Threads: any.
 */
#ifndef GLAKE_SHIM_CONTEXT_H
#define GLAKE_SHIM_CONTEXT_H

#include "shim/shim.h"

/*
 * Has @device a primary context in this process? Check it before other questions about a device,
 * because those may create one.
 */
bool context_is_active(CUdevice device);

/* The current generation. */
uint64_t context_generation(void);

/* Begin the next generation: a context may be about to end. Returns the new one. */
uint64_t context_next_generation(void);

/* The primary context of a green one; other contexts are returned unchanged. */
CUcontext context_primary(CUcontext ctx);

/* The program has created @ctx itself. */
void context_created(CUcontext ctx, CUdevice device);
/* Context @ctx has ended: forget it if it was created before @generation. */
void context_gone(CUcontext ctx, uint64_t generation);

/*
 * Call @fn for each live context of all devices: primary, created and green ones. Work in any of them may use
 * any memory: copies run on streams of other devices also where those have no access. @fn is called without locks. Call it between
 * order_hold_contexts() and order_let_contexts(), so that no context ends meanwhile. Returns false if
 * there may be more contexts: there was no memory to note them.
 */
typedef void context_fn(void *user, CUcontext ctx, CUdevice device);
bool context_each(context_fn *fn, void *user);

/* Any live context of @device, under the same conditions; NULL: there is none. */
CUcontext context_of(CUdevice device);

/* A green context has two handles. */
struct context_green {
	CUgreenCtx handle;
	CUcontext ctx;
	CUcontext primary;
	CUdevice device;
};

/* The program has created @green, or could not end it after context_end_green(). */
void context_add_green(const struct context_green *green);
/* The program is about to end a green context. False: the handle is not known. */
bool context_end_green(CUgreenCtx handle, struct context_green *green_out);

/*
 * Is @current, the current context, a green one that has ended? It stays current where it was and
 * still has a device, but nothing can be allocated in it.
 */
bool context_has_ended(CUcontext current);

#endif

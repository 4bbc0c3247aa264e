/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for the GPU, as the driver's own cuMemFree() does: for a context, and for the contexts that
 * may access its memory.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_QUIESCE_H
#define GLAKE_SHIM_QUIESCE_H

#include <stdbool.h>

#include "shim/shim.h"

/*
 * Wait for all work of @ctx, and of the contexts that may access its memory. Returns the driver's
 * error of @ctx, or its error if a capture forbids to wait. Errors of other contexts are ignored: a
 * lost context has no work any more.
 */
CUresult quiesce_ctx(CUcontext ctx);

/* Context @reader may access the memory of context @maker. False: no host memory to note it. */
bool quiesce_add_reader(CUcontext maker, CUcontext reader);
/* Access that was given once is taken away. */
void quiesce_drop_reader(CUcontext maker, CUcontext reader);
/* Context @ctx has ended: forget its pairs from before @generation (context.h). */
void quiesce_drop_ctx(CUcontext ctx, uint64_t generation);

#endif

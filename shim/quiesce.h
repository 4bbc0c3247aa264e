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
 * Wait for all work of @ctx, and of contexts that may access its memory. The driver's error: of
 * @ctx, or if a capture forbids to wait. A reader that is lost has no work any more.
 */
CUresult quiesce_ctx(CUcontext ctx);

/* @reader was given access to memory that @maker allocates. False without memory. */
bool quiesce_add_reader(CUcontext maker, CUcontext reader);
void quiesce_drop_reader(CUcontext maker, CUcontext reader);
/* The life of @ctx before @generation (context.h) is over. */
void quiesce_drop_ctx(CUcontext ctx, uint64_t generation);

#endif

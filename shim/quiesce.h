/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for the GPU, as the driver's own cuMemFree() does, and what stream capture makes of that.
 *
 * While any stream of the process is captured, most calls that wait are forbidden: they fail, and
 * end the capture. Whether cuMemAlloc() and cuMemFree() are depends on the capture and on the mode
 * of the calling thread, and only the driver knows both. So then we ask it: a tiny allocation of its
 * own succeeds, fails, and waits when freed, exactly as the program's would.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_QUIESCE_H
#define GLAKE_SHIM_QUIESCE_H

#include <stdbool.h>

#include "shim/shim.h"

/* May memory be allocated now? The driver's error if not. Costs nothing outside captures. */
CUresult quiesce_ask_alloc(void);

/* Wait for all work of @ctx, and of contexts that may access its memory. The driver's error. */
CUresult quiesce_ctx(CUcontext ctx);

/* @reader was given access to memory that @owner allocates. */
void quiesce_add_reader(CUcontext owner, CUcontext reader);
/* @ctx is gone. */
void quiesce_drop_ctx(CUcontext ctx);

bool quiesce_is_capturing(void);

/* Captures that have begun and not ended, +1 or -1. */
void quiesce_note_capture(int change);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which streams of the process are being captured, and what that means for memory.
 *
 * During a capture a call that waits may make the capture fail. Whether cuMemAlloc() and
 * cuMemFree() count as such depends on the capture and on the mode of the calling thread, and only
 * the driver knows both. So the shim asks the driver: a tiny allocation of its own succeeds, fails,
 * and waits when it is freed, exactly as the program's would.
 *
 * The shim's own calls must not disturb a capture: they run between capture_relax() and
 * capture_restore().
 *
 * Ownership: the process. Threads: any. Errors: the driver's codes.
 */
#ifndef GLAKE_SHIM_CAPTURE_H
#define GLAKE_SHIM_CAPTURE_H

#include <stdbool.h>

#include "shim/shim.h"

/* Is any stream captured? A load. */
bool capture_is_any(void);

/* May @stream be captured? @flags: GLAKE_PER_THREAD or 0. Outside captures false, without a driver call. */
bool capture_may_have(CUstream stream, unsigned flags);

/* The driver's call that tells of the capture that a stream is in; NULL: it has none. */
shim_capture_info_fn *capture_info_call(unsigned flags);

/* May a captured stream be one of context @ctx? Asking the driver could end its capture. */
bool capture_may_be_in(CUstream stream, unsigned flags, CUcontext ctx);

/* Did the capture with the driver's id @id begin in a graph that the program had made? */
bool capture_is_in_graph(uint64_t id);

/* May the thread allocate memory? CUDA_SUCCESS, or the driver's error. A load outside captures. */
CUresult capture_ask_alloc(void);

/*
 * @address: a tiny allocation in the current context, made to ask the driver. Freeing it waits for the GPU, so
 * free_probes() does that. The program's own frees call it, after they have waited.
 */
void capture_keep_probe(CUdeviceptr address);
void capture_free_probes(void);

/*
 * May the thread free memory? Call it only during captures. It waits for the work of the current context,
 * as a free does.
 */
CUresult capture_ask_free(void);

/*
 * The calls that begin and end captures. @flags: GLAKE_PER_THREAD or 0. @result is the driver's.
 * begins: before a call that begins a capture. Returns @is_new for begun.
 * begun: after that call. Returns @result.
 * begun_in_graph: as begun, if the capture began in a graph of the program.
 * ended: after a call that ends a capture, also an invalidated one. Returns @result.
 * stream_destroyed: after the call that destroys a stream, and its capture with it. Returns
 * @result.
 */
bool capture_begins(CUstream stream, unsigned flags);
CUresult capture_begun(CUstream stream, unsigned flags, bool is_new, CUresult result);
CUresult capture_begun_in_graph(CUstream stream, unsigned flags, bool is_new, CUresult result);
CUresult capture_ended(CUstream stream, unsigned flags, CUresult result);
CUresult capture_stream_destroyed(CUstream stream, CUresult result);

/* Context @ctx has ended: forget its captures from before @generation (context.h). */
void capture_drop_ctx(CUcontext ctx, uint64_t generation);

/* Is all work of the legacy default stream @legacy done? False while any stream is captured. No capture begins meanwhile. */
bool capture_ask_idle(CUstream legacy);

/*
 * relax: from now on captures forbid this thread only what disturbs its own captured streams.
 * Returns the mode before, for restore.
 */
CUstreamCaptureMode capture_relax(void);
void capture_restore(CUstreamCaptureMode mode);

#endif

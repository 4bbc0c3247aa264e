/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which streams of the process are being captured, and what that makes of memory.
 *
 * During a capture a thread must not make calls that wait, or the capture fails. Whether cuMemAlloc()
 * and cuMemFree() are such depends on the capture and on the mode of the calling thread, and only the
 * driver knows both. So then we ask it: a tiny allocation of its own succeeds, fails, and waits when
 * freed, exactly as the program's would.
 *
 * Our own calls are none of a capture's business: capture_relax() for them.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_CAPTURE_H
#define GLAKE_SHIM_CAPTURE_H

#include <stdbool.h>

#include "shim/shim.h"

/* Is any stream captured? Costs nothing. */
bool capture_is_any(void);

/* May memory be allocated now? The driver's error if not. Costs nothing outside captures. */
CUresult capture_ask_alloc(void);

/* During captures: free something in the current context, which waits for it. The driver's error. */
CUresult capture_ask_free(void);

/*
 * Around the calls that begin a capture, with the result of the one as @is_new of the other; after
 * those that end it, which an invalidated one needs as well; and after the end of its stream, which
 * takes it along. @flags: GLAKE_PER_THREAD or 0.
 */
bool capture_begins(CUstream stream, unsigned flags);
CUresult capture_begun(CUstream stream, unsigned flags, bool is_new, CUresult result);
CUresult capture_ended(CUstream stream, unsigned flags, CUresult result);
CUresult capture_stream_destroyed(CUstream stream, CUresult result);

/* The life of @ctx before @generation (context.h) is over, and so are its captures. */
void capture_drop_ctx(CUcontext ctx, uint64_t generation);

/* From here to the restoring no capture forbids this thread anything but to disturb its own streams. */
CUstreamCaptureMode capture_relax(void);
void capture_restore(CUstreamCaptureMode mode);

#endif

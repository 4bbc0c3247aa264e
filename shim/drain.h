/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's gate (glake_shim.h) in a program under the shim. To close it, the shim closes the gate for
 * the program's calls (gate.h) and waits until all work that was submitted before is done, in
 * every live context of all devices, primary, created and green ones: copies run on streams of any device.
 *
 * Waiting has a deadline, because work may depend on a thread that is now held back at the gate: NCCL, waits
 * for a word in memory, host functions. After the deadline the gate opens again. While a stream is
 * captured, the gate closes only on the condition below, since marking work would end the capture. No capture begins at a
 * closed gate. No context ends while it is closed: the closer holds them until it opens the gate.
 *
 * Errors of close(): -EAGAIN as glake_shim.h says. Permanent errors: -ENOTSUP: the driver has no
 * cuCtxRecordEvent() (before CUDA 12.5), or the process is a forked child; -ENOMEM and -ENOSYS of gate_close();
 * GLAKE_E_CUDA: the driver failed. -EDEADLK: the caller is inside the gate, or has closed it.
 *
 * Ownership: the process. Blocking: up to the deadline. Threads: any; no context need be current.
 */
#ifndef GLAKE_SHIM_DRAIN_H
#define GLAKE_SHIM_DRAIN_H

#include <stdatomic.h>

#include "shim/shim.h"

extern const struct glake__gate drain_gate __attribute__((visibility("hidden")));

/*
 * Captures. Marking the work of a context ends a capture there. So if memory is sealed, all work is marked before the first
 * capture begins. As long as later work goes only to captured streams, those marks tell whether any is under way. Then the
 * gate closes during captures as well, and memory that they write to can be made private.
 */

/* All that was submitted since the work was marked went to captured streams. Set while the gate is closed. */
extern atomic_bool drain_is_calm __attribute__((visibility("hidden")));

/* A capture is about to begin. Call this before it is noted (capture.h). Blocks for at most 20 ms. */
void drain_before_capture(void);

/* Work is submitted to @stream. Call this inside the gate, while drain_is_calm. */
void drain_look_at(CUstream stream, bool is_per_thread);

/* @ctx has ended. Call this with the contexts held. */
void drain_ctx_ends(CUcontext ctx);

/*
 * The caller has closed the gate by drain_gate: wait for work that it has submitted itself since, at most @patience_ns. 0: the
 * work is done, or its context is lost. Errors as of close(); the gate stays closed.
 */
int drain_await(uint64_t patience_ns);

#endif

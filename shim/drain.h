/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's gate (glake_shim.h) in a program under the shim. To close it, the shim closes the gate for
 * the program's calls (gate.h) and waits until all work that was submitted before is done. It waits in
 * every live context of all devices, primary, created and green ones: copies run on streams of any device.
 *
 * Waiting has a deadline, because work may depend on a thread that is now held back at the gate: NCCL, waits
 * for a word in memory, host functions. After the deadline the gate opens again. While a stream is being
 * captured, the gate closes only as said below: waiting would end the capture. No capture begins at a closed gate.
 *
 * Errors of close(): -EAGAIN as glake_shim.h says. These are permanent: -ENOTSUP: the driver has no
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
 * Captures. While one is under way, asking a context would end it. So all work is marked before the first begins, if memory
 * is sealed; and as long as nothing is submitted but to captured streams, those marks tell whether any work is under way.
 * Then the gate closes during captures as well: what they write to can be made private.
 */

/* Nothing was submitted but to captured streams since all work was marked. Set behind a closed gate. */
extern atomic_bool drain_is_calm __attribute__((visibility("hidden")));

/* A capture is about to begin; before it is noted (capture.h). Blocks for at most 20 ms. */
void drain_before_capture(void);

/* While it is calm, inside the gate: work is submitted to @stream. */
void drain_look_at(CUstream stream, bool is_per_thread);

/* @ctx has ended, and no other context does meanwhile. */
void drain_ctx_ends(CUcontext ctx);

/*
 * Whoever has closed the gate by drain_gate: wait for what he has submitted behind it himself, at most so long. 0: it is
 * done, or its context is lost. Errors as of close(); the gate stays closed.
 */
int drain_await(uint64_t patience_ns);

#endif

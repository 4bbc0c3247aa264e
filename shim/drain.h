/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's gate (glake_shim.h) in a program under the shim. To close it, the shim closes the gate for
 * the program's calls (gate.h) and waits until all work that was submitted before is done. It waits in
 * every live context of all devices, primary, created and green ones: copies run on streams of any device.
 *
 * Waiting has a deadline, because work may depend on a thread that is now held back at the gate: NCCL, waits
 * for a word in memory, host functions. After the deadline the gate opens again. While a stream is being
 * captured, the gate does not close: waiting would end the capture. No capture begins at a closed gate.
 *
 * Errors of close(): -EAGAIN as glake_shim.h says. These are permanent: -ENOTSUP: the driver has no
 * cuCtxRecordEvent() (before CUDA 12.5), or the process is a forked child; -ENOMEM and -ENOSYS of gate_close();
 * GLAKE_E_CUDA: the driver failed. -EDEADLK: the caller is inside the gate, or has closed it.
 *
 * Ownership: the process. Blocking: up to the deadline. Threads: any; no context need be current.
 */
#ifndef GLAKE_SHIM_DRAIN_H
#define GLAKE_SHIM_DRAIN_H

#include "glake_shim.h"

extern const struct glake__gate drain_gate __attribute__((visibility("hidden")));

#endif

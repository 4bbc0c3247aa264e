/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC for memory of ours, which the driver refuses to name.
 *
 * A handle of ours is a name that glaked understands (glake_share) in the driver's 64 bytes, and
 * good for every process of the realm that runs under the shim. As with the driver, memory opened
 * twice is one mapping that has to be closed twice.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_IPC_H
#define GLAKE_SHIM_IPC_H

#include "shim/heap.h"

/* Is it one of ours? Another is the driver's business. */
bool ipc_is_ours(const CUipcMemHandle *handle);

/* Name memory of ours. False if @address is not in any: then the driver is to be asked. */
bool ipc_name(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out);

/* For a handle of ours: map it, for the current context. */
CUresult ipc_open(const CUipcMemHandle *handle, const struct heap_place *place,
                  CUdeviceptr *address_out);

/* False if @address is nothing that ipc_open() gave. */
bool ipc_close(CUdeviceptr address, CUresult *result_out);

/* Is @address anywhere in what has been opened? Then @facts_out (may be NULL). */
bool ipc_find(CUdeviceptr address, struct heap_facts *facts_out);

/* What a context has opened goes with it. */
void ipc_release_ctx(CUcontext ctx);

#endif

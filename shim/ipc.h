/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC for glaked's memory, for which the driver makes no handles.
 *
 * A handle of ours holds a name that glaked understands (struct glake_share) in the driver's 64
 * bytes. Every process of the realm that runs under the shim and was given the handle can open it.
 * As with the driver, each context has its own mapping, and memory that is opened twice in one
 * context is one mapping that must be closed twice.
 *
 * Ownership: the process. Blocking: name, open and close ask glaked. Threads: any. Errors: the
 * driver's codes.
 */
#ifndef GLAKE_SHIM_IPC_H
#define GLAKE_SHIM_IPC_H

#include "shim/heap.h"

/* Is the handle ours? Other handles are the driver's. */
bool ipc_is_ours(const CUipcMemHandle *handle);

/* Make a handle. False: @address is in no memory of ours, so the driver must be asked. */
bool ipc_name(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out);

/* Map the memory of a handle of ours for @target. */
CUresult ipc_open(const CUipcMemHandle *handle, const struct heap_target *target,
                  CUdeviceptr *address_out);

/* False: @address is in no memory that ipc_open() has mapped. */
bool ipc_close(CUdeviceptr address, CUresult *result_out);

/* Is @address in memory that ipc_open() has mapped? Then @facts_out (may be NULL) is set. */
bool ipc_find(CUdeviceptr address, struct heap_facts *facts_out);

/* Context @ctx has ended: close what it opened before @generation (context.h). */
void ipc_release_ctx(CUcontext ctx, uint64_t generation);

#endif

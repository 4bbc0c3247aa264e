/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC for memory of ours, which the driver refuses to name.
 *
 * A handle of ours is a name that glaked understands (glake_share) in the driver's 64 bytes, and
 * good for every process of the realm that runs under the shim and was told it. As with the driver,
 * memory opened twice in a context is one mapping that has to be closed twice; each context has its
 * own.
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

/* False if @address is in nothing that is mapped for ipc_open(). */
bool ipc_close(CUdeviceptr address, CUresult *result_out);

/* Is @address anywhere in memory that has been opened? Then @facts_out (may be NULL). */
bool ipc_find(CUdeviceptr address, struct heap_facts *facts_out);

/* The life of @ctx before @generation (context.h) is over, and what it has opened goes with it. */
void ipc_release_ctx(CUcontext ctx, uint64_t generation);

#endif

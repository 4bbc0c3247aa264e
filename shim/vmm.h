/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, over chunks of glaked.
 *
 * cuMemCreate() becomes a chunk, imported. The program gets the driver's handle of the import: it
 * maps, gives access and binds like any other. What an imported handle cannot do, or says otherwise, is
 * answered here: export (glaked is asked for the fd again), and the properties. Which handles and mappings
 * there are, the library's map knows (glake_shim.h): a chunk goes back to glaked when the last is gone.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_VMM_H
#define GLAKE_SHIM_VMM_H

#include "glake_shim.h"
#include "shim/shim.h"

typedef CUmemGenericAllocationHandle vmm_handle;

/* Can it be a chunk? Plain device memory, shared by fd or not at all. */
bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags);

/* 0 or CONNECTION_E_*. */
int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out);

/* The driver has made @handle, where we did not: it is accounted until it is gone. */
void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties);

struct vmm_chunk;

/* What a chunk of the map is; NULL if it is the driver's own, or another process's. */
const struct vmm_chunk *vmm_ours(const struct glake__chunk *chunk);

/* As the program asked for. */
const CUmemAllocationProp *vmm_properties(const struct vmm_chunk *chunk);
/* An fd of the caller's. */
CUresult vmm_export(const struct vmm_chunk *chunk, int *fd_out);

#endif

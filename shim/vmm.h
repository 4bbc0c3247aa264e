/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, over chunks of glaked.
 *
 * cuMemCreate() becomes a chunk, which the shim imports. The program gets the driver's handle of
 * the import, and can map it, set its access and bind it like any other. The shim does what an
 * imported handle cannot: it exports it (by asking glaked for the fd again) and tells its
 * properties. The library's map knows all handles and mappings (glake_shim.h). When the last one is
 * gone, the chunk goes back to glaked.
 *
 * Ownership: the process. Blocking: create and export ask glaked. Threads: any.
 */
#ifndef GLAKE_SHIM_VMM_H
#define GLAKE_SHIM_VMM_H

#include "glake_shim.h"
#include "shim/shim.h"

typedef CUmemGenericAllocationHandle vmm_handle;

/* Can it be a chunk? True for plain device memory that is shared by fd or not at all. */
bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags);

/* Make a chunk. Returns 0 or CONNECTION_E_*. */
int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out);

/* The driver itself has made @handle: it counts as driver usage until it is gone. */
void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties);

struct vmm_chunk;

/*
 * The chunk of vmm_create() behind an entry of the library's map. NULL: it is the driver's own, or
 * another process's. Valid as long as @chunk, which may be NULL.
 */
const struct vmm_chunk *vmm_ours(const struct glake__chunk *chunk);

/* As the program asked for. */
const CUmemAllocationProp *vmm_properties(const struct vmm_chunk *chunk);
/* *fd_out is the caller's. Returns CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vmm_export(const struct vmm_chunk *chunk, int *fd_out);

#endif

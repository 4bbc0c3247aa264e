/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, over chunks of glaked.
 *
 * cuMemCreate() becomes a chunk, imported. The program gets the driver's handle of the import: it
 * maps, gives access and binds like any other, so most calls need no hook. What an imported handle
 * cannot do, or says otherwise, is answered here: export (glaked is asked for the fd again), and the
 * properties. A chunk goes back to glaked when its last handle and its last mapping are gone.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_VMM_H
#define GLAKE_SHIM_VMM_H

#include "shim/shim.h"

typedef CUmemGenericAllocationHandle vmm_handle;

/* Can it be a chunk? Plain device memory, shared by fd or not at all. */
bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags);

/* 0 or OWNER_E_*. */
int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out);

/* The driver has made @handle, where we did not: it is accounted until it is gone. */
void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties);

struct vmm_chunk;

/*
 * The chunk of a handle, which lives until vmm_give(); NULL if it is not known. Around each call of
 * the driver that takes or gives up a handle or a mapping.
 */
struct vmm_chunk *vmm_take(vmm_handle handle);
/* The same, and NULL if it is the driver's own. */
struct vmm_chunk *vmm_take_ours(vmm_handle handle);
void vmm_give(struct vmm_chunk *chunk);

/* The driver has released @handle once. */
void vmm_released(vmm_handle handle);
/* The driver has mapped @chunk, and unmapped all in a range. */
void vmm_mapped(struct vmm_chunk *chunk, CUdeviceptr address, size_t n_bytes);
void vmm_unmapped(CUdeviceptr address, size_t n_bytes);
/* The driver has given one more @handle to what is mapped at @address. */
void vmm_retained(vmm_handle handle, CUdeviceptr address);

/* As the program asked for. */
const CUmemAllocationProp *vmm_properties(const struct vmm_chunk *chunk);
/* An fd of the caller's. */
CUresult vmm_export(const struct vmm_chunk *chunk, int *fd_out);

#endif

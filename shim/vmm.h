/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, over chunks of glaked.
 *
 * cuMemCreate() becomes a chunk, which the shim imports. The program gets a number for it, which the library maps
 * (libclient/space/number.h): the driver's handle stays the library's own. The shim exports the chunk, by asking glaked for
 * the fd again, and tells its properties. Memory that the driver makes itself, or imports, has the driver's handle. The
 * library's map knows all handles and mappings (glake_shim.h). When the last one is gone, the chunk goes back to glaked.
 *
 * Ownership: the process. Blocking: create and export ask glaked. Threads: any.
 */
#ifndef GLAKE_SHIM_VMM_H
#define GLAKE_SHIM_VMM_H

#include "glake_shim.h"
#include "shim/shim.h"

typedef CUmemGenericAllocationHandle vmm_handle;

/* Other threads may seal memory again and again, just when it has become private. */
#define UNSEAL_TRIES 8

/* Is this a number in a forked child? Then it is the parent's, and no handle of the driver. */
static inline bool vmm_is_parents(vmm_handle handle)
{
	return shim_is_forked() && glake__is_number(handle);
}

/* The driver has made @handle. If it looks like a number it is released: CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vmm_admit(vmm_handle handle);

/* The driver's code for a result of the library. */
CUresult vmm_result(int r);

/* Can it be a chunk? True for plain device memory that is shared by fd or not at all. */
bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags);

/* Make a chunk, and a number of it. Returns 0 or CONNECTION_E_*. */
int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *number_out);

/* The driver itself has made @handle: it counts as driver usage until it is gone. */
void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties);

/* The properties that the program asked for. */
const CUmemAllocationProp *vmm_properties(const struct glake__number *number);
/*
 * Like glake__number_pin(), before the driver gets the handle: sealed memory becomes private first. -EROFS: it cannot.
 */
int vmm_pin(struct glake__number *number, enum glake__pin pin, uint64_t *id_out,
            unsigned long long *handle_out);

/* *fd_out is the caller's. The memory is pinned. Returns CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vmm_export(struct glake__number *number, int *fd_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's half: address ranges, and chunks mapped into them. No context is needed.
 *
 * A chunk comes as an fd. It is imported, mapped, and the handle released at once: the mapping alone
 * keeps the memory from then on, so a process holds neither fds nor handles for what it has mapped.
 * Which driver it is, the space knows.
 *
 * Owner: addresses are the caller's: reserve/unreserve, chunk/unmap.
 * Threads: any; the driver locks. All that return int return 0 or GLAKE_E_CUDA, and set the error text.
 */
#ifndef GLAKE_LIBCLIENT_MAP_H
#define GLAKE_LIBCLIENT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/glake.h"
#include "libclient/space/piece.h"
#include "libclient/space/space.h"

/* @alignment: 0 = the driver's choice, else a power of two; @hint: 0 = anywhere. */
int glake__map_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint, glake_ptr *ptr_out);
int glake__map_unreserve(glake_ptr ptr, uint64_t n_bytes);

/* A handle of the caller's. @fd stays the caller's as well, and may be closed at once. */
int glake__map_import(int fd, CUmemGenericAllocationHandle *handle_out);
/* A handle of the memory mapped at @ptr. */
int glake__map_retain(glake_ptr ptr, CUmemGenericAllocationHandle *handle_out);
void glake__map_release(CUmemGenericAllocationHandle handle);

/* A handle of the caller's, of new memory that is the driver's and not glaked's. @device is CUDA's. */
int glake__map_create(int device, uint64_t n_bytes, CUmemGenericAllocationHandle *handle_out);

/* Map @handle, of @n_bytes, at @ptr. Nothing may touch it before glake__map_access(). */
int glake__map_handle(glake_ptr ptr, uint64_t n_bytes, CUmemGenericAllocationHandle handle);

/* One call for all that is mapped in [ptr, ptr + n_bytes), for all CUDA devices of @readers. */
int glake__map_access(glake_ptr ptr, uint64_t n_bytes, uint64_t readers, enum glake__access access);

/* [ptr, ptr + n_bytes) is one mapping. */
int glake__map_unmap(glake_ptr ptr, uint64_t n_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's half: address ranges, and chunks mapped into them. No context is needed.
 *
 * A chunk comes as an fd. It is imported, mapped, and the handle released at once: the mapping alone
 * keeps the memory from then on, so a process holds neither fds nor handles for what it has mapped.
 *
 * Owner: addresses are the caller's: reserve/unreserve, chunk/unmap.
 * Threads: any; the driver locks. All that return int return 0 or GLAKE_E_CUDA, and set the error text.
 */
#ifndef GLAKE_LIBCLIENT_MAP_H
#define GLAKE_LIBCLIENT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/link/session.h"

/* @alignment: 0 = the driver's choice, else a power of two. */
int glake__map_reserve(struct glake_session *session, uint64_t n_bytes, uint64_t alignment,
                       glake_ptr *ptr_out);
int glake__map_unreserve(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes);

/* Import a chunk. @fd stays the caller's and may be closed at once. */
int glake__map_import(struct glake_session *session, int fd,
                      CUmemGenericAllocationHandle *handle_out);
void glake__map_release(struct glake_session *session, CUmemGenericAllocationHandle handle);

/* Map @handle, of @n_bytes, at @ptr. Nothing may touch it before glake__map_access(). */
int glake__map_handle(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes,
                      CUmemGenericAllocationHandle handle);

/* Import, map, release. */
int glake__map_fd(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes, int fd);

/* One call for all that is mapped in [ptr, ptr + n_bytes). */
int glake__map_access(struct glake_session *session, const struct glake__device *device,
                      glake_ptr ptr, uint64_t n_bytes, bool writable);

/* [ptr, ptr + n_bytes) is one mapping. */
int glake__map_unmap(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_PROGRAM_H
#define GLAKE_LIBCLIENT_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/why.h"
#include "libclient/space/range.h"

/* A reservation of the program's. */
extern const struct glake__use glake__use_program;

/*
 * The shim makes the driver's calls and notes their effects here. A call that can fail has a
 * function before it and one after it, which is told the result.
 */
struct glake__chunk;

/*
 * Addresses of the window for cuMemAddressReserve(), or, where that has none, the driver's.
 * -EINVAL: not a multiple of 2 MiB, or before glake__space_start(); else as the driver:
 * GLAKE_E_CUDA, -ENOMEM.
 */
int glake__program_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint,
                           glake_ptr *ptr_out);
/* -ENOENT: it is no reservation of those; -EINVAL: another size, or not empty. */
int glake__program_unreserve(glake_ptr ptr, uint64_t n_bytes);

/*
 * The driver has made @handle. When its last handle, mapping and use is gone, @release is called
 * with @user and no lock held. @device: CUDA's, -1: none. With one use and one handle. NULL
 * without memory.
 */
struct glake__chunk *glake__program_made(unsigned long long handle, uint64_t n_bytes, int device,
                                         void *user, void (*release)(void *user));
/* The program has imported memory of another process, or ours that has come back by an fd. */
void glake__program_imported(unsigned long long handle, int device);

/*
 * The chunk of a handle, with a use more, until glake__program_give(); NULL if it is not known.
 * Around each call of the driver that takes or gives up a handle or a mapping.
 */
struct glake__chunk *glake__program_take(unsigned long long handle);
void glake__program_give(struct glake__chunk *chunk);
void glake__program_pin(struct glake__chunk *chunk, enum glake__pin pin);

/* The driver has released @handle once; it has retained the memory at @address as @handle. */
void glake__program_released(unsigned long long handle);
void glake__program_retained(unsigned long long handle, glake_ptr address);

/* Around a mapping. */
struct glake__mapping;
/*
 * 0 and *mapping_out; -ENOENT: nothing of ours is there, the driver knows; -EINVAL: it must not be.
 * @chunk may be NULL, of a handle that is not known.
 */
int glake__program_map(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                       struct glake__mapping **mapping_out);
/* Called before an unmapping, as the one above before a mapping. */
int glake__program_unmap(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* NULL is fine. */
void glake__program_settle(struct glake__mapping *mapping, bool is_done);

/*
 * The same around a call that changes the access to what is mapped there, or takes a handle of it. What is
 * mapped stays as it is until glake__program_settle().
 */
int glake__program_hold(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* -EINVAL also where that cuts a number's mapping. */
int glake__program_hold_whole(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* The program has given @device access: to read, also to write, or none. -1: who is no device; it is pinned then. */
void glake__program_opened(glake_ptr ptr, uint64_t n_bytes, int device, bool may_read,
                           bool may_write);

/* The access that the program gave there, whatever the driver has now. False: nothing of the kind is mapped there. */
bool glake__program_access(glake_ptr ptr, int device, bool *may_read_out, bool *may_write_out);

#endif

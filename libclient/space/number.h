/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers: what the program has of memory that it made by cuMemCreate(), in place of the driver's handle.
 *
 * A number names a row of chunks, first one. The row is a range without addresses, so it is a place of its chunks like
 * any mapping: what is sealed, cut or moved changes there as well, and the program's number still names it. Handles
 * of the driver are the library's own, one for each chunk of a row, so that it can be mapped again after it was mapped
 * nowhere. A mapping of a number maps the whole row, side by side.
 *
 *   made -> refs > 0 (map, unmap, retain, release)* -> no refs: no name, but as long as it is mapped it can be
 *   retained again -> no refs and not mapped: its chunks go back to glaked
 *
 * No handle of the driver is a number: they are addresses of the process or small, numbers are neither.
 *
 * Threads: any; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_NUMBER_H
#define GLAKE_LIBCLIENT_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/why.h"

struct glake__number;

static inline bool glake__is_number(unsigned long long handle)
{
	return handle >> 48 == 0x6c1au;
}

/*
 * A number with one reference, of chunk @id of glaked's, of @n_bytes on CUDA device @ordinal, that was granted to
 * @session and imported as @handle of the driver, which is the number's from here on. When its last chunk is gone, @end is
 * called with @user. 0; -ENOMEM, -ENODEV: then all is still the caller's.
 */
int glake__number_make(struct glake_session *session, int ordinal, uint64_t id, uint64_t n_bytes,
                       unsigned long long handle, void *user, void (*end)(void *user),
                       unsigned long long *value_out);

/* The number of that value, with a use more, until glake__number_give(). NULL: there is none, or not any more. */
struct glake__number *glake__number_take(unsigned long long value);
/* Around calls of the driver that end mappings of it: it may end with this. NULL is fine. */
void glake__number_give(struct glake__number *number);
void *glake__number_user(const struct glake__number *number);

/* One reference less. False: there is no such number. */
bool glake__number_release(unsigned long long value);

/* One reference more to what is mapped at @address; 0: that is no number's. */
unsigned long long glake__number_retain(glake_ptr address);

struct glake__chunk;
/* The number whose row @chunk is in, with a use more; NULL: it is in none. Called with the lock of the space held. */
struct glake__number *glake__number_use_locked(const struct glake__chunk *chunk);

/*
 * Map it at @ptr, without access yet. 0; -ENOENT: @ptr is in no reservation that the library knows; -EOPNOTSUPP: it is
 * larger or smaller than @n_bytes; -EINVAL: something is mapped there; -ENOMEM; GLAKE_E_CUDA. Waits for changes of it.
 */
int glake__number_map(struct glake__number *number, glake_ptr ptr, uint64_t n_bytes);

/*
 * For those who get the memory by other ways: it is pinned for reason @pin, and is one private chunk: *id_out is glaked's, and
 * *handle_out the driver's handle, which stays the library's. -EROFS: it is sealed; -EBUSY: it is in several chunks.
 */
int glake__number_pin(struct glake__number *number, enum glake__pin pin, uint64_t *id_out,
                      unsigned long long *handle_out);

/* Somewhere @number is mapped by the program; 0: nowhere. Its bytes are in *n_bytes_out. */
glake_ptr glake__number_address(const struct glake__number *number, uint64_t *n_bytes_out);

#endif

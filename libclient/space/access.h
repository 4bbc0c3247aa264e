/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving access to what is mapped, in few calls of the driver.
 *
 * Threads: any; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_ACCESS_H
#define GLAKE_LIBCLIENT_ACCESS_H

#include <stdbool.h>

#include "libclient/glake.h"
#include "libclient/space/piece.h"

/* All of @readers get @access, but those that are not among @writers get no more than to read. 0 or GLAKE_E_CUDA. */
int glake__access_set(glake_ptr ptr, uint64_t n_bytes, uint64_t readers, uint64_t writers,
                      enum glake__access access);

/* The readers of @piece that may write to it when it is writable. */
uint64_t glake__access_writers(const struct glake__piece *piece);

/* @next begins where @piece ends, for the same devices. By what whoever holds both holds still: the links of a row are others', too. */
bool glake__access_touches(const struct glake__piece *piece, const struct glake__piece *next);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public structs begin with their size, so they can grow: a program built with an older or newer
 * header than the library's exchanges only the fields that both know.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SIZED_H
#define GLAKE_LIBCLIENT_SIZED_H

#include <stddef.h>

/*
 * Copy @full (of @full_bytes, its size field not yet set) to the caller's struct @out, which says
 * in its first field how large it is, and set that field to what was written. Fields that we do not
 * know become zero. Returns 0, or -EINVAL for NULL or a size that no version ever had.
 */
int glake__sized_out(void *out, void *full, size_t full_bytes);

/* Would glake__sized_out() take @out? Returns what it returns. For calls that do something first. */
int glake__sized_check(const void *out);

/*
 * Read the caller's options @in (NULL: all zero) into @full of @full_bytes. Returns 0, or -EINVAL
 * for a bad size, or where a field that we do not know is not zero.
 */
int glake__sized_in(const void *in, void *full, size_t full_bytes);

#endif

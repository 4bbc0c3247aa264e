/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of readers that this host has: files NAME.readers of the administrator's folder, /etc/glake/readers.d, and of
 * the package's, readers.d beside the preload library. $GLAKE_READERS names one folder instead of both. What the first
 * file says of a function counts, in the order of folders and then of names.
 *
 * A file counts only if root owns it and nobody else may write to it; so does a folder. A file that is not so, or that has
 * an error, counts as if it were not there: a program under the shim gets no message. `glake readers` tells.
 *
 * Lifetime: read once, and kept. Threads: any.
 */
#ifndef GLAKE_SHIM_READER_FILES_H
#define GLAKE_SHIM_READER_FILES_H

#include "shim/readers.h"

/* NULL: it is in no table. What it returns stays. */
const struct reader_function *reader_files_find(const struct image_id *image, const char *name);

/*
 * Read one file. 0, or an error with *error_out: -EPERM: it, or its folder, is not root's alone; -EINVAL: its text;
 * -errno: it cannot be read.
 */
int reader_files_read(const char *path, struct readers **readers_out,
                      struct readers_error *error_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of readers that count here: glaked's, then files NAME.readers of the administrator's folder, /etc/glake/readers.d,
 * and of the package's, readers.d beside the preload library. $GLAKE_READERS names one folder instead of all. What the first
 * table says of a function counts, in this order and then that of names.
 *
 * A file counts only if root owns it and nobody else may write to it; so does a folder. A table that is not so, or that has
 * an error, counts as if it were not there: a program under the shim gets no message. `glake readers` tells. glaked's tables
 * are trusted as glaked is, which owns the memory: it has looked at who may write to them.
 *
 * Lifetime: read once, and kept. Threads: any.
 */
#ifndef GLAKE_SHIM_READER_FILES_H
#define GLAKE_SHIM_READER_FILES_H

#include <sys/types.h>

#include "shim/readers.h"

/* NULL: it is in no table. What it returns stays. */
const struct reader_function *reader_files_find(const struct image_id *image, const char *name);

/* Are glaked's wanted? Not if there are some already, or $GLAKE_READERS is there. */
bool reader_files_wants(void);

/*
 * glaked's, each text with a NUL at its end. False: none of them counts, or others are there already. What was known of kernels
 * is old afterwards: kernels.h. One thread at a time: that which connects.
 */
bool reader_files_take(const char *text, size_t n_bytes);

/*
 * Read one file. 0, or an error with *error_out: -EPERM: others than root and @owner may write to it, or to its folder;
 * -EINVAL: its text; -errno: it cannot be read.
 */
int reader_files_read(const char *path, uid_t owner, struct readers **readers_out,
                      struct readers_error *error_out);

#endif

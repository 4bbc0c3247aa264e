/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of readers that this process uses: glaked's, then files NAME.readers of the administrator's folder,
 * /etc/glake/readers.d, then of the package's, readers.d beside the preload library. $GLAKE_READERS names one folder instead of
 * all. The first table with a function counts, in this order, and within a folder in the order of names.
 *
 * Files and folders count only if root owns them and nobody else may write to them. Other tables, and tables with
 * an error, are ignored: a program under the shim gets no message, but `glake readers` tells. glaked's tables
 * are trusted as glaked is, which owns the memory: it has checked who may write to them.
 *
 * Lifetime: read once, and kept. Threads: any.
 */
#ifndef GLAKE_SHIM_READER_FILES_H
#define GLAKE_SHIM_READER_FILES_H

#include <sys/types.h>

#include "shim/readers.h"

/* NULL: the function is in no table. The result stays valid. */
const struct reader_function *reader_files_find(const struct image_id *image, const char *name);

/* Are glaked's tables wanted? Not if there are some already, or $GLAKE_READERS is set. */
bool reader_files_wants(void);

/*
 * Take glaked's tables, each text with a NUL at its end. False: none of them counts, or others are there already. Afterwards
 * kernels have to be asked for again (kernels.h). One thread at a time: the one that connects.
 */
bool reader_files_take(const char *text, size_t n_bytes);

/*
 * Read one file. 0, or an error with *error_out: -EPERM: others than root and @owner may write to it, or to its folder;
 * -EINVAL: its text; -errno: it cannot be read.
 */
int reader_files_read(const char *path, uid_t owner, struct readers **readers_out,
                      struct readers_error *error_out);

#endif

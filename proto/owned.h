/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that only their owner changes: a folder, and the files in it, count only if they are root's or @owner's, and nobody else
 * may write to them. Whoever reads such a file for other users asks no more than that.
 *
 * What is looked at is what was opened, so nothing is put in its place afterwards. A link is not followed in the folder. A file
 * that its owner writes while it is read is refused as well as one can: if it changes meanwhile, and unless its last line has
 * an end.
 *
 * Threads: any. All of it may block, on the file system.
 */
#ifndef GLAKE_PROTO_OWNED_H
#define GLAKE_PROTO_OWNED_H

#include <stddef.h>
#include <sys/types.h>

/* An fd, or -errno with *why_out (static): -EPERM: others may write there. */
int owned_open_folder(const char *path, uid_t owner, const char **why_out);

/*
 * Is each folder above @path, and @path, of that kind? One with the sticky bit is: nobody moves what is another's. So nobody else
 * puts another folder of the owner there.
 */
int owned_check_path(const char *path, uid_t owner, const char **why_out);

/*
 * The text of the file @name in that folder, which ends with a line's end and then a NUL that is not counted. 0, or -errno with
 * *why_out (static). *text_out is the caller's to free.
 */
int owned_read(int folder, const char *name, uid_t owner, size_t max_bytes, char **text_out,
               size_t *n_bytes_out, const char **why_out);

/* All of the first @n_bytes, whoever else reads the same open file. 0, or -errno; -EIO: there are fewer. */
int owned_read_text(int fd, char *text, size_t n_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that only their owner changes: a folder, and the files in it, are accepted only if they are root's or @owner's, and
 * nobody else may write to them. That is the only check for a file that is read for other users.
 *
 * The checks are made on the opened file, so nobody can replace it afterwards. A link in the folder is not followed. A file
 * is refused if it changes while it is read, or if its last line has no end, because its owner may be writing it.
 *
 * Threads: any. All calls may block, on the file system.
 */
#ifndef GLAKE_PROTO_OWNED_H
#define GLAKE_PROTO_OWNED_H

#include <stddef.h>
#include <sys/types.h>

struct dirent;

/* An fd, or -errno with *why_out (static): -EPERM: others may write there. */
int owned_open_folder(const char *path, uid_t owner, const char **why_out);

/*
 * Check @path and each folder above it. One with the sticky bit is accepted, because nobody can move another's files there. So
 * nobody else can put another folder of the owner in its place.
 */
int owned_check_path(const char *path, uid_t owner, const char **why_out);

/*
 * List what is called NAME@suffix in @folder, in the order of names, without hidden ones. Returns how many, or -errno. The caller
 * frees the list with owned_free_list().
 */
int owned_list(int folder, const char *suffix, struct dirent ***entries_out);
/* Nothing if @n is negative, as owned_list() failed. */
void owned_free_list(struct dirent **entries, int n);

/*
 * Read the file @name in @folder. The text ends with a newline and then a NUL that is not counted. Returns 0, or -errno with
 * *why_out (static). The caller frees *text_out.
 */
int owned_read(int folder, const char *name, uid_t owner, size_t max_bytes, char **text_out,
               size_t *n_bytes_out, const char **why_out);

/* Read the first @n_bytes; others may read the same open file meanwhile. Returns 0, or -errno; -EIO: there are fewer. */
int owned_read_text(int fd, char *text, size_t n_bytes);

#endif

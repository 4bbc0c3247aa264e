/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks files before the loader opens them: can a program be preloaded, is a library the right one?
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_PROGRAM_H
#define GLAKE_SHIM_RUN_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

/* The file that execvp() would run for @name. Returns 0, -ENOENT, -EACCES or -ENAMETOOLONG. */
int program_find(const char *name, char path_out[PATH_MAX]);

/*
 * False, with the reason in *why_out (static), for programs that are linked statically or gain
 * privileges. Scripts are judged by their interpreter.
 */
bool program_takes_preload(const char *path, const char **why_out);

/* Is @path an ELF file with the text @symbol in it? */
bool program_names(const char *path, const char *symbol);

#endif

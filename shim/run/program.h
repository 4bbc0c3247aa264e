/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file is, before the loader gets it: a program that can be preloaded, a library that should be.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_PROGRAM_H
#define GLAKE_SHIM_RUN_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

/* What execvp() would run for @name. Returns 0, -ENOENT, -EACCES, -ENAMETOOLONG. */
int program_find(const char *name, char path_out[PATH_MAX]);

/*
 * False, with the reason in *why_out (static), for programs that are linked statically or gain
 * privileges. Scripts are judged by their interpreter.
 */
bool program_takes_preload(const char *path, const char **why_out);

/* The file is of ELF, and @symbol is among the texts in it: does it look like that library? */
bool program_names(const char *path, const char *symbol);

#endif

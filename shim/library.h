/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the real library is, behind one of ours that has its SONAME: opening it by name would find
 * ourselves, so it has to be found by path, as the loader would.
 *
 * Shared by the shim's libraries and by `glake run`, so it knows nothing of them. In a program that
 * gains privileges from its file the environment counts for nothing, as with the loader.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_LIBRARY_H
#define GLAKE_SHIM_LIBRARY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct shim_library {
	const char *soname;
	const char *variable; /* of the environment: a path, taken instead of looking */
	const char *symbol;   /* that every one has */
	const char *ours;     /* symbol that only ours has */
};

extern const struct shim_library shim_library_cuda;
extern const struct shim_library shim_library_nvml;

/* True: @path is it, the search ends. */
typedef bool (*shim_library_fn)(void *user, const char *path);

/*
 * Offer each existing candidate to @accept, in this order: $variable if it is a path, and then
 * nothing else; $LD_LIBRARY_PATH; the loader's cache; the standard folders.
 * Returns whether one was accepted.
 */
bool shim_library_find(const struct shim_library *library, shim_library_fn accept, void *user);

/*
 * Open the first that can be opened and is neither ours, which has @self in it, nor a copy of ours.
 * Returns a handle of dlopen() and its path, or NULL and "".
 */
void *shim_library_open(const struct shim_library *library, const void *self,
                        char path_out[PATH_MAX]);

#endif

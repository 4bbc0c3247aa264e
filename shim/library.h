/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the real library by path, as the loader would. Opening it by name would find the preload
 * library itself, which has the same SONAME.
 *
 * The shim's libraries and `glake run` share this file, so it depends on neither. In a program that
 * gains privileges from its file, the environment is ignored, as by the loader.
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
	const char
		*variable;  /* environment variable with a path; if set, nothing else is searched */
	const char *symbol; /* a symbol that every such library has */
	const char *ours;   /* a symbol that only the preload library has */
};

extern const struct shim_library shim_library_cuda;
extern const struct shim_library shim_library_nvml;

/* True: @path is accepted, and the search ends. */
typedef bool (*shim_library_fn)(void *user, const char *path);

/*
 * Offer each existing candidate to @accept, in this order: $variable if it is a path, and then
 * nothing else; $LD_LIBRARY_PATH; the loader's cache; the standard folders.
 * Returns whether one was accepted.
 */
bool shim_library_find(const struct shim_library *library, shim_library_fn accept, void *user);

/*
 * Open the first library that can be opened and is neither ours, which has @self in it, nor a copy of ours.
 * Returns a handle of dlopen() and its path, or NULL and "".
 */
void *shim_library_open(const struct shim_library *library, const void *self,
                        char path_out[PATH_MAX]);

#endif

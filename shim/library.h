/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the real libcuda.so.1 is. We have its SONAME, so opening it by name would find ourselves:
 * it has to be found by path, as the loader would.
 *
 * Shared by the shim and by `glake run`, so it knows nothing of either.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_LIBRARY_H
#define GLAKE_SHIM_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* True: @path is it, the search ends. */
typedef bool (*shim_library_fn)(void *user, const char *path);

/*
 * Offer each existing candidate to @accept, in this order: $GLAKE_LIBCUDA if it is a path, and then
 * nothing else; $LD_LIBRARY_PATH; the loader's cache; the standard folders.
 * Returns whether one was accepted.
 */
bool shim_library_find(shim_library_fn accept, void *user);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the code of the program's kernels came from. Each image that is loaded gets an identity. For an image in a
 * loaded file (the runtime's, as of all programs that nvcc has linked) that is the file's build-id and the offset there; for
 * one in memory (made by Triton, NVRTC, cuLink) its digest and length. Finding it loads no lazy code and reads no file.
 *
 * Unknown: images that the driver reads from a file by itself (cuModuleLoad, cuLibraryLoadFromFile), that lie in writable
 * memory of a file without a length of their own, and functions of which the driver does not tell the module.
 *
 * Images are noted only under GLAKE_DEDUP=auto, observed or learn.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_CODE_H
#define GLAKE_SHIM_CODE_H

#include "proto/cudrv.h"
#include "shim/readers.h"

/* The driver has loaded @image as this module or library. Older notes of the handle are dropped. */
void code_loaded_module(CUmodule module, const void *image);
void code_loaded_library(CUlibrary library, const void *image);

/* The driver has told which library a module, or which kernel a function, is of. */
void code_is_module_of(CUmodule module, CUlibrary library);
void code_is_function_of(CUfunction function, CUkernel kernel);

/* Called before a module or library is unloaded. If the handle is not known, all modules are forgotten. */
void code_unloads(const void *handle);
/* A context has ended, with its modules. */
void code_ctx_ends(void);

/* The image that @function is of; @is_kernel: the handle is a CUkernel. Asks the driver. */
struct image_id code_of(CUfunction function, bool is_kernel);

#endif

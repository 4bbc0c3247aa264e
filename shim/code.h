/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the code of the program's kernels came from. Each image that is loaded gets an identity: of one that lies in a
 * loaded file (the runtime's, as of all programs that nvcc has linked), the file's build-id and the offset there; of one in
 * memory (made by Triton, NVRTC, cuLink), its digest and length. Nothing is loaded for it that would have stayed lazy, and
 * no file is read.
 *
 * Unknown: images that the driver reads from a file by itself (cuModuleLoad, cuLibraryLoadFromFile), that lie in writable
 * memory of a file without a length of their own, and functions of which the driver does not tell the module.
 *
 * Only under GLAKE_DEDUP=auto or observed anything is noted.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_CODE_H
#define GLAKE_SHIM_CODE_H

#include "proto/cudrv.h"
#include "shim/readers.h"

/* The driver has loaded @image as this module or library; the handle is not another's any more. */
void code_loaded_module(CUmodule module, const void *image);
void code_loaded_library(CUlibrary library, const void *image);

/* The driver says that this is of that. */
void code_is_module_of(CUmodule module, CUlibrary library);
void code_is_function_of(CUfunction function, CUkernel kernel);

/* Before the call that unloads a module or library; what else may end code with it, ends all modules. */
void code_unloads(const void *handle);
/* A context has ended, with its modules. */
void code_ctx_ends(void);

/* Of the code that @function is of; @is_kernel: the handle is a CUkernel. Asks the driver. */
struct image_id code_of(CUfunction function, bool is_kernel);

#endif

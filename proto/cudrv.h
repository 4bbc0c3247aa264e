/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver library, opened by dlopen(): one table of the driver calls in use (cudrv.def), nothing
 * is linked. A call reads drv->cuMemMap(...), as in a linked program.
 *
 * Owner: the opener; one table per process is enough, so it is usually static. Lifetime: the
 * library is never closed, because libcuda does not survive dlclose(). An opened library is
 * remembered by its path. Opening it again does not call the loader, whose lock may be held by a
 * thread that waits for one of the caller's locks. Threads: read-only after cudrv_open(); the
 * driver itself is thread-safe.
 */
#ifndef GLAKE_PROTO_CUDRV_H
#define GLAKE_PROTO_CUDRV_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cudrv {
	void *library; /* a handle of dlopen() */
#define CUDRV_CALL(name) __typeof__(name) *name;
#include "proto/cudrv.def"
#undef CUDRV_CALL
};

/*
 * Open @path, or $GLAKE_LIBCUDA when @path is NULL, or the loader's libcuda.so.1 when both are
 * absent, and resolve every call. Does not call cuInit(). In a program that gains privileges
 * from its file, the environment is ignored.
 * Returns 0, -ENOENT (cannot be opened) or -ENOSYS (a call is missing: the driver is too old).
 * On failure @error_out (may be NULL) holds one line without a newline.
 */
int cudrv_open(struct cudrv *drv, const char *path, char *error_out, size_t error_bytes);

/* The name of a result: "CUDA_ERROR_OUT_OF_MEMORY", or "unknown driver error". Never NULL; static. */
const char *cudrv_error(const struct cudrv *drv, CUresult result);

/* The -errno for a result: -ENOMEM for out of memory, -ENODEV, -EPERM, -EINVAL; -EIO for all others; 0 for success. */
int cudrv_errno(CUresult result);

/* Does the result mean that the context has ended, or a fault has ended its work? Then no call in it works any more. */
bool cudrv_is_lost(CUresult result);

/* The properties of every chunk glake makes on a device: pinned, exportable as @handle_types. */
CUmemAllocationProp cudrv_chunk_properties(CUdevice device, unsigned handle_types, int rdma);

#endif

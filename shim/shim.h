/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-shim.so: what its files agree on.
 *
 * The library has the SONAME libcuda.so.1. Preloaded by path, it is what a program gets when it
 * opens or is linked against the driver. Its entries (trampolines.S) jump through shim_table: to
 * the real driver, or to a hook of ours, shim_<name>(), for the calls of hooks.def.
 *
 * Hooks answer with the driver's own codes, print nothing, never exit. Where a question is not about
 * memory of ours, the real call answers it.
 *
 * Lifetime: nothing happens before the first driver call of the process; see shim_resolve().
 * Threads: any, unless said otherwise.
 */
#ifndef GLAKE_SHIM_SHIM_H
#define GLAKE_SHIM_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cudrv.h"
#include "shim/policy.h"

/* More devices than any host has; what lies beyond is the driver's. */
#define SHIM_MAX_DEVICES 64

typedef CUresult shim_proc_v1_fn(const char *symbol, void **entry, int version, cuuint64_t flags);
typedef CUresult shim_proc_v2_fn(const char *symbol, void **entry, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status);
typedef CUresult shim_ctx_fn(CUcontext ctx);
typedef CUresult shim_device_fn(CUdevice device);
typedef CUresult shim_stream_fn(CUstream stream);
/* cuCtxCreate() has four versions; the parameters of the last are of CUDA 12.5. */
typedef CUresult shim_ctx_create_fn(CUcontext *ctx, unsigned flags, CUdevice device);
typedef CUresult shim_ctx_create_v3_fn(CUcontext *ctx, CUexecAffinityParam *affinities, int n,
                                       unsigned flags, CUdevice device);
typedef CUresult shim_ctx_create_v4_fn(CUcontext *ctx, void *parameters, unsigned flags,
                                       CUdevice device);
/* As before its _v2. */
typedef CUresult shim_stream_ctx_fn(CUstream stream, CUcontext *ctx);
/* New in CUDA 13. */
typedef CUresult shim_set_pool_fn(CUmemLocation *location, CUmemAllocationType type,
                                  CUmemoryPool pool);

/* The real calls. Pasted names, because cuda.h renames plain ones by macro. */
struct shim_real {
#define HOOK(symbol, prototype, class, version, flags) __typeof__(prototype) *real_##symbol;
#define NEED(symbol) __typeof__(symbol) *real_##symbol;
#define WANT(symbol, prototype) __typeof__(prototype) *real_##symbol;
#include "shim/hooks.def"
};
extern struct shim_real shim_real;
#define real(symbol) (shim_real.real_##symbol)

#define HOOK(symbol, prototype, class, version, flags) __typeof__(prototype) shim_##symbol;
#include "shim/hooks.def"

/* ---- resolve.c -------------------------------------------------------------------------------- */

/*
 * Open the real driver and fill shim_table: once a process, on its first driver call. Without a
 * driver every call answers CUDA_ERROR_NO_DEVICE.
 */
void shim_resolve(void);

/* The path of the real driver; "" if there is none. Valid after shim_resolve(). */
const char *shim_libcuda(void);

/* False where the real driver lacks a call that we need to own memory: then nothing is owned. */
bool shim_can_own(void);

/* ---- fork.c ----------------------------------------------------------------------------------- */

/* cuInit() has succeeded in this process. */
void shim_note_init(void);

/*
 * True in a child of a process that had called cuInit(): CUDA is unusable there, and what we know
 * is the parent's. Hooks then leave everything to the driver, which says so.
 */
bool shim_is_forked(void);

/* Once, by shim_resolve(). */
void shim_fork_init(void);

/* ---- counts.c --------------------------------------------------------------------------------- */

enum shim_count {
#define COUNT(name) SHIM_COUNT_##name,
#include "shim/counts.def"
	SHIM_N_COUNTS
};

void shim_count(enum shim_count count);
void shim_count_add(enum shim_count count, int64_t n);
uint64_t shim_count_of(enum shim_count count);

/* Exported, for tests and the curious: a count by its name in counts.def; 0 for an unknown name. */
uint64_t glake_shim_count(const char *name);

/* The same: why the memory at @address must stay where it is, in words. */
const char *glake_shim_pin(uint64_t address);

#endif

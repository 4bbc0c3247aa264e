/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-shim.so: what all its files share.
 *
 * The library has the SONAME libcuda.so.1. Preloaded by path, it is what a program gets when it
 * opens the driver or is linked with it. Its entries (trampolines.S) jump through shim_table: to
 * the real driver, or for the calls of hooks.def to a hook, shim_<name>().
 *
 * A hook returns the driver's codes, prints nothing and never exits. If a call is not about
 * glaked's memory, the real call serves it.
 *
 * Words.
 *   real             the driver's own library and its calls
 *   ours             of the shim, or of glaked through it
 *   connection       one session with glaked and its users (connection.h)
 *   target           the device, context and pool of an allocation (heap.h)
 *   generation       tells a context from a later one with the same handle (context.h)
 *   parked           freed in stream order, and perhaps still in use by the stream (order.h)
 *   pool             a memory pool of the driver (pool.h)
 *   driver usage     memory that the program has from the driver itself (driver_usage.h)
 *   device           a CUdevice; glaked's number of one is an index
 *
 * Lock order, outermost first. A thread that holds one may wait only for those below it; locks of one line are never held
 * together.
 *   1. a turn (turn.h), of our own threads only; exit() waits for them for two seconds
 *   2. auto.c's lock. The service thread only tries to take it
 *   3. learn.c's lock, while a launch runs alone; writes.c's `turn`, while memory becomes private; idle.c's; ipc.c's
 *      opening_lock; connection.c's `connecting`. The last two and `turn` are held while glaked is asked
 *   4. the library's lock of the party, while the process falls asleep or wakes (libclient/sleep/party.h)
 *   5. room for a request (connection_ask())
 *   6. the contexts (order_hold_contexts()), also while a context ends
 *   7. the closed gate (gate.h, drain.h). Who closes it by drain_gate holds the contexts until it opens
 *   8. drain.c's calm_lock; sleep.c's lock
 *   9. the library's lock of an order, which asks capture.c whether a stream is idle
 *  10. the lock of each other file. Of these, capture.c, code.c and cuda_pool.c call the driver with theirs, and record.c
 *      writes its file. Driver calls also happen under 3, 6, 7 and calm_lock
 *  11. the library's lock of the space
 * A thread inside the gate takes only 9 to 11, because the closer waits for it; writes.c, guard.c and learn.c leave the gate
 * before they take more. Closing the gate has a deadline, as the last resort. A forked child takes no lock (shim_is_forked()).
 *
 * Lifetime: nothing happens before the first driver call of the process; see shim_resolve().
 * Threads: any, unless a function says otherwise.
 */
#ifndef GLAKE_SHIM_SHIM_H
#define GLAKE_SHIM_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cudrv.h"
#include "shim/policy.h"

/* More devices than any host has. Later ones are left to the driver. */
#define SHIM_MAX_DEVICES 64

typedef CUresult shim_proc_v1_fn(const char *symbol, void **entry, int version, cuuint64_t flags);
typedef CUresult shim_proc_v2_fn(const char *symbol, void **entry, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status);
typedef CUresult shim_ctx_fn(CUcontext ctx);
typedef CUresult shim_device_fn(CUdevice device);
typedef CUresult shim_stream_fn(CUstream stream);
/* cuCtxCreate() has four versions. The parameters of the last one are new in CUDA 12.5. */
typedef CUresult shim_ctx_create_fn(CUcontext *ctx, unsigned flags, CUdevice device);
typedef CUresult shim_ctx_create_v3_fn(CUcontext *ctx, CUexecAffinityParam *affinities, int n,
                                       unsigned flags, CUdevice device);
typedef CUresult shim_ctx_create_v4_fn(CUcontext *ctx, void *parameters, unsigned flags,
                                       CUdevice device);
/* The call for OpenGL has the parameters of cuCtxCreate_v2(). The one for VDPAU also takes a VdpDevice and a function. */
typedef CUresult shim_ctx_create_vdpau_fn(CUcontext *ctx, unsigned flags, CUdevice device,
                                          uint32_t vdp_device, void *vdp_get_proc);
/* New in CUDA 12.5. */
typedef CUresult shim_ctx_event_fn(CUcontext ctx, CUevent event);
/* The version of cuStreamGetCtx() before _v2. */
typedef CUresult shim_stream_ctx_fn(CUstream stream, CUcontext *ctx);
/* Versions of graph calls from before their parameters changed. */
typedef CUresult shim_graph_make_fn(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                    char *text, size_t n_text);
typedef CUresult shim_graph_add_fn(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   size_t n_deps, CUgraphNodeParams *params);
typedef CUresult shim_graph_update_fn(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                      CUgraphExecUpdateResult *why);
typedef CUresult shim_graph_kernel_fn(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_KERNEL_NODE_PARAMS_v1 *kernel);
typedef CUresult shim_graph_kernel_v2_fn(CUgraphExec exec, CUgraphNode node,
                                         const CUDA_KERNEL_NODE_PARAMS_v2 *kernel);
typedef CUresult shim_graph_kernel_params_fn(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *kernel);
/* The version of cuStreamGetCaptureInfo() before _v3. */
typedef CUresult shim_capture_info_fn(CUstream stream, CUstreamCaptureStatus *status,
                                      cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                      size_t *n_nodes);
/* New in CUDA 13. */
typedef CUresult shim_set_pool_fn(CUmemLocation *location, CUmemAllocationType type,
                                  CUmemoryPool pool);

/* The real calls. The names are pasted, because cuda.h renames plain ones by macro. */
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
 * Open the real driver and fill shim_table, once per process, on the first driver call. Blocks
 * while another thread does it. If there is no driver, every call returns CUDA_ERROR_NO_DEVICE.
 */
void shim_resolve(void);

/* The path of the real driver; "" if there is none. Static, valid after shim_resolve(). */
const char *shim_libcuda(void);

/* False: the real driver lacks a call that owning memory needs, so the shim owns none. */
bool shim_can_own(void);

/* ---- fork.c ----------------------------------------------------------------------------------- */

/*
 * True in a child of a process that had called cuInit(). CUDA is unusable there, and all that the
 * shim knows is the parent's. So hooks leave every call to the driver, which returns its error.
 */
bool shim_is_forked(void);

/* ---- counts.c --------------------------------------------------------------------------------- */

enum shim_count {
#define COUNT(name) SHIM_COUNT_##name,
#include "shim/counts.def"
	SHIM_N_COUNTS
};

/* Count one, or @n (may be negative). */
void shim_count(enum shim_count count);
void shim_count_add(enum shim_count count, int64_t n);
uint64_t shim_count_of(enum shim_count count);

/* Exported, for tests and debugging: a counter by its name in counts.def; 0: there is none. */
uint64_t glake_shim_count(const char *name);

/* Exported: in words, why the memory at @address must stay where it is. Static. */
const char *glake_shim_pin(uint64_t address);

#endif

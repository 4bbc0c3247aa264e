/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for a stream, at once or as a node of a graph.
 *
 * Owner:    whoever holds a struct work by value: it has one reference to each blob in it.
 * Lifetime: until work_drop().
 * Threads:  a work is one thread's; blobs never change and may be shared.
 */
#ifndef CUDASIM_WORK_H
#define CUDASIM_WORK_H

#include "sim.h"

struct blob {
	atomic_uint n_refs;
	size_t bytes;
	_Alignas(max_align_t) unsigned char data[];
};

/* A copy of the bytes (zeros without @data), one reference; NULL: no memory. */
struct blob *blob_new(const void *data, size_t bytes);
struct blob *blob_ref(struct blob *blob);
void blob_unref(struct blob *blob);

/* --- launch.c --- */

struct launch {
	const struct kernel *kernel;
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	struct blob *params; /* packed, at their natural alignment */
};

/* The parameters come as for cuLaunchKernel(); on success the launch holds a blob. */
CUresult launch_fill(struct launch *launch, CUfunction function, void *const *params, void **extra);
/* An array of pointers to the parameters, which the launch owns. */
void **launch_pointers(const struct launch *launch);
CUresult launch_run(struct ctx *ctx, const struct launch *launch);

/* --- sms.c --- */

/*
 * Wait until a kernel of @n_threads can begin: until there is room for one thread. Returns the threads that it takes, for
 * sms_give(); 0: the context was lost meanwhile.
 */
uint64_t sms_take(struct ctx *ctx, uint64_t n_threads);
void sms_give(const struct ctx *ctx, uint64_t n_threads);

/* --- copy.c --- */

struct copy_side {
	uint64_t addr;
	uint64_t pitch;   /* bytes from row to row */
	uint64_t slice;   /* bytes from one plane of rows to the next */
	bool is_device;   /* must be known to the driver: device, pinned or registered */
	bool is_pageable; /* set by copy_check(): any memory of the host */
};

struct copy {
	struct copy_side dst;
	struct copy_side src;
	uint64_t width; /* bytes of a row */
	uint64_t height;
	uint64_t depth;
	bool is_peer; /* its call names the contexts of both sides */
};

/* Can the copy be submitted in a context of @device? Fills in is_pageable. */
CUresult copy_check(struct copy *copy, unsigned device);
CUresult copy_run(struct ctx *ctx, const struct copy *copy);
/* Does a kernel of the driver do the copy? So it is from one place on devices to another. */
bool copy_is_kernel(const struct copy *copy);
/* Returns when the copy is done; a copy within device memory only has to be submitted. */
CUresult copy_sync(struct copy *copy);
CUresult copy_async(struct copy *copy, CUstream handle);

/* --- copyshape.c --- */

CUresult copy_from_shape(const CUDA_MEMCPY3D *shape, struct copy *copy_out);
CUDA_MEMCPY3D copy_to_shape(const struct copy *copy);

/* --- set.c --- */

struct set {
	uint64_t dst;
	uint64_t pitch; /* bytes from row to row */
	uint64_t n_rows;
	uint64_t row_bytes;
	uint32_t value;
	uint32_t element_bytes; /* 1, 2 or 4 */
};

CUresult set_check(const struct set *set, unsigned device);
CUresult set_run(struct ctx *ctx, const struct set *set);

/* --- memop.c --- */

struct memops {
	struct blob *ops; /* CUstreamBatchMemOpParams, in order */
};

CUresult memops_fill(struct memops *memops, const CUstreamBatchMemOpParams *ops, unsigned n);
CUresult memops_run(struct ctx *ctx, const struct memops *memops);

/* --- work.c --- */

struct host_call {
	CUhostFn fn;
	void *data;
};

struct event_work {
	CUevent event;
	struct mark *mark; /* one reference, or NULL; each launch of a graph has its own */
};

struct work {
	CUgraphNodeType type;
	struct ctx *ctx; /* the work runs here */
	union {
		struct launch launch;
		struct copy copy;
		struct set set;
		struct memops memops;
		struct host_call call;
		struct event_work event;
		CUdeviceptr freed;
		struct graphmem *memory; /* one reference */
		struct graph *child;     /* owned */
	} of;
};

/* A copy of the work, which must be dropped, too. A child graph is not copied, see graph_clone(). */
struct work work_copy(const struct work *work);
void work_drop(struct work *work);
CUresult work_run(struct work *work);
/*
 * Takes over the content of the work, also when it fails. The work gets the context of the stream. On a captured
 * stream it becomes a node.
 */
CUresult work_submit(struct stream *s, struct work *work);

#endif

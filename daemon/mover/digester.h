/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests the blocks that loads fill, beside the copies that fill them.
 *
 * A block's digest waits on the GPU for the copies queued so far, runs on the digester's stream, and
 * is told by a callback on the digester's thread, which sleeps until the GPU is done. Digests run
 * one after the other, so that one buffer of leaves is enough: a block takes far less than their copy.
 *
 * Owner: the device. Lifetime: that of the context. Each digest needs a ticket: take, submit, and
 * give it back after the callback.
 * Threads: take, submit and give from any thread with the context current.
 */
#ifndef GLAKE_MOVER_DIGESTER_H
#define GLAKE_MOVER_DIGESTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/kernels.h"
#include "proto/cudrv.h"
#include "proto/digest.h"

/* How many blocks may be between being mapped and being digested, over all loads of a device. */
#define DIGESTER_TICKETS 64u

struct ticket;

/*
 * Called on the digester's thread, context current, when all copies to the block and its digest are
 * done. @digest is meaningless if the digest was skipped or @result is not CUDA_SUCCESS.
 */
typedef void (*digest_done_fn)(void *user, CUresult result, const struct digest *digest);

struct ticket {
	struct ticket *next; /* link: digester.free or digester.queue */
	CUevent copied;
	CUevent done;
	CUdeviceptr item; /* struct kernel_root_item, then the root; device memory */
	struct kernel_root_item *host_item; /* pinned: the item, then the root */
	digest_done_fn done_fn;
	void *user;
	CUresult result; /* of submitting */
};

struct digester {
	const struct cudrv *drv;       /* borrowed; NULL = not initialised */
	const struct kernels *kernels; /* borrowed */
	CUcontext context;             /* borrowed */
	CUstream copy_stream;          /* borrowed */
	CUstream stream;
	CUdeviceptr leaves; /* of one block */
	CUdeviceptr items;
	void *host_items; /* pinned */
	struct ticket tickets[DIGESTER_TICKETS];

	pthread_t thread;
	bool has_thread;
	pthread_mutex_t lock; /* keeps stream and queue in the same order */
	pthread_cond_t given; /* a ticket is free */
	pthread_cond_t submitted;
	struct ticket *free;  /* under lock */
	struct ticket *first; /* under lock: submitted, oldest first */
	struct ticket *last;  /* under lock */
	bool is_stopping;     /* under lock */
};

/* The context is current. On failure nothing is left. */
CUresult digester_init(struct digester *digester, const struct kernels *kernels, CUcontext context,
                       CUstream copy_stream);
/* All tickets are back. Accepts a zeroed one. */
void digester_deinit(struct digester *digester);

/* Waits until there is one. */
struct ticket *digester_take(struct digester *digester);
void digester_give(struct digester *digester, struct ticket *ticket);

/*
 * Digest the block at @address of @content_bytes (at most GLAKE_MAX_BLOCK_BYTES) once what is in the
 * copy stream is done; with @skip only wait for that. Always ends in one call of @done_fn.
 */
void digester_submit(struct digester *digester, struct ticket *ticket, CUdeviceptr address,
                     uint64_t content_bytes, bool skip, digest_done_fn done_fn, void *user);

#endif

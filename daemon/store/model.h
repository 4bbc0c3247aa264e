/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model: a manifest that maps tensors to places in blocks laid side by side (its span).
 *
 *                  load_start           all blocks, files unchanged
 *   (none) -> DRAFT ----------> LOADING ---------------------------> READY
 *               |                  | may not be found                  |  | another has its key
 *               |                  v                                   |  '----------> REPLACED
 *               |                ASIDE ------------------------.       |                  |
 *               |                     all blocks, files unchanged      | a block damaged  |
 *               |                                              |       v                  |
 *               |                                              '--> HIDDEN <--------------'
 *               |  published
 *               '------------------> READY
 *               |  from an earlier glaked
 *               '------------------> READY, HIDDEN, REPLACED
 *
 *   LOADING <---- opened again ---- DEMOTED <---- evicted ---- READY
 *      '--- failed, but for damage ----^     host memory has all of it
 *
 * Each of them may go: what is not complete if it fails or is given up, a complete one when it is evicted or nobody
 * can open it any more.
 *
 * A model is found by the identity of its files (files.h), not by its path. If that identity would
 * not show every change of the files, the model is not found at all (ASIDE, HIDDEN), and each open loads the
 * files again. It is in use while n_holders > 0: its load holds it, and each holder that has it open.
 * While it is in use it counts as one user of each of its blocks.
 *
 * A published model has no files. It is found by its key. While its manifest is still coming it is a draft, which
 * its holder holds, and nobody else sees. If a later one gets the key, it is REPLACED: not found any more, and it
 * goes with its last holder. So does what a program gets that slept while its model was forgotten (store_return_model()).
 *
 * Owner: the store's table. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MODEL_H
#define GLAKE_DAEMON_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/memory/device.h"
#include "daemon/store/block.h"
#include "daemon/base/hash.h"
#include "daemon/store/files.h"

struct copy;
struct load;

struct tensor {
	uint64_t offset; /* in the span */
	uint64_t bytes;
	uint32_t dtype;
	uint32_t n_dims;
	char *name;        /* in the same allocation, as are the next */
	uint64_t *strides; /* in elements; NULL: row-major, without gaps */
	uint64_t shape[];
};

/* One place in the span; block is NULL until it is loaded. */
struct model_block {
	uint64_t content_bytes;
	struct block *block; /* borrowed from the store; counted in its n_manifests */
	struct copy *copy;   /* of it in host memory, held: while DEMOTED, and LOADING from there */
};

/* No padding: hashed and compared as bytes. */
struct model_key {
	uint64_t realm_id;
	uint64_t device;
	uint64_t is_published;
	struct digest digest; /* of the file_ids, or of the key */
};

/* The model's memory in common with others, and in host memory. */
struct model_parts {
	uint64_t copied_bytes; /* of its places' chunks, if host memory has a copy */
	uint64_t unique_bytes; /* of chunks that only this model keeps */
	double part_bytes; /* of its chunks, each divided by the places of manifests that name it */
};

enum model_state {
	MODEL_DRAFT,   /* it is being put together, and nobody finds it */
	MODEL_LOADING, /* found: who opens it waits for its load */
	MODEL_ASIDE,   /* is being loaded, and is not found, because of reload_reason */
	MODEL_DEMOTED, /* found: only host memory has its blocks */
	MODEL_READY,   /* complete, and found */
	MODEL_HIDDEN,  /* complete, and not found, because of reload_reason */
	MODEL_REPLACED, /* complete, and not found: another model has its key, or it was forgotten while its users slept */
	MODEL_N_STATES,
};

struct model {
	UT_hash_handle hh; /* store.models, while it is found */
	struct model_key key;
	struct list link;    /* link: store.model_list, in the order of ids */
	struct idle idle;    /* link: store.idle, while complete, unused and not pinned */
	struct list demoted; /* link: store.demoted, while DEMOTED */
	uint64_t id;
	char *name;            /* owned; the key, or the first client's name for it, for listings */
	struct realm *realm;   /* owned reference */
	struct device *device; /* borrowed */
	enum model_state state;
	bool is_pinned;
	bool is_in_log; /* the log has a line about its load, and will have one about its eviction */
	uint32_t n_holders;
	struct load *load; /* borrowed; while LOADING or ASIDE */
	uint64_t span_bytes;
	uint64_t content_bytes; /* of tensors */
	uint64_t end_bytes;     /* the last of their ends in the span */
	uint64_t
		manifest_bytes; /* of host memory, and a surplus that bounds the number of models */
	struct charge
		charge; /* for those; of the tenant that keeps it, else of the built-in tenant */
	size_t n_tensors;
	size_t n_blocks;
	struct tensor **tensors;    /* owned */
	struct model_block *blocks; /* owned */
	size_t n_files;
	struct file_id *files; /* owned */
	uint64_t manifest;     /* the id of its manifest for store.watch; 0: none of it is noted */
	size_t n_noted;        /* of the tensors */
	struct model_parts parts; /* as store_look_at_parts() last found them */
	struct model_parts parts_so_far;
	size_t parts_place;       /* the next place */
	uint64_t withdrawn_block; /* the last that was withdrawn and is in it (withdraw.h) */
	char *reload_reason;      /* owned; why it is ASIDE or HIDDEN. Otherwise NULL */
};

/* Chunk bytes of block number @i of the plan. */
uint64_t model_chunk_bytes(const struct model *model, size_t i);

/* States change as drawn above; anything else is a bug of the caller's. */
bool model_may_become(enum model_state from, enum model_state to);
void model_set_state(struct model *model, enum model_state state);

static inline bool model_is_complete(const struct model *model)
{
	return model->state >= MODEL_READY;
}

static inline bool model_is_found(const struct model *model)
{
	return model->state == MODEL_LOADING || model->state == MODEL_DEMOTED ||
	       model->state == MODEL_READY;
}

/* Build the plan, before it is complete. Return 0, -ENOMEM, or -EINVAL: no plan may contain this. */
int model_add_tensor(struct model *model, const char *name, uint32_t dtype, const uint64_t *shape,
                     const uint64_t *strides, size_t n_dims, uint64_t offset, uint64_t bytes);
int model_add_block(struct model *model, uint64_t content_bytes);

/* Returns 0 if every tensor lies in the span, else -EINVAL. */
int model_check_plan(const struct model *model);

/* Have two complete manifests the same tensors, in the same places of the same blocks? */
bool model_is_equal(const struct model *model, const struct model *other);

/* Free the tensors. If there are many, a thread of libuv's pool does; @loop stays alive for it. */
void model_free_tensors(struct model *model, uv_loop_t *loop);

#endif

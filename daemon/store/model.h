/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model: a manifest that maps tensors to places in blocks laid side by side (its span).
 *
 *            load_start            all blocks, files unchanged
 *   (none) -------------> LOADING -----------------------------> READY
 *                            |  failed, cancelled                  |  evicted, or replaced
 *                            v                                     v
 *                          (gone)                                (gone)
 *
 * A model is known by the identity of its files (files.h), and not by its path; or, where this would
 * not tell every change of them, by nothing: then each open loads them again. It is in use while
 * n_holders > 0: the load that makes it and each session that has it open hold it, and while it is in
 * use it counts as one user of each of its blocks.
 *
 * Owner: the store's table. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MODEL_H
#define GLAKE_DAEMON_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/store/block.h"
#include "daemon/base/hash.h"
#include "daemon/store/files.h"

struct load;

struct tensor {
	uint64_t offset; /* in the span */
	uint64_t bytes;
	uint32_t dtype;
	uint32_t n_dims;
	char *name; /* in the same allocation, as is shape */
	uint64_t shape[];
};

/* One place in the span; block is NULL until it is loaded. */
struct model_block {
	uint64_t content_bytes;
	struct block *block; /* borrowed from the store; counted in its n_manifests */
};

/* No padding: hashed and compared as bytes. */
struct model_key {
	uint64_t realm_id;
	uint64_t device;
	struct digest files; /* of the file_ids */
};

enum model_state {
	MODEL_LOADING,
	MODEL_READY,
};

struct model {
	UT_hash_handle hh; /* store.models */
	struct model_key key;
	struct list link; /* link: store.model_list, in the order of ids */
	struct idle idle; /* link: store.idle, while ready, unused and not pinned */
	uint64_t id;
	char *name;            /* owned; what the first client called it, for listings */
	struct realm *realm;   /* owned reference */
	struct device *device; /* borrowed */
	enum model_state state;
	bool is_pinned;
	bool is_in_log; /* that it was loaded, so its eviction will be too */
	uint32_t n_holders;
	struct load *load; /* borrowed; while MODEL_LOADING */
	uint64_t span_bytes;
	uint64_t content_bytes;  /* of tensors */
	uint64_t end_bytes;      /* where in the span the last of them ends */
	uint64_t manifest_bytes; /* of host memory, and more: it bounds the number */
	struct charge charge;    /* for those: who keeps it, else the built-in tenant */
	size_t n_tensors;
	size_t n_blocks;
	struct tensor **tensors;    /* owned */
	struct model_block *blocks; /* owned */
	size_t n_files;
	struct file_id *files; /* owned */
	char *reload_reason;   /* owned; why its files do not find it. NULL: they do */
};

/* Chunk bytes of block number @i of the plan. */
uint64_t model_chunk_bytes(const struct model *model, size_t i);

/* Building, while loading. Return 0, -ENOMEM, or -EINVAL for what no plan may say. */
int model_add_tensor(struct model *model, const char *name, uint32_t dtype, const uint64_t *shape,
                     size_t n_dims, uint64_t offset, uint64_t bytes);
int model_add_block(struct model *model, uint64_t content_bytes);

/* Every tensor lies in the span. Returns 0 or -EINVAL. */
int model_check_plan(const struct model *model);

/* Free the tensors: many of them on a thread of libuv's pool, for which @loop stays alive. */
void model_free_tensors(struct model *model, uv_loop_t *loop);

#endif

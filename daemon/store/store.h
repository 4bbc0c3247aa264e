/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: every block and model glaked has, who uses them, and what goes first when memory is
 * wanted.
 *
 * Nothing here calls the driver or the mover; chunks that go are released to their device's worker.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_STORE_H
#define GLAKE_DAEMON_STORE_H

#include "daemon/store/model.h"
#include "daemon/base/stats.h"

/* So much host memory the manifests of models may have that nobody uses: see store_trim(). */
#define STORE_IDLE_MANIFEST_BYTES (128ull * 1024 * 1024)

struct store {
	uv_loop_t *loop;      /* borrowed; for the time */
	struct tenant *cache; /* borrowed; pays for what nobody uses */
	struct stats *stats;  /* borrowed */
	struct block *blocks; /* table by block_key */
	struct model *models; /* table by model_key */
	struct list block_list;
	struct list model_list;
	struct list idle; /* of what may be evicted, in that order */
	uint64_t last_id;
	uint64_t n_blocks;
	uint64_t n_models;
	/* A model left the store; for notices. */
	void (*on_evicted)(void *user, const struct model *model);
	void *user;
};

void store_init(struct store *store, uv_loop_t *loop, struct tenant *cache, struct stats *stats);
/* Drops everything; nothing may be in use. */
void store_deinit(struct store *store);

/* ---- blocks ---- */

struct block *store_find_block(struct store *store, const struct realm *realm,
                               const struct device *device, const struct digest *digest);

/*
 * Make a block of @chunk, which the store owns on success: one user (the caller), whose charge the
 * chunk carries already. With @is_collision the digest is taken by another content and the block is
 * never found by it. NULL: no memory, the chunk stays the caller's.
 */
struct block *store_seal(struct store *store, struct realm *realm, const struct digest *digest,
                         uint64_t content_bytes, struct chunk *chunk, bool is_collision);

/*
 * One more user, who pays if he is the first of a block that is not pinned. Returns 0, or TENANT_E_*:
 * nothing has changed then.
 */
int store_use_block(struct block *block, struct tenant *tenant);

/* The counterpart of store_use_block() and of store_seal(). The block may be gone afterwards. */
void store_unuse_block(struct store *store, struct block *block, int32_t priority);

/* A chunk is compared with @block, which nobody evicts meanwhile. */
void store_begin_compare(struct block *block);
/* They are not equal, or nobody wants to know any more. The block may be gone afterwards. */
void store_end_compare(struct store *store, struct block *block);
/*
 * They are equal: the one who compared is one more user. If nobody pays for the block, @charge does, which is
 * for as much, and is the built-in tenant's afterwards.
 */
void store_use_compared(struct store *store, struct block *block, struct charge *charge);

/* ---- models ---- */

struct model *store_find_model(struct store *store, const struct realm *realm,
                               const struct device *device, const struct file_id *files,
                               size_t n_files);

/*
 * A new model, LOADING, held once (by the load), whose manifest @payer is to pay for. NULL: no memory.
 */
struct model *store_add_model(struct store *store, struct realm *realm, struct device *device,
                              struct tenant *payer, const char *name, const struct file_id *files,
                              size_t n_files);

/*
 * Let a model, LOADING, be found by its files no more, for @reason. Returns 0 or -ENOMEM: nothing has
 * changed.
 */
int store_hide_model(struct store *store, struct model *model, const char *reason);
/*
 * Hidden models that nobody has open go, now that @successor has their name; those that are pinned,
 * when it is pinned in their place. That is no eviction: nobody is told.
 */
void store_drop_left_over(struct store *store, const struct model *successor);

/*
 * Put @block, which the caller uses (store_seal, store_use_block), in place @i of a model that is
 * loading. That use becomes the model's.
 */
void store_place_block(struct store *store, struct model *model, size_t i, struct block *block);

/*
 * Hold a READY model for a session; the first one pays for the manifest, and see store_use_block(). Returns
 * 0 or TENANT_E_*: nothing has changed.
 */
int store_hold_model(struct store *store, struct model *model, struct tenant *tenant);
/* Let go. When nobody holds it, it is cache. */
void store_unhold_model(struct store *store, struct model *model, int32_t priority);

/* The load failed: the model goes with every block that nobody else needs. */
void store_drop_model(struct store *store, struct model *model);

/*
 * Keep a READY model, at the cost of @tenant: it pays for the manifest, and for all of its blocks that are not pinned yet, in
 * place of whoever did, used or not, for as long as the block is used or pinned. Nothing to do for what
 * is pinned already. Returns 0, TENANT_E_* or -ENOMEM: nothing has changed.
 */
int store_pin_model(struct store *store, struct model *model, struct tenant *tenant);
/* When nobody holds it, it is cache again. */
void store_unpin_model(struct store *store, struct model *model);

/* Bytes of chunks that only this model keeps. */
uint64_t store_unique_bytes(const struct model *model);

/* ---- eviction ---- */

/* Evict one idle model. Returns the bytes that become free. */
uint64_t store_evict_model(struct store *store, struct model *model);

/* Evict idle things of @device until @bytes become free or nothing is left. Returns the bytes. */
uint64_t store_evict(struct store *store, const struct device *device, uint64_t bytes);

/* Evict idle things of any device until @n_fds blocks, each of them an fd, are gone or nothing is left. */
void store_evict_fds(struct store *store, uint64_t n_fds);

/*
 * Evict idle models until their manifests have no more than STORE_IDLE_MANIFEST_BYTES: of the realm
 * that has most, in the order of store_evict(). So a realm's caches go for its own manifests.
 */
void store_trim(struct store *store);

/* Evict everything idle, of @realm or, if NULL, of all. Returns the bytes. */
uint64_t store_evict_all(struct store *store, const struct realm *realm, uint64_t *n_models_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: all blocks and models, their users, and the order of eviction.
 *
 * Nothing here calls the driver or the mover. The location's worker closes released chunks.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_STORE_H
#define GLAKE_DAEMON_STORE_H

#include "daemon/store/guess.h"
#include "daemon/store/model.h"
#include "daemon/store/prints.h"
#include "daemon/base/stats.h"

struct copy;
struct extent_parking;

/* The manifests of unused models may have this much host memory: see store_trim(). */
#define STORE_IDLE_MANIFEST_BYTES (128ull * 1024 * 1024)

/*
 * Somebody who wants to know what there is: all READY models, blocks that are parked or cannot be, each of their
 * changes, and manifests as they come.
 */
struct store_watch {
	/* Whether there is room to note a thing that somebody asks for. */
	bool (*has_room)(void *user);
	/* New, or changed. */
	void (*block)(void *user, const struct block *block);
	void (*block_gone)(void *user, const struct block *block);
	/* The tensors from @first on. */
	void (*tensors)(void *user, const struct model *model, size_t first);
	/* New: then its files and the blocks of its places are to be noted. Or changed. */
	void (*model)(void *user, const struct model *model, bool is_new);
	/* The model is gone, of which perhaps only the manifest was noted. */
	void (*model_gone)(void *user, const struct model *model);
	/* Parked parts of the host tier (copies_park()). Large chunks first: */
	void (*host_chunk)(void *user, const struct extent_parking *parking,
	                   const struct chunk *chunk);
	void (*host_chunk_gone)(void *user, uint64_t id);
	void (*copy)(void *user, const struct copy *copy);
	void (*copy_gone)(void *user, const struct copy *copy);
};

/* See withdraw.h. */
struct withdrawal {
	struct block *block; /* NULL: there is none */
	struct list *at; /* of model_list: the next model, or the one whose places are looked at, */
	size_t place;    /* from this one on */
};

struct store {
	struct withdrawal withdrawal;
	uv_loop_t *loop;      /* borrowed; for the time */
	struct tenant *cache; /* borrowed; pays for unused blocks and models */
	struct stats *stats;  /* borrowed */
	struct block *blocks; /* table by block_key */
	struct model *models; /* table by model_key */
	struct list block_list;
	struct list model_list;
	struct list idle;      /* of blocks and models that may be evicted, in that order */
	struct list demoted;   /* of model.demoted: the longest unused first */
	struct copies *copies; /* borrowed; NULL: none are made (copies.h) */
	struct guess guess;
	struct prints prints;
	uint64_t last_id;
	uint64_t n_blocks;
	uint64_t n_models;
	struct parking *parking; /* borrowed; NULL: nobody keeps fds */
	struct pot places;       /* there, of users */
	struct list roomless;    /* blocks that wait for room for their fds; link: parking.link */
	uint64_t n_roomless;
	const struct store_watch *watch; /* NULL: nobody; then the next is not used */
	void *watcher;
	/* A model left the store; for notices. */
	void (*on_evicted)(void *user, const struct model *model);
	void *user;
};

void store_init(struct store *store, uv_loop_t *loop, struct tenant *cache, struct stats *stats);
/* Drops everything; nothing may be in use. */
void store_deinit(struct store *store);

/* ---- blocks ---- */

struct block *store_find_block(struct store *store, const struct realm *realm,
                               const struct location *at, const struct digest *digest);

/*
 * Make a block of @chunk, which the store takes over on success. The caller is its one user; the chunk has the charge already.
 * @maker (NULL: glaked) pays for its place in the fd store. With @is_collision another content has the digest, and the block is
 * never found by it. NULL: no memory; the caller keeps the chunk.
 */
struct block *store_seal(struct store *store, struct realm *realm, struct user *maker,
                         const struct digest *digest, uint64_t content_bytes, struct chunk *chunk,
                         bool is_collision);

/* Add a user. The first user of a block that is not pinned pays. Returns 0, or TENANT_E_*: nothing has changed. */
int store_use_block(struct store *store, struct block *block, struct tenant *tenant);

/* The counterpart of store_use_block() and of store_seal(). The block may be gone afterwards. */
void store_unuse_block(struct store *store, struct block *block, int32_t priority);

/* One of its users, who had its content in a chunk that was sealed by itself, has it now; or not any more. */
void store_add_alone(struct block *block);
void store_remove_alone(struct block *block);

/*
 * The counterpart of store_use_block() as well, of a user who has a private copy now. As cache the block would be of no use: it
 * goes with its last user. Returns the bytes that become free.
 */
uint64_t store_leave_block(struct store *store, struct block *block, int32_t priority);

/* A chunk is compared with @block, which is not evicted meanwhile. */
void store_begin_compare(struct block *block);
/* The contents are not equal, or the comparison is not wanted any more. The block may be gone afterwards. */
void store_end_compare(struct store *store, struct block *block);
/*
 * A look at @block that nobody asked for begins, and ends soon: a request that lacks room waits for that instead of being refused,
 * since the block may be what would go for it (pressure.h).
 */
void store_begin_look(struct block *block);
void store_end_look(struct store *store, struct block *block);
/*
 * The contents are equal, and the caller is one more user. If only the built-in tenant pays for the block, it exchanges its
 * charge with @charge, which has the same size.
 */
void store_use_compared(struct store *store, struct block *block, struct charge *charge);

/* Take @block out for withdraw.h: its content has changed, and it is not found any more. */
void store_take_out_block(struct store *store, struct block *block);
/* @model has the block that is being withdrawn, and is not found any more. Returns 0 or -ENOMEM. */
int store_withdraw_model(struct store *store, struct model *model);
bool store_is_withdrawn(const struct store *store, const struct model *model);

/* Whether one of its blocks is damaged. */
bool store_has_damaged(const struct model *model);

/* Whether a block of it, complete, has no fd since glaked was restarted: only who has it open keeps it. */
bool store_has_unparked(const struct model *model);

/* Whether @block is one of its blocks. */
bool store_has_block(const struct model *model, const struct block *block);

/* From now on the block is cache without users, if @is_published. */
void store_set_published(struct store *store, struct block *block, bool is_published);

/* The number of store.parking to wait for until @block, or all blocks of @model, are parked; 0: no need to. */
uint64_t store_unparked_block(const struct block *block);
uint64_t store_unparked(const struct model *model);
/*
 * An fd of somebody else was removed from store.parking, or somebody's share has grown: blocks may wait for room. To be
 * called once in a while, too, since it looks at some of them only.
 */
void store_use_room(struct store *store);
/* A place in store.parking, which is not NULL, for @user. False: it has its share. */
bool store_charge_place(struct store *store, struct user *user, struct user_charge *charge);
/*
 * Like store_charge_place(), but idle things go for the place if there is no room otherwise. False: the user has its share, or
 * the fd store is full.
 */
bool store_make_place(struct store *store, struct user *user, struct user_charge *charge);

/* ---- models ---- */

struct model *store_find_model(struct store *store, const struct realm *realm,
                               const struct device *device, const struct file_id *files,
                               size_t n_files);

/* A new model, LOADING, held once (by the load). @payer pays for its manifest. NULL: no memory. */
struct model *store_add_model(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *name, const struct file_id *files,
                              size_t n_files);

/* The model of the realm that is found by the key @name; NULL: there is none. */
struct model *store_find_published(struct store *store, const struct realm *realm,
                                   const struct device *device, const char *name);

/*
 * From now on the model, LOADING, is not found by its files, because of @reason. Returns 0, or
 * -ENOMEM: nothing has changed.
 */
int store_hide_model(struct store *store, struct model *model, const char *reason);
/*
 * Hidden models with the name of @successor go, if nobody has them open; pinned ones only if
 * @successor is pinned. This is no eviction: no notice is sent.
 */
void store_drop_left_over(struct store *store, const struct model *successor);

/* The model's load is over. */
void store_ready(struct store *store, struct model *model);
/* A model that is LOADING has got more tensors; before it is ready, all are to be noted. */
void store_note_tensors(struct store *store, struct model *model);
/* Whether things that somebody asks for can be noted. False: refuse them; things that end can be noted in any case. */
bool store_has_room(const struct store *store);
#define STORE_NO_ROOM "the books of glaked (state_path) have no room for more"

/* store.watch has forgotten everything: it is told of all anew, and of a draft. */
void store_note_all(struct store *store);
void store_note_draft(struct store *store, struct model *draft);

/*
 * Put @block, which the caller uses (store_seal, store_use_block), in place @i of a model that is
 * loading. The model takes over that use.
 */
void store_place_block(struct store *store, struct model *model, size_t i, struct block *block);

/*
 * Hold a complete model. The first one pays for the manifest; see also store_use_block(). Returns 0,
 * or TENANT_E_*: nothing has changed.
 */
int store_hold_model(struct store *store, struct model *model, struct payer payer);
/* The counterpart of store_hold_model(). A model that nobody holds is cache. */
void store_unhold_model(struct store *store, struct model *model, int32_t priority);

/* The load failed, or the draft is given up: the model goes, and every block that nothing else keeps. */
void store_drop_model(struct store *store, struct model *model);

/*
 * Pin a complete model, or a draft that is about to be. @payer pays for the manifest and for all blocks that are not pinned
 * yet, in place of the previous payer, while the block is used or pinned. Harmless if the model is pinned already. Returns 0,
 * or TENANT_E_* or -ENOMEM: nothing has changed.
 */
int store_pin_model(struct store *store, struct model *model, struct payer payer);
/* A model that nobody holds is cache again. */
void store_unpin_model(struct store *store, struct model *model);

/* A draft, held once. @payer pays for its manifest. NULL: no memory. */
struct model *store_new_draft(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *key);
/* Put @block, which has a user, behind the draft's blocks. Returns 0, -ENOMEM, or -EINVAL: it is full. */
int store_add_used_block(struct store *store, struct model *draft, struct block *block);
/*
 * The draft, complete and checked, becomes the model of its key, and its hold ends. From then on its blocks
 * go with their last model and user, so that models that come and go leave no cache behind. An earlier
 * model of that key is found no more, and goes when nobody has it open. @payer pays for the pin, if @pin or
 * the earlier one is pinned. Returns 0, or TENANT_E_* or -ENOMEM: it is a draft still.
 */
int store_publish(struct store *store, struct model *draft, struct payer payer, bool pin);

/*
 * Bring model.parts up to date. Walks its places, *@n_steps at most, and subtracts them. Returns false if these were too
 * few: then the parts are as before, and the next call goes on.
 */
bool store_look_at_parts(const struct store *store, struct model *model, size_t *n_steps);

/* ---- models of programs that slept: store_return.c ---- */

/* The facts that are known of a model of which a program has all blocks again. */
struct returning {
	uint64_t model; /* its id */
	const char *name;
	struct device *device;
	size_t n_blocks; /* 1 or more */
};

/*
 * *model_out, complete, has @blocks, and the caller holds it, in place of one use of each block: the one that he had, if it has
 * them still, or only host memory does; else one of his own. @payer pays for its manifest. Returns 0, TENANT_E_* or
 * -ENOMEM: nothing has changed.
 */
int store_return_model(struct store *store, const struct returning *as, struct block *const *blocks,
                       struct payer payer, struct model **model_out);

/* ---- models of which only host memory has the blocks: store_demote.c ---- */

/* Have the blocks of a complete model copied, if such that host memory may have. */
void store_copy_model(struct store *store, struct model *model);

/*
 * @model, DEMOTED, is being loaded from there, and held by that. @payer pays for its manifest. Returns 0, or TENANT_E_*:
 * nothing has changed.
 */
int store_begin_promotion(struct store *store, struct model *model, struct payer payer);
/* All blocks are in their places. */
void store_end_promotion(struct store *store, struct model *model);
/* The promotion came to nothing: the model is DEMOTED as before. */
void store_cancel_promotion(struct store *store, struct model *model);

/* The longest unused model with @copy is forgotten. False: there is none. */
bool store_forget_demoted(struct store *store, const struct copy *copy);

/* ---- from an earlier glaked ---- */

/*
 * Adopt the things of an earlier glaked, in the order of its ids, and before anything else. Nobody uses them yet:
 * store_use_adopted() and store_hold_adopted() are for those who did. At last store_settle_adopted(): things that nobody uses
 * are cache, in the order of idle.since_ms, or go.
 */

/*
 * @chunk, charged already, is taken over on success; with an unparked one the block is LOST, whatever it was. The
 * caller sets its flags and idle numbers. NULL: no memory, or there is one of that digest.
 */
struct block *store_adopt_block(struct store *store, uint64_t id, struct realm *realm,
                                const struct digest *digest, uint64_t content_bytes,
                                struct chunk *chunk, enum block_state state);
/* @maker pays for its place in store.parking, if it has one. */
void store_set_adopted_maker(struct store *store, struct block *block, struct user *maker);

/* A DRAFT. The caller sets its flags, files and idle numbers, and builds the plan. NULL: no memory. */
struct model *store_adopt_model(struct store *store, uint64_t id, struct realm *realm,
                                struct device *device, const char *name);
/*
 * The adopted model is complete: READY, HIDDEN or REPLACED. If a block of it is LOST it is HIDDEN, and not pinned any more.
 * Returns 0, -ENOMEM, or -EEXIST: there is another one of that key. Then it is gone.
 */
int store_finish_adopted(struct store *store, struct model *model, struct block *const *blocks,
                         struct payer payer, enum model_state state);
/* Drop an adopted model that will not be finished. */
void store_drop_adopted(struct store *store, struct model *model);

void store_use_adopted(struct store *store, struct block *block);
void store_hold_adopted(struct store *store, struct model *model);
void store_settle_adopted(struct store *store);

/* ---- eviction ---- */

/* Evict one model that nobody holds, also from host memory. Returns the bytes that become free. */
uint64_t store_evict_model(struct store *store, struct model *model);

/*
 * Evict idle blocks and models at @at until @bytes become free or nothing is left. Models that host memory has are
 * DEMOTED. Returns the bytes.
 */
uint64_t store_evict(struct store *store, const struct location *at, uint64_t bytes);

/* Evict idle blocks and models of any location until @n_fds blocks are gone or nothing is left. */
void store_evict_fds(struct store *store, uint64_t n_fds);

/*
 * Evict idle models until all their manifests have at most STORE_IDLE_MANIFEST_BYTES: first of the
 * realm that has most, in the order of store_evict(). So a realm loses cache because of its own
 * manifests.
 */
void store_trim(struct store *store);

/* Evict all idle blocks and models of @realm (NULL: of all realms). Returns the bytes. */
uint64_t store_evict_all(struct store *store, const struct realm *realm, uint64_t *n_models_out);

#endif

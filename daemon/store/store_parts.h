/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of the store share these declarations:
 *
 *   store_make.c     begin and end
 *   store_watch.c    who watches is told
 *   store_park.c     blocks whose fds are kept for the next glaked, and those that wait for room
 *   store_blocks.c   blocks, and what keeps them
 *   store_models.c   models, and what keeps them
 *   store_pins.c     models that an operator pins
 *   store_publish.c  models that programs make
 *   store_adopt.c    what an earlier glaked had
 *   store_demote.c   models of which only host memory has the blocks
 *   store_return.c   models of programs that slept
 *   store_evict.c    what is idle, in the order of eviction; eviction
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_STORE_PARTS_H
#define GLAKE_DAEMON_STORE_PARTS_H

#include "daemon/store/store.h"

/* ---- store_watch.c ---------------------------------------------------------------------------- */

/* The block or model has changed: who watches is told, if he knows it. */
void store_note_block(const struct store *store, const struct block *block);
void store_note_model(const struct store *store, const struct model *model);
/* @model is READY, and has an id. */
void store_note_new_model(struct store *store, struct model *model);
void store_note_model_gone(const struct store *store, const struct model *model);

/* ---- store_park.c ----------------------------------------------------------------------------- */

/* @block is new. It is parked, or waits for room. */
void store_park(struct store *store, struct block *block);
/* @block goes, parked or not: who watches is told. */
void store_unpark(struct store *store, struct block *block);

/* ---- store_blocks.c --------------------------------------------------------------------------- */

/* Make a block, in the table if SHARED. NULL: no memory. */
struct block *store_new_block(struct store *store, uint64_t id, struct realm *realm,
                              const struct digest *digest, uint64_t content_bytes,
                              struct chunk *chunk, enum block_state state);
/* Free a block that nothing keeps. Returns the bytes that become free. */
uint64_t store_free_block(struct store *store, struct block *block);
/* Add a user who does not pay. */
void store_add_user(struct block *block);
/* The built-in tenant pays for a block without users and pins. */
void store_pay_from_cache(struct store *store, struct block *block);
/* A count has dropped: the block may be cache now, or gone. Returns the bytes that become free. */
uint64_t store_settle_block(struct store *store, struct block *block);

/* ---- store_models.c --------------------------------------------------------------------------- */

struct model_key store_model_key(const struct realm *realm, const struct device *device,
                                 const struct file_id *files, size_t n_files);
struct model_key store_published_key(const struct realm *realm, const struct device *device,
                                     const char *key);

/* A DRAFT, held once. NULL: no memory. */
struct model *store_new_model(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *name);
/* @model is in no list, and has no blocks. */
void store_free_model(struct store *store, struct model *model);
/* @model is found by its key: @state is LOADING or READY. False: no memory, nothing has changed. */
bool store_enter_key(struct store *store, struct model *model, enum model_state state);
/* @model is not found by its key from now on. */
void store_leave_key(struct store *store, struct model *model, enum model_state state);
void store_list_model(struct store *store, struct model *model);
/* @model is found by its key, and listed, with a new id. False: no memory. */
bool store_enter_model(struct store *store, struct model *model, enum model_state state);
/* The model is unused. Its references to blocks go with it. Returns the bytes that become free. */
uint64_t store_remove_model(struct store *store, struct model *model);
/* Nobody can open it any more. */
bool store_is_for_users_only(const struct model *model);

/* @payer pays for the manifest from now on. Returns 0, or TENANT_E_*: nothing has changed. */
int store_move_manifest(struct store *store, struct model *model, struct payer payer);

/* The model's references to blocks go. Returns the bytes that become free. */
uint64_t store_leave_blocks(struct store *store, struct model *model);

/* @model is unused, and not pinned: it is cache. */
void store_model_fall_idle(struct store *store, struct model *model);
/* Take @model out of the idle list. Harmless if it is not idle. */
void store_model_leave_idle(struct store *store, struct model *model);

/* ---- store_demote.c --------------------------------------------------------------------------- */

/* The copy of @block that is THERE. NULL: host memory has none, or @block is NULL. */
struct copy *store_copy_of(const struct store *store, const struct block *block);
/* Demote the idle @model if host memory has all of it. Returns whether. *freed_bytes_out: the bytes that become free. */
bool store_demote(struct store *store, struct model *model, uint64_t *freed_bytes_out);
/* Take @model out of the DEMOTED ones. Harmless if it is not DEMOTED. */
void store_model_leave_demoted(struct model *model);
/* @model does not need host memory any more. Harmless if it has no copies. */
void store_let_copies(struct store *store, struct model *model);

/* ---- store_evict.c ---------------------------------------------------------------------------- */

/* Keeps the list in the order of eviction. */
void store_enter_idle(struct store *store, struct idle *idle);
/* @idle is unused from now on. */
void store_note_unused(struct store *store, struct idle *idle, int32_t priority);

/* Returns the bytes that become free. */
uint64_t store_evict_idle(struct store *store, struct idle *idle);
/* The maker of a block; for a model, that of its first block, as a rule of all. */
const struct user *store_maker_of(const struct idle *idle);
/* Whether nothing becomes free with @idle, now or later: others keep all of its blocks. */
bool store_frees_nothing(const struct idle *idle);

#endif

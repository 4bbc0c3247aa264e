/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block: a sealed chunk, immutable, found by its digest, shared by one realm on one device.
 *
 * Four counts keep it:
 *   n_manifests  models that contain it
 *   n_users      models in use (see model.h) that contain it, and holders that use it directly
 *   n_pins       its places in pinned models
 *   n_compared   chunks that are being compared with it (admit.h), and looks at it (patrol.h, looks.h); its payer
 *                stays the same meanwhile
 * While n_users > 0 or n_pins > 0, the tenant that brought it into use or pinned it pays. Otherwise
 * the built-in tenant pays, and the block is cache. A block that a program published may be cache
 * without a manifest. A block that has been in a model goes with its last manifest.
 *
 * Its state says who gets it:
 *
 *            store_seal()                 its content has changed
 *   (none) --------------> SHARED, APART ------------------------> DAMAGED
 *      | from an earlier glaked
 *      '-----------------> SHARED, APART, DAMAGED, LOST
 *
 * Its keeping says whether the next glaked would have it:
 *
 *     .----------- adopted with its fd ------------.
 *     |                                            v
 *   UNKEPT ---- room ------------> PARKING ----> PARKED
 *     |                            ^     |
 *     '---- no room --> ROOMLESS --'     | the service manager lost it
 *                           ^------------'
 *
 * If somebody keeps fds for the next glaked, a block is parked soon after it was sealed. Until then only who has
 * sealed it knows of it, and no answer says that it is a block. If there is no room for its fd, or its maker has its
 * share of that, it serves without, and gets the next room. A restart before that leaves it to those who have it mapped:
 * it is LOST. It is charged and counted, but nobody gets it any more.
 *
 * Owner: the store's table. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_BLOCK_H
#define GLAKE_DAEMON_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/hash.h"
#include "daemon/base/idle.h"
#include "daemon/keep/parking.h"
#include "daemon/memory/chunk.h"
#include "daemon/net/user.h"
#include "daemon/store/realm.h"
#include "proto/digest.h"

/* No padding: it is hashed and compared as bytes. */
struct block_key {
	uint64_t realm_id;
	uint64_t slot; /* of its location */
	struct digest digest;
};

enum block_state {
	BLOCK_SHARED,  /* in store.blocks: who has the same content gets it */
	BLOCK_APART,   /* another content has its digest: it is not found */
	BLOCK_DAMAGED, /* its content has changed: it is left to those who share it already */
	BLOCK_LOST,    /* chunk.is_unparked: glaked has no fd of it, and it is left to its users */
	BLOCK_N_STATES,
};

enum layout_state {
	LAYOUT_UNSEEN,
	LAYOUT_SEEN,
	LAYOUT_LEFT_OUT, /* seen: the block has prints, and no room for them */
};

/* The parts of a block that may be elsewhere, at another offset (prints.h). A block is looked at once. */
struct block_layout {
	struct block_print *prints; /* owned by the store's table; NULL: none are known */
	uint32_t n_prints;
	enum layout_state state;
	uint64_t varied_bytes;
	uint64_t mark; /* prints_mark() */
};

enum block_keeping {
	BLOCK_UNKEPT,   /* nobody keeps fds, or it is LOST */
	BLOCK_ROOMLESS, /* it waits for room; link: store.roomless */
	BLOCK_PARKING,  /* its fd is on its way */
	BLOCK_PARKED,   /* the next glaked would have it */
	BLOCK_N_KEEPINGS,
};

struct block {
	UT_hash_handle hh; /* store.blocks, while SHARED */
	struct block_key key;
	struct list link;    /* link: store.block_list, in the order of ids */
	struct idle idle;    /* link: store.idle, while published, unused and in no manifest */
	struct list wanted;  /* link: copies.wanted */
	struct realm *realm; /* owned reference */
	struct store *store; /* borrowed */
	struct chunk chunk;
	uint64_t id;
	uint64_t content_bytes;
	uint64_t n_pins;
	uint32_t n_manifests;
	uint32_t n_users;
	uint32_t n_compared;
	uint32_t n_mappings; /* by holders: see holder.c */
	uint32_t n_alone;    /* of n_users: it was found when their chunk was sealed by itself */
	uint64_t saved_alone_bytes; /* by these, of its location's (reserve.h) */
	enum block_state state;
	enum block_keeping keeping;
	struct parking_wait parking; /* while PARKING; its link while ROOMLESS, too */
	struct user *maker;       /* owned reference; who pays for its place there. NULL: glaked */
	struct user_charge place; /* for that, while PARKING or PARKED */
	/* Facts that do not depend on each other. */
	bool is_noted;     /* the watch knows it */
	bool is_published; /* without users and manifests it is cache */
	bool was_shared; /* the block has had two users at a time; not known of an earlier glaked's */
	bool is_suspect; /* other bytes had its digest: the patrol looks at it first */
	struct block_layout layout;
};

/* States change as drawn above; anything else is a bug of the caller's. */
bool block_may_become(enum block_state from, enum block_state to);
void block_set_state(struct block *block, enum block_state state);
bool block_may_be_kept(enum block_keeping from, enum block_keeping to);
void block_set_keeping(struct block *block, enum block_keeping keeping);

#endif

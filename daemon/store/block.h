/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block: a sealed chunk, immutable, found by its digest, shared by one realm on one device.
 *
 * Four counts keep it:
 *   n_manifests  models that contain it
 *   n_users      models in use (see model.h) that contain it, and holders that use it directly
 *   n_pins       its places in pinned models
 *   n_compared   chunks that are being compared with it (admit.h), and a look at it (patrol.h); its payer
 *                stays the same meanwhile
 * While n_users > 0 or n_pins > 0, the tenant that brought it into use or pinned it pays. Otherwise
 * the built-in tenant pays, and the block is cache. A block that a program published may be cache
 * without a manifest. A block that has been in a model goes with its last manifest.
 *
 * If somebody keeps fds for the next glaked, a block is parked soon after it was sealed. Until then only who has
 * sealed it knows of it, and no answer says that it is a block. If there is no room for its fd, or its maker has its
 * share of that, it serves without, and gets the next room. A restart before that leaves it to those who have it mapped: it is charged and counted,
 * but nobody gets it any more.
 *
 * Owner: the store's table. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_BLOCK_H
#define GLAKE_DAEMON_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/hash.h"
#include "daemon/keep/parking.h"
#include "daemon/memory/chunk.h"
#include "daemon/net/user.h"
#include "daemon/base/idle.h"
#include "daemon/store/realm.h"
#include "proto/digest.h"

/* No padding: it is hashed and compared as bytes. */
struct block_key {
	uint64_t realm_id;
	uint64_t device;
	struct digest digest;
};

struct block {
	UT_hash_handle hh; /* store.blocks, unless is_collision or is_damaged */
	struct block_key key;
	struct list link;    /* link: store.block_list, in the order of ids */
	struct idle idle;    /* link: store.idle, while published, unused and in no manifest */
	struct realm *realm; /* owned reference */
	struct store *store; /* borrowed */
	struct chunk chunk;
	uint64_t id;
	uint64_t content_bytes;
	uint64_t n_pins;
	uint32_t n_manifests;
	uint32_t n_users;
	uint32_t n_compared;
	uint32_t n_mappings;         /* by holders: see holder.c */
	struct parking_wait parking; /* while it is being parked, or (number 0) waits for room */
	struct user *maker;       /* owned reference; who pays for its place there. NULL: glaked */
	struct user_charge place; /* for that, while it is parked or being parked */
	bool is_parked;           /* the next glaked would have it */
	bool is_noted;            /* the watch knows it */
	bool is_published;
	bool is_collision; /* another content has its digest: it is not in the table, and never shared */
	bool is_suspect; /* other bytes had its digest: the patrol looks at it first */
	bool is_damaged; /* its content has changed: the same, but for those who share it already */
};

#endif

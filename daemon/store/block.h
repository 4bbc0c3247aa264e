/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block: a sealed chunk, immutable, found by its digest, shared by one realm on one device.
 *
 * Four counts say why it is there:
 *   n_manifests  models that name it
 *   n_users      models in use (see model.h) that name it, and sessions that hold it directly
 *   n_pins       places that pinned models have for it
 *   n_compared   chunks that are being compared with it (admit.h): it stays, at whose cost it was
 * While n_users > 0 or n_pins > 0 the tenant that brought it pays, or who pinned it; after that the
 * built-in tenant does, and the block is cache. A block that a program published may be cache with
 * no manifest; one that came from a file goes with its last manifest.
 *
 * Owner: the store's table. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_BLOCK_H
#define GLAKE_DAEMON_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/memory/chunk.h"
#include "daemon/base/hash.h"
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
	UT_hash_handle hh; /* store.blocks, unless is_collision */
	struct block_key key;
	struct list link;    /* link: store.block_list, in the order of ids */
	struct idle idle;    /* link: store.idle, while published, unused and in no manifest */
	struct realm *realm; /* owned reference */
	struct chunk chunk;
	uint64_t id;
	uint64_t content_bytes;
	uint64_t n_pins;
	uint32_t n_manifests;
	uint32_t n_users;
	uint32_t n_compared;
	bool is_published;
	bool is_collision; /* its digest is another content's: not in the table, never shared */
};

#endif

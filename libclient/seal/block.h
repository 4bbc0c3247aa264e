/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of this session: one sealed chunk, mapped read-only at an address range of its own.
 *
 * Owner: the caller of glake_block_publish() or glake_block_lookup(); the books list it.
 * Lifetime: until glake_block_release() or glake_disconnect().
 * Threads: unchanging in between, so read without a lock.
 */
#ifndef GLAKE_LIBCLIENT_BLOCK_H
#define GLAKE_LIBCLIENT_BLOCK_H

#include "libclient/link/session.h"
#include "libclient/space/range.h"

/* user is its struct glake_block. */
extern const struct glake__use glake__use_block;

struct glake_block {
	struct glake_block *next; /* link: books.blocks */
	struct glake_session *session;
	uint64_t id;
	struct glake_digest digest;
	struct glake__range *range; /* owned; one piece */
	uint64_t content_bytes;
	bool was_known;
};

/* Drop all blocks: the session ends. */
void glake__blocks_deinit(struct glake_session *session);

#endif

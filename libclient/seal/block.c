/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/digest.h"
#include "proto/limits.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/backing.h"
#include "libclient/seal/seal_steps.h"
#include "libclient/space/reback.h"
#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"

const struct glake__use glake__use_block = {.name = "block", .kind = GLAKE__OWN};

static struct glake_block *block_new(struct glake_session *session)
{
	struct glake_block *block = calloc(1, sizeof(*block));
	if (block) {
		block->session = session;
	} else {
		glake__fail(-ENOMEM, "out of memory");
	}
	return block;
}

static void enter(struct glake_block *block, const struct glake__block_answer *answer,
                  struct glake__range *range)
{
	struct glake__books *books = &block->session->books;
	block->id = answer->block;
	block->digest = answer->digest;
	block->content_bytes = answer->content_bytes;
	block->was_known = answer->was_known;
	block->range = range;
	glake__lock();
	range->use = &glake__use_block;
	range->user = block;
	block->next = books->blocks;
	books->blocks = block;
	glake__unlock();
}

/* The block @answer, from its fd, as all of @range, which is empty. */
static int map_block(struct glake__range *range, const struct glake__block_answer *answer)
{
	struct glake__chunk *chunk = glake__chunk_new(answer->block, answer->chunk_bytes,
	                                              range->device, GLAKE__PAGE_BLOCK);
	if (!chunk) {
		return -ENOMEM;
	}
	const struct glake__part part = {
		.chunk = chunk,
		.n_bytes = answer->chunk_bytes,
		.access = GLAKE__ACCESS_READ,
		.fd = answer->fd,
	};
	int r = glake__range_fill(range, 0, &part, 1);
	glake__chunk_put(chunk);
	return r;
}

/* ---- publishing ------------------------------------------------------------------------------- */

static int check_shape(const struct glake__backing *backing, uint64_t content_bytes)
{
	if (backing->range->first->chunk->kind == GLAKE__PAGE_BLOCK) {
		return glake__fail(-EINVAL, "the memory at 0x%llx is sealed",
		                   (unsigned long long)backing->ptr);
	}
	if (backing->range->first->next || backing->n_bytes > GLAKE_MAX_BLOCK_BYTES) {
		return glake__fail(-EINVAL, "a block has at most %llu bytes",
		                   (unsigned long long)GLAKE_MAX_BLOCK_BYTES);
	}
	if (content_bytes == 0 || content_bytes > backing->n_bytes) {
		return glake__fail(-EINVAL, "%llu bytes of content in memory of %llu",
		                   (unsigned long long)content_bytes,
		                   (unsigned long long)backing->n_bytes);
	}
	return 0;
}

/* Publishes @part alone, as sealing does. */
static int publish(struct glake__seal_part *part)
{
	struct glake__seal seal = {.parts = part, .n_parts = 1, .last = glake__look_last()};
	int r = glake__seal_publish_one(&seal);
	if (r == 0 && part->pin) {
		r = glake__fail(GLAKE_E_BAD_REQUEST, "the memory at 0x%llx is pinned: %s",
		                (unsigned long long)part->ptr, glake__pin_text(part->pin));
	}
	return r;
}

static bool is_lost(const struct glake__range *range)
{
	glake__lock();
	bool is_hole = !range->first->chunk;
	glake__unlock();
	return is_hole;
}

/* @backing, which is out of the books, becomes @block, or stays the caller's: then *is_ours_out. */
static int become(struct glake__backing *backing, uint64_t content_bytes, struct glake_block *block,
                  bool *is_ours_out)
{
	struct glake__range *range = backing->range;
	const struct glake__held all = {
		.begin = backing->ptr,
		.end = backing->ptr + backing->n_bytes,
		.tail = backing->ptr + backing->n_bytes,
		.device = backing->device,
	};
	struct glake__seal_part part = {
		.ptr = backing->ptr,
		.n_bytes = backing->n_bytes,
		.held = &all,
		.device = backing->device,
		.content_bytes = content_bytes,
		.answer = {.fd = -1},
	};
	int r = publish(&part);
	*is_ours_out = part.state != GLAKE__PART_PUBLISHED;
	if (*is_ours_out) {
		return r;
	}
	/* Until the range is a block's, other threads may read the backing that it points to. */
	if (is_lost(range)) {
		char *text = glake__error_save();
		glake__range_end(range, NULL);
		glake__error_restore(text);
	} else {
		r = 0;
		enter(block, &part.answer, range);
	}
	glake__backing_free(backing);
	return r;
}

int glake_block_publish(struct glake_session *session, glake_ptr ptr, uint64_t content_bytes,
                        struct glake_block **block_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	cleanup_free struct glake_block *block = block_new(session);
	if (!block) {
		return -ENOMEM;
	}
	struct glake__backing *backing = glake__heap_take_live(session, ptr);
	if (!backing) {
		return -EINVAL;
	}
	bool is_ours = true;
	r = check_shape(backing, content_bytes);
	if (r == 0) {
		r = become(backing, content_bytes, block, &is_ours);
	}
	if (is_ours) {
		glake__heap_put_back(session, backing);
	}
	if (r == 0) {
		*block_out = ptr_steal(block);
	}
	return glake__leave(session, r);
}

/* ---- finding ---------------------------------------------------------------------------------- */

static int map_answer(const struct glake__device *device, const struct glake__block_answer *answer,
                      struct glake__range **range_out)
{
	struct glake__range *range;
	int r = glake__range_reserve(&glake__use_block, NULL, device->handle, answer->chunk_bytes,
	                             0, 0, &range);
	if (r < 0) {
		return r;
	}
	r = map_block(range, answer);
	if (r < 0) {
		char *text = glake__error_save();
		glake__range_end(range, NULL);
		glake__error_restore(text);
		return r;
	}
	*range_out = range;
	return 0;
}

static int lookup(struct glake_session *session, const struct glake__device *device,
                  const struct glake_digest *digest, struct glake_block *block)
{
	struct glake__block_answer answer;
	int r = glake__rpc_block_lookup(session, device->public.index, digest, &answer);
	if (r < 0) {
		return r;
	}
	cleanup_fd int fd = answer.fd;
	struct glake__range *range = NULL;
	r = fd < 0 ? glake__call_cut() : map_answer(device, &answer, &range);
	if (r < 0) {
		char *text = glake__error_save();
		glake__rpc_block_release(session, answer.block);
		glake__error_restore(text);
		return r;
	}
	enter(block, &answer, range);
	glake__lock();
	session->books.shared_bytes += range->n_bytes;
	glake__unlock();
	return 0;
}

int glake_block_lookup(struct glake_session *session, uint32_t device,
                       const struct glake_digest *digest, struct glake_block **block_out)
{
	struct glake__device *found;
	int r = glake__session_check_device(session, device, &found);
	if (r < 0) {
		return r;
	}
	cleanup_free struct glake_block *block = block_new(session);
	if (!block) {
		return -ENOMEM;
	}
	r = lookup(session, found, digest, block);
	if (r == 0) {
		*block_out = ptr_steal(block);
	}
	return glake__leave(session, r);
}

/* ---- looking and letting go ------------------------------------------------------------------- */

int glake_block_info(const struct glake_block *block, struct glake_block_info *info)
{
	if (!block) {
		return glake__fail(-EINVAL, "the block is NULL");
	}
	struct glake_block_info full = {
		.digest = block->digest,
		.ptr = block->range->ptr,
		.content_bytes = block->content_bytes,
		.mapped_bytes = block->range->n_bytes,
		.was_known = block->was_known,
	};
	return glake__sized_out(info, &full, sizeof(full));
}

void glake_block_release(struct glake_block *block)
{
	if (!block || glake__session_check(block->session) < 0) {
		return;
	}
	struct glake_session *session = block->session;
	struct glake__books *books = &session->books;
	glake__lock();
	struct glake_block **at = &books->blocks;
	while (*at != block) {
		at = &(*at)->next;
	}
	*at = block->next;
	books->shared_bytes -= block->range->n_bytes;
	glake__unlock();
	glake__range_end(block->range, NULL);
	glake__rpc_block_release(session, block->id);
	free(block);
	glake__leave(session, 0);
}

void glake__blocks_deinit(struct glake_session *session)
{
	while (session->books.blocks) {
		struct glake_block *block = session->books.blocks;
		session->books.blocks = block->next;
		glake__grant_drop(session, block->range);
		free(block);
	}
}

void glake_digest_bytes(const void *bytes, uint64_t n_bytes, struct glake_digest *digest_out)
{
	struct digest digest = digest_of(bytes, n_bytes);
	digest_to_bytes(&digest, digest_out->bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing, step by step, and what a failure of each leaves behind:
 *
 *   access to read-only    nothing can change the bytes while they are digested; undone below. If the driver does
 *                          not undo it, the memory is marked as sealed, and stays read-only
 *   BlockPublish           refused: access back to read-write. Its answer is lost, or makes no sense: the
 *                          chunk may be a block that another process has already, so it stays read-only
 *   the chunk is now the block. If the realm had no equal one we are done: what is mapped is it.
 *   reback                 fails, or the fd is lost: we keep what is mapped. The bytes are the same;
 *                          only the memory that sharing would have saved is not saved, and stays charged,
 *                          until the block is released. If not even what was there can be mapped again, the
 *                          address is empty. Only here are the bytes lost to the caller
 */
#include "libclient/seal/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/digest.h"
#include "proto/limits.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/backing.h"
#include "libclient/space/reback.h"
#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"

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
	range->use = GLAKE__RANGE_BLOCK;
	range->user = block;
	block->next = books->blocks;
	books->blocks = block;
	books->shared_bytes += range->n_bytes;
	glake__unlock();
}

/* The block @answer, from its fd, as all of @range. */
static int map_block(struct glake__range *range, const struct glake__block_answer *answer,
                     bool *is_lost_out)
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
	int r = glake__range_reback(range, 0, &part, 1, NULL, is_lost_out);
	glake__chunk_put(chunk);
	return r;
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* The chunk has left the session. */
static void forget(struct glake_session *session, struct glake__backing *backing)
{
	glake__lock();
	session->books.reserved_bytes -= backing->n_bytes;
	glake__unlock();
	glake__backing_free(backing);
}

/* The mapped chunk is the block now. */
static void seal(struct glake__range *range, uint64_t id)
{
	glake__lock();
	range->first->chunk->id = id;
	glake__chunk_set_kind_locked(range->first->chunk, GLAKE__PAGE_BLOCK);
	glake__unlock();
}

/*
 * Takes @backing, which is out of the books and read-only, over if the daemon agrees. A refusal
 * leaves it the caller's (*is_ours stays true).
 */
static int publish(struct glake_session *session, struct glake__backing *backing,
                   uint64_t content_bytes, struct glake_block *block, bool *is_ours)
{
	struct glake__range *range = backing->range;
	struct glake__publication publication = {
		.chunk = range->first->chunk->id,
		.chunk_bytes = backing->n_bytes,
		.content_bytes = content_bytes,
	};
	const struct glake__block_answer *answer = &publication.answer;
	bool is_lost = false;
	int r = glake__rpc_block_publish(session, &publication);
	if (r < 0) {
		return r;
	}
	cleanup_fd int fd = answer->fd;
	*is_ours = false;
	if (answer->was_known && fd >= 0) {
		r = map_block(range, answer, &is_lost);
		r = is_lost ? r : 0;
	}
	if (r == 0) {
		/* If what was there is mapped again, it is a chunk still, and stays charged. */
		if (answer->is_kept && range->first->chunk->kind == GLAKE__PAGE_BLOCK) {
			glake__rpc_chunk_free(session, &answer->block, 1);
		}
		seal(range, answer->block);
		enter(block, answer, range);
	} else {
		char *text = glake__error_save();
		glake__range_end(range, NULL);
		glake__rpc_block_release(session, answer->block);
		glake__error_restore(text);
	}
	/* Last: until the range is a block's, other threads may read the backing that it points to. */
	forget(session, backing);
	return r;
}

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

/* Put the memory back as it was, after @error. Returns the error to tell: that it stays read-only is more. */
static int undo(struct glake_session *session, struct glake__backing *backing, bool is_flipped,
                int error)
{
	char *text = glake__error_save();
	bool may_be_block = glake__may_be_block(error);
	int r = is_flipped && !may_be_block
	                ? glake__range_access(backing->range, 0, backing->n_bytes,
	                                      GLAKE__ACCESS_WRITE)
	                : 0;
	if (is_flipped && (may_be_block || r < 0)) {
		glake__lock();
		glake__backing_unfinish_locked(session, backing->range->first->chunk);
		glake__unlock();
	}
	if (r < 0) {
		free(text);
		text = glake__error_save();
	}
	glake__heap_put_back(session, backing);
	glake__error_restore(text);
	return r < 0 ? r : error;
}

int glake_block_publish(struct glake_session *session, glake_ptr ptr, uint64_t content_bytes,
                        struct glake_block **block_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	cleanup_free struct glake_block *block = block_new(session);
	if (!block) {
		return -ENOMEM;
	}
	struct glake__backing *backing = glake__heap_take_live(session, ptr);
	if (!backing) {
		return -EINVAL;
	}
	bool is_ours = true;
	bool is_flipped = false;
	r = check_shape(backing, content_bytes);
	if (r == 0) {
		r = glake__range_access(backing->range, 0, backing->n_bytes, GLAKE__ACCESS_READ);
		is_flipped = r == 0;
	}
	if (r == 0) {
		r = publish(session, backing, content_bytes, block, &is_ours);
	}
	if (r < 0 && is_ours) {
		r = undo(session, backing, is_flipped, r);
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
	int r = glake__range_reserve(GLAKE__RANGE_BLOCK, NULL, device->handle, answer->chunk_bytes,
	                             0, 0, &range);
	if (r < 0) {
		return r;
	}
	r = map_block(range, answer, NULL);
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
		glake__range_drop_all(session, block->range);
		free(block);
	}
}

void glake_digest_bytes(const void *bytes, uint64_t n_bytes, struct glake_digest *digest_out)
{
	struct digest digest = digest_of(bytes, n_bytes);
	digest_to_bytes(&digest, digest_out->bytes);
}

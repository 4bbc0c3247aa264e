/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing, step by step, and what a failure of each leaves behind:
 *
 *   access to read-only    nothing can change the bytes while they are digested; undone below
 *   BlockPublish           refused, or the daemon is gone: access back to read-write
 *   the chunk is now the block. If the realm had no equal one we are done: what is mapped is it.
 *   import the equal one   fails, or its fd is lost: we keep what is mapped. The bytes are the same;
 *                          only the memory that sharing would have saved is not saved until the
 *                          block is released
 *   unmap ours             fails: the same
 *   map, access            fail: the address is empty. Only here are the bytes lost to the caller
 */
#include "libclient/memory/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/digest.h"
#include "proto/limits.h"
#include "libclient/memory/alloc.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/map.h"
#include "libclient/link/notice.h"
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
                  glake_ptr ptr)
{
	block->id = answer->block;
	block->digest = answer->digest;
	block->ptr = ptr;
	block->content_bytes = answer->content_bytes;
	block->mapped_bytes = answer->chunk_bytes;
	block->was_known = answer->was_known;
	struct glake__books *books = &block->session->books;
	pthread_mutex_lock(&books->lock);
	block->next = books->blocks;
	books->blocks = block;
	books->shared_bytes += block->mapped_bytes;
	pthread_mutex_unlock(&books->lock);
}

static void unmap(struct glake_block *block)
{
	if (glake__map_unmap(block->session, block->ptr, block->mapped_bytes) == 0) {
		glake__map_unreserve(block->session, block->ptr, block->mapped_bytes);
	}
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* Put the equal block @fd in the place of our chunk: see the top. */
static int exchange(struct glake_session *session, const struct glake__backing *backing, int fd)
{
	CUmemGenericAllocationHandle handle;
	if (glake__map_import(session, fd, &handle) < 0) {
		return 0;
	}
	if (glake__map_unmap(session, backing->ptr, backing->n_bytes) < 0) {
		glake__map_release(session, handle);
		return 0;
	}
	int r = glake__map_handle(session, backing->ptr, backing->n_bytes, handle);
	glake__map_release(session, handle);
	if (r == 0) {
		r = glake__map_access(session, backing->device, backing->ptr, backing->n_bytes,
		                      false);
		if (r < 0) {
			glake__map_unmap(session, backing->ptr, backing->n_bytes);
		}
	}
	return r;
}

/* The chunk is gone from the session, whatever else happens. */
static void forget(struct glake_session *session, struct glake__backing *backing)
{
	pthread_mutex_lock(&session->books.lock);
	session->books.reserved_bytes -= backing->n_bytes;
	pthread_mutex_unlock(&session->books.lock);
	glake__backing_free(backing);
}

/*
 * Takes @backing, which is out of the books and read-only, over if the daemon agrees. A refusal
 * leaves it the caller's (*is_ours stays true).
 */
static int publish(struct glake_session *session, struct glake__backing *backing,
                   uint64_t content_bytes, struct glake_block *block, bool *is_ours)
{
	struct glake__block_answer answer;
	int r = glake__rpc_block_publish(session, backing->chunk_ids[0], content_bytes, &answer);
	if (r < 0) {
		return r;
	}
	cleanup_fd int fd = answer.fd;
	*is_ours = false;
	if (answer.chunk_bytes != backing->n_bytes) {
		r = glake__link_kill(session, GLAKE_E_PROTOCOL,
		                     "the daemon's block has another size than the chunk");
		glake__map_unmap(session, backing->ptr, backing->n_bytes);
	} else if (answer.was_known && fd >= 0) {
		r = exchange(session, backing, fd);
	}
	if (r == 0) {
		enter(block, &answer, backing->ptr);
	} else {
		char *text = glake__error_save();
		glake__map_unreserve(session, backing->ptr, backing->n_bytes);
		glake__rpc_block_release(session, answer.block);
		glake__error_restore(text);
	}
	forget(session, backing);
	return r;
}

static int check_shape(const struct glake__backing *backing, uint64_t content_bytes)
{
	if (backing->n_chunks != 1 || backing->n_bytes > GLAKE_MAX_BLOCK_BYTES) {
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

/* Put the memory back as it was. */
static void undo(struct glake_session *session, struct glake__backing *backing, bool is_flipped)
{
	char *text = glake__error_save();
	if (is_flipped) {
		glake__map_access(session, backing->device, backing->ptr, backing->n_bytes, true);
	}
	glake__alloc_put_back(session, backing);
	glake__error_restore(text);
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
	struct glake__backing *backing = glake__alloc_take_live(session, ptr);
	if (!backing) {
		return -EINVAL;
	}
	bool is_ours = true;
	bool is_flipped = false;
	r = check_shape(backing, content_bytes);
	if (r == 0) {
		r = glake__map_access(session, backing->device, ptr, backing->n_bytes, false);
		is_flipped = r == 0;
	}
	if (r == 0) {
		r = publish(session, backing, content_bytes, block, &is_ours);
	}
	if (r < 0 && is_ours) {
		undo(session, backing, is_flipped);
	}
	if (r == 0) {
		*block_out = ptr_steal(block);
	}
	return glake__leave(session, r);
}

/* ---- finding ---------------------------------------------------------------------------------- */

static int map_answer(struct glake_session *session, const struct glake__device *device,
                      const struct glake__block_answer *answer, glake_ptr *ptr_out)
{
	glake_ptr ptr;
	int r = glake__map_reserve(session, answer->chunk_bytes, 0, &ptr);
	if (r < 0) {
		return r;
	}
	r = glake__map_fd(session, ptr, answer->chunk_bytes, answer->fd);
	if (r == 0) {
		r = glake__map_access(session, device, ptr, answer->chunk_bytes, false);
		if (r < 0) {
			glake__map_unmap(session, ptr, answer->chunk_bytes);
		}
	}
	if (r < 0) {
		glake__map_unreserve(session, ptr, answer->chunk_bytes);
		return r;
	}
	*ptr_out = ptr;
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
	glake_ptr ptr = 0;
	r = fd < 0 ? glake__call_cut() : map_answer(session, device, &answer, &ptr);
	if (r < 0) {
		char *text = glake__error_save();
		glake__rpc_block_release(session, answer.block);
		glake__error_restore(text);
		return r;
	}
	enter(block, &answer, ptr);
	return 0;
}

int glake_block_lookup(struct glake_session *session, uint32_t device,
                       const struct glake_digest *digest, struct glake_block **block_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
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
		.ptr = block->ptr,
		.content_bytes = block->content_bytes,
		.mapped_bytes = block->mapped_bytes,
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
	pthread_mutex_lock(&books->lock);
	struct glake_block **at = &books->blocks;
	while (*at != block) {
		at = &(*at)->next;
	}
	*at = block->next;
	books->shared_bytes -= block->mapped_bytes;
	pthread_mutex_unlock(&books->lock);
	unmap(block);
	glake__rpc_block_release(session, block->id);
	free(block);
	glake__leave(session, 0);
}

void glake__blocks_deinit(struct glake_session *session)
{
	while (session->books.blocks) {
		struct glake_block *block = session->books.blocks;
		session->books.blocks = block->next;
		if (!session->is_forked) {
			unmap(block);
		}
		free(block);
	}
}

void glake_digest_bytes(const void *bytes, uint64_t n_bytes, struct glake_digest *digest_out)
{
	struct digest digest = digest_of(bytes, n_bytes);
	digest_to_bytes(&digest, digest_out->bytes);
}

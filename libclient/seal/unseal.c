/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/unseal.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/seal/look.h"
#include "libclient/seal/repiece.h"
#include "libclient/seal/seal_steps.h"
#include "libclient/space/unsealed.h"
#include "proto/cleanup.h"

/* A call of the driver's API has nobody who would try it again. */
static glake__close_fn *close_for(enum glake__unsealed why)
{
	return why == GLAKE__UNSEALED_WRITTEN || why == GLAKE__UNSEALED_NAMED
	               ? glake__gate_close_patiently
	               : glake__gate_close_in_a_hurry;
}

/* What is no block any more, or gone, is left as it is. */
static int unseal_block(struct glake__look *block, uint64_t last, struct glake__wait *wait,
                        enum glake__unsealed why)
{
	struct glake_session *session = block->device->session;
	const struct glake__repiecing repiecing = {
		.ptr = block->ptr,
		.device = block->device,
		.sizes = &block->n_bytes,
		.n_sizes = 1,
		.last = last,
		.close = close_for(why),
	};
	int r = glake__repiece(&repiecing, wait);
	if (r == -ESTALE) {
		return 0;
	}
	glake__unsealed_note(session, block->ptr, block->ptr + block->n_bytes, why);
	return r;
}

static int unseal_pages(struct glake__sessions *sessions, const struct glake__held *held,
                        glake_ptr ptr, glake_ptr end, enum glake__unsealed why)
{
	const uint64_t last = glake__look_last();
	struct glake__wait wait = {0};
	int r = 0;
	while (r == 0 && ptr < end) {
		struct glake__look piece = glake__look_at(held, ptr, sessions);
		if (piece.kind == GLAKE__PAGE_BLOCK && piece.device) {
			r = unseal_block(&piece, last, &wait, why);
		}
		ptr = piece.ptr + piece.n_bytes;
	}
	return r;
}

int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__held held;
	struct glake__seal_span span = {.ptr = ptr, .n_bytes = bytes};
	int r = glake__seal_hold(&span, &held);
	if (!span.held) {
		return r;
	}
	struct glake__sessions sessions = {.n = 0};
	r = r < 0 ? r : unseal_pages(&sessions, &held, ptr, ptr + bytes, why);
	glake__held_end(&held);
	return glake__sessions_leave(&sessions, r);
}

int glake_unseal(glake_ptr ptr, uint64_t bytes)
{
	return glake__unseal(ptr, bytes, GLAKE__UNSEALED_ASKED);
}

/* Is it in chunks as glake__backing_new() makes them? */
static bool is_as_new(struct glake__sessions *sessions, const struct glake__held *held)
{
	bool is_new = true;
	for (glake_ptr at = held->begin; is_new && at < held->tail; at += GRANT_CHUNK_BYTES) {
		struct glake__look piece = glake__look_at(held, at, sessions);
		is_new = piece.kind == GLAKE__PAGE_CHUNK &&
		         piece.n_bytes == glake__grant_chunk_bytes(held->tail - at);
	}
	return is_new;
}

static int make_new(const struct glake__held *held)
{
	const uint64_t n_bytes = held->tail - held->begin;
	const size_t n = (n_bytes + GRANT_CHUNK_BYTES - 1) / GRANT_CHUNK_BYTES;
	cleanup_free uint64_t *sizes = calloc(n, sizeof(*sizes));
	struct glake__wait wait = {0};
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		sizes[i] = glake__grant_chunk_bytes(n_bytes - i * GRANT_CHUNK_BYTES);
	}
	const struct glake__repiecing repiecing = {
		.ptr = held->begin,
		.device = held->device,
		.sizes = sizes,
		.n_sizes = n,
		.last = glake__look_last(),
		.close = glake__gate_close_in_a_hurry,
	};
	return glake__repiece(&repiecing, &wait);
}

int glake__seal_undo(glake_ptr ptr)
{
	struct glake__held held;
	struct glake__sessions sessions = {.n = 0};
	if (glake__held_begin(ptr, &held) < 0) {
		return 0;
	}
	/* Memory that is a part of pages is never named, as of pools. */
	if ((held.begin | held.tail) & (GLAKE__PAGE_BYTES - 1)) {
		glake__held_end(&held);
		return 0;
	}
	struct glake_session *session = held.device->session;
	int r = 0;
	if (!is_as_new(&sessions, &held)) {
		glake__unsealed_blocks(session, held.begin, held.tail, GLAKE__UNSEALED_NAMED);
		r = make_new(&held);
	}
	if (r < 0) {
		glake__unsealed_blocks(session, held.begin, held.tail, GLAKE__UNSEALED_NOT);
	}
	glake__held_end(&held);
	return glake__sessions_leave(&sessions, r);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/unseal.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/seal/repiece.h"
#include "libclient/seal/seal_steps.h"
#include "libclient/seal/unsealed.h"
#include "libclient/heap/usage.h"
#include "proto/cleanup.h"

/* A call of the driver's API has nobody who would try it again. */
static glake__close_fn *close_for(enum glake__unsealed why)
{
	return why == GLAKE__UNSEALED_WRITTEN || why == GLAKE__UNSEALED_NAMED
	               ? glake__gate_close_patiently
	               : glake__gate_close_in_a_hurry;
}

static int unseal_pages(struct glake__backing *backing, uint64_t begin, uint64_t end,
                        enum glake__unsealed why)
{
	struct glake__wait wait = {0};
	int r = 0;
	while (r == 0 && begin < end) {
		struct glake__look piece = glake__look_at(backing, begin);
		if (piece.kind == GLAKE__PAGE_BLOCK) {
			r = glake__repiece(backing, piece.offset, &piece.n_bytes, 1, &wait,
			                   close_for(why));
			glake__unsealed_note(backing, piece.offset, piece.offset + piece.n_bytes,
			                     why);
		}
		begin = piece.offset + piece.n_bytes;
	}
	return r;
}

int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__seal_span span = {.ptr = ptr, .n_bytes = bytes};
	int r = glake__seal_hold(&span, &span);
	struct glake__backing *backing = span.held.backing;
	if (!backing) {
		return r;
	}
	struct glake_session *session = backing->device->session;
	r = r < 0 ? r : unseal_pages(backing, span.begin, span.end, why);
	glake__heap_hold_session(session);
	glake__heap_let(backing);
	glake__usage_report_now(session);
	return glake__heap_leave(session, r);
}

int glake_unseal(glake_ptr ptr, uint64_t bytes)
{
	return glake__unseal(ptr, bytes, GLAKE__UNSEALED_ASKED);
}

/* Is it in chunks as glake__backing_new() makes them? */
static bool is_as_new(const struct glake__backing *backing)
{
	bool is_new = true;
	for (uint64_t at = 0; is_new && at < backing->n_bytes; at += BACKING_CHUNK_BYTES) {
		struct glake__look piece = glake__look_at(backing, at);
		is_new = piece.kind == GLAKE__PAGE_CHUNK &&
		         piece.n_bytes == glake__backing_chunk_bytes(backing->n_bytes - at);
	}
	return is_new;
}

static int make_new(struct glake__backing *backing)
{
	size_t n = (backing->n_bytes + BACKING_CHUNK_BYTES - 1) / BACKING_CHUNK_BYTES;
	cleanup_free uint64_t *sizes = calloc(n, sizeof(*sizes));
	struct glake__wait wait = {0};
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t n_left = backing->n_bytes - i * BACKING_CHUNK_BYTES;
		sizes[i] = glake__backing_chunk_bytes(n_left);
	}
	return glake__repiece(backing, 0, sizes, n, &wait, glake__gate_close_in_a_hurry);
}

int glake__seal_undo(glake_ptr ptr)
{
	struct glake__held held = {0};
	if (!glake__heap_hold(ptr, &held, &held) || !held.backing) {
		return 0;
	}
	struct glake_session *session = held.backing->device->session;
	int r = 0;
	if (!is_as_new(held.backing)) {
		glake__unsealed_blocks(held.backing, GLAKE__UNSEALED_NAMED);
		r = make_new(held.backing);
	}
	if (r < 0) {
		glake__unsealed_blocks(held.backing, GLAKE__UNSEALED_NOT);
	}
	glake__heap_let(held.backing);
	glake__usage_report_now(session);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A write to a block would change the bytes that others map. So a block becomes a private copy at the same addresses before it
 * is written. The copy is made and mapped while the gate is closed, so no work of the program reads or writes halfway; a batch
 * bounds how long that takes. The blocks are held meanwhile, so nobody frees them. A block that fails stays sealed.
 */
#include "libclient/seal/unseal.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/seal/look.h"
#include "libclient/seal/refuge.h"
#include "libclient/seal/repiece.h"
#include "libclient/seal/spans.h"
#include "libclient/space/unsealed.h"
#include "proto/cleanup.h"

/* A call of the driver's API has nobody who would try it again. */
static glake__close_fn *close_for(enum glake__unsealed why)
{
	return why == GLAKE__UNSEALED_WRITTEN || why == GLAKE__UNSEALED_NAMED ||
	                       why == GLAKE__UNSEALED_LAUNCHED
	               ? glake__gate_close_patiently
	               : glake__gate_close_in_a_hurry;
}

/*
 * At most this much changes while the program is held back once. For 16 GiB in 256 blocks a GPU of 2024 copies for 10 ms, and the driver
 * takes 25.
 */
#define BATCH_BLOCKS 256u
#define BATCH_BYTES (16ull << 30)

/* Blocks that become private together. */
struct batch {
	struct glake__repiecing list[BATCH_BLOCKS];
	uint64_t sizes[BATCH_BLOCKS];
	size_t n;
	uint64_t n_bytes;
};

static bool is_full(const struct batch *batch)
{
	return batch->n == BATCH_BLOCKS || batch->n_bytes >= BATCH_BYTES;
}

static void add(struct batch *batch, const struct glake__look *block, uint64_t last,
                enum glake__unsealed why)
{
	batch->sizes[batch->n] = block->n_bytes;
	batch->list[batch->n] = (struct glake__repiecing){
		.ptr = block->ptr,
		.device = block->device,
		.sizes = &batch->sizes[batch->n],
		.n_sizes = 1,
		.last = last,
		.unseals = block->id,
		.may_be_host = why == GLAKE__UNSEALED_WRITTEN || why == GLAKE__UNSEALED_LAUNCHED,
	};
	batch->n++;
	batch->n_bytes += block->n_bytes;
}

/* The blocks from @from on. Returns where the next batch begins. */
static glake_ptr collect(struct batch *batch, struct glake__spans *spans, glake_ptr from,
                         uint64_t last, enum glake__unsealed why)
{
	glake_ptr ptr = from;
	batch->n = 0;
	batch->n_bytes = 0;
	for (size_t i = 0; i < spans->n; i++) {
		const struct glake__span *span = &spans->list[i];
		const glake_ptr end = span->ptr + span->n_bytes;
		ptr = span->ptr > ptr ? span->ptr : ptr;
		while (span->held && ptr < end) {
			struct glake__look piece = glake__look_at(span->held, ptr,
			                                          &spans->sessions);
			bool is_block = piece.kind == GLAKE__PAGE_BLOCK && piece.device;
			if (is_block && is_full(batch)) {
				return ptr;
			}
			if (is_block) {
				add(batch, &piece, last, why);
			}
			ptr = piece.ptr + piece.n_bytes;
		}
	}
	return ptr;
}

/* Leaves alone memory that is no block any more, or gone. Returns where the rest begins, at most @next. */
static glake_ptr unseal_batch(struct batch *batch, glake_ptr next, struct glake__wait *wait,
                              enum glake__unsealed why, int *r_out)
{
	size_t n;
	*r_out = glake__repiece(batch->list, batch->n, close_for(why), wait, &n);
	for (size_t i = 0; i < n; i++) {
		const struct glake__repiecing *block = &batch->list[i];
		if (block->result != -ESTALE) {
			glake__unsealed_note(block->device->session, block->ptr,
			                     block->ptr + block->sizes[0], why);
		}
		if (block->result == 0 && block->is_host) {
			glake__refuge_note(block->ptr, block->sizes[0]);
		}
	}
	return n < batch->n ? batch->list[n].ptr : next;
}

static int unseal_held(struct glake__spans *spans, enum glake__unsealed why)
{
	cleanup_free struct batch *batch = malloc(sizeof(*batch));
	const uint64_t last = glake__look_last();
	struct glake__wait wait = {0};
	glake_ptr ptr = 0;
	int r = batch ? 0 : glake__fail(-ENOMEM, "out of memory");
	while (r == 0) {
		glake_ptr next = collect(batch, spans, ptr, last, why);
		if (batch->n == 0) {
			break;
		}
		ptr = unseal_batch(batch, next, &wait, why, &r);
	}
	return r;
}

static int unseal(const struct glake_span *list, size_t n, enum glake__unsealed why)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__spans spans;
	int r = glake__spans_hold(&spans, list, n, NULL);
	r = r < 0 ? r : unseal_held(&spans, why);
	return glake__spans_let(&spans, r);
}

int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why)
{
	const struct glake_span span = {.ptr = ptr, .bytes = bytes};
	return unseal(&span, 1, why);
}

int glake_unseal_spans(const struct glake_span *spans, size_t n_spans)
{
	return unseal(spans, n_spans, GLAKE__UNSEALED_ASKED);
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
	size_t n = (n_bytes + GRANT_CHUNK_BYTES - 1) / GRANT_CHUNK_BYTES;
	cleanup_free uint64_t *sizes = calloc(n, sizeof(*sizes));
	struct glake__wait wait = {0};
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		sizes[i] = glake__grant_chunk_bytes(n_bytes - i * GRANT_CHUNK_BYTES);
	}
	struct glake__repiecing repiecing = {
		.ptr = held->begin,
		.device = held->device,
		.sizes = sizes,
		.n_sizes = n,
		.last = glake__look_last(),
	};
	return glake__repiece(&repiecing, 1, glake__gate_close_in_a_hurry, &wait, &n);
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

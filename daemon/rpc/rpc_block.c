/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for blocks that come from a program: publish, look up, release. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

/* A BlockPublish on its way. Any failure leaves the chunk private, as it was. */
struct publish {
	struct pending pending;
	struct admit admit;
	struct held *private; /* busy, and without its chunk, until done or cancelled */
};

static void answer_block(struct session *session, uint64_t id, struct block *block, bool was_known)
{
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__BlockAnswer body = GLAKE__WIRE__BLOCK_ANSWER__INIT;
	uint8_t digest[DIGEST_BYTES];
	body.block = holder_add_block(session->holder, id, block);
	if (!body.block) {
		store_unuse_block(rpc_of(session)->store, block, session->holder->tenant->priority);
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return;
	}
	digest_to_bytes(&block->key.digest, digest);
	body.digest.data = digest;
	body.digest.len = sizeof(digest);
	body.chunk_bytes = block->chunk.bytes;
	body.content_bytes = block->content_bytes;
	body.was_known = was_known;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_BLOCK;
	answer.block = &body;
	rpc_answer(session, id, &answer, &block->chunk.fd, 1);
}

static void on_admitted(struct admit *admit, const struct admit_result *result)
{
	struct publish *publish = container_of(admit, struct publish, admit);
	struct held *private = publish->private;
	struct session *session = publish->pending.session;
	uint64_t id = publish->pending.request;
	struct block *block = result->block;
	session_end(&publish->pending);
	if (block) {
		uint64_t bytes = block->chunk.bytes;
		holder_drop_chunk(session->holder, private, block->chunk.device, bytes);
		block->is_published = !block->is_collision;
		rpc_of(session)->stats->bytes_deduplicated += result->was_known ? bytes : 0;
		answer_block(session, id, block, result->was_known);
	} else {
		private->is_busy = false;
		chunk_move(&private->chunk, &admit->chunk);
		rpc_refuse(session, id, result->status, "%s", result->error);
	}
}

static void on_gone(struct admit *admit)
{
	free(container_of(admit, struct publish, admit));
}

static const struct admit_ops admit_ops = {.done = on_admitted, .gone = on_gone};

/* The session ends. What the mover has of its chunk stays charged until the mover has done with it. */
static void cancel_publish(struct pending *pending)
{
	struct publish *publish = container_of(pending, struct publish, pending);
	const struct chunk *chunk = &publish->admit.chunk;
	holder_drop_chunk(pending->session->holder, publish->private, chunk->device, chunk->bytes);
	admit_cancel(&publish->admit);
}

static const char *why_not(const struct held *private, uint64_t content_bytes)
{
	if (private->is_busy) {
		return "is being published already";
	}
	if (content_bytes == 0 || content_bytes > private->chunk.bytes) {
		return "does not have that many bytes";
	}
	if (private->chunk.bytes > GLAKE_MAX_BLOCK_BYTES) {
		return "is larger than a block can be";
	}
	if (private->ticket != 0) {
		return "may be mapped by other sessions, which could write to it";
	}
	return NULL;
}

void rpc_block_publish(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__BlockPublish *body = request->block_publish;
	struct held *private;
	private = holder_find(session->holder, HELD_CHUNK, body->chunk);
	const char *reason = private ? why_not(private, body->content_bytes) : "is not there";
	if (reason) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "chunk %" PRIu64 " %s",
		           body->chunk, reason);
		return;
	}
	struct publish *publish = calloc(1, sizeof(*publish));
	if (!publish) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY,
		           "glaked is out of host memory");
		return;
	}
	publish->private = private;
	if (!session_begin(session, &publish->pending, request->id, cancel_publish)) {
		free(publish);
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	private->is_busy = true;
	admit_start(&publish->admit, rpc_of(session)->admit_context, session->holder->realm,
	            &private->chunk, body->content_bytes, NULL, &admit_ops);
}

void rpc_block_lookup(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__BlockLookup *body = request->block_lookup;
	struct device *device = rpc_device(session, request->id, body->device);
	if (!device) {
		return;
	}
	if (body->digest.len != DIGEST_BYTES) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "a digest has %u bytes",
		           DIGEST_BYTES);
		return;
	}
	struct digest digest = digest_from_bytes(body->digest.data);
	struct block *block = store_find_block(rpc_of(session)->store, session->holder->realm,
	                                       device, &digest);
	if (!block) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "realm %s has no such block on device %u", session->holder->realm->name,
		           device->index);
		return;
	}
	if (store_use_block(block, session->holder->tenant) != 0) {
		rpc_of(session)->stats->quota_refusals++;
		rpc_refuse(session, request->id, STATUS_OVER_QUOTA,
		           "the block does not fit the limits of tenant %s",
		           session->holder->tenant->name);
		return;
	}
	answer_block(session, request->id, block, true);
}

void rpc_block_release(struct session *session, const request_t *request, struct fdlist *fds)
{
	uint64_t id = request->block_release->block;
	struct held *held;
	held = holder_find(session->holder, HELD_BLOCK, id);
	if (!held) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "there is no held block %" PRIu64, id);
		return;
	}
	holder_release(session->holder, held);
	rpc_answer_ok(session, request->id);
}

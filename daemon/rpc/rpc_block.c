/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for blocks that come from a program: publish, look up, release. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

/*
 * A BlockPublish on its way: digest, then a comparison if the realm has a block of that digest.
 * Any failure leaves the chunk private, as it was.
 */
struct publish {
	struct pending pending;
	struct digest_job digest_job;
	struct compare_job compare_job;
	struct held *private;    /* busy meanwhile */
	struct block *candidate; /* used, while it is compared */
	struct digest digest;
	uint64_t content_bytes;
};

static void answer_block(struct session *session, uint64_t id, struct block *block, bool was_known)
{
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__BlockAnswer body = GLAKE__WIRE__BLOCK_ANSWER__INIT;
	uint8_t digest[DIGEST_BYTES];
	body.block = holder_add_block(session->holder, block);
	if (!body.block) {
		store_unuse_block(rpc_of(session)->store, block, session->holder->tenant->priority);
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked has no host memory");
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

static void end_publish(struct publish *publish)
{
	session_end(&publish->pending);
	free(publish);
}

static void fail_publish(struct publish *publish, enum status status, const char *error)
{
	struct session *session = publish->pending.session;
	uint64_t id = publish->pending.request;
	publish->private->is_busy = false;
	if (publish->candidate) {
		store_unuse_block(rpc_of(session)->store, publish->candidate, 0);
	}
	end_publish(publish);
	rpc_refuse(session, id, status, "%s", error);
}

/* The chunk itself becomes the block, and is the session's private one no more. */
static void seal(struct publish *publish, bool is_twin)
{
	struct session *session = publish->pending.session;
	uint64_t id = publish->pending.request;
	struct block *block = holder_seal(session->holder, publish->private, &publish->digest,
	                                  publish->content_bytes, is_twin);
	if (!block) {
		fail_publish(publish, STATUS_NO_HOST_MEMORY, "glaked has no host memory");
		return;
	}
	block->is_published = !is_twin;
	end_publish(publish);
	answer_block(session, id, block, false);
}

static void on_compared(struct compare_job *job, bool equal)
{
	struct publish *publish = container_of(job, struct publish, compare_job);
	struct session *session = publish->pending.session;
	uint64_t id = publish->pending.request;
	struct block *block = publish->candidate;
	publish->candidate = NULL;
	if (!equal) {
		char text[DIGEST_TEXT_BYTES];
		digest_to_text(&publish->digest, text);
		log_error("two different contents have the digest %s; the second is not shared",
		          text);
		store_unuse_block(rpc_of(session)->store, block, 0);
		seal(publish, true);
		return;
	}
	rpc_of(session)->stats->blocks_collapsed++;
	rpc_of(session)->stats->bytes_deduplicated += publish->private->chunk.bytes;
	block->is_published = true;
	holder_release(session->holder, publish->private);
	end_publish(publish);
	answer_block(session, id, block, true);
}

static void on_compare_failed(struct mover_job *job, enum status status, const char *error)
{
	fail_publish(container_of(job, struct publish, compare_job.job), status, error);
}

static void on_digested(struct digest_job *job, const struct digest *digest)
{
	struct publish *publish = container_of(job, struct publish, digest_job);
	struct session *session = publish->pending.session;
	struct rpc_context *rpc = rpc_of(session);
	const struct chunk *chunk = &publish->private->chunk;
	publish->digest = *digest;
	struct block *candidate = store_find_block(rpc->store, session->holder->realm,
	                                           chunk->device, digest);
	if (!candidate || candidate->chunk.bytes != chunk->bytes) {
		seal(publish, candidate != NULL);
		return;
	}
	if (store_use_block(candidate, session->holder->tenant) != 0) {
		rpc->stats->quota_refusals++;
		fail_publish(publish, STATUS_OVER_QUOTA, "the tenant's limits leave no room");
		return;
	}
	publish->candidate = candidate;
	int r = mover_compare(rpc->mover, &publish->compare_job, chunk->device, chunk->fd,
	                      candidate->chunk.fd, chunk->bytes);
	if (r < 0) {
		fail_publish(publish, STATUS_MOVER_FAILED, "cannot ask glake-mover to compare");
	}
}

static void on_digest_failed(struct mover_job *job, enum status status, const char *error)
{
	fail_publish(container_of(job, struct publish, digest_job.job), status, error);
}

/* The session ends; its chunks are released behind us. */
static void cancel_publish(struct pending *pending)
{
	struct publish *publish = container_of(pending, struct publish, pending);
	struct rpc_context *rpc = rpc_of(pending->session);
	mover_forget(rpc->mover, &publish->digest_job.job);
	mover_forget(rpc->mover, &publish->compare_job.job);
	if (publish->candidate) {
		store_unuse_block(rpc->store, publish->candidate, 0);
	}
	free(publish);
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
	if (private->chunk.fd < 0) {
		return "has no fd: glaked's fd budget was spent when it was made";
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
		           "glaked has no host memory");
		return;
	}
	publish->digest_job = (struct digest_job){.job.on_failed = on_digest_failed,
	                                          .on_digested = on_digested};
	publish->compare_job = (struct compare_job){.job.on_failed = on_compare_failed,
	                                            .on_compared = on_compared};
	publish->private = private;
	publish->content_bytes = body->content_bytes;
	if (!session_begin(session, &publish->pending, request->id, cancel_publish)) {
		free(publish);
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	private->is_busy = true;
	int r = mover_digest(rpc_of(session)->mover, &publish->digest_job, private->chunk.device,
	                     private->chunk.fd, private->chunk.bytes, body->content_bytes);
	if (r < 0) {
		fail_publish(publish, STATUS_MOVER_FAILED, "cannot start glake-mover");
	}
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for blocks of programs: publish, look up, release. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

/*
 * A pending BlockPublish. After any failure the chunk is private as before. It belongs to the
 * holder: a lost connection loses only the answer, and the client repeats the request for it.
 * The block is in the books of the holder, and in the answer, as soon as it is parked.
 */
struct publish {
	struct pending pending; /* while is_awaited */
	bool is_awaited;
	bool is_admitted; /* worker and mover are done with it */
	bool confirms;    /* the client says when it has mapped a block that was known */
	bool is_alone;    /* nobody has asked its program to seal */
	struct admit admit;
	struct parking_wait parking; /* while the block is not parked */
	struct holder *holder;       /* owned reference */
	struct held *private;        /* borrowed; stays until the admission is over, or cancelled */
	uint64_t id;                 /* of the block, which was that chunk */
};

static void answer_block(struct session *session, uint64_t request, uint64_t id,
                         const struct block *block, bool was_known, bool is_kept)
{
	Glake__Wire__BlockAnswer body = GLAKE__WIRE__BLOCK_ANSWER__INIT;
	uint8_t digest[DIGEST_BYTES];
	body.block = id;
	digest_to_bytes(&block->key.digest, digest);
	body.digest.data = digest;
	body.digest.len = sizeof(digest);
	body.chunk_bytes = block->chunk.bytes;
	body.content_bytes = block->content_bytes;
	body.was_known = was_known;
	body.is_kept = is_kept;
	rpc_answer(session, request, ANSWER_OF(BLOCK, block, &body), &block->chunk.fd, 1);
}

static void answer_published(struct session *session, uint64_t request, const struct held *held)
{
	if (held->block->state == BLOCK_LOST) {
		rpc_refuse_unparked(session, request, "block", held->id);
		return;
	}
	answer_block(session, request, held->id, held->block, held->was_known, held->own != NULL);
}

static void take_back(struct publish *publish)
{
	publish->private->admit = NULL;
	chunk_move(&publish->private->chunk, &publish->admit.chunk);
	charge_refund(&publish->private->record);
}

/* Returns the session that waits for the answer, which is sent now; NULL: nobody waits. */
static struct session *stop_waiting(struct publish *publish)
{
	if (!publish->is_awaited) {
		return NULL;
	}
	publish->is_awaited = false;
	session_end(&publish->pending);
	return publish->pending.session;
}

static void free_if_over(struct publish *publish)
{
	if (publish->is_admitted && list_is_empty(&publish->parking.link)) {
		holder_unref(publish->holder);
		free(publish);
	}
}

/*
 * The chunk is a block, and that is on record. The holder may have gone, or the block released. Others may find the block only
 * when the record of its holder is there: else, after a restart between the two, the holder would have a chunk and write to it.
 */
static void finish(struct publish *publish)
{
	struct held *held = holder_find(publish->holder, HELD_BLOCK, publish->id);
	struct session *session = stop_waiting(publish);
	if (held) {
		holder_note(publish->holder, held);
		if (held->block->state == BLOCK_SHARED) {
			store_set_published(publish->holder->all->store, held->block, true);
		}
	}
	if (session && held) {
		answer_published(session, publish->pending.request, held);
	} else if (session) {
		rpc_refuse(session, publish->pending.request, STATUS_BAD_REQUEST,
		           "block %" PRIu64 " was released meanwhile", publish->id);
	}
}

static void on_parked(struct parking_wait *wait)
{
	struct publish *publish = container_of(wait, struct publish, parking);
	finish(publish);
	free_if_over(publish);
}

static void finish_when_parked(struct publish *publish, const struct block *block)
{
	uint64_t unparked = store_unparked_block(block);
	if (unparked) {
		parking_await(publish->holder->all->store->parking, &publish->parking, unparked,
		              on_parked);
	} else {
		finish(publish);
	}
}

static void on_admitted(struct admit *admit, const struct admit_result *result)
{
	struct publish *publish = container_of(admit, struct publish, admit);
	struct store *store = admit->context->store;
	struct block *block = result->block;
	if (!block) {
		struct session *session = stop_waiting(publish);
		if (admit->state == ADMIT_ENDED) {
			take_back(publish);
		}
		if (session) {
			rpc_refuse(session, publish->pending.request, result->status, "%s",
			           result->error);
		}
		return;
	}
	publish->id = publish->private->id;
	publish->private->was_alone = publish->is_alone;
	holder_turn_block(publish->holder, publish->private, block, result->was_known,
	                  result->was_known && publish->confirms ? &admit->chunk : NULL);
	store->stats->bytes_deduplicated += result->was_known ? block->chunk.bytes : 0;
	finish_when_parked(publish, block);
}

static void on_gone(struct admit *admit)
{
	struct publish *publish = container_of(admit, struct publish, admit);
	if (admit->chunk.at) {
		take_back(publish);
	}
	publish->is_admitted = true;
	free_if_over(publish);
}

static const struct admit_ops admit_ops = {.done = on_admitted, .gone = on_gone};

/* The session ends; the holder may stay. */
static void cancel_wait(struct pending *pending)
{
	container_of(pending, struct publish, pending)->is_awaited = false;
}

/* Returns false after a refusal. */
static bool wait_for(struct session *session, uint64_t request, struct publish *publish)
{
	publish->is_awaited = session_begin(session, &publish->pending, request, cancel_wait);
	if (!publish->is_awaited) {
		rpc_refuse(session, request, STATUS_BUSY, "too many requests under way");
	}
	return publish->is_awaited;
}

/* Begin a publication; NULL after a refusal. */
static struct publish *begin(struct session *session, uint64_t request)
{
	struct publish *publish = calloc(1, sizeof(*publish));
	if (!publish) {
		rpc_refuse(session, request, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return NULL;
	}
	if (!wait_for(session, request, publish)) {
		free(publish);
		return NULL;
	}
	list_init(&publish->parking.link);
	publish->holder = holder_ref(session->holder);
	return publish;
}

/*
 * If the answer to an earlier request was lost, give it now or wait for it. Returns whether that
 * was so.
 */
static bool repeat(struct session *session, const request_t *request)
{
	const Glake__Wire__BlockPublish *body = request->block_publish;
	const struct held *held = holder_find(session->holder, HELD_BLOCK, body->chunk);
	if (held && held->was_chunk && held->block->content_bytes == body->content_bytes) {
		struct publish *publish = begin(session, request->id);
		if (publish) {
			publish->is_admitted = true;
			publish->id = held->id;
			finish_when_parked(publish, held->block);
			free_if_over(publish);
		}
		return true;
	}
	held = holder_find(session->holder, HELD_CHUNK, body->chunk);
	if (!held || !held->admit || held->admit->state == ADMIT_LEAVING ||
	    held->admit->content_bytes != body->content_bytes) {
		return false;
	}
	struct publish *publish = container_of(held->admit, struct publish, admit);
	if (publish->is_awaited) {
		return false;
	}
	wait_for(session, request->id, publish);
	return true;
}

static const char *why_not(const struct held *private, uint64_t content_bytes)
{
	if (private->admit) {
		return "is being published already";
	}
	if (private->bed || private->slept) {
		return "is being put to sleep";
	}
	if (content_bytes == 0 || content_bytes > private->chunk.bytes) {
		return "does not have that many bytes";
	}
	if (private->chunk.bytes > GLAKE_MAX_BLOCK_BYTES) {
		return "is larger than a block can be";
	}
	if (private->chunk.is_unparked) {
		return "has no fd since glaked was restarted";
	}
	if (private->chunk.at->kind != LOCATION_GPU) {
		return "is in host memory";
	}
	if (private->readers) {
		return "is read by another session";
	}
	if (private->ticket != 0) {
		return "may be mapped by other sessions, which could write to it";
	}
	return NULL;
}

/* Whether a publication has failed, and its mover, which has died, cannot end and give the chunk back. */
static bool is_left(const struct held *private)
{
	return private->admit && private->admit->state == ADMIT_LEAVING;
}

void rpc_block_publish(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__BlockPublish *body = request->block_publish;
	struct held *private;
	if (repeat(session, request)) {
		return;
	}
	private = holder_find(session->holder, HELD_CHUNK, body->chunk);
	if (private && is_left(private)) {
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "chunk %" PRIu64
		           " is still with a glake-mover that has died and does not end",
		           body->chunk);
		return;
	}
	const char *reason = private ? why_not(private, body->content_bytes) : "is not there";
	if (reason) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "chunk %" PRIu64 " %s",
		           body->chunk, reason);
		return;
	}
	if (!holder_pay_record(session->holder, private)) {
		rpc_refuse_open(session, request->id);
		return;
	}
	struct publish *publish = begin(session, request->id);
	if (!publish) {
		return;
	}
	publish->private = private;
	publish->confirms = body->confirms;
	publish->is_alone = body->is_alone;
	private->admit = &publish->admit;
	admit_start(&publish->admit, rpc_of(session)->admit_context, session->holder->realm,
	            session->holder->user, &private->chunk, body->content_bytes, NULL, &admit_ops);
}

/* @error: TENANT_E_*. */
static void refuse_block(struct session *session, uint64_t id, const struct block *block, int error)
{
	struct refusal refusal = error == TENANT_E_FDS
	                                 ? refusal_of_tenant(BOUND_TENANT_FDS,
	                                                     session->holder->tenant,
	                                                     block->chunk.at, 1)
	                                 : refusal_of_tenant(BOUND_QUOTA, session->holder->tenant,
	                                                     block->chunk.at, block->chunk.bytes);
	char why[REFUSAL_TEXT_BYTES];
	refusal_count(&refusal, rpc_of(session)->stats);
	holder_note_refusal(session->holder, &refusal);
	refusal_text(&refusal, why);
	rpc_refuse(session, id, refusal_status(&refusal), "the block does not fit: %s", why);
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
	                                       &device->at, &digest);
	if (!block || store_unparked_block(block)) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "realm %s has no such block on device %u", session->holder->realm->name,
		           device->index);
		return;
	}
	int r = store_use_block(rpc_of(session)->store, block, session->holder->tenant);
	if (r != 0) {
		refuse_block(session, request->id, block, r);
		return;
	}
	uint64_t id = holder_add_block(session->holder, request->id, block);
	if (!id) {
		store_unuse_block(rpc_of(session)->store, block, session->holder->tenant->priority);
		rpc_refuse_open(session, request->id);
		return;
	}
	answer_block(session, request->id, id, block, true, false);
}

void rpc_block_release(struct session *session, const request_t *request, struct fdlist *fds)
{
	uint64_t id = request->block_release->block;
	struct held *held;
	held = holder_find(session->holder, HELD_BLOCK, id);
	held = held ? held : holder_find(session->holder, HELD_SLEPT, id);
	if (!held) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "there is no held block %" PRIu64, id);
		return;
	}
	holder_release(session->holder, held);
	rpc_answer_ok(session, request->id);
}

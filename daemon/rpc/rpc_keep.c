/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about private memory that is to outlive its process. */
#include <inttypes.h>

#include "daemon/holders/kept_step.h"
#include "daemon/rpc/rpc_handlers.h"

static bool is_key(const ProtobufCBinaryData *key)
{
	return key->len > 0 && key->len <= GLAKE_MAX_WILL_KEY_BYTES;
}

static bool is_chunk_count(size_t n)
{
	return n > 0 && n <= GLAKE_MAX_PACKET_FDS;
}

/* The chunks of @body, each once, all of one GPU and one size. False after a refusal. */
static bool find_chunks(struct session *session, uint64_t id, const Glake__Wire__ChunkKeep *body,
                        struct held **chunks_out)
{
	const char *why = NULL;
	for (size_t i = 0; i < body->n_ids; i++) {
		struct held *held = holder_find(session->holder, HELD_CHUNK, body->ids[i]);
		held = held ? held : holder_find(session->holder, HELD_SLEPT, body->ids[i]);
		if (!held) {
			rpc_refuse(session, id, STATUS_BAD_REQUEST, "there is no chunk %" PRIu64,
			           body->ids[i]);
			return false;
		}
		enum status status = will_check(held, &why);
		if (status != STATUS_OK) {
			rpc_refuse(session, id, status, "chunk %" PRIu64 " %s", body->ids[i], why);
			return false;
		}
		chunks_out[i] = held;
		for (size_t k = 0; k < i; k++) {
			if (chunks_out[k] == held) {
				rpc_refuse(session, id, STATUS_BAD_REQUEST,
				           "chunk %" PRIu64 " is named twice", body->ids[i]);
				return false;
			}
		}
		const struct chunk *chunk = &held->chunk;
		const struct chunk *first = &chunks_out[0]->chunk;
		if (chunk->at != first->at || chunk->bytes != first->bytes ||
		    chunk->at->kind != LOCATION_GPU) {
			rpc_refuse(session, id, STATUS_BAD_REQUEST,
			           "chunks that are kept together are of one GPU and one size");
			return false;
		}
	}
	return true;
}

void rpc_chunk_keep(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkKeep *body = request->chunk_keep;
	struct held *chunks[GLAKE_MAX_PACKET_FDS];
	const struct will_words words = {.key = body->key.data,
	                                 .n_key = body->key.len,
	                                 .record = body->record.data,
	                                 .n_record = body->record.len,
	                                 .may_be_read = body->may_be_read};
	if (!is_chunk_count(body->n_ids) || !is_key(&body->key) ||
	    body->record.len > GLAKE_MAX_RECORD_BYTES) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "impossible: %zu chunks, a key of %zu bytes, a record of %zu",
		           body->n_ids, body->key.len, body->record.len);
		return;
	}
	if (rpc_of(session)->config->kept_ms == 0) {
		rpc_refuse(session, request->id, STATUS_NO_PERMISSION,
		           "this glaked keeps nothing of processes that have ended: kept_ms is 0");
		return;
	}
	if (!find_chunks(session, request->id, body, chunks)) {
		return;
	}
	int r = will_set(session->holder, chunks, body->n_ids, &words);
	if (r == 0) {
		rpc_answer_ok(session, request->id);
	} else if (r < 0) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY,
		           "glaked is out of host memory");
	} else {
		rpc_refuse_open(session, request->id);
	}
}

void rpc_chunk_unkeep(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkUnkeep *body = request->chunk_unkeep;
	if (!is_chunk_count(body->n_ids)) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "%zu chunks in one request",
		           body->n_ids);
		return;
	}
	for (size_t i = 0; i < body->n_ids; i++) {
		const struct held *held = holder_find_any(session->holder, body->ids[i]);
		if (held && held->readers) {
			rpc_refuse(session, request->id, STATUS_BUSY,
			           "session %" PRIu64 " (pid %d) reads chunk %" PRIu64,
			           held->readers->owner->id, (int)held->readers->owner->peer.pid,
			           held->id);
			return;
		}
	}
	for (size_t i = 0; i < body->n_ids; i++) {
		const struct held *held = holder_find_any(session->holder, body->ids[i]);
		if (held) {
			will_void_of(held);
		}
	}
	rpc_answer_ok(session, request->id);
}

/* ---- heirs ------------------------------------------------------------------------------------- */

/* How many the heir could wait for. */
static uint32_t count_living(const struct session *session, const struct will_wanted *wanted)
{
	const struct holder *heir = session->holder;
	const struct holder *holder;
	const struct will *will;
	uint32_t n = 0;
	list_for_each (holder, &heir->all->list, link) {
		if (holder->user != heir->user || holder->realm != heir->realm) {
			continue;
		}
		list_for_each (will, &holder->wills, link) {
			n += will_is_for(will, wanted);
		}
	}
	return n;
}

static void answer_with(struct session *session, uint64_t id, Glake__Wire__ChunkAdoptAnswer *body,
                        bool is_read, const int *fds)
{
	rpc_answer(session, id,
	           is_read ? ANSWER_OF(CHUNK_READ, chunk_read, body)
	                   : ANSWER_OF(CHUNK_ADOPT, chunk_adopt, body),
	           fds, body->n_ids);
}

static void answer_none(struct session *session, uint64_t id, const struct will_wanted *wanted,
                        bool is_read)
{
	Glake__Wire__ChunkAdoptAnswer body = GLAKE__WIRE__CHUNK_ADOPT_ANSWER__INIT;
	body.n_living = is_read ? 0 : count_living(session, wanted);
	answer_with(session, id, &body, is_read, NULL);
}

/* Chunks of @will, under the ids of @chunks. */
static void answer_chunks(struct session *session, uint64_t id, const struct will *will,
                          struct held *const *chunks, bool is_read)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	int fds[GLAKE_MAX_PACKET_FDS];
	Glake__Wire__ChunkAdoptAnswer body = GLAKE__WIRE__CHUNK_ADOPT_ANSWER__INIT;
	for (size_t i = 0; i < will->n_chunks; i++) {
		ids[i] = chunks[i]->id;
		fds[i] = will->chunks[i]->chunk.fd;
	}
	body.ids = ids;
	body.n_ids = will->n_chunks;
	body.record.data = will->record;
	body.record.len = will->n_record;
	answer_with(session, id, &body, is_read, fds);
}

static void refuse_bound(struct session *session, uint64_t id, enum status status,
                         const struct refusal *refusal)
{
	char text[REFUSAL_TEXT_BYTES];
	refusal_count(refusal, session->holder->all->kept->stats);
	holder_note_refusal(session->holder, refusal);
	alloc_explain(status, refusal, text);
	rpc_refuse(session, id, status, "to have them: %s", text);
}

static void adopt(struct session *session, uint64_t id, const struct will_wanted *wanted,
                  bool is_read)
{
	struct kept_steps *kept = session->holder->all->kept;
	struct held *chunks[GLAKE_MAX_PACKET_FDS];
	struct refusal refusal;
	struct kept_step *step = kept_steps_find(kept, session->holder, wanted);
	if (!step) {
		answer_none(session, id, wanted, is_read);
		return;
	}
	enum status status = kept_step_adopt(kept, step, session->holder, id, chunks, &refusal);
	if (status == STATUS_OK) {
		answer_chunks(session, id, chunks[0]->will, chunks, is_read);
		return;
	}
	refuse_bound(session, id, status, &refusal);
}

/* False after a refusal. */
static bool may_get(struct session *session, uint64_t id, const struct will_wanted *wanted)
{
	const ProtobufCBinaryData key = {.len = wanted->n_key};
	if (!is_chunk_count(wanted->n_chunks) || !is_key(&key) ||
	    wanted->n_name > GLAKE_MAX_WILL_KEY_BYTES) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST,
		           "impossible: %zu chunks, a key of %zu bytes, a name of %zu",
		           wanted->n_chunks, wanted->n_key, wanted->n_name);
		return false;
	}
	if (session->holder->sleep.is_asleep) {
		rpc_refuse(session, id, STATUS_BUSY, "the session is asleep");
		return false;
	}
	return true;
}

void rpc_chunk_adopt(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkAdopt *body = request->chunk_adopt;
	struct location *at = rpc_location(session, request->id,
	                                   GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU, body->device);
	const struct will_wanted wanted = {.at = at,
	                                   .key = body->key.data,
	                                   .n_key = body->key.len,
	                                   .chunk_bytes = body->chunk_bytes,
	                                   .n_chunks = body->n_chunks};
	if (at && may_get(session, request->id, &wanted)) {
		adopt(session, request->id, &wanted, false);
	}
}

/* ---- readers ----------------------------------------------------------------------------------- */

/* The youngest of others that @reader does not read yet, and whose it is; NULL: there is none. */
static const struct will *find_living(struct holder *reader, const struct will_wanted *wanted,
                                      struct holder **owner_out)
{
	const struct will *found = NULL;
	struct holder *holder;
	const struct will *will;
	list_for_each (holder, &reader->all->list, link) {
		if (holder == reader || holder->user != reader->user ||
		    holder->realm != reader->realm) {
			continue;
		}
		list_for_each (will, &holder->wills, link) {
			if (will->may_be_read && (!found || will->number > found->number) &&
			    will_is_for(will, wanted) && will_stands(will) &&
			    !holder_reading_of(will->chunks[0], reader)) {
				found = will;
				*owner_out = holder;
			}
		}
	}
	return found;
}

/* Add readings of all chunks of @will, or of none. */
static bool add_readings(struct holder *reader, uint64_t request, struct holder *owner,
                         const struct will *will, struct held **chunks_out)
{
	for (size_t i = 0; i < will->n_chunks; i++) {
		chunks_out[i] = holder_add_reading(reader, request, owner, will->chunks[i]);
		if (!chunks_out[i]) {
			while (i-- > 0) {
				holder_release(reader, chunks_out[i]);
			}
			return false;
		}
	}
	return true;
}

/* Memory of the reader's process counts as if it were the reader's own: it may be so one day. */
static void read_living(struct session *session, uint64_t id, const struct will *will,
                        struct holder *owner)
{
	struct holder *reader = session->holder;
	const struct location *at = will->chunks[0]->chunk.at;
	const uint64_t bytes = will->chunks[0]->chunk.bytes * will->n_chunks;
	struct promise *promise = reader->at[at->slot].promise;
	struct held *chunks[GLAKE_MAX_PACKET_FDS];
	if (promise && !promise_draw(promise, bytes)) {
		const struct refusal refusal = refusal_of_promise(promise, reader->tenant, bytes);
		refuse_bound(session, id, refusal_status(&refusal), &refusal);
		return;
	}
	bool are_read = add_readings(reader, id, owner, will, chunks);
	if (promise) {
		promise_undraw(promise, bytes);
	}
	if (are_read) {
		answer_chunks(session, id, will, chunks, true);
	} else {
		rpc_refuse_open(session, id);
	}
}

void rpc_chunk_read(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkRead *body = request->chunk_read;
	struct holder *owner;
	struct location *at = rpc_location(session, request->id,
	                                   GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU, body->device);
	const struct will_wanted wanted = {.at = at,
	                                   .key = body->key.data,
	                                   .n_key = body->key.len,
	                                   .chunk_bytes = body->chunk_bytes,
	                                   .n_chunks = body->n_chunks,
	                                   .name = body->name.data,
	                                   .n_name = body->name.len};
	if (!at || !may_get(session, request->id, &wanted)) {
		return;
	}
	const struct will *will = find_living(session->holder, &wanted, &owner);
	if (will) {
		read_living(session, request->id, will, owner);
	} else {
		adopt(session, request->id, &wanted, true);
	}
}

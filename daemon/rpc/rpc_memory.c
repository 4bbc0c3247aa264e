/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for private memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/memory/alloc_several.h"
#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

/* A pending ChunkAlloc. */
struct chunk_request {
	struct pending pending;
	struct alloc_several several;
	uint64_t waited_ms;
	uint64_t began_ns;
	bool is_again; /* the program was refused the same memory before */
	uint64_t
		unseals; /* the block that it is to replace, and may have the reserve for; 0: none */
};

static void cancel_chunk_request(struct pending *pending)
{
	struct chunk_request *operation = container_of(pending, struct chunk_request, pending);
	alloc_several_cancel(&operation->several);
	free(operation);
}

uint64_t rpc_waits_for_room(const struct pending *pending)
{
	const struct chunk_request *operation = container_of(pending, const struct chunk_request,
	                                                     pending);
	return pending->cancel == cancel_chunk_request
	               ? alloc_waiting_number(operation->several.alloc)
	               : 0;
}

struct pressure_wait rpc_chunk_wait(const struct pending *pending)
{
	const struct chunk_request *operation = container_of(pending, const struct chunk_request,
	                                                     pending);
	return alloc_wait_of(pending->cancel == cancel_chunk_request ? operation->several.alloc
	                                                             : NULL);
}

/* The bytes that the request wants at @at. */
static uint64_t wanted_bytes(const struct alloc_several *several, const struct location *at)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < several->n_parts; i++) {
		bytes += several->parts[i].at == at ? alloc_part_bytes(&several->parts[i]) : 0;
	}
	return bytes;
}

static Glake__Wire__LocationKind kind_of(const struct location *at)
{
	return at->kind == LOCATION_HOST ? GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST
	                                 : GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
}

static void answer_chunks(struct session *session, uint64_t id, struct held *const *privates,
                          size_t n_chunks)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_chunks; i++) {
		ids[i] = privates[i]->id;
		fds[i] = privates[i]->chunk.fd;
	}
	Glake__Wire__ChunkAllocAnswer body = GLAKE__WIRE__CHUNK_ALLOC_ANSWER__INIT;
	body.ids = ids;
	body.n_ids = n_chunks;
	body.at = kind_of(privates[0]->chunk.at);
	rpc_answer(session, id, ANSWER_OF(CHUNK_ALLOC, chunk_alloc, &body), fds, n_chunks);
	if (session->state == SESSION_CLOSING) {
		return;
	}
	for (size_t i = 0; i < n_chunks; i++) {
		if (privates[i]->chunk.handle) {
			chunk_drop_fd(&privates[i]->chunk);
		}
	}
}

/* Pressure does not tell kinds of locations apart. */
static enum status status_at(enum status status, const struct location *at)
{
	bool is_host = status == STATUS_NO_DEVICE_MEMORY && at->kind == LOCATION_HOST;
	return is_host ? STATUS_NO_HOST_MEMORY : status;
}

static struct promise *promise_at(void *user, const struct location *at)
{
	const struct chunk_request *operation = user;
	struct promise *promise = operation->pending.session->holder->at[at->slot].promise;
	/* Then block and copy are both the process's for a moment, which its promise does not have to bear. */
	bool is_beside = promise && operation->unseals &&
	                 wanted_bytes(&operation->several, at) > promise_left_bytes(promise);
	return is_beside ? NULL : promise;
}

static void on_chunks(void *user, enum status status, const struct location *at,
                      struct chunk *chunks, size_t n_chunks)
{
	struct chunk_request *operation = user;
	struct session *session = operation->pending.session;
	uint64_t id = operation->pending.request;
	struct held *privates[GLAKE_MAX_PACKET_FDS];
	const struct refusal refusal = operation->several.refusal;
	bool is_told = !operation->several.is_spare && !operation->is_again;
	char text[REFUSAL_TEXT_BYTES];

	if (status == STATUS_OK &&
	    holder_add_chunks(session->holder, id, chunks, n_chunks, privates) < 0) {
		status = STATUS_NO_HOST_MEMORY;
		at = operation->several.parts[0].at;
	}
	if (status != STATUS_OK) {
		alloc_explain(status, &refusal, text);
		status = status_at(status, at);
	} else if (operation->unseals) {
		holder_note_copy(session->holder, operation->unseals, privates[0]);
	}
	histogram_add(&rpc_of(session)->stats->alloc_time, uv_hrtime() - operation->began_ns);
	session_end(&operation->pending);
	free(operation);
	if (status == STATUS_OK) {
		answer_chunks(session, id, privates, n_chunks);
	} else {
		if (is_told) {
			holder_note_refusal(session->holder, &refusal);
		}
		rpc_refuse(session, id, status, "%s", text);
	}
}

static bool is_chunk_size(const struct location *at, uint64_t bytes)
{
	return bytes > 0 && bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       bytes <= (at->kind == LOCATION_HOST ? GLAKE_MAX_HOST_CHUNK_BYTES
	                                           : GLAKE_MAX_CHUNK_BYTES);
}

/* Add what the message asks for at one location. False after a refusal. */
static bool add_part(struct session *session, uint64_t id, const Glake__Wire__ChunkPart *from,
                     struct alloc_several *several)
{
	struct location *at = rpc_location(session, id, (int)from->at, from->number);
	uint64_t last_bytes = from->last_bytes ? from->last_bytes : from->chunk_bytes;
	uint64_t n_chunks = from->n_chunks;
	if (!at) {
		return false;
	}
	bool is_twice = wanted_bytes(several, at) > 0;
	for (size_t i = 0; i < several->n_parts; i++) {
		n_chunks += several->parts[i].n_chunks;
	}
	if (from->n_chunks == 0 || n_chunks > GLAKE_MAX_PACKET_FDS || is_twice ||
	    !is_chunk_size(at, from->chunk_bytes) || !is_chunk_size(at, last_bytes)) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST,
		           "impossible: %u chunks of %" PRIu64 " bytes, the last of %" PRIu64 "%s",
		           from->n_chunks, from->chunk_bytes, last_bytes,
		           is_twice ? ", at a location that was named before" : "");
		return false;
	}
	several->parts[several->n_parts++] = (struct alloc_part){.at = at,
	                                                         .chunk_bytes = from->chunk_bytes,
	                                                         .last_bytes = last_bytes,
	                                                         .n_chunks = from->n_chunks};
	return true;
}

/* Add the parts of the request. False after a refusal. */
static bool add_parts(struct session *session, const request_t *request,
                      struct alloc_several *several)
{
	const Glake__Wire__ChunkAlloc *body = request->chunk_alloc;
	Glake__Wire__ChunkPart first = GLAKE__WIRE__CHUNK_PART__INIT;
	first.at = body->at;
	first.number = body->device;
	first.chunk_bytes = body->chunk_bytes;
	first.n_chunks = body->n_chunks;
	first.last_bytes = body->last_bytes;
	if (body->n_also > GLAKE_MAX_ALSO) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "more than %u locations",
		           GLAKE_MAX_ALSO + 1);
		return false;
	}
	bool is_good = add_part(session, request->id, &first, several);
	for (size_t i = 0; is_good && i < body->n_also; i++) {
		is_good = add_part(session, request->id, body->also[i], several);
	}
	return is_good;
}

/* The block that the one chunk may be the copy of; 0: it is a chunk as any other. */
static uint64_t unsealed_block(const struct session *session, const Glake__Wire__ChunkAlloc *body,
                               const struct alloc_several *several)
{
	const struct alloc_part *part = &several->parts[0];
	bool may = body->unseals && several->n_parts == 1 && part->n_chunks == 1 &&
	           holder_may_unseal(session->holder, body->unseals, part->at,
	                             alloc_part_bytes(part));
	return may ? body->unseals : 0;
}

void rpc_chunk_alloc(struct session *session, const request_t *request, struct fdlist *fds)
{
	_Static_assert(ALLOC_MAX_PARTS == GLAKE_MAX_ALSO + 1 &&
	                       ALLOC_MAX_CHUNKS == GLAKE_MAX_PACKET_FDS,
	               "what a request may ask for");
	struct alloc_several several = {.allocator = rpc_of(session)->allocator,
	                                .tenant = session->holder->tenant,
	                                .uid = session->holder->peer.owner,
	                                .use = CHUNK_PRIVATE,
	                                .is_held_back = &session->holder->sleep.is_asleep,
	                                .is_spare = request->chunk_alloc->is_spare,
	                                .no_wait = request->chunk_alloc->no_wait,
	                                .promise_at = promise_at,
	                                .done = on_chunks};
	if (!add_parts(session, request, &several)) {
		return;
	}
	struct chunk_request *operation = calloc(1, sizeof(*operation));
	if (!operation) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY,
		           "glaked is out of host memory");
		return;
	}
	if (!session_begin(session, &operation->pending, request->id, cancel_chunk_request)) {
		free(operation);
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	operation->began_ns = uv_hrtime();
	operation->waited_ms = request->chunk_alloc->waited_ms;
	operation->is_again = request->chunk_alloc->is_again;
	operation->several = several;
	operation->unseals = unsealed_block(session, request->chunk_alloc, &several);
	operation->several.may_unseal = operation->unseals != 0;
	operation->several.waited_ms = &operation->waited_ms;
	operation->several.user = operation;
	alloc_several_start(&operation->several);
}

/* Whether the chunk is being published. False if that has failed, and only a mover that cannot end still has it. */
static bool is_being_published(const struct held *private)
{
	return private->admit && private->admit->state != ADMIT_LEAVING;
}

/* A pending ChunkFree. */
struct free_request {
	struct pending pending;
	struct work work;
	bool is_cancelled;
};

static void cancel_free_request(struct pending *pending)
{
	container_of(pending, struct free_request, pending)->is_cancelled = true;
}

static void answer_free(struct work *work)
{
	struct free_request *operation = container_of(work, struct free_request, work);
	if (!operation->is_cancelled) {
		struct session *session = operation->pending.session;
		uint64_t id = operation->pending.request;
		session_end(&operation->pending);
		rpc_answer_ok(session, id);
	}
	free(operation);
}

/*
 * Much waits to be closed: the answer waits too, as a free of the driver does. Else programs that free would go on to
 * allocate sooner than glaked gives back, and all would wait for that when they allocate. Many chunks at once are mostly
 * what glaked has asked for, and somebody waits for the answer.
 */
static bool answer_later(struct session *session, uint64_t id, struct location *at)
{
	struct free_request *operation = calloc(1, sizeof(*operation));
	if (!operation || !session_begin(session, &operation->pending, id, cancel_free_request)) {
		free(operation);
		return false;
	}
	if (!worker_await_lazy(&at->worker, &operation->work, answer_free)) {
		session_end(&operation->pending);
		free(operation);
		return false;
	}
	return true;
}

/* A private chunk, or one of another session that it reads, or one that a block has replaced, or one that is asleep. */
static struct held *find_chunk(const struct session *session, uint64_t id)
{
	struct held *block = holder_find(session->holder, HELD_BLOCK, id);
	struct held *chunk = holder_find(session->holder, HELD_CHUNK, id);
	struct held *read = holder_find(session->holder, HELD_READ, id);
	return block && block->own ? block
	       : chunk             ? chunk
	       : read              ? read
	                           : holder_find(session->holder, HELD_SLEPT, id);
}

/* Returns where it was. */
static struct location *free_chunk(struct session *session, struct held *held)
{
	struct location *at = held->own ? held->own->at : held->chunk.at;
	if (held->own) {
		holder_drop_own(session->holder, held);
	} else {
		holder_release(session->holder, held);
	}
	return at;
}

void rpc_chunk_free(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkFree *body = request->chunk_free;
	struct location *at = NULL;
	struct held *private;
	/* All or none, so check first. The second loop finds an id that is there twice. */
	for (size_t i = 0; i < body->n_ids; i++) {
		private = find_chunk(session, body->ids[i]);
		if (!private || is_being_published(private)) {
			rpc_refuse(session, request->id, private ? STATUS_BUSY : STATUS_BAD_REQUEST,
			           private ? "chunk %" PRIu64 " is being published"
			                   : "there is no chunk %" PRIu64,
			           body->ids[i]);
			return;
		}
	}
	for (size_t i = 0; i < body->n_ids; i++) {
		private = find_chunk(session, body->ids[i]);
		if (private) {
			at = free_chunk(session, private);
		}
	}
	if (body->n_ids != 1 || !at || !answer_later(session, request->id, at)) {
		rpc_answer_ok(session, request->id);
	}
}

/* ---- for others ------------------------------------------------------------------------------- */

/* A random number, not 0. Returns 0 if the kernel has none. */
static uint64_t new_ticket(void)
{
	uint64_t ticket = 0;
	ssize_t n_bytes;
	do {
		n_bytes = getrandom(&ticket, sizeof(ticket), GRND_NONBLOCK);
	} while (n_bytes == (ssize_t)sizeof(ticket) && ticket == 0);
	return n_bytes == (ssize_t)sizeof(ticket) ? ticket : 0;
}

static bool is_chunk_count(struct session *session, uint64_t request, size_t n_ids)
{
	bool is_good = n_ids > 0 && n_ids <= GLAKE_MAX_PACKET_FDS;
	if (!is_good) {
		rpc_refuse(session, request, STATUS_BAD_REQUEST, "%zu chunks in one request",
		           n_ids);
	}
	return is_good;
}

/* A pending ChunkShare that is done, when the service manager has the fds. */
struct share_request {
	struct pending pending;
	struct parking_wait parking;
	uint64_t ticket;
	bool is_kept;
};

static void answer_ticket(struct session *session, uint64_t id, uint64_t ticket, bool is_kept)
{
	Glake__Wire__ChunkShareAnswer share = GLAKE__WIRE__CHUNK_SHARE_ANSWER__INIT;
	share.ticket = ticket;
	share.is_unkept = !is_kept;
	rpc_answer(session, id, ANSWER_OF(CHUNK_SHARE, chunk_share, &share), NULL, 0);
}

static void cancel_share_request(struct pending *pending)
{
	struct share_request *operation = container_of(pending, struct share_request, pending);
	list_remove(&operation->parking.link);
	free(operation);
}

static void on_parked(struct parking_wait *wait)
{
	struct share_request *operation = container_of(wait, struct share_request, parking);
	struct session *session = operation->pending.session;
	const struct parking *parking = rpc_of(session)->store->parking;
	uint64_t id = operation->pending.request;
	uint64_t ticket = operation->ticket;
	bool is_kept = operation->is_kept && parking && !parking_is_lost(parking);
	session_end(&operation->pending);
	free(operation);
	answer_ticket(session, id, ticket, is_kept);
}

/* Answer when the chunk that the ticket opens is parked. If it @is_kept, it is there after a restart, too. */
static void answer_when_parked(struct session *session, uint64_t id, uint64_t ticket, bool is_kept)
{
	struct parking *parking = rpc_of(session)->store->parking;
	uint64_t number = parking ? parking_pending(parking) : 0;
	if (!number) {
		answer_ticket(session, id, ticket, is_kept);
		return;
	}
	struct share_request *operation = calloc(1, sizeof(*operation));
	if (!operation || !session_begin(session, &operation->pending, id, cancel_share_request)) {
		free(operation);
		rpc_refuse(session, id, STATUS_BUSY, "too many requests under way");
		return;
	}
	operation->ticket = ticket;
	operation->is_kept = is_kept;
	list_init(&operation->parking.link);
	parking_await(parking, &operation->parking, number, on_parked);
}

/* Find the chunks to be shared. False after a refusal. */
static bool find_shared(struct session *session, uint64_t id, const uint64_t *ids, size_t n_ids,
                        struct held **privates_out)
{
	for (size_t i = 0; i < n_ids; i++) {
		struct held *private = holder_find(session->holder, HELD_CHUNK, ids[i]);
		privates_out[i] = private;
		if (!private || private->ticket != privates_out[0]->ticket) {
			rpc_refuse(session, id, STATUS_BAD_REQUEST,
			           private ? "chunk %" PRIu64 " has another ticket"
			                   : "there is no chunk %" PRIu64,
			           ids[i]);
			return false;
		}
		if (private->admit || private->bed || private->slept) {
			rpc_refuse(session, id, STATUS_BUSY, "chunk %" PRIu64 " is being %s",
			           ids[i], private->admit ? "published" : "put to sleep");
			return false;
		}
		if (private->readers) {
			rpc_refuse(session, id, STATUS_BUSY, "another session reads chunk %" PRIu64,
			           ids[i]);
			return false;
		}
		if (private->chunk.is_unparked) {
			rpc_refuse_unparked(session, id, "chunk", ids[i]);
			return false;
		}
	}
	return true;
}

/* A pending ChunkShare whose user has its share of orders (orders.h): nothing is done yet. */
struct share_wait {
	struct pending pending;
	struct orders_wait orders;
	size_t n_ids;
	uint64_t ids[];
};

static void cancel_share_wait(struct pending *pending)
{
	struct share_wait *wait = container_of(pending, struct share_wait, pending);
	list_remove(&wait->orders.link);
	free(wait);
}

static void share(struct session *session, uint64_t id, const uint64_t *ids, size_t n_ids);

static void on_orders_tick(struct orders_wait *orders)
{
	struct share_wait *wait = container_of(orders, struct share_wait, orders);
	session_end(&wait->pending);
	share(wait->pending.session, wait->pending.request, wait->ids, wait->n_ids);
	free(wait);
}

static void share_later(struct session *session, uint64_t id, const uint64_t *ids, size_t n_ids)
{
	struct share_wait *wait = calloc(1, sizeof(*wait) + n_ids * sizeof(ids[0]));
	if (!wait || !session_begin(session, &wait->pending, id, cancel_share_wait)) {
		free(wait);
		rpc_refuse(session, id, STATUS_BUSY, "too many requests under way");
		return;
	}
	wait->n_ids = n_ids;
	memcpy(wait->ids, ids, n_ids * sizeof(ids[0]));
	list_init(&wait->orders.link);
	orders_await(&session->holder->all->orders, &wait->orders, on_orders_tick);
}

static void share(struct session *session, uint64_t id, const uint64_t *ids, size_t n_ids)
{
	struct held *privates[GLAKE_MAX_PACKET_FDS];
	if (!find_shared(session, id, ids, n_ids, privates)) {
		return;
	}
	if (!holder_may_share(session->holder, privates, n_ids)) {
		share_later(session, id, ids, n_ids);
		return;
	}
	uint64_t ticket = privates[0]->ticket ? privates[0]->ticket : new_ticket();
	if (ticket == 0) {
		rpc_refuse(session, id, STATUS_INTERNAL, "the kernel has no random numbers");
		return;
	}
	bool is_kept = holder_share_chunks(session->holder, privates, n_ids, ticket);
	answer_when_parked(session, id, ticket, is_kept);
}

void rpc_chunk_share(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkShare *body = request->chunk_share;
	if (is_chunk_count(session, request->id, body->n_ids)) {
		share(session, request->id, body->ids, body->n_ids);
	}
}

/* The holder with that id, if it is in the session's realm. */
static struct holder *find_owner(struct session *session, uint64_t id)
{
	struct holder *owner = id ? holder_by_id(session->holder->all, id) : session->holder;
	return owner && owner->realm == session->holder->realm ? owner : NULL;
}

/* Find a thing that the session itself has, or a chunk that the ticket permits. */
static struct held *find_opened(struct session *session, struct holder *owner, uint64_t id,
                                uint64_t ticket)
{
	struct held *private = owner ? holder_find(owner, HELD_CHUNK, id) : NULL;
	if (owner != session->holder) {
		return private && ticket != 0 && private->ticket == ticket ? private : NULL;
	}
	private = private ? private : holder_find(owner, HELD_BLOCK, id);
	return private ? private : holder_find(owner, HELD_SLEPT, id);
}

/* Returns the chunk, or NULL after a refusal. */
static const struct chunk *find_open_chunk(struct session *session, const request_t *request,
                                           struct holder *owner, uint64_t id)
{
	const struct held *private = find_opened(session, owner, id, request->chunk_open->ticket);
	if (!private) {
		/* One answer for all cases: it does not help to guess. */
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "there is no such chunk %" PRIu64 " in this realm", id);
		return NULL;
	}
	if (private->admit) {
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "chunk %" PRIu64 " is being published", id);
		return NULL;
	}
	if (private->kind == HELD_SLEPT) {
		rpc_refuse(session, request->id, STATUS_BUSY, "chunk %" PRIu64 " is asleep", id);
		return NULL;
	}
	const struct chunk *chunk = private->kind == HELD_BLOCK ? &private->block->chunk
	                                                        : &private->chunk;
	if (chunk->is_unparked) {
		rpc_refuse_unparked(session, request->id, "chunk", id);
		return NULL;
	}
	if (chunk->fd < 0) {
		rpc_refuse(session, request->id, STATUS_NO_FDS,
		           "chunk %" PRIu64 " has no fd: the fd budget was spent", id);
		return NULL;
	}
	return chunk;
}

void rpc_chunk_open(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__ChunkOpen *body = request->chunk_open;
	uint64_t sizes[GLAKE_MAX_PACKET_FDS];
	int opened[GLAKE_MAX_PACKET_FDS];
	const struct location *at = NULL;
	if (!is_chunk_count(session, request->id, body->n_ids)) {
		return;
	}
	struct holder *owner = find_owner(session, body->session);
	for (size_t i = 0; i < body->n_ids; i++) {
		const struct chunk *chunk = find_open_chunk(session, request, owner, body->ids[i]);
		if (!chunk) {
			return;
		}
		if (at && chunk->at != at) {
			rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
			           "the chunks are at several locations");
			return;
		}
		at = chunk->at;
		sizes[i] = chunk->bytes;
		opened[i] = chunk->fd;
	}
	Glake__Wire__ChunkOpenAnswer opens = GLAKE__WIRE__CHUNK_OPEN_ANSWER__INIT;
	opens.chunk_bytes = sizes;
	opens.n_chunk_bytes = body->n_ids;
	opens.device = at->number;
	opens.at = kind_of(at);
	rpc_answer(session, request->id, ANSWER_OF(CHUNK_OPEN, chunk_open, &opens), opened,
	           body->n_ids);
}

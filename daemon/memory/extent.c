/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/extent.h"

/* Bytes that are read too early are another realm's. So the asserts stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"

struct extent_chunk {
	struct list link;  /* link: extents.chunks */
	struct list spans; /* of extent.place: all of the chunk, by offset */
	struct chunk chunk;
	uint64_t number;
	bool is_told; /* on_empty was called, and extents_forgotten() comes */
	struct extent_parking parking;
};

struct extents_request {
	struct extents *extents;
	struct tenant *tenant;
	extents_done_fn done;
	void *user;
	struct extents_request **self; /* the caller's; cleared before done */
	struct alloc *alloc;
	uint64_t waited_ms;
	uint64_t bytes;
	struct charge charge; /* of those */
};

static void extent_set_state(struct extent *extent, enum extent_state state)
{
	static const unsigned moves[N_EXTENT_STATES] = {
		[EXTENT_FREE] = 1u << EXTENT_FRESH,
		[EXTENT_FRESH] = 1u << EXTENT_WRITTEN | 1u << EXTENT_FREE,
		[EXTENT_WRITTEN] = 1u << EXTENT_FREE,
	};
	assert(moves[extent->state] & 1u << state);
	extent->state = state;
}

/* ---- spans ------------------------------------------------------------------------------------ */

static struct extent *span_new(struct extent_chunk *in, uint64_t offset, uint64_t bytes)
{
	struct extent *span = calloc(1, sizeof(*span));
	if (span) {
		list_init(&span->place);
		span->in = in;
		span->offset = offset;
		span->bytes = bytes;
	}
	return span;
}

/* The chunk was made for one extent, and is never cut. */
static bool is_whole(const struct extents *extents, const struct extent_chunk *in)
{
	return in->chunk.bytes > extents->large_bytes;
}

static struct extent *find_free(const struct extents *extents, uint64_t bytes)
{
	struct extent_chunk *in;
	struct extent *span;
	list_for_each (in, &extents->chunks, link) {
		bool is_cut = !is_whole(extents, in);
		list_for_each (span, &in->spans, place) {
			if (span->state == EXTENT_FREE &&
			    (is_cut ? span->bytes >= bytes : span->bytes == bytes)) {
				return span;
			}
		}
	}
	return NULL;
}

static bool is_empty(const struct extent_chunk *in)
{
	const struct extent *only = list_first(&in->spans, struct extent, place);
	return only->state == EXTENT_FREE && only->bytes == in->chunk.bytes;
}

/* Make the first @bytes of a free span an extent with @charge. Returns false: no memory. */
static bool use_span(struct extents *extents, struct extent *span, uint64_t bytes,
                     struct charge *charge)
{
	bool was_going = span->in->is_told && is_empty(span->in);
	if (span->bytes > bytes) {
		struct extent *rest = span_new(span->in, span->offset + bytes, span->bytes - bytes);
		if (!rest) {
			return false;
		}
		list_insert(span->place.next, &rest->place);
		span->bytes = bytes;
	}
	extent_set_state(span, EXTENT_FRESH);
	span->charge = *charge;
	*charge = (struct charge){0};
	charge_shrink(&span->in->chunk.charge, bytes);
	extents->used_bytes += bytes;
	extents->at->forgetting_bytes -= was_going ? span->in->chunk.bytes : 0;
	return true;
}

bool extents_have(const struct extents *extents, uint64_t bytes)
{
	return find_free(extents, bytes) != NULL;
}

static void free_chunk(struct extent_chunk *in)
{
	free(list_first(&in->spans, struct extent, place));
	list_remove(&in->link);
	chunk_release(&in->chunk);
	free(in);
}

/* The bytes of chunks that stay. */
static uint64_t kept_bytes(const struct extents *extents)
{
	return extents->at->use_bytes[CHUNK_COPIES] - extents->at->forgetting_bytes;
}

/* The chunk is empty, and may be gone afterwards. */
static void let_go(struct extents *extents, struct extent_chunk *in)
{
	if (!extents->on_empty) {
		free_chunk(in);
		return;
	}
	extents->at->forgetting_bytes += in->chunk.bytes;
	if (!in->is_told) {
		in->is_told = true;
		extents->on_empty(extents->user, extents, in->number);
	}
}

/* The chunk may be gone afterwards. If the mover is to forget it, that stands, and it goes. */
static void free_chunk_if_empty(struct extents *extents, struct extent_chunk *in)
{
	if (is_empty(in) && (in->is_told || is_whole(extents, in) ||
	                     kept_bytes(extents) >= extents->ready_bytes + in->chunk.bytes)) {
		let_go(extents, in);
	}
}

void extents_forgotten(struct extents *extents, uint64_t number)
{
	struct extent_chunk *in;
	list_for_each (in, &extents->chunks, link) {
		if (in->number != number) {
			continue;
		}
		in->is_told = false;
		if (is_empty(in)) {
			extents->at->forgetting_bytes -= in->chunk.bytes;
			free_chunk(in);
		}
		return;
	}
}

/* @right, which is free, becomes a part of @left, if that is free, too. */
static void merge(struct list *spans, struct list *left, struct list *right)
{
	if (left == spans || right == spans) {
		return;
	}
	struct extent *to = container_of(left, struct extent, place);
	struct extent *from = container_of(right, struct extent, place);
	if (to->state == EXTENT_FREE && from->state == EXTENT_FREE) {
		to->bytes += from->bytes;
		list_remove(&from->place);
		free(from);
	}
}

void extent_release(struct extents *extents, struct extent *extent)
{
	struct extent_chunk *in = extent->in;
	struct list *before = extent->place.prev;
	extent_set_state(extent, EXTENT_FREE);
	charge_refund(&extent->charge);
	charge_grow(&in->chunk.charge, extent->bytes);
	extents->used_bytes -= extent->bytes;
	merge(&in->spans, &extent->place, extent->place.next);
	merge(&in->spans, before, &extent->place);
	free_chunk_if_empty(extents, in);
}

/* ---- requests --------------------------------------------------------------------------------- */

static void finish(struct extents_request *request, enum status status, struct extent *extent)
{
	charge_refund(&request->charge);
	if (request->self) {
		*request->self = NULL;
	}
	request->done(request->user, status, extent);
	free(request);
}

static enum status use_free(struct extents_request *request, struct extent *span)
{
	struct extents *extents = request->extents;
	struct charge charge;
	if (tenant_charge(request->tenant, extents->at->slot, request->bytes, 0, &charge) != 0) {
		return STATUS_OVER_QUOTA;
	}
	if (!use_span(extents, span, request->bytes, &charge)) {
		charge_refund(&charge);
		return STATUS_NO_HOST_MEMORY;
	}
	return STATUS_OK;
}

/* The chunk is one free span. NULL: no memory. */
static struct extent *enter_chunk(struct extents *extents, struct chunk *chunk)
{
	struct extent_chunk *in = calloc(1, sizeof(*in));
	struct extent *span = in ? span_new(in, 0, chunk->bytes) : NULL;
	if (!span) {
		free(in);
		return NULL;
	}
	list_init(&in->spans);
	in->number = (uint64_t)extents->at->slot << 48 | ++extents->last_number;
	list_insert(&in->spans, &span->place);
	chunk_move(&in->chunk, chunk);
	list_insert(&extents->chunks, &in->link);
	return span;
}

/* Put the request's extent at the beginning of @chunk. NULL: no memory. */
static struct extent *use_chunk(struct extents_request *request, struct chunk *chunk)
{
	struct extents *extents = request->extents;
	struct extent *span = enter_chunk(extents, chunk);
	if (span && !use_span(extents, span, request->bytes, &request->charge)) {
		free_chunk_if_empty(extents, span->in);
		span = NULL;
	}
	return span;
}

static void on_chunk(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct extents_request *request = user;
	struct extent *extent = status == STATUS_OK ? use_chunk(request, &chunks[0]) : NULL;
	finish(request, status == STATUS_OK && !extent ? STATUS_NO_HOST_MEMORY : status, extent);
}

/* A large one if there is room for such, or what is wanted. */
static enum status make_chunk(struct extents_request *request)
{
	struct extents *extents = request->extents;
	uint64_t bytes = request->bytes;
	if (bytes < extents->large_bytes &&
	    location_room_bytes(extents->at) >= extents->large_bytes) {
		bytes = extents->large_bytes;
	}
	const struct alloc_wanted wanted = {.at = extents->at,
	                                    .tenant = extents->cache,
	                                    .use = CHUNK_COPIES,
	                                    .sizes = &bytes,
	                                    .n_chunks = 1,
	                                    .waited_ms = &request->waited_ms};
	return alloc_start(extents->allocator, &wanted, on_chunk, request, &request->alloc);
}

void extents_take(struct extents *extents, struct tenant *tenant, uint64_t bytes,
                  extents_done_fn done, void *user, struct extents_request **request_out)
{
	struct extents_request *request = calloc(1, sizeof(*request));
	assert(bytes > 0 && bytes % GLAKE_CHUNK_GRANULARITY == 0);
	*request_out = request;
	if (!request) {
		done(user, STATUS_NO_HOST_MEMORY, NULL);
		return;
	}
	request->extents = extents;
	request->tenant = tenant;
	request->bytes = bytes;
	request->done = done;
	request->user = user;
	request->self = request_out;
	struct extent *span = find_free(extents, bytes);
	if (span) {
		enum status status = use_free(request, span);
		finish(request, status, status == STATUS_OK ? span : NULL);
		return;
	}
	enum status status = STATUS_OVER_QUOTA;
	if (tenant_charge(tenant, extents->at->slot, bytes, 0, &request->charge) == 0) {
		status = make_chunk(request);
	}
	if (status != STATUS_OK) {
		finish(request, status, NULL);
	}
}

void extents_cancel(struct extents_request *request)
{
	if (request->alloc) {
		alloc_cancel(request->alloc);
	}
	charge_refund(&request->charge);
	*request->self = NULL;
	free(request);
}

/* ---- made ahead ------------------------------------------------------------------------------- */

static bool is_ready(const struct extent_chunk *in)
{
	return is_empty(in) && !in->is_told;
}

bool extents_give_ready(struct extents *extents)
{
	struct extent_chunk *in;
	extents->is_paused = true;
	list_for_each (in, &extents->chunks, link) {
		if (is_ready(in)) {
			let_go(extents, in);
			return true;
		}
	}
	return false;
}

void extents_want_ready(struct extents *extents, uint64_t bytes)
{
	struct extent_chunk *in;
	struct extent_chunk *next;
	extents->ready_bytes = bytes;
	if (bytes == 0 && extents->making) {
		alloc_cancel(ptr_steal(extents->making));
	}
	list_for_each_safe (in, next, &extents->chunks, link) {
		if (is_ready(in)) {
			free_chunk_if_empty(extents, in);
		}
	}
}

static void make_ready(struct extents *extents);

static void on_ready(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct extents *extents = user;
	struct extent *span = status == STATUS_OK ? enter_chunk(extents, &chunks[0]) : NULL;
	bool was_for_more = extents->wants_more;
	extents->wants_more = false;
	if (span) {
		/* A chunk that was made for extents_want_more() stays until it has been used. */
		if (!was_for_more) {
			free_chunk_if_empty(extents, span->in);
		}
		make_ready(extents);
	}
}

/* Chunks with fds are not to be what keeps programs from theirs. */
static bool has_means(const struct extents *extents, uint64_t bytes)
{
	const struct chunk_books *books = &extents->allocator->books;
	return location_has_room(extents->at, bytes) && books->n_fds < books->max_fds / 4 * 3;
}

static void make_ready(struct extents *extents)
{
	uint64_t have = kept_bytes(extents);
	uint64_t bytes = extents->ready_bytes > have ? extents->ready_bytes - have : 0;
	bytes = bytes < extents->large_bytes && !extents->wants_more ? bytes : extents->large_bytes;
	bytes = (bytes + GLAKE_CHUNK_GRANULARITY - 1) / GLAKE_CHUNK_GRANULARITY *
	        GLAKE_CHUNK_GRANULARITY;
	if (bytes == 0 || extents->is_paused || extents->making ||
	    extents->at->worker.n_pending > 0) {
		return;
	}
	if (!has_means(extents, bytes)) {
		extents->wants_more = false;
		return;
	}
	const struct alloc_wanted wanted = {.at = extents->at,
	                                    .tenant = extents->cache,
	                                    .use = CHUNK_COPIES,
	                                    .sizes = &bytes,
	                                    .n_chunks = 1,
	                                    .waited_ms = &extents->waited_ms};
	/* The next tick tries again if the request is refused. */
	alloc_start(extents->allocator, &wanted, on_ready, extents, &extents->making);
}

void extents_want_more(struct extents *extents)
{
	extents->wants_more = true;
}

void extents_tick(struct extents *extents)
{
	extents->is_paused = false;
	make_ready(extents);
}

/* ---- one extent ------------------------------------------------------------------------------- */

void extent_written(struct extent *extent)
{
	extent_set_state(extent, EXTENT_WRITTEN);
}

uint64_t extent_chunk_number(const struct extent *extent)
{
	return extent->in->number;
}

uint64_t extent_chunk_bytes(const struct extent *extent)
{
	return extent->in->chunk.bytes;
}

struct extent_parking *extent_chunk_parking(struct extent *extent)
{
	return &extent->in->parking;
}

const struct chunk *extent_chunk(const struct extent *extent)
{
	return &extent->in->chunk;
}

void extent_chunk_unparked(struct extent *extent, uint64_t number)
{
	struct extent_parking *parking = &extent->in->parking;
	user_refund_all(&parking->place);
	user_unref(parking->user);
	*parking = (struct extent_parking){.id = 0};
	extent->in->chunk.removed = number;
}

int extent_target(const struct extent *extent)
{
	assert(extent->state == EXTENT_FRESH);
	return extent->in->chunk.fd;
}

int extent_source(const struct extent *extent)
{
	return extent->state == EXTENT_WRITTEN ? extent->in->chunk.fd : -1;
}

void extents_init(struct extents *extents, struct allocator *allocator, struct location *at,
                  struct tenant *cache)
{
	*extents = (struct extents){.allocator = allocator,
	                            .at = at,
	                            .cache = cache,
	                            .large_bytes = EXTENT_LARGE_BYTES};
	list_init(&extents->chunks);
}

void extents_deinit(struct extents *extents)
{
	assert(list_is_empty(&extents->chunks) && extents->used_bytes == 0 && !extents->making);
}

/* ---- from an earlier glaked ------------------------------------------------------------------- */

struct extent_chunk *extents_adopt_chunk(struct extents *extents, struct chunk *chunk,
                                         const struct extent_parking *parking)
{
	struct extent *span = enter_chunk(extents, chunk);
	if (!span) {
		return NULL;
	}
	span->in->parking = *parking;
	return span->in;
}

/* The free span that has all of it; NULL: there is none. */
static struct extent *find_around(const struct extent_chunk *in, uint64_t offset, uint64_t bytes)
{
	struct extent *span;
	list_for_each (span, &in->spans, place) {
		if (span->state == EXTENT_FREE && span->offset <= offset &&
		    offset - span->offset <= span->bytes &&
		    bytes <= span->bytes - (offset - span->offset)) {
			return span;
		}
	}
	return NULL;
}

/* Cut the part of @span before @offset off, as a span of its own. False: no memory. */
static bool cut_before(struct extent *span, uint64_t offset)
{
	if (span->offset == offset) {
		return true;
	}
	struct extent *before = span_new(span->in, span->offset, offset - span->offset);
	if (!before) {
		return false;
	}
	list_insert(&span->place, &before->place);
	span->bytes -= before->bytes;
	span->offset = offset;
	return true;
}

struct extent *extents_adopt(struct extents *extents, struct extent_chunk *in, uint64_t offset,
                             uint64_t bytes, struct tenant *tenant)
{
	struct extent *span = bytes > 0 && bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	                                      offset % GLAKE_CHUNK_GRANULARITY == 0
	                              ? find_around(in, offset, bytes)
	                              : NULL;
	if (!span || !cut_before(span, offset)) {
		return NULL;
	}
	struct charge charge = tenant_charge_adopted(payer_alone(tenant), extents->at->slot, bytes,
	                                             0, 0);
	if (!use_span(extents, span, bytes, &charge)) {
		charge_refund(&charge);
		return NULL;
	}
	extent_written(span);
	return span;
}

bool extents_is_empty(const struct extent_chunk *in)
{
	const struct extent *span;
	list_for_each (span, &in->spans, place) {
		if (span->state != EXTENT_FREE) {
			return false;
		}
	}
	return true;
}

const struct location *extents_location(const struct extent_chunk *in)
{
	return in->chunk.at;
}

void extents_drop_adopted(struct extent_chunk *in, uint64_t number)
{
	while (!is_empty(in)) {
		struct extent *first = list_first(&in->spans, struct extent, place);
		merge(&in->spans, &first->place, first->place.next);
	}
	user_refund_all(&in->parking.place);
	user_unref(in->parking.user);
	in->chunk.removed = number;
	free_chunk(in);
}

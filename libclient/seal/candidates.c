/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing that glaked asks for: the memory of a session that looks like weights (fill.h). */
#include <errno.h>
#include <stdlib.h>

#include "libclient/seal/candidates.h"
#include "libclient/link/session.h"
#include "libclient/heap/backing.h"
#include "libclient/heap/heap.h"
#include "libclient/space/fill.h"
#include "libclient/space/owner.h"
#include "libclient/space/page.h"
#include "libclient/space/program.h"
#include "libclient/seal/seal.h"
#include "libclient/stitch/pool.h"
#include "proto/array.h"
#include "proto/limits.h"

static int add_span(struct glake__candidates *candidates, glake_ptr ptr, uint64_t n_bytes)
{
	if (array_grow_counted(candidates->spans, candidates->n_spans) < 0) {
		return -ENOMEM;
	}
	candidates->spans[candidates->n_spans++] = (struct glake_span){ptr, n_bytes};
	return 0;
}

static bool is_sealed(glake_ptr ptr)
{
	return glake__page_kind(glake__page_of(ptr)) == GLAKE__PAGE_BLOCK;
}

/* Sealed memory counts as what it is, whoever filled it. */
static enum glake__fill fill_at(glake_ptr ptr, uint64_t n_bytes)
{
	return is_sealed(ptr) ? GLAKE__FILL_WHOLE : glake__fill_at(ptr, n_bytes);
}

static uint64_t in_page(uint64_t n_left)
{
	return n_left < GLAKE__PAGE_BYTES ? n_left : GLAKE__PAGE_BYTES;
}

/* Counts the page. Returns whether it looks like weights. */
static bool count_page(struct glake__candidates *candidates, glake_ptr ptr, uint64_t n_bytes)
{
	enum glake__fill fill = fill_at(ptr, n_bytes);
	if (fill == GLAKE__FILL_WHOLE) {
		candidates->n_bytes += GLAKE__PAGE_BYTES;
		candidates->sealed_bytes += is_sealed(ptr) ? GLAKE__PAGE_BYTES : 0;
	} else if (fill == GLAKE__FILL_REWRITTEN) {
		candidates->rewritten_bytes += GLAKE__PAGE_BYTES;
	} else {
		candidates->unfilled_bytes += GLAKE__PAGE_BYTES;
	}
	return fill == GLAKE__FILL_WHOLE;
}

/* The whole pages of it: what else lies in those at its ends is another's. A range's own has nobody behind it. */
struct pages {
	glake_ptr begin;
	uint64_t n_bytes;
};

static struct pages pages_of(const struct glake__allocation *whole)
{
	const uint64_t mask = GLAKE__PAGE_BYTES - 1;
	const glake_ptr begin = (whole->address + mask) & ~mask;
	const glake_ptr end = whole->address + whole->n_bytes;
	const glake_ptr stop = whole->is_pooled ? end & ~mask : end;
	return (struct pages){begin, begin < stop ? stop - begin : 0};
}

/*
 * Spans begin and end where large tensors do, so that they become the same blocks wherever other processes have
 * them. From there, or from the allocation's start, they end at multiples of a block: one page that differs does
 * not shift the blocks behind it.
 */
static int find_in_locked(struct glake__candidates *candidates, struct pages pages)
{
	uint64_t begin = 0;
	uint64_t bound = 0;
	int r = 0;
	for (uint64_t at = 0; r == 0 && at < pages.n_bytes; at += GLAKE__PAGE_BYTES) {
		uint64_t n_bytes = in_page(pages.n_bytes - at);
		bool is_weights = count_page(candidates, pages.begin + at, n_bytes);
		bound = glake__fill_is_bound(pages.begin + at) ? at : bound;
		if (begin < at && (!is_weights || (at - bound) % GLAKE_MAX_BLOCK_BYTES == 0)) {
			r = add_span(candidates, pages.begin + begin, at - begin);
			begin = at;
		}
		begin = is_weights ? begin : at + GLAKE__PAGE_BYTES;
	}
	if (r == 0 && begin < pages.n_bytes) {
		r = add_span(candidates, pages.begin + begin, pages.n_bytes - begin);
	}
	return r;
}

struct finding {
	struct glake__candidates *candidates;
	int result;
};

/* Finds candidates in a pool. Memory of graphs is never sealed. */
static void find_in_pooled(struct glake__allocation *allocation, void *user)
{
	struct finding *finding = user;
	if (finding->result < 0 || allocation->is_claimed) {
		return;
	}
	if (allocation->tag.stream > GLAKE__GRAPH_STREAM || pages_of(allocation).n_bytes == 0) {
		finding->candidates->small_bytes += allocation->n_capacity;
	} else {
		finding->result = find_in_locked(finding->candidates, pages_of(allocation));
	}
}

static void visit_pools_locked(struct glake_session *session,
                               void (*visit)(struct glake__allocation *allocation, void *user),
                               void *user)
{
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake__pool *pool = session->heaps[i].stitching;
		if (pool) {
			glake__pool_visit_locked(pool, visit, user);
		}
	}
}

static bool is_of(const struct glake__piece *piece, const struct glake_session *session)
{
	const struct glake__owner *owner = piece->chunk ? piece->chunk->owner : NULL;
	return owner && owner->device && owner->device->session == session;
}

/* Finds candidates in memory that the program has mapped itself, in chunks of @session that lie side by side. */
static int find_in_row_locked(struct glake__candidates *candidates,
                              const struct glake__range *range, const struct glake_session *session)
{
	const struct glake__piece *piece = range->first;
	int r = 0;
	while (r == 0 && piece) {
		struct pages pages = {.begin = range->ptr + piece->offset};
		for (; piece && is_of(piece, session); piece = piece->next) {
			pages.n_bytes += piece->n_bytes;
		}
		r = find_in_locked(candidates, pages);
		piece = pages.n_bytes > 0 ? piece : piece->next;
	}
	return r;
}

int glake__candidates_find(struct glake_session *session, struct glake__candidates *candidates_out)
{
	int r = 0;
	*candidates_out = (struct glake__candidates){.n_spans = 0};
	glake__lock();
	for (struct glake__backing *backing = session->books.live; r == 0 && backing;
	     backing = backing->newer) {
		const struct glake__allocation *whole = &backing->whole;
		if (backing->slab) {
			candidates_out->small_bytes += backing->n_bytes;
		} else if (!whole->is_parked && !whole->is_claimed) {
			r = find_in_locked(candidates_out, pages_of(whole));
		}
	}
	struct finding finding = {candidates_out, r};
	visit_pools_locked(session, find_in_pooled, &finding);
	r = finding.result;
	for (const struct glake__range *at = glake__space.ranges; r == 0 && at; at = at->next) {
		if (at->use == &glake__use_program) {
			r = find_in_row_locked(candidates_out, at, session);
		}
	}
	glake__unlock();
	if (r < 0) {
		free(candidates_out->spans);
		candidates_out->spans = NULL;
	}
	return r;
}

static bool is_in(const void *context, void *const *contexts, size_t n)
{
	size_t i = 0;
	while (i < n && contexts[i] != context) {
		i++;
	}
	return i < n;
}

struct being_in {
	void *const *contexts;
	size_t n;
	uint64_t generation;
	bool are_in;
};

static bool is_tag_in(const struct glake__tag *tag, const struct being_in *being)
{
	return !tag->ctx || tag->generation < being->generation ||
	       is_in(tag->ctx, being->contexts, being->n);
}

static void look_at_pooled(struct glake__allocation *allocation, void *user)
{
	struct being_in *being = user;
	being->are_in &= is_tag_in(&allocation->tag, being);
}

bool glake__candidates_are_in(struct glake_session *session, void *const *contexts, size_t n,
                              uint64_t generation)
{
	struct being_in being = {contexts, n, generation, true};
	glake__lock();
	for (const struct glake__backing *backing = session->books.live; being.are_in && backing;
	     backing = backing->newer) {
		being.are_in = backing->slab || is_tag_in(&backing->whole.tag, &being);
	}
	visit_pools_locked(session, look_at_pooled, &being);
	glake__unlock();
	return being.are_in;
}

/* A page that is filled anew since counts as well. */
static bool are_weights(glake_ptr ptr, uint64_t n_bytes)
{
	uint64_t at = 0;
	while (at < n_bytes && fill_at(ptr + at, in_page(n_bytes - at)) == GLAKE__FILL_WHOLE) {
		at += GLAKE__PAGE_BYTES;
	}
	return at >= n_bytes;
}

int glake__candidates_seal(const struct glake_span *spans, size_t n,
                           struct glake_sealed *sealed_out)
{
	return glake__seal_still(spans, n, are_weights, false, sealed_out);
}

/* The question of this thread's own call. */
static _Thread_local bool (*may_seal)(glake_ptr ptr, uint64_t n_bytes);

static bool are_weights_and_may(glake_ptr ptr, uint64_t n_bytes)
{
	return are_weights(ptr, n_bytes) && may_seal(ptr, n_bytes);
}

int glake__candidates_seal_if(const struct glake_span *spans, size_t n,
                              bool (*may)(glake_ptr ptr, uint64_t n_bytes),
                              struct glake_sealed *sealed_out)
{
	may_seal = may;
	return glake__seal_still(spans, n, are_weights_and_may, true, sealed_out);
}

int glake__candidates_part(const struct glake_span *spans, size_t n, struct glake_span **parts_out,
                           size_t *n_parts_out)
{
	return glake__seal_apart(spans, n, are_weights, parts_out, n_parts_out);
}

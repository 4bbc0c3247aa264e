/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, as the shim sees it: reservations are ranges, what
 * it maps there are pieces. The driver's calls are the shim's, but for mapping numbers (number.h).
 */
#include "libclient/space/program.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/space/held.h"
#include "libclient/space/map.h"
#include "libclient/space/number.h"
#include "libclient/space/owner.h"
#include "libclient/space/reback.h"
#include "libclient/space/row.h"
#include "libclient/space/unsealed.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"

/*
 * Nothing keeps the program from unmapping what is held: whoever holds it looks again. Whose memory it is, each chunk
 * says itself.
 */
static int hold_program(struct glake__range *range, glake_ptr address, struct glake__held *held_out)
{
	const struct glake__piece *piece = glake__range_piece_locked(range, address - range->ptr);
	*held_out = (struct glake__held){
		.begin = range->ptr,
		.end = range->ptr + range->n_bytes,
		.tail = range->ptr + range->n_bytes,
		.keeps_chunks = true,
	};
	return piece->chunk ? 0 : -ENOENT;
}

const struct glake__use glake__use_program = {
	.name = "program",
	.kind = GLAKE__PROGRAMS,
	.is_programs = true,
	.hold = hold_program,
};

/* ---- reservations ----------------------------------------------------------------------------- */

static bool is_granular(uint64_t value)
{
	return value % GLAKE__PAGE_BYTES == 0;
}

int glake__program_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint, glake_ptr *ptr_out)
{
	struct glake__range *range;
	if (!glake__space.has_drv || n_bytes == 0 || !is_granular(n_bytes) || !is_granular(hint) ||
	    (alignment & (alignment - 1))) {
		return -EINVAL;
	}
	int r = glake__range_reserve(&glake__use_program, NULL, -1, n_bytes, alignment, hint,
	                             &range);
	/* A hint is no more than that. */
	if (r == 0 && range->is_outside && hint && range->ptr != hint) {
		glake__range_drop(range);
		r = glake__range_reserve(&glake__use_program, NULL, -1, n_bytes, alignment, 0,
		                         &range);
	}
	if (r == 0) {
		*ptr_out = range->ptr;
	}
	return r;
}

int glake__program_unreserve(glake_ptr ptr, uint64_t n_bytes)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	struct glake__range *range = piece ? piece->range : NULL;
	bool is_it = range && range->use == &glake__use_program && range->ptr == ptr &&
	             range->n_bytes == n_bytes;
	bool is_free = !piece && glake__window_has(ptr);
	bool is_empty = is_it && glake__piece_is_free_hole(range->first) && !range->first->next;
	/* No other thread drops it, or maps there, from here on. One with memory stays as it is for all. */
	if (is_empty) {
		glake__unsealed_forget_locked(range);
		range->use = &glake__use_lost;
	}
	glake__unlock();
	if (!is_empty) {
		return range || is_free ? -EINVAL : -ENOENT;
	}
	int r = glake__range_drop(range);
	if (r == -EBUSY) {
		glake__lock();
		range->use = &glake__use_program;
		glake__unlock();
	}
	return r < 0 ? -EINVAL : 0;
}

/* ---- mappings --------------------------------------------------------------------------------- */

/* One change under way, or a hold, of one reservation after the other. */
struct glake__mapping {
	size_t n;
	struct glake__change *changes; /* owned */
	struct glake__hold *holds;     /* owned; of what is mapped, which stays */
	struct glake__chunk *chunk;    /* to be mapped; NULL: what is there goes */
	struct glake__chunk *foreign;  /* one use: of a handle that we do not know */
	bool is_loose; /* of nothing in the map: only the use of the chunk is kept */
};

/* A part of one reservation. */
struct span {
	struct glake__range *range;
	glake_ptr ptr;
	uint64_t n_bytes;
};

/* The reservations that [ptr, end) lies in; those may end, so whoever uses them looks again. Called with the lock held. */
static int find_spans_locked(glake_ptr ptr, glake_ptr end, struct span *spans, size_t *n_out)
{
	size_t n = 0;
	while (ptr < end) {
		const struct glake__piece *piece = glake__piece_at_locked(ptr);
		struct glake__range *range = piece ? piece->range : NULL;
		if (!range || range->use != &glake__use_program) {
			return n > 0 || range || glake__window_has(ptr) ? -EINVAL : -ENOENT;
		}
		glake_ptr range_end = range->ptr + range->n_bytes;
		uint64_t n_bytes = (range_end < end ? range_end : end) - ptr;
		if (spans) {
			spans[n] = (struct span){range, ptr, n_bytes};
		}
		n++;
		ptr += n_bytes;
	}
	*n_out = n;
	return 0;
}

static int find_spans(glake_ptr ptr, uint64_t n_bytes, struct span **spans_out, size_t *n_out)
{
	*spans_out = NULL;
	if (n_bytes > UINT64_MAX - ptr) {
		return -EINVAL;
	}
	glake__lock();
	int r = find_spans_locked(ptr, ptr + n_bytes, NULL, n_out);
	struct span *spans = r == 0 ? calloc(*n_out, sizeof(*spans)) : NULL;
	if (spans) {
		find_spans_locked(ptr, ptr + n_bytes, spans, n_out);
	}
	glake__unlock();
	*spans_out = spans;
	return r == 0 && !spans ? -ENOMEM : r;
}

static void mapping_free(struct glake__mapping *mapping)
{
	free(mapping->changes);
	free(mapping->holds);
	free(mapping);
}

static struct glake__mapping *mapping_new(size_t n, bool is_hold)
{
	struct glake__mapping *mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		return NULL;
	}
	mapping->n = n;
	if (is_hold) {
		mapping->holds = calloc(n, sizeof(*mapping->holds));
	} else {
		mapping->changes = calloc(n, sizeof(*mapping->changes));
	}
	if (n > 0 && !mapping->holds && !mapping->changes) {
		mapping_free(mapping);
		return NULL;
	}
	return mapping;
}

/* @chunk, or holes where it is NULL, in all of @spans. Nothing is held while it waits for other changes of them. */
static int begin_changes(struct glake__mapping *mapping, const struct span *spans,
                         struct glake__chunk *chunk)
{
	cleanup_free struct glake__site *sites = calloc(mapping->n, sizeof(*sites));
	cleanup_free struct glake__part *parts = calloc(mapping->n, sizeof(*parts));
	if (!sites || !parts) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < mapping->n; i++) {
		sites[i] = (struct glake__site){
			.use = &glake__use_program, .ptr = spans[i].ptr, .waits = true};
		parts[i] = (struct glake__part){
			.chunk = chunk, .n_bytes = spans[i].n_bytes, .fd = -1};
	}
	int r = glake__changes_begin(mapping->changes, sites, parts, mapping->n);
	return r < 0 && r != -ENOMEM ? -EINVAL : r;
}

static int begin_holds(struct glake__mapping *mapping, const struct span *spans)
{
	cleanup_free struct glake__holding *list = calloc(mapping->n, sizeof(*list));
	bool is_gone = false;
	if (!list) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < mapping->n; i++) {
		list[i] = (struct glake__holding){
			.hold = &mapping->holds[i],
			.ptr = spans[i].ptr,
			.n_bytes = spans[i].n_bytes,
			.is_here = true,
		};
	}
	glake__holds_begin(list, mapping->n, true);
	for (size_t i = 0; i < mapping->n; i++) {
		is_gone |= list[i].result < 0;
	}
	for (size_t i = 0; is_gone && i < mapping->n; i++) {
		glake__hold_end(&mapping->holds[i]);
	}
	return is_gone ? -EINVAL : 0;
}

static int begin(const struct span *spans, size_t n, struct glake__chunk *chunk, bool is_hold,
                 struct glake__mapping **mapping_out)
{
	struct glake__mapping *mapping = mapping_new(n, is_hold);
	if (!mapping) {
		return -ENOMEM;
	}
	mapping->chunk = chunk;
	int r = is_hold ? begin_holds(mapping, spans) : begin_changes(mapping, spans, chunk);
	if (r < 0) {
		mapping_free(mapping);
		return r;
	}
	*mapping_out = mapping;
	return 0;
}

/* A mapping at a place that is in no reservation that we know. */
static int begin_loose(struct glake__chunk *chunk, struct glake__mapping **mapping_out)
{
	struct glake__mapping *mapping = mapping_new(0, false);
	if (!mapping) {
		return -ENOENT;
	}
	mapping->is_loose = true;
	mapping->chunk = chunk;
	*mapping_out = mapping;
	return 0;
}

/* A chunk for a multicast object, or for memory that came unseen. */
static struct glake__chunk *foreign_chunk(uint64_t n_bytes)
{
	struct glake__chunk *chunk = glake__chunk_new(0, n_bytes, -1, GLAKE__PAGE_CHUNK);
	if (chunk) {
		chunk->pins = 1u << GLAKE__PIN_FOREIGN;
	}
	return chunk;
}

static bool is_hole(const struct glake__change *change)
{
	const struct glake__piece *piece = glake__change_first(change);
	return !piece->chunk && piece->n_bytes == change->n_bytes;
}

/* In one reservation. Takes over a use of @foreign, which is @chunk or NULL. */
static int map_in(const struct span *span, struct glake__chunk *chunk, struct glake__chunk *foreign,
                  struct glake__mapping **mapping_out)
{
	struct glake__mapping *mapping = NULL;
	int r = chunk ? begin(span, 1, chunk, false, &mapping) : -ENOMEM;
	if (r == 0) {
		mapping->foreign = foreign;
		if (!is_hole(&mapping->changes[0])) {
			glake__program_settle(mapping, false);
			return -EINVAL;
		}
		*mapping_out = mapping;
	} else if (foreign) {
		glake__chunk_put(foreign);
	}
	return r;
}

int glake__program_map(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                       struct glake__mapping **mapping_out)
{
	cleanup_free struct span *spans = NULL;
	size_t n;
	if (n_bytes == 0 || !is_granular(ptr) || !is_granular(n_bytes)) {
		return -ENOENT;
	}
	int r = find_spans(ptr, n_bytes, &spans, &n);
	if (r == -ENOENT && chunk) {
		return begin_loose(chunk, mapping_out);
	}
	if (r < 0 || n > 1) {
		return r < 0 ? r : -EINVAL;
	}
	struct glake__chunk *foreign = chunk ? NULL : foreign_chunk(n_bytes);
	return map_in(spans, chunk ? chunk : foreign, foreign, mapping_out);
}

/* May the program unmap just this? A number was mapped as a whole, in however many pieces it is now. */
static bool is_whole(const struct glake__change *change)
{
	bool is_begin = true;
	bool is_whole = true;
	const struct glake__piece *piece = glake__change_first(change);
	glake__lock();
	for (; piece; piece = glake__change_next(change, piece)) {
		const struct glake__piece *named = piece->chunk ? piece->chunk->row : NULL;
		/* Behind the first, mappings follow each other as they were made. */
		if (is_begin && named) {
			is_whole &= named->offset == 0;
		}
		is_begin = false;
		if (named && !glake__change_next(change, piece)) {
			is_whole &= named->offset + named->n_bytes == named->range->n_bytes;
		}
	}
	glake__unlock();
	return is_whole;
}

int glake__program_unmap(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out)
{
	cleanup_free struct span *spans = NULL;
	struct glake__mapping *mapping;
	bool is_each_whole = true;
	size_t n;
	if (n_bytes == 0 || !is_granular(ptr) || !is_granular(n_bytes)) {
		return -ENOENT;
	}
	int r = find_spans(ptr, n_bytes, &spans, &n);
	r = r < 0 ? r : begin(spans, n, NULL, false, &mapping);
	if (r < 0) {
		return r;
	}
	for (size_t i = 0; i < n; i++) {
		is_each_whole &= is_whole(&mapping->changes[i]);
	}
	if (!is_each_whole) {
		struct glake__chunk *none = NULL;
		glake__changes_cancel(mapping->changes, n, &none);
		mapping_free(mapping);
		return -EINVAL;
	}
	*mapping_out = mapping;
	return 0;
}

int glake__program_hold(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out)
{
	cleanup_free struct span *spans = NULL;
	size_t n;
	int r = find_spans(ptr, n_bytes, &spans, &n);
	return r < 0 ? r : begin(spans, n, NULL, true, mapping_out);
}

/* Called with the lock held. Does a mapping of a number go across @ptr, which is in @piece or at its end? */
static bool is_cut_locked(const struct glake__piece *piece, glake_ptr ptr)
{
	const struct glake__piece *row = piece && piece->chunk ? piece->chunk->row : NULL;
	uint64_t at = row ? row->offset + (ptr - piece->range->ptr - piece->offset) : 0;
	return row && at != 0 && at != row->range->n_bytes;
}

int glake__program_hold_whole(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out)
{
	int r = glake__program_hold(ptr, n_bytes, mapping_out);
	if (r < 0 || n_bytes == 0) {
		return r;
	}
	glake__lock();
	bool is_cut = is_cut_locked(glake__piece_at_locked(ptr), ptr) ||
	              is_cut_locked(glake__piece_at_locked(ptr + n_bytes - 1), ptr + n_bytes);
	glake__unlock();
	if (is_cut) {
		glake__program_settle(*mapping_out, true);
		*mapping_out = NULL;
		return -EINVAL;
	}
	return 0;
}

/* The driver's call has failed: it may have unmapped some. */
static void note_unmapped(const struct glake__change *change)
{
	struct glake__piece *piece = glake__change_first(change);
	for (; piece; piece = glake__change_next(change, piece)) {
		CUmemGenericAllocationHandle handle;
		if (piece->chunk &&
		    glake__map_retain(change->range->ptr + piece->offset, &handle) < 0) {
			piece->is_unmapped = true;
		} else if (piece->chunk) {
			glake__map_release(handle);
		}
	}
}

/* Numbers that are mapped nowhere else may end when this has: a use for each piece. */
static void use_numbers(const struct glake__change *change, struct glake__number **list, size_t *n)
{
	const struct glake__piece *piece = glake__change_first(change);
	glake__lock();
	for (; piece; piece = glake__change_next(change, piece)) {
		struct glake__number *number = piece->chunk ? glake__number_use_locked(piece->chunk)
		                                            : NULL;
		if (number) {
			list[(*n)++] = number;
		}
	}
	glake__unlock();
}

static size_t count_pieces(const struct glake__mapping *mapping)
{
	size_t n = 0;
	for (size_t i = 0; i < mapping->n; i++) {
		const struct glake__piece *at = glake__change_first(&mapping->changes[i]);
		for (; at; at = glake__change_next(&mapping->changes[i], at)) {
			n++;
		}
	}
	return n;
}

static void end_unmapping(struct glake__mapping *mapping, bool is_done)
{
	struct glake__chunk *dead = NULL;
	struct glake__number **numbers = calloc(count_pieces(mapping),
	                                        sizeof(struct glake__number *));
	size_t n = 0;
	for (size_t i = 0; i < mapping->n; i++) {
		if (numbers) {
			use_numbers(&mapping->changes[i], numbers, &n);
		}
		if (!is_done) {
			note_unmapped(&mapping->changes[i]);
		} else {
			const struct glake__change *change = &mapping->changes[i];
			glake__unsealed_forget(change->range, change->offset,
			                       change->offset + change->n_bytes);
		}
	}
	if (is_done) {
		glake__changes_commit(mapping->changes, mapping->n, &dead);
	} else {
		glake__changes_cancel(mapping->changes, mapping->n, &dead);
	}
	glake__chunks_release(dead);
	for (size_t i = 0; i < n; i++) {
		glake__number_give(numbers[i]);
	}
	free(numbers);
}

static void end_mapping(struct glake__mapping *mapping, bool is_done)
{
	struct glake__chunk *dead = NULL;
	if (!is_done) {
		glake__changes_cancel(mapping->changes, mapping->n, &dead);
	} else {
		if (mapping->chunk->n_bytes == 0) {
			mapping->chunk->n_bytes = mapping->changes[0].n_bytes;
		}
		glake__changes_commit(mapping->changes, mapping->n, &dead);
	}
	glake__chunks_release(dead);
}

void glake__program_settle(struct glake__mapping *mapping, bool is_done)
{
	if (!mapping) {
		return;
	}
	if (mapping->holds) {
		for (size_t i = 0; i < mapping->n; i++) {
			glake__hold_end(&mapping->holds[i]);
		}
	} else if (mapping->is_loose) {
		/* We never learn when it ends: its charge stays until the process ends. */
		glake__lock();
		mapping->chunk->n_uses += is_done;
		glake__unlock();
	} else if (mapping->chunk) {
		end_mapping(mapping, is_done);
	} else {
		end_unmapping(mapping, is_done);
	}
	if (mapping->foreign) {
		glake__chunk_put(mapping->foreign);
	}
	mapping_free(mapping);
}

/* A piece has one access: that of the reader with the most. */
static void open_piece(struct glake__piece *piece, uint64_t reader, bool may_read, bool may_write)
{
	piece->readers = may_read ? piece->readers | reader : piece->readers & ~reader;
	piece->writers = may_write ? piece->writers | reader : piece->writers & ~reader;
	/* A block is read-only, whatever the program has asked for: nobody but a write makes it private. */
	bool is_block = piece->chunk->kind == GLAKE__PAGE_BLOCK;
	piece->access = piece->writers && !is_block ? GLAKE__ACCESS_WRITE
	                : piece->readers            ? GLAKE__ACCESS_READ
	                                            : GLAKE__ACCESS_NONE;
}

void glake__program_opened(glake_ptr ptr, uint64_t n_bytes, int device, bool may_read,
                           bool may_write)
{
	bool is_device = device >= 0 && device < GLAKE__MAX_DEVICES;
	glake_ptr at = ptr;
	glake__lock();
	while (at < ptr + n_bytes) {
		struct glake__piece *piece = glake__piece_at_locked(at);
		if (!piece) {
			break;
		}
		if (piece->chunk && is_device) {
			open_piece(piece, 1ull << device, may_read, may_write);
		} else if (piece->chunk && may_read) {
			/* New memory in its place would not have the dma-buf. */
			glake__chunk_note_pin_locked(piece->chunk, GLAKE__PIN_DMABUF, true);
		}
		at = piece->range->ptr + piece->offset + piece->n_bytes;
	}
	glake__unlock();
}

bool glake__program_access(glake_ptr ptr, int device, bool *may_read_out, bool *may_write_out)
{
	bool is_known = false;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	if (piece && piece->chunk && piece->range->use == &glake__use_program && device >= 0 &&
	    device < GLAKE__MAX_DEVICES) {
		*may_read_out = piece->readers >> device & 1;
		*may_write_out = piece->writers >> device & 1;
		is_known = true;
	}
	glake__unlock();
	return is_known;
}

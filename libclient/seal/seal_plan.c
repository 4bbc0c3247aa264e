/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans become parts: they are joined where they touch, rounded inward to whole pages, and cut into blocks.
 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/dispatch.h"
#include "libclient/seal/unsealed.h"
#include "proto/limits.h"

/* Spans that lie no further apart are one: PyTorch's allocator rounds sizes up to this. */
#define GAP_BYTES 512u

static uint64_t round_up(uint64_t offset)
{
	return (offset + GLAKE__PAGE_BYTES - 1) & ~(GLAKE__PAGE_BYTES - 1);
}

static uint64_t round_down(uint64_t offset)
{
	return offset & ~(GLAKE__PAGE_BYTES - 1);
}

static int add_part(struct glake__seal *seal, struct glake__backing *backing, uint64_t begin,
                    uint64_t end)
{
	if (seal->n_parts == seal->capacity) {
		size_t capacity = seal->capacity ? 2 * seal->capacity : 64;
		struct glake__seal_part *more = realloc(seal->parts, capacity * sizeof(*more));
		if (!more) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		seal->parts = more;
		seal->capacity = capacity;
	}
	seal->parts[seal->n_parts++] = (struct glake__seal_part){
		.backing = backing,
		.offset = begin,
		.n_bytes = end - begin,
		.answer = {.fd = -1},
	};
	return 0;
}

/* Pages [begin, end) in parts of at most a block. */
static int add_parts(struct glake__seal *seal, struct glake__backing *backing, uint64_t begin,
                     uint64_t end)
{
	int r = 0;
	while (r == 0 && begin < end) {
		uint64_t n_bytes = end - begin < GLAKE_MAX_BLOCK_BYTES ? end - begin
		                                                       : GLAKE_MAX_BLOCK_BYTES;
		r = add_part(seal, backing, begin, begin + n_bytes);
		begin += n_bytes;
	}
	return r;
}

/*
 * Private pages [begin, end). Parts start and end where the pages of a span do, whatever chunks the memory came
 * in: two programs may have one tensor in common, and neither its neighbours nor its place.
 */
static int cut(struct glake__seal *seal, const struct glake__seal_span *spans, size_t n_spans,
               uint64_t begin, uint64_t end)
{
	struct glake__backing *backing = spans[0].held.backing;
	int r = 0;
	for (size_t i = 0; r == 0 && i < n_spans; i++) {
		uint64_t stops[] = {round_up(spans[i].begin), round_down(spans[i].end)};
		for (size_t k = 0; r == 0 && stops[0] < stops[1] && k < 2; k++) {
			uint64_t stop = stops[k] < end ? stops[k] : end;
			r = add_parts(seal, backing, begin, stop);
			begin = stop > begin ? stop : begin;
		}
	}
	return r < 0 ? r : add_parts(seal, backing, begin, end);
}

static bool is_open(const struct glake__look *piece)
{
	return piece->kind == GLAKE__PAGE_CHUNK && piece->pin == GLAKE__PIN_NONE;
}

/* Where the pieces that are like @piece, and can be sealed, end; at most @end. */
static uint64_t end_of_open(const struct glake__backing *backing, struct glake__look piece,
                            uint64_t end)
{
	uint64_t at = piece.offset + piece.n_bytes;
	while (at < end && is_open(&piece)) {
		piece = glake__look_at(backing, at);
		at = is_open(&piece) ? piece.offset + piece.n_bytes : at;
	}
	return at < end ? at : end;
}

/* The last sealing could not map the block in its place. It is whole, whatever spans say now. */
static int add_again(struct glake__seal *seal, struct glake__backing *backing,
                     const struct glake__look *piece)
{
	int r = add_part(seal, backing, piece->offset, piece->offset + piece->n_bytes);
	if (r == 0) {
		seal->parts[seal->n_parts - 1].is_again = true;
	}
	return r;
}

/* @spans touch, in one backing, and end at @end. */
static int plan_region(struct glake__seal *seal, const struct glake__seal_span *spans,
                       size_t n_spans, uint64_t end)
{
	struct glake__backing *backing = spans[0].held.backing;
	uint64_t asked_end = end;
	uint64_t n_asked = end - spans[0].begin;
	uint64_t begin = round_up(spans[0].begin);
	/* The bytes behind the allocation belong to nobody. */
	end = end == spans[0].held.end ? backing->n_bytes : round_down(end);
	uint64_t n_pages = begin < end ? end - begin : 0;
	int r = 0;
	seal->sum.edge_bytes += n_pages < n_asked ? n_asked - n_pages : 0;
	glake__unsealed_note(backing, spans[0].begin, begin < asked_end ? begin : asked_end,
	                     GLAKE__UNSEALED_EDGE);
	glake__unsealed_note(backing, end, asked_end, GLAKE__UNSEALED_EDGE);
	while (r == 0 && begin < end) {
		struct glake__look piece = glake__look_at(backing, begin);
		uint64_t stop = end_of_open(backing, piece, end);
		if (is_open(&piece)) {
			r = cut(seal, spans, n_spans, begin, stop);
		} else if (piece.is_unfinished) {
			r = add_again(seal, backing, &piece);
		} else if (piece.kind == GLAKE__PAGE_BLOCK) {
			seal->sum.sealed_bytes += stop - begin;
		} else {
			seal->sum.pinned_bytes += stop - begin;
			seal->sum.pinned_why = glake__pin_text(piece.pin);
			glake__unsealed_note(backing, begin, stop,
			                     glake__unsealed_by_pin(piece.pin));
		}
		begin = stop;
	}
	return r;
}

int glake__seal_plan(struct glake__seal *seal)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < seal->n_spans;) {
		const struct glake__seal_span *first = &seal->spans[i];
		uint64_t end = first->end;
		size_t n = 1;
		while (first->held.backing && i + n < seal->n_spans &&
		       first[n].held.backing == first->held.backing &&
		       first[n].begin < end + GAP_BYTES) {
			end = first[n].end > end ? first[n].end : end;
			n++;
		}
		if (first->held.backing) {
			r = plan_region(seal, first, n, end);
		} else {
			seal->sum.edge_bytes += first->n_bytes;
		}
		i += n;
	}
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans become parts: they are joined where they touch, rounded inward to whole pages, and cut into blocks.
 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>

#include "libclient/space/unsealed.h"
#include "proto/array.h"
#include "proto/limits.h"

/* Spans that lie no further apart are one: PyTorch's allocator rounds sizes up to this. */
#define GAP_BYTES 512u

static uint64_t round_up(uint64_t ptr)
{
	return (ptr + GLAKE__PAGE_BYTES - 1) & ~(GLAKE__PAGE_BYTES - 1);
}

static uint64_t round_down(uint64_t ptr)
{
	return ptr & ~(GLAKE__PAGE_BYTES - 1);
}

static int add_part(struct glake__seal *seal, const struct glake__held *held,
                    const struct glake__look *piece, glake_ptr begin, glake_ptr end)
{
	if (array_grow(seal->parts, seal->n_parts, seal->capacity, 64) < 0) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	seal->parts[seal->n_parts++] = (struct glake__seal_part){
		.ptr = begin,
		.n_bytes = end - begin,
		.held = held,
		.device = piece->device,
		.answer = {.fd = -1},
	};
	return 0;
}

/* Pages [begin, end) in parts of at most a block. */
static int add_parts(struct glake__seal *seal, const struct glake__held *held,
                     const struct glake__look *piece, glake_ptr begin, glake_ptr end)
{
	int r = 0;
	while (r == 0 && begin < end) {
		uint64_t n_bytes = end - begin < GLAKE_MAX_BLOCK_BYTES ? end - begin
		                                                       : GLAKE_MAX_BLOCK_BYTES;
		r = add_part(seal, held, piece, begin, begin + n_bytes);
		begin += n_bytes;
	}
	return r;
}

/*
 * Private pages [begin, end), of pieces like @piece. Parts start and end where the pages of a span do, whatever chunks
 * the memory came in: two programs may have one tensor in common, and neither its neighbours nor its place.
 */
static int cut(struct glake__seal *seal, const struct glake__span *spans, size_t n_spans,
               const struct glake__look *piece, glake_ptr begin, glake_ptr end)
{
	const struct glake__held *held = spans[0].held;
	int r = 0;
	for (size_t i = 0; r == 0 && i < n_spans; i++) {
		glake_ptr stops[] = {round_up(spans[i].ptr),
		                     round_down(spans[i].ptr + spans[i].n_bytes)};
		for (size_t k = 0; r == 0 && stops[0] < stops[1] && k < 2; k++) {
			glake_ptr stop = stops[k] < end ? stops[k] : end;
			r = add_parts(seal, held, piece, begin, stop);
			begin = stop > begin ? stop : begin;
		}
	}
	return r < 0 ? r : add_parts(seal, held, piece, begin, end);
}

/*
 * Can a part lie in both? A chunk that has another place as well is cut there, too, and has other neighbours there;
 * and what the program has mapped by itself it unmaps by itself.
 */
static bool are_alike(const struct glake__held *held, const struct glake__look *one,
                      const struct glake__look *other)
{
	return !held->keeps_chunks && glake__look_is_open(other) && other->device == one->device &&
	       !one->is_elsewhere && !other->is_elsewhere;
}

/* Where the pieces end that one part may lie in, with @piece; at most @end. */
static glake_ptr end_of_open(struct glake__seal *seal, const struct glake__held *held,
                             const struct glake__look *piece, glake_ptr end)
{
	glake_ptr at = piece->ptr + piece->n_bytes;
	bool is_alike = glake__look_is_open(piece);
	while (at < end && is_alike) {
		struct glake__look next = glake__look_at(held, at, &seal->spans.sessions);
		is_alike = are_alike(held, piece, &next);
		at = is_alike ? next.ptr + next.n_bytes : at;
	}
	return at < end ? at : end;
}

/* The last sealing could not map the block in its place. It is whole, whatever spans say now. */
static int add_again(struct glake__seal *seal, const struct glake__held *held,
                     const struct glake__look *piece)
{
	int r = add_part(seal, held, piece, piece->ptr, piece->ptr + piece->n_bytes);
	if (r == 0) {
		seal->parts[seal->n_parts - 1].is_again = true;
	}
	return r;
}

/* Whoever has it: for listings, the session that seals. NULL: nobody. */
static struct glake_session *session_of(const struct glake__look *piece)
{
	return piece->device ? piece->device->session : NULL;
}

static void note(struct glake__seal *seal, const struct glake__held *held, glake_ptr begin,
                 glake_ptr end, enum glake__unsealed why)
{
	const struct glake__look piece = glake__look_at(held, begin, &seal->spans.sessions);
	if (begin < end && session_of(&piece)) {
		glake__unsealed_note(session_of(&piece), begin, end, why);
	}
}

/* Pages that stay as they are. */
static void leave_out(struct glake__seal *seal, const struct glake__held *held,
                      const struct glake__look *piece, glake_ptr begin, glake_ptr end)
{
	if (piece->kind == GLAKE__PAGE_BLOCK) {
		seal->sum.sealed_bytes += end - begin;
		return;
	}
	bool is_beside = piece->kind == GLAKE__PAGE_CHUNK && piece->is_beside && !piece->pin;
	if (is_beside) {
		note(seal, held, begin, end, GLAKE__UNSEALED_EDGE);
	}
	if (piece->kind == GLAKE__PAGE_HOLE || is_beside) {
		seal->sum.edge_bytes += end - begin;
		return;
	}
	seal->sum.pinned_bytes += end - begin;
	seal->sum.pinned_why = glake__look_why(piece);
	note(seal, held, begin, end, glake__unsealed_by_pin(piece->pin));
}

/* @spans touch, in one allocation, and end at @end. */
static int plan_region(struct glake__seal *seal, const struct glake__span *spans, size_t n_spans,
                       glake_ptr end)
{
	const struct glake__held *held = spans[0].held;
	const glake_ptr asked_end = end;
	const uint64_t n_asked = end - spans[0].ptr;
	glake_ptr begin = round_up(spans[0].ptr);
	/* The bytes behind the allocation belong to nobody. */
	end = round_down(end == held->end ? held->tail : end);
	uint64_t n_pages = begin < end ? end - begin : 0;
	int r = 0;
	seal->sum.edge_bytes += n_pages < n_asked ? n_asked - n_pages : 0;
	note(seal, held, spans[0].ptr, begin < asked_end ? begin : asked_end, GLAKE__UNSEALED_EDGE);
	note(seal, held, end, asked_end, GLAKE__UNSEALED_EDGE);
	while (r == 0 && begin < end) {
		const struct glake__look piece = glake__look_at(held, begin, &seal->spans.sessions);
		const glake_ptr stop = end_of_open(seal, held, &piece, end);
		if (glake__look_is_open(&piece)) {
			r = cut(seal, spans, n_spans, &piece, begin, stop);
		} else if (piece.is_unfinished && piece.device) {
			r = add_again(seal, held, &piece);
		} else {
			leave_out(seal, held, &piece, begin, stop);
		}
		begin = stop;
	}
	return r;
}

int glake__seal_plan(struct glake__seal *seal)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < seal->spans.n;) {
		const struct glake__span *first = &seal->spans.list[i];
		glake_ptr end = first->ptr + first->n_bytes;
		size_t n = 1;
		while (first->held && i + n < seal->spans.n && first[n].held == first->held &&
		       first[n].ptr < end + GAP_BYTES) {
			glake_ptr next = first[n].ptr + first[n].n_bytes;
			end = next > end ? next : end;
			n++;
		}
		if (first->held) {
			r = plan_region(seal, first, n, end);
		} else {
			seal->sum.edge_bytes += first->n_bytes;
		}
		i += n;
	}
	return r;
}

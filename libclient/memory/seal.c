/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing, step by step, and what a failure of each leaves behind:
 *
 *   hold      nobody frees or shares the allocations meanwhile; the program goes on using them
 *   plan      spans are joined where they touch, and rounded inward to whole pages
 *   repiece   a chunk that is not one part, or too large for a block, is copied to several, and several that
 *             a part lies in to one. A failure leaves the chunks as they were
 *   flip      the parts become read-only, so that nobody can write to the bytes that are compared later. A
 *             failure undoes it
 *   publish   glaked makes the chunk a block, or finds an equal one and compares all bytes. A refusal makes
 *             the part writable again
 *   collapse  an equal block is mapped in the part's place, and the chunk goes. A failure keeps the chunk
 *             mapped, as the block: the bytes are the same, but its memory is not saved until it is freed. If not
 *             even that can be mapped again, the bytes are lost, as with block.c
 *
 * Parts are flipped and collapsed many at a time, since each time waits for the work that is queued. While
 * glaked works on those that were flipped last, the ones before are collapsed and the next are flipped.
 */
#include "libclient/memory/seal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/memory/context.h"
#include "libclient/memory/fill.h"
#include "libclient/memory/heap.h"
#include "libclient/memory/page.h"
#include "libclient/memory/reback.h"
#include "libclient/memory/repiece.h"
#include "libclient/memory/space.h"
#include "libclient/memory/unsealed.h"
#include "libclient/memory/usage.h"
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/limits.h"

/* Spans that lie no further apart are one: PyTorch's allocator rounds sizes up to this. */
#define GAP_BYTES 512u

/* So many parts at a time: three milliseconds of driver calls while the program is held back. */
#define BATCH 48u

struct span {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__held held;
	uint64_t begin; /* in the backing */
	uint64_t end;
};

/* Pages of one piece, one block when all is done. */
struct part {
	struct glake__backing *backing;
	uint64_t offset;
	uint64_t n_bytes;
	struct glake__hold hold; /* from flipping to collapsing; range is NULL: there is none */
	struct glake__publication *publication; /* borrowed; NULL: it is not to be published */
	struct glake__block_answer answer;      /* once it is published */
	enum glake__pin pin;                    /* the reason why it is not held */
	bool is_flipped;
	bool is_published;
};

struct seal {
	struct span *spans; /* owned; by address */
	size_t n_spans;
	struct part *parts; /* owned; by address */
	size_t n_parts;
	size_t capacity;
	struct glake_sealed sum;
	glake__is_still_fn *is_still; /* NULL: the caller knows */
	bool is_stopped;              /* what is not sealed yet stays private */
	int error;                    /* the first */
	char *text;                   /* owned: its text */
};

static uint64_t round_up(uint64_t offset)
{
	return (offset + GLAKE__PAGE_BYTES - 1) & ~(GLAKE__PAGE_BYTES - 1);
}

static uint64_t round_down(uint64_t offset)
{
	return offset & ~(GLAKE__PAGE_BYTES - 1);
}

/* The caller learns of the first error; the rest goes on. */
static void note(struct seal *seal, int r)
{
	if (r < 0 && seal->error == 0) {
		seal->error = r;
		seal->text = glake__error_save();
	}
}

/* The next would fail in the same way. */
static void stop(struct seal *seal, int r)
{
	note(seal, r);
	seal->is_stopped |= r < 0;
}

/* ---- holding ---------------------------------------------------------------------------------- */

static int hold(const void *holder, struct span *span)
{
	if (span->n_bytes == 0 || !glake__heap_hold(span->ptr, holder, &span->held)) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are not memory of glake_alloc()",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	if (!span->held.backing) {
		return 0;
	}
	span->begin = span->ptr - span->held.backing->ptr;
	if (span->n_bytes > span->held.end - span->begin) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are more than the allocation has",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	span->end = span->begin + span->n_bytes;
	return glake__session_check(span->held.backing->device->session);
}

static void let_all(struct seal *seal)
{
	struct glake__backing *last = NULL;
	for (size_t i = 0; i < seal->n_spans; i++) {
		struct glake__backing *backing = seal->spans[i].held.backing;
		if (backing && backing != last) {
			glake__heap_let(backing);
		}
		last = backing;
	}
}

static int by_address(const void *a, const void *b)
{
	const struct span *left = a;
	const struct span *right = b;
	return (left->ptr > right->ptr) - (left->ptr < right->ptr);
}

/* ---- planning --------------------------------------------------------------------------------- */

static int add_part(struct seal *seal, struct glake__backing *backing, uint64_t begin, uint64_t end)
{
	if (seal->n_parts == seal->capacity) {
		size_t capacity = seal->capacity ? 2 * seal->capacity : BATCH;
		struct part *more = realloc(seal->parts, capacity * sizeof(*more));
		if (!more) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		seal->parts = more;
		seal->capacity = capacity;
	}
	seal->parts[seal->n_parts++] = (struct part){
		.backing = backing,
		.offset = begin,
		.n_bytes = end - begin,
		.answer = {.fd = -1},
	};
	return 0;
}

/* Pages [begin, end) in parts of at most a block. */
static int add_parts(struct seal *seal, struct glake__backing *backing, uint64_t begin,
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
static int cut(struct seal *seal, const struct span *spans, size_t n_spans, uint64_t begin,
               uint64_t end)
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

/* The facts of a piece, looked up once: only the holder changes it. */
struct look {
	uint64_t offset;
	uint64_t n_bytes;
	enum glake__page_kind kind;
	enum glake__pin pin;
};

static struct look look_at(const struct glake__backing *backing, uint64_t offset)
{
	glake__lock();
	const struct glake__piece *piece = glake__range_piece_locked(backing->range, offset);
	struct look look = {
		.offset = piece->offset,
		.n_bytes = piece->n_bytes,
		.kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE,
		.pin = piece->chunk ? glake__chunk_pin_locked(piece->chunk) : GLAKE__PIN_NONE,
	};
	glake__unlock();
	return look;
}

static bool is_open(const struct look *piece)
{
	return piece->kind == GLAKE__PAGE_CHUNK && piece->pin == GLAKE__PIN_NONE;
}

/* Where the pieces that are like @piece, and can be sealed, end; at most @end. */
static uint64_t end_of_open(const struct glake__backing *backing, struct look piece, uint64_t end)
{
	uint64_t at = piece.offset + piece.n_bytes;
	while (at < end && is_open(&piece)) {
		piece = look_at(backing, at);
		at = is_open(&piece) ? piece.offset + piece.n_bytes : at;
	}
	return at < end ? at : end;
}

/* @spans touch, in one backing, and end at @end. */
static int plan_region(struct seal *seal, const struct span *spans, size_t n_spans, uint64_t end)
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
		struct look piece = look_at(backing, begin);
		uint64_t stop = end_of_open(backing, piece, end);
		if (is_open(&piece)) {
			r = cut(seal, spans, n_spans, begin, stop);
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

static int plan(struct seal *seal)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < seal->n_spans;) {
		const struct span *first = &seal->spans[i];
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

/* ---- repiecing -------------------------------------------------------------------------------- */

static void add_size(uint64_t *sizes, size_t *n, uint64_t n_bytes)
{
	if (n_bytes > 0) {
		sizes[(*n)++] = n_bytes;
	}
}

/* @parts, of the pieces that fill [begin, end), become pieces of their own. @is_one: it is one piece now. */
static int separate(struct part *parts, size_t n_parts, uint64_t begin, uint64_t end, bool is_one)
{
	cleanup_free uint64_t *sizes = calloc(2 * n_parts + 1, sizeof(*sizes));
	struct glake__wait wait = {0};
	uint64_t at = begin;
	size_t n = 0;
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n_parts; i++) {
		add_size(sizes, &n, parts[i].offset - at);
		add_size(sizes, &n, parts[i].n_bytes);
		at = parts[i].offset + parts[i].n_bytes;
	}
	add_size(sizes, &n, end - at);
	return n == 1 && is_one ? 0 : glake__repiece(parts[0].backing, begin, sizes, n, &wait);
}

/* Parts are blocks now, or private for good. */
static void note_causes(const struct part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		glake__unsealed_note(parts[i].backing, parts[i].offset,
		                     parts[i].offset + parts[i].n_bytes,
		                     glake__unsealed_by_pin(parts[i].pin));
	}
}

/*
 * Those of the first piece. The last of them may lie in the next pieces as well, and what it leaves of those is a
 * piece for the parts that follow: so never more than two chunks are copied at a time. Returns how many.
 */
static size_t separate_first(struct seal *seal, struct part *parts, size_t n_left, int *result_out)
{
	struct look piece = look_at(parts[0].backing, parts[0].offset);
	uint64_t end = piece.offset + piece.n_bytes;
	uint64_t begin = piece.offset;
	bool is_one = true;
	size_t n = 1;
	while (n < n_left && parts[n].backing == parts[0].backing && parts[n].offset < end) {
		n++;
	}
	while (end < parts[n - 1].offset + parts[n - 1].n_bytes) {
		piece = look_at(parts[0].backing, end);
		end = piece.offset + piece.n_bytes;
		is_one = false;
	}
	*result_out = separate(parts, n, begin, end, is_one);
	note(seal, *result_out);
	return n;
}

/* Parts whose pieces cannot be cut are dropped. */
static void separate_all(struct seal *seal)
{
	size_t n_kept = 0;
	for (size_t i = 0; i < seal->n_parts;) {
		struct part *first = &seal->parts[i];
		int r;
		size_t n = separate_first(seal, first, seal->n_parts - i, &r);
		if (r == 0) {
			memmove(&seal->parts[n_kept], first, n * sizeof(*first));
			n_kept += n;
		} else {
			note_causes(first, n);
		}
		i += n;
	}
	seal->n_parts = n_kept;
}

/* ---- flipping --------------------------------------------------------------------------------- */

static struct glake__chunk *chunk_of_locked(const struct part *part)
{
	return glake__range_piece_locked(part->backing->range, part->offset)->chunk;
}

/* Called before its access is taken, so that calls behind the gate find the new kind. */
static void mark(const struct part *part, enum glake__page_kind kind)
{
	glake__lock();
	glake__chunk_set_kind_locked(chunk_of_locked(part), kind);
	glake__unlock();
}

/* The bytes behind the allocation belong to nobody. Zeroed, they are equal in all processes. */
static int zero_tail(const struct part *part)
{
	const struct glake__backing *backing = part->backing;
	uint64_t end = backing->whole.n_bytes;
	if (part->offset + part->n_bytes <= end) {
		return 0;
	}
	return glake__context_zero(backing->device, backing->ptr + end, backing->n_bytes - end);
}

/* Nobody can pin the part from here on. A part that is pinned already is not held. */
static int hold_part(struct part *part)
{
	int r = glake__hold_begin(&part->hold, part->backing->ptr + part->offset, part->n_bytes,
	                          true);
	if (r < 0) {
		part->hold.range = NULL;
		return r;
	}
	part->pin = look_at(part->backing, part->offset).pin;
	if (part->pin != GLAKE__PIN_NONE) {
		glake__hold_end(&part->hold);
		part->hold.range = NULL;
	}
	return 0;
}

static int flip(struct part *part)
{
	mark(part, GLAKE__PAGE_BLOCK);
	int r = glake__hold_access(&part->hold, GLAKE__ACCESS_READ);
	part->is_flipped = r == 0;
	if (r < 0) {
		mark(part, GLAKE__PAGE_CHUNK);
	}
	return r;
}

static void unflip(struct part *part)
{
	char *text = glake__error_save();
	glake__hold_access(&part->hold, GLAKE__ACCESS_WRITE);
	mark(part, GLAKE__PAGE_CHUNK);
	part->is_flipped = false;
	glake__error_restore(text);
}

/* Of all that parts lie in. */
static uint64_t readers_of(const struct part *parts, size_t n)
{
	uint64_t readers = 0;
	for (size_t i = 0; i < n; i++) {
		readers |= parts[i].backing->range->readers;
	}
	return readers;
}

static void flip_all(struct seal *seal, struct part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		stop(seal, zero_tail(&parts[i]));
		stop(seal, hold_part(&parts[i]));
	}
	/* Without glaked nothing needs to be held back. */
	stop(seal, n > 0 ? glake__rpc_ping(parts[0].backing->device->session) : 0);
	if (seal->is_stopped) {
		return;
	}
	const uint64_t readers = readers_of(parts, n);
	int r = glake__gate_close_soon(readers);
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (parts[i].hold.range) {
			stop(seal, flip(&parts[i]));
		} else {
			seal->sum.pinned_bytes += parts[i].n_bytes;
		}
		r = i + 1 < n ? glake__gate_pause(readers) : 0;
	}
	if (r == 0) {
		glake__gate_open();
	}
	stop(seal, r);
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* glaked has answered for @part. */
static int take_answer(struct part *part, const struct glake__publication *publication)
{
	struct glake_session *session = part->backing->device->session;
	int r = publication->result;
	if (r < 0 && !glake__may_be_block(r)) {
		unflip(part);
		return r;
	}
	glake__lock();
	glake__backing_seal_locked(session, chunk_of_locked(part),
	                           r < 0 ? publication->chunk : publication->answer.block);
	glake__unlock();
	if (r == 0) {
		part->answer = publication->answer;
		part->is_published = true;
	}
	return r;
}

/* Those that are flipped, unless one could not be. */
static void publish_all(struct seal *seal, struct glake__publisher *publisher, struct part *parts,
                        size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct part *part = &parts[i];
		if (part->is_flipped && seal->is_stopped) {
			unflip(part);
		} else if (part->is_flipped) {
			part->publication = &publisher->list[publisher->n++];
			glake__lock();
			*part->publication = (struct glake__publication){
				.chunk = chunk_of_locked(part)->id,
				.chunk_bytes = part->n_bytes,
				.content_bytes = part->n_bytes,
			};
			glake__unlock();
		}
	}
	glake__publisher_go_on(publisher);
}

/* Wait for the answers. Those that are not asked for yet will not be if there was an error. */
static void take_all(struct seal *seal, struct glake__publisher *publisher, struct part *parts,
                     size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct part *part = &parts[i];
		if (!part->publication) {
			continue;
		}
		if (seal->is_stopped) {
			glake__publisher_stop(publisher);
		}
		glake__publisher_wait(publisher, (size_t)(part->publication - publisher->list) + 1);
		if (!part->publication->is_started) {
			unflip(part);
			continue;
		}
		if (part->publication->result < 0) {
			glake__error_restore(ptr_steal(part->publication->text));
		}
		stop(seal, take_answer(part, part->publication));
		seal->sum.sealed_bytes += part->is_published ? part->n_bytes : 0;
	}
}

/* ---- collapsing ------------------------------------------------------------------------------- */

static bool is_known(const struct part *part)
{
	return part->is_published && part->answer.was_known && part->answer.fd >= 0;
}

static int plan_collapse(const struct part *part, struct glake__rebacking *rebacking)
{
	struct glake__chunk *chunk = glake__chunk_new(
		part->answer.block, part->n_bytes, part->backing->range->device, GLAKE__PAGE_BLOCK);
	*rebacking = (struct glake__rebacking){
		.hold = &part->hold,
		.part = {.chunk = chunk,
	                 .n_bytes = part->n_bytes,
	                 .access = GLAKE__ACCESS_READ,
	                 .fd = part->answer.fd},
	};
	return chunk ? 0 : -ENOMEM;
}

static void go_on(void *publisher)
{
	char *text = glake__error_save();
	glake__publisher_go_on(publisher);
	glake__error_restore(text);
}

static void collapse_all(struct seal *seal, struct glake__publisher *publisher,
                         const struct part *parts, size_t n)
{
	struct glake__rebacking list[BATCH];
	size_t n_known = 0;
	for (size_t i = 0; i < n; i++) {
		if (is_known(&parts[i])) {
			int r = plan_collapse(&parts[i], &list[n_known]);
			note(seal, r);
			n_known += r == 0;
		}
	}
	if (n_known > 0) {
		note(seal, glake__hold_reback_all(list, n_known, go_on, publisher));
	}
	for (size_t i = 0; i < n_known; i++) {
		if (list[i].result == 0) {
			seal->sum.shared_bytes += list[i].part.n_bytes;
			glake__chunks_release(list[i].dead);
		} else {
			/* The driver has mapped neither the block nor what was there: it is lost. */
			glake__backing_return(publisher->session, list[i].dead);
		}
		glake__chunk_put(list[i].part.chunk);
	}
}

/* ---- all of it -------------------------------------------------------------------------------- */

static void end_batch(struct seal *seal, struct glake__publisher *publisher, struct part *parts,
                      size_t n)
{
	take_all(seal, publisher, parts, n);
	collapse_all(seal, publisher, parts, n);
	for (size_t i = 0; i < n; i++) {
		fd_close(&parts[i].answer.fd);
		if (parts[i].hold.range) {
			glake__hold_end(&parts[i].hold);
		}
	}
}

static size_t batch_of(size_t n_parts, size_t begin)
{
	return n_parts - begin < BATCH ? n_parts - begin : BATCH;
}

/*
 * Parts of one session. Those that were not flipped, or are refused, stay private, and so does all that
 * follows.
 */
static int seal_parts(struct seal *seal, struct part *parts, size_t n)
{
	cleanup_free struct glake__publisher *publisher = calloc(1, sizeof(*publisher));
	cleanup_free struct glake__publication *list = calloc(n, sizeof(*list));
	if (!publisher || !list) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	publisher->session = parts[0].backing->device->session;
	publisher->list = list;
	size_t n_begun = 0;
	size_t n_ended = 0;
	while (n_ended < n_begun || (n_begun < n && !seal->is_stopped)) {
		if (n_begun < n && !seal->is_stopped) {
			size_t n_batch = batch_of(n, n_begun);
			flip_all(seal, &parts[n_begun], n_batch);
			publish_all(seal, publisher, &parts[n_begun], n_batch);
			n_begun += n_batch;
		}
		/* The first alone gives glaked nothing to work on meanwhile. */
		if (n_begun > n_ended + BATCH || n_begun == n || seal->is_stopped) {
			size_t n_batch = batch_of(n_begun, n_ended);
			end_batch(seal, publisher, &parts[n_ended], n_batch);
			n_ended += n_batch;
		}
	}
	return 0;
}

static int by_session(const void *a, const void *b)
{
	const struct part *left = a;
	const struct part *right = b;
	uintptr_t sessions[] = {(uintptr_t)left->backing->device->session,
	                        (uintptr_t)right->backing->device->session};
	glake_ptr ptrs[] = {left->backing->ptr + left->offset, right->backing->ptr + right->offset};
	return sessions[0] != sessions[1]
	               ? (sessions[0] > sessions[1]) - (sessions[0] < sessions[1])
	               : (ptrs[0] > ptrs[1]) - (ptrs[0] < ptrs[1]);
}

/* A program may have memory of several sessions. */
static int seal_all(struct seal *seal)
{
	int r = 0;
	if (seal->n_parts == 0) {
		return 0;
	}
	qsort(seal->parts, seal->n_parts, sizeof(*seal->parts), by_session);
	for (size_t i = 0; r == 0 && i < seal->n_parts && !seal->is_stopped;) {
		struct part *first = &seal->parts[i];
		size_t n = 1;
		while (i + n < seal->n_parts &&
		       first[n].backing->device->session == first->backing->device->session) {
			n++;
		}
		r = seal_parts(seal, first, n);
		i += n;
	}
	return r;
}

/* Spans that are no more what they were when they were found are left out. */
static int hold_all(struct seal *seal)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < seal->n_spans; i++) {
		struct span *span = &seal->spans[i];
		r = hold(seal, span);
		if (seal->is_still && (r < 0 || !seal->is_still(span->ptr, span->n_bytes))) {
			span->n_bytes = 0;
			span->end = span->begin;
			r = 0;
		}
	}
	return r;
}

static int run(struct seal *seal)
{
	int r = hold_all(seal);
	if (r < 0) {
		return r;
	}
	r = plan(seal);
	if (r < 0) {
		return r;
	}
	separate_all(seal);
	r = seal_all(seal);
	note_causes(seal->parts, seal->n_parts);
	return r;
}

static int seal_new(struct seal *seal, const struct glake_span *spans, size_t n_spans)
{
	*seal = (struct seal){.n_spans = n_spans};
	seal->spans = calloc(n_spans ? n_spans : 1, sizeof(*seal->spans));
	if (!seal->spans) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n_spans; i++) {
		seal->spans[i].ptr = spans[i].ptr;
		seal->spans[i].n_bytes = spans[i].bytes;
	}
	qsort(seal->spans, n_spans, sizeof(*seal->spans), by_address);
	return 0;
}

/* The session of the first span that can be sealed; NULL: there is none. */
static struct glake_session *session_of(const struct seal *seal)
{
	size_t i = 0;
	while (i < seal->n_spans && !seal->spans[i].held.backing) {
		i++;
	}
	return i < seal->n_spans ? seal->spans[i].held.backing->device->session : NULL;
}

static void count_seal(struct glake_session *session, uint64_t since_ns)
{
	glake__lock();
	session->books.n_seals++;
	session->books.seal_ns += clock_now_ns() - since_ns;
	glake__unlock();
	glake__usage_report_now(session);
}

int glake__seal_still(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      struct glake_sealed *sealed_out)
{
	cleanup_cancel int cancel = cancel_disable();
	uint64_t since_ns = clock_now_ns();
	struct seal seal;
	if (glake__dedup_is_off()) {
		return glake__fail(-EPERM, "GLAKE_DEDUP=off: nothing is sealed");
	}
	glake__gate_take_time();
	int r = seal_new(&seal, spans, n_spans);
	if (r < 0) {
		return r;
	}
	seal.is_still = is_still;
	r = run(&seal);
	struct glake__held_back held = glake__gate_take_time();
	seal.sum.held_ns = held.sum_ns;
	seal.sum.longest_held_ns = held.longest_ns;
	struct glake_session *session = session_of(&seal);
	let_all(&seal);
	if (session) {
		count_seal(session, since_ns);
	}
	free(seal.spans);
	free(seal.parts);
	if (seal.error) {
		glake__error_restore(seal.text);
		r = seal.error;
	}
	if (sealed_out && glake__sized_out(sealed_out, &seal.sum, sizeof(seal.sum)) < 0 && r == 0) {
		r = -EINVAL;
	}
	return session ? glake__leave(session, r) : r;
}

int glake_seal(const struct glake_span *spans, size_t n_spans, struct glake_sealed *sealed_out)
{
	return glake__seal_still(spans, n_spans, NULL, sealed_out);
}

int glake_seal_idle(const struct glake_span *spans, size_t n_spans, struct glake_sealed *sealed_out)
{
	glake__gate_waive();
	int r = glake_seal(spans, n_spans, sealed_out);
	glake__gate_open();
	return r;
}

/* ---- undoing ---------------------------------------------------------------------------------- */

static int unseal_pages(struct glake__backing *backing, uint64_t begin, uint64_t end,
                        enum glake__unsealed why)
{
	struct glake__wait wait = {0};
	int r = 0;
	while (r == 0 && begin < end) {
		struct look piece = look_at(backing, begin);
		if (piece.kind == GLAKE__PAGE_BLOCK) {
			r = glake__repiece(backing, piece.offset, &piece.n_bytes, 1, &wait);
			glake__unsealed_note(backing, piece.offset, piece.offset + piece.n_bytes,
			                     why);
		}
		begin = piece.offset + piece.n_bytes;
	}
	return r;
}

int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why)
{
	cleanup_cancel int cancel = cancel_disable();
	struct span span = {.ptr = ptr, .n_bytes = bytes};
	int r = hold(&span, &span);
	struct glake__backing *backing = span.held.backing;
	if (!backing) {
		return r;
	}
	struct glake_session *session = backing->device->session;
	r = r < 0 ? r : unseal_pages(backing, span.begin, span.end, why);
	glake__heap_let(backing);
	glake__usage_report_now(session);
	return glake__leave(session, r);
}

int glake_unseal(glake_ptr ptr, uint64_t bytes)
{
	return glake__unseal(ptr, bytes, GLAKE__UNSEALED_ASKED);
}

/* Is it in chunks as glake__backing_new() makes them? */
static bool is_as_new(const struct glake__backing *backing)
{
	bool is_new = true;
	for (uint64_t at = 0; is_new && at < backing->n_bytes; at += BACKING_CHUNK_BYTES) {
		struct look piece = look_at(backing, at);
		is_new = piece.kind == GLAKE__PAGE_CHUNK &&
		         piece.n_bytes == glake__backing_chunk_bytes(backing->n_bytes - at);
	}
	return is_new;
}

static int make_new(struct glake__backing *backing)
{
	size_t n = (backing->n_bytes + BACKING_CHUNK_BYTES - 1) / BACKING_CHUNK_BYTES;
	cleanup_free uint64_t *sizes = calloc(n, sizeof(*sizes));
	struct glake__wait wait = {0};
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t n_left = backing->n_bytes - i * BACKING_CHUNK_BYTES;
		sizes[i] = glake__backing_chunk_bytes(n_left);
	}
	return glake__repiece(backing, 0, sizes, n, &wait);
}

int glake__seal_undo(glake_ptr ptr)
{
	struct glake__held held = {0};
	if (!glake__heap_hold(ptr, &held, &held) || !held.backing) {
		return 0;
	}
	struct glake_session *session = held.backing->device->session;
	int r = 0;
	if (!is_as_new(held.backing)) {
		glake__unsealed_blocks(held.backing, GLAKE__UNSEALED_NAMED);
		r = make_new(held.backing);
	}
	if (r < 0) {
		glake__unsealed_blocks(held.backing, GLAKE__UNSEALED_NOT);
	}
	glake__heap_let(held.backing);
	glake__usage_report_now(session);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/range.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "libclient/link/error.h"
#include "libclient/space/map.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"

/* Between two looks at a busy piece. */
#define BUSY_PAUSE_NS 20000

struct glake__sealed glake__sealed;

/* ---- chunks ----------------------------------------------------------------------------------- */

static void free_chunk(struct glake__chunk *chunk)
{
	if (chunk->handle) {
		glake__map_release(chunk->handle);
	}
	free(chunk);
}

struct glake__chunk *glake__chunk_new(uint64_t id, uint64_t n_bytes, int device,
                                      enum glake__page_kind kind)
{
	struct glake__chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk) {
		glake__fail(-ENOMEM, "out of memory");
		return NULL;
	}
	*chunk = (struct glake__chunk){
		.id = id,
		.n_bytes = n_bytes,
		.device = device,
		.kind = kind,
		.n_uses = 1,
		.release = free_chunk,
	};
	return chunk;
}

void glake__chunk_put_locked(struct glake__chunk *chunk, struct glake__chunk **dead)
{
	if (--chunk->n_uses == 0) {
		chunk->next = *dead;
		*dead = chunk;
	}
}

void glake__chunks_release(struct glake__chunk *dead)
{
	while (dead) {
		struct glake__chunk *chunk = dead;
		dead = chunk->next;
		chunk->release(chunk);
	}
}

void glake__chunk_put(struct glake__chunk *chunk)
{
	struct glake__chunk *dead = NULL;
	glake__lock();
	glake__chunk_put_locked(chunk, &dead);
	glake__unlock();
	glake__chunks_release(dead);
}

/* In a mirror for reading: nobody writes there, and nobody is told the address. */
static bool is_read_aside(const struct glake__piece *piece)
{
	return piece->range->use == GLAKE__RANGE_MIRROR && piece->access != GLAKE__ACCESS_WRITE;
}

/* More than once, where somebody could write to it. */
static bool is_aliased(const struct glake__chunk *chunk)
{
	unsigned n = 0;
	for (const struct glake__piece *at = chunk->mappings; n < 2 && at; at = at->next_mapping) {
		n += at->range->use != GLAKE__RANGE_SCRATCH &&
		     at->range->use != GLAKE__RANGE_LOST && !is_read_aside(at);
	}
	return n > 1;
}

enum glake__pin glake__chunk_pin_locked(const struct glake__chunk *chunk)
{
	if (chunk->pins) {
		return (enum glake__pin)__builtin_ctz(chunk->pins);
	}
	if (chunk->n_mappings > 1 && is_aliased(chunk)) {
		return GLAKE__PIN_ALIASED;
	}
	return chunk->n_handles > 0 ? GLAKE__PIN_HANDLE : GLAKE__PIN_NONE;
}

const char *glake__pin_text(enum glake__pin pin)
{
	static const char *const texts[GLAKE__N_PINS] = {
		[GLAKE__PIN_NONE] = "not pinned",
		[GLAKE__PIN_ALIASED] = "mapped more than once",
		[GLAKE__PIN_HANDLE] = "the program has a handle of it",
		[GLAKE__PIN_SHARED] = "named for other processes",
		[GLAKE__PIN_FOREIGN] = "another process's",
		[GLAKE__PIN_EXPORTED] = "its descriptor was handed out",
		[GLAKE__PIN_DMABUF] = "a dma-buf of it was handed out",
		[GLAKE__PIN_SYNC_MEMOPS] = "its memory operations are synchronous",
		[GLAKE__PIN_MULTICAST] = "bound to a multicast object",
	};
	return texts[pin];
}

static bool is_sealed(const struct glake__piece *piece)
{
	return piece->chunk && piece->chunk->kind == GLAKE__PAGE_BLOCK &&
	       piece->range->use != GLAKE__RANGE_MIRROR;
}

/* They grow as long as anything is sealed: launches read them without a lock. */
static void widen_bounds(const struct glake__piece *piece)
{
	struct glake__sealed *sealed = &glake__sealed;
	uint64_t begin = piece->range->ptr + piece->offset;
	uint64_t end = begin + piece->n_bytes;
	if (sealed->n > 0 && sealed->n_bytes > 0) {
		uint64_t old_end = sealed->base + sealed->n_bytes;
		begin = begin < sealed->base ? begin : sealed->base;
		end = end > old_end ? end : old_end;
	}
	sealed->base = begin;
	sealed->n_bytes = end - begin;
}

static void count_sealed(const struct glake__piece *piece)
{
	if (is_sealed(piece)) {
		if (!piece->range->is_outside) {
			widen_bounds(piece);
		}
		glake__sealed.n++;
		glake__sealed.n_sealings++;
	}
}

static void map_chunk(struct glake__piece *piece)
{
	struct glake__chunk *chunk = piece->chunk;
	if (chunk) {
		count_sealed(piece);
		chunk->n_uses++;
		chunk->n_mappings++;
		piece->previous_mapping = NULL;
		piece->next_mapping = chunk->mappings;
		if (piece->next_mapping) {
			piece->next_mapping->previous_mapping = piece;
		}
		chunk->mappings = piece;
	}
}

static void unmap_chunk(struct glake__piece *piece, struct glake__chunk **dead)
{
	struct glake__chunk *chunk = piece->chunk;
	if (!chunk) {
		return;
	}
	if (piece->previous_mapping) {
		piece->previous_mapping->next_mapping = piece->next_mapping;
	} else {
		chunk->mappings = piece->next_mapping;
	}
	if (piece->next_mapping) {
		piece->next_mapping->previous_mapping = piece->previous_mapping;
	}
	glake__sealed.n -= is_sealed(piece);
	chunk->n_mappings--;
	piece->chunk = NULL;
	piece->access = GLAKE__ACCESS_NONE;
	piece->readers = 0;
	piece->writers = 0;
	glake__chunk_put_locked(chunk, dead);
}

/* ---- the page map ----------------------------------------------------------------------------- */

/* The entries of [offset, offset + n_bytes), which is @piece's. */
static void enter_part(const struct glake__piece *piece, uint64_t offset, uint64_t n_bytes)
{
	const struct glake__range *range = piece->range;
	if (range->is_outside) {
		return;
	}
	enum glake__page_kind kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE;
	int device = piece->chunk ? piece->chunk->device : range->device;
	uint64_t entry = glake__page_entry(kind, device, piece);
	uint64_t at = (range->ptr + offset - glake__pages.base) >> GLAKE__PAGE_SHIFT;
	uint64_t n = n_bytes >> GLAKE__PAGE_SHIFT;
	for (uint64_t i = 0; i < n; i++) {
		atomic_store_explicit(&glake__pages.entries[at + i], entry, memory_order_release);
	}
}

static void enter(const struct glake__piece *piece)
{
	enter_part(piece, piece->offset, piece->n_bytes);
}

void glake__chunk_set_kind_locked(struct glake__chunk *chunk, enum glake__page_kind kind)
{
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		glake__sealed.n -= is_sealed(at);
	}
	chunk->kind = kind;
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		count_sealed(at);
		enter(at);
	}
}

/* ---- pieces outside of the window ------------------------------------------------------------- */

/* A program may cut a reservation of its own into thousands of pieces: engines map KV caches page by page. */
static int by_offset(const struct glake__piece *a, const struct glake__piece *b)
{
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

RB_GENERATE_INTERNAL(glake__piece_tree, glake__piece, by_offset, by_offset,
                     __attribute__((unused)) static)

static struct glake__piece *find_in_tree(const struct glake__range *range, uint64_t offset)
{
	struct glake__piece *piece = RB_ROOT(&range->tree);
	while (offset - piece->offset >= piece->n_bytes) {
		piece = offset < piece->offset ? RB_LEFT(piece, by_offset)
		                               : RB_RIGHT(piece, by_offset);
	}
	return piece;
}

static struct glake__range *find_outside(glake_ptr address)
{
	struct glake__range *range = glake__space.outside;
	while (range && address - range->ptr >= range->n_bytes) {
		range = range->next_outside;
	}
	return range;
}

struct glake__piece *glake__piece_at_locked(glake_ptr address)
{
	uint64_t page = glake__page_of(address);
	if (glake__page_kind(page) != GLAKE__PAGE_NONE) {
		return glake__page_pointer(page);
	}
	const struct glake__range *range = find_outside(address);
	return range ? glake__range_piece_locked(range, address - range->ptr) : NULL;
}

struct glake__range *glake__range_at_locked(glake_ptr address, enum glake__range_use use)
{
	const struct glake__piece *piece = glake__piece_at_locked(address);
	return piece && piece->range->use == use ? piece->range : NULL;
}

struct glake__piece *glake__range_piece_locked(const struct glake__range *range, uint64_t offset)
{
	return range->is_outside ? find_in_tree(range, offset)
	                         : glake__page_pointer(glake__page_of(range->ptr + offset));
}

/* ---- rows ------------------------------------------------------------------------------------- */

static struct glake__piece *piece_new(struct glake__range *range)
{
	struct glake__piece *piece = calloc(1, sizeof(*piece));
	if (piece) {
		piece->range = range;
	}
	return piece;
}

static void link_behind(struct glake__piece *piece, struct glake__piece *before)
{
	struct glake__range *range = piece->range;
	piece->previous = before;
	piece->next = before ? before->next : range->first;
	if (before) {
		before->next = piece;
	} else {
		range->first = piece;
	}
	if (piece->next) {
		piece->next->previous = piece;
	}
	if (range->is_outside) {
		RB_INSERT(glake__piece_tree, &range->tree, piece);
	}
}

static void take_out(struct glake__piece *piece)
{
	if (piece->previous) {
		piece->previous->next = piece->next;
	} else {
		piece->range->first = piece->next;
	}
	if (piece->next) {
		piece->next->previous = piece->previous;
	}
	if (piece->range->is_outside) {
		RB_REMOVE(glake__piece_tree, &piece->range->tree, piece);
	}
}

static bool is_free_hole(const struct glake__piece *piece)
{
	return piece && !piece->chunk && !piece->holder;
}

/* Two holes side by side become the larger one. Returns what is left over, out of the row. */
static struct glake__piece *merge(struct glake__piece *left, struct glake__piece *right)
{
	struct glake__piece *larger = left->n_bytes < right->n_bytes ? right : left;
	struct glake__piece *smaller = larger == left ? right : left;
	take_out(smaller);
	larger->offset = left->offset;
	larger->n_bytes += smaller->n_bytes;
	/* Only the smaller one's pages: a hole may be as large as the window. */
	enter_part(larger, smaller->offset, smaller->n_bytes);
	return smaller;
}

/* Every free hole that touches [offset, end) and has a neighbour of its kind. */
static void merge_holes(struct glake__range *range, uint64_t offset, uint64_t end)
{
	struct glake__piece *piece = glake__range_piece_locked(range, offset ? offset - 1 : 0);
	while (piece && piece->offset <= end) {
		if (is_free_hole(piece) && is_free_hole(piece->next)) {
			struct glake__piece *next = piece->next;
			struct glake__piece *gone = merge(piece, next);
			piece = gone == piece ? next : piece;
			free(gone);
		} else {
			piece = piece->next;
		}
	}
}

/*
 * Cut @hole at @offset, into two; @spare becomes the smaller one. Returns the one behind the cut.
 */
static struct glake__piece *cut(struct glake__piece *hole, uint64_t offset,
                                struct glake__piece *spare)
{
	uint64_t n_before = offset - hole->offset;
	uint64_t n_behind = hole->n_bytes - n_before;
	spare->range = hole->range;
	if (n_before < n_behind) {
		spare->offset = hole->offset;
		spare->n_bytes = n_before;
		hole->offset = offset;
		hole->n_bytes = n_behind;
		link_behind(spare, hole->previous);
		enter(spare);
		return hole;
	}
	spare->offset = offset;
	spare->n_bytes = n_behind;
	hole->n_bytes = n_before;
	link_behind(spare, hole);
	enter(spare);
	return spare;
}

/* ---- ranges ----------------------------------------------------------------------------------- */

static glake_ptr take_addresses(uint64_t n_bytes, uint64_t alignment, glake_ptr hint,
                                struct glake__range *range)
{
	glake__lock();
	glake_ptr ptr = glake__window_take(n_bytes, alignment, hint);
	glake__unlock();
	range->is_outside = ptr == 0;
	return ptr;
}

static void enter_range(struct glake__range *range)
{
	glake__lock();
	if (glake__range_is_private(range) && range->device >= 0) {
		range->readers |= glake__space.readers[range->device];
	}
	range->next = glake__space.ranges;
	if (range->next) {
		range->next->previous = range;
	}
	glake__space.ranges = range;
	if (range->is_outside) {
		range->next_outside = glake__space.outside;
		glake__space.outside = range;
	}
	enter(range->first);
	glake__unlock();
}

int glake__range_reserve(enum glake__range_use use, void *user, int device, uint64_t n_bytes,
                         uint64_t alignment, glake_ptr hint, struct glake__range **range_out)
{
	cleanup_free struct glake__range *range = calloc(1, sizeof(*range));
	cleanup_free struct glake__piece *hole = piece_new(range);
	if (!range || !hole) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	*range = (struct glake__range){
		.use = use,
		.user = user,
		.device = device,
		.n_bytes = n_bytes,
		.readers = device >= 0 ? 1ull << device : 0,
	};
	range->ptr = take_addresses(n_bytes, alignment, hint, range);
	if (range->is_outside) {
		int r = glake__map_reserve(n_bytes, alignment, hint, &range->ptr);
		if (r < 0) {
			return r;
		}
	}
	hole->n_bytes = n_bytes;
	link_behind(ptr_steal(hole), NULL);
	enter_range(range);
	*range_out = ptr_steal(range);
	return 0;
}

static void leave_range(struct glake__range *range)
{
	if (range->next) {
		range->next->previous = range->previous;
	}
	if (range->previous) {
		range->previous->next = range->next;
	} else {
		glake__space.ranges = range->next;
	}
	struct glake__range **link = &glake__space.outside;
	while (range->is_outside && *link != range) {
		link = &(*link)->next_outside;
	}
	if (range->is_outside) {
		*link = range->next_outside;
	}
}

int glake__range_drop(struct glake__range *range)
{
	glake__lock();
	bool is_empty = is_free_hole(range->first) && !range->first->next;
	if (is_empty) {
		leave_range(range);
		if (!range->is_outside) {
			glake__window_give(range->ptr, range->n_bytes);
		}
	}
	glake__unlock();
	if (!is_empty) {
		return glake__fail(-EBUSY, "the range at 0x%llx still has memory mapped",
		                   (unsigned long long)range->ptr);
	}
	int r = range->is_outside ? glake__map_unreserve(range->ptr, range->n_bytes) : 0;
	free(range->first);
	free(range);
	return r;
}

void glake__range_forget(struct glake__range *range)
{
	struct glake__chunk *dead = NULL;
	while (range->first) {
		struct glake__piece *piece = range->first;
		range->first = piece->next;
		if (piece->chunk) {
			piece->chunk->handle = 0;
		}
		unmap_chunk(piece, &dead);
		free(piece);
	}
	glake__chunks_release(dead);
	free(range);
}

/* ---- changes ---------------------------------------------------------------------------------- */

static void change_free(struct glake__change *change)
{
	while (change->fresh) {
		struct glake__piece *piece = change->fresh;
		change->fresh = piece->next;
		free(piece);
	}
	free(change->edges[0]);
	free(change->edges[1]);
	*change = (struct glake__change){.range = NULL};
}

/* The pieces are in no range yet, and begin at offset 0. */
static int prepare(struct glake__change *change, const struct glake__part *parts, size_t n_parts)
{
	struct glake__piece **link = &change->fresh;
	for (size_t i = 0; i < n_parts; i++) {
		*link = piece_new(NULL);
		if (!*link) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		(*link)->offset = change->n_bytes;
		(*link)->n_bytes = parts[i].n_bytes;
		(*link)->chunk = parts[i].chunk;
		(*link)->access = parts[i].chunk ? parts[i].access : GLAKE__ACCESS_NONE;
		change->n_bytes += parts[i].n_bytes;
		link = &(*link)->next;
	}
	change->edges[0] = piece_new(NULL);
	change->edges[1] = piece_new(NULL);
	return change->edges[0] && change->edges[1] ? 0 : glake__fail(-ENOMEM, "out of memory");
}

static int refuse(const struct glake__change *change, int error, glake_ptr ptr, const char *why)
{
	return glake__fail(error, "%llu bytes at 0x%llx: %s", (unsigned long long)change->n_bytes,
	                   (unsigned long long)ptr, why);
}

/* A change under a hold concerns what is held, and holes: another thread may have filled one meanwhile. */
static bool is_busy_for(const struct glake__change *change, const struct glake__piece *piece)
{
	bool is_held = change->hold && piece->holder == change->hold;
	return !is_held && (piece->holder || (change->hold && piece->chunk));
}

/* Can it begin? Called with the lock held. */
static int check_locked(const struct glake__change *change, const char **why_out)
{
	const struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	*why_out = "not within a range";
	if (!range || change->n_bytes == 0 || end < change->offset || end > range->n_bytes) {
		return -EINVAL;
	}
	const struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		bool is_cut = piece->offset < change->offset ||
		              piece->offset + piece->n_bytes > end;
		*why_out = "part of a chunk";
		if (is_cut && piece->chunk) {
			return -EINVAL;
		}
		*why_out = "another thread works on it";
		if (is_busy_for(change, piece)) {
			return -EBUSY;
		}
	}
	return 0;
}

/*
 * The readers of @chunk in @range, in place of what @replaced read. In its own reservations the program
 * alone says which devices have access; elsewhere the device of the memory has it, too.
 */
static uint64_t readers_of(const struct glake__range *range, const struct glake__chunk *chunk,
                           uint64_t replaced)
{
	if (!chunk || range->use == GLAKE__RANGE_PROGRAM) {
		return chunk ? replaced : 0;
	}
	return range->readers | replaced | (chunk->device >= 0 ? 1ull << chunk->device : 0);
}

static void begin_locked(struct glake__change *change)
{
	struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	uint64_t readers = 0; /* of what is there */
	uint64_t writers = 0;
	struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	if (piece->offset < change->offset) {
		piece = cut(piece, change->offset, ptr_steal(change->edges[0]));
	}
	struct glake__piece *last = glake__range_piece_locked(range, end - 1);
	if (last->offset + last->n_bytes > end) {
		bool is_same = last == piece;
		struct glake__piece *behind = cut(last, end, ptr_steal(change->edges[1]));
		piece = is_same ? behind->previous : piece;
	}
	for (; piece && piece->offset < end; piece = piece->next) {
		piece->holder = change;
		readers |= piece->readers;
		writers |= piece->writers;
	}
	for (struct glake__piece *fresh = change->fresh; fresh; fresh = fresh->next) {
		fresh->range = range;
		fresh->offset += change->offset;
		fresh->readers = readers_of(range, fresh->chunk, readers);
		fresh->writers = writers & fresh->readers;
	}
}

static int try_begin(struct glake__change *change, const struct glake__site *site,
                     const char **why_out)
{
	glake__lock();
	change->range = site->range ? site->range : glake__range_at_locked(site->ptr, site->use);
	change->offset = change->range ? site->ptr - change->range->ptr : 0;
	int r = check_locked(change, why_out);
	if (r == 0) {
		begin_locked(change);
	}
	glake__unlock();
	return r;
}

int glake__change_begin(struct glake__change *change, const struct glake__site *site,
                        const struct glake__part *parts, size_t n_parts)
{
	const char *why = NULL;
	*change = (struct glake__change){.hold = site->hold};
	int r = prepare(change, parts, n_parts);
	if (r == 0) {
		r = try_begin(change, site, &why);
		while (r == -EBUSY && site->waits) {
			glake__busy_pause();
			r = try_begin(change, site, &why);
		}
		r = r < 0 ? refuse(change, r, site->ptr, why) : 0;
	}
	if (r < 0) {
		change_free(change);
	}
	return r;
}

struct glake__piece *glake__change_first(const struct glake__change *change)
{
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(change->range, change->offset);
	glake__unlock();
	return piece;
}

/* Called with the lock held; unlocks it. */
static void end_change(struct glake__change *change)
{
	struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		piece->holder = piece->chunk ? change->hold : NULL;
	}
	merge_holes(range, change->offset, end);
	glake__unlock();
	change_free(change);
}

void glake__change_commit(struct glake__change *change, struct glake__chunk **dead)
{
	struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *old = NULL;
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	struct glake__piece *before = piece->previous;
	while (piece && piece->offset < end) {
		struct glake__piece *next = piece->next;
		take_out(piece);
		piece->next = old;
		old = piece;
		piece = next;
	}
	/* New mappings first: a chunk that only changes its place must not die between. */
	while (change->fresh) {
		struct glake__piece *fresh = change->fresh;
		change->fresh = fresh->next;
		fresh->holder = change;
		link_behind(fresh, before);
		map_chunk(fresh);
		enter(fresh);
		before = fresh;
	}
	for (piece = old; piece; piece = piece->next) {
		unmap_chunk(piece, dead);
	}
	change->fresh = old;
	end_change(change);
}

void glake__change_cancel(struct glake__change *change, struct glake__chunk **dead)
{
	uint64_t end = change->offset + change->n_bytes;
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(change->range, change->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		if (piece->is_unmapped) {
			unmap_chunk(piece, dead);
			enter(piece);
		}
		piece->is_unmapped = false;
	}
	end_change(change);
}

/* ---- holds ------------------------------------------------------------------------------------ */

void glake__busy_pause(void)
{
	cleanup_cancel int cancel = cancel_disable();
	const struct timespec pause = {.tv_nsec = BUSY_PAUSE_NS};
	nanosleep(&pause, NULL);
}

static bool is_any_busy(const struct glake__piece *piece, uint64_t end)
{
	for (; piece && piece->offset < end; piece = piece->next) {
		if (piece->chunk && piece->holder) {
			return true;
		}
	}
	return false;
}

static void hold_locked(struct glake__hold *hold, struct glake__piece *piece, uint64_t end)
{
	*hold = (struct glake__hold){.offset = piece->offset};
	for (; piece && piece->offset < end; piece = piece->next) {
		hold->n_bytes += piece->n_bytes;
		if (piece->chunk) {
			piece->holder = hold;
			hold->range = piece->range;
		}
	}
}

static int try_hold(struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes)
{
	int r = -ENOENT;
	glake__lock();
	struct glake__piece *piece = glake__piece_at_locked(ptr);
	if (piece) {
		uint64_t end = ptr - piece->range->ptr + n_bytes;
		r = is_any_busy(piece, end) ? -EBUSY : 0;
		if (r == 0) {
			hold_locked(hold, piece, end);
		}
	}
	glake__unlock();
	return r;
}

int glake__hold_begin(struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes, bool waits)
{
	int r = try_hold(hold, ptr, n_bytes);
	while (r == -EBUSY && waits) {
		glake__busy_pause();
		r = try_hold(hold, ptr, n_bytes);
	}
	return r;
}

void glake__hold_end(struct glake__hold *hold)
{
	uint64_t end = hold->offset + hold->n_bytes;
	if (!hold->range) {
		return;
	}
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(hold->range, hold->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		piece->holder = piece->holder == hold ? NULL : piece->holder;
	}
	glake__unlock();
}

/* ---- sealed memory ---------------------------------------------------------------------------- */

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* In the window: by the page map, without a lock. 0: none. */
static glake_ptr find_sealed_inside(glake_ptr begin, glake_ptr end)
{
	glake_ptr base = glake__pages.base;
	glake_ptr at = later(begin, base);
	end = sooner(end, base + glake__pages.n_bytes);
	while (at < end && glake__page_kind(glake__page_of(at)) != GLAKE__PAGE_BLOCK) {
		at = (at / GLAKE__PAGE_BYTES + 1) * GLAKE__PAGE_BYTES;
	}
	return at < end ? at : 0;
}

static glake_ptr find_sealed_outside_locked(glake_ptr begin, glake_ptr end)
{
	for (const struct glake__range *range = glake__space.outside; range;
	     range = range->next_outside) {
		for (const struct glake__piece *at = range->first; at; at = at->next) {
			glake_ptr ptr = range->ptr + at->offset;
			if (begin < ptr + at->n_bytes && ptr < end && is_sealed(at)) {
				return later(begin, ptr);
			}
		}
	}
	return 0;
}

glake_ptr glake__find_sealed(glake_ptr ptr, uint64_t n_bytes)
{
	glake_ptr end = n_bytes > UINT64_MAX - ptr ? UINT64_MAX : ptr + n_bytes;
	glake_ptr found = find_sealed_inside(ptr, end);
	if (!found) {
		glake__lock();
		found = find_sealed_outside_locked(ptr, end);
		glake__unlock();
	}
	return found;
}

uint64_t glake__sealed_bytes(void)
{
	uint64_t n_bytes = 0;
	glake__lock();
	for (const struct glake__range *range = glake__space.ranges; range; range = range->next) {
		for (const struct glake__piece *at = range->first; at; at = at->next) {
			n_bytes += is_sealed(at) ? at->n_bytes : 0;
		}
	}
	glake__unlock();
	return n_bytes;
}

/* ---- for tests -------------------------------------------------------------------------------- */

static bool chunk_is_valid(const struct glake__chunk *chunk)
{
	uint32_t n = 0;
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		n += at->chunk == chunk;
	}
	return n == chunk->n_mappings && chunk->n_uses >= n + chunk->n_handles;
}

static bool piece_is_valid(const struct glake__piece *piece)
{
	const struct glake__range *range = piece->range;
	if (piece->next && (piece->next->previous != piece || piece->next->range != range ||
	                    (is_free_hole(piece) && is_free_hole(piece->next)))) {
		return false;
	}
	if (piece->chunk &&
	    (piece->chunk->n_bytes != piece->n_bytes || !chunk_is_valid(piece->chunk))) {
		return false;
	}
	for (uint64_t at = 0; at < piece->n_bytes; at += GLAKE__PAGE_BYTES) {
		glake_ptr ptr = range->ptr + piece->offset + at;
		uint64_t page = glake__page_of(ptr);
		enum glake__page_kind kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE;
		if (glake__piece_at_locked(ptr) != piece ||
		    (!range->is_outside && glake__page_kind(page) != kind)) {
			return false;
		}
	}
	return true;
}

static bool is_in_bounds(const struct glake__piece *piece)
{
	uint64_t at = piece->range->ptr + piece->offset - glake__sealed.base;
	return at < glake__sealed.n_bytes && piece->n_bytes <= glake__sealed.n_bytes - at;
}

static bool range_is_valid(const struct glake__range *range, uint64_t *n_sealed)
{
	bool is_within = true;
	uint64_t at = 0;
	for (const struct glake__piece *piece = range->first; piece; piece = piece->next) {
		if (piece->offset != at || piece->n_bytes == 0 || piece->range != range ||
		    !piece_is_valid(piece)) {
			return false;
		}
		*n_sealed += is_sealed(piece);
		is_within &= !is_sealed(piece) || range->is_outside || is_in_bounds(piece);
		at += piece->n_bytes;
	}
	return is_within && at == range->n_bytes &&
	       range->is_outside == !glake__window_has(range->ptr);
}

bool glake__space_is_valid(void)
{
	uint64_t n_sealed = 0;
	glake__lock();
	bool is_valid = glake__window_is_valid();
	for (const struct glake__range *at = glake__space.ranges; is_valid && at; at = at->next) {
		is_valid = range_is_valid(at, &n_sealed);
	}
	is_valid = is_valid && glake__sealed.n == n_sealed;
	glake__unlock();
	return is_valid;
}

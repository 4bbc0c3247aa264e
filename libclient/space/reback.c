/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver call can fail after the old memory is unmapped. So a handle of the old memory is kept until the change is
 * committed, and each step has one that undoes it:
 *
 *   hold           what is there, at all places where it is mapped    let it
 *   begin          a change of each place                             cancel
 *   take handles   of what is new, of what was there                  release them
 *   close          the gate, if access goes                           open
 *   unmap          what was there, everywhere                         map it by its handle, give it its access
 *   map            what is new                                        unmap
 *   access         one call for a run of equal ones                   the unmapping above
 *   open
 *   commit         all changes at once
 *
 * A number (number.h) is a place without addresses: its row changes with the others, and no driver is called.
 *
 * A handle of what was there costs a driver call for each piece, and is what makes undoing possible. So a
 * clear, after which nobody wants anything back, takes none.
 *
 * Others wait for the end of a change. So who makes one is not cancelled meanwhile, as he might be in the driver.
 */
#include "libclient/space/reback.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/access.h"
#include "libclient/space/map.h"
#include "libclient/space/row.h"
#include "proto/cleanup.h"

/* One piece of memory, old or new, in its place. */
struct step {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__chunk *chunk; /* NULL: a hole */
	struct glake__piece *piece; /* of what was there */
	enum glake__access access;
	uint64_t readers;
	uint64_t writers; /* of readers: where access is to write */
	CUmemGenericAllocationHandle handle;
	bool is_handle_ours;
	bool is_kept;    /* the chunk keeps the handle once it is there */
	bool is_nowhere; /* only named: no driver call */
	bool is_mapped;
};

struct row {
	struct step *steps; /* owned */
	size_t n;
};

struct work {
	struct glake__change *changes; /* owned: of the caller's place, then of the others */
	size_t *firsts;                /* owned: of each change, the first of the parts */
	size_t n_changes;
	struct row old;
	struct row new;
	uint64_t gated; /* who reads what goes */
};

/* ---- rows ------------------------------------------------------------------------------------- */

static int row_init(struct row *row, size_t n)
{
	row->n = 0;
	row->steps = calloc(n + 1, sizeof(*row->steps));
	return row->steps ? 0 : glake__fail(-ENOMEM, "out of memory");
}

static void row_deinit(struct row *row)
{
	for (size_t i = 0; i < row->n && row->steps; i++) {
		if (row->steps[i].is_handle_ours) {
			glake__map_release(row->steps[i].handle);
		}
	}
	free(row->steps);
}

static struct step *row_add(struct row *row, const struct glake__piece *piece)
{
	struct step *step = &row->steps[row->n++];
	*step = (struct step){
		.ptr = piece->range->ptr + piece->offset,
		.n_bytes = piece->n_bytes,
		.chunk = piece->chunk,
		.access = piece->access,
		.readers = piece->readers,
		.writers = glake__access_writers(piece),
	};
	return step;
}

static int row_unmap(struct row *row)
{
	int error = 0;
	for (size_t i = 0; i < row->n; i++) {
		struct step *step = &row->steps[i];
		if (error == 0 && step->is_mapped) {
			error = glake__map_unmap(step->ptr, step->n_bytes);
			step->is_mapped = error < 0;
		}
	}
	return error;
}

static bool is_equal_access(const struct step *one, const struct step *other)
{
	return one->access == other->access && one->readers == other->readers &&
	       one->writers == other->writers;
}

/* One call for each run of pieces that lie side by side and have equal access. */
static int row_access(const struct row *row)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < row->n;) {
		const struct step *first = &row->steps[i];
		uint64_t n_bytes = 0;
		while (i < row->n && row->steps[i].is_mapped &&
		       is_equal_access(&row->steps[i], first) &&
		       row->steps[i].ptr == first->ptr + n_bytes) {
			n_bytes += row->steps[i++].n_bytes;
		}
		if (n_bytes == 0) {
			i++;
		} else {
			r = glake__access_set(first->ptr, n_bytes, first->readers, first->writers,
			                      first->access);
		}
	}
	return r;
}

static int row_map(struct row *row)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < row->n; i++) {
		struct step *step = &row->steps[i];
		if (step->chunk && !step->is_mapped && !step->is_nowhere) {
			r = glake__map_handle(step->ptr, step->n_bytes, step->handle);
			step->is_mapped = r == 0;
		}
	}
	return r < 0 ? r : row_access(row);
}

/* ---- the changes of all places ---------------------------------------------------------------- */

/* How many places the held memory in [offset, offset + n_bytes) of @range has elsewhere. */
static size_t count_places(const struct glake__range *range, uint64_t offset, uint64_t n_bytes)
{
	size_t n = 0;
	glake__lock();
	const struct glake__piece *piece = glake__range_piece_locked(range, offset);
	for (; piece && piece->offset < offset + n_bytes; piece = piece->next) {
		n += piece->chunk ? glake__places_locked(piece, NULL, 0) : 0;
	}
	glake__unlock();
	return n;
}

/* The parts that take exactly the place of [begin, end). 0: there are none such. */
static size_t find_parts(const struct glake__part *parts, size_t n_parts, uint64_t begin,
                         uint64_t end, size_t *first_out)
{
	uint64_t at = 0;
	size_t i = 0;
	while (i < n_parts && at < begin) {
		at += parts[i++].n_bytes;
	}
	size_t first = i;
	bool begins = at == begin;
	while (i < n_parts && at < end) {
		at += parts[i++].n_bytes;
	}
	*first_out = first;
	return begins && at == end ? i - first : 0;
}

/* New memory takes all places of @piece, not only this one. */
static int change_places(struct work *work, const struct glake__piece *piece,
                         const struct glake__hold *hold, const struct glake__part *parts,
                         size_t n_parts)
{
	const struct glake__change *own = &work->changes[0];
	uint64_t begin = piece->offset - own->offset;
	size_t first;
	glake__lock();
	size_t n = piece->chunk ? glake__places_locked(piece, NULL, 0) : 0;
	glake__unlock();
	if (n == 0) {
		return 0;
	}
	cleanup_free struct glake__place *places = calloc(n, sizeof(*places));
	if (!places) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	glake__lock();
	glake__places_locked(piece, places, n);
	glake__unlock();
	size_t n_taken = find_parts(parts, n_parts, begin, begin + piece->n_bytes, &first);
	int r = n_taken > 0
	                ? 0
	                : glake__fail(-EINVAL, "the memory at 0x%llx is mapped elsewhere, alone",
	                              (unsigned long long)(own->range->ptr + piece->offset));
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct glake__site site = {
			.range = places[i].range,
			.ptr = places[i].range->ptr + places[i].offset,
			.hold = hold,
		};
		r = glake__change_begin(&work->changes[work->n_changes], &site, &parts[first],
		                        n_taken);
		work->firsts[work->n_changes] = first;
		work->n_changes += r == 0;
	}
	return r;
}

/* Begin to put @parts at @site, and at all other places of what is there. It is held, or only holes are there. */
static int begin_changes(struct work *work, const struct glake__site *site,
                         const struct glake__part *parts, size_t n_parts)
{
	uint64_t n_bytes = 0;
	for (size_t i = 0; i < n_parts; i++) {
		n_bytes += parts[i].n_bytes;
	}
	size_t n = 1;
	if (site->hold) {
		n += count_places(site->range, site->ptr - site->range->ptr, n_bytes);
	}
	work->changes = calloc(n, sizeof(*work->changes));
	work->firsts = calloc(n, sizeof(*work->firsts));
	if (!work->changes || !work->firsts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__change_begin(&work->changes[0], site, parts, n_parts);
	work->n_changes = r == 0;
	struct glake__piece *piece = r == 0 && site->hold ? glake__change_first(&work->changes[0])
	                                                  : NULL;
	for (; r == 0 && piece; piece = glake__change_next(&work->changes[0], piece)) {
		r = change_places(work, piece, site->hold, parts, n_parts);
	}
	return r;
}

/* ---- the parts of a reback -------------------------------------------------------------------- */

/* Not a place of our own, if there is another: those come and go while the chunk is held. */
static const struct glake__piece *mapping_of_locked(const struct glake__chunk *chunk)
{
	const struct glake__piece *ours = NULL;
	const struct glake__piece *at = chunk->mappings;
	for (; at && (at->range->use->is_nowhere || at->range->use->is_ours);
	     at = at->next_mapping) {
		ours = at->range->use->is_ours ? at : ours;
	}
	return at ? at : ours;
}

/* Where @chunk is mapped, somewhere. */
static bool find_mapping(const struct glake__chunk *chunk, glake_ptr *ptr_out)
{
	glake__lock();
	const struct glake__piece *piece = mapping_of_locked(chunk);
	if (piece) {
		*ptr_out = piece->range->ptr + piece->offset;
	}
	glake__unlock();
	return piece != NULL;
}

/* A handle of @part, if it has memory. */
static int take_handle(const struct glake__part *part, struct step *step)
{
	glake_ptr mapped = 0;
	int r;
	if (!part->chunk || part->handle || part->chunk->handle) {
		step->handle = part->chunk && !part->handle ? part->chunk->handle : part->handle;
		return 0;
	}
	if (part->fd >= 0) {
		r = glake__map_import(part->fd, &step->handle);
	} else if (find_mapping(part->chunk, &mapped)) {
		r = glake__map_retain(mapped, &step->handle);
	} else {
		r = glake__fail(-EINVAL, "there is no way to the memory to be mapped");
	}
	step->is_handle_ours = r == 0;
	return r;
}

/* The first row has the handles; the others are of the same parts. */
static int take_new(struct work *work, const struct glake__part *parts, size_t n_parts)
{
	size_t n_steps = 0;
	for (size_t i = 0; i < work->n_changes; i++) {
		const struct glake__piece *fresh = work->changes[i].fresh;
		for (; fresh; fresh = fresh->next) {
			n_steps++;
		}
	}
	int r = row_init(&work->new, n_steps);
	for (size_t i = 0; r == 0 && i < work->n_changes; i++) {
		const struct glake__change *change = &work->changes[i];
		const struct glake__use *use = change->range->use;
		const struct glake__piece *fresh = change->fresh;
		for (size_t k = work->firsts[i]; r == 0 && fresh; fresh = fresh->next, k++) {
			struct step *step = row_add(&work->new, fresh);
			step->is_nowhere = use->is_nowhere;
			if (i == 0) {
				r = take_handle(&parts[k], step);
			} else {
				step->handle = work->new.steps[k].handle;
			}
			work->new.steps[k].is_kept |= use->is_nowhere || use->keeps_handles;
		}
	}
	return r;
}

static size_t count_old(const struct work *work)
{
	size_t n = 0;
	for (size_t i = 0; i < work->n_changes; i++) {
		const struct glake__piece *at = glake__change_first(&work->changes[i]);
		for (; at; at = glake__change_next(&work->changes[i], at)) {
			n += at->chunk != NULL;
		}
	}
	return n;
}

/* Other threads may pin the chunk meanwhile, so its pin is read under the lock. */
static int check_pin(const struct glake__piece *piece)
{
	glake__lock();
	enum glake__pin pin = glake__chunk_pin_locked(piece->chunk);
	glake__unlock();
	return pin ? glake__fail(-EBUSY, "the memory at 0x%llx is pinned: %s",
	                         (unsigned long long)(piece->range->ptr + piece->offset),
	                         glake__pin_text(pin))
	           : 0;
}

static int add_old(struct work *work, struct glake__piece *piece)
{
	int r = check_pin(piece);
	if (r < 0 || piece->range->use->is_nowhere) {
		return r;
	}
	struct step *step = row_add(&work->old, piece);
	step->piece = piece;
	step->is_mapped = true;
	step->handle = piece->chunk->handle;
	if (!step->handle) {
		r = glake__map_retain(step->ptr, &step->handle);
		step->is_handle_ours = r == 0;
	}
	work->gated |= step->readers;
	return r;
}

/* The pieces are busy: their rows stay. */
static int take_old(struct work *work)
{
	int r = row_init(&work->old, count_old(work));
	for (size_t i = 0; r == 0 && i < work->n_changes; i++) {
		struct glake__piece *piece = glake__change_first(&work->changes[i]);
		for (; r == 0 && piece; piece = glake__change_next(&work->changes[i], piece)) {
			r = piece->chunk ? add_old(work, piece) : 0;
		}
	}
	return r;
}

/* Mapped again, with its access: without it, it is of no use either. */
static bool put_back(struct step *step)
{
	if (!step->is_mapped && glake__map_handle(step->ptr, step->n_bytes, step->handle) < 0) {
		return false;
	}
	step->is_mapped = true;
	if (glake__access_set(step->ptr, step->n_bytes, step->readers, step->writers,
	                      step->access) < 0) {
		step->is_mapped = glake__map_unmap(step->ptr, step->n_bytes) < 0;
	}
	return step->is_mapped;
}

/* Puts the old memory back in its places. What does not come back is a hole now. */
static void undo(struct work *work)
{
	char *text = glake__error_save();
	row_unmap(&work->new);
	bool is_cut = row_map(&work->old) < 0;
	/* All at once did not work; what can be saved is. */
	for (size_t i = 0; is_cut && i < work->old.n; i++) {
		struct step *step = &work->old.steps[i];
		step->piece->is_unmapped = !put_back(step);
	}
	glake__error_restore(text);
}

/* Everything that can be done while the program goes on. After an error: finish() too. */
static int prepare(struct work *work, const struct glake__site *site,
                   const struct glake__part *parts, size_t n_parts)
{
	int r = begin_changes(work, site, parts, n_parts);
	if (r == 0) {
		r = take_new(work, parts, n_parts);
	}
	return r == 0 ? take_old(work) : r;
}

/* With the gate closed, if access goes. */
static int exchange(struct work *work)
{
	int r = row_unmap(&work->old);
	if (r == 0) {
		r = row_map(&work->new);
	}
	if (r < 0) {
		undo(work);
	}
	return r;
}

/* A chunk that is mapped again and again has its handle, which is the library's. */
static void keep_handles(struct row *row)
{
	for (size_t i = 0; i < row->n; i++) {
		struct step *step = &row->steps[i];
		if (step->is_kept && step->is_handle_ours) {
			step->chunk->handle = step->handle;
			step->is_handle_ours = false;
		}
	}
}

static void finish(struct work *work, int r, struct glake__chunk **dead)
{
	struct glake__chunk *unused = NULL;
	if (r == 0) {
		keep_handles(&work->new);
		glake__changes_commit(work->changes, work->n_changes, dead ? dead : &unused);
	} else {
		glake__changes_cancel(work->changes, work->n_changes, dead ? dead : &unused);
	}
	free(work->changes);
	free(work->firsts);
	row_deinit(&work->new);
	row_deinit(&work->old);
	glake__chunks_release(unused);
}

static int hold_own(struct glake__hold *own, struct glake__range *range, uint64_t offset,
                    uint64_t n_bytes)
{
	struct glake__holding holding = {
		.hold = own, .range = range, .ptr = offset, .n_bytes = n_bytes};
	return glake__holds_begin(&holding, 1, false) < 0
	               ? glake__fail(-EBUSY, "another thread works on the memory at 0x%llx",
	                             (unsigned long long)(range->ptr + offset))
	               : 0;
}

static bool is_within(const struct glake__range *range, uint64_t offset, uint64_t n_bytes)
{
	return n_bytes > 0 && offset < range->n_bytes && n_bytes <= range->n_bytes - offset;
}

static struct glake__site site_in(struct glake__range *range, uint64_t offset)
{
	return (struct glake__site){.range = range, .ptr = range->ptr + offset};
}

static int exchange_one(struct work *work, const struct glake__rebacking_way *way, size_t i)
{
	int r = way->before ? way->before(way->user, i) : 0;
	return r < 0 ? r : exchange(work);
}

/* Exchanges the prepared ones. */
static void exchange_all(struct work *works, struct glake__rebacking *list, size_t n,
                         const struct glake__rebacking_way *way)
{
	uint64_t gated = way->readers;
	for (size_t i = 0; i < n; i++) {
		gated |= list[i].result == 0 ? works[i].gated : 0;
	}
	int closed = (way->close ? way->close : glake__gate_close_soon)(gated);
	for (size_t i = 0; i < n; i++) {
		if (list[i].result == 0) {
			list[i].result = closed < 0 ? closed : exchange_one(&works[i], way, i);
		}
		if (closed == 0 && !way->close && i + 1 < n) {
			closed = glake__gate_pause(gated);
		}
	}
	if (closed == 0) {
		glake__gate_open();
	}
}

static void go_on(const struct glake__rebacking_way *way)
{
	if (way->meanwhile) {
		way->meanwhile(way->user);
	}
}

int glake__hold_reback_all(struct glake__rebacking *list, size_t n,
                           const struct glake__rebacking_way *way)
{
	cleanup_cancel int cancel = cancel_disable();
	cleanup_free struct work *works = calloc(n, sizeof(*works));
	int error = 0;
	if (!works) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		struct glake__site site = site_in(list[i].hold->range, list[i].hold->offset);
		site.hold = list[i].hold;
		list[i].result = prepare(&works[i], &site, list[i].parts, list[i].n_parts);
		go_on(way);
	}
	exchange_all(works, list, n, way);
	char *text = glake__error_save();
	for (size_t i = 0; i < n; i++) {
		finish(&works[i], list[i].result, &list[i].dead);
		error = error ? error : list[i].result;
		go_on(way);
	}
	glake__error_restore(text);
	return error;
}

int glake__range_fill(struct glake__range *range, uint64_t offset, const struct glake__part *parts,
                      size_t n_parts)
{
	cleanup_cancel int cancel = cancel_disable();
	struct work work = {.gated = 0};
	const struct glake__site site = site_in(range, offset);
	int r = begin_changes(&work, &site, parts, n_parts);
	if (r == 0 && count_old(&work) > 0) {
		r = glake__fail(-EINVAL, "%llu bytes at 0x%llx: already mapped, in part",
		                (unsigned long long)work.changes[0].n_bytes,
		                (unsigned long long)site.ptr);
	}
	r = r == 0 ? take_new(&work, parts, n_parts) : r;
	r = r == 0 ? exchange(&work) : r;
	finish(&work, r, NULL);
	return r;
}

/* ---- access, everywhere ----------------------------------------------------------------------- */

/* A mapped piece that gets other access. */
struct opened {
	struct glake__piece *piece;
	enum glake__access was;
	enum glake__access access;
};

struct opening {
	struct opened *list; /* owned */
	size_t n;
	uint64_t readers;
	bool takes;
};

static void add_opened(struct opening *opening, struct glake__piece *piece,
                       enum glake__access access)
{
	struct opened *at = &opening->list[opening->n++];
	*at = (struct opened){piece, piece->access, glake__piece_most(piece, access)};
	/* The program has given nobody access there yet. */
	if (piece->range->use->is_programs && piece->access == GLAKE__ACCESS_NONE) {
		at->access = GLAKE__ACCESS_NONE;
	}
	opening->readers |= piece->readers;
	opening->takes |= at->access < at->was;
}

/* Called with the lock held; counts with list NULL. */
static size_t list_opened(struct opening *opening, const struct glake__hold *hold,
                          enum glake__access access)
{
	uint64_t end = hold->offset + hold->n_bytes;
	size_t n = 0;
	struct glake__piece *piece = glake__range_piece_locked(hold->range, hold->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		struct glake__piece *at = piece->chunk && piece->holder == hold->owner
		                                  ? piece->chunk->mappings
		                                  : NULL;
		for (; at; at = at->next_mapping) {
			bool is_one = at->holder == hold->owner && !at->range->use->is_nowhere;
			n += is_one;
			if (is_one && opening->list) {
				add_opened(opening, at, access);
			}
		}
	}
	return n;
}

/* One call for each run of equal ones. @is_back: what they had. */
static int open_all(const struct opening *opening, bool is_back)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < opening->n;) {
		const struct opened *first = &opening->list[i];
		const struct glake__piece *piece = first->piece;
		uint64_t n_bytes = piece->n_bytes;
		for (i++; i < opening->n && opening->list[i].was == first->was &&
		          opening->list[i].access == first->access &&
		          glake__access_touches(opening->list[i - 1].piece, opening->list[i].piece);
		     i++) {
			n_bytes += opening->list[i].piece->n_bytes;
		}
		if (is_back || first->access != GLAKE__ACCESS_NONE) {
			r = glake__access_set(piece->range->ptr + piece->offset, n_bytes,
			                      piece->readers, glake__access_writers(piece),
			                      is_back ? first->was : first->access);
		}
	}
	return r;
}

static int open_held(struct opening *opening)
{
	int r = 0;
	for (size_t i = 0; r == 0 && opening->takes && i < opening->n; i++) {
		r = check_pin(opening->list[i].piece);
	}
	if (r < 0) {
		return r;
	}
	r = opening->takes ? glake__gate_close(opening->readers, GLAKE__GATE_PATIENCE_NS) : 0;
	if (r < 0) {
		return r;
	}
	r = open_all(opening, false);
	if (r < 0) {
		char *text = glake__error_save();
		open_all(opening, true);
		glake__error_restore(text);
	}
	if (opening->takes) {
		glake__gate_open();
	}
	glake__lock();
	for (size_t i = 0; r == 0 && i < opening->n; i++) {
		opening->list[i].piece->access = opening->list[i].access;
	}
	glake__unlock();
	return r;
}

int glake__hold_access(const struct glake__hold *hold, enum glake__access access)
{
	struct opening opening = {.n = 0};
	if (!hold->range) {
		return 0;
	}
	glake__lock();
	size_t n = list_opened(&opening, hold, access);
	glake__unlock();
	opening.list = calloc(n + 1, sizeof(*opening.list));
	if (!opening.list) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	glake__lock();
	list_opened(&opening, hold, access);
	glake__unlock();
	int r = open_held(&opening);
	free(opening.list);
	return r;
}

uint64_t glake__hold_readers(const struct glake__hold *hold)
{
	uint64_t readers = 0;
	if (!hold->range) {
		return 0;
	}
	glake__lock();
	uint64_t end = hold->offset + hold->n_bytes;
	const struct glake__piece *piece = glake__range_piece_locked(hold->range, hold->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		const struct glake__piece *at = piece->chunk ? piece->chunk->mappings : NULL;
		for (; at; at = at->next_mapping) {
			readers |= at->readers;
		}
	}
	glake__unlock();
	return readers;
}

/* Whole pieces, or parts of holes. */
static bool is_whole(const struct glake__range *range, uint64_t offset, uint64_t end)
{
	glake__lock();
	const struct glake__piece *first = glake__range_piece_locked(range, offset);
	const struct glake__piece *last = glake__range_piece_locked(range, end - 1);
	bool is_cut = (first->chunk && first->offset < offset) ||
	              (last->chunk && last->offset + last->n_bytes > end);
	glake__unlock();
	return !is_cut;
}

int glake__range_access(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                        enum glake__access access)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__hold own;
	int r = is_within(range, offset, n_bytes) ? hold_own(&own, range, offset, n_bytes)
	                                          : -EINVAL;
	if (r == 0) {
		r = is_whole(range, offset, offset + n_bytes) ? glake__hold_access(&own, access)
		                                              : -EINVAL;
		glake__hold_end(&own);
	}
	return r == -EINVAL ? glake__fail(-EINVAL, "%llu bytes at 0x%llx: part of a chunk",
	                                  (unsigned long long)n_bytes,
	                                  (unsigned long long)(range->ptr + offset))
	                    : r;
}

/* ---- the end ---------------------------------------------------------------------------------- */

/* Unmaps the pieces of @change, which are busy by now. Returns the first error, having tried all. */
static int unmap_change(const struct glake__change *change)
{
	int error = 0;
	struct glake__piece *piece = glake__change_first(change);
	for (; piece; piece = glake__change_next(change, piece)) {
		if (piece->chunk) {
			/* A piece that was asleep when its session ended is not mapped. */
			int r = piece->is_unmapped
			                ? 0
			                : glake__map_unmap(change->range->ptr + piece->offset,
			                                   piece->n_bytes);
			piece->is_unmapped = r == 0;
			error = error ? error : r;
		}
	}
	return error;
}

int glake__range_clear(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                       struct glake__chunk **dead)
{
	cleanup_cancel int cancel = cancel_disable();
	const struct glake__part hole = {.n_bytes = n_bytes};
	struct glake__change change;
	struct glake__chunk *unused = NULL;
	struct glake__site site = site_in(range, offset);
	site.waits = true;
	int error = glake__change_begin(&change, &site, &hole, 1);
	if (error < 0) {
		return error;
	}
	error = unmap_change(&change);
	glake__change_cancel(&change, dead ? dead : &unused);
	glake__chunks_release(unused);
	return error;
}

int glake__range_clear_all(struct glake__range *range, const uint64_t *offsets, size_t n,
                           uint64_t n_bytes, struct glake__chunk **dead)
{
	cleanup_cancel int cancel = cancel_disable();
	cleanup_free struct glake__change *changes = calloc(n, sizeof(*changes));
	cleanup_free struct glake__site *sites = calloc(n, sizeof(*sites));
	cleanup_free struct glake__part *holes = calloc(n, sizeof(*holes));
	if (!changes || !sites || !holes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		sites[i] = site_in(range, offsets[i]);
		holes[i] = (struct glake__part){.n_bytes = n_bytes};
	}
	int error = glake__changes_begin(changes, sites, holes, n);
	if (error < 0) {
		return error;
	}
	bool is_pinned = false;
	for (size_t i = 0; i < n; i++) {
		is_pinned |= glake__change_is_pinned(&changes[i]);
	}
	if (is_pinned) {
		glake__changes_cancel(changes, n, dead);
		return glake__fail(-EBUSY, "some of the memory is pinned");
	}
	for (size_t i = 0; i < n; i++) {
		int r = unmap_change(&changes[i]);
		error = error ? error : r;
	}
	glake__changes_cancel(changes, n, dead);
	return error;
}

int glake__range_end(struct glake__range *range, struct glake__chunk **dead)
{
	int r = glake__range_clear(range, 0, range->n_bytes, dead);
	if (r < 0) {
		glake__lock();
		range->use = &glake__use_lost;
		range->user = NULL;
		glake__unlock();
		return r;
	}
	return glake__range_drop(range);
}

/* ---- readers ---------------------------------------------------------------------------------- */

/* Called with the lock held. -EBUSY: a change of @range is under way, which does not know the new reader. */
static int open_locked(struct glake__range *range, int reader)
{
	int r = 0;
	for (const struct glake__piece *at = range->first; r == 0 && at; at = at->next) {
		r = at->holder ? -EBUSY : 0;
	}
	for (struct glake__piece *at = range->first; r == 0 && at; at = at->next) {
		if (at->chunk && at->access != GLAKE__ACCESS_NONE) {
			r = glake__map_access(range->ptr + at->offset, at->n_bytes, 1ull << reader,
			                      at->access);
		}
		if (at->chunk && r == 0) {
			at->readers |= 1ull << reader;
		}
	}
	if (r == 0) {
		range->readers |= 1ull << reader;
	}
	return r;
}

/* Is it private memory of @device that @reader may not access? */
static bool is_closed_to(const struct glake__range *range, int device, int reader)
{
	return range->use->is_private && range->device == device && !(range->readers >> reader & 1);
}

/* Called with the lock held. Driver calls under it after all: no range may go away meanwhile. */
static int open_all_locked(int device, int reader)
{
	int r = 0;
	for (struct glake__range *at = glake__space.ranges; r == 0 && at; at = at->next) {
		if (is_closed_to(at, device, reader)) {
			r = open_locked(at, reader);
		}
	}
	if (r == 0) {
		glake__space.readers[device] |= 1ull << reader;
	}
	return r;
}

int glake__space_add_reader(int device, int reader)
{
	int r;
	glake__lock();
	while ((r = open_all_locked(device, reader)) == -EBUSY) {
		glake__unlock();
		glake__busy_pause();
		glake__lock();
	}
	glake__unlock();
	return r;
}

bool glake__space_is_closed_to(int device, int reader)
{
	glake__lock();
	const struct glake__range *at = glake__space.ranges;
	while (at && !is_closed_to(at, device, reader)) {
		at = at->next;
	}
	glake__unlock();
	return at != NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps, and what undoes each:
 *
 *   begin          what is there is busy             cancel
 *   take handles   of what is new, of what was there release them
 *   close          the gate, if access goes          open
 *   unmap          what was there                    map it by its handle, give it its access
 *   map            what is new                       unmap
 *   access         one call for a run of equal ones  the unmapping above
 *   open
 *   commit
 *
 * A handle of what was there costs a driver call for each piece, and is what makes undoing possible. So a
 * clear, after which nobody wants anything back, takes none.
 */
#include "libclient/space/reback.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/map.h"
#include "proto/cleanup.h"

/* One piece of memory, old or new, in its place. */
struct step {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__chunk *chunk; /* NULL: a hole */
	struct glake__piece *piece; /* of what was there */
	enum glake__access access;
	uint64_t readers;
	CUmemGenericAllocationHandle handle;
	bool is_handle_ours;
	bool is_mapped;
};

struct row {
	struct step *steps; /* owned */
	size_t n;
};

struct work {
	struct glake__change change;
	struct row old;
	struct row new;
	bool takes_access;
	uint64_t gated; /* who reads what goes */
};

/* ---- rows ------------------------------------------------------------------------------------- */

static int row_init(struct row *row, size_t n)
{
	row->n = n;
	row->steps = calloc(n, sizeof(*row->steps));
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

/* One call for each run of pieces that lie side by side and have equal access, for equal readers. */
static int row_access(const struct row *row)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < row->n;) {
		const struct step *first = &row->steps[i];
		uint64_t n_bytes = 0;
		while (i < row->n && row->steps[i].is_mapped &&
		       row->steps[i].access == first->access &&
		       row->steps[i].readers == first->readers &&
		       row->steps[i].ptr == first->ptr + n_bytes) {
			n_bytes += row->steps[i++].n_bytes;
		}
		if (n_bytes == 0) {
			i++;
		} else if (first->access != GLAKE__ACCESS_NONE) {
			r = glake__map_access(first->ptr, n_bytes, first->readers, first->access);
		}
	}
	return r;
}

static int row_map(struct row *row)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < row->n; i++) {
		struct step *step = &row->steps[i];
		if (step->chunk && !step->is_mapped) {
			r = glake__map_handle(step->ptr, step->n_bytes, step->handle);
			step->is_mapped = r == 0;
		}
	}
	return r < 0 ? r : row_access(row);
}

/* ---- the parts of a reback -------------------------------------------------------------------- */

/* Where @chunk is mapped, somewhere. */
static bool find_mapping(const struct glake__chunk *chunk, glake_ptr *ptr_out)
{
	glake__lock();
	const struct glake__piece *piece = chunk->mappings;
	if (piece) {
		*ptr_out = piece->range->ptr + piece->offset;
	}
	glake__unlock();
	return piece != NULL;
}

static int take_new(struct work *work, const struct glake__part *parts, size_t n_parts)
{
	int r = row_init(&work->new, n_parts);
	glake_ptr ptr = work->change.range->ptr + work->change.offset;
	const struct glake__piece *fresh = work->change.fresh;
	for (size_t i = 0; r == 0 && i < n_parts; i++, fresh = fresh->next) {
		const struct glake__part *part = &parts[i];
		struct step *step = &work->new.steps[i];
		glake_ptr mapped = 0;
		*step = (struct step){
			.ptr = ptr,
			.n_bytes = part->n_bytes,
			.chunk = part->chunk,
			.access = part->access,
			.readers = fresh->readers,
			.handle = part->handle,
		};
		ptr += part->n_bytes;
		if (!part->chunk || part->handle) {
			continue;
		}
		if (part->fd >= 0) {
			r = glake__map_import(part->fd, &step->handle);
		} else if (find_mapping(part->chunk, &mapped)) {
			r = glake__map_retain(mapped, &step->handle);
		} else {
			r = glake__fail(-EINVAL, "there is no way to the memory to be mapped");
		}
		step->is_handle_ours = r == 0;
	}
	return r;
}

static size_t count_old(const struct glake__change *change, const struct glake__piece *first)
{
	size_t n = 0;
	for (; first; first = glake__change_next(change, first)) {
		n += first->chunk != NULL;
	}
	return n;
}

/* The pieces are busy: their row stays. What is pinned may be pinned by others meanwhile, so: locked. */
static int take_old(struct work *work)
{
	const struct glake__change *change = &work->change;
	struct glake__piece *piece = glake__change_first(change);
	int r = row_init(&work->old, count_old(change, piece) + 1);
	work->old.n = 0;
	for (; r == 0 && piece; piece = glake__change_next(change, piece)) {
		if (!piece->chunk) {
			continue;
		}
		glake__lock();
		enum glake__pin pin = glake__chunk_pin_locked(piece->chunk);
		glake__unlock();
		struct step *step = &work->old.steps[work->old.n];
		*step = (struct step){
			.ptr = change->range->ptr + piece->offset,
			.n_bytes = piece->n_bytes,
			.chunk = piece->chunk,
			.piece = piece,
			.access = piece->access,
			.readers = piece->readers,
			.is_mapped = true,
		};
		r = pin ? glake__fail(-EBUSY, "the memory at 0x%llx is pinned: %s",
		                      (unsigned long long)step->ptr, glake__pin_text(pin))
		        : glake__map_retain(step->ptr, &step->handle);
		step->is_handle_ours = r == 0;
		work->old.n++;
		work->takes_access |= step->access != GLAKE__ACCESS_NONE;
		work->gated |= step->readers;
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
	if (step->access != GLAKE__ACCESS_NONE &&
	    glake__map_access(step->ptr, step->n_bytes, step->readers, step->access) < 0) {
		step->is_mapped = glake__map_unmap(step->ptr, step->n_bytes) < 0;
	}
	return step->is_mapped;
}

/* What was there, back in its place. What does not come back is a hole now: then true. */
static bool undo(struct work *work)
{
	char *text = glake__error_save();
	row_unmap(&work->new);
	bool is_lost = row_map(&work->old) < 0;
	/* All at once did not work; what can be saved is. */
	for (size_t i = 0; is_lost && i < work->old.n; i++) {
		struct step *step = &work->old.steps[i];
		step->piece->is_unmapped = !put_back(step);
	}
	glake__error_restore(text);
	return is_lost;
}

/* Everything that can be done while the program goes on. After an error: finish() too. */
static int prepare(struct work *work, const struct glake__site *site,
                   const struct glake__part *parts, size_t n_parts, bool only_holes)
{
	int r = take_new(work, parts, n_parts);
	if (r == 0) {
		r = take_old(work);
	}
	if (r == 0 && only_holes && work->old.n > 0) {
		r = glake__fail(-EINVAL, "%llu bytes at 0x%llx: already mapped, in part",
		                (unsigned long long)work->change.n_bytes,
		                (unsigned long long)site->ptr);
	}
	return r;
}

/* With the gate closed, if access goes. */
static int exchange(struct work *work, bool *is_lost)
{
	int r = row_unmap(&work->old);
	if (r == 0) {
		r = row_map(&work->new);
	}
	if (r < 0) {
		*is_lost = undo(work);
	}
	return r;
}

static void finish(struct work *work, int r, struct glake__chunk **dead)
{
	struct glake__chunk *unused = NULL;
	if (r == 0) {
		glake__change_commit(&work->change, &unused);
	} else {
		glake__change_cancel(&work->change, &unused);
	}
	row_deinit(&work->new);
	row_deinit(&work->old);
	if (dead) {
		*dead = unused;
	} else {
		glake__chunks_release(unused);
	}
}

static int reback(const struct glake__site *site, const struct glake__part *parts, size_t n_parts,
                  bool only_holes, struct glake__chunk **dead, bool *is_lost_out)
{
	struct work work = {.takes_access = false};
	bool is_lost = false;
	int r = glake__change_begin(&work.change, site, parts, n_parts);
	if (r < 0) {
		return r;
	}
	r = prepare(&work, site, parts, n_parts, only_holes);
	if (r == 0 && work.takes_access) {
		r = glake__gate_close(work.gated, GLAKE__GATE_PATIENCE_NS);
	}
	if (r == 0) {
		r = exchange(&work, &is_lost);
		if (work.takes_access) {
			glake__gate_open();
		}
	}
	finish(&work, r, dead);
	if (is_lost_out) {
		*is_lost_out = is_lost;
	}
	return r;
}

static struct glake__site site_in(struct glake__range *range, uint64_t offset)
{
	return (struct glake__site){.range = range, .ptr = range->ptr + offset};
}

static struct glake__site site_of(const struct glake__hold *hold)
{
	struct glake__site site = site_in(hold->range, hold->offset);
	site.hold = hold;
	return site;
}

int glake__range_reback(struct glake__range *range, uint64_t offset,
                        const struct glake__part *parts, size_t n_parts, struct glake__chunk **dead,
                        bool *is_lost_out)
{
	const struct glake__site site = site_in(range, offset);
	return reback(&site, parts, n_parts, false, dead, is_lost_out);
}

/* Of those that are prepared. */
static void exchange_all(struct work *works, struct glake__rebacking *list, size_t n)
{
	uint64_t gated = 0;
	for (size_t i = 0; i < n; i++) {
		gated |= list[i].result == 0 ? works[i].gated : 0;
	}
	int closed = glake__gate_close_soon(gated);
	for (size_t i = 0; i < n; i++) {
		bool is_lost;
		if (list[i].result == 0) {
			list[i].result = closed < 0 ? closed : exchange(&works[i], &is_lost);
		}
		if (closed == 0 && i + 1 < n) {
			closed = glake__gate_pause(gated);
		}
	}
	if (closed == 0) {
		glake__gate_open();
	}
}

int glake__hold_reback_all(struct glake__rebacking *list, size_t n, void (*meanwhile)(void *user),
                           void *user)
{
	cleanup_free struct work *works = calloc(n, sizeof(*works));
	cleanup_free bool *has_begun = calloc(n, sizeof(*has_begun));
	int error = 0;
	if (!works || !has_begun) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		const struct glake__site site = site_of(list[i].hold);
		list[i].result = glake__change_begin(&works[i].change, &site, &list[i].part, 1);
		has_begun[i] = list[i].result == 0;
		if (has_begun[i]) {
			list[i].result = prepare(&works[i], &site, &list[i].part, 1, false);
		}
		if (meanwhile) {
			meanwhile(user);
		}
	}
	exchange_all(works, list, n);
	char *text = glake__error_save();
	for (size_t i = 0; i < n; i++) {
		list[i].dead = NULL;
		if (has_begun[i]) {
			finish(&works[i], list[i].result, &list[i].dead);
		}
		error = error ? error : list[i].result;
		if (meanwhile) {
			meanwhile(user);
		}
	}
	glake__error_restore(text);
	return error;
}

int glake__range_fill(struct glake__range *range, uint64_t offset, const struct glake__part *parts,
                      size_t n_parts)
{
	const struct glake__site site = site_in(range, offset);
	return reback(&site, parts, n_parts, true, NULL, NULL);
}

/* ---- access ----------------------------------------------------------------------------------- */

/* Give all pieces in the change @access; NULL: each its own. */
static int set_access(const struct glake__change *change, const enum glake__access *access)
{
	int r = 0;
	const struct glake__piece *piece = glake__change_first(change);
	while (r == 0 && piece) {
		const struct glake__piece *first = piece;
		uint64_t n_bytes = 0;
		while (piece && piece->chunk && piece->readers == first->readers &&
		       (access || piece->access == first->access)) {
			n_bytes += piece->n_bytes;
			piece = glake__change_next(change, piece);
		}
		if (n_bytes == 0) {
			piece = glake__change_next(change, piece);
		} else {
			r = glake__map_access(change->range->ptr + first->offset, n_bytes,
			                      first->readers, access ? *access : first->access);
		}
	}
	return r;
}

static int change_access(const struct glake__site *site, uint64_t n_bytes,
                         enum glake__access access)
{
	const struct glake__part same = {.n_bytes = n_bytes};
	struct glake__chunk *none = NULL;
	struct glake__change change;
	bool takes = false;
	uint64_t readers = 0;
	int r = glake__change_begin(&change, site, &same, 1);
	if (r < 0) {
		return r;
	}
	struct glake__piece *first = glake__change_first(&change);
	for (const struct glake__piece *at = first; at; at = glake__change_next(&change, at)) {
		takes |= at->access > access;
		readers |= at->readers;
	}
	r = takes ? glake__gate_close(readers, GLAKE__GATE_PATIENCE_NS) : 0;
	if (r == 0) {
		r = set_access(&change, &access);
		if (r < 0) {
			char *text = glake__error_save();
			set_access(&change, NULL);
			glake__error_restore(text);
		}
		if (takes) {
			glake__gate_open();
		}
	}
	for (struct glake__piece *at = first; r == 0 && at; at = glake__change_next(&change, at)) {
		at->access = at->chunk ? access : GLAKE__ACCESS_NONE;
	}
	glake__change_cancel(&change, &none);
	return r;
}

int glake__range_access(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                        enum glake__access access)
{
	const struct glake__site site = site_in(range, offset);
	return change_access(&site, n_bytes, access);
}

int glake__hold_access(const struct glake__hold *hold, enum glake__access access)
{
	const struct glake__site site = site_of(hold);
	return change_access(&site, hold->n_bytes, access);
}

/* ---- the end ---------------------------------------------------------------------------------- */

int glake__range_clear(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                       struct glake__chunk **dead)
{
	const struct glake__part hole = {.n_bytes = n_bytes};
	struct glake__change change;
	struct glake__chunk *unused = NULL;
	struct glake__site site = site_in(range, offset);
	site.waits = true;
	int error = glake__change_begin(&change, &site, &hole, 1);
	if (error < 0) {
		return error;
	}
	struct glake__piece *piece = glake__change_first(&change);
	for (; piece; piece = glake__change_next(&change, piece)) {
		if (piece->chunk) {
			int r = glake__map_unmap(range->ptr + piece->offset, piece->n_bytes);
			piece->is_unmapped = r == 0;
			error = error ? error : r;
		}
	}
	glake__change_cancel(&change, &unused);
	if (dead) {
		*dead = unused;
	} else {
		glake__chunks_release(unused);
	}
	return error;
}

int glake__range_end(struct glake__range *range, struct glake__chunk **dead)
{
	int r = glake__range_clear(range, 0, range->n_bytes, dead);
	if (r < 0) {
		glake__lock();
		range->use = GLAKE__RANGE_LOST;
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

/* Called with the lock held. Driver calls under it after all: no range may go away meanwhile. */
static int open_all_locked(int device, int reader)
{
	int r = 0;
	for (struct glake__range *at = glake__space.ranges; r == 0 && at; at = at->next) {
		if (glake__range_is_private(at) && at->device == device &&
		    !(at->readers >> reader & 1)) {
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

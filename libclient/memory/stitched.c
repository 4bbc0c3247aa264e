/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/stitched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/error.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/reback.h"
#include "proto/cleanup.h"

/* ---- mapping ---------------------------------------------------------------------------------- */

/* The chunks of @stretch, whole ones, to @parts. Nobody unmaps them: the pool has taken them. */
static size_t list_parts_locked(const struct glake__range *home,
                                const struct glake__stretch *stretch, struct glake__part *parts)
{
	uint64_t offset = stretch->page * GLAKE__PAGE_BYTES;
	uint64_t end = offset + stretch->n_pages * GLAKE__PAGE_BYTES;
	const struct glake__piece *piece = glake__range_piece_locked(home, offset);
	size_t n = 0;
	for (; piece && piece->offset < end; piece = piece->next) {
		parts[n++] = (struct glake__part){
			.chunk = piece->chunk,
			.n_bytes = piece->n_bytes,
			.access = GLAKE__ACCESS_WRITE,
			.fd = -1,
			.handle = piece->chunk->handle,
		};
	}
	return n;
}

static int map(struct glake__stitched *stitched, const struct glake__range *home)
{
	size_t n = 0;
	cleanup_free struct glake__part *parts = calloc(stitched->n_pages, sizeof(*parts));
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	glake__lock();
	for (size_t i = 0; i < stitched->n_stretches; i++) {
		n += list_parts_locked(home, &stitched->stretches[i], parts + n);
	}
	glake__unlock();
	stitched->n_chunks = n;
	return glake__range_fill(stitched->range, 0, parts, n);
}

int glake__stitched_new(struct glake__range *home, int device, struct glake__stretch *stretches,
                        size_t n_stretches, struct glake__stitched **stitched_out)
{
	cleanup_free struct glake__stitched *stitched = calloc(1, sizeof(*stitched));
	if (!stitched) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	stitched->stretches = stretches;
	stitched->n_stretches = n_stretches;
	for (size_t i = 0; i < n_stretches; i++) {
		stitched->n_pages += stretches[i].n_pages;
	}
	int r = glake__range_reserve(GLAKE__RANGE_STITCHED, stitched, device,
	                             stitched->n_pages * GLAKE__PAGE_BYTES, 0, 0, &stitched->range);
	if (r < 0) {
		return r;
	}
	r = map(stitched, home);
	if (r < 0) {
		char *text = glake__error_save();
		glake__range_end(stitched->range, NULL);
		glake__error_restore(text);
		return r;
	}
	*stitched_out = ptr_steal(stitched);
	return 0;
}

void glake__stitched_drop(struct glake_session *session, struct glake__stitched *stitched)
{
	struct glake__chunk *dead = NULL;
	glake__range_end(stitched->range, &dead);
	glake__backing_return(session, dead);
	free(stitched->stretches);
	free(stitched);
}

/* ---- the set ---------------------------------------------------------------------------------- */

size_t glake__stitched_lower_bound(const struct glake__stitched_set *set, uint64_t n_pages)
{
	size_t low = 0;
	size_t high = set->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (set->by_size[middle]->n_pages < n_pages) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

int glake__stitched_add(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	if (set->n == set->capacity) {
		size_t capacity = set->capacity ? 2 * set->capacity : 64;
		void *more = reallocarray(set->by_size, capacity, sizeof(set->by_size[0]));
		if (!more) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		set->by_size = more;
		set->capacity = capacity;
	}
	size_t at = glake__stitched_lower_bound(set, stitched->n_pages);
	memmove(&set->by_size[at + 1], &set->by_size[at], (set->n - at) * sizeof(set->by_size[0]));
	set->by_size[at] = stitched;
	stitched->is_in_set = true;
	stitched->is_live = true;
	set->n++;
	set->n_live++;
	set->n_pages += stitched->n_pages;
	return 0;
}

static void unlink_age(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	if (stitched->older) {
		stitched->older->newer = stitched->newer;
	} else {
		set->oldest = stitched->newer;
	}
	if (stitched->newer) {
		stitched->newer->older = stitched->older;
	} else {
		set->newest = stitched->older;
	}
	stitched->older = NULL;
	stitched->newer = NULL;
}

void glake__stitched_remove(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	size_t at = glake__stitched_lower_bound(set, stitched->n_pages);
	while (set->by_size[at] != stitched) {
		at++;
	}
	unlink_age(set, stitched);
	stitched->is_in_set = false;
	set->n--;
	set->n_pages -= stitched->n_pages;
	memmove(&set->by_size[at], &set->by_size[at + 1], (set->n - at) * sizeof(set->by_size[0]));
}

void glake__stitched_set_live(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	unlink_age(set, stitched);
	stitched->is_live = true;
	set->n_live++;
}

void glake__stitched_set_kept(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	stitched->user = NULL;
	stitched->is_live = false;
	stitched->newer = NULL;
	stitched->older = set->newest;
	if (set->newest) {
		set->newest->newer = stitched;
	} else {
		set->oldest = stitched;
	}
	set->newest = stitched;
	set->n_live--;
}

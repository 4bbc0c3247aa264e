/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/range.h"

#include <stdlib.h>
#include <errno.h>

#include "libclient/link/error.h"
#include "libclient/space/chain.h"
#include "libclient/space/map.h"
#include "libclient/space/row.h"
#include "libclient/space/sealed.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"

const struct glake__use glake__use_lost = {.name = "lost", .kind = GLAKE__FREE, .is_ours = true};

/* ---- what is where --------------------------------------------------------------------------- */

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

struct glake__range *glake__range_at_locked(glake_ptr address, const struct glake__use *use)
{
	const struct glake__piece *piece = glake__piece_at_locked(address);
	return piece && piece->range->use == use ? piece->range : NULL;
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
	if (range->use->is_private && range->device >= 0) {
		range->readers |= glake__space.readers[range->device];
	}
	CHAIN_PUSH(glake__space.ranges, range, previous, next);
	if (range->is_outside && !range->use->is_nowhere) {
		range->next_outside = glake__space.outside;
		glake__space.outside = range;
	}
	glake__piece_enter(range->first);
	glake__unlock();
}

int glake__range_reserve(const struct glake__use *use, void *user, int device, uint64_t n_bytes,
                         uint64_t alignment, glake_ptr hint, struct glake__range **range_out)
{
	cleanup_free struct glake__range *range = calloc(1, sizeof(*range));
	cleanup_free struct glake__piece *hole = glake__piece_new(range);
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
	range->is_outside = use->is_nowhere;
	if (!use->is_nowhere) {
		range->ptr = take_addresses(n_bytes, alignment, hint, range);
	}
	if (range->is_outside && !use->is_nowhere) {
		int r = glake__map_reserve(n_bytes, alignment, hint, &range->ptr);
		if (r < 0) {
			return r;
		}
	}
	hole->n_bytes = n_bytes;
	glake__piece_link(ptr_steal(hole), NULL);
	enter_range(range);
	*range_out = ptr_steal(range);
	return 0;
}

static void leave_range(struct glake__range *range)
{
	CHAIN_REMOVE(glake__space.ranges, range, previous, next);
	if (!range->is_outside || range->use->is_nowhere) {
		return;
	}
	struct glake__range **link = &glake__space.outside;
	while (*link != range) {
		link = &(*link)->next_outside;
	}
	*link = range->next_outside;
}

int glake__range_drop(struct glake__range *range)
{
	glake__lock();
	bool is_empty = glake__piece_is_free_hole(range->first) && !range->first->next;
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
	bool is_drivers = range->is_outside && !range->use->is_nowhere;
	int r = is_drivers ? glake__map_unreserve(range->ptr, range->n_bytes) : 0;
	free(range->first);
	free(range->unsealed);
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
		glake__piece_unmap(piece, &dead);
		free(piece);
	}
	glake__chunks_release(dead);
	free(range->unsealed);
	free(range);
}

/* ---- sealed memory --------------------------------------------------------------------------- */

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
			if (begin < ptr + at->n_bytes && ptr < end && glake__piece_is_sealed(at)) {
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
			n_bytes += glake__piece_is_sealed(at) ? at->n_bytes : 0;
		}
	}
	glake__unlock();
	return n_bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/look.h"

#include "libclient/space/range.h"
#include "libclient/space/window.h"

struct glake__address_info glake__space_look(glake_ptr address)
{
	struct glake__address_info info = {.kind = GLAKE__ELSEWHERE};
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	if (piece) {
		const struct glake__range *range = piece->range;
		info.address = range->ptr;
		info.n_bytes = range->n_bytes;
		info.kind = range->use->kind;
		info.user = info.kind == GLAKE__OPENED ? range->user : NULL;
	} else if (glake__window_has(address)) {
		info.kind = GLAKE__FREE;
	}
	glake__unlock();
	return info;
}

void glake__opened_set_user(glake_ptr address, void *user)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	if (piece && piece->range->use->kind == GLAKE__OPENED) {
		piece->range->user = user;
	}
	glake__unlock();
}

enum glake__pin glake__pin_at(glake_ptr address)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	enum glake__pin pin = piece && piece->chunk ? glake__chunk_pin_locked(piece->chunk)
	                                            : GLAKE__PIN_NONE;
	glake__unlock();
	return pin;
}

glake_ptr glake__next_place_locked(glake_ptr address, glake_ptr end)
{
	glake_ptr next = (address / GLAKE__PAGE_BYTES + 1) * GLAKE__PAGE_BYTES;
	if (glake__window_has(address)) {
		return next < end ? next : end;
	}
	next = address < glake__pages.base && glake__pages.base < end ? glake__pages.base : end;
	for (const struct glake__range *at = glake__space.outside; at; at = at->next_outside) {
		next = at->ptr > address && at->ptr < next ? at->ptr : next;
	}
	return next;
}

static bool is_guard(const struct glake__piece *piece)
{
	return piece && piece->chunk && piece->chunk == piece->range->guard;
}

/* A name of it would be good for writing, to all holes or where others read. */
static bool is_for_reading(const struct glake__piece *piece)
{
	return piece && piece->chunk && piece->range->use->has_seconds &&
	       piece->access == GLAKE__ACCESS_READ;
}

bool glake__has_guard(glake_ptr address, uint64_t n_bytes)
{
	glake_ptr end = address + n_bytes;
	bool has_guard = false;
	glake__lock();
	while (!has_guard && address < end) {
		const struct glake__piece *piece = glake__piece_at_locked(address);
		has_guard = is_guard(piece) || is_for_reading(piece);
		address = piece ? piece->range->ptr + piece->offset + piece->n_bytes
		                : glake__next_place_locked(address, end);
	}
	glake__unlock();
	return has_guard;
}

bool glake__pin_range(glake_ptr address, uint64_t n_bytes, enum glake__pin pin, bool is_pinned)
{
	glake_ptr end = address + n_bytes;
	bool was_pinned = false;
	glake__lock();
	while (address < end) {
		const struct glake__piece *piece = glake__piece_at_locked(address);
		if (is_pinned && piece && piece->holder) {
			/* The piece may be about to be replaced. */
			glake__unlock();
			glake__busy_pause();
			glake__lock();
			continue;
		}
		if (piece && piece->chunk && !is_guard(piece) && !is_for_reading(piece) &&
		    !(is_pinned && piece->chunk->kind == GLAKE__PAGE_BLOCK)) {
			was_pinned |= piece->chunk->pins >> pin & 1;
			glake__chunk_note_pin_locked(piece->chunk, pin, is_pinned);
		}
		address = piece ? piece->range->ptr + piece->offset + piece->n_bytes
		                : glake__next_place_locked(address, end);
	}
	glake__unlock();
	return was_pinned;
}

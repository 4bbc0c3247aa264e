/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/unsealed.h"

#include <stdlib.h>

#include "libclient/link/session.h"
#include "libclient/space/page.h"
#include "libclient/space/range.h"

_Static_assert(GLAKE_N_UNSEALED == GLAKE__UNSEALED_NAMED + GLAKE__N_PINS, "all causes");

static void set_locked(struct glake__backing *backing, uint64_t page, enum glake__unsealed why)
{
	uint64_t *n_bytes = backing->device->session->books.unsealed_bytes;
	int8_t *cause = &backing->unsealed[page];
	if (*cause != GLAKE__UNSEALED_NOT) {
		n_bytes[*cause] -= GLAKE__PAGE_BYTES;
	}
	*cause = (int8_t)why;
	if (why != GLAKE__UNSEALED_NOT) {
		n_bytes[why] += GLAKE__PAGE_BYTES;
	}
}

static bool is_block_locked(const struct glake__backing *backing, uint64_t page)
{
	const struct glake__piece *piece = glake__range_piece_locked(backing->range,
	                                                             page << GLAKE__PAGE_SHIFT);
	return piece->chunk && piece->chunk->kind == GLAKE__PAGE_BLOCK;
}

/* False: no memory, and nothing is noted. */
static bool has_causes(struct glake__backing *backing)
{
	uint64_t n_pages = backing->n_bytes >> GLAKE__PAGE_SHIFT;
	if (!backing->unsealed) {
		backing->unsealed = malloc(n_pages);
		for (uint64_t i = 0; backing->unsealed && i < n_pages; i++) {
			backing->unsealed[i] = GLAKE__UNSEALED_NOT;
		}
	}
	return backing->unsealed;
}

void glake__unsealed_note(struct glake__backing *backing, uint64_t begin, uint64_t end,
                          enum glake__unsealed why)
{
	if (begin >= end || !has_causes(backing)) {
		return;
	}
	glake__lock();
	uint64_t last = (end - 1) >> GLAKE__PAGE_SHIFT;
	for (uint64_t page = begin >> GLAKE__PAGE_SHIFT; page <= last; page++) {
		set_locked(backing, page,
		           is_block_locked(backing, page) ? GLAKE__UNSEALED_NOT : why);
	}
	glake__unlock();
}

void glake__unsealed_blocks(struct glake__backing *backing, enum glake__unsealed why)
{
	if (!has_causes(backing)) {
		return;
	}
	glake__lock();
	for (uint64_t page = 0; page < backing->n_bytes >> GLAKE__PAGE_SHIFT; page++) {
		if (is_block_locked(backing, page)) {
			set_locked(backing, page, why);
		}
	}
	glake__unlock();
}

enum glake__unsealed glake__unsealed_by_pin(enum glake__pin pin)
{
	/* What is pinned for no reason is no memory that could be sealed. */
	unsigned why = pin == GLAKE__PIN_NONE ? GLAKE__UNSEALED_FAILED
	                                      : GLAKE__UNSEALED_NAMED + (unsigned)pin;
	return (enum glake__unsealed)why;
}

void glake__unsealed_forget_locked(struct glake__backing *backing)
{
	if (!backing->unsealed) {
		return;
	}
	for (uint64_t page = 0; page < backing->n_bytes >> GLAKE__PAGE_SHIFT; page++) {
		set_locked(backing, page, GLAKE__UNSEALED_NOT);
	}
	free(backing->unsealed);
	backing->unsealed = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/unsealed.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/link/session.h"
#include "libclient/space/page.h"
#include "libclient/space/range.h"

_Static_assert(GLAKE_N_UNSEALED == GLAKE__UNSEALED_LAUNCHED + 1, "all causes");

static void set_locked(struct glake__range *range, uint64_t page, enum glake__unsealed why)
{
	uint64_t *n_bytes = range->books->unsealed_bytes;
	int8_t *cause = &range->unsealed[page];
	if (*cause != GLAKE__UNSEALED_NOT) {
		n_bytes[*cause] -= GLAKE__PAGE_BYTES;
	}
	*cause = (int8_t)why;
	if (why != GLAKE__UNSEALED_NOT) {
		n_bytes[why] += GLAKE__PAGE_BYTES;
	}
}

/* The kind of the page: nothing, if no memory is there. */
static enum glake__page_kind kind_locked(const struct glake__range *range, uint64_t page)
{
	const struct glake__piece *piece = glake__range_piece_locked(range,
	                                                             page << GLAKE__PAGE_SHIFT);
	return piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE;
}

/* False: no memory, and nothing is noted. */
static bool has_causes_locked(struct glake_session *session, struct glake__range *range)
{
	if (!range->unsealed) {
		uint64_t n_pages = range->n_bytes >> GLAKE__PAGE_SHIFT;
		range->unsealed = malloc(n_pages);
		if (range->unsealed) {
			memset(range->unsealed, GLAKE__UNSEALED_NOT, n_pages);
			range->books = &session->books;
		}
	}
	return range->unsealed;
}

/* The range that has all of [begin, end), with room for causes. NULL: there is none, and nothing is noted. */
static struct glake__range *range_locked(struct glake_session *session, glake_ptr begin,
                                         glake_ptr end)
{
	const struct glake__piece *piece = begin < end ? glake__piece_at_locked(begin) : NULL;
	struct glake__range *range = piece ? piece->range : NULL;
	bool is_in = range && end - range->ptr <= range->n_bytes;
	return is_in && has_causes_locked(session, range) ? range : NULL;
}

void glake__unsealed_note(struct glake_session *session, glake_ptr begin, glake_ptr end,
                          enum glake__unsealed why)
{
	glake__lock();
	struct glake__range *range = range_locked(session, begin, end);
	uint64_t page = range ? (begin - range->ptr) >> GLAKE__PAGE_SHIFT : 0;
	for (; range && page <= (end - 1 - range->ptr) >> GLAKE__PAGE_SHIFT; page++) {
		enum glake__page_kind kind = kind_locked(range, page);
		bool is_private = kind == GLAKE__PAGE_CHUNK || kind == GLAKE__PAGE_HOST;
		set_locked(range, page, is_private ? why : GLAKE__UNSEALED_NOT);
	}
	glake__unlock();
}

void glake__unsealed_blocks(struct glake_session *session, glake_ptr begin, glake_ptr end,
                            enum glake__unsealed why)
{
	glake__lock();
	struct glake__range *range = range_locked(session, begin, end);
	uint64_t page = range ? (begin - range->ptr) >> GLAKE__PAGE_SHIFT : 0;
	for (; range && page <= (end - 1 - range->ptr) >> GLAKE__PAGE_SHIFT; page++) {
		if (kind_locked(range, page) == GLAKE__PAGE_BLOCK) {
			set_locked(range, page, why);
		}
	}
	glake__unlock();
}

enum glake__unsealed glake__unsealed_by_pin(enum glake__pin pin)
{
	/* Without a pin, the sealing failed for another reason. */
	unsigned why = pin == GLAKE__PIN_NONE ? GLAKE__UNSEALED_FAILED
	                                      : GLAKE__UNSEALED_NAMED + (unsigned)pin;
	return (enum glake__unsealed)why;
}

void glake__unsealed_forget_part_locked(struct glake__range *range, uint64_t offset,
                                        uint64_t n_bytes)
{
	const uint64_t end = offset + n_bytes;
	uint64_t page = offset >> GLAKE__PAGE_SHIFT;
	for (; range->unsealed && page << GLAKE__PAGE_SHIFT < end; page++) {
		set_locked(range, page, GLAKE__UNSEALED_NOT);
	}
}

void glake__unsealed_forget_locked(struct glake__range *range)
{
	if (!range->unsealed) {
		return;
	}
	for (uint64_t page = 0; page < range->n_bytes >> GLAKE__PAGE_SHIFT; page++) {
		set_locked(range, page, GLAKE__UNSEALED_NOT);
	}
	free(range->unsealed);
	range->unsealed = NULL;
}

void glake__unsealed_forget(struct glake__range *range, uint64_t begin, uint64_t end)
{
	glake__lock();
	uint64_t page = begin >> GLAKE__PAGE_SHIFT;
	for (; range->unsealed && page < end >> GLAKE__PAGE_SHIFT; page++) {
		set_locked(range, page, GLAKE__UNSEALED_NOT);
	}
	glake__unlock();
}

void glake__unsealed_end(const struct glake_session *session)
{
	glake__lock();
	for (struct glake__range *at = glake__space.ranges; at; at = at->next) {
		if (at->unsealed && at->books == &session->books) {
			glake__unsealed_forget_locked(at);
		}
	}
	glake__unlock();
}

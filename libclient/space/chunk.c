/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/range.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/map.h"
#include "libclient/space/row.h"
#include "libclient/space/sealed.h"

void glake__chunk_free(struct glake__chunk *chunk)
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
		.release = glake__chunk_free,
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

/* Work of our own that was given up may write to it (errand.h). */
static bool is_written_aside(const struct glake__chunk *chunk)
{
	const struct glake__piece *at = chunk->mappings;
	while (at && !(at->range->use->is_worked_on && at->access == GLAKE__ACCESS_WRITE)) {
		at = at->next_mapping;
	}
	return at != NULL;
}

bool glake__chunk_has_too_many_places_locked(const struct glake__chunk *chunk)
{
	uint32_t n = 0;
	if (chunk->n_mappings > GLAKE__MAX_PLACES) {
		const struct glake__piece *at = chunk->mappings;
		for (; at && n <= GLAKE__MAX_PLACES; at = at->next_mapping) {
			n += !at->range->use->is_ours;
		}
	}
	return n > GLAKE__MAX_PLACES;
}

enum glake__pin glake__chunk_pin_locked(const struct glake__chunk *chunk)
{
	if (chunk->pins) {
		return (enum glake__pin)__builtin_ctz(chunk->pins);
	}
	if (glake__chunk_has_too_many_places_locked(chunk) || is_written_aside(chunk)) {
		return GLAKE__PIN_ALIASED;
	}
	return chunk->n_handles > 0 ? GLAKE__PIN_HANDLE : GLAKE__PIN_NONE;
}

void glake__chunk_set_kind_locked(struct glake__chunk *chunk, enum glake__page_kind kind)
{
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		glake__sealed.n -= glake__piece_is_sealed(at);
	}
	chunk->kind = kind;
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		glake__sealed_count(at);
		glake__piece_enter(at);
	}
}

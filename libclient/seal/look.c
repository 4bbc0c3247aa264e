/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/look.h"

#include "libclient/link/session.h"
#include "libclient/space/owner.h"

static bool is_elsewhere(const struct glake__chunk *chunk)
{
	unsigned n = 0;
	for (const struct glake__piece *at = chunk->mappings; n < 2 && at; at = at->next_mapping) {
		n += !at->range->use->is_ours;
	}
	return n > 1;
}

/*
 * Whose memory @chunk is, entered: with the lock held it stays as long, and its session with it. NULL: nobody's who
 * could make it a block.
 */
static struct glake__device *device_of(const struct glake__held *held,
                                       const struct glake__chunk *chunk,
                                       struct glake__sessions *sessions)
{
	struct glake__device *device = chunk->owner ? chunk->owner->device : held->device;
	if (device && chunk->device != device->handle) {
		device = glake__session_at_ordinal(device->session, chunk->device);
	}
	return device && glake__sessions_enter_locked(sessions, device->session) ? device : NULL;
}

static bool is_beside(const struct glake__held *held, const struct glake__piece *piece)
{
	const glake_ptr begin = piece->range->ptr + piece->offset;
	return held->has_neighbours && (begin < held->begin || begin + piece->n_bytes > held->tail);
}

struct glake__look glake__look_at(const struct glake__held *held, glake_ptr ptr,
                                  struct glake__sessions *sessions)
{
	struct glake__look look = {
		.ptr = ptr & ~(GLAKE__PAGE_BYTES - 1),
		.n_bytes = GLAKE__PAGE_BYTES,
		.kind = GLAKE__PAGE_HOLE,
	};
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	const struct glake__chunk *chunk = piece && piece->range->use == held->use ? piece->chunk
	                                                                           : NULL;
	if (chunk) {
		look = (struct glake__look){
			.ptr = piece->range->ptr + piece->offset,
			.n_bytes = piece->n_bytes,
			.kind = chunk->kind,
			.pin = glake__chunk_pin_locked(chunk),
			.device = device_of(held, chunk, sessions),
			.id = chunk->id,
			.readers = piece->readers,
			.is_unfinished = chunk->is_unfinished,
			.is_beside = is_beside(held, piece),
			.is_elsewhere = is_elsewhere(chunk),
		};
	}
	glake__unlock();
	return look;
}

bool glake__look_is_open(const struct glake__look *look)
{
	return look->kind == GLAKE__PAGE_CHUNK && look->pin == GLAKE__PIN_NONE && look->device &&
	       (!look->is_beside || glake__gate_holds());
}

const char *glake__look_why(const struct glake__look *look)
{
	return look->pin == GLAKE__PIN_NONE && !look->device ? "memory of the driver's own"
	                                                     : glake__pin_text(look->pin);
}

uint64_t glake__look_last(void)
{
	glake__lock();
	uint64_t last = glake__space.n_mappings;
	glake__unlock();
	return last;
}

/* Called with the lock held. The next of those that @hold has; NULL: there is none. */
static const struct glake__piece *next_of(const struct glake__hold *hold,
                                          const struct glake__piece *piece)
{
	piece = piece->next;
	return piece && piece->offset < hold->offset + hold->n_bytes ? piece : NULL;
}

bool glake__look_is_still(const struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes,
                          uint64_t last, enum glake__pin *pin_out)
{
	*pin_out = GLAKE__PIN_NONE;
	if (!hold->range || hold->range->ptr + hold->offset != ptr || hold->n_bytes != n_bytes) {
		return false;
	}
	glake__lock();
	const struct glake__piece *at = glake__range_piece_locked(hold->range, hold->offset);
	bool is_still = true;
	for (; is_still && at; at = next_of(hold, at)) {
		is_still = at->chunk && at->number <= last &&
		           (at->n_bytes == n_bytes || !is_elsewhere(at->chunk));
		enum glake__pin pin = is_still ? glake__chunk_pin_locked(at->chunk)
		                               : GLAKE__PIN_NONE;
		*pin_out = pin ? pin : *pin_out;
	}
	glake__unlock();
	return is_still;
}

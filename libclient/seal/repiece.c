/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/repiece.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/seal/look.h"
#include "libclient/space/errand.h"
#include "libclient/space/reback.h"
#include "libclient/heap/supply.h"
#include "proto/cleanup.h"

/* Fresh chunks on their way to a place. */
static const struct glake__use scratch_use = {
	.name = "scratch", .kind = GLAKE__FREE, .is_ours = true};

/* One request for each run of equal sizes. */
static int fill_once(const struct glake__repiecing *repiecing, struct glake__range *scratch,
                     struct glake__wait *wait)
{
	const uint64_t *sizes = repiecing->sizes;
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < repiecing->n_sizes;) {
		uint64_t chunk_bytes = sizes[i];
		uint64_t n_bytes = 0;
		for (; i < repiecing->n_sizes && sizes[i] == chunk_bytes; i++) {
			n_bytes += chunk_bytes;
		}
		r = glake__grant_fill(repiecing->device, scratch, offset, n_bytes, chunk_bytes,
		                      wait);
		offset += n_bytes;
	}
	return r;
}

/* Fresh memory of the driver: nobody pays for it, and it ends with its mapping. */
static int create_one(const struct glake__device *device, struct glake__range *scratch,
                      uint64_t offset, uint64_t n_bytes)
{
	struct glake__part part = {
		.chunk = glake__chunk_new(0, n_bytes, device->handle, GLAKE__PAGE_CHUNK),
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
	if (!part.chunk) {
		return -ENOMEM;
	}
	int r = glake__map_create(device->handle, n_bytes, &part.handle);
	if (r == 0) {
		r = glake__range_fill(scratch, offset, &part, 1);
		glake__map_release(part.handle);
	}
	glake__chunk_put(part.chunk);
	return r;
}

static int create(const struct glake__repiecing *repiecing, struct glake__range *scratch)
{
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < repiecing->n_sizes; i++) {
		r = create_one(repiecing->device, scratch, offset, repiecing->sizes[i]);
		offset += repiecing->sizes[i];
	}
	return r;
}

/* Unmap what is in @scratch; the chunks that nothing else has go back. */
static int empty(struct glake_session *session, struct glake__range *scratch)
{
	struct glake__chunk *dead = NULL;
	int r = glake__range_clear(scratch, 0, scratch->n_bytes, &dead);
	glake__grant_return(session, dead);
	return r;
}

static int fill(const struct glake__repiecing *repiecing, struct glake__range *scratch,
                struct glake__wait *wait)
{
	struct glake__device *device = repiecing->device;
	int r = fill_once(repiecing, scratch, wait);
	while (r < 0 && glake__supply_make_room(device, r, wait) &&
	       empty(device->session, scratch) == 0) {
		r = fill_once(repiecing, scratch, wait);
	}
	/* Whoever wants to write must not notice that glaked has gone, or leaves. */
	bool is_absent = r == GLAKE_E_GONE || r == GLAKE_E_SHUTTING_DOWN ||
	                 glake__link_is_gone(&device->session->link);
	if (r < 0 && is_absent && empty(device->session, scratch) == 0) {
		r = create(repiecing, scratch);
	}
	return r;
}

/* All chunks of @scratch; nobody else changes it. */
static void list_parts(const struct glake__range *scratch, struct glake__part *parts)
{
	glake__lock();
	for (const struct glake__piece *at = scratch->first; at; at = at->next) {
		*parts++ = (struct glake__part){
			.chunk = at->chunk,
			.n_bytes = at->n_bytes,
			.access = GLAKE__ACCESS_WRITE,
			.fd = -1,
		};
	}
	glake__unlock();
}

/* No work that reads what is there is under way, so the copy is done soon, and nobody writes meanwhile. */
static int copy_and_put(const struct glake__device *device, const struct glake__hold *hold,
                        struct glake__range **scratch, struct glake__range **mirror,
                        const struct glake__part *parts, size_t n_parts, struct glake__chunk **dead)
{
	int r = glake__errand_copy(device, scratch, mirror);
	return r < 0 ? r : glake__hold_reback(hold, parts, n_parts, dead, NULL);
}

/* After -EBUSY *scratch may be NULL, and its memory another's. */
static int exchange(const struct glake__repiecing *repiecing, const struct glake__hold *hold,
                    struct glake__range **scratch, const struct glake__part *parts)
{
	struct glake__device *device = repiecing->device;
	struct glake__range *mirror;
	struct glake__chunk *dead = NULL;
	const uint64_t readers = glake__hold_readers(hold);
	const uint64_t last = glake__errands_last();
	int r = glake__errand_mirror(device, hold->range, hold->offset, hold->n_bytes,
	                             GLAKE__ACCESS_READ, &mirror);
	if (r == 0) {
		r = repiecing->close(readers);
	}
	if (r == 0) {
		glake__errands_drained(last, readers);
		r = copy_and_put(device, hold, scratch, &mirror, parts, repiecing->n_sizes, &dead);
		glake__gate_open();
	}
	glake__errand_end(device->session, &mirror);
	glake__grant_return(device->session, dead);
	return r;
}

/* What is there is held first: nobody else changes, names or pins it from then on. */
static int exchange_held(const struct glake__repiecing *repiecing, uint64_t n_bytes,
                         struct glake__range **scratch, const struct glake__part *parts)
{
	const glake_ptr ptr = repiecing->ptr;
	enum glake__pin pin;
	struct glake__hold hold;
	int r = glake__hold_begin(&hold, ptr, n_bytes, true);
	if (r < 0) {
		return glake__fail(-ESTALE, "0x%llx: unmapped meanwhile", (unsigned long long)ptr);
	}
	if (!glake__look_is_still(&hold, ptr, n_bytes, repiecing->last, &pin)) {
		r = glake__fail(-ESTALE, "0x%llx: mapped anew meanwhile", (unsigned long long)ptr);
	} else if (pin) {
		r = glake__fail(-EBUSY, "the memory at 0x%llx is pinned: %s",
		                (unsigned long long)ptr, glake__pin_text(pin));
	} else {
		r = exchange(repiecing, &hold, scratch, parts);
	}
	glake__hold_end(&hold);
	return r;
}

int glake__repiece(const struct glake__repiecing *repiecing, struct glake__wait *wait)
{
	struct glake__device *device = repiecing->device;
	uint64_t n_bytes = 0;
	struct glake__range *scratch;
	cleanup_free struct glake__part *parts = calloc(repiecing->n_sizes, sizeof(*parts));
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < repiecing->n_sizes; i++) {
		n_bytes += repiecing->sizes[i];
	}
	int r = glake__range_reserve(&scratch_use, NULL, device->handle, n_bytes, 0, 0, &scratch);
	if (r < 0) {
		return r;
	}
	r = fill(repiecing, scratch, wait);
	if (r == 0) {
		list_parts(scratch, parts);
		r = exchange_held(repiecing, n_bytes, &scratch, parts);
	}
	glake__errand_end(device->session, &scratch);
	glake__errands_collect();
	return r;
}

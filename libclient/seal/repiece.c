/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/repiece.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/errand.h"
#include "libclient/space/reback.h"
#include "libclient/heap/supply.h"
#include "proto/cleanup.h"

/* One request for each run of equal sizes. */
static int fill_once(const struct glake__backing *backing, struct glake__range *scratch,
                     const uint64_t *sizes, size_t n_sizes, struct glake__wait *wait)
{
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < n_sizes;) {
		uint64_t chunk_bytes = sizes[i];
		uint64_t n_bytes = 0;
		for (; i < n_sizes && sizes[i] == chunk_bytes; i++) {
			n_bytes += chunk_bytes;
		}
		r = glake__backing_fill(backing->device, scratch, offset, n_bytes, chunk_bytes,
		                        wait);
		offset += n_bytes;
	}
	return r;
}

/* Fresh memory of the driver: nobody pays for it, and it ends with its mapping. */
static int create_one(const struct glake__backing *backing, struct glake__range *scratch,
                      uint64_t offset, uint64_t n_bytes)
{
	struct glake__part part = {
		.chunk = glake__chunk_new(0, n_bytes, backing->device->handle, GLAKE__PAGE_CHUNK),
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
	if (!part.chunk) {
		return -ENOMEM;
	}
	int r = glake__map_create(backing->device->handle, n_bytes, &part.handle);
	if (r == 0) {
		r = glake__range_fill(scratch, offset, &part, 1);
		glake__map_release(part.handle);
	}
	glake__chunk_put(part.chunk);
	return r;
}

static int create(const struct glake__backing *backing, struct glake__range *scratch,
                  const uint64_t *sizes, size_t n_sizes)
{
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < n_sizes; i++) {
		r = create_one(backing, scratch, offset, sizes[i]);
		offset += sizes[i];
	}
	return r;
}

/* Unmap what is in @scratch; the chunks that nothing else has go back. */
static int empty(const struct glake__backing *backing, struct glake__range *scratch)
{
	struct glake__chunk *dead = NULL;
	int r = glake__range_clear(scratch, 0, scratch->n_bytes, &dead);
	glake__backing_return(backing->device->session, dead);
	return r;
}

static int fill(const struct glake__backing *backing, struct glake__range *scratch,
                const uint64_t *sizes, size_t n_sizes, struct glake__wait *wait)
{
	int r = fill_once(backing, scratch, sizes, n_sizes, wait);
	while (r < 0 && glake__supply_make_room(backing->device, r, wait) &&
	       empty(backing, scratch) == 0) {
		r = fill_once(backing, scratch, sizes, n_sizes, wait);
	}
	/* Whoever wants to write must not notice that glaked has gone, or leaves. */
	bool is_absent = r == GLAKE_E_GONE || r == GLAKE_E_SHUTTING_DOWN ||
	                 glake__link_is_gone(&backing->device->session->link);
	if (r < 0 && is_absent && empty(backing, scratch) == 0) {
		r = create(backing, scratch, sizes, n_sizes);
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
static int copy_and_put(struct glake__backing *backing, uint64_t offset,
                        struct glake__range **scratch, struct glake__range **mirror,
                        const struct glake__part *parts, size_t n_parts, struct glake__chunk **dead)
{
	int r = glake__errand_copy(backing->device, scratch, mirror);
	return r < 0 ? r : glake__range_reback(backing->range, offset, parts, n_parts, dead, NULL);
}

/* After -EBUSY *scratch may be NULL, and its memory another's. */
static int exchange(struct glake__backing *backing, uint64_t offset, struct glake__range **scratch,
                    const struct glake__part *parts, size_t n_parts, glake__close_fn *close)
{
	struct glake__range *mirror;
	struct glake__chunk *dead = NULL;
	const uint64_t readers = backing->range->readers;
	const uint64_t last = glake__errands_last();
	int r = glake__errand_mirror(backing, offset, (*scratch)->n_bytes, GLAKE__ACCESS_READ,
	                             &mirror);
	if (r == 0) {
		r = close(readers);
	}
	if (r == 0) {
		glake__errands_drained(last, readers);
		r = copy_and_put(backing, offset, scratch, &mirror, parts, n_parts, &dead);
		glake__gate_open();
	}
	glake__errand_end(backing->device->session, &mirror);
	glake__backing_return(backing->device->session, dead);
	glake__errands_collect();
	return r;
}

int glake__repiece(struct glake__backing *backing, uint64_t offset, const uint64_t *sizes,
                   size_t n_sizes, struct glake__wait *wait, glake__close_fn *close)
{
	uint64_t n_bytes = 0;
	struct glake__range *scratch;
	cleanup_free struct glake__part *parts = calloc(n_sizes, sizeof(*parts));
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n_sizes; i++) {
		n_bytes += sizes[i];
	}
	int r = glake__range_reserve(GLAKE__RANGE_SCRATCH, NULL, backing->device->handle, n_bytes,
	                             0, 0, &scratch);
	if (r < 0) {
		return r;
	}
	r = fill(backing, scratch, sizes, n_sizes, wait);
	if (r == 0) {
		list_parts(scratch, parts);
		r = exchange(backing, offset, &scratch, parts, n_sizes, close);
	}
	glake__errand_end(backing->device->session, &scratch);
	return r;
}

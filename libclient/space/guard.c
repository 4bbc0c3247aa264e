/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/guard.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/access.h"
#include "libclient/space/reback.h"
#include "proto/cleanup.h"

/* Mapped with its access, or not at all. It has a handle of the library's. */
static int map(const struct glake__piece *piece)
{
	const glake_ptr ptr = piece->range->ptr + piece->offset;
	int r = glake__map_handle(ptr, piece->n_bytes, piece->chunk->handle);
	if (r < 0) {
		return r;
	}
	r = glake__access_set(ptr, piece->n_bytes, piece->readers, glake__access_writers(piece),
	                      piece->access);
	if (r < 0) {
		char *text = glake__error_save();
		glake__map_unmap(ptr, piece->n_bytes);
		glake__error_restore(text);
	}
	return r;
}

static int unmap(const struct glake__piece *piece)
{
	return glake__map_unmap(piece->range->ptr + piece->offset, piece->n_bytes);
}

/* @old, which is busy, is what stands in the place of @fresh. If that does not get it, @old has it again, or is_unmapped. */
static int exchange_one(struct glake__piece *old, const struct glake__piece *fresh)
{
	int r = old->chunk ? unmap(old) : 0;
	if (r < 0) {
		return r;
	}
	r = map(fresh);
	if (r < 0 && old->chunk) {
		char *text = glake__error_save();
		old->is_unmapped = map(old) < 0;
		glake__error_restore(text);
	}
	return r;
}

/* A place that has had its exchange. */
static void undo_one(struct glake__piece *old, const struct glake__piece *fresh)
{
	if (unmap(fresh) < 0) {
		/* The fresh chunk stays mapped here, whosever it is: nobody knows it by this place. */
		old->is_unmapped = true;
	} else if (old->chunk) {
		old->is_unmapped = map(old) < 0;
	}
}

static int exchange(const struct glake__change *changes, size_t n)
{
	int r = 0;
	size_t n_done = 0;
	while (r == 0 && n_done < n) {
		r = exchange_one(glake__change_first(&changes[n_done]), changes[n_done].fresh);
		n_done += r == 0;
	}
	if (r < 0) {
		char *text = glake__error_save();
		while (n_done-- > 0) {
			undo_one(glake__change_first(&changes[n_done]), changes[n_done].fresh);
		}
		glake__error_restore(text);
	}
	return r;
}

static struct glake__part guard_part(const struct glake__range *range)
{
	return (struct glake__part){
		.chunk = range->guard,
		.n_bytes = range->guard->n_bytes,
		.access = GLAKE__ACCESS_READ,
		.fd = -1,
	};
}

int glake__guard_fill(struct glake__range *range, uint64_t offset, size_t n)
{
	cleanup_free struct glake__part *parts = calloc(n + 1, sizeof(*parts));
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		parts[i] = guard_part(range);
	}
	return n > 0 ? glake__range_fill(range, offset, parts, n) : 0;
}

int glake__guard_exchange(struct glake__range *range, const uint64_t *offsets,
                          const struct glake__part *parts, size_t n, enum glake__guard_way way,
                          struct glake__chunk **dead)
{
	cleanup_cancel int cancel = cancel_disable();
	cleanup_free struct glake__change *changes = calloc(n, sizeof(*changes));
	cleanup_free struct glake__site *sites = calloc(n, sizeof(*sites));
	cleanup_free struct glake__part *wanted = calloc(n, sizeof(*wanted));
	if (!changes || !sites || !wanted) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		sites[i] = (struct glake__site){.range = range,
		                                .ptr = range->ptr + offsets[i],
		                                .waits = way != GLAKE__GUARD_NOW};
		wanted[i] = parts ? parts[i] : guard_part(range);
	}
	int r = glake__changes_begin(changes, sites, wanted, n);
	if (r < 0) {
		return r;
	}
	for (size_t i = 0; r == 0 && way != GLAKE__GUARD_PINNED && i < n; i++) {
		r = glake__change_is_pinned(&changes[i]) ? -EBUSY : 0;
	}
	r = r < 0 ? glake__fail(r, "some of the memory is pinned") : exchange(changes, n);
	if (r == 0) {
		glake__changes_commit(changes, n, dead);
	} else {
		glake__changes_cancel(changes, n, dead);
	}
	return r;
}

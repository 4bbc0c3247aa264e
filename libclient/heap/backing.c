/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/backing.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "libclient/link/session.h"
#include "libclient/space/reback.h"

/* Reserve a backing's range, which is a hole. */
static int reserve(struct glake__device *device, uint64_t n_bytes,
                   struct glake__backing **backing_out)
{
	cleanup_free struct glake__backing *backing = calloc(1, sizeof(*backing));
	if (!backing) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__range_reserve(&glake__use_private, backing, device->handle, n_bytes, 0, 0,
	                             &backing->range);
	if (r < 0) {
		return r;
	}
	backing->ptr = backing->range->ptr;
	backing->n_bytes = n_bytes;
	backing->device = device;
	*backing_out = ptr_steal(backing);
	return 0;
}

/* The backing could not be filled. */
static void unreserve(struct glake__backing *backing)
{
	char *why = glake__error_save();
	glake__range_end(backing->range, NULL);
	glake__backing_free(backing);
	glake__error_restore(why);
}

int glake__backing_new(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__backing **backing_out)
{
	int r = reserve(device, n_bytes, backing_out);
	if (r < 0) {
		return r;
	}
	struct glake__backing *backing = *backing_out;
	r = glake__grant_fill(device, backing->range, 0, n_bytes, GRANT_CHUNK_BYTES, wait);
	if (r < 0) {
		unreserve(backing);
	}
	return r;
}

int glake__backing_of_chunk(struct glake__device *device, uint64_t id, uint64_t n_bytes, int fd,
                            struct glake__backing **backing_out)
{
	struct glake__part part = {
		.chunk = glake__chunk_new(id, n_bytes, device->handle, GLAKE__PAGE_CHUNK),
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = fd,
	};
	if (!part.chunk) {
		return -ENOMEM;
	}
	int r = reserve(device, n_bytes, backing_out);
	if (r == 0) {
		r = glake__range_fill((*backing_out)->range, 0, &part, 1);
		if (r < 0) {
			unreserve(*backing_out);
		}
	}
	glake__chunk_put(part.chunk);
	if (r == 0) {
		glake__grant_count(device->session, (int64_t)n_bytes);
	}
	return r;
}

void glake__backing_free(struct glake__backing *backing)
{
	free(backing);
}

bool glake__backing_is_tied_locked(const struct glake__backing *backing)
{
	const struct glake__piece *piece = backing->range->first;
	while (piece && piece->chunk && piece->chunk->kind == GLAKE__PAGE_CHUNK &&
	       !glake__chunk_pin_locked(piece->chunk)) {
		piece = piece->next;
	}
	return piece != NULL;
}

static void append(struct glake__chunk **list, struct glake__chunk *more)
{
	while (more) {
		struct glake__chunk *next = more->next;
		more->next = *list;
		*list = more;
		more = next;
	}
}

int glake__backing_give_back(struct glake_session *session, struct glake__backing *list)
{
	struct glake__chunk *gone = NULL;
	int error = 0;
	while (list) {
		struct glake__backing *backing = list;
		struct glake__chunk *dead = NULL;
		list = backing->next;
		int r = glake__range_end(backing->range, &dead);
		append(&gone, dead);
		glake__backing_free(backing);
		error = error ? error : r;
	}
	glake__grant_return(session, gone);
	return error;
}

void glake__backing_drop(struct glake_session *session, struct glake__backing *backing)
{
	glake__grant_drop(session, backing->range);
	glake__backing_free(backing);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Single chunks, for callers that import and map by themselves. */
#include <errno.h>

#include "libclient/space/space.h"
#include "libclient/heap/supply.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

static void count_new(struct glake_session *session, uint64_t n_bytes)
{
	glake__lock();
	glake__books_add_live(&session->books, n_bytes);
	session->books.reserved_bytes += n_bytes;
	glake__unlock();
}

static void count_gone(struct glake_session *session, uint64_t n_bytes)
{
	glake__lock();
	session->books.live_bytes -= n_bytes;
	session->books.reserved_bytes -= n_bytes;
	glake__unlock();
}

int glake_chunk_new(struct glake_session *session, uint32_t device, uint64_t bytes,
                    uint64_t *chunk_out, int *fd_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (bytes == 0 || bytes % GLAKE_CHUNK_GRANULARITY || bytes > GLAKE_MAX_CHUNK_BYTES) {
		return glake__fail(-EINVAL, "a chunk cannot have %llu bytes",
		                   (unsigned long long)bytes);
	}
	struct glake__device *found = glake__session_device(session, device);
	if (!found) {
		return -ENODEV;
	}
	cleanup_cancel int cancel = cancel_disable();
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	uint64_t chunk;
	struct glake__wait wait = {0};
	r = glake__rpc_chunk_alloc(session, device, bytes, 1, bytes, &wait, &chunk, &fds);
	while (r < 0 && glake__supply_make_room(found, r, &wait)) {
		r = glake__rpc_chunk_alloc(session, device, bytes, 1, bytes, &wait, &chunk, &fds);
	}
	if (r == 0) {
		count_new(session, bytes);
		*chunk_out = chunk;
		*fd_out = fdlist_take(&fds, 0);
	}
	return glake__leave(session, r);
}

int glake_chunk_fd(struct glake_session *session, uint64_t chunk, int *fd_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	uint64_t n_bytes;
	uint32_t device;
	const struct glake__chunk_names names = {.ids = &chunk, .n_ids = 1};
	r = glake__rpc_chunk_open(session, &names, &n_bytes, &device, &fds);
	if (r == 0) {
		*fd_out = fdlist_take(&fds, 0);
	}
	return glake__leave(session, r);
}

int glake_chunk_free(struct glake_session *session, uint64_t chunk, uint64_t bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	r = glake__rpc_chunk_free(session, &chunk, 1);
	if (r == 0 || glake__link_is_gone(&session->link)) {
		count_gone(session, bytes);
	}
	return glake__leave(session, r);
}

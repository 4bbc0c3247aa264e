/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many allocations at once. Chunks of equal size come in one answer, and glaked makes those of the next
 * requests while the caller maps what it has.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/heap/backing.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/supply.h"
#include "proto/cleanup.h"

/* Few enough that glaked has not to make all before the first can be mapped. */
#define CHUNKS_AT_ONCE 16u
#define REQUESTS_AT_ONCE 4u

struct wish {
	uint64_t n_bytes;     /* as asked for */
	uint64_t chunk_bytes; /* of the one chunk that it gets; 0: several, or none of its own */
	struct glake__allocation *allocation; /* NULL: not yet */
	size_t index;                         /* the caller's */
};

struct request {
	struct glake__call call;
	struct wish *wishes;
	uint32_t n; /* 0: it was not sent */
};

struct many {
	struct glake__device *device;
	bool is_zeroed;
	struct wish *wishes; /* owned; by size of their chunks */
	size_t n;
	struct glake__wait wait;
};

static const struct glake__tag nobody;

static int by_size(const void *a, const void *b)
{
	const struct wish *left = a;
	const struct wish *right = b;
	int order = (left->chunk_bytes > right->chunk_bytes) -
	            (left->chunk_bytes < right->chunk_bytes);
	return order ? order : (left->index > right->index) - (left->index < right->index);
}

static int by_index(const void *a, const void *b)
{
	const struct wish *left = a;
	const struct wish *right = b;
	return (left->index > right->index) - (left->index < right->index);
}

static int many_init(struct many *many, struct glake__device *device, const uint64_t *bytes,
                     size_t n, bool is_zeroed)
{
	*many = (struct many){.device = device, .is_zeroed = is_zeroed, .n = n};
	many->wishes = calloc(n ? n : 1, sizeof(*many->wishes));
	if (!many->wishes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t n_bytes = glake_chunk_bytes(bytes[i]);
		bool is_one = n_bytes <= GRANT_CHUNK_BYTES && (is_zeroed || bytes[i] >= SLAB_BYTES);
		many->wishes[i] = (struct wish){
			.n_bytes = bytes[i],
			.chunk_bytes = is_one ? n_bytes : 0,
			.index = i,
		};
	}
	return 0;
}

/* ---- chunks ----------------------------------------------------------------------------------- */

static bool wants_chunk(const struct wish *wish)
{
	return wish->chunk_bytes > 0 && !wish->allocation;
}

/* The next wishes of equal size, from @first on, in one request. Returns the one behind them. */
static size_t start(struct many *many, size_t first, struct request *request)
{
	struct wish *wishes = &many->wishes[first];
	size_t n = 1;
	request->n = 0;
	if (!wants_chunk(wishes)) {
		return first + 1;
	}
	while (n < CHUNKS_AT_ONCE && first + n < many->n && wants_chunk(&wishes[n]) &&
	       wishes[n].chunk_bytes == wishes->chunk_bytes) {
		n++;
	}
	request->wishes = wishes;
	if (glake__rpc_chunk_alloc_start(many->device->session, &request->call,
	                                 many->device->public.index, wishes->chunk_bytes,
	                                 (uint32_t)n, wishes->chunk_bytes, &many->wait) == 0) {
		request->n = (uint32_t)n;
	}
	return first + n;
}

static void enter(struct many *many, struct wish *wish, uint64_t id, int fd)
{
	struct glake__backing *backing;
	if (glake__backing_of_chunk(many->device, id, wish->chunk_bytes, fd, &backing) == 0) {
		wish->allocation = glake__heap_add(backing, wish->n_bytes, &nobody);
	} else {
		glake__rpc_chunk_free(many->device->session, &id, 1);
	}
}

static void finish(struct many *many, struct request *request)
{
	cleanup_fdlist struct fdlist fds;
	uint64_t ids[CHUNKS_AT_ONCE];
	fdlist_init(&fds);
	if (request->n == 0 || glake__rpc_chunk_alloc_wait(many->device->session, &request->call,
	                                                   request->n, ids, &fds) < 0) {
		return;
	}
	for (uint32_t i = 0; i < request->n; i++) {
		enter(many, &request->wishes[i], ids[i], fds.fds[i]);
	}
}

/* Chunks that fail here are asked for again, one by one. */
static void get_chunks(struct many *many)
{
	struct request requests[REQUESTS_AT_ONCE];
	size_t next = 0;
	size_t n_started = 0;
	for (size_t n_ended = 0; next < many->n || n_ended < n_started; n_ended++) {
		while (next < many->n && n_started < n_ended + REQUESTS_AT_ONCE) {
			next = start(many, next, &requests[n_started++ % REQUESTS_AT_ONCE]);
		}
		finish(many, &requests[n_ended % REQUESTS_AT_ONCE]);
	}
}

/* ---- all of it -------------------------------------------------------------------------------- */

static int get_all(struct many *many)
{
	int r = 0;
	for (size_t i = 0; i < many->n && !many->is_zeroed; i++) {
		struct wish *wish = &many->wishes[i];
		wish->allocation = glake__heap_take_on(many->device, wish->n_bytes, &nobody);
	}
	qsort(many->wishes, many->n, sizeof(*many->wishes), by_size);
	get_chunks(many);
	qsort(many->wishes, many->n, sizeof(*many->wishes), by_index);
	for (size_t i = 0; r == 0 && i < many->n; i++) {
		struct wish *wish = &many->wishes[i];
		if (!wish->allocation) {
			r = glake__supply_get_on(many->device, wish->n_bytes, many->is_zeroed,
			                         &nobody, &many->wait, &wish->allocation);
		}
	}
	return r;
}

static void give_back(struct many *many)
{
	char *text = glake__error_save();
	for (size_t i = 0; i < many->n; i++) {
		if (many->wishes[i].allocation) {
			glake__heap_release(many->device->session, many->wishes[i].allocation);
		}
	}
	glake__error_restore(text);
}

int glake_alloc_many(struct glake_session *session, uint32_t device, const uint64_t *bytes,
                     size_t n, unsigned flags, glake_ptr *ptrs_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__device *found = NULL;
	struct many many;
	int r = glake__session_awake(session);
	if (r == 0 && n > 0 && (!bytes || !ptrs_out)) {
		r = glake__fail(-EINVAL, "bytes or ptrs_out is NULL");
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = glake__heap_check(bytes[i], flags, GLAKE_ZERO);
	}
	r = r < 0 ? r : glake__session_mappable(session, device, &found);
	r = r < 0 ? r : many_init(&many, found, bytes, n, flags & GLAKE_ZERO);
	if (r < 0) {
		return r;
	}
	r = get_all(&many);
	for (size_t i = 0; r == 0 && i < n; i++) {
		ptrs_out[i] = many.wishes[i].allocation->address;
	}
	if (r < 0) {
		give_back(&many);
	}
	free(many.wishes);
	return glake__leave(session, r);
}

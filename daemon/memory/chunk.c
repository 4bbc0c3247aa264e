/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/chunk.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/memory/reserve.h"
#include "proto/cleanup.h"

/* WORKER_MAX_LAZY such jobs are fewer fds than the reserve, CONFIG_RESERVED_FDS. */
#define MAX_LAZY_LEAVING 1

struct leaving {
	int fd;
	CUmemGenericAllocationHandle handle;
	uint64_t bytes; /* of leaving_bytes; 0: the chunk stays */
	uint64_t removed;
};

/* The worker closes PIECE_LEAVING chunks in one piece, more than alloc.c makes in a turn: closing keeps up with making. */
#define PIECE_LEAVING 16

struct release {
	struct work work;
	struct location *at;
	struct parking *parking;
	size_t n_leaving;
	size_t n_closed;
	struct leaving leaving[];
};

void chunk_init(struct chunk *chunk, struct location *at, struct chunk_books *books, uint64_t bytes,
                int fd, CUmemGenericAllocationHandle handle, enum chunk_use use,
                struct charge *charge)
{
	*chunk = (struct chunk){.at = at,
	                        .books = books,
	                        .bytes = bytes,
	                        .fd = fd,
	                        .handle = handle,
	                        .use = use,
	                        .charge = *charge};
	*charge = (struct charge){0};
	at->use_bytes[use] += bytes;
	books->stats->chunks_created++;
	if (!handle) {
		books->n_fds++;
	}
}

void chunk_adopt(struct chunk *chunk, struct location *at, struct chunk_books *books,
                 uint64_t bytes, int fd, enum chunk_use use, struct charge *charge)
{
	chunk_init(chunk, at, books, bytes, fd, 0, use, charge);
	chunk->is_unparked = fd < 0;
	if (chunk->is_unparked) {
		books->n_fds--;
		books->unparked_bytes += bytes;
	}
}

void chunk_move(struct chunk *to, struct chunk *from)
{
	*to = *from;
	*from = (struct chunk){.fd = -1};
}

void chunk_hand_over(struct chunk *chunk)
{
	if (chunk->promise) {
		promise_undraw(chunk->promise, chunk->bytes);
		chunk->promise = NULL;
	}
}

void chunk_set_use(struct chunk *chunk, enum chunk_use use)
{
	assert(chunk->at->use_bytes[chunk->use] >= chunk->bytes);
	chunk->at->use_bytes[chunk->use] -= chunk->bytes;
	chunk->at->use_bytes[use] += chunk->bytes;
	chunk->use = use;
}

/* @parking NULL: not to be waited for. */
static void close_leaving(struct location *at, struct parking *parking,
                          const struct leaving *leaving, size_t n_leaving)
{
	for (size_t i = 0; i < n_leaving; i++) {
		int fd = leaving[i].fd;
		fd_close(&fd);
		if (leaving[i].handle) {
			at->drv->cuMemRelease(leaving[i].handle);
		}
		if (parking && leaving[i].removed) {
			parking_block(parking, leaving[i].removed);
		}
		at->leaving_bytes -= leaving[i].bytes;
	}
}

static bool run_release(struct work *work)
{
	struct release *release = container_of(work, struct release, work);
	size_t n_left = release->n_leaving - release->n_closed;
	size_t n = n_left < PIECE_LEAVING ? n_left : PIECE_LEAVING;
	close_leaving(release->at, release->parking, &release->leaving[release->n_closed], n);
	release->n_closed += n;
	return n == n_left;
}

static void free_release(struct work *work)
{
	free(container_of(work, struct release, work));
}

/* Remove it from the books. The caller closes what is returned. */
static struct leaving forget(struct chunk *chunk)
{
	struct location *at = chunk->at;
	struct leaving left = {.fd = fd_steal(&chunk->fd),
	                       .handle = chunk->handle,
	                       .bytes = chunk->bytes,
	                       .removed = chunk->removed};
	assert(at->use_bytes[chunk->use] >= chunk->bytes);
	at->use_bytes[chunk->use] -= chunk->bytes;
	at->leaving_bytes += chunk->bytes;
	chunk->books->stats->chunks_released++;
	if (chunk->is_unparked) {
		chunk->books->unparked_bytes -= chunk->bytes;
	} else if (!left.handle) {
		chunk->books->n_fds--;
	}
	charge_refund(&chunk->charge);
	chunk_hand_over(chunk);
	reserve_keep(at, chunk->unsealing_bytes);
	*chunk = (struct chunk){.fd = -1};
	return left;
}

static void submit(struct location *at, struct parking *parking, const struct leaving *leaving,
                   size_t n_leaving)
{
	struct release *release = malloc(sizeof(*release) + n_leaving * sizeof(leaving[0]));
	if (!release) {
		/* Slow is better than leaked: close them here. */
		close_leaving(at, NULL, leaving, n_leaving);
		return;
	}
	release->at = at;
	release->parking = parking;
	release->n_leaving = n_leaving;
	release->n_closed = 0;
	for (size_t i = 0; i < n_leaving; i++) {
		release->leaving[i] = leaving[i];
	}
	/* A large release does not wait, because its fds would. */
	if (n_leaving > MAX_LAZY_LEAVING) {
		worker_submit_release(&at->worker, &release->work, run_release, free_release);
	} else {
		worker_submit_lazy(&at->worker, &release->work, run_release, free_release);
	}
}

void chunk_drop_fd(struct chunk *chunk)
{
	assert(chunk->handle);
	struct leaving left = {.fd = fd_steal(&chunk->fd)};
	if (left.fd >= 0) {
		submit(chunk->at, NULL, &left, 1);
	}
}

void chunk_release(struct chunk *chunk)
{
	chunk_release_all(chunk, 1);
}

void chunk_release_all(struct chunk *chunks, size_t n_chunks)
{
	enum { BATCH = 256 };
	struct leaving leaving[BATCH];
	struct location *at = NULL;
	struct parking *parking = NULL;
	size_t n_leaving = 0;
	for (size_t i = 0; i < n_chunks; i++) {
		if (!chunks[i].at) {
			continue;
		}
		assert(!at || chunks[i].at == at);
		at = chunks[i].at;
		parking = chunks[i].books->parking;
		leaving[n_leaving++] = forget(&chunks[i]);
		if (n_leaving == BATCH) {
			submit(at, parking, leaving, n_leaving);
			n_leaving = 0;
		}
	}
	if (n_leaving > 0) {
		submit(at, parking, leaving, n_leaving);
	}
}

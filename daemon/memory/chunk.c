/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/chunk.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* WORKER_MAX_LAZY such jobs are fewer fds than the reserve, CONFIG_RESERVED_FDS. */
#define MAX_LAZY_HOLDS 1

struct hold {
	int fd;
	CUmemGenericAllocationHandle handle;
	uint64_t bytes; /* of leaving_bytes; 0: the chunk stays */
	uint64_t removed;
};

/*
 * So many are closed in one piece. It is more than alloc.c makes in a turn, so closing keeps up
 * with making.
 */
#define PIECE_HOLDS 16

struct release {
	struct work work;
	struct location *at;
	struct parking *parking;
	size_t n_holds;
	size_t n_closed;
	struct hold holds[];
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
static void close_holds(struct location *at, struct parking *parking, const struct hold *holds,
                        size_t n_holds)
{
	for (size_t i = 0; i < n_holds; i++) {
		int fd = holds[i].fd;
		fd_close(&fd);
		if (holds[i].handle) {
			at->drv->cuMemRelease(holds[i].handle);
		}
		if (parking && holds[i].removed) {
			parking_block(parking, holds[i].removed);
		}
		at->leaving_bytes -= holds[i].bytes;
	}
}

static bool run_release(struct work *work)
{
	struct release *release = container_of(work, struct release, work);
	size_t n_left = release->n_holds - release->n_closed;
	size_t n = n_left < PIECE_HOLDS ? n_left : PIECE_HOLDS;
	close_holds(release->at, release->parking, &release->holds[release->n_closed], n);
	release->n_closed += n;
	return n == n_left;
}

static void free_release(struct work *work)
{
	free(container_of(work, struct release, work));
}

/* Remove it from the books. The caller closes what is returned. */
static struct hold forget(struct chunk *chunk)
{
	struct location *at = chunk->at;
	struct hold hold = {.fd = fd_steal(&chunk->fd),
	                    .handle = chunk->handle,
	                    .bytes = chunk->bytes,
	                    .removed = chunk->removed};
	assert(at->use_bytes[chunk->use] >= chunk->bytes);
	at->use_bytes[chunk->use] -= chunk->bytes;
	at->leaving_bytes += chunk->bytes;
	chunk->books->stats->chunks_released++;
	if (chunk->is_unparked) {
		chunk->books->unparked_bytes -= chunk->bytes;
	} else if (!hold.handle) {
		chunk->books->n_fds--;
	}
	charge_refund(&chunk->charge);
	chunk_hand_over(chunk);
	*chunk = (struct chunk){.fd = -1};
	return hold;
}

static void submit(struct location *at, struct parking *parking, const struct hold *holds,
                   size_t n_holds)
{
	struct release *release = malloc(sizeof(*release) + n_holds * sizeof(holds[0]));
	if (!release) {
		/* Slow is better than leaked: close them here. */
		close_holds(at, NULL, holds, n_holds);
		return;
	}
	release->at = at;
	release->parking = parking;
	release->n_holds = n_holds;
	release->n_closed = 0;
	for (size_t i = 0; i < n_holds; i++) {
		release->holds[i] = holds[i];
	}
	/* A large release does not wait, because its fds would. */
	if (n_holds > MAX_LAZY_HOLDS) {
		worker_submit_release(&at->worker, &release->work, run_release, free_release);
	} else {
		worker_submit_lazy(&at->worker, &release->work, run_release, free_release);
	}
}

void chunk_drop_fd(struct chunk *chunk)
{
	assert(chunk->handle);
	struct hold hold = {.fd = fd_steal(&chunk->fd)};
	if (hold.fd >= 0) {
		submit(chunk->at, NULL, &hold, 1);
	}
}

void chunk_release(struct chunk *chunk)
{
	chunk_release_all(chunk, 1);
}

void chunk_release_all(struct chunk *chunks, size_t n_chunks)
{
	enum { BATCH = 256 };
	struct hold holds[BATCH];
	struct location *at = NULL;
	struct parking *parking = NULL;
	size_t n_holds = 0;
	for (size_t i = 0; i < n_chunks; i++) {
		if (!chunks[i].at) {
			continue;
		}
		assert(!at || chunks[i].at == at);
		at = chunks[i].at;
		parking = chunks[i].books->parking;
		holds[n_holds++] = forget(&chunks[i]);
		if (n_holds == BATCH) {
			submit(at, parking, holds, n_holds);
			n_holds = 0;
		}
	}
	if (n_holds > 0) {
		submit(at, parking, holds, n_holds);
	}
}

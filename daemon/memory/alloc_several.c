/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/alloc_several.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

uint64_t alloc_part_bytes(const struct alloc_part *part)
{
	return (part->n_chunks - 1) * part->chunk_bytes + part->last_bytes;
}

static void set_order(struct alloc_several *several)
{
	for (size_t i = 0; i < several->n_parts; i++) {
		size_t to = i;
		for (; to > 0 &&
		       several->parts[several->order[to - 1]].at->slot > several->parts[i].at->slot;
		     to--) {
			several->order[to] = several->order[to - 1];
		}
		several->order[to] = (uint8_t)i;
		several->n_chunks += several->parts[i].n_chunks;
	}
}

/* The chunks of part @i: chunks lie in the order of the parts as given. */
static struct chunk *chunks_of(struct alloc_several *several, size_t i)
{
	struct chunk *chunks = several->chunks;
	for (size_t k = 0; k < i; k++) {
		chunks += several->parts[k].n_chunks;
	}
	return chunks;
}

/* Part by part: a release is of one location. */
static void release_all(struct alloc_several *several)
{
	for (size_t i = 0; several->chunks && i < several->n_parts; i++) {
		chunk_release_all(chunks_of(several, i), several->parts[i].n_chunks);
	}
	free(several->chunks);
	several->chunks = NULL;
}

static void refuse(struct alloc_several *several, enum status status, const struct location *at)
{
	release_all(several);
	several->done(several->user, status, at, NULL, 0);
}

/* Chunks that the owner does not take are released. He may free @several. */
static void grant(struct alloc_several *several)
{
	struct alloc_several mine = *several;
	several->done(several->user, STATUS_OK, NULL, mine.chunks, mine.n_chunks);
	release_all(&mine);
}

static void start_next(struct alloc_several *several);

static void on_part(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct alloc_several *several = user;
	size_t i = several->order[several->n_done];
	if (status != STATUS_OK) {
		refuse(several, status, several->parts[i].at);
		return;
	}
	if (several->n_parts == 1) {
		several->done(several->user, STATUS_OK, NULL, chunks, n_chunks);
		return;
	}
	for (size_t k = 0; k < n_chunks; k++) {
		chunk_move(&chunks_of(several, i)[k], &chunks[k]);
	}
	if (++several->n_done == several->n_parts) {
		grant(several);
	} else {
		start_next(several);
	}
}

static struct alloc_wanted wanted_of(struct alloc_several *several, size_t i,
                                     uint64_t sizes[ALLOC_MAX_CHUNKS])
{
	const struct alloc_part *part = &several->parts[i];
	assert(part->n_chunks > 0 && part->n_chunks <= ALLOC_MAX_CHUNKS);
	for (uint32_t k = 0; k < part->n_chunks; k++) {
		sizes[k] = k + 1 < part->n_chunks ? part->chunk_bytes : part->last_bytes;
	}
	return (struct alloc_wanted){
		.at = part->at,
		.tenant = several->tenant,
		.uid = several->uid,
		.use = several->use,
		.sizes = sizes,
		.n_chunks = part->n_chunks,
		.waited_ms = several->waited_ms,
		.is_held_back = several->is_held_back,
		.is_spare = several->is_spare,
		.no_wait = several->no_wait,
		.may_unseal = several->may_unseal && several->n_parts == 1,
		.refusal = &several->refusal,
		.promise = several->promise_at ? several->promise_at(several->user, part->at)
	                                       : NULL};
}

/* @several may be over, and freed, when this returns. */
static void start_next(struct alloc_several *several)
{
	uint64_t sizes[ALLOC_MAX_CHUNKS];
	size_t i = several->order[several->n_done];
	const struct location *at = several->parts[i].at;
	struct alloc_wanted wanted = wanted_of(several, i, sizes);
	enum status status = alloc_start(several->allocator, &wanted, on_part, several,
	                                 &several->alloc);
	if (status != STATUS_OK) {
		refuse(several, status, at);
	}
}

/* Whether each part could be granted alone, some time. *at_out: which not. */
static enum status check_all(struct alloc_several *several, const struct location **at_out)
{
	uint64_t sizes[ALLOC_MAX_CHUNKS];
	enum status status = STATUS_OK;
	for (size_t i = 0; i < several->n_parts && status == STATUS_OK; i++) {
		struct alloc_wanted wanted = wanted_of(several, i, sizes);
		status = alloc_check(several->allocator, &wanted);
		*at_out = wanted.at;
	}
	return status;
}

void alloc_several_start(struct alloc_several *several)
{
	const struct location *at = several->parts[0].at;
	assert(several->n_parts > 0 && several->n_parts <= ALLOC_MAX_PARTS);
	set_order(several);
	if (several->n_parts > 1) {
		enum status status = check_all(several, &at);
		several->chunks = calloc(several->n_chunks, sizeof(several->chunks[0]));
		if (status != STATUS_OK || !several->chunks) {
			refuse(several, status ? status : STATUS_NO_HOST_MEMORY, at);
			return;
		}
	}
	start_next(several);
}

void alloc_several_cancel(struct alloc_several *several)
{
	if (several->alloc) {
		alloc_cancel(several->alloc);
	}
	release_all(several);
}

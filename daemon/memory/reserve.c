/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/reserve.h"

/* Kept bytes must come back: the asserts stay in every build. */
#undef NDEBUG
#include <assert.h>

#include "proto/limits.h"

static uint64_t at_most(uint64_t bytes, uint64_t limit)
{
	return bytes < limit ? bytes : limit;
}

static uint64_t at_least(uint64_t bytes, uint64_t limit)
{
	return bytes > limit ? bytes : limit;
}

/* Unsealing takes whole blocks: a part of one would be kept in vain. */
uint64_t reserve_wanted_bytes(const struct location *at)
{
	if (at->unsealing_part <= 0) {
		return 0;
	}
	uint64_t bytes = (uint64_t)((double)at->saved_alone_bytes * at->unsealing_part);
	bytes -= bytes % GLAKE_CHUNK_GRANULARITY;
	return at_most(at_least(bytes, GLAKE_MAX_BLOCK_BYTES), at->saved_alone_bytes);
}

static void shrink(struct location *at)
{
	at->unsealing_bytes = at_most(at->unsealing_bytes, reserve_wanted_bytes(at));
}

void reserve_keep(struct location *at, uint64_t bytes)
{
	uint64_t wanted = reserve_wanted_bytes(at);
	if (wanted > at->unsealing_bytes) {
		bytes = at_most(bytes, wanted - at->unsealing_bytes);
		at->unsealing_bytes += at_most(bytes, location_room_bytes(at));
	}
}

void reserve_set_part(struct location *at, double part)
{
	at->unsealing_part = part;
	shrink(at);
	reserve_keep(at, UINT64_MAX);
}

void reserve_note_saved(struct location *at, uint64_t before, uint64_t after)
{
	assert(at->saved_alone_bytes >= before);
	at->saved_alone_bytes = at->saved_alone_bytes - before + after;
	shrink(at);
}

uint64_t reserve_take(struct location *at, uint64_t bytes)
{
	uint64_t taken = at_most(bytes, at->unsealing_bytes);
	at->unsealing_bytes -= taken;
	return taken;
}

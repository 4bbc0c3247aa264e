/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/load_room.h"

#include <inttypes.h>
#include <stdio.h>

#include "proto/limits.h"

/* A plan's needs, given glaked's blocks. */
struct room {
	uint64_t needed_bytes; /* of blocks that cannot be known */
	uint64_t needed_fds;
	uint64_t paid_bytes; /* by the tenant, for blocks on the device */
};

static uint64_t less(uint64_t whole, uint64_t part)
{
	return whole > part ? whole - part : 0;
}

static struct room look(const struct store *store, const struct model *model,
                        const struct tenant *payer)
{
	/* By size: the number of blocks that may be equal to the model's. */
	uint64_t n_known[GLAKE_MAX_BLOCK_BYTES / GLAKE_CHUNK_GRANULARITY + 1] = {0};
	struct room room = {0};
	const struct block *block;
	list_for_each (block, &store->block_list, link) {
		const struct chunk *chunk = &block->chunk;
		if (chunk->at != &model->device->at) {
			continue;
		}
		room.paid_bytes += chunk->charge.tenant == payer ? chunk->bytes : 0;
		if (block->realm == model->realm && (block->n_users > 0 || block->n_pins > 0)) {
			n_known[chunk->bytes / GLAKE_CHUNK_GRANULARITY]++;
		}
	}
	for (size_t i = 0; i < model->n_blocks; i++) {
		uint64_t bytes = model_chunk_bytes(model, i);
		uint64_t *n = &n_known[bytes / GLAKE_CHUNK_GRANULARITY];
		if (*n > 0) {
			(*n)--;
		} else {
			room.needed_bytes += bytes;
			room.needed_fds++;
		}
	}
	return room;
}

/* The fds of all loads' chunks, at most. */
static uint64_t loading_fds(const struct allocator *allocator)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < allocator->n_locations; i++) {
		bytes += allocator->stocks[i].at->use_bytes[CHUNK_LOADING];
	}
	return bytes / GLAKE_CHUNK_GRANULARITY;
}

enum status load_check_room(const struct store *store, const struct allocator *allocator,
                            const struct model *model, const struct tenant *payer, char *error,
                            size_t n_error)
{
	const struct device *device = model->device;
	const struct location *at = &device->at;
	const struct tenant_location *limits = &payer->at[at->slot];
	const struct chunk_books *books = &allocator->books;
	struct room room = look(store, model, payer);
	bool waits = allocator->pressure.wait_ms > 0;
	uint64_t quota_bytes = less(limits->quota_bytes, waits ? 0 : room.paid_bytes);
	uint64_t most_bytes = location_most_bytes(at);
	uint64_t needed_bytes = model->span_bytes;
	if (needed_bytes <= most_bytes && !waits) {
		needed_bytes = room.needed_bytes;
		most_bytes = pressure_most_bytes(&allocator->pressure, at) + at->coming_bytes;
		/* Blocks that are being loaded may turn out equal, or their load may fail. */
		most_bytes += at->use_bytes[CHUNK_LOADING];
	}
	if (limits->quota_bytes > 0 && room.needed_bytes > quota_bytes) {
		snprintf(error, n_error,
		         "the model does not fit the tenant's quota: it needs %" PRIu64
		         " bytes more on device %u, and %s may have %" PRIu64 " of %" PRIu64,
		         room.needed_bytes, device->index, payer->name, quota_bytes,
		         limits->quota_bytes);
		return STATUS_OVER_QUOTA;
	}
	if (needed_bytes > most_bytes) {
		snprintf(error, n_error,
		         "the model does not fit the device's memory: it needs %" PRIu64
		         " bytes more on device %u, and %" PRIu64 " can be had at most",
		         needed_bytes, device->index, most_bytes);
		return STATUS_NO_DEVICE_MEMORY;
	}
	uint64_t coming_fds = loading_fds(allocator);
	if (payer->max_fds > 0 &&
	    room.needed_fds > less(payer->max_fds, payer->n_fds) + coming_fds) {
		snprintf(error, n_error,
		         "no fds left for its blocks: it needs %" PRIu64
		         " more, and %s has %" PRIu64 " of %" PRIu64,
		         room.needed_fds, payer->name, payer->n_fds, payer->max_fds);
		return STATUS_NO_FDS;
	}
	uint64_t most_fds = pressure_most_fds(&allocator->pressure) + coming_fds;
	if (room.needed_fds > most_fds) {
		snprintf(error, n_error,
		         "no fds left for its blocks: it needs %" PRIu64 " more, and %" PRIu64
		         " of glaked's %" PRIu64 " can be had at most",
		         room.needed_fds, most_fds, books->max_fds);
		return STATUS_NO_FDS;
	}
	return STATUS_OK;
}

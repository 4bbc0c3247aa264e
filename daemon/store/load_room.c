/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/load_room.h"

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
	/* The number of blocks of each size that may be equal to the model's. */
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

static enum status refuse(struct refusal refusal, struct refusal *refusal_out, const char *what,
                          char *error, size_t n_error)
{
	char why[REFUSAL_TEXT_BYTES];
	*refusal_out = refusal;
	refusal_text(&refusal, why);
	snprintf(error, n_error, "%s: it needs %s", what, why);
	return refusal_status(&refusal);
}

enum status load_check_room(const struct store *store, const struct allocator *allocator,
                            const struct model *model, struct tenant *payer,
                            struct refusal *refusal_out, char *error, size_t n_error)
{
	const struct location *at = &model->device->at;
	const struct tenant_location *limits = &payer->at[at->slot];
	const struct chunk_books *books = &allocator->books;
	struct room room = look(store, model, payer);
	bool waits = allocator->pressure.wait_ms > 0;
	uint64_t paid_bytes = waits ? 0 : room.paid_bytes;
	uint64_t most_bytes = location_most_bytes(at);
	uint64_t needed_bytes = model->span_bytes;
	struct refusal refusal = {.at = at, .tenant = payer};
	if (needed_bytes <= most_bytes && !waits) {
		needed_bytes = room.needed_bytes;
		most_bytes = pressure_most_bytes(&allocator->pressure, at) + at->coming_bytes;
		/* Blocks that are being loaded may turn out equal, or their load may fail. */
		most_bytes += at->use_bytes[CHUNK_LOADING];
	}
	if (limits->quota_bytes > 0 && room.needed_bytes > less(limits->quota_bytes, paid_bytes)) {
		refusal = refusal_of_tenant(BOUND_QUOTA, payer, at, room.needed_bytes);
		refusal.used = paid_bytes;
		return refuse(refusal, refusal_out, "the model does not fit the tenant's quota",
		              error, n_error);
	}
	if (needed_bytes > most_bytes) {
		refusal = refusal_of_room(payer, at, needed_bytes);
		refusal.used = less(refusal.limit, most_bytes);
		return refuse(refusal, refusal_out, "the model does not fit the device's memory",
		              error, n_error);
	}
	uint64_t coming_fds = loading_fds(allocator);
	if (payer->max_fds > 0 &&
	    room.needed_fds > less(payer->max_fds, payer->n_fds) + coming_fds) {
		refusal = refusal_of_tenant(BOUND_TENANT_FDS, payer, at, room.needed_fds);
		return refuse(refusal, refusal_out, "no fds left for its blocks", error, n_error);
	}
	uint64_t most_fds = pressure_most_fds(&allocator->pressure) + coming_fds;
	if (room.needed_fds > most_fds) {
		refusal.bound = BOUND_FDS;
		refusal.wanted = room.needed_fds;
		refusal.limit = books->max_fds;
		refusal.used = less(books->max_fds, most_fds);
		return refuse(refusal, refusal_out, "no fds left for its blocks", error, n_error);
	}
	return STATUS_OK;
}

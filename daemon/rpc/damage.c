/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/damage.h"

#include <inttypes.h>
#include <stdio.h>

/* A list of names as part of a line, cut when it is full. */
struct names {
	char text[160];
	size_t n_bytes;
	unsigned n;
};

static void add(struct names *names, const char *name)
{
	size_t room = sizeof(names->text) - names->n_bytes;
	int n_bytes = snprintf(names->text + names->n_bytes, room, "%s%s", names->n ? ", " : "",
	                       name);
	names->n++;
	if ((size_t)n_bytes < room) {
		names->n_bytes += (size_t)n_bytes;
	} else {
		names->text[names->n_bytes] = '\0';
	}
}

static bool uses(const struct holder *holder, const struct block *block)
{
	for (const struct held *held = holder->held; held; held = held->hh.next) {
		if ((held->kind == HELD_BLOCK && held->block == block) ||
		    (held->kind == HELD_MODEL && store_has_block(held->model, block))) {
			return true;
		}
	}
	return false;
}

void rpc_note_damage(struct rpc_context *rpc, const struct block *block)
{
	struct names models = {.n = 0};
	struct names sessions = {.n = 0};
	struct model *model;
	list_for_each (model, &rpc->store->model_list, link) {
		if (store_has_block(model, block)) {
			add(&models, model->name);
		}
	}
	struct holder *holder;
	list_for_each (holder, &rpc->holders.list, link) {
		if (uses(holder, block)) {
			char name[64];
			snprintf(name, sizeof(name), "%" PRIu64 " (pid %d)", holder->id,
			         (int)holder->peer.pid);
			add(&sessions, name);
		}
	}
	char digest[DIGEST_TEXT_BYTES];
	digest_to_text(&block->key.digest, digest);
	const struct event_subject subject = {.realm = block->realm->name};
	events_add(rpc->events, EVENT_BLOCK_DAMAGED, &subject,
	           "block %s on device %u is damaged; models (%u): %s; sessions (%u): %s", digest,
	           block->chunk.device->index, models.n, models.text, sessions.n, sessions.text);
}

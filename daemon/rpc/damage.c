/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/damage.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/store/withdraw.h"
#include "proto/cleanup.h"

static void add(struct damage_names *names, const char *name)
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

static void add_model(void *user, const struct model *model)
{
	add(&((struct damage *)user)->models, model->name);
}

static void add_session(void *user, const struct holder *holder)
{
	char name[64];
	snprintf(name, sizeof(name), "%" PRIu64 " (pid %d)", holder->id, (int)holder->peer.pid);
	add(&((struct damage *)user)->sessions, name);
}

static void leave(struct damage *damage)
{
	struct store *store = damage->rpc->store;
	struct block *block = damage->block;
	uv_idle_stop(&damage->idle);
	damage->block = NULL;
	withdraw_end(store);
	store_end_compare(store, block);
}

static void end(struct damage *damage)
{
	const struct block *block = damage->block;
	char digest[DIGEST_TEXT_BYTES];
	digest_to_text(&block->key.digest, digest);
	const struct event_subject subject = {.realm = block->realm->name};
	events_add(damage->rpc->events, EVENT_BLOCK_DAMAGED, &subject,
	           "block %s on device %u is damaged; models (%u): %s; sessions (%u): %s", digest,
	           block->chunk.at->number, damage->models.n, damage->models.text,
	           damage->sessions.n, damage->sessions.text);
	leave(damage);
}

static void on_idle(uv_idle_t *idle)
{
	struct damage *damage = container_of(idle, struct damage, idle);
	struct rpc_context *rpc = damage->rpc;
	size_t n_steps = DAMAGE_STEPS;
	if (!damage->has_models && withdraw_step(rpc->store, &n_steps, add_model, damage)) {
		damage->has_models = true;
		holders_begin_walk(&rpc->holders);
	}
	if (damage->has_models &&
	    holders_walk(&rpc->holders, damage->block, &n_steps, add_session, damage)) {
		end(damage);
	}
}

void damage_init(struct damage *damage, uv_loop_t *loop, struct rpc_context *rpc)
{
	*damage = (struct damage){.rpc = rpc};
	uv_idle_init(loop, &damage->idle);
}

void damage_begin(struct damage *damage, struct block *block)
{
	store_begin_compare(block);
	withdraw_begin(damage->rpc->store, block);
	damage->block = block;
	damage->has_models = false;
	damage->models = (struct damage_names){.n = 0};
	damage->sessions = (struct damage_names){.n = 0};
	uv_idle_start(&damage->idle, on_idle);
}

void damage_close(struct damage *damage)
{
	if (damage->block) {
		leave(damage);
	}
	uv_close((uv_handle_t *)&damage->idle, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/wake_again.h"

#include <inttypes.h>

#include "daemon/base/log.h"
#include "daemon/rpc/rpc_ask.h"

/* ---- what stands in the way ------------------------------------------------------------------- */

static uint64_t slept_bytes(const struct sleeper *sleeper, const struct location *at)
{
	const struct slept *slept;
	uint64_t bytes = 0;
	list_for_each (slept, &sleeper->slept, link) {
		bytes += slept->at == at && slept->held->kind == HELD_SLEPT ? slept->bytes : 0;
	}
	return bytes;
}

/* The bytes that the process would bring to @at; of @tenant alone, or of all (NULL). Its sessions wake together. */
static uint64_t coming_bytes(const struct rpc_context *rpc, const struct holder *holder,
                             const struct location *at, const struct tenant *tenant)
{
	const struct sleeper *sleeper;
	uint64_t bytes = 0;
	list_for_each (sleeper, &rpc->holders.sleepers, link) {
		const struct holder *other = sleeper->holder;
		if (other->peer.pid == holder->peer.pid && (!tenant || other->tenant == tenant)) {
			bytes += slept_bytes(sleeper, at);
		}
	}
	return bytes;
}

/* Cache makes room at once. */
static bool has_room(const struct rpc_context *rpc, const struct location *at, uint64_t bytes)
{
	const struct tenant *cache = tenant_table_cache(rpc->tenants);
	return bytes <= location_room_bytes(at) + cache->at[at->slot].used_bytes;
}

static enum wake_hindrance hindrance_at(const struct rpc_context *rpc, const struct holder *holder,
                                        const struct location *at)
{
	const struct tenant_location *limit = &holder->tenant->at[at->slot];
	uint64_t bytes = coming_bytes(rpc, holder, at, holder->tenant);
	if (limit->quota_bytes > 0 && limit->used_bytes + bytes > limit->quota_bytes) {
		return WAKE_HINDRANCE_LIMIT;
	}
	return has_room(rpc, at, coming_bytes(rpc, holder, at, NULL)) ? WAKE_HINDRANCE_NONE
	                                                              : WAKE_HINDRANCE_ROOM;
}

static enum wake_hindrance hindrance_of(const struct rpc_context *rpc, const struct holder *holder)
{
	enum wake_hindrance worst = WAKE_HINDRANCE_NONE;
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		enum wake_hindrance here = hindrance_at(rpc, holder, &rpc->devices[i].at);
		worst = here > worst ? here : worst;
	}
	return worst;
}

/* ---- asking ----------------------------------------------------------------------------------- */

void wake_again_note(struct rpc_context *rpc, struct holder *holder, enum status status)
{
	bool is_for_room = status == STATUS_OVER_QUOTA || status == STATUS_NO_DEVICE_MEMORY;
	/* A program that was refused before, though nothing stood in its way any more, is not asked once more for that. */
	if (is_for_room && !holder->sleep.wants_room && !rpc_is_asked_to_wake(rpc, holder)) {
		holder->sleep.wants_room = true;
		holder->sleep.hindrance = hindrance_of(rpc, holder);
	}
}

/* The session of its process that follows such wishes. Returns whether it can be asked now. */
static bool ask_process(struct rpc_context *rpc, const struct holder *holder)
{
	static const struct rpc_wish wish = {.kind = RPC_WISH_WAKE};
	struct holder *other;
	list_for_each (other, &rpc->holders.list, link) {
		if (other->peer.pid == holder->peer.pid && rpc_may_ask(rpc, other, &wish)) {
			log_info("session %" PRIu64 " (pid %d) is asked to wake: %s", holder->id,
			         (int)holder->peer.pid,
			         holder->sleep.hindrance == WAKE_HINDRANCE_LIMIT
			                 ? "its tenant's limit allows it now"
			                 : "there is room for it now");
			rpc_ask(rpc, other, &wish);
			return true;
		}
	}
	return false;
}

void wake_again_tick(struct rpc_context *rpc)
{
	struct holder *holder;
	list_for_each (holder, &rpc->holders.list, link) {
		struct holder_sleep *sleep = &holder->sleep;
		if (!sleep->wants_room || !holder->tenant || !holder->sleeper ||
		    holder->sleeper->state != SLEEPER_ASLEEP) {
			continue;
		}
		enum wake_hindrance hindrance = hindrance_of(rpc, holder);
		if (hindrance >= sleep->hindrance || ask_process(rpc, holder)) {
			sleep->hindrance = hindrance;
		}
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/naps.h"

#include "daemon/rpc/rpc_ask.h"
#include "daemon/rpc/rpc_handlers.h"

#define FIRST_PAUSE_MS 10000u
#define LONGEST_PAUSE_MS 600000u
/* The pause after host memory was full. */
#define FULL_PAUSE_MS 10000u

/* ---- who may be asked ------------------------------------------------------------------------- */

/* How long the program was idle; 0: it works. Work before it slept does not count. */
static uint64_t idle_ms_of(const struct holder *holder, uint64_t now_ms)
{
	uint64_t since_ms = holder->usage.idle_since_ms;
	if (since_ms == 0) {
		return 0;
	}
	since_ms = since_ms > holder->sleep.awake_since_ms ? since_ms
	                                                   : holder->sleep.awake_since_ms;
	return now_ms > since_ms ? now_ms - since_ms : 0;
}

static uint64_t awake_ms_of(const struct holder *holder, uint64_t now_ms)
{
	uint64_t since_ms = holder->sleep.awake_since_ms ? holder->sleep.awake_since_ms
	                                                 : holder->since_ms;
	return now_ms > since_ms ? now_ms - since_ms : 0;
}

/* Whether the holder has worked since: the reason that it was busy may be over. */
static bool has_worked_since(const struct holder *holder, uint64_t ms)
{
	return holder->usage.idle_since_ms > ms;
}

static bool is_left_alone(const struct holder *holder, uint64_t now_ms)
{
	const struct holder_sleep *sleep = &holder->sleep;
	return sleep->nap_busy_ms > 0 && now_ms < sleep->nap_busy_ms + sleep->nap_pause_ms &&
	       !has_worked_since(holder, sleep->nap_busy_ms);
}

/* The session of @holder; NULL: it has lost its connection. */
static const struct session *session_of(const struct rpc_context *rpc, const struct holder *holder)
{
	const struct session *session;
	list_for_each (session, &rpc->sessions.list, link) {
		if (session->holder == holder) {
			return session;
		}
	}
	return NULL;
}

/* Whether all that it waits for is room, by requests that came after @number; also if it waits for nothing. */
static bool waits_only_behind(const struct session *session, uint64_t number)
{
	const struct pending *pending;
	list_for_each (pending, &session->pending, link) {
		if (rpc_waits_for_room(pending) <= number) {
			return false;
		}
	}
	return true;
}

static bool waits_for_room(const struct session *session)
{
	const struct pending *pending;
	list_for_each (pending, &session->pending, link) {
		if (rpc_waits_for_room(pending) > 0) {
			return true;
		}
	}
	return false;
}

/*
 * Whether the program may take a nap. One that waits for an answer needs the GPU soon, and may hold memory that falling asleep
 * needs. @number: of the request that it is for.
 */
static bool may_nap(const struct rpc_context *rpc, const struct holder *holder, uint64_t number,
                    uint64_t now_ms)
{
	static const struct rpc_wish wish = {.kind = RPC_WISH_SLEEP};
	bool may_be = holder->tenant && !holder->sleeper &&
	              awake_ms_of(holder, now_ms) >= rpc->config->min_awake_ms &&
	              !is_left_alone(holder, now_ms) && rpc_may_ask(rpc, holder, &wish);
	const struct session *session = may_be ? session_of(rpc, holder) : NULL;
	return session && waits_only_behind(session, number);
}

static bool may_any_nap(const struct rpc_context *rpc, uint64_t now_ms)
{
	return !rpc->is_draining && now_ms >= rpc->naps_after_ms;
}

/* ---- asking ----------------------------------------------------------------------------------- */

static void on_answer(void *user, struct holder *holder, enum status status)
{
	struct rpc_context *rpc = user;
	struct holder_sleep *sleep = &holder->sleep;
	uint64_t now_ms = uv_now(rpc->sessions.loop);
	if (status == STATUS_OK) {
		sleep->nap_busy_ms = 0;
		return;
	}
	bool is_first = sleep->nap_busy_ms == 0 || has_worked_since(holder, sleep->nap_busy_ms);
	uint64_t pause_ms = is_first ? FIRST_PAUSE_MS : 2 * sleep->nap_pause_ms;
	sleep->nap_pause_ms = pause_ms < LONGEST_PAUSE_MS ? pause_ms : LONGEST_PAUSE_MS;
	sleep->nap_busy_ms = now_ms;
	if (status == STATUS_NO_HOST_MEMORY) {
		rpc->naps_after_ms = now_ms + FULL_PAUSE_MS;
	}
}

static void nap(struct rpc_context *rpc, struct holder *holder, enum sleep_why why)
{
	const struct rpc_wish wish = {
		.kind = RPC_WISH_SLEEP, .why = why, .done = on_answer, .user = rpc};
	rpc_ask(rpc, holder, &wish);
}

static bool has_any(const struct rpc_context *rpc, const struct holder *holder)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		bytes += holder->at[i].reserved_bytes + holder->at[i].shared_bytes;
	}
	return bytes > 0;
}

/* Programs that wait for memory fell asleep only for others. */
static void wake_who_waits(struct rpc_context *rpc)
{
	static const struct rpc_wish wish = {.kind = RPC_WISH_WAKE};
	struct holder *holder;
	list_for_each (holder, &rpc->holders.list, link) {
		const struct session *session = session_of(rpc, holder);
		if (holder->sleep.is_asleep && !holder->sleeper->wake && session &&
		    waits_for_room(session) && rpc_may_ask(rpc, holder, &wish)) {
			rpc_ask(rpc, holder, &wish);
		}
	}
}

void naps_tick(struct rpc_context *rpc)
{
	uint64_t now_ms = uv_now(rpc->sessions.loop);
	struct holder *holder;
	wake_who_waits(rpc);
	if (!may_any_nap(rpc, now_ms)) {
		return;
	}
	list_for_each (holder, &rpc->holders.list, link) {
		if (holder->tenant && holder->tenant->idle_ms > 0 &&
		    idle_ms_of(holder, now_ms) >= holder->tenant->idle_ms && has_any(rpc, holder) &&
		    may_nap(rpc, holder, UINT64_MAX, now_ms)) {
			nap(rpc, holder, SLEEP_IDLE);
		}
	}
}

/* ---- for a request that does not fit ---------------------------------------------------------- */

/* The memory that is asked for. */
struct wanted {
	const struct rpc_context *rpc;
	const struct location *at;
	const struct tenant *tenant;
	uint64_t number;
	uint64_t now_ms;
};

/* The private memory there by glaked's books: blocks may be used by others. */
static uint64_t bytes_there(const struct wanted *wanted, const struct holder *holder)
{
	return holder->at[wanted->at->slot].reserved_bytes;
}

static bool gives_way(const struct wanted *wanted, const struct holder *holder)
{
	return holder->tenant && holder->tenant->sleeps_on_pressure &&
	       holder->tenant->priority <= wanted->tenant->priority &&
	       bytes_there(wanted, holder) > 0 &&
	       may_nap(wanted->rpc, holder, wanted->number, wanted->now_ms);
}

/* The bytes there of the programs that are falling asleep, whoever asked them. */
static uint64_t bytes_coming(const struct wanted *wanted)
{
	const struct holder *holder;
	uint64_t bytes = 0;
	list_for_each (holder, &wanted->rpc->holders.list, link) {
		if (bytes_there(wanted, holder) > 0 && rpc_falls_asleep(wanted->rpc, holder)) {
			bytes += bytes_there(wanted, holder);
		}
	}
	return bytes;
}

/* The one that was idle for longest, or NULL; and what all of them have. */
static struct holder *find_coldest(const struct wanted *wanted, uint64_t *bytes_out)
{
	struct holder *coldest = NULL;
	struct holder *holder;
	*bytes_out = 0;
	list_for_each (holder, &wanted->rpc->holders.list, link) {
		if (!gives_way(wanted, holder)) {
			continue;
		}
		*bytes_out += bytes_there(wanted, holder);
		if (!coldest ||
		    idle_ms_of(holder, wanted->now_ms) > idle_ms_of(coldest, wanted->now_ms)) {
			coldest = holder;
		}
	}
	return coldest;
}

bool naps_for(void *user, const struct pressure_request *request, uint64_t bytes)
{
	struct rpc_context *rpc = user;
	const struct wanted wanted = {
		.rpc = rpc,
		.at = request->at,
		.tenant = request->tenant,
		.number = request->number,
		.now_ms = uv_now(rpc->sessions.loop),
	};
	if (request->at->kind != LOCATION_GPU || !request->tenant->sleeps_on_pressure) {
		return false;
	}
	uint64_t coming = bytes_coming(&wanted);
	uint64_t could = 0;
	struct holder *coldest = NULL;
	while (coming < bytes && may_any_nap(rpc, wanted.now_ms) &&
	       (coldest = find_coldest(&wanted, &could)) && coming + could >= bytes) {
		nap(rpc, coldest, SLEEP_PRESSURE);
		coming = bytes_coming(&wanted);
	}
	return coming > 0;
}

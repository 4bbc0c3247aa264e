/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/pressure.h"

/* An illegal move is a bug that would lose memory. So the asserts stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* How often a waiting request looks again. */
#define STEP_MS 10
/*
 * How often clients are asked again while requests wait: memory that they free meanwhile becomes
 * warm.
 */
#define ASK_AGAIN_MS 100

#define TO(state) (1u << PRESSURE_##state)

static void pressure_set_state(struct pressure_request *request, enum pressure_state state)
{
	static const unsigned moves[N_PRESSURE_STATES] = {
		[PRESSURE_NEW] = TO(IN_LINE) | TO(MAKING) | TO(REFUSED),
		[PRESSURE_IN_LINE] = TO(IN_LINE) | TO(MAKING) | TO(REFUSED) | TO(CANCELLED),
		[PRESSURE_MAKING] = TO(SHORT) | TO(GRANTED) | TO(REFUSED) | TO(CANCELLED),
		[PRESSURE_SHORT] = TO(MAKING) | TO(CANCELLED),
	};
	assert(moves[request->state] & 1u << state);
	request->state = state;
}

static uint64_t now_ms(const struct pressure *pressure)
{
	return pressure->clock.now_ms(pressure->clock.user);
}

static void wake(const struct pressure *pressure, uint64_t ms)
{
	pressure->clock.wake(pressure->clock.user, ms);
}

/* ---- clients ---------------------------------------------------------------------------------- */

void pressure_client_enter(struct pressure *pressure, struct pressure_client *client,
                           const struct pressure_client_ops *ops, const struct tenant *tenant)
{
	*client = (struct pressure_client){.ops = ops, .tenant = tenant};
	list_insert(&pressure->clients, &client->link);
}

void pressure_client_leave(struct pressure_client *client)
{
	if (client->ops) {
		list_remove(&client->link);
		client->ops = NULL;
	}
}

void pressure_client_answer(struct pressure *pressure, struct pressure_client *client, uint64_t id)
{
	if (id <= client->answered_id || id > client->last_id) {
		return;
	}
	client->answered_id = id;
	client->since_ms = now_ms(pressure);
	if (!list_is_empty(&pressure->waiting)) {
		wake(pressure, 0);
	}
}

static bool owes_answer(const struct pressure_client *client)
{
	return client->answered_id != client->last_id;
}

/*
 * Ask one client, unless for 0 bytes. Returns whether an answer may still come in time, or has come just now. The client's last
 * report of its warm memory does not count: it may be old.
 */
static bool ask_one(const struct pressure *pressure, struct pressure_client *client,
                    const struct location *at, uint64_t bytes)
{
	uint64_t now = now_ms(pressure);
	bool owed = owes_answer(client);
	/* A client that does not read is not asked, and not waited for. */
	if (bytes > 0 && client->ops->ask(client, at, bytes, client->last_id + 1)) {
		client->last_id++;
		client->since_ms = owed ? client->since_ms : now;
	}
	owed = owes_answer(client);
	if (now - client->since_ms < (owed ? PRESSURE_LATE_MS : PRESSURE_AFTER_MS)) {
		return true;
	}
	/* An unread packet may be the answer. Then glaked is late, not the client. */
	return owed && client->ops->has_unread(client);
}

/* Ask each client of @tenant (NULL: every client), for no more than it holds. */
static bool ask_all(struct pressure *pressure, const struct location *at,
                    const struct tenant *tenant, uint64_t bytes)
{
	struct pressure_client *client;
	struct pressure_client *spare;
	bool is_awaited = false;
	list_for_each_safe (client, spare, &pressure->clients, link) {
		if (tenant && client->tenant != tenant) {
			continue;
		}
		uint64_t held = client->ops->held_bytes(client, at);
		if (held > 0 && ask_one(pressure, client, at, bytes < held ? bytes : held)) {
			is_awaited = true;
		}
	}
	return is_awaited;
}

static uint64_t held_by_clients(const struct pressure *pressure, const struct location *at,
                                const struct tenant *tenant)
{
	const struct pressure_client *client;
	uint64_t bytes = 0;
	list_for_each (client, &pressure->clients, link) {
		if (client->tenant == tenant) {
			bytes += client->ops->held_bytes(client, at);
		}
	}
	return bytes;
}

static uint64_t patience_of(const struct pressure_request *request)
{
	uint64_t wait_ms = request->pressure->wait_ms;
	return request->patience_ms > wait_ms ? request->patience_ms : wait_ms;
}

/*
 * Ask clients: once for each request, again from time to time while it waits, and when more turns out to be lacking than the
 * books had said. Returns whether answers may still come.
 */
static bool ask(struct pressure_request *request, struct pressure_asked *asked,
                const struct tenant *tenant, uint64_t bytes)
{
	struct pressure *pressure = request->pressure;
	uint64_t now = now_ms(pressure);
	bool is_time = bytes > request->asked_bytes ||
	               (patience_of(request) > 0 && now - asked->asked_ms >= ASK_AGAIN_MS);
	if (is_time || asked->n_looks != pressure->n_looks) {
		asked->is_awaited = ask_all(pressure, request->at, tenant, is_time ? bytes : 0);
		asked->n_looks = pressure->n_looks;
	}
	if (is_time) {
		request->asked_bytes = bytes > request->asked_bytes ? bytes : request->asked_bytes;
		asked->asked_ms = now;
	}
	return asked->is_awaited;
}

/* ---- patience --------------------------------------------------------------------------------- */

/* Whether it may wait longer. With @is_late, memory may be on its way, and it may wait in any case. */
static bool may_wait(struct pressure_request *request, bool is_late)
{
	const struct pressure *pressure = request->pressure;
	uint64_t now = now_ms(pressure);
	if (request->no_wait) {
		return false;
	}
	if (!request->has_waited) {
		request->has_waited = true;
		request->since_ms = now;
	}
	uint64_t waited_ms = now - request->since_ms;
	uint64_t patience_ms = patience_of(request);
	/* Memory of a program that fell asleep a moment ago may be late as well. */
	uint64_t late_ms = now - (request->coming_ms > request->since_ms ? request->coming_ms
	                                                                 : request->since_ms);
	return (is_late && late_ms < PRESSURE_LATE_MS) ||
	       (request->waited_ms < patience_ms && waited_ms < patience_ms - request->waited_ms);
}

static void park(struct pressure_request *request, enum pressure_state state)
{
	struct pressure *pressure = request->pressure;
	pressure_set_state(request, state);
	if (state == PRESSURE_SHORT && !request->is_counted) {
		request->is_counted = true;
		pressure->stats->memory_waits++;
	}
	list_insert(&pressure->waiting, &request->link);
	wake(pressure, STEP_MS);
}

/* ---- the end ---------------------------------------------------------------------------------- */

/* Remove it from everything here. */
static void end(struct pressure_request *request)
{
	request->pressure->books->n_fds -= request->n_reserved;
	request->n_reserved = 0;
	if (request->has_waited) {
		request->waited_ms += now_ms(request->pressure) - request->since_ms;
	}
	list_remove(&request->link);
	list_remove(&request->kept);
	tenant_queue_leave(request->tenant, &request->place);
}

struct refusal pressure_explain(const struct pressure *pressure,
                                const struct pressure_request *request, enum bound bound)
{
	bool is_fds = bound == BOUND_TENANT_FDS || bound == BOUND_FDS;
	struct refusal refusal = refusal_of_tenant(bound, request->tenant, request->at,
	                                           is_fds ? request->n_chunks : request->bytes);
	if (bound == BOUND_ROOM || bound == BOUND_RESERVE) {
		refusal = refusal_of_room(request->tenant, request->at, request->bytes);
		refusal.bound = bound;
		return refusal;
	}
	if (bound == BOUND_FDS) {
		refusal.limit = pressure->books->max_fds;
		refusal.used = pressure->books->n_fds;
	}
	return refusal;
}

/* Whether the request would have fitted, but for the reserve. */
static bool met_reserve(const struct pressure_request *request)
{
	uint64_t room = location_room_bytes(request->at);
	return request->missing_bytes > room &&
	       request->missing_bytes - room <= request->at->unsealing_bytes;
}

/* Only this function knows the reason of a refusal. A spare request is no demand: its refusal is not counted. */
static enum status refuse(struct pressure_request *request, enum bound bound)
{
	struct pressure *pressure = request->pressure;
	bound = bound == BOUND_ROOM && met_reserve(request) ? BOUND_RESERVE : bound;
	request->refusal = pressure_explain(pressure, request, bound);
	if (!request->is_spare) {
		refusal_count(&request->refusal, pressure->stats);
	}
	end(request);
	pressure_set_state(request, PRESSURE_REFUSED);
	return refusal_status(&request->refusal);
}

static void refuse_later(struct pressure_request *request, enum bound bound)
{
	request->ops->done(request, refuse(request, bound));
}

/* The request failed, and met no bound. */
static void fail(struct pressure_request *request, enum status status)
{
	end(request);
	pressure_set_state(request, PRESSURE_REFUSED);
	request->ops->done(request, status);
}

/* The request was cancelled while it was being made, or by the callback of an eviction for it. */
static void finish_cancelled(struct pressure_request *request)
{
	end(request);
	request->ops->done(request, STATUS_BUSY);
}

/* ---- what can be ------------------------------------------------------------------------------ */

uint64_t pressure_most_bytes(const struct pressure *pressure, const struct location *at)
{
	return location_room_bytes(at) + pressure->cache->at[at->slot].used_bytes +
	       at->use_bytes[CHUNK_PRIVATE];
}

uint64_t pressure_most_fds(const struct pressure *pressure)
{
	const struct chunk_books *books = pressure->books;
	uint64_t n_kept = books->n_fds - pressure->cache->n_fds;
	return books->max_fds > n_kept ? books->max_fds - n_kept : 0;
}

/* @limit 0 = no limit. */
static bool exceeds(uint64_t wanted, uint64_t limit)
{
	return limit > 0 && wanted > limit;
}

bool pressure_has_reserve(const struct pressure_request *request)
{
	return request->may_unseal && request->bytes <= request->at->unsealing_bytes;
}

/* No limit of bytes holds for it, and it is in no line. */
static bool is_paid(const struct pressure_request *request)
{
	return request->is_promised || pressure_has_reserve(request);
}

/* Whether bytes and fds could ever be available. The tenant's own limits come first. */
enum bound pressure_check(const struct pressure *pressure, const struct pressure_request *request)
{
	const struct tenant *tenant = request->tenant;
	if (!is_paid(request) &&
	    exceeds(request->bytes, tenant->at[request->at->slot].quota_bytes)) {
		return BOUND_QUOTA;
	}
	if (exceeds(request->n_chunks, tenant->max_fds)) {
		return BOUND_TENANT_FDS;
	}
	if (request->fds == PRESSURE_FDS_MUST && request->n_chunks > pressure->books->max_fds) {
		return BOUND_FDS;
	}
	return request->bytes > location_most_bytes(request->at) ? BOUND_ROOM : BOUND_NONE;
}

/*
 * Nothing is taken back, and nobody waits, for a request that is cache itself: who wants it makes room; nor for memory that a
 * program would only use if it were free.
 */
static bool is_modest(const struct pressure_request *request)
{
	return request->is_spare || request->tenant == request->pressure->cache;
}

bool pressure_is_short(const struct pressure *pressure, const struct location *at)
{
	const struct pressure_request *request;
	list_for_each (request, &pressure->waiting, link) {
		if (request->state == PRESSURE_SHORT && request->at == at) {
			return true;
		}
	}
	return false;
}

/* False: blocks in use leave too little, and taking memory from others would help nobody. */
static bool fits_after_all_rounds(const struct pressure_request *request)
{
	return request->missing_bytes <= pressure_most_bytes(request->pressure, request->at);
}

/* False: the tenant's limit leaves too little, even if its clients give all their memory back. */
static bool fits_after_asking(const struct pressure_request *request)
{
	const struct tenant_location *limits = &request->tenant->at[request->at->slot];
	uint64_t held = held_by_clients(request->pressure, request->at, request->tenant);
	uint64_t kept = limits->used_bytes > held ? limits->used_bytes - held : 0;
	return limits->quota_bytes == 0 ||
	       (kept <= limits->quota_bytes && request->bytes <= limits->quota_bytes - kept);
}

/* ---- who comes first -------------------------------------------------------------------------- */

/* Whether @other, which waits for room, comes before @request. One that cannot fit now keeps nothing from others. */
static bool is_before(const struct pressure_request *other, const struct pressure_request *request)
{
	return other->at == request->at && other->number < request->number &&
	       request->tenant->priority <= other->tenant->priority && fits_after_all_rounds(other);
}

/* Whether it has to leave the room to others. What is made ahead is not what they wait for. */
static bool is_behind(const struct pressure_request *request)
{
	const struct pressure_request *other;
	uint64_t before = 0;
	list_for_each (other, &request->pressure->kept, kept) {
		before += is_before(other, request) ? other->missing_bytes : 0;
	}
	return before > 0 && request->missing_bytes > 0 &&
	       before + request->missing_bytes > location_room_bytes(request->at);
}

/* ---- fds -------------------------------------------------------------------------------------- */

static void take_back_fds(struct pressure *pressure, uint64_t n_fds)
{
	const struct chunk_books *books = pressure->books;
	uint64_t target = books->n_fds - n_fds;
	for (int round = 0; round < N_PRESSURE_ROUNDS && books->n_fds > target; round++) {
		const struct pressure_source *source = &pressure->sources[round];
		if (source->take_fds) {
			source->take_fds(source->user, books->n_fds - target);
		}
	}
}

enum status pressure_take_fd(struct pressure *pressure)
{
	struct chunk_books *books = pressure->books;
	if (books->n_fds >= books->max_fds && pressure_most_fds(pressure) > 0) {
		take_back_fds(pressure, books->n_fds + 1 - books->max_fds);
	}
	if (books->n_fds >= books->max_fds) {
		return STATUS_NO_FDS;
	}
	books->n_fds++;
	return STATUS_OK;
}

void pressure_give_fd(struct pressure *pressure)
{
	pressure->books->n_fds--;
}

/* Reserve fds for missing chunks, so that no other request can use them. Returns false: refuse it. */
static bool find_fds(struct pressure_request *request)
{
	struct chunk_books *books = request->pressure->books;
	bool is_small = request->fds == PRESSURE_FDS_SMALL;
	uint64_t limit = is_small ? books->max_fds / 4 * 3 : books->max_fds;
	uint64_t wanted = books->n_fds + request->n_missing;
	/* Take nothing for a request that would not have enough even then. */
	if (wanted > limit && !is_small && !is_modest(request) &&
	    request->n_missing <= pressure_most_fds(request->pressure) &&
	    fits_after_all_rounds(request)) {
		take_back_fds(request->pressure, wanted - limit);
	}
	request->has_fds = books->n_fds + request->n_missing <= limit;
	if (request->has_fds) {
		request->n_reserved = request->n_missing;
		books->n_fds += request->n_reserved;
	}
	return request->has_fds || request->fds != PRESSURE_FDS_MUST;
}

/* ---- making ----------------------------------------------------------------------------------- */

static void make(struct pressure_request *request)
{
	request->had_room = location_has_room(request->at, request->missing_bytes);
	request->ops->make(request);
}

/* ---- charging --------------------------------------------------------------------------------- */

static enum status wait_in_line(struct pressure_request *request, bool is_next)
{
	struct pressure *pressure = request->pressure;
	/* A request behind others asks when it is its turn. */
	bool is_awaited = !request->no_wait && (is_next || request->asked_bytes == 0) &&
	                  fits_after_asking(request) &&
	                  ask(request, &request->asked, request->tenant, request->bytes);
	if (!may_wait(request, is_awaited || !is_next)) {
		return refuse(request, BOUND_QUOTA);
	}
	if (list_is_empty(&request->place)) {
		tenant_queue_enter(request->tenant, request->at->slot, &request->place);
		pressure->stats->quota_waits++;
	}
	park(request, PRESSURE_IN_LINE);
	return STATUS_OK;
}

/*
 * NEW or IN_LINE: charge and make it if it is its turn. The request may be freed if this is
 * STATUS_OK.
 */
static enum status admit(struct pressure_request *request)
{
	enum bound bound = pressure_check(request->pressure, request);
	if (bound != BOUND_NONE) {
		return refuse(request, bound);
	}
	if (is_modest(request) && !pressure_has_reserve(request) &&
	    pressure_is_short(request->pressure, request->at)) {
		return refuse(request, BOUND_ROOM);
	}
	bool is_next = is_paid(request) ||
	               tenant_queue_is_next(request->tenant, request->at->slot, &request->place);
	int r = is_next ? request->ops->charge(request) : TENANT_E_BYTES;
	if (r == TENANT_E_BYTES) {
		return request->is_spare ? refuse(request, BOUND_QUOTA)
		                         : wait_in_line(request, is_next);
	}
	if (r != 0) {
		return refuse(request, BOUND_TENANT_FDS);
	}
	request->asked_bytes = 0;
	tenant_queue_leave(request->tenant, &request->place);
	pressure_set_state(request, PRESSURE_MAKING);
	bool has_found = find_fds(request);
	if (request->state == PRESSURE_CANCELLED) {
		finish_cancelled(request);
	} else if (!has_found) {
		return refuse(request, BOUND_FDS);
	} else if (!is_behind(request)) {
		make(request);
	} else if (!request->is_spare && may_wait(request, true)) {
		park(request, PRESSURE_SHORT);
	} else {
		return refuse(request, BOUND_ROOM);
	}
	return STATUS_OK;
}

enum status pressure_start(struct pressure *pressure, struct pressure_request *request)
{
	assert(request->state == PRESSURE_NEW);
	request->pressure = pressure;
	request->number = ++pressure->n_requests;
	list_init(&request->link);
	list_init(&request->place);
	list_init(&request->kept);
	return admit(request);
}

/* ---- a full location ---------------------------------------------------------------------------- */

/*
 * The bytes to take back: missing minus free bytes by the books, or all missing bytes if the books
 * are wrong.
 */
static uint64_t shortfall(const struct pressure_request *request)
{
	uint64_t room = location_room_bytes(request->at);
	return request->missing_bytes > room ? request->missing_bytes - room
	                                     : request->missing_bytes;
}

/* Run all rounds but the last. Returns whether there is more room than before. */
static bool take_back(struct pressure_request *request)
{
	struct pressure *pressure = request->pressure;
	struct location *at = request->at;
	uint64_t wanted = shortfall(request);
	uint64_t before = location_room_bytes(at);
	uint64_t freed = 0;
	for (int round = 0; round < N_PRESSURE_ROUNDS && freed < wanted; round++) {
		const struct pressure_source *source = &pressure->sources[round];
		if (source->take_bytes) {
			source->take_bytes(source->user, at, wanted - freed);
			uint64_t room = location_room_bytes(at);
			freed = room > before ? room - before : 0;
		}
	}
	return freed > 0;
}

/* Whether programs are falling asleep for it. Asked now and then, since it takes a look at all of them. */
static bool put_to_sleep(struct pressure_request *request)
{
	struct pressure *pressure = request->pressure;
	uint64_t now = now_ms(pressure);
	uint64_t room = location_room_bytes(request->at) + request->at->forgetting_bytes;
	if (!pressure->sleepers.ask || request->missing_bytes <= room) {
		return false;
	}
	if (request->naps_ms == 0 || now - request->naps_ms >= ASK_AGAIN_MS) {
		request->naps_ms = now;
		request->has_coming = pressure->sleepers.ask(pressure->sleepers.user, request,
		                                             request->missing_bytes - room);
	}
	if (request->has_coming) {
		request->coming_ms = now;
	}
	return request->has_coming;
}

/*
 * Memory that is late keeps programs awake, but not for ever: clients are asked again while the request waits, and one that is
 * slow always owes an answer.
 */
static bool is_overdue(const struct pressure_request *request)
{
	return request->has_waited &&
	       now_ms(request->pressure) - request->since_ms >= PRESSURE_LATE_MS;
}

static bool is_held_back(const struct pressure_request *request)
{
	return request->is_held_back && *request->is_held_back;
}

/* The request waits, or is refused if it may not wait. */
static void wait_on(struct pressure_request *request, bool is_late)
{
	if (may_wait(request, is_late)) {
		park(request, PRESSURE_SHORT);
	} else {
		refuse_later(request, BOUND_ROOM);
	}
}

uint64_t pressure_waiting_number(const struct pressure_request *request)
{
	bool is_waiting = request->state == PRESSURE_SHORT ||
	                  (request->state == PRESSURE_MAKING && request->has_waited);
	return is_waiting ? request->number : 0;
}

struct pressure_wait pressure_wait_of(const struct pressure_request *request)
{
	bool is_in_line = request->state == PRESSURE_IN_LINE;
	bool is_short = pressure_waiting_number(request) != 0;
	if (!is_in_line && !is_short) {
		return (struct pressure_wait){.bound = BOUND_NONE};
	}
	return (struct pressure_wait){.bound = is_in_line ? BOUND_QUOTA : BOUND_ROOM,
	                              .at = request->at,
	                              .bytes = request->bytes,
	                              .ms = now_ms(request->pressure) - request->since_ms};
}

static void keep_place(struct pressure_request *request)
{
	if (request->keeps_place && list_is_empty(&request->kept)) {
		list_insert(&request->pressure->kept, &request->kept);
	}
}

/* The location had no room for the request. */
static void fall_short(struct pressure_request *request)
{
	struct pressure *pressure = request->pressure;
	struct pressure_asked *asked = &pressure->asked[request->at->slot];
	bool is_late = false;
	bool is_coming = false;
	if (is_modest(request)) {
		refuse_later(request, BOUND_ROOM);
		return;
	}
	if (is_held_back(request)) {
		wait_on(request, false);
		return;
	}
	keep_place(request);
	if (!request->had_room && location_has_room(request->at, request->missing_bytes)) {
		/* The room came while the maker said no. The books are not wrong. */
		make(request);
		return;
	}
	if (fits_after_all_rounds(request)) {
		bool has_room = take_back(request);
		if (request->state == PRESSURE_CANCELLED) {
			finish_cancelled(request);
			return;
		}
		if (has_room) {
			make(request);
			return;
		}
		if (!request->no_wait) {
			is_late = ask(request, asked, NULL, shortfall(request));
			is_late |= request->missing_bytes <= location_room_bytes(request->at) +
			                                             request->at->forgetting_bytes +
			                                             request->at->looked_at_bytes;
			is_coming = (!is_late || is_overdue(request)) && put_to_sleep(request);
		}
	}
	if (may_wait(request, is_late) || is_coming) {
		park(request, PRESSURE_SHORT);
	} else {
		refuse_later(request, BOUND_ROOM);
	}
}

void pressure_made(struct pressure_request *request, enum status status)
{
	if (request->state == PRESSURE_CANCELLED) {
		finish_cancelled(request);
	} else if (status == STATUS_OK) {
		end(request);
		pressure_set_state(request, PRESSURE_GRANTED);
		request->ops->done(request, STATUS_OK);
	} else if (status == STATUS_NO_DEVICE_MEMORY) {
		fall_short(request);
	} else {
		fail(request, status);
	}
}

bool pressure_cancel(struct pressure_request *request)
{
	bool is_over = request->state != PRESSURE_MAKING;
	pressure_set_state(request, PRESSURE_CANCELLED);
	if (is_over) {
		end(request);
	}
	return is_over;
}

/* ---- looking again ---------------------------------------------------------------------------- */

static void try_again(struct pressure_request *request)
{
	pressure_set_state(request, PRESSURE_MAKING);
	if (is_held_back(request)) {
		wait_on(request, false);
	} else if (is_behind(request)) {
		wait_on(request, true);
	} else {
		make(request);
	}
}

void pressure_look(struct pressure *pressure)
{
	struct list again = LIST_INIT(again);
	list_move(&again, &pressure->waiting);
	pressure->n_looks++;
	while (!list_is_empty(&again)) {
		struct pressure_request *request = list_first(&again, struct pressure_request,
		                                              link);
		list_remove(&request->link);
		if (request->state == PRESSURE_SHORT) {
			try_again(request);
			continue;
		}
		enum status status = admit(request);
		if (status != STATUS_OK) {
			request->ops->done(request, status);
		}
	}
}

int pressure_init(struct pressure *pressure, uint32_t n_locations, struct chunk_books *books,
                  const struct tenant *cache, struct stats *stats,
                  const struct pressure_clock *clock)
{
	*pressure = (struct pressure){
		.clock = *clock,
		.stats = stats,
		.books = books,
		.cache = cache,
		.n_locations = n_locations,
	};
	list_init(&pressure->clients);
	list_init(&pressure->waiting);
	list_init(&pressure->kept);
	pressure->asked = calloc(n_locations ? n_locations : 1, sizeof(pressure->asked[0]));
	return pressure->asked ? 0 : -ENOMEM;
}

void pressure_deinit(struct pressure *pressure)
{
	assert(list_is_empty(&pressure->waiting) && list_is_empty(&pressure->clients));
	free(pressure->asked);
	pressure->asked = NULL;
}

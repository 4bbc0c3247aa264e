/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure by itself: the clock, the maker, the sources and the clients are the test's.
 */
#include "daemon/memory/pressure.h"

#include <signal.h>
#include <string.h>

#include "proto/limits.h"
#include "tests/harness/churn.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)
#define N_PLACES 2u
/* The memory of each location, all of it grantable. */
#define MOST (100 * MIB)
#define MAX_FDS 40u
#define N_CLIENTS 3u
#define N_WANTS 12u

/* ---- the world -------------------------------------------------------------------------------- */

static uint64_t now;
static uint64_t wake_at; /* 0: nobody wants to be woken */
static struct stats stats;
static struct chunk_books books;
static struct location places[N_PLACES];
/* Each of a table of his own, since the default configuration has one tenant. */
static struct tenant_table *tables[2];
static struct tenant *tenants[2];
static struct tenant *cache;
static struct pressure pressure;
/* Who was asked: 'k', 'p' and 'u' sources for bytes, 'K', 'P' and 'U' for fds, '0' .. '9' clients, 's' those who sleep. */
static char heard[100];

static void hear(char what)
{
	size_t n = strlen(heard);
	if (n + 1 < sizeof(heard)) {
		heard[n] = what;
		heard[n + 1] = 0;
	}
}

static void expect_heard(const char *what)
{
	ck_assert_str_eq(heard, what);
	heard[0] = 0;
}

static uint64_t clock_now(void *user)
{
	return now;
}

static void clock_wake(void *user, uint64_t ms)
{
	uint64_t at = now + ms;
	if (wake_at == 0 || at < wake_at) {
		wake_at = at;
	}
}

/* Memory that is there: a chunk, or the whole of a want. */
struct thing {
	struct location *at;
	enum chunk_use use;
	uint64_t bytes;
	uint64_t n_fds;
	struct charge charge;
};

static void put(struct thing *thing, struct location *at, enum chunk_use use, uint64_t bytes,
                uint64_t n_fds)
{
	thing->at = at;
	thing->use = use;
	thing->bytes = bytes;
	thing->n_fds = n_fds;
	at->use_bytes[use] += bytes;
	books.n_fds += n_fds;
}

static void drop(struct thing *thing)
{
	if (thing->at) {
		thing->at->use_bytes[thing->use] -= thing->bytes;
		books.n_fds -= thing->n_fds;
	}
	charge_refund(&thing->charge);
	*thing = (struct thing){0};
}

static void give_to(struct thing *thing, struct tenant *tenant, struct location *at,
                    enum chunk_use use, uint64_t bytes)
{
	ck_assert_int_eq(tenant_charge(tenant, at->slot, bytes, 1, &thing->charge), 0);
	put(thing, at, use, bytes, 1);
}

/* Sources: one chunk each. */
static struct {
	struct thing thing;
	char name;
	bool is_lying;
	struct want *cancels; /* news of it makes the owner give up */
} sources[N_PRESSURE_ROUNDS];

static void cancel(struct want *want);

static void take_bytes(void *user, struct location *at, uint64_t bytes)
{
	__typeof__(&sources[0]) source = user;
	hear(source->name);
	ck_assert_uint_gt(bytes, 0);
	if (!source->is_lying && source->thing.at == at) {
		drop(&source->thing);
	}
	if (source->cancels) {
		cancel(source->cancels);
		source->cancels = NULL;
	}
}

static void take_fds(void *user, uint64_t n_fds)
{
	__typeof__(&sources[0]) source = user;
	hear((char)(source->name - 'a' + 'A'));
	ck_assert_uint_gt(n_fds, 0);
	if (!source->is_lying) {
		drop(&source->thing);
	}
	if (source->cancels) {
		cancel(source->cancels);
		source->cancels = NULL;
	}
}

static void cache_in(enum pressure_round round, uint64_t bytes)
{
	give_to(&sources[round].thing, cache, &places[0],
	        round == PRESSURE_UNUSED ? CHUNK_BLOCK
	        : round == PRESSURE_KEPT ? CHUNK_KEPT
	                                 : CHUNK_STOCK,
	        bytes);
}

/* Clients: one chunk each, warm or not. */
static struct client {
	struct pressure_client base;
	struct thing thing;
	uint64_t asked_bytes;
	bool is_deaf; /* what is sent cannot be sent */
	bool has_unread;
	bool dies; /* when it is asked */
} clients[N_CLIENTS];

static struct client *client_of(const struct pressure_client *base)
{
	return container_of(base, struct client, base);
}

static uint64_t held_bytes(const struct pressure_client *base, const struct location *at)
{
	const struct client *client = client_of(base);
	return client->thing.at == at ? client->thing.bytes : 0;
}

static bool ask(struct pressure_client *base, const struct location *at, uint64_t bytes,
                uint64_t id)
{
	struct client *client = client_of(base);
	ck_assert_uint_gt(bytes, 0);
	ck_assert_uint_le(bytes, held_bytes(base, at));
	if (client->dies) {
		pressure_client_leave(base);
		drop(&client->thing);
		return false;
	}
	if (!client->is_deaf) {
		hear((char)('0' + (client - clients)));
		client->asked_bytes = bytes;
	}
	return !client->is_deaf;
}

static bool has_unread(const struct pressure_client *base)
{
	return client_of(base)->has_unread;
}

static const struct pressure_client_ops client_ops = {
	.held_bytes = held_bytes,
	.ask = ask,
	.has_unread = has_unread,
};

/* Client @i, of tenant @t, with so much on the first device. */
static struct client *enter(unsigned i, unsigned t, uint64_t bytes)
{
	struct client *client = &clients[i];
	pressure_client_enter(&pressure, &client->base, &client_ops, tenants[t]);
	if (bytes > 0) {
		give_to(&client->thing, tenants[t], &places[0], CHUNK_PRIVATE, bytes);
	}
	return client;
}

static void answer(struct client *client, bool gives)
{
	if (gives) {
		drop(&client->thing);
	}
	pressure_client_answer(&pressure, &client->base, client->base.last_id);
}

/* Programs that can be put to sleep: what they have is a thing. */
static struct {
	struct thing thing;
	bool is_coming; /* when they are asked, and as long as they are falling asleep */
	uint64_t asked_bytes;
	const struct tenant *tenant;
} sleepers;

static bool ask_sleepers(void *user, const struct pressure_request *request, uint64_t bytes)
{
	hear('s');
	ck_assert_ptr_eq(user, &sleepers);
	ck_assert_uint_gt(bytes, 0);
	sleepers.asked_bytes = bytes;
	sleepers.tenant = request->tenant;
	return sleepers.is_coming;
}

/* Wants. */
static struct want {
	struct pressure_request request;
	struct thing thing;
	bool is_started;
	bool is_in_maker;
	bool had_room; /* when it came there */
	bool is_over;
	enum status status;
} wants[N_WANTS];

static struct {
	bool is_full;         /* whatever the books say */
	bool is_broken;       /* fails otherwise */
	uint64_t other_bytes; /* of what the books do not know */
} driver;

static struct want *want_of(struct pressure_request *request)
{
	return container_of(request, struct want, request);
}

static int charge(struct pressure_request *request)
{
	int r = tenant_charge(request->tenant, request->at->slot, request->bytes,
	                      (uint32_t)request->n_chunks, &want_of(request)->thing.charge);
	if (r == 0) {
		request->missing_bytes = request->bytes;
		request->n_missing = request->n_chunks;
	}
	return r;
}

static void make(struct pressure_request *request)
{
	struct want *want = want_of(request);
	ck_assert(!want->is_in_maker);
	want->is_in_maker = true;
	want->had_room = location_has_room(request->at, request->missing_bytes);
}

static void done(struct pressure_request *request, enum status status)
{
	struct want *want = want_of(request);
	ck_assert(!want->is_over && !want->is_in_maker);
	want->is_over = true;
	want->status = status;
	if (request->state == PRESSURE_GRANTED) {
		ck_assert_int_eq(status, STATUS_OK);
		put(&want->thing, request->at, CHUNK_PRIVATE, request->bytes,
		    request->has_fds ? request->n_chunks : 0);
	} else {
		drop(&want->thing);
	}
}

static const struct pressure_ops ops = {.charge = charge, .make = make, .done = done};

/* The maker does what it has, also that which that brings. */
static void run_maker(void)
{
	for (bool again = true; again;) {
		again = false;
		for (unsigned i = 0; i < N_WANTS; i++) {
			struct want *want = &wants[i];
			if (!want->is_in_maker) {
				continue;
			}
			want->is_in_maker = false;
			again = true;
			bool fits = !driver.is_full && want->had_room &&
			            location_has_room(want->request.at,
			                              want->request.bytes + driver.other_bytes);
			pressure_made(&want->request, driver.is_broken ? STATUS_INTERNAL
			                              : fits           ? STATUS_OK
			                                               : STATUS_NO_DEVICE_MEMORY);
		}
	}
}

/* Time goes on until @ms have passed. */
static void pass(uint64_t ms)
{
	uint64_t until = now + ms;
	run_maker();
	while (wake_at > 0 && wake_at <= until) {
		now = wake_at > now ? wake_at : now;
		wake_at = 0;
		pressure_look(&pressure);
		run_maker();
	}
	now = until;
}

/* The next want, of tenant @t at @place, to be started. */
static struct want *want_new(unsigned t, unsigned place, uint64_t bytes)
{
	unsigned i = 0;
	while (wants[i].is_started) {
		i++;
	}
	ck_assert_uint_lt(i, N_WANTS);
	wants[i] = (struct want){
		.is_started = true,
		.request =
			{
				.ops = &ops,
				.at = &places[place],
				.tenant = tenants[t],
				.bytes = bytes,
				.n_chunks = 1,
			},
	};
	return &wants[i];
}

static void start(struct want *want)
{
	want->is_started = true;
	enum status status = pressure_start(&pressure, &want->request);
	if (status != STATUS_OK) {
		ck_assert(!want->is_over);
		ck_assert_int_eq(want->request.state, PRESSURE_REFUSED);
		done(&want->request, status);
	}
}

/* Started, and what the maker can do at once is done. */
static struct want *want_on(unsigned t, unsigned place, uint64_t bytes)
{
	struct want *want = want_new(t, place, bytes);
	start(want);
	run_maker();
	return want;
}

static struct want *want(uint64_t bytes)
{
	return want_on(0, 0, bytes);
}

static void cancel(struct want *want)
{
	if (pressure_cancel(&want->request)) {
		want->is_over = true;
		drop(&want->thing);
	}
	ck_assert_int_eq(want->request.state, PRESSURE_CANCELLED);
}

static void release(struct want *want)
{
	ck_assert(want->is_over);
	drop(&want->thing);
	want->is_started = false;
}

static void expect_state(const struct want *want, enum pressure_state state)
{
	ck_assert_int_eq(want->request.state, state);
	ck_assert(want->is_over == (state > PRESSURE_SHORT));
}

static void expect_refused(const struct want *want, enum status status)
{
	expect_state(want, PRESSURE_REFUSED);
	ck_assert_int_eq(want->status, status);
}

static void begin(void)
{
	const struct pressure_clock clock = {.now_ms = clock_now, .wake = clock_wake};
	char error[256];
	struct config *config;
	ck_assert_int_eq(config_load(NULL, &config, error, sizeof(error)), 0);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(tenant_table_new(config, 1, N_PLACES - 1, &tables[i]), 0);
		tenants[i] = tenant_find(tables[i], CONFIG_DEFAULT_TENANT);
	}
	config_free(config);
	cache = tenant_table_cache(tables[0]);
	for (uint32_t i = 0; i < N_PLACES; i++) {
		/* A GPU, and a node of the host: pressure does not tell them apart. */
		places[i] = (struct location){.kind = i == 0 ? LOCATION_GPU : LOCATION_HOST,
		                              .slot = i,
		                              .anchor_bytes = GLAKE_CHUNK_GRANULARITY};
		places[i].usable_bytes = MOST + GLAKE_CHUNK_GRANULARITY;
		places[i].use_bytes[CHUNK_STOCK] = GLAKE_CHUNK_GRANULARITY;
	}
	now = 1000000;
	books = (struct chunk_books){.max_fds = MAX_FDS, .stats = &stats};
	ck_assert_int_eq(pressure_init(&pressure, N_PLACES, &books, cache, &stats, &clock), 0);
	for (int round = 0; round < N_PRESSURE_ROUNDS; round++) {
		sources[round].name = "kpu"[round];
		pressure.sources[round] = (struct pressure_source){
			.take_bytes = take_bytes, .take_fds = take_fds, .user = &sources[round]};
	}
	sleepers.is_coming = false;
	pressure.sleepers = (struct pressure_sleepers){.ask = ask_sleepers, .user = &sleepers};
}

/* Whatever is left goes; then every book is level. */
static void end(void)
{
	for (unsigned i = 0; i < N_WANTS; i++) {
		if (wants[i].is_started && !wants[i].is_over &&
		    wants[i].request.state != PRESSURE_CANCELLED) {
			cancel(&wants[i]);
		}
	}
	run_maker();
	for (unsigned i = 0; i < N_WANTS; i++) {
		if (wants[i].is_started) {
			release(&wants[i]);
		}
	}
	for (unsigned i = 0; i < N_CLIENTS; i++) {
		pressure_client_leave(&clients[i].base);
		drop(&clients[i].thing);
	}
	for (int round = 0; round < N_PRESSURE_ROUNDS; round++) {
		drop(&sources[round].thing);
	}
	drop(&sleepers.thing);
	ck_assert_uint_eq(books.n_fds, 0);
	for (uint32_t i = 0; i < N_PLACES; i++) {
		ck_assert_uint_eq(location_physical_bytes(&places[i]), GLAKE_CHUNK_GRANULARITY);
		for (unsigned t = 0; t < 2; t++) {
			ck_assert_uint_eq(tenants[t]->at[i].used_bytes, 0);
			ck_assert(list_is_empty(&tenants[t]->at[i].queue));
		}
	}
	pressure_deinit(&pressure);
	tenant_table_free(tables[0]);
	tenant_table_free(tables[1]);
}

BEGIN_EACH(begin)
END_EACH(end)

/* ---- at once ---------------------------------------------------------------------------------- */

START_TEST(what_fits_is_granted_and_costs_nobody)
{
	cache_in(PRESSURE_UNUSED, 10 * MIB);
	enter(0, 0, 10 * MIB);
	struct want *whole = want_new(0, 0, 80 * MIB);
	start(whole);
	expect_state(whole, PRESSURE_MAKING);
	run_maker();
	expect_state(whole, PRESSURE_GRANTED);
	expect_heard("");
}
END_TEST

/* With all that others could give up in reach. */
START_TEST_WITH(what_can_never_fit_costs_nobody, .n = 8)
{
	static const struct {
		uint64_t bytes;
		uint64_t n_chunks;
		enum pressure_fds fds;
		enum status status;
	} cases[] = {
		{MOST + 2 * MIB, 1, PRESSURE_FDS_SMALL, STATUS_NO_DEVICE_MEMORY},
		{62 * MIB, 1, PRESSURE_FDS_SMALL, STATUS_OVER_QUOTA},
		{10 * MIB, 11, PRESSURE_FDS_SMALL, STATUS_NO_FDS},
		{10 * MIB, MAX_FDS + 1, PRESSURE_FDS_MUST, STATUS_NO_FDS},
	};
	pressure.wait_ms = _i % 2 ? 1000 : 0;
	cache_in(PRESSURE_MADE_AHEAD, 10 * MIB);
	cache_in(PRESSURE_UNUSED, 20 * MIB);
	enter(0, 0, 50 * MIB);
	if (_i / 2 == 1) {
		tenant_set_quota(tenants[0], 0, 60 * MIB);
	}
	tenants[0]->max_fds = _i / 2 == 2 ? 10 : 0;
	struct want *never = want_new(0, 0, cases[_i / 2].bytes);
	never->request.n_chunks = cases[_i / 2].n_chunks;
	never->request.fds = cases[_i / 2].fds;
	start(never);
	expect_refused(never, cases[_i / 2].status);
	expect_heard("");
	ck_assert_uint_eq(wake_at, 0);
	ck_assert_uint_eq(stats.memory_refusals + stats.quota_refusals + stats.fd_refusals, 1);
}
END_TEST

START_TEST(a_failing_maker_ends_the_request)
{
	pressure.wait_ms = 1000;
	driver.is_broken = true;
	expect_refused(want(10 * MIB), STATUS_INTERNAL);
	expect_heard("");
}
END_TEST

/* ---- the tenant's bytes ----------------------------------------------------------------------- */

/* The first tenant may have 60 MiB, and requests wait so long. */
static void set_quota_and_wait(uint64_t wait_ms)
{
	pressure.wait_ms = wait_ms;
	tenant_set_quota(tenants[0], 0, 60 * MIB);
}

START_TEST(only_the_tenants_clients_are_asked_over_its_quota)
{
	set_quota_and_wait(0);
	cache_in(PRESSURE_UNUSED, 10 * MIB);
	struct client *own = enter(0, 0, 40 * MIB);
	enter(1, 1, 20 * MIB);
	struct want *waits = want(30 * MIB);
	expect_state(waits, PRESSURE_IN_LINE);
	expect_heard("0");
	ck_assert_uint_eq(own->asked_bytes, 30 * MIB);
	answer(own, true);
	pass(1);
	expect_state(waits, PRESSURE_GRANTED);
	expect_heard("");
	ck_assert_uint_eq(stats.quota_waits, 1);
}
END_TEST

/* The rest of the quota is in use: all their warm memory would not be enough. */
START_TEST(nobody_is_asked_for_what_would_not_help)
{
	struct thing used = {0};
	set_quota_and_wait(0);
	give_to(&used, tenants[0], &places[0], CHUNK_BLOCK, 35 * MIB);
	enter(0, 0, 20 * MIB);
	/* Memory of another tenant's client helps nobody. */
	enter(1, 1, 20 * MIB);
	expect_refused(want(30 * MIB), STATUS_OVER_QUOTA);
	expect_heard("");
	expect_state(want(24 * MIB), PRESSURE_IN_LINE);
	expect_heard("0");
	drop(&used);
}
END_TEST

/* How a client may fail to give what it was asked for, and until when the request then waits. */
START_TEST_WITH(clients_that_give_nothing_end_the_wait, .n = 5)
{
	enum { LIES, MUTE, DEAF, DIES, UNREAD };
	static const uint64_t waits_ms[] = {PRESSURE_AFTER_MS, PRESSURE_LATE_MS, 0, 0,
	                                    PRESSURE_LATE_MS};
	set_quota_and_wait(0);
	struct client *client = enter(0, 0, 60 * MIB);
	client->is_deaf = _i == DEAF;
	client->dies = _i == DIES;
	struct want *waits = want(30 * MIB);
	if (_i == DEAF) {
		expect_refused(waits, STATUS_OVER_QUOTA);
	} else if (_i == LIES) {
		answer(client, false);
	} else if (_i == DIES) {
		/* The client's memory has gone with it. */
		ck_assert_ptr_null(client->base.ops);
		struct want *next = want(30 * MIB);
		expect_state(next, PRESSURE_GRANTED);
	}
	if (waits_ms[_i] > 0) {
		pass(waits_ms[_i] - 1);
		expect_state(waits, PRESSURE_IN_LINE);
		pass(20);
		expect_refused(waits, STATUS_OVER_QUOTA);
	}
	if (_i == MUTE) {
		/* The client is not waited for again. */
		expect_refused(want(30 * MIB), STATUS_OVER_QUOTA);
		ck_assert_uint_eq(stats.quota_waits, 1);
	} else if (_i == UNREAD) {
		/* But if something of it lies unread, that may be the answer. */
		client->has_unread = true;
		expect_state(want(30 * MIB), PRESSURE_IN_LINE);
	}
}
END_TEST

START_TEST(a_client_that_leaves_is_not_awaited)
{
	set_quota_and_wait(0);
	struct client *client = enter(0, 0, 60 * MIB);
	struct want *waits = want(30 * MIB);
	expect_state(waits, PRESSURE_IN_LINE);
	pressure_client_leave(&client->base);
	pressure_client_leave(&client->base);
	pass(20);
	expect_refused(waits, STATUS_OVER_QUOTA);
}
END_TEST

/* Answers to what was never asked, and twice the same, are none. */
START_TEST(wrong_answers_are_ignored)
{
	set_quota_and_wait(0);
	struct client *client = enter(0, 0, 60 * MIB);
	struct want *waits = want(30 * MIB);
	pass(500);
	pressure_client_answer(&pressure, &client->base, client->base.last_id + 1);
	pressure_client_answer(&pressure, &client->base, client->base.last_id - 1);
	pass(100);
	expect_state(waits, PRESSURE_IN_LINE);
	answer(client, false);
	pass(20);
	answer(client, false);
	pass(20);
	expect_refused(waits, STATUS_OVER_QUOTA);
}
END_TEST

/* Its answer came, and what streams were done with comes behind it. */
START_TEST(what_follows_an_answer_is_in_time)
{
	set_quota_and_wait(0);
	struct client *client = enter(0, 0, 60 * MIB);
	struct want *waits = want(30 * MIB);
	pass(900);
	answer(client, false);
	pass(PRESSURE_AFTER_MS - 10);
	expect_state(waits, PRESSURE_IN_LINE);
	drop(&client->thing);
	pass(11);
	expect_state(waits, PRESSURE_GRANTED);
}
END_TEST

START_TEST(a_line_is_served_in_order)
{
	set_quota_and_wait(10000);
	struct want *first = want(24 * MIB);
	struct want *second = want(30 * MIB);
	struct want *big = want(40 * MIB);
	struct want *small = want(2 * MIB);
	expect_state(big, PRESSURE_IN_LINE);
	expect_state(small, PRESSURE_IN_LINE);
	release(first);
	pass(100);
	expect_state(big, PRESSURE_IN_LINE);
	expect_state(small, PRESSURE_IN_LINE);
	/* Other tenants and devices are other lines. */
	expect_state(want_on(1, 0, 2 * MIB), PRESSURE_GRANTED);
	expect_state(want_on(0, 1, 60 * MIB), PRESSURE_GRANTED);
	release(second);
	pass(20);
	expect_state(big, PRESSURE_GRANTED);
	expect_state(small, PRESSURE_GRANTED);
	ck_assert_uint_eq(stats.quota_waits, 2);
}
END_TEST

START_TEST(a_small_one_behind_a_big_one_gets_its_turn)
{
	set_quota_and_wait(1000);
	want(40 * MIB);
	struct want *big = want(50 * MIB);
	pass(500);
	struct want *small = want(20 * MIB);
	expect_state(small, PRESSURE_IN_LINE);
	pass(480);
	expect_state(small, PRESSURE_IN_LINE);
	pass(40);
	expect_refused(big, STATUS_OVER_QUOTA);
	expect_state(small, PRESSURE_GRANTED);
}
END_TEST

/* The quota was lowered below what stands in line. */
START_TEST(what_became_too_big_does_not_wait)
{
	set_quota_and_wait(100000);
	want(40 * MIB);
	struct want *waits = want(40 * MIB);
	tenant_set_quota(tenants[0], 0, 30 * MIB);
	pass(20);
	expect_refused(waits, STATUS_OVER_QUOTA);
}
END_TEST

/* ---- a full location -------------------------------------------------------------------------- */

START_TEST(rounds_come_in_order_and_end_when_there_is_enough)
{
	cache_in(PRESSURE_KEPT, 10 * MIB);
	cache_in(PRESSURE_MADE_AHEAD, 20 * MIB);
	cache_in(PRESSURE_UNUSED, 30 * MIB);
	struct client *client = enter(0, 1, 40 * MIB);
	expect_state(want(10 * MIB), PRESSURE_GRANTED);
	expect_heard("k");
	struct want *first = want(20 * MIB);
	expect_state(first, PRESSURE_GRANTED);
	expect_heard("kp");
	struct want *second = want(30 * MIB);
	expect_state(second, PRESSURE_GRANTED);
	expect_heard("kpu");
	struct want *third = want(40 * MIB);
	expect_state(third, PRESSURE_SHORT);
	expect_heard("kpu0");
	ck_assert_uint_eq(client->asked_bytes, 40 * MIB);
	answer(client, true);
	pass(1);
	expect_state(third, PRESSURE_GRANTED);
}
END_TEST

/* With so much in use, of programs that can be put to sleep. */
static void have_sleepers(uint64_t wait_ms, uint64_t bytes)
{
	pressure.wait_ms = wait_ms;
	give_to(&sleepers.thing, tenants[1], &places[0], CHUNK_PRIVATE, bytes);
	sleepers.is_coming = true;
}

static struct want *spare_want(uint64_t bytes)
{
	struct want *want = want_new(0, 0, bytes);
	want->request.is_spare = true;
	start(want);
	run_maker();
	return want;
}

/* Whatever the patience is. */
START_TEST_WITH(a_spare_request_has_what_is_free_and_nothing_else, .n = 2)
{
	have_sleepers(_i * 1000, 10 * MIB);
	cache_in(PRESSURE_MADE_AHEAD, 10 * MIB);
	cache_in(PRESSURE_UNUSED, 20 * MIB);
	enter(0, 1, 50 * MIB);
	uint64_t n_refused = stats.memory_refusals;
	expect_state(spare_want(8 * MIB), PRESSURE_GRANTED);
	expect_refused(spare_want(4 * MIB), STATUS_NO_DEVICE_MEMORY);
	expect_heard("");
	expect_state(spare_want(2 * MIB), PRESSURE_GRANTED);
	/* Nobody lacks it. */
	ck_assert_uint_eq(stats.memory_refusals, n_refused);
	driver.is_full = true;
	expect_refused(spare_want(0), STATUS_NO_DEVICE_MEMORY);
	expect_heard("");
}
END_TEST

static struct want *hurried_want(uint64_t bytes)
{
	struct want *want = want_new(0, 0, bytes);
	want->request.no_wait = true;
	start(want);
	run_maker();
	return want;
}

/* Whatever the patience is; its refusal is one like any other. */
START_TEST_WITH(a_request_that_does_not_wait_has_what_can_be_taken_back_at_once, .n = 2)
{
	have_sleepers(_i * 1000, 10 * MIB);
	cache_in(PRESSURE_MADE_AHEAD, 10 * MIB);
	cache_in(PRESSURE_UNUSED, 20 * MIB);
	enter(0, 1, 50 * MIB);
	uint64_t n_refused = stats.memory_refusals;
	expect_state(hurried_want(30 * MIB), PRESSURE_GRANTED);
	expect_heard("kpu");
	expect_refused(hurried_want(20 * MIB), STATUS_NO_DEVICE_MEMORY);
	expect_heard("kpu");
	ck_assert_uint_eq(stats.memory_refusals, n_refused + 1);
	/* The books have room, the driver has none: memory may be on its way. */
	driver.is_full = true;
	expect_refused(hurried_want(2 * MIB), STATUS_NO_DEVICE_MEMORY);
	ck_assert_uint_eq(stats.memory_waits, 0);
}
END_TEST

START_TEST(a_request_that_does_not_wait_does_not_stand_in_line)
{
	set_quota_and_wait(1000);
	enter(0, 0, 20 * MIB);
	want(40 * MIB);
	uint64_t n_refused = stats.quota_refusals;
	expect_refused(hurried_want(30 * MIB), STATUS_OVER_QUOTA);
	expect_heard("");
	ck_assert_uint_eq(stats.quota_refusals, n_refused + 1);
	ck_assert_uint_eq(stats.quota_waits, 0);
}
END_TEST

START_TEST(a_spare_request_does_not_stand_in_line)
{
	set_quota_and_wait(1000);
	uint64_t n_refused = stats.quota_refusals;
	want(40 * MIB);
	expect_refused(spare_want(30 * MIB), STATUS_OVER_QUOTA);
	struct want *waits = want(30 * MIB);
	expect_state(waits, PRESSURE_IN_LINE);
	/* The request would fit, and somebody else is before it. */
	expect_refused(spare_want(2 * MIB), STATUS_OVER_QUOTA);
	expect_refused(spare_want(62 * MIB), STATUS_OVER_QUOTA);
	ck_assert_uint_eq(stats.quota_refusals, n_refused);
}
END_TEST

START_TEST(a_spare_request_leaves_the_room_to_who_waits)
{
	pressure.wait_ms = 1000;
	want(50 * MIB);
	struct want *waits = want(60 * MIB);
	expect_state(waits, PRESSURE_SHORT);
	expect_refused(spare_want(10 * MIB), STATUS_NO_DEVICE_MEMORY);
	expect_state(want(10 * MIB), PRESSURE_GRANTED);
}
END_TEST

START_TEST(lying_sources_end)
{
	cache_in(PRESSURE_MADE_AHEAD, 20 * MIB);
	cache_in(PRESSURE_UNUSED, 70 * MIB);
	sources[PRESSURE_MADE_AHEAD].is_lying = true;
	sources[PRESSURE_UNUSED].is_lying = true;
	expect_refused(want(50 * MIB), STATUS_NO_DEVICE_MEMORY);
	expect_heard("kpus");
	ck_assert_uint_eq(stats.memory_refusals, 1);
}
END_TEST

START_TEST_WITH(nothing_goes_for_what_blocks_in_use_are_in_the_way_of, .n = 2)
{
	struct thing used = {0};
	pressure.wait_ms = _i == 0 ? 0 : 1000;
	give_to(&used, tenants[1], &places[0], CHUNK_BLOCK, 50 * MIB);
	cache_in(PRESSURE_UNUSED, 30 * MIB);
	enter(0, 0, 20 * MIB);
	struct want *waits = want(60 * MIB);
	if (_i == 0) {
		expect_refused(waits, STATUS_NO_DEVICE_MEMORY);
	} else {
		pass(500);
		expect_state(waits, PRESSURE_SHORT);
	}
	expect_heard("");
	drop(&used);
	if (_i == 1) {
		pass(20);
		expect_state(waits, PRESSURE_GRANTED);
		expect_heard("kpu");
	}
}
END_TEST

/* By the books there is room; a process that is about to end has it still. */
START_TEST_WITH(memory_that_is_late_is_waited_for, .n = 2)
{
	driver.is_full = true;
	struct want *waits = want(60 * MIB);
	pass(500);
	expect_state(waits, PRESSURE_SHORT);
	if (_i == 0) {
		driver.is_full = false;
		pass(20);
		expect_state(waits, PRESSURE_GRANTED);
	} else {
		pass(PRESSURE_LATE_MS - 500 - 1);
		expect_state(waits, PRESSURE_SHORT);
		pass(20);
		expect_refused(waits, STATUS_NO_DEVICE_MEMORY);
	}
}
END_TEST

/* Only client @who was asked, and once, whatever the sources heard. */
static void expect_asked_once(char who)
{
	const char digits[] = "0123456789";
	const char *first = strpbrk(heard, digits);
	ck_assert(first && *first == who);
	ck_assert_ptr_null(strpbrk(first + 1, digits));
	heard[0] = 0;
}

START_TEST(what_the_books_do_not_know_is_asked_for_in_the_end)
{
	struct client *client = enter(0, 1, 70 * MIB);
	driver.other_bytes = 20 * MIB;
	struct want *waits = want(40 * MIB);
	expect_asked_once('0');
	ck_assert_uint_eq(client->asked_bytes, 10 * MIB);
	drop(&client->thing);
	give_to(&client->thing, tenants[1], &places[0], CHUNK_PRIVATE, 60 * MIB);
	answer(client, false);
	pass(20);
	/* By the books there is room now. */
	expect_asked_once('0');
	ck_assert_uint_eq(client->asked_bytes, 40 * MIB);
	expect_state(waits, PRESSURE_SHORT);
	answer(client, true);
	pass(20);
	expect_state(waits, PRESSURE_GRANTED);
	/* Never more than once for all of it. */
	release(waits);
	client = enter(1, 1, 10 * MIB);
	driver.is_full = true;
	waits = want(40 * MIB);
	pass(10 * PRESSURE_LATE_MS);
	expect_asked_once('1');
	expect_refused(waits, STATUS_NO_DEVICE_MEMORY);
	driver.is_full = false;
	driver.other_bytes = 0;
}
END_TEST

START_TEST(room_that_comes_while_the_maker_says_no_is_enough)
{
	struct client *client = enter(0, 1, 70 * MIB);
	struct want *waits = want(40 * MIB);
	expect_asked_once('0');
	ck_assert_uint_eq(client->asked_bytes, 10 * MIB);
	now = wake_at;
	pressure_look(&pressure);
	ck_assert(waits->is_in_maker);
	drop(&client->thing);
	give_to(&client->thing, tenants[1], &places[0], CHUNK_PRIVATE, 60 * MIB);
	pass(0);
	expect_state(waits, PRESSURE_GRANTED);
	ck_assert_str_eq(heard, "");
}
END_TEST

/* ---- programs that fall asleep ------------------------------------------------------------------ */

START_TEST(programs_are_put_to_sleep_when_warm_memory_is_not_enough)
{
	have_sleepers(0, 60 * MIB);
	cache_in(PRESSURE_UNUSED, 10 * MIB);
	struct client *client = enter(0, 1, 20 * MIB);
	struct want *waits = want(50 * MIB);
	pass(50);
	ck_assert_ptr_null(strchr(heard, 's'));
	answer(client, false);
	pass(PRESSURE_AFTER_MS + 20);
	ck_assert_ptr_nonnull(strchr(heard, 's'));
	ck_assert_ptr_eq(sleepers.tenant, tenants[0]);
	ck_assert_uint_eq(sleepers.asked_bytes, 30 * MIB);
	expect_state(waits, PRESSURE_SHORT);
	drop(&sleepers.thing);
	pass(20);
	expect_state(waits, PRESSURE_GRANTED);
}
END_TEST

/* While a request waits its clients are asked again and again: one that takes longer than that for each answer always owes one. */
START_TEST(slow_answers_keep_nobody_awake)
{
	have_sleepers(3600000, 60 * MIB);
	cache_in(PRESSURE_UNUSED, 10 * MIB);
	struct client *client = enter(0, 1, 20 * MIB);
	struct want *waits = want(50 * MIB);
	for (uint64_t ms = 0; ms <= PRESSURE_LATE_MS; ms += 100) {
		pass(100);
		pressure_client_answer(&pressure, &client->base, client->base.last_id - 1);
		heard[0] = 0;
	}
	pass(100);
	ck_assert_ptr_nonnull(strchr(heard, 's'));
	drop(&sleepers.thing);
	pass(20);
	expect_state(waits, PRESSURE_GRANTED);
}
END_TEST

/* Whatever its patience is. And the driver may need a moment until it has what fell asleep. */
START_TEST(it_is_not_refused_while_they_fall_asleep)
{
	have_sleepers(0, 60 * MIB);
	struct want *waits = want(50 * MIB);
	pass(60000);
	expect_state(waits, PRESSURE_SHORT);
	driver.is_full = true;
	drop(&sleepers.thing);
	pass(PRESSURE_LATE_MS / 2);
	expect_state(waits, PRESSURE_SHORT);
	driver.is_full = false;
	pass(20);
	expect_state(waits, PRESSURE_GRANTED);
}
END_TEST

START_TEST_WITH(it_is_refused_when_nobody_falls_asleep_any_more, .n = 2)
{
	have_sleepers(_i ? 1000 : 0, 60 * MIB);
	struct want *waits = want(50 * MIB);
	pass(500);
	expect_state(waits, PRESSURE_SHORT);
	sleepers.is_coming = false;
	pass(_i ? 300 : 110);
	if (_i) {
		expect_state(waits, PRESSURE_SHORT);
		pass(300);
	}
	expect_refused(waits, STATUS_NO_DEVICE_MEMORY);
}
END_TEST

START_TEST(nobody_is_put_to_sleep_for_what_blocks_in_use_are_in_the_way_of)
{
	struct thing used = {0};
	have_sleepers(0, 20 * MIB);
	give_to(&used, tenants[1], &places[0], CHUNK_BLOCK, 60 * MIB);
	expect_refused(want(50 * MIB), STATUS_NO_DEVICE_MEMORY);
	expect_heard("");
	drop(&used);
}
END_TEST

/* ---- requests that keep their place ------------------------------------------------------------- */

static struct want *wake_on(unsigned t, uint64_t bytes)
{
	struct want *wake = want_new(t, 0, bytes);
	wake->request.keeps_place = true;
	wake->request.patience_ms = 600000;
	start(wake);
	run_maker();
	return wake;
}

START_TEST(small_requests_do_not_starve_a_program_that_wakes)
{
	pressure.wait_ms = 10000;
	struct want *first = want_on(1, 0, 50 * MIB);
	struct want *second = want_on(1, 0, 40 * MIB);
	struct want *before = want(20 * MIB);
	struct want *wake = wake_on(0, 60 * MIB);
	expect_state(wake, PRESSURE_SHORT);
	struct want *small = want_on(1, 0, 4 * MIB);
	struct want *other = want(4 * MIB);
	expect_state(small, PRESSURE_SHORT);
	expect_state(want_on(0, 1, 4 * MIB), PRESSURE_GRANTED);
	pass(100);
	release(second);
	pass(20);
	/* There is room for it now, and it came before. */
	expect_state(before, PRESSURE_GRANTED);
	expect_state(small, PRESSURE_SHORT);
	expect_state(other, PRESSURE_SHORT);
	release(first);
	pass(20);
	expect_state(wake, PRESSURE_GRANTED);
	expect_state(small, PRESSURE_GRANTED);
	expect_state(other, PRESSURE_GRANTED);
}
END_TEST

START_TEST(what_fits_beside_it_is_served)
{
	pressure.wait_ms = 10000;
	struct want *held = want_on(1, 0, 70 * MIB);
	struct want *wake = wake_on(0, 40 * MIB);
	expect_state(want(5 * MIB), PRESSURE_SHORT);
	release(held);
	expect_state(want(55 * MIB), PRESSURE_GRANTED);
	pass(20);
	expect_state(wake, PRESSURE_GRANTED);
}
END_TEST

START_TEST(higher_priorities_are_served_all_the_same)
{
	want_on(1, 0, 70 * MIB);
	tenants[0]->priority = 3;
	struct want *wake = wake_on(0, 60 * MIB);
	tenants[1]->priority = 2;
	struct want *lower = want_on(1, 0, 2 * MIB);
	expect_state(lower, PRESSURE_SHORT);
	tenants[1]->priority = 4;
	expect_state(want_on(1, 0, 2 * MIB), PRESSURE_GRANTED);
	expect_state(wake, PRESSURE_SHORT);
	tenants[1]->priority = 2;
	pass(PRESSURE_LATE_MS + 20);
	expect_refused(lower, STATUS_NO_DEVICE_MEMORY);
}
END_TEST

/* Whoever waited for such a program would wait for nothing. */
START_TEST(a_program_that_cannot_wake_now_keeps_nobody_waiting)
{
	struct thing used = {0};
	give_to(&used, tenants[1], &places[0], CHUNK_BLOCK, 50 * MIB);
	struct want *wake = wake_on(0, 60 * MIB);
	expect_state(wake, PRESSURE_SHORT);
	expect_state(want(20 * MIB), PRESSURE_GRANTED);
	drop(&used);
	expect_state(want(20 * MIB), PRESSURE_GRANTED);
	pass(20);
	expect_state(wake, PRESSURE_GRANTED);
}
END_TEST

START_TEST(a_program_that_gives_up_keeps_nobody_waiting)
{
	want_on(1, 0, 70 * MIB);
	struct want *wake = wake_on(0, 60 * MIB);
	struct want *small = want(2 * MIB);
	expect_state(small, PRESSURE_SHORT);
	cancel(wake);
	pass(20);
	expect_state(small, PRESSURE_GRANTED);
}
END_TEST

/* ---- requests of programs that sleep ------------------------------------------------------------ */

static struct want *hold_back(uint64_t bytes, const bool *is_held_back)
{
	struct want *want = want_new(0, 0, bytes);
	want->request.is_held_back = is_held_back;
	start(want);
	run_maker();
	return want;
}

START_TEST(what_a_sleeper_waits_for_is_left_to_others_until_it_is_awake)
{
	bool is_asleep = true;
	pressure.wait_ms = 10000;
	struct want *held = want_on(1, 0, 70 * MIB);
	struct want *sleepers_own = hold_back(40 * MIB, &is_asleep);
	expect_state(sleepers_own, PRESSURE_SHORT);
	ck_assert_uint_gt(pressure_waiting_number(&sleepers_own->request), 0);
	release(held);
	pass(100);
	expect_state(sleepers_own, PRESSURE_SHORT);
	struct want *other = want_on(1, 0, 80 * MIB);
	expect_state(other, PRESSURE_GRANTED);
	ck_assert_uint_eq(pressure_waiting_number(&other->request), 0);
	release(other);
	is_asleep = false;
	pass(20);
	expect_state(sleepers_own, PRESSURE_GRANTED);
}
END_TEST

START_TEST(what_a_sleeper_waits_for_is_refused_when_its_patience_is_over)
{
	const bool is_asleep = true;
	pressure.wait_ms = 500;
	struct want *held = want_on(1, 0, 70 * MIB);
	struct want *sleepers_own = hold_back(40 * MIB, &is_asleep);
	release(held);
	pass(450);
	expect_state(sleepers_own, PRESSURE_SHORT);
	pass(100);
	expect_refused(sleepers_own, STATUS_NO_DEVICE_MEMORY);
}
END_TEST

START_TEST(what_fits_a_full_device_first_is_served_first)
{
	pressure.wait_ms = 10000;
	struct want *held = want_on(1, 0, 90 * MIB);
	struct want *big = want(60 * MIB);
	expect_state(big, PRESSURE_SHORT);
	expect_state(want(10 * MIB), PRESSURE_GRANTED);
	release(held);
	pass(20);
	expect_state(big, PRESSURE_GRANTED);
}
END_TEST

/* ---- patience --------------------------------------------------------------------------------- */

START_TEST_WITH(patience_is_what_the_config_says_in_all, .n = 8)
{
	static const uint64_t waited_ms[] = {0, 300, 1000, UINT64_MAX};
	static const uint64_t left_ms[] = {1000, 700, 0, 0};
	bool is_short = _i % 2;
	uint64_t left = left_ms[_i / 2];
	set_quota_and_wait(1000);
	want_on(is_short, 0, 60 * MIB);
	if (is_short) {
		tenant_set_quota(tenants[0], 0, 0);
	}
	struct want *waits = want_new(0, 0, 50 * MIB);
	waits->request.waited_ms = waited_ms[_i / 2];
	start(waits);
	run_maker();
	if (left > 0) {
		pass(left - 1);
		expect_state(waits, is_short ? PRESSURE_SHORT : PRESSURE_IN_LINE);
		pass(20);
	}
	expect_refused(waits, is_short ? STATUS_NO_DEVICE_MEMORY : STATUS_OVER_QUOTA);
}
END_TEST

/* Also for who has no patience left: it is not the client's fault that others are late. */
START_TEST(answers_are_waited_for_in_any_case)
{
	set_quota_and_wait(1000);
	struct client *client = enter(0, 0, 60 * MIB);
	struct want *waits = want_new(0, 0, 50 * MIB);
	waits->request.waited_ms = 1000;
	start(waits);
	pass(900);
	answer(client, true);
	pass(1);
	expect_state(waits, PRESSURE_GRANTED);
}
END_TEST

START_TEST(clients_are_asked_again_while_somebody_waits)
{
	set_quota_and_wait(10000);
	struct client *client = enter(0, 0, 60 * MIB);
	struct want *waits = want(30 * MIB);
	struct want *behind = want(20 * MIB);
	expect_heard("00");
	for (unsigned i = 0; i < 3; i++) {
		answer(client, false);
		pass(110);
		expect_heard("0");
	}
	answer(client, true);
	pass(1);
	expect_state(waits, PRESSURE_GRANTED);
	expect_state(behind, PRESSURE_GRANTED);
}
END_TEST

/* ---- fds -------------------------------------------------------------------------------------- */

START_TEST_WITH(fds_are_taken_from_what_nobody_uses, .n = 7)
{
	/* Held by others. */
	static const uint64_t n_held[] = {36, 30, 29, 38, 38, 38, 39};
	static const enum pressure_fds fds[] = {
		PRESSURE_FDS_MUST, PRESSURE_FDS_SMALL, PRESSURE_FDS_SMALL, PRESSURE_FDS_MUST,
		PRESSURE_FDS_BIG,  PRESSURE_FDS_SMALL, PRESSURE_FDS_MUST};
	static const char *const heards[] = {"", "", "", "KP", "KP", "", "KPU"};
	static const bool has_fds[] = {true, false, true, true, true, false, true};
	struct thing held = {0};
	put(&held, &places[1], CHUNK_BLOCK, 2 * MIB, n_held[_i] - (_i > 2 ? 2 : 0));
	if (_i > 2) {
		cache_in(PRESSURE_MADE_AHEAD, 2 * MIB);
		cache_in(PRESSURE_UNUSED, 2 * MIB);
	}
	struct want *waits = want_new(0, 0, 10 * MIB);
	waits->request.fds = fds[_i];
	waits->request.n_chunks = _i < 3 ? 1 : 3;
	start(waits);
	expect_heard(heards[_i]);
	run_maker();
	expect_state(waits, PRESSURE_GRANTED);
	ck_assert(waits->request.has_fds == has_fds[_i]);
	drop(&held);
}
END_TEST

START_TEST(nothing_goes_for_too_few_fds)
{
	struct thing held = {0};
	pressure.wait_ms = 1000;
	put(&held, &places[1], CHUNK_BLOCK, 2 * MIB, MAX_FDS - 2);
	cache_in(PRESSURE_MADE_AHEAD, 2 * MIB);
	cache_in(PRESSURE_UNUSED, 2 * MIB);
	struct want *must = want_new(0, 0, 10 * MIB);
	must->request.fds = PRESSURE_FDS_MUST;
	must->request.n_chunks = 3;
	start(must);
	expect_refused(must, STATUS_NO_FDS);
	struct want *big = want_new(0, 0, 10 * MIB);
	big->request.fds = PRESSURE_FDS_BIG;
	big->request.n_chunks = 3;
	start(big);
	run_maker();
	expect_state(big, PRESSURE_GRANTED);
	ck_assert(!big->request.has_fds);
	expect_heard("");
	drop(&held);
}
END_TEST

/* ---- cancelling ------------------------------------------------------------------------------- */

START_TEST_WITH(a_request_is_cancelled_wherever_it_is, .n = 8)
{
	enum { MADE, FAILED, IN_VAIN, IN_LINE, SHORT, NEWS, NEWS_OF_NOTHING, NEWS_OF_FDS };
	struct thing held = {0};
	pressure.wait_ms = 1000;
	struct want *want = want_new(0, 0, 50 * MIB);
	if (_i == IN_LINE) {
		tenant_set_quota(tenants[0], 0, 60 * MIB);
		want_on(0, 0, 20 * MIB);
	} else if (_i >= SHORT) {
		cache_in(PRESSURE_UNUSED, 10 * MIB);
		want_on(1, 0, 90 * MIB);
	}
	if (_i == NEWS || _i == NEWS_OF_NOTHING) {
		sources[PRESSURE_UNUSED].cancels = want;
		sources[PRESSURE_UNUSED].is_lying = _i == NEWS_OF_NOTHING;
	} else if (_i == NEWS_OF_FDS) {
		want->request.fds = PRESSURE_FDS_MUST;
		want->request.n_chunks = 5;
		put(&held, &places[1], CHUNK_BLOCK, 2 * MIB, MAX_FDS - 6);
		sources[PRESSURE_UNUSED].cancels = want;
	}
	start(want);
	driver.is_broken = _i == FAILED;
	driver.is_full = _i == IN_VAIN;
	if (_i <= IN_VAIN) {
		expect_state(want, PRESSURE_MAKING);
	} else if (_i < NEWS) {
		run_maker();
		expect_state(want, _i == IN_LINE ? PRESSURE_IN_LINE : PRESSURE_SHORT);
	}
	if (_i < NEWS) {
		cancel(want);
		ck_assert(want->is_over == (_i > IN_VAIN));
	}
	run_maker();
	expect_state(want, PRESSURE_CANCELLED);
	driver.is_full = false;
	driver.is_broken = false;
	pass(2000);
	/* Nobody stands behind it. */
	if (_i <= IN_LINE) {
		expect_state(want_on(0, 0, 40 * MIB), PRESSURE_GRANTED);
	}
	drop(&held);
}
END_TEST

START_TEST_WITH(what_is_over_cannot_be_cancelled, .signal = SIGABRT)
{
	struct want *granted = want(10 * MIB);
	expect_state(granted, PRESSURE_GRANTED);
	pressure_cancel(&granted->request);
}
END_TEST

/* ---- anything --------------------------------------------------------------------------------- */

static unsigned seed;

static void check_books(void)
{
	uint64_t n_fds = 0;
	uint64_t used[2][N_PLACES] = {{0}};
	for (unsigned i = 0; i < N_WANTS; i++) {
		const struct want *want = &wants[i];
		if (!want->is_started) {
			continue;
		}
		n_fds += want->thing.n_fds + want->request.n_reserved;
		bool is_tenant = want->request.tenant == tenants[1];
		used[is_tenant][want->request.at->slot] += want->thing.charge.bytes;
		ck_assert(!want->is_over || want->request.n_reserved == 0);
		ck_assert(!want->is_over || (list_is_empty(&want->request.link) &&
		                             list_is_empty(&want->request.place) &&
		                             list_is_empty(&want->request.kept)));
		ck_assert((want->request.state == PRESSURE_IN_LINE) ==
		          !list_is_empty(&want->request.place));
		bool waits = want->request.state == PRESSURE_IN_LINE ||
		             want->request.state == PRESSURE_SHORT;
		ck_assert(!waits || !(want->request.is_spare || want->request.no_wait));
		/* Whatever waits is looked at. */
		ck_assert(want->is_over || want->is_in_maker || wake_at > 0);
	}
	for (unsigned i = 0; i < N_CLIENTS; i++) {
		const struct thing *thing = &clients[i].thing;
		n_fds += thing->n_fds;
		if (thing->at) {
			used[thing->charge.tenant == tenants[1]][thing->at->slot] += thing->bytes;
		}
	}
	for (int round = 0; round < N_PRESSURE_ROUNDS; round++) {
		n_fds += sources[round].thing.n_fds;
	}
	ck_assert_uint_eq(books.n_fds, n_fds);
	ck_assert_uint_le(books.n_fds, MAX_FDS);
	for (unsigned t = 0; t < 2; t++) {
		for (uint32_t i = 0; i < N_PLACES; i++) {
			const struct tenant_location *on = &tenants[t]->at[i];
			ck_assert_uint_eq(on->used_bytes, used[t][i]);
			ck_assert_uint_le(location_physical_bytes(&places[i]),
			                  places[i].usable_bytes);
		}
	}
}

static void do_anything_with(struct want *want)
{
	if (!want->is_started) {
		*want = (struct want){
			.request =
				{
					.ops = &ops,
					.at = &places[churn_pick(&seed, N_PLACES)],
					.tenant = tenants[churn_pick(&seed, 2)],
					.fds = churn_pick(&seed, 3),
					.bytes = (1 + churn_pick(&seed, 55)) * 2 * MIB,
					.n_chunks = 1 + churn_pick(&seed, 6),
					.waited_ms = churn_pick(&seed, 4) ? 0
		                                                          : churn_pick(&seed, 300),
					.keeps_place = churn_pick(&seed, 4) == 0,
					.is_spare = churn_pick(&seed, 4) == 0,
					.no_wait = churn_pick(&seed, 4) == 0,
				},
		};
		start(want);
	} else if (want->is_over) {
		release(want);
	} else if (want->request.state != PRESSURE_CANCELLED && churn_pick(&seed, 4) == 0) {
		cancel(want);
	}
}

static void do_anything_with_client(unsigned i)
{
	struct client *client = &clients[i];
	client->is_deaf = churn_pick(&seed, 5) == 0;
	client->has_unread = churn_pick(&seed, 5) == 0;
	if (!client->base.ops) {
		struct location *at = &places[churn_pick(&seed, N_PLACES)];
		uint64_t bytes = (1 + churn_pick(&seed, 20)) * 2 * MIB;
		unsigned t = churn_pick(&seed, 2);
		enter(i, t, 0);
		if (books.n_fds < MAX_FDS && location_has_room(at, bytes) &&
		    tenant_charge(tenants[t], at->slot, bytes, 1, &client->thing.charge) == 0) {
			put(&client->thing, at, CHUNK_PRIVATE, bytes, 1);
		}
	} else if (churn_pick(&seed, 4) == 0) {
		pressure_client_leave(&client->base);
		drop(&client->thing);
	} else {
		answer(client, churn_pick(&seed, 2));
	}
}

static void do_anything(void)
{
	switch (churn_pick(&seed, 8)) {
	case 0:
	case 1:
	case 2:
		do_anything_with(&wants[churn_pick(&seed, N_WANTS)]);
		break;
	case 3:
		do_anything_with_client(churn_pick(&seed, N_CLIENTS));
		break;
	case 4: {
		unsigned round = churn_pick(&seed, N_PRESSURE_ROUNDS);
		uint64_t bytes = (1 + churn_pick(&seed, 10)) * 2 * MIB;
		sources[round].is_lying = churn_pick(&seed, 4) == 0;
		if (!sources[round].thing.at && books.n_fds < MAX_FDS &&
		    location_has_room(&places[0], bytes)) {
			cache_in(round, bytes);
		}
		break;
	}
	case 5:
		driver.is_full = churn_pick(&seed, 6) == 0;
		driver.is_broken = churn_pick(&seed, 20) == 0;
		sleepers.is_coming = churn_pick(&seed, 4) == 0;
		break;
	case 6:
		tenant_set_quota(tenants[churn_pick(&seed, 2)], churn_pick(&seed, N_PLACES),
		                 churn_pick(&seed, 4) * 40 * MIB);
		break;
	default:
		pass(churn_pick(&seed, 60));
	}
}

START_TEST_WITH(the_books_are_level_whatever_happens, .n = 10)
{
	enum { STEPS = 20000 / TEST_ONE_IN };
	seed = (unsigned)_i;
	pressure.wait_ms = _i % 2 ? 200 : 0;
	for (unsigned i = 0; i < STEPS; i++) {
		do_anything();
		heard[0] = 0;
		check_books();
	}
	/* Left alone, nothing waits for ever. */
	for (unsigned i = 0; i < N_CLIENTS; i++) {
		clients[i].has_unread = false;
	}
	driver.is_full = false;
	sleepers.is_coming = false;
	pass(5000);
	for (unsigned i = 0; i < N_WANTS; i++) {
		ck_assert(!wants[i].is_started || wants[i].is_over);
	}
	ck_assert(list_is_empty(&pressure.waiting));
}
END_TEST

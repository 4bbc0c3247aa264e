/* SPDX-License-Identifier: Apache-2.0 */
/* Who was refused memory, and why: the program's own text, events, counters, and who waits. */
#include <string.h>

#include "glake_admin.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define TENANT(settings) "tenants = ({ name = \"default\"; " settings " });"
#define MAX_EVENTS 16

/* An event of a refusal, with copies of its texts. */
struct refused {
	struct glake_event_row row;
	char bound[32];
	char tenant[32];
	char program[32];
	char text[512];
};

struct seen {
	struct refused list[MAX_EVENTS];
	size_t n;
	uint64_t n_refused;
};

static int see(void *user, const struct glake_event_row *row)
{
	struct seen *seen = user;
	if (strcmp(row->kind, "memory_refused") == 0) {
		ck_assert_uint_lt(seen->n, MAX_EVENTS);
		struct refused *refused = &seen->list[seen->n++];
		refused->row = *row;
		snprintf(refused->bound, sizeof(refused->bound), "%s", row->bound);
		snprintf(refused->tenant, sizeof(refused->tenant), "%s", row->tenant);
		snprintf(refused->program, sizeof(refused->program), "%s", row->program);
		snprintf(refused->text, sizeof(refused->text), "%s", row->text);
		seen->n_refused += row->n_refused;
	}
	return 0;
}

static struct seen look(void)
{
	struct seen seen = {.n = 0};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_list_events(session, see, &seen));
	world_disconnect(session);
	return seen;
}

/* Without an end but the test's. */
static void await_refused(uint64_t n)
{
	while (look().n_refused != n) {
		harness_sleep_ms(5);
	}
}

static int sum_tenant(void *user, const struct glake_tenant_row *row)
{
	struct glake_tenant_device *sum = user;
	if (strcmp(row->name, "default") == 0) {
		*sum = row->devices[0];
	}
	return 0;
}

static struct glake_tenant_device tenant_device(void)
{
	struct glake_tenant_device device = {.device = 0};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_list_tenants(session, sum_tenant, &device));
	world_disconnect(session);
	return device;
}

/* ---- events ----------------------------------------------------------------------------------- */

START_TEST(the_first_refusal_is_an_event_at_once_and_the_others_are_summed)
{
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	world_begin(.config = WORLD_CONFIG TENANT("device_bytes = \"64MiB\";"),
	            .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	ck_assert_uint_eq(look().n, 0);
	assert_fails(GLAKE_E_OVER_QUOTA,
	             "30.0 MiB more on device 0: tenant default uses 40.0 of 64.0 MiB",
	             glake_alloc(session, 0, 30 * MIB, 0, &more));
	struct seen seen = look();
	ck_assert_uint_eq(seen.n, 1);
	const struct refused *first = &seen.list[0];
	ck_assert_str_eq(first->bound, "quota");
	ck_assert_str_eq(first->tenant, "default");
	ck_assert_uint_eq(first->row.n_refused, 1);
	ck_assert_int_eq(first->row.is_host, 0);
	ck_assert_uint_eq(first->row.location, 0);
	ck_assert_uint_eq(first->row.wanted, 30 * MIB);
	ck_assert_uint_eq(first->row.used, 40 * MIB);
	ck_assert_uint_eq(first->row.limit, 64 * MIB);
	ck_assert_uint_eq(first->row.pid, (uint32_t)getpid());
	ck_assert_ptr_nonnull(strstr(first->text, first->program));
	ck_assert_ptr_nonnull(strstr(first->text,
	                             "was refused 30.0 MiB more on device 0: tenant default uses "
	                             "40.0 of 64.0 MiB"));
	for (int i = 0; i < 5; i++) {
		assert_fails(GLAKE_E_OVER_QUOTA, "", glake_alloc(session, 0, 50 * MIB, 0, &more));
	}
	ck_assert_uint_eq(world_row(session).n_refused, 6);
	assert_ok(glake_free(session, ptr));
	world_disconnect(session);
	/* One sum at its end; another one before, if that took a minute. */
	await_refused(6);
	seen = look();
	ck_assert_uint_ge(seen.n, 2);
	ck_assert_ptr_nonnull(strstr(seen.list[seen.n - 1].text, "more, the last time 50.0 MiB"));
	const struct glake_tenant_device device = tenant_device();
	ck_assert_uint_eq(device.n_refused, 6);
	ck_assert_uint_eq(device.refused_quota, 6);
	ck_assert_uint_eq(world_metric("quota_refusals"), 6);
}
END_TEST

/* Each bound says its own name, and has its own counter. */
START_TEST(each_bound_is_told_from_the_others)
{
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	world_begin(.config = WORLD_CONFIG TENANT("max_fds = 2;"), .devices = "1x256MiB");
	struct glake_session *session = world_connect();
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY,
	             "256.0 MiB more on device 0, which has 254.0 MiB in all",
	             glake_alloc(session, 0, 255 * MIB, 0, &more));
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptr));
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	assert_fails(GLAKE_E_NO_FDS,
	             "1 more fds for chunks on device 0: tenant default uses 2 of 2",
	             glake_alloc(session, 0, 6 * MIB, 0, &more));
	struct seen seen = look();
	ck_assert_uint_eq(seen.n, 2);
	ck_assert_str_eq(seen.list[0].bound, "room");
	ck_assert_str_eq(seen.list[1].bound, "tenant_fds");
	ck_assert_uint_eq(seen.list[1].row.limit, 2);
	const struct glake_tenant_device device = tenant_device();
	ck_assert_uint_eq(device.refused_room, 1);
	ck_assert_uint_eq(device.refused_tenant_fds, 1);
	ck_assert_uint_eq(device.n_refused, 2);
}
END_TEST

START_TEST(a_model_that_does_not_fit_is_a_refusal_of_its_reader)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG TENANT("device_bytes = \"64MiB\";"),
	            .devices = "1x512MiB");
	const char *path = world_write_model("m.safetensors", 100 * MIB, 1);
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_OVER_QUOTA,
	             "it needs 100.0 MiB more on device 0: tenant default uses 0 of 64.0 MiB",
	             world_open_unmapped(session, path, &model));
	struct seen seen = look();
	ck_assert_uint_eq(seen.n, 1);
	ck_assert_str_eq(seen.list[0].bound, "quota");
	ck_assert_uint_eq(seen.list[0].row.limit, 64 * MIB);
}
END_TEST

/* ---- asking again ----------------------------------------------------------------------------- */

static void ask(int connection, bool is_again, bool is_spare)
{
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                                           .chunk_bytes = 30 * MIB, .n_chunks = 1,
	                                           .is_again = is_again, .is_spare = is_spare),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
}

/* A client that has made room asks for the same memory once more; and what is only taken if it is free is no demand. */
START_TEST(the_same_memory_is_refused_once)
{
	world_begin(.config = WORLD_CONFIG TENANT("device_bytes = \"16MiB\";"),
	            .devices = "1x256MiB");
	struct books before = world_books();
	int connection = connection_hello(&harness);
	ask(connection, false, true);
	ck_assert_uint_eq(look().n_refused, 0);
	ask(connection, false, false);
	ask(connection, true, false);
	ck_assert_uint_eq(look().n_refused, 1);
	connection_close(&connection);
	world_wait_books(&before);
	ck_assert_uint_eq(look().n_refused, 1);
}
END_TEST

/* ---- who waits -------------------------------------------------------------------------------- */

static void wait_for_memory(void *user)
{
	glake_ptr ptr = 0;
	world_await(1);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	assert_ok(glake_free(session, ptr));
	world_disconnect(session);
}

struct waiter {
	uint32_t pid;
	char bound[16];
	uint64_t bytes;
};

static int find_waiter(void *user, const struct glake_session_row *row)
{
	struct waiter *waiter = user;
	if (row->pid == waiter->pid) {
		snprintf(waiter->bound, sizeof(waiter->bound), "%s", row->wait_bound);
		waiter->bytes = row->wait_bytes;
	}
	return 0;
}

static struct waiter look_at(pid_t pid)
{
	struct waiter waiter = {.pid = (uint32_t)pid};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_list_sessions(session, find_waiter, &waiter));
	world_disconnect(session);
	return waiter;
}

START_TEST_WITH(who_waits_for_memory_is_seen, .n = 2)
{
	static const struct {
		const char *config;
		const char *devices;
		const char *bound;
		const char *counter;
	} cases[] = {
		{WORLD_CONFIG
	         "pressure = \"wait\"; wait_ms = 3600000;" TENANT("device_bytes = \"64MiB\";"),
	         "1x256MiB", "quota", "quota_waits"},
		{WORLD_CONFIG "pressure = \"wait\"; wait_ms = 3600000;", "1x64MiB", "room",
	         "memory_waits"},
	};
	glake_ptr ptr = 0;
	world_begin(.config = cases[_i].config, .devices = cases[_i].devices);
	pid_t client = world_client(wait_for_memory, NULL);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	world_reach(1);
	while (strcmp(look_at(client).bound, cases[_i].bound) != 0) {
		harness_sleep_ms(5);
	}
	ck_assert_uint_eq(look_at(client).bytes, 40 * MIB);
	ck_assert_str_eq(world_row(session).wait_bound, "");
	ck_assert_uint_eq(world_metric(cases[_i].counter), 1);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
	world_join(client);
	ck_assert_uint_eq(look().n, 0);
}
END_TEST

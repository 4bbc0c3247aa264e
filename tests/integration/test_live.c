/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program uses, as others see it, when it does nothing more: a burst of requests ends within the time in which no
 * second report is sent, and nobody sends one later.
 */
#include <string.h>

#include "glake_admin.h"
#include "tests/harness/world.h"

#define N 8
#define EACH (32 * MIB)

struct seen {
	uint64_t session;
	struct glake_session_row row;
	struct glake_session_device devices[4];
};

static int see(void *user, const struct glake_session_row *row)
{
	struct seen *seen = user;
	if (row->session == seen->session) {
		ck_assert_uint_le(row->n_devices, 4);
		seen->row = *row;
		memcpy(seen->devices, row->devices, row->n_devices * sizeof(*row->devices));
	}
	return 0;
}

/* By another session: the one that is looked at sends nothing for it. */
static struct seen look_at(uint64_t id)
{
	struct seen seen = {.session = id};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_list_sessions(session, see, &seen));
	world_disconnect(session);
	return seen;
}

static uint64_t id_of(struct glake_session *session)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	return info.session;
}

START_TEST(a_burst_of_allocations_is_live_at_its_end)
{
	glake_ptr ptrs[N];
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	uint64_t id = id_of(session);
	for (unsigned i = 0; i < N; i++) {
		assert_ok(glake_alloc(session, 0, EACH, 0, &ptrs[i]));
	}
	struct seen seen = look_at(id);
	ck_assert_uint_eq(seen.row.live_bytes, N * EACH);
	ck_assert_uint_eq(seen.row.n_devices, 1);
	ck_assert_int_ne(seen.devices[0].knows_live, 0);
	ck_assert_uint_eq(seen.devices[0].live_bytes, N * EACH);
	ck_assert_uint_eq(seen.devices[0].reusable_bytes, 0);
	for (unsigned i = 0; i < N - 1; i++) {
		assert_ok(glake_free(session, ptrs[i]));
	}
	seen = look_at(id);
	ck_assert_uint_eq(seen.row.live_bytes, EACH);
	ck_assert_uint_eq(seen.devices[0].live_bytes, EACH);
}
END_TEST

/* On two devices: each has its own. */
START_TEST(what_can_be_used_again_is_told_by_device)
{
	glake_ptr ptrs[4];
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"1GiB\";", .devices = "2x512MiB");
	struct glake_session *session = world_connect();
	uint64_t id = id_of(session);
	for (unsigned i = 0; i < 4; i++) {
		uint32_t device = i % 2;
		assert_ok(glake_alloc(session, device, EACH, 0, &ptrs[i]));
	}
	assert_ok(glake_free(session, ptrs[1]));
	/* The warm path says nothing; whatever comes next does, when it is time. */
	do {
		assert_ok(glake_ping(session));
		harness_sleep_ms(5);
	} while (look_at(id).row.warm_bytes == 0);
	struct seen seen = look_at(id);
	ck_assert_uint_eq(seen.row.n_devices, 2);
	ck_assert_uint_eq(seen.devices[0].live_bytes, 2 * EACH);
	ck_assert_uint_eq(seen.devices[0].reusable_bytes, 0);
	ck_assert_uint_eq(seen.devices[1].live_bytes, EACH);
	ck_assert_uint_eq(seen.devices[1].reusable_bytes, EACH);
	/* Memory that is given back is no loss of live memory. */
	assert_ok(glake_trim(session, 1, 0));
	seen = look_at(id);
	ck_assert_uint_eq(seen.row.live_bytes, 3 * EACH);
	ck_assert_uint_eq(seen.row.warm_bytes, 0);
	ck_assert_uint_eq(seen.devices[1].live_bytes, EACH);
	ck_assert_uint_eq(seen.devices[1].reusable_bytes, 0);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Who has the memory of a device, of a snapshot that is made here: the shares are what there is, to the byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/shares.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)
#define UID "11111111-2222-3333-4444-5555555555"

static struct snapshot snapshot;
static struct shares shares;

static void end(void)
{
	shares_deinit(&shares);
}

END_EACH(end)

static void *add(struct rows *rows, const void *row, size_t n_bytes)
{
	return memcpy(rows_add(rows, n_bytes), row, n_bytes);
}

static void add_device(uint32_t index, uint64_t private_bytes, uint64_t used_bytes,
                       uint64_t cached_bytes, uint64_t pool_bytes)
{
	const struct glake_device_status device = {
		.index = index,
		.physical_bytes = private_bytes + used_bytes + cached_bytes + pool_bytes,
		.private_bytes = private_bytes,
		.block_bytes = used_bytes + cached_bytes,
		.used_block_bytes = used_bytes,
		.pool_bytes = pool_bytes,
	};
	add(&snapshot.devices, &device, sizeof(device));
}

static void add_tenant(const char *name)
{
	const struct glake_tenant_row tenant = {.name = name};
	add(&snapshot.tenants, &tenant, sizeof(tenant));
}

static struct glake_session_row *add_session(uint64_t id, uint32_t pid, const char *tenant,
                                             const char *pod_uid,
                                             const struct glake_session_device *device)
{
	const struct glake_session_row session = {
		.session = id,
		.pid = pid,
		.program = "p",
		.tenant = tenant,
		.pod_uid = pod_uid,
		.container_id = "",
		.n_devices = 1,
		.devices = device,
	};
	return add(&snapshot.sessions, &session, sizeof(session));
}

static const struct share *share_at(size_t i)
{
	return rows_at(&shares.list, i);
}

/* The invariant: every byte of a device's chunks is in one row. */
static void assert_sum(size_t device)
{
	const struct glake_device_status *status = rows_at(&snapshot.devices, device);
	const struct share_rest *rest = rows_at(&shares.rest, device);
	uint64_t sum = rest->cache_bytes + rest->other_bytes;
	for (size_t i = 0; i < shares.list.n; i++) {
		sum += share_at(i)->at[device].private_bytes + share_at(i)->at[device].shared_bytes;
	}
	ck_assert_uint_eq(sum, status->physical_bytes);
}

START_TEST(shares_add_up_to_the_byte)
{
	/* A block of 2 MiB that seven have is no whole number of bytes each. */
	const struct glake_session_device seventh = {
		.device = 1, .reserved_bytes = 2 * MIB, .part_bytes = 2 * MIB / 7.0};
	char uids[7][40];
	add_device(0, 0, 0, 0, 6 * MIB);
	add_device(1, 14 * MIB, 2 * MIB, 4 * MIB, 32 * MIB);
	add_tenant("default");
	for (uint32_t i = 0; i < 7; i++) {
		snprintf(uids[i], sizeof(uids[i]), UID "%02u", i);
		add_session(i + 1, i + 1, "default", uids[i], &seventh);
	}
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(shares.list.n, 8);
	assert_sum(0);
	assert_sum(1);
	const struct share_rest *rest = rows_at(&shares.rest, 1);
	ck_assert_uint_eq(rest->cache_bytes, 36 * MIB);
	ck_assert_uint_eq(rest->other_bytes, 0);
	for (size_t i = 1; i < 8; i++) {
		uint64_t bytes = share_at(i)->at[1].shared_bytes;
		ck_assert(bytes == 2 * MIB / 7 || bytes == 2 * MIB / 7 + 1);
		ck_assert_str_eq(share_at(i)->pod, uids[i - 1]);
	}
}
END_TEST

START_TEST(what_one_may_not_see_is_others)
{
	const struct glake_session_device own = {.device = 0, .reserved_bytes = 2 * MIB};
	add_device(0, 10 * MIB, 6 * MIB, 0, 0);
	add_tenant("default");
	add_session(1, 1, "default", "", &own);
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	const struct share_rest *rest = rows_at(&shares.rest, 0);
	ck_assert_uint_eq(rest->other_bytes, 14 * MIB);
	assert_sum(0);
}
END_TEST

START_TEST(sessions_of_a_process_have_its_driver_memory_once)
{
	const struct glake_session_device device = {.device = 0, .process_bytes = 500 * MIB};
	const struct glake_session_device told = {.device = 0, .array_bytes = MIB};
	add_device(0, 0, 0, 0, 0);
	add_tenant("default");
	add_session(1, 7, "default", "", &device);
	add_session(2, 8, "default", "", &device);
	add_session(3, 7, "default", "", &device);
	add_session(4, 9, "default", "", &told);
	add_session(5, 9, "default", "", &told);
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(shares.list.n, 1);
	ck_assert_uint_eq(share_at(0)->n_sessions, 5);
	ck_assert_uint_eq(share_at(0)->at[0].driver_bytes, 1002 * MIB);
}
END_TEST

START_TEST(pods_without_end_are_bounded)
{
	enum { N = 3 * SHARES_MAX_PODS };
	static char uids[N][40];
	const struct glake_session_device device = {.device = 0, .reserved_bytes = 2 * MIB};
	add_device(0, N * 2 * MIB, 0, 0, 0);
	add_tenant("default");
	for (uint32_t i = 0; i < N; i++) {
		snprintf(uids[i], sizeof(uids[i]), "11111111-2222-3333-4444-%012u", i);
		add_session(i + 1, i + 1, "default", uids[i], &device);
	}
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(shares.list.n, 1 + SHARES_MAX_PODS + 1);
	const struct share *other = share_at(shares.list.n - 1);
	ck_assert_str_eq(other->pod, "other");
	ck_assert_uint_eq(other->n_sessions, N - SHARES_MAX_PODS);
	assert_sum(0);
}
END_TEST

START_TEST(who_waits_longest_is_seen)
{
	const struct glake_session_device device = {.device = 0};
	add_device(0, 0, 0, 0, 0);
	add_tenant("default");
	add_session(1, 1, "default", "", &device);
	for (uint64_t id = 2; id < 5; id++) {
		struct glake_session_row *session = add_session(id, (uint32_t)id, "default", "",
		                                                &device);
		session->wait_bound = id == 4 ? "room" : "quota";
		session->wait_ms = id == 3 ? 7000 : 1000;
	}
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(share_at(0)->n_waiting, 3);
	ck_assert_uint_eq(share_at(0)->waiting_ms, 7000);
}
END_TEST

/* glaked may have a device, and a session more memory, than its status told a moment before. */
START_TEST(lists_of_two_moments_do_no_harm)
{
	const struct glake_session_device more = {.device = 0, .reserved_bytes = 64 * MIB};
	const struct glake_session_device unknown = {.device = 9, .reserved_bytes = 2 * MIB};
	add_device(0, 2 * MIB, 0, 0, 0);
	add_session(1, 1, "gone", "", &more);
	add_session(2, 2, "gone", "", &unknown);
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(shares.list.n, 1);
	ck_assert_uint_eq(((struct share_rest *)rows_at(&shares.rest, 0))->other_bytes, 0);
}
END_TEST

/* As the kubelet has them. */
START_TEST(names_of_pods_are_found)
{
	const struct glake_session_device device = {.device = 0, .reserved_bytes = 2 * MIB};
	char folder[] = "/tmp/test_shares.XXXXXX";
	char command[256];
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(command, sizeof(command), "mkdir -p %s/pods/prod_serve-0_" UID "00", folder);
	ck_assert_int_eq(system(command), 0);
	setenv("GLAKE_POD_LOGS", folder, 1);
	add_device(0, 4 * MIB, 0, 0, 0);
	add_tenant("default");
	add_session(1, 1, "default", UID "00", &device);
	add_session(2, 2, "default", UID "00", &device);
	ck_assert_int_eq(shares_of(&snapshot, &shares), 0);
	ck_assert_uint_eq(shares.list.n, 2);
	ck_assert_str_eq(share_at(1)->namespace, "prod");
	ck_assert_str_eq(share_at(1)->pod, "serve-0");
	ck_assert_uint_eq(share_at(1)->at[0].private_bytes, 4 * MIB);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

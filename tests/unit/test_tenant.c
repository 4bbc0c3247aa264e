/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: what is charged comes back, limits hold to the byte, and reloads keep the counters. */
#include "daemon/memory/tenant.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/check_glake.h"

#define N_DEVICES 2u
#define GIB (1ull << 30)

static struct tenant_table *table;
static struct tenant *alice;
static struct tenant *bob;

static struct config *load(const char *text)
{
	char path[256];
	char error[256];
	const char *folder = getenv("TMPDIR");
	snprintf(path, sizeof(path), "%s/tenant.XXXXXX", folder ? folder : "/tmp");
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	struct config *config = NULL;
	int result = config_load(path, &config, error, sizeof(error));
	unlink(path);
	ck_assert_msg(result == 0, "%s", error);
	return config;
}

static void apply(const char *text)
{
	struct config *config = load(text);
	ck_assert_int_eq(tenant_table_apply(table, config), 0);
	config_free(config);
}

static const char two_rules[] =
	"tenants = ("
	"{ name = \"alice\"; uids = [1000]; device_bytes = [\"1GiB\", \"2GiB\"];"
	"  max_sessions = 2; max_fds = 10; manifest_bytes = \"1MiB\"; priority = 3; },"
	"{ name = \"bob\"; uids = [1001]; } );";

static void begin(void)
{
	struct config *config = load(two_rules);
	ck_assert_int_eq(tenant_table_new(config, N_DEVICES, 0, &table), 0);
	config_free(config);
	alice = tenant_find(table, "alice");
	bob = tenant_find(table, "bob");
	ck_assert_ptr_nonnull(alice);
	ck_assert_ptr_nonnull(bob);
}

static void end(void)
{
	tenant_table_free(table);
}

BEGIN_EACH(begin)
END_EACH(end)

START_TEST(table_has_cache_default_and_rules)
{
	ck_assert_int_eq(alice->priority, 3);
	ck_assert_uint_eq(alice->max_sessions, 2);
	ck_assert_uint_eq(alice->max_fds, 10);
	ck_assert_uint_eq(alice->at[0].quota_bytes, GIB);
	ck_assert_uint_eq(alice->at[1].quota_bytes, 2 * GIB);
	ck_assert_ptr_nonnull(tenant_find(table, CONFIG_DEFAULT_TENANT));
	ck_assert_ptr_eq(tenant_find(table, CONFIG_CACHE_TENANT), tenant_table_cache(table));
	ck_assert_ptr_null(tenant_find(table, "carol"));

	unsigned n_tenants = 0;
	uint64_t last = 0;
	for (struct tenant *tenant = tenant_next(table, 0); tenant;
	     tenant = tenant_next(table, last)) {
		ck_assert_uint_gt(tenant->id, last);
		last = tenant->id;
		n_tenants++;
	}
	ck_assert_uint_eq(n_tenants, 4);
}
END_TEST

START_TEST(bytes_are_charged_to_the_limit_and_no_further)
{
	struct charge first = {0}, second = {0}, third = {0};
	ck_assert_int_eq(tenant_charge(alice, 0, GIB - 1, 1, &first), 0);
	ck_assert_int_eq(tenant_charge(alice, 0, 2, 1, &second), TENANT_E_BYTES);
	ck_assert_ptr_null(second.tenant);
	ck_assert_uint_eq(alice->at[0].used_bytes, GIB - 1);
	ck_assert_uint_eq(alice->n_fds, 1);
	ck_assert_int_eq(tenant_charge(alice, 0, 1, 1, &second), 0);
	ck_assert_int_eq(tenant_charge(alice, 0, 1, 0, &third), TENANT_E_BYTES);
	/* Each device has a limit of its own. */
	ck_assert_int_eq(tenant_charge(alice, 1, 2 * GIB, 1, &third), 0);
	ck_assert_uint_eq(alice->at[0].used_bytes, GIB);
	ck_assert_uint_eq(alice->at[1].used_bytes, 2 * GIB);
	ck_assert_uint_eq(alice->n_fds, 3);
	charge_refund(&first);
	charge_refund(&second);
	charge_refund(&third);
	ck_assert_uint_eq(alice->at[0].used_bytes, 0);
	ck_assert_uint_eq(alice->at[0].peak_bytes, GIB);
	ck_assert_uint_eq(alice->n_fds, 0);
}
END_TEST

/* By what it pays for, and by what comes back to it. */
START_TEST(a_charge_shrinks_and_grows)
{
	struct charge first = {0}, second = {0};
	ck_assert_int_eq(tenant_charge(alice, 0, GIB / 2, 1, &first), 0);
	charge_shrink(&first, GIB / 4);
	ck_assert_uint_eq(alice->at[0].used_bytes, GIB / 4);
	ck_assert_int_eq(tenant_charge(alice, 0, GIB / 8, 1, &second), 0);
	ck_assert_uint_eq(alice->at[0].peak_bytes, GIB / 2);
	charge_grow(&first, GIB / 4);
	ck_assert_uint_eq(alice->at[0].used_bytes, 5 * (GIB / 8));
	ck_assert_uint_eq(alice->at[0].peak_bytes, 5 * (GIB / 8));
	charge_refund(&first);
	charge_refund(&second);
	ck_assert_uint_eq(alice->at[0].used_bytes, 0);
}
END_TEST

START_TEST(fds_are_charged_to_the_limit_and_no_further)
{
	struct charge charge = {0}, other = {0};
	ck_assert_int_eq(tenant_charge(alice, 0, 5, 11, &other), TENANT_E_FDS);
	ck_assert_uint_eq(alice->at[0].used_bytes, 0);
	ck_assert_uint_eq(alice->at[0].peak_bytes, 0);
	ck_assert_int_eq(tenant_charge(alice, 0, 5, 10, &charge), 0);
	ck_assert_int_eq(tenant_charge(alice, 1, 5, 1, &other), TENANT_E_FDS);
	ck_assert_uint_eq(alice->at[1].used_bytes, 0);
	ck_assert_int_eq(tenant_charge(alice, 1, 5, 0, &other), 0);
	charge_refund(&charge);
	charge_refund(&other);
}
END_TEST

START_TEST(manifests_are_charged_to_the_limit_and_no_further)
{
	enum { MIB = 1 << 20 };
	struct charge first = tenant_charge_manifest(payer_alone(alice));
	struct charge second = tenant_charge_manifest(payer_alone(bob));
	ck_assert_int_eq(charge_grow_manifest(&first, MIB - 5), 0);
	ck_assert_int_eq(charge_grow_manifest(&first, 6), TENANT_E_MANIFESTS);
	ck_assert_uint_eq(alice->manifest_bytes, MIB - 5);
	ck_assert_int_eq(charge_grow_manifest(&second, 6), 0);
	ck_assert_int_eq(charge_move(&second, payer_alone(alice)), TENANT_E_MANIFESTS);
	ck_assert_ptr_eq(second.tenant, bob);
	charge_refund(&first);
	ck_assert_int_eq(charge_move(&second, payer_alone(alice)), 0);
	ck_assert_uint_eq(alice->manifest_bytes, 6);
	ck_assert_uint_eq(bob->manifest_bytes, 0);
	ck_assert_uint_eq(bob->quota_manifest_bytes, 256 * MIB);
	ck_assert_uint_eq(tenant_table_cache(table)->quota_manifest_bytes, 0);
	charge_refund(&second);
	ck_assert_uint_eq(alice->manifest_bytes, 0);
}
END_TEST

START_TEST(counters_do_not_wrap)
{
	struct charge huge = {0}, more = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, UINT64_MAX, 0, &huge), 0);
	ck_assert_int_eq(tenant_charge(bob, 0, 1, 0, &more), TENANT_E_BYTES);
	ck_assert_int_eq(tenant_charge(bob, 0, UINT64_MAX, 0, &more), TENANT_E_BYTES);
	ck_assert_uint_eq(bob->at[0].used_bytes, UINT64_MAX);
	/* A limit below a sum that would wrap. */
	ck_assert_int_eq(tenant_set_quota(bob, 1, GIB), 0);
	ck_assert_int_eq(tenant_charge(bob, 1, 5, 0, &more), 0);
	struct charge wrapping = {0};
	ck_assert_int_eq(tenant_charge(bob, 1, UINT64_MAX - 2, 0, &wrapping), TENANT_E_BYTES);
	charge_refund(&huge);
	charge_refund(&more);
}
END_TEST

START_TEST(refund_is_idempotent)
{
	struct charge charge = {0}, other = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, 7, 1, &charge), 0);
	ck_assert_int_eq(tenant_charge(bob, 0, 7, 1, &other), 0);
	charge_refund(&charge);
	charge_refund(&charge);
	ck_assert_ptr_null(charge.tenant);
	ck_assert_uint_eq(charge.bytes, 0);
	ck_assert_uint_eq(bob->at[0].used_bytes, 7);
	ck_assert_uint_eq(bob->n_fds, 1);
	charge_refund(&other);
}
END_TEST

START_TEST(move_pays_from_the_other_pocket)
{
	struct tenant *cache = tenant_table_cache(table);
	struct charge charge = {0};
	ck_assert_int_eq(tenant_charge(alice, 1, GIB, 2, &charge), 0);
	ck_assert_int_eq(charge_move(&charge, payer_alone(cache)), 0);
	ck_assert_ptr_eq(charge.tenant, cache);
	ck_assert_uint_eq(alice->at[1].used_bytes, 0);
	ck_assert_uint_eq(alice->n_fds, 0);
	ck_assert_uint_eq(cache->at[1].used_bytes, GIB);
	ck_assert_uint_eq(cache->at[1].peak_bytes, GIB);
	ck_assert_uint_eq(cache->n_fds, 2);
	ck_assert_int_eq(charge_move(&charge, payer_alone(cache)), 0);
	ck_assert_uint_eq(cache->n_fds, 2);
	charge_refund(&charge);
	ck_assert_uint_eq(cache->n_fds, 0);
}
END_TEST

START_TEST(refused_move_changes_nothing)
{
	struct charge bytes = {0}, fds = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, GIB + 1, 1, &bytes), 0);
	ck_assert_int_eq(tenant_charge(bob, 0, 1, 11, &fds), 0);
	ck_assert_int_eq(charge_move(&bytes, payer_alone(alice)), TENANT_E_BYTES);
	ck_assert_int_eq(charge_move(&fds, payer_alone(alice)), TENANT_E_FDS);
	ck_assert_ptr_eq(bytes.tenant, bob);
	ck_assert_ptr_eq(fds.tenant, bob);
	ck_assert_uint_eq(alice->at[0].used_bytes, 0);
	ck_assert_uint_eq(bob->at[0].used_bytes, GIB + 2);
	ck_assert_uint_eq(bob->n_fds, 12);
	charge_refund(&bytes);
	charge_refund(&fds);
}
END_TEST

START_TEST(quota_below_use_refuses_until_it_fits)
{
	struct charge large = {0}, small = {0}, none = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, 100, 0, &large), 0);
	ck_assert_int_eq(tenant_charge(bob, 0, 10, 0, &small), 0);
	ck_assert_int_eq(tenant_set_quota(bob, 0, 50), 0);
	ck_assert_uint_eq(bob->at[0].used_bytes, 110);
	ck_assert_int_eq(tenant_charge(bob, 0, 1, 0, &none), TENANT_E_BYTES);
	charge_refund(&large);
	ck_assert_int_eq(tenant_charge(bob, 0, 41, 0, &none), TENANT_E_BYTES);
	ck_assert_int_eq(tenant_charge(bob, 0, 40, 0, &none), 0);
	charge_refund(&small);
	charge_refund(&none);
	ck_assert_int_eq(tenant_set_quota(bob, N_DEVICES, 50), -EINVAL);
}
END_TEST

START_TEST(sessions_are_counted_and_limited)
{
	ck_assert_int_eq(tenant_session_enter(alice), 0);
	ck_assert_int_eq(tenant_session_enter(alice), 0);
	ck_assert_int_eq(tenant_session_enter(alice), TENANT_E_SESSIONS);
	ck_assert_uint_eq(alice->n_sessions, 2);
	tenant_session_leave(alice);
	tenant_set_max_sessions(alice, 1);
	ck_assert_int_eq(tenant_session_enter(alice), TENANT_E_SESSIONS);
	tenant_set_max_sessions(alice, 0);
	ck_assert_int_eq(tenant_session_enter(alice), 0);
	tenant_session_leave(alice);
	tenant_session_leave(alice);
}
END_TEST

START_TEST(reload_changes_limits_and_keeps_counters)
{
	uint64_t id = alice->id;
	struct charge charge = {0}, more = {0};
	ck_assert_int_eq(tenant_charge(alice, 0, GIB, 4, &charge), 0);
	ck_assert_int_eq(tenant_session_enter(alice), 0);
	ck_assert_int_eq(tenant_set_quota(alice, 1, 5), 0);
	apply("tenants = ( { name = \"alice\"; uids = [5]; device_bytes = \"512MiB\"; },"
	      "{ name = \"carol\"; uids = [6]; } );");
	ck_assert_ptr_eq(tenant_find(table, "alice"), alice);
	ck_assert_uint_eq(alice->id, id);
	ck_assert_uint_eq(alice->at[0].used_bytes, GIB);
	ck_assert_uint_eq(alice->at[0].quota_bytes, GIB / 2);
	ck_assert_uint_eq(alice->at[1].quota_bytes, GIB / 2);
	ck_assert_uint_eq(alice->max_sessions, 0);
	ck_assert_uint_eq(alice->n_sessions, 1);
	ck_assert_int_eq(alice->priority, 0);
	ck_assert_int_eq(tenant_charge(alice, 0, 1, 0, &more), TENANT_E_BYTES);
	ck_assert_ptr_nonnull(tenant_find(table, "carol"));
	ck_assert_ptr_null(tenant_find(table, "bob"));
	charge_refund(&charge);
	tenant_session_leave(alice);
	ck_assert_ptr_eq(tenant_find(table, "alice"), alice);
}
END_TEST

START_TEST(vanished_tenant_stays_until_its_last_charge)
{
	struct charge charge = {0}, empty = {0};
	ck_assert_int_eq(tenant_session_enter(bob), 0);
	ck_assert_int_eq(tenant_charge(bob, 0, 100, 1, &charge), 0);
	/* Even a charge of nothing points at its tenant. */
	ck_assert_int_eq(tenant_charge(bob, 0, 0, 0, &empty), 0);
	apply("");
	ck_assert_ptr_eq(tenant_find(table, "bob"), bob);
	ck_assert(bob->is_leaving);
	tenant_session_leave(bob);
	ck_assert_ptr_eq(tenant_find(table, "bob"), bob);
	charge_refund(&charge);
	ck_assert_ptr_eq(tenant_find(table, "bob"), bob);
	charge_refund(&empty);
	ck_assert_ptr_null(tenant_find(table, "bob"));
	ck_assert_ptr_null(tenant_find(table, "alice"));
}
END_TEST

START_TEST(who_waits_stands_in_line_and_keeps_the_tenant)
{
	struct list first = LIST_INIT(first);
	struct list second = LIST_INIT(second);
	struct list other = LIST_INIT(other);
	ck_assert(tenant_queue_is_next(alice, 0, &second));
	tenant_queue_enter(alice, 0, &first);
	ck_assert(tenant_queue_is_next(alice, 0, &first));
	ck_assert(!tenant_queue_is_next(alice, 0, &second));
	ck_assert(tenant_queue_is_next(alice, 1, &other));
	tenant_queue_enter(alice, 0, &second);
	tenant_queue_enter(alice, 1, &other);
	ck_assert(!tenant_queue_is_next(alice, 0, &second));
	apply("");
	tenant_queue_leave(alice, &first);
	tenant_queue_leave(alice, &first);
	ck_assert(tenant_queue_is_next(alice, 0, &second));
	tenant_queue_leave(alice, &second);
	ck_assert_ptr_eq(tenant_find(table, "alice"), alice);
	tenant_queue_leave(alice, &other);
	ck_assert_ptr_null(tenant_find(table, "alice"));
}
END_TEST

START_TEST(vanished_tenant_may_come_back)
{
	struct charge charge = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, 100, 1, &charge), 0);
	apply("");
	apply(two_rules);
	ck_assert_ptr_eq(tenant_find(table, "bob"), bob);
	ck_assert(!bob->is_leaving);
	charge_refund(&charge);
	ck_assert_ptr_eq(tenant_find(table, "bob"), bob);
}
END_TEST

START_TEST(cache_survives_reloads_without_limits)
{
	struct tenant *cache = tenant_table_cache(table);
	apply("tenants = ( { name = \"default\"; device_bytes = \"1GiB\"; } );");
	ck_assert_ptr_eq(tenant_table_cache(table), cache);
	ck_assert(!cache->is_leaving);
	ck_assert_uint_eq(cache->at[0].quota_bytes, 0);
	ck_assert_uint_eq(tenant_find(table, CONFIG_DEFAULT_TENANT)->at[1].quota_bytes, GIB);
}
END_TEST

START_TEST_WITH(table_asserts_that_charges_are_back, .signal = SIGABRT)
{
	struct charge charge = {0};
	ck_assert_int_eq(tenant_charge(bob, 0, 1, 0, &charge), 0);
	tenant_table_free(ptr_steal(table));
}
END_TEST

START_TEST_WITH(table_asserts_that_sessions_left, .signal = SIGABRT)
{
	ck_assert_int_eq(tenant_session_enter(bob), 0);
	tenant_table_free(ptr_steal(table));
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subordinate uids, which a user's containers have: they are his, with his realm, his tenant and his
 * limits, and make nobody an admin. As root, which then becomes somebody else, with an /etc/subuid of
 * the test's own.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/fuse_file.h"
#include "tests/harness/world.h"

#define ALICE 12345u
#define BOB 12346u
/* The first of Alice's 1,000 subordinate uids. */
#define HERS 700000u
#define OF_ALICE "12345:700000:1000\n"
#define CONFIG "pool = (); drain_ms = 100;"
#define NOBODY 65534u

static char database[256]; /* what is at /etc/subuid */

static void write_database(const char *text)
{
	FILE *file = fopen(database, "we");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	ck_assert_int_eq(fclose(file), 0);
}

static bool skip(const char *what)
{
	printf("SKIP: %s: %s\n", what, strerror(errno));
	return false;
}

/* Mount @path there for this process, and what it starts from now on. */
static bool mount_at_etc(const char *path)
{
	return mount(path, "/etc/subuid", NULL, MS_BIND, NULL) == 0 || skip("/etc/subuid");
}

static bool make_database(const char *text)
{
	const char *folder = getenv("TMPDIR");
	if (!harness_is_root()) {
		return false;
	}
	snprintf(database, sizeof(database), "%s/subuid.%d", folder ? folder : "/tmp",
	         (int)getpid());
	write_database(text);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		return skip("no mount namespace");
	}
	return true;
}

static bool begin(const char *text, const char *config)
{
	if (!make_database(text) || !mount_at_etc(database)) {
		return false;
	}
	world_begin(.config = config);
	return true;
}

static uint64_t say_hello(int connection)
{
	return connection_send(
		connection, REQUEST(HELLO, Hello, hello, .version = GLAKE_WIRE_VERSION), NULL, 0);
}

static int connect_as(uid_t uid)
{
	ck_assert_int_eq(seteuid(uid), 0);
	int connection = connection_open(&harness);
	ck_assert_int_eq(seteuid(0), 0);
	return connection;
}

/* The answer to Hello; connection_free() it. */
static Glake__Wire__Answer *greet_as(uid_t uid, int *connection_out)
{
	*connection_out = connect_as(uid);
	return connection_receive_for(*connection_out, say_hello(*connection_out), NULL);
}

static void expect(uid_t uid, const char *realm, const char *tenant)
{
	int connection;
	Glake__Wire__Answer *answer = greet_as(uid, &connection);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_msg(strcmp(answer->hello->realm, realm) == 0, "uid %u: %s", (unsigned)uid,
	              answer->hello->realm);
	ck_assert_str_eq(answer->hello->tenant, tenant);
	ck_assert(!answer->hello->admin);
	connection_free(answer);
	connection_close(&connection);
}

START_TEST(a_subordinate_uid_has_its_owners_realm_and_tenant)
{
	if (!begin(OF_ALICE, CONFIG "tenants = ( { name = \"paying\"; uids = [12345]; } );")) {
		return;
	}
	expect(ALICE, "uid:12345", "paying");
	expect(HERS, "uid:12345", "paying");
	expect(HERS + 999, "uid:12345", "paying");
	expect(HERS + 1000, "uid:701000", "default");
}
END_TEST

/* A configuration may still name one by itself. */
START_TEST(a_subordinate_uid_may_have_a_rule_of_its_own)
{
	if (!begin(OF_ALICE, CONFIG "realms = ( { name = \"box\"; uids = [700001]; }, "
	                            "{ name = \"home\"; uids = [12345]; } );")) {
		return;
	}
	expect(ALICE, "home", "default");
	expect(HERS, "home", "default");
	expect(HERS + 1, "box", "default");
}
END_TEST

START_TEST(subordinate_uids_share_their_owners_sessions)
{
	enum { SHARE = 3 };
	int connections[SHARE + 1];
	if (!begin(OF_ALICE, CONFIG "max_sessions_per_user = 3;")) {
		return;
	}
	for (unsigned i = 0; i <= SHARE; i++) {
		Glake__Wire__Answer *answer = greet_as(i ? HERS + i : ALICE, &connections[i]);
		ck_assert_int_eq(answer->status, i < SHARE ? GLAKE__WIRE__STATUS__OK
		                                           : GLAKE__WIRE__STATUS__OVER_QUOTA);
		connection_free(answer);
	}
	expect(BOB, "uid:12346", "default");
	for (unsigned i = 0; i <= SHARE; i++) {
		connection_close(&connections[i]);
	}
}
END_TEST

/* Neither root's are root, nor an admin's an admin; and both stay what they are. */
START_TEST(a_subordinate_uid_is_no_admin)
{
	if (!begin("root:700000:1000\n0:800000:1000\n", CONFIG)) {
		return;
	}
	expect(700000, "uid:700000", "default");
	expect(800000, "uid:800000", "default");
}
END_TEST

START_TEST(in_doubt_a_uid_is_its_own)
{
	if (!begin(OF_ALICE "12346:700500:1000\n"   /* of both */
	                    "999:800000:1000\n"     /* of the system */
	                    "12346:65534:1\n"       /* an account */
	                    "nosuchuser:900000:9\n" /* of nobody, and after it */
	                    "12346:900000:9\n"
	                    "nonsense\n",
	           CONFIG)) {
		return;
	}
	expect(HERS, "uid:12345", "default");
	expect(HERS + 500, "uid:700500", "default");
	harness_wait_log(&harness, "uid 700500 is subordinate to 2 users");
	expect(HERS + 1000, "uid:12346", "default");
	expect(800000, "uid:800000", "default");
	expect(NOBODY, "uid:65534", "default");
	expect(900000, "uid:900000", "default");
}
END_TEST

START_TEST(a_reload_reads_it_again)
{
	if (!begin(OF_ALICE, CONFIG)) {
		return;
	}
	expect(HERS, "uid:12345", "default");
	expect(HERS + 2000, "uid:702000", "default");
	write_database("12346:700000:9000\n");
	/* Known for a while. */
	expect(HERS, "uid:12345", "default");
	harness_reload(&harness, CONFIG);
	expect(HERS, "uid:12346", "default");
	expect(HERS + 2000, "uid:12346", "default");
}
END_TEST

/* One user's many, more than may wait at a time. By glaked's clock no line stands still, however busy the machine is. */
START_TEST(many_uids_at_once_are_served)
{
	enum { N = 600 };
	static int connections[N];
	static uint64_t ids[N];
	if (!make_database("12345:700000:65536\n") || !mount_at_etc(database)) {
		return;
	}
	world_begin(.config = "pool = (); drain_ms = 1; max_sessions_per_user = 1000;",
	            .slowness = 100);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = connect_as(HERS + i);
		ids[i] = say_hello(connections[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		Glake__Wire__Answer *answer = connection_receive_for(connections[i], ids[i], NULL);
		ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
		ck_assert_str_eq(answer->hello->realm, "uid:12345");
		connection_free(answer);
		connection_close(&connections[i]);
	}
}
END_TEST

/* A database that does not answer, of a network as it were, is waited for by strangers alone. */
START_TEST(a_database_that_hangs_stops_nobody_else)
{
	static const struct fuse_file_faults faults = {.endless_from = 1};
	struct fuse_file file;
	char folder[300];
	if (!make_database(OF_ALICE)) {
		return;
	}
	snprintf(folder, sizeof(folder), "%s.fuse", database);
	if (!fuse_file_start(&file, folder, database, &faults)) {
		return;
	}
	if (!mount_at_etc(file.path)) {
		fuse_file_stop(&file);
		return;
	}
	world_begin(.config = CONFIG, .speed = 5);
	int other = connection_hello(&harness);
	int late = connect_as(HERS);
	say_hello(late);
	for (int i = 0; i < 10; i++) {
		int connection = connection_hello(&harness);
		connection_ping(connection);
		connection_close(&connection);
		connection_ping(other);
	}
	/* Who waits for longer than clients do is let go. */
	connection_expect_closed(late);
	connection_close(&late);
	harness_wait_log(&harness, "the owner of its subordinate uid");
	int patient = connect_as(HERS + 1);
	uint64_t id = say_hello(patient);
	fuse_file_stop(&file);
	ck_assert_int_eq(connection_status_of(patient, id), GLAKE__WIRE__STATUS__OK);
	connection_close(&patient);
	connection_close(&other);
	rmdir(folder);
}
END_TEST

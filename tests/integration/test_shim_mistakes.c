/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of readers is wrong, and ends a program that was sealed without asking (tests/shim/auto.c). That is remembered: it
 * happens once.
 */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/readers.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

/* The table says that kernels which write only read. */
static void spoil_table(void)
{
	readers_change("a-wrong", "function write\n", "function write\n  reads 0\n");
}

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x1GiB",
	            .is_activated = true, .keeps_fds = true);
	readers_begin();
	spoil_table();
}

BEGIN_EACH(begin)

static void start_as(struct run *run, const char *program, const char *scenario)
{
	run_start(run, "GLAKE_DEDUP=auto", program, scenario, NULL);
}

static const char *program(void)
{
	return run_in_build("tests/shim/auto");
}

static void run_as(const char *name, const char *scenario)
{
	struct run run;
	start_as(&run, name, scenario);
	run_end_well(&run);
}

static void fault(void)
{
	struct run run;
	start_as(&run, program(), "faults");
	run_end_well(&run);
	run_expect(&run, "not sealed by itself again");
	run_expect(&run, "write at 0x");
}

struct found {
	unsigned n;
	struct glake_mistake_row row;
	char program[64];
	char executable[256];
	char kernels[512];
};

static int find(void *user, const struct glake_mistake_row *row)
{
	struct found *found = user;
	found->n++;
	found->row = *row;
	snprintf(found->program, sizeof(found->program), "%s", row->program);
	snprintf(found->executable, sizeof(found->executable), "%s", row->executable);
	snprintf(found->kernels, sizeof(found->kernels), "%s", row->kernels);
	return 0;
}

static struct found list(struct glake_session *session)
{
	struct found found = {.n = 0};
	assert_ok(glake_list_mistakes(session, find, &found));
	return found;
}

struct why {
	pid_t pid;
	char text[320];
};

static int see_why(void *user, const struct glake_session_row *row)
{
	struct why *why = user;
	if ((pid_t)row->pid == why->pid) {
		snprintf(why->text, sizeof(why->text), "%s", row->refused_why);
	}
	return 0;
}

START_TEST(who_has_faulted_is_not_sealed_again)
{
	struct run run;
	fault();
	struct found found = list(eye);
	ck_assert_uint_eq(found.n, 1);
	ck_assert_str_eq(found.program, "auto");
	ck_assert(strncmp(found.executable, "build-id ", 9) == 0);
	ck_assert_ptr_nonnull(strstr(found.kernels, "write at 0x"));
	ck_assert_uint_eq(found.row.n_faults, 1);
	ck_assert_uint_ge(found.row.n_words, 1);
	start_as(&run, program(), "untold");
	run_read(&run, "started");
	run_continue(&run);
	struct why why = {.pid = run.pid};
	while (!strstr(why.text, "--forgive=1")) {
		usleep(10000);
		assert_ok(glake_list_sessions(eye, see_why, &why));
	}
	run_end_well(&run);
}
END_TEST

START_TEST(it_is_forgiven)
{
	fault();
	assert_ok(unlink(world_path("readers.d/a-wrong.readers")));
	run_as(program(), "unsealed");
	assert_fails(GLAKE_E_NOT_FOUND, "there is no mistake 2", glake_forgive(eye, 2));
	assert_ok(glake_forgive(eye, 1));
	ck_assert_uint_eq(list(eye).n, 0);
	run_as(program(), "plain");
	assert_ok(glake_forgive(eye, 0));
}
END_TEST

START_TEST(its_next_fault_is_the_same_mistake)
{
	fault();
	assert_ok(glake_forgive(eye, 0));
	fault();
	struct found found = list(eye);
	ck_assert_uint_eq(found.n, 1);
	ck_assert_uint_eq(found.row.id, 2);
}
END_TEST

/* Another program of the same user has the same table. It has another reader, which was no suspect. */
START_TEST(its_words_are_no_readers)
{
	const char *other = world_path("other");
	assert_ok(symlink(program(), other));
	fault();
	run_as(other, "doubted");
	run_as(other, "unsealed");
	ck_assert_uint_eq(list(eye).n, 1);
}
END_TEST

/* A process of the same program, which runs already, is told. */
START_TEST(who_runs_is_told)
{
	struct run run;
	start_as(&run, program(), "told");
	run_read(&run, "sealed");
	fault();
	run_finish(&run);
}
END_TEST

START_TEST(it_is_remembered_over_a_restart)
{
	fault();
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	harness_kill(&harness);
	world_restart();
	struct found found = list(eye);
	ck_assert_uint_eq(found.n, 1);
	ck_assert_uint_eq(found.row.id, 1);
	ck_assert_uint_eq(found.row.n_faults, 1);
	ck_assert_uint_ge(found.row.n_words, 1);
	run_as(program(), "unsealed");
	assert_ok(glake_forgive(eye, 1));
	harness_kill(&harness);
	world_restart();
	ck_assert_uint_eq(list(eye).n, 0);
}
END_TEST

/* ---- what clients say of themselves ---- */

static char *labels[2]; /* program and executable */

static void ask(int socket, Glake__Wire__Request *request)
{
	ck_assert_int_eq(connection_status(socket, request, NULL, 0), GLAKE__WIRE__STATUS__OK);
}

static void forge(uint64_t n)
{
	Glake__Wire__FaultSuspect suspect = GLAKE__WIRE__FAULT_SUSPECT__INIT;
	Glake__Wire__FaultSuspect *suspects[] = {&suspect};
	char name[64];
	suspect.kernel = (char *)"read";
	suspect.word = n + 1;
	for (uint64_t i = 0; i < n; i++) {
		int socket = connection_open(&harness);
		snprintf(name, sizeof(name), i == 0 ? "%s" : "%s-%d", labels[0], (int)i);
		ask(socket, REQUEST(HELLO, Hello, hello, .version = GLAKE_WIRE_VERSION,
		                    .program = name, .executable = labels[1]));
		for (unsigned again = 0; again < 3; again++) {
			ask(socket, REQUEST(FAULT_REPORT, FaultReport, fault_report, .error = 700,
			                    .name = (char *)"x", .is_alone = true,
			                    .suspects = suspects, .n_suspects = 1));
		}
		connection_close(&socket);
	}
}

static void lie(void *user)
{
	uid_t uid = *(uid_t *)user;
	ck_assert_int_eq(setresuid(uid, uid, uid), 0);
	forge(40);
	struct glake_session *session = world_connect_blind();
	/* A user has at most 32, and sees no other's. */
	ck_assert_uint_eq(list(session).n, 32);
	ck_assert_uint_eq(list(session).row.uid, uid);
	ck_assert_uint_eq(list(session).row.n_faults, 1);
	world_disconnect(session);
}

START_TEST(who_lies_harms_himself_alone)
{
	uid_t uid = 1000;
	if (getuid() != 0) {
		return;
	}
	fault();
	const struct found found = list(eye);
	char executable[256];
	snprintf(executable, sizeof(executable), "%s", found.executable);
	labels[0] = (char *)"auto";
	labels[1] = executable;
	assert_ok(glake_forgive(eye, 0));
	assert_ok(unlink(world_path("readers.d/a-wrong.readers")));
	assert_ok(chmod(harness.socket_path, 0666));
	world_join(world_client(lie, &uid));
	ck_assert_uint_eq(list(eye).n, 32);
	run_as(program(), "plain");
	assert_ok(glake_forgive(eye, 0));
	ck_assert_uint_eq(list(eye).n, 0);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that are lowered while programs sleep: who sets one is told, nothing is lost, and what cannot wake says why. */
#include "tests/harness/words.h"

#define BASE WORLD_CONFIG "warm_bytes = \"0\"; wake_wait_ms = 200; "
#define TENANT(limits) "tenants = ({ name = \"default\"; " limits " });"
#define BYTES (12 * MIB)

static void begin(void)
{
	world_begin(.config = BASE, .devices = "1x256MiB", .is_activated = true, .keeps_fds = true);
	words_open_driver();
}
BEGIN_EACH(begin)

struct program {
	struct glake_session *session;
	glake_ptr private; /* 8 MiB */
	glake_ptr sealed;  /* 4 MiB */
};

static struct program begin_program(void)
{
	struct program program = {.session = world_connect()};
	program.private = words_alloc(program.session, 8 * MIB, 7);
	program.sealed = words_alloc(program.session, 4 * MIB, 5);
	words_seal(program.sealed, 4 * MIB);
	return program;
}

static void end_program(const struct program *program)
{
	words_check(program->private, 8 * MIB, 7);
	words_check(program->sealed, 4 * MIB, 5);
	assert_ok(glake_free(program->session, program->private));
	assert_ok(glake_free(program->session, program->sealed));
	world_disconnect(program->session);
}

struct seen {
	unsigned n;
	char text[512];
};

static int note_event(void *user, const struct glake_event_row *row)
{
	struct seen *seen = user;
	if (strcmp(row->kind, "limit_too_small") == 0) {
		seen->n++;
		snprintf(seen->text, sizeof(seen->text), "%s", row->text);
	}
	return 0;
}

static unsigned n_told(void)
{
	struct seen seen = {.n = 0};
	assert_ok(glake_list_events(eye, note_event, &seen));
	ck_assert(seen.n == 0 || strstr(seen.text, "needs 12582912 bytes on device 0"));
	return seen.n;
}

static void ck_cannot_wake(const struct program *program)
{
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default", glake_wake(program->session, NULL));
	ck_assert(glake_is_asleep(program->session));
}

/* Awake programs are of no concern, nor is a limit that is none, is enough, or is higher than before. */
START_TEST(a_quota_that_a_sleeper_could_not_wake_with_is_refused)
{
	const struct program program = begin_program();
	assert_ok(glake_set_quota(eye, "default", 0, BYTES - 1));
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	words_fall_asleep(program.session);
	assert_fails(GLAKE_E_BUSY, "sleeps and needs 12582912 bytes",
	             glake_set_quota(eye, "default", 0, BYTES - 1));
	ck_assert_ptr_nonnull(strstr(glake_error(), "pid"));
	assert_ok(glake_set_quota(eye, "default", 0, BYTES));
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	ck_assert_uint_eq(n_told(), 0);
	assert_ok(glake_wake(program.session, NULL));
	end_program(&program);
}
END_TEST

START_TEST(a_quota_that_is_forced_keeps_it_asleep_until_it_is_raised)
{
	const struct program program = begin_program();
	words_fall_asleep(program.session);
	assert_ok(glake_force_quota(eye, "default", 0, 4 * MIB));
	ck_assert_uint_eq(n_told(), 1);
	ck_cannot_wake(&program);
	assert_ok(glake_set_quota(eye, "default", 0, 6 * MIB));
	ck_cannot_wake(&program);
	assert_ok(glake_set_quota(eye, "default", 0, BYTES));
	assert_ok(glake_wake(program.session, NULL));
	end_program(&program);
}
END_TEST

/* Three that fit one by one are no reason; of many that do not fit, some are named. */
START_TEST(sleepers_are_looked_at_one_by_one)
{
	struct program programs[3];
	for (int i = 0; i < 3; i++) {
		programs[i] = begin_program();
		words_fall_asleep(programs[i].session);
	}
	assert_fails(GLAKE_E_BUSY, "; and 1 more", glake_set_quota(eye, "default", 0, BYTES - 1));
	assert_ok(glake_set_quota(eye, "default", 0, BYTES));
	for (int i = 0; i < 3; i++) {
		assert_ok(glake_wake(programs[i].session, NULL));
		end_program(&programs[i]);
	}
}
END_TEST

/* Limits of a file that is read again hold at once, and an operator is told. */
START_TEST(a_configuration_that_is_read_again_is_obeyed_and_an_operator_told)
{
	const struct program program = begin_program();
	words_fall_asleep(program.session);
	harness_reload(&harness, BASE TENANT("device_bytes = \"12MiB\";"));
	ck_assert_uint_eq(n_told(), 0);
	harness_reload(&harness, BASE TENANT("device_bytes = \"8MiB\";"));
	ck_assert_uint_eq(n_told(), 1);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "cannot wake: it needs 12582912"), 1);
	ck_cannot_wake(&program);
	harness_reload(&harness, BASE);
	ck_assert_uint_eq(n_told(), 1);
	assert_ok(glake_wake(program.session, NULL));
	end_program(&program);
}
END_TEST

/* ---- host memory ------------------------------------------------------------------------------ */

/* Who sleeps has it, and wakes; who does not stays awake. */
START_TEST(less_host_memory_takes_nothing_away_and_lets_nobody_in)
{
	const struct program one = begin_program();
	const struct program two = begin_program();
	words_write(two.private, 8 * MIB, 9);
	words_fall_asleep(one.session);
	const struct books before = world_books();
	harness_reload(&harness, BASE TENANT("host_bytes = \"4MiB\";"));
	world_wait_books(&before);
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default", glake_sleep(two.session, 1000, NULL));
	ck_assert(!glake_is_asleep(two.session));
	assert_ok(glake_wake(one.session, NULL));
	words_check(one.private, 8 * MIB, 7);
	harness_reload(&harness, BASE);
	words_fall_asleep(two.session);
	assert_ok(glake_wake(two.session, NULL));
	words_check(two.private, 8 * MIB, 9);
	words_write(two.private, 8 * MIB, 7);
	end_program(&one);
	end_program(&two);
}
END_TEST

/* The next glaked may give out less than sleepers have. */
START_TEST(a_glaked_with_less_host_memory_has_the_sleepers)
{
	const struct program one = begin_program();
	words_fall_asleep(one.session);
	harness_kill(&harness);
	world_write_text("glaked.conf", BASE "host_bytes = \"4MiB\";");
	harness_restart(&harness);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "lost:"), 0);
	assert_ok(glake_wake(one.session, NULL));
	end_program(&one);
}
END_TEST

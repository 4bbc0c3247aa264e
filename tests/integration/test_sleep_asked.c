/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that no shim looks after, and that glaked may ask to sleep: their program follows in glake_dispatch(). */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/harness/connection.h"
#include "tests/harness/words.h"

#define STATUS(name) GLAKE__WIRE__STATUS__##name
#define BYTES (24 * MIB)

static int asker;

static void begin_with(const char *config, unsigned speed)
{
	world_begin(.config = config, .devices = "1x64MiB", .speed = speed);
	words_open_driver();
	asker = connection_hello(&harness);
}

static void begin(void)
{
	begin_with(WORLD_CONFIG "warm_bytes = 0; wake_wait_ms = 300;", 1);
}

/* ---- a program -------------------------------------------------------------------------------- */

struct program {
	struct glake_session *session;
	uint64_t id;
	glake_ptr ptr;
	pthread_t thread;
	atomic_bool ends;
};

static void start_with(struct program *program, int may_be_asked)
{
	const struct glake_connect_options options = {.size = sizeof(options),
	                                              .sleep_when_asked = may_be_asked};
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_connect(&options, &program->session));
	assert_ok(glake_session_info(program->session, &info));
	program->id = info.session;
	program->ptr = words_alloc(program->session, BYTES, 7);
}

static void start(struct program *program)
{
	start_with(program, 1);
}

/* As a server does that has no request. */
static void *idle(void *user)
{
	struct program *program = user;
	while (!program->ends) {
		struct pollfd socket = {.fd = glake_fd(program->session), .events = POLLIN};
		poll(&socket, 1, 20);
		ck_assert_int_ge(glake_dispatch(program->session), 0);
	}
	return NULL;
}

static void begin_idle(struct program *program)
{
	program->ends = false;
	ck_assert_int_eq(pthread_create(&program->thread, NULL, idle, program), 0);
}

static void end_idle(struct program *program)
{
	program->ends = true;
	ck_assert_int_eq(pthread_join(program->thread, NULL), 0);
}

static void end(struct program *program)
{
	words_check(program->ptr, BYTES, 7);
	assert_ok(glake_free(program->session, program->ptr));
	world_disconnect(program->session);
}

/* ---- who asks --------------------------------------------------------------------------------- */

static uint64_t send_ask(const struct program *program, bool wakes)
{
	return connection_send(asker,
	                       REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                               .session = program->id, .wakes = wakes),
	                       NULL, 0);
}

static void ck_answer(uint64_t id, Glake__Wire__Status status, const char *error)
{
	Glake__Wire__Answer *answer = connection_receive_for(asker, id, NULL);
	ck_assert_msg(answer->status == status, "%d %s", (int)answer->status, answer->error);
	ck_assert_ptr_nonnull(strstr(answer->error, error));
	connection_free(answer);
}

static void ck_done(uint64_t id, bool is_asleep)
{
	Glake__Wire__Answer *answer = connection_receive_for(asker, id, NULL);
	ck_assert_msg(answer->status == STATUS(OK), "%d %s", (int)answer->status, answer->error);
	ck_assert_int_eq(answer->session_sleep->is_asleep, is_asleep);
	ck_assert_uint_eq(answer->session_sleep->private_bytes, BYTES);
	connection_free(answer);
}

START_TEST(it_sleeps_and_wakes_when_asked)
{
	struct program program;
	begin();
	start(&program);
	begin_idle(&program);
	for (int i = 0; i < 3; i++) {
		ck_done(send_ask(&program, false), true);
		ck_assert(glake_is_asleep(program.session));
		ck_assert_uint_eq(words_device_bytes(), 0);
		ck_done(send_ask(&program, true), false);
		ck_assert(!glake_is_asleep(program.session));
		words_check(program.ptr, BYTES, 7);
	}
	ck_done(send_ask(&program, false), true);
	end_idle(&program);
	assert_ok(glake_wake(program.session, NULL));
	end(&program);
}
END_TEST

/* Another call may be one in the middle of work. */
START_TEST(no_other_call_puts_it_to_sleep)
{
	struct program program;
	glake_ptr more;
	begin();
	start(&program);
	uint64_t id = send_ask(&program, false);
	connection_ping(asker);
	assert_ok(glake_ping(program.session));
	assert_ok(glake_alloc(program.session, 0, 4 * MIB, 0, &more));
	assert_ok(glake_free(program.session, more));
	ck_assert(!glake_is_asleep(program.session));
	words_check(program.ptr, BYTES, 7);
	ck_assert_int_ge(glake_dispatch(program.session), 0);
	ck_assert(glake_is_asleep(program.session));
	ck_done(id, true);
	ck_assert_int_ge(glake_dispatch(program.session), 0);
	ck_assert(glake_is_asleep(program.session));
	assert_ok(glake_wake(program.session, NULL));
	end(&program);
}
END_TEST

START_TEST(who_has_not_allowed_it_is_not_asked)
{
	struct program program;
	begin();
	start_with(&program, 0);
	begin_idle(&program);
	ck_answer(send_ask(&program, false), STATUS(BAD_REQUEST), "not under glake run");
	ck_answer(send_ask(&program, true), STATUS(BAD_REQUEST), "not under glake run");
	end_idle(&program);
	end(&program);
}
END_TEST

START_TEST(to_sleep_is_not_to_seal)
{
	struct program program;
	begin();
	start(&program);
	begin_idle(&program);
	uint64_t id = connection_send(
		asker, REQUEST(SESSION_SEAL, SessionSeal, session_seal, .session = program.id),
		NULL, 0);
	ck_answer(id, STATUS(BAD_REQUEST), "not under glake run");
	end_idle(&program);
	end(&program);
}
END_TEST

START_TEST(who_does_not_dispatch_is_busy)
{
	struct program program;
	begin_with(WORLD_CONFIG "warm_bytes = 0;", 10);
	start(&program);
	ck_answer(send_ask(&program, false), STATUS(BUSY), "does not answer");
	ck_assert(!glake_is_asleep(program.session));
	end(&program);
}
END_TEST

/* Who asked is told why. It sleeps on, and nothing is lost. */
START_TEST(a_wake_without_room_is_refused)
{
	struct program program;
	uint64_t ids[2];
	begin();
	start(&program);
	begin_idle(&program);
	ck_done(send_ask(&program, false), true);
	int other = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(other, 0, 20 * MIB, 2, ids, NULL), STATUS(OK));
	ck_answer(send_ask(&program, true), STATUS(NO_DEVICE_MEMORY), "");
	ck_assert(glake_is_asleep(program.session));
	connection_close(&other);
	ck_done(send_ask(&program, true), false);
	end_idle(&program);
	end(&program);
}
END_TEST

START_TEST(who_needs_room_gets_it_from_one_that_may_be_asked)
{
	struct program program;
	uint64_t ids[2];
	begin_with(WORLD_CONFIG "warm_bytes = 0; min_awake_ms = 0; "
	                        "tenants = ({ name = \"default\"; on_pressure = \"sleep\"; });",
	           1);
	start(&program);
	begin_idle(&program);
	int other = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(other, 0, 20 * MIB, 2, ids, NULL), STATUS(OK));
	/* The memory is free before the program's call has returned. */
	end_idle(&program);
	ck_assert(glake_is_asleep(program.session));
	connection_close(&other);
	assert_ok(glake_wake(program.session, NULL));
	end(&program);
}
END_TEST

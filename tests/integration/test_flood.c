/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user with hundreds of sessions, all of which send what costs most: another user's requests are
 * answered, and the service manager hears that glaked lives.
 */
#include <sys/resource.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/harness/connection.h"
#include "tests/harness/floods.h"
#include "tests/harness/world.h"

static const struct harness_options quiet = {
	.config = WORLD_CONFIG "max_sessions = 10000;",
	.has_witness = true,
};

#define N_SESSIONS 300
#define FLOOD_UID 4242
/* Of processor time: on a busy machine glaked may get none for a while. */
#define WATCHDOG_MS 4000u

typedef size_t (*pack_fn)(uint8_t *bytes);
static const pack_fn floods[] = {pack_crowd, pack_names};

struct flood {
	pack_fn pack;
	int told; /* gets a byte when all sessions are there, and when all of them are full for the first time */
	int go; /* has a byte when they are to be filled */
};

static int from_flood[2];
static int to_flood[2];

static void await_flood(void)
{
	char byte;
	ck_assert_int_eq(read(from_flood[0], &byte, 1), 1);
}

/* Returns whether the session is still open. */
static bool send_and_read(int connection, const uint8_t *bytes, size_t n_bytes)
{
	static uint8_t answer[GLAKE_MAX_PACKET_BYTES];
	ssize_t n;
	while ((n = recv(connection, answer, sizeof(answer), MSG_DONTWAIT)) > 0) {
	}
	if (n == 0 || errno != EAGAIN) {
		return false;
	}
	while (send(connection, bytes, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
	}
	return errno == EAGAIN;
}

static void flood_for_ever(struct harness *h, void *user)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	const struct flood *flood = user;
	int connections[N_SESSIONS];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Or as it is, if that is lower already: then only root may. */
	setpriority(PRIO_PROCESS, 0, 10);
	size_t n_bytes = flood->pack(bytes);
	char byte;
	for (unsigned i = 0; i < N_SESSIONS; i++) {
		connections[i] = connection_hello(h);
	}
	ck_assert_int_eq(write(flood->told, "", 1), 1);
	ck_assert_int_eq(read(flood->go, &byte, 1), 1);
	for (unsigned n = 0;; n++) {
		for (unsigned i = 0; i < N_SESSIONS; i++) {
			if (!send_and_read(connections[i], bytes, n_bytes)) {
				connection_close(&connections[i]);
				connections[i] = connection_open(h);
			}
		}
		if (n == 0) {
			ck_assert_int_eq(write(flood->told, "", 1), 1);
		}
	}
}

/* All of its sessions are there. It begins with flood_begin(). */
static pid_t start_flood(pack_fn pack)
{
	fflush(NULL);
	ck_assert_int_eq(pipe2(from_flood, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(to_flood, O_CLOEXEC), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct flood flood = {.pack = pack, .told = from_flood[1], .go = to_flood[0]};
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		harness_as(&harness, FLOOD_UID, FLOOD_UID, flood_for_ever, &flood);
		_exit(1);
	}
	close(from_flood[1]);
	await_flood();
	return pid;
}

/* Each of its sessions has as many requests on their way as there can be. */
static void let_it_flood(void)
{
	ck_assert_int_eq(write(to_flood[1], "", 1), 1);
	await_flood();
}

static void end_flood(pid_t pid)
{
	int status;
	ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
	world_kill(pid);
}

/* How many requests had come when glaked answered this one. */
static uint64_t n_requests_at(int connection, uint64_t id)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection, id, NULL);
	uint64_t n = 0;
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	for (size_t i = 0; i < answer->stats_get->n_metrics; i++) {
		if (strcmp(answer->stats_get->metrics[i]->name, "requests_total") == 0) {
			n = answer->stats_get->metrics[i]->value;
		}
	}
	connection_free(answer);
	return n;
}

/*
 * What came when all sessions of the flood were full is answered before each of these has had a turn. With @is_new, in a
 * session that comes then.
 */
static void expect_answer_in_flood(pack_fn pack, bool is_new)
{
	world_begin_as(&quiet);
	pid_t flood = start_flood(pack);
	const uint64_t n_before = world_metric("requests_total");
	uint64_t hello = 0;
	harness_signal(&harness, SIGSTOP);
	let_it_flood();
	int connection = is_new ? connection_open(&harness) : witness;
	if (is_new) {
		hello = connection_send_hello(connection);
	}
	uint64_t asked = connection_send(connection, REQUEST(STATS_GET, StatsGet, stats_get), NULL,
	                                 0);
	harness_signal(&harness, SIGCONT);
	if (is_new) {
		ck_assert_int_eq(connection_status_of(connection, hello), GLAKE__WIRE__STATUS__OK);
	}
	ck_assert_uint_lt(n_requests_at(connection, asked) - n_before, N_SESSIONS);
	while (world_metric("requests_total") - n_before < 2 * N_SESSIONS) {
		harness_sleep_ms(1);
	}
	end_flood(flood);
}

START_TEST_WITH(a_flood_does_not_hold_up_another_user, .n = n_elements(floods))
{
	if (harness_is_root()) {
		expect_answer_in_flood(floods[_i], false);
	}
}
END_TEST

START_TEST_WITH(another_user_gets_in, .n = n_elements(floods))
{
	if (harness_is_root()) {
		expect_answer_in_flood(floods[_i], true);
	}
}
END_TEST

static uint64_t glaked_worked_ms(void)
{
	clockid_t clock;
	struct timespec worked;
	ck_assert_int_eq(clock_getcpuclockid(harness.pid, &clock), 0);
	ck_assert_int_eq(clock_gettime(clock, &worked), 0);
	return (uint64_t)worked.tv_sec * 1000 + (uint64_t)worked.tv_nsec / 1000000;
}

START_TEST_WITH(the_watchdog_is_fed_in_a_flood, .n = n_elements(floods))
{
	static const char *const env[] = {"WATCHDOG_USEC=1000000", NULL};
	struct harness_options options = quiet;
	if (!harness_is_root()) {
		return;
	}
	options.env = env;
	world_begin_as(&options);
	pid_t flood = start_flood(floods[_i]);
	let_it_flood();
	harness_wait_notified(&harness, "\nWATCHDOG=1\n");
	for (unsigned i = 0; i < 2; i++) {
		uint64_t before_ms = glaked_worked_ms();
		harness_wait_notified(&harness, "\nWATCHDOG=1\n");
		ck_assert_uint_lt(glaked_worked_ms() - before_ms, WATCHDOG_MS);
	}
	end_flood(flood);
}
END_TEST

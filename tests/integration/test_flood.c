/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user with hundreds of sessions, all of which send what costs most: another user's requests are
 * answered, and the service manager hears that glaked lives.
 */
#include <sys/resource.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
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
#define N_REQUESTS 100
#define N_ARRIVALS 20
#define FLOOD_UID 4242
#define WATCHDOG_MS 4000u
/*
 * Another user's requests cost glaked some milliseconds each, in which the flood has its turns of one; if each of the flood's
 * sessions came first, they would cost 60.
 */
#define MOST_US 25000u

typedef size_t (*pack_fn)(uint8_t *bytes);
static const pack_fn floods[] = {pack_crowd, pack_names};

struct flood {
	pack_fn pack;
	int ready; /* gets a byte when all sessions are there */
};

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
	for (unsigned i = 0; i < N_SESSIONS; i++) {
		connections[i] = connection_hello(h);
	}
	ck_assert_int_eq(write(flood->ready, "", 1), 1);
	for (;;) {
		for (unsigned i = 0; i < N_SESSIONS; i++) {
			if (!send_and_read(connections[i], bytes, n_bytes)) {
				connection_close(&connections[i]);
				connections[i] = connection_open(h);
			}
		}
	}
}

/* Once all of its sessions are there. */
static pid_t start_flood(pack_fn pack)
{
	int ends[2];
	char byte;
	fflush(NULL);
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct flood flood = {.pack = pack, .ready = ends[1]};
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		harness_as(&harness, FLOOD_UID, FLOOD_UID, flood_for_ever, &flood);
		_exit(1);
	}
	close(ends[1]);
	ck_assert_int_eq(read(ends[0], &byte, 1), 1);
	close(ends[0]);
	return pid;
}

static void end_flood(pid_t pid)
{
	int status;
	ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
	world_kill(pid);
}

/* While this process waits for a processor, glaked goes on with the flood. A container may forbid it. */
static void be_urgent(void)
{
	setpriority(PRIO_PROCESS, 0, PRIO_MIN);
}

static void witness_allocates(void)
{
	uint64_t id;
	ck_assert_int_eq(connection_alloc(witness, 0, CHUNK_BYTES, 1, &id, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_free_chunks(witness, &id, 1), GLAKE__WIRE__STATUS__OK);
}

START_TEST_WITH(a_flood_does_not_hold_up_another_user, .n = n_elements(floods))
{
	if (!harness_is_root()) {
		return;
	}
	world_begin_as(&quiet);
	pid_t flood = start_flood(floods[_i]);
	be_urgent();
	uint64_t start_us = harness_cpu_us(&harness);
	for (unsigned i = 0; i < N_REQUESTS; i++) {
		witness_allocates();
	}
	ck_assert_uint_lt((harness_cpu_us(&harness) - start_us) / N_REQUESTS, MOST_US);
	end_flood(flood);
}
END_TEST

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
	harness_wait_notified(&harness, "\nWATCHDOG=1\n");
	for (unsigned i = 0; i < 2; i++) {
		uint64_t start_ms = harness_now_ms();
		harness_wait_notified(&harness, "\nWATCHDOG=1\n");
		ck_assert_uint_lt(harness_now_ms() - start_ms, WATCHDOG_MS);
	}
	end_flood(flood);
}
END_TEST

/* A new session of another user gets in, while those of the flood come and go. */
START_TEST_WITH(another_user_gets_in, .n = n_elements(floods))
{
	if (!harness_is_root()) {
		return;
	}
	world_begin_as(&quiet);
	pid_t flood = start_flood(floods[_i]);
	be_urgent();
	uint64_t start_us = harness_cpu_us(&harness);
	for (unsigned i = 0; i < N_ARRIVALS; i++) {
		int connection = connection_hello(&harness);
		connection_close(&connection);
	}
	ck_assert_uint_lt((harness_cpu_us(&harness) - start_us) / N_ARRIVALS, MOST_US);
	end_flood(flood);
}
END_TEST

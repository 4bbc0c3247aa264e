/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that says what a test wants, right or wrong: for what the real one never says.
 *
 * It serves one connection after the other in a thread. Hello, Ping and UsageReport are answered by
 * itself unless the test's script says otherwise; all else is the script's.
 *
 * Owner: the test. Threads: the script runs in the daemon's thread; assertions belong elsewhere.
 */
#ifndef GLAKE_TESTS_FAKE_DAEMON_H
#define GLAKE_TESTS_FAKE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

struct fake_daemon;

/* True: the request was dealt with. */
typedef bool (*fake_script_fn)(struct fake_daemon *fake, const Glake__Wire__Request *request);

struct fake_daemon {
	fake_script_fn script; /* may be NULL */
	void *user;
	char folder[200];
	int listener;
	int socket; /* of the connection served; -1 = none */
	pthread_t thread;
	bool is_bad_hello; /* the answer's version */
	uint64_t warm_bytes;
	_Atomic unsigned n_requests[32]; /* by body */
	struct fdlist fds;               /* of the request at hand */
};

static inline void fake_send(struct fake_daemon *fake, const Glake__Wire__Answer *answer,
                             const int *fds, size_t n_fds)
{
	uint8_t *bytes = malloc(GLAKE_MAX_PACKET_BYTES);
	size_t n_bytes = glake__wire__answer__pack(answer, bytes);
	wire_send(fake->socket, bytes, n_bytes, fds, n_fds, 0);
	free(bytes);
}

static inline void fake_answer_ok(struct fake_daemon *fake, uint64_t id)
{
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	answer.id = id;
	fake_send(fake, &answer, NULL, 0);
}

static inline void fake_refuse(struct fake_daemon *fake, uint64_t id, Glake__Wire__Status status,
                               const char *text)
{
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	answer.id = id;
	answer.status = status;
	answer.error = (char *)text;
	fake_send(fake, &answer, NULL, 0);
}

static inline void fake_hello(struct fake_daemon *fake, uint64_t id)
{
	Glake__Wire__Device device = GLAKE__WIRE__DEVICE__INIT;
	Glake__Wire__Device *devices[] = {&device};
	Glake__Wire__HelloAnswer hello = GLAKE__WIRE__HELLO_ANSWER__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	hello.version = fake->is_bad_hello ? 99 : GLAKE_WIRE_VERSION;
	hello.session = 5;
	hello.tenant = (char *)"fake";
	hello.devices = devices;
	hello.n_devices = 1;
	hello.warm_bytes = fake->warm_bytes;
	answer.id = id;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_HELLO;
	answer.hello = &hello;
	fake_send(fake, &answer, NULL, 0);
}

static inline void fake_reclaim(struct fake_daemon *fake, uint64_t n_bytes, uint64_t id)
{
	Glake__Wire__Reclaim reclaim = GLAKE__WIRE__RECLAIM__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	reclaim.bytes = n_bytes;
	reclaim.id = id;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_RECLAIM;
	answer.reclaim = &reclaim;
	fake_send(fake, &answer, NULL, 0);
}

static inline void fake_progress(struct fake_daemon *fake, uint64_t request, uint64_t done_bytes)
{
	Glake__Wire__LoadProgress progress = GLAKE__WIRE__LOAD_PROGRESS__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	progress.request = request;
	progress.done_bytes = done_bytes;
	progress.total_bytes = 100;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_PROGRESS;
	answer.progress = &progress;
	fake_send(fake, &answer, NULL, 0);
}

/* End the connection from within a script. */
static inline void fake_hang_up(struct fake_daemon *fake)
{
	shutdown(fake->socket, SHUT_RDWR);
}

static inline void fake_handle(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	fake->n_requests[request->body_case % 32]++;
	if (fake->script && fake->script(fake, request)) {
		return;
	}
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_HELLO) {
		fake_hello(fake, request->id);
	} else {
		fake_answer_ok(fake, request->id);
	}
}

static inline void fake_serve(struct fake_daemon *fake)
{
	uint8_t *bytes = malloc(GLAKE_MAX_PACKET_BYTES);
	size_t n_bytes;
	fdlist_init(&fake->fds);
	while (wire_recv(fake->socket, bytes, GLAKE_MAX_PACKET_BYTES, &n_bytes, &fake->fds, 0) ==
	       0) {
		Glake__Wire__Request *request = glake__wire__request__unpack(NULL, n_bytes, bytes);
		if (!request) {
			break;
		}
		fake_handle(fake, request);
		glake__wire__request__free_unpacked(request, NULL);
		fdlist_deinit(&fake->fds);
	}
	fdlist_deinit(&fake->fds);
	free(bytes);
}

static inline void *fake_run(void *argument)
{
	struct fake_daemon *fake = argument;
	int fd;
	while ((fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		fake->socket = fd;
		fake_serve(fake);
		fake->socket = -1;
		close(fd);
	}
	return NULL;
}

static inline void fake_start(struct fake_daemon *fake)
{
	const char *base = getenv("TMPDIR");
	snprintf(fake->folder, sizeof(fake->folder), "%s/fake.XXXXXX", base ? base : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(fake->folder));
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%.90s/socket", fake->folder);
	setenv("GLAKE_SOCKET", address.sun_path, 1);
	fake->socket = -1;
	fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(fake->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(fake->listener, 8), 0);
	ck_assert_int_eq(pthread_create(&fake->thread, NULL, fake_run, fake), 0);
}

/* After the test's last session has ended. */
static inline void fake_stop(struct fake_daemon *fake)
{
	shutdown(fake->listener, SHUT_RDWR);
	pthread_join(fake->thread, NULL);
	close(fake->listener);
	char command[300];
	snprintf(command, sizeof(command), "rm -rf '%s'", fake->folder);
	ck_assert_int_eq(system(command), 0);
}

#endif

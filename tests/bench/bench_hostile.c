/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one user can do to another: allocating and freeing one chunk of 2 MiB in one session, while a
 * process of another uid floods glaked through SESSIONS sessions. Needs root, for the other uid.
 *
 *   none       no flood
 *   crowds     64 KiB of empty submessages, in requests that decode; comes back when it is closed
 *   names      ModelOpen with as many names as it may have, and no files
 *   listings   SessionList, of all those sessions
 *   greetings  connects, says Hello and leaves
 *   chunks     in 16 sessions: takes 253 chunks of 2 MiB, gives them back, and so on; measured is a chunk
 *              of 6 MiB, which is made on request
 *
 * The flood is one process, nice 19: it sends to every socket that takes something and reads all
 * answers. So on two cores it has what glaked and the measured session leave.
 *
 *   bench_hostile [SECONDS] [SESSIONS] [FLOOD]     FLOOD: only that one, from 1
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "tests/bench/bench.h"
#include "tests/bench/raw.h"
#include "tests/harness/floods.h"

#define FLOOD_UID 4242
#define MAX_CHUNK_SESSIONS 16u
/* Not one of the sizes that glaked makes ahead. */
#define MADE_BYTES (6 * MIB)
#define MIN_SAMPLES 5

/* ---- what it sends --------------------------------------------------------------------------- */

struct packet {
	uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	size_t n_bytes;
};

static void pack(Glake__Wire__Request *request, struct packet *packet)
{
	request->id = 1;
	packet->n_bytes = glake__wire__request__pack(request, packet->bytes);
}

static void pack_hello(struct packet *packet)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello body = GLAKE__WIRE__HELLO__INIT;
	body.version = GLAKE_WIRE_VERSION;
	body.program = (char *)"flood";
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &body;
	pack(&request, packet);
}

static void pack_crowds(struct packet *packet)
{
	packet->n_bytes = pack_crowd(packet->bytes);
}

static void pack_all_names(struct packet *packet)
{
	packet->n_bytes = pack_names(packet->bytes);
}

static void pack_listings(struct packet *packet)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__SessionList body = GLAKE__WIRE__SESSION_LIST__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_SESSION_LIST;
	request.session_list = &body;
	pack(&request, packet);
}

/* Nothing: take_and_give() makes what is sent. */
static void pack_chunks(struct packet *packet)
{
}

/* ---- the flood ------------------------------------------------------------------------------- */

/* Without waiting for the answer. Returns the socket, or -1. */
static int greet(const struct packet *hello)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "glaked.sock"};
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    send(fd, hello->bytes, hello->n_bytes, MSG_NOSIGNAL) < 0) {
		return -1;
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd_steal(&fd);
}

static void come_back(int epoll, int *fd, const struct packet *hello, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = fd};
	fd_close(fd);
	*fd = greet(hello);
	if (*fd >= 0) {
		epoll_ctl(epoll, EPOLL_CTL_ADD, *fd, &event);
	}
}

static void send_free(int fd, const Glake__Wire__ChunkAllocAnswer *chunks)
{
	static struct packet packet;
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkFree body = GLAKE__WIRE__CHUNK_FREE__INIT;
	body.ids = chunks->ids;
	body.n_ids = chunks->n_ids;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE;
	request.chunk_free = &body;
	pack(&request, &packet);
	send(fd, packet.bytes, packet.n_bytes, MSG_NOSIGNAL);
}

/* One request at a time: each answer makes the next. Returns whether the socket is still open. */
static bool take_and_give(int fd)
{
	uint8_t bytes[RAW_REQUEST_BYTES];
	bool is_gone;
	Glake__Wire__Answer *answer;
	while ((answer = raw_receive(fd, MSG_DONTWAIT, &is_gone))) {
		if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC) {
			send_free(fd, answer->chunk_alloc);
		} else if (answer->id > 0) {
			size_t n_bytes = raw_pack_chunk_alloc(1, 2 * MIB, GLAKE_MAX_PACKET_FDS,
			                                      bytes);
			send(fd, bytes, n_bytes, MSG_NOSIGNAL);
		}
		raw_free(answer);
	}
	return !is_gone;
}

/* Returns whether the socket is still open. */
static bool send_and_read(int fd, const struct packet *packet)
{
	static uint8_t answer[GLAKE_MAX_PACKET_BYTES];
	ssize_t n;
	while ((n = recv(fd, answer, sizeof(answer), 0)) > 0) {
	}
	if (n == 0 || errno != EAGAIN) {
		return false;
	}
	while (send(fd, packet->bytes, packet->n_bytes, MSG_NOSIGNAL) >= 0) {
	}
	return errno == EAGAIN;
}

/* Without @pack_fn it only comes and goes. Says by @ready that all are there, and never ends. */
static void __attribute__((noreturn))
flood(void (*pack_fn)(struct packet *), size_t n_sessions, int ready)
{
	static struct packet hello;
	static struct packet packet;
	struct epoll_event events[64];
	uint32_t awaited = pack_fn == pack_chunks ? EPOLLIN : EPOLLIN | EPOLLOUT;
	int *fds = calloc(n_sessions, sizeof(*fds));
	cleanup_fd int epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!fds || chdir(bench_folder()) < 0 || setgid(FLOOD_UID) < 0 || setuid(FLOOD_UID) < 0) {
		bench_fail("cannot be another user: %s", strerror(errno));
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpriority(PRIO_PROCESS, 0, 19);
	pack_hello(&hello);
	if (pack_fn) {
		pack_fn(&packet);
	}
	for (size_t i = 0; i < n_sessions; i++) {
		fds[i] = -1;
		come_back(epoll, &fds[i], &hello, awaited);
		if (fds[i] < 0) {
			bench_fail("the flood cannot connect: %s", strerror(errno));
		}
	}
	if (write(ready, "", 1) != 1) {
		bench_fail("write: %s", strerror(errno));
	}
	for (;;) {
		int n = epoll_wait(epoll, events, n_elements(events), 10);
		for (int i = 0; i < n; i++) {
			int *fd = events[i].data.ptr;
			bool is_open = pack_fn == pack_chunks
			                       ? take_and_give(*fd)
			                       : pack_fn && send_and_read(*fd, &packet);
			if (!is_open) {
				come_back(epoll, fd, &hello, awaited);
			}
		}
		for (size_t i = 0; n == 0 && i < n_sessions; i++) {
			if (fds[i] < 0) {
				come_back(epoll, &fds[i], &hello, awaited);
			}
		}
	}
}

static pid_t start_flood(void (*pack_fn)(struct packet *), size_t n_sessions)
{
	int ready[2];
	char byte;
	if (pipe2(ready, O_CLOEXEC) < 0) {
		bench_fail("pipe2: %s", strerror(errno));
	}
	pid_t pid = fork();
	if (pid == 0) {
		flood(pack_fn, n_sessions, ready[1]);
	}
	close(ready[1]);
	if (pid < 0 || read(ready[0], &byte, 1) != 1) {
		bench_fail("the flood does not begin");
	}
	close(ready[0]);
	return pid;
}

/* ---- the other user -------------------------------------------------------------------------- */

static Glake__Wire__Answer *call(int socket, const uint8_t *bytes, size_t n_bytes)
{
	bool is_gone;
	if (send(socket, bytes, n_bytes, MSG_NOSIGNAL) < 0) {
		bench_fail("send: %s", strerror(errno));
	}
	Glake__Wire__Answer *answer = raw_receive(socket, 0, &is_gone);
	if (!answer || answer->status) {
		bench_fail("%s", answer ? answer->error : "the session was closed");
	}
	return answer;
}

static void alloc_and_free(int socket, uint64_t chunk_bytes)
{
	uint8_t bytes[RAW_REQUEST_BYTES];
	size_t n_bytes = raw_pack_chunk_alloc(1, chunk_bytes, 1, bytes);
	Glake__Wire__Answer *answer = call(socket, bytes, n_bytes);
	n_bytes = raw_pack_chunk_free(2, answer->chunk_alloc->ids, 1, bytes);
	raw_free(answer);
	raw_free(call(socket, bytes, n_bytes));
}

static void measure(const char *label, int socket, uint64_t chunk_bytes, uint64_t ns)
{
	struct bench_samples samples = {0};
	uint64_t end_ns = bench_now_ns() + ns;
	do {
		uint64_t begin_ns = bench_now_ns();
		alloc_and_free(socket, chunk_bytes);
		bench_samples_add(&samples, bench_now_ns() - begin_ns);
		/* Not in step with the loop. */
		usleep((useconds_t)(samples.n * 7919 % 5000));
	} while (bench_now_ns() < end_ns || samples.n < MIN_SAMPLES);
	bench_print(label, "median %.2f  p99 %.1f  max %.1f ms  (%zu)",
	            (double)bench_percentile(&samples, 50) / 1e6,
	            (double)bench_percentile(&samples, 99) / 1e6,
	            (double)bench_percentile(&samples, 100) / 1e6, samples.n);
	bench_samples_deinit(&samples);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *label;
		void (*pack_fn)(struct packet *);
	} floods[] = {
		{"crowds of fields (target median 5, max 50)", pack_crowds},
		{"names", pack_all_names},
		{"listings", pack_listings},
		{"greetings", NULL},
		{"chunks", pack_chunks},
	};
	uint64_t ns = (uint64_t)(bench_number(argc, argv, 1, 5) * 1e9);
	size_t n_sessions = (size_t)bench_number(argc, argv, 2, 300);
	size_t only = (size_t)bench_number(argc, argv, 3, 1000);
	struct bench_daemon daemon;
	bench_begin("bench_hostile", "1x64GiB");
	if (geteuid() != 0) {
		bench_print("nothing measured", "it needs root, to be two users");
		return 0;
	}
	bench_daemon_start(&daemon, "");
	if (chmod(bench_folder(), 0711) < 0) {
		bench_fail("chmod: %s", strerror(errno));
	}
	/* Before the floods: Hello may not get through to a glaked that is held up. */
	int socket = raw_connect(daemon.socket_path, "bench_hostile");
	measure("alloc + free of 2 MiB, no flood", socket, 2 * MIB, ns);
	for (size_t i = 0; i < n_elements(floods); i++) {
		if (only <= n_elements(floods) && i + 1 != only) {
			continue;
		}
		bool is_of_chunks = floods[i].pack_fn == pack_chunks;
		bool is_few = is_of_chunks && n_sessions > MAX_CHUNK_SESSIONS;
		pid_t pid = start_flood(floods[i].pack_fn,
		                        is_few ? MAX_CHUNK_SESSIONS : n_sessions);
		measure(floods[i].label, socket, is_of_chunks ? MADE_BYTES : 2 * MIB, ns);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	close(socket);
	bench_daemon_stop(&daemon);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest request, Ping: its latency, and how many a second glaked answers.
 *
 *   latency      glake_ping() of the library in a loop, one session
 *   throughput   SESSIONS sessions, in three ways:
 *     one outstanding   one client process, one thread, epoll; each session sends its next request
 *                       when it has its answer
 *     pipelined         the same with DEPTH requests under way per session, sent and received in
 *                       bunches (sendmmsg, recvmmsg)
 *     processes         SESSIONS processes that loop over glake_ping()
 *
 * In the first two the client needs one core and the daemon the other, if there are no more.
 *
 *   bench_requests [SECONDS]
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "glake.h"
#include "tests/bench/bench.h"
#include "tests/bench/raw.h"

#define SESSIONS 64
#define DEPTH 16
#define ANSWER_BYTES 256
#define LATENCY_WARMUP 2000
#define LATENCY_PINGS 50000
#define RUNS 5

/* ---- latency --------------------------------------------------------------------------------- */

static struct glake_session *connect_plain(void)
{
	struct glake_session *session;
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	bench_check(glake_connect(&options, &session), "glake_connect");
	return session;
}

static void run_latency(void)
{
	struct bench_samples samples = {0};
	struct glake_session *session = connect_plain();
	for (int i = 0; i < LATENCY_WARMUP + LATENCY_PINGS; i++) {
		uint64_t begin_ns = bench_now_ns();
		int err = glake_ping(session);
		uint64_t ns = bench_now_ns() - begin_ns;
		bench_check(err, "glake_ping");
		if (i >= LATENCY_WARMUP) {
			bench_samples_add(&samples, ns);
		}
	}
	bench_print_latency("glake_ping, 1 session (target p50 25)", &samples);
	bench_samples_deinit(&samples);
	glake_disconnect(session);
}

/* ---- throughput, one process ----------------------------------------------------------------- */

struct bunch {
	struct mmsghdr messages[DEPTH];
	struct iovec iovs[DEPTH];
	uint8_t bytes[DEPTH][ANSWER_BYTES];
};

struct client {
	int epoll;
	int sockets[SESSIONS];
	uint8_t ping[RAW_REQUEST_BYTES];
	size_t ping_bytes;
	uint64_t sent_ns[SESSIONS]; /* with one request outstanding */
	struct bunch received;
	struct bunch sent;
};

static void send_pings(struct client *client, int socket, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		client->sent.iovs[i] = (struct iovec){client->ping, client->ping_bytes};
		client->sent.messages[i] = (struct mmsghdr){
			.msg_hdr = {.msg_iov = &client->sent.iovs[i], .msg_iovlen = 1}};
	}
	for (unsigned done = 0; done < n;) {
		int r = n == 1 ? (send(socket, client->ping, client->ping_bytes, MSG_NOSIGNAL) > 0)
		               : sendmmsg(socket, client->sent.messages + done, n - done,
		                          MSG_NOSIGNAL);
		if (r <= 0) {
			bench_fail("send: %s", strerror(errno));
		}
		done += (unsigned)r;
	}
}

/* Returns how many answers have come. They are counted, not read: all are of one length. */
static unsigned take_answers(struct client *client, int socket, unsigned most)
{
	struct bunch *received = &client->received;
	if (most == 1) {
		return recv(socket, received->bytes[0], ANSWER_BYTES, MSG_DONTWAIT) > 0;
	}
	for (unsigned i = 0; i < most; i++) {
		received->iovs[i] = (struct iovec){received->bytes[i], ANSWER_BYTES};
		received->messages[i] = (struct mmsghdr){
			.msg_hdr = {.msg_iov = &received->iovs[i], .msg_iovlen = 1}};
	}
	int n = recvmmsg(socket, received->messages, most, MSG_DONTWAIT, NULL);
	return n > 0 ? (unsigned)n : 0;
}

static void open_client(struct client *client, const char *socket_path)
{
	client->epoll = epoll_create1(EPOLL_CLOEXEC);
	client->ping_bytes = raw_pack_ping(7, client->ping);
	for (int i = 0; i < SESSIONS; i++) {
		struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
		client->sockets[i] = raw_connect(socket_path, "bench_requests");
		if (epoll_ctl(client->epoll, EPOLL_CTL_ADD, client->sockets[i], &event) < 0) {
			bench_fail("epoll_ctl: %s", strerror(errno));
		}
	}
}

static void close_client(struct client *client)
{
	for (int i = 0; i < SESSIONS; i++) {
		raw_close(client->sockets[i]);
	}
	close(client->epoll);
}

/* Keep @depth requests under way in each session for @ns. Returns answers a second. */
static uint64_t pump(struct client *client, unsigned depth, uint64_t ns,
                     struct bench_samples *latency)
{
	struct epoll_event events[SESSIONS];
	uint64_t n_answers = 0;
	uint64_t n_under_way = (uint64_t)depth * SESSIONS;
	uint64_t begin_ns = bench_now_ns();
	uint64_t now_ns = begin_ns;
	uint64_t end_ns = 0;
	for (int i = 0; i < SESSIONS; i++) {
		client->sent_ns[i] = begin_ns;
		send_pings(client, client->sockets[i], depth);
	}
	while (n_under_way > 0) {
		int n_ready = epoll_wait(client->epoll, events, SESSIONS, -1);
		now_ns = bench_now_ns();
		if (end_ns == 0 && now_ns - begin_ns >= ns) {
			end_ns = now_ns;
		}
		for (int k = 0; k < n_ready; k++) {
			uint32_t i = events[k].data.u32;
			unsigned n = take_answers(client, client->sockets[i], depth);
			if (end_ns == 0) {
				if (depth == 1 && n > 0) {
					bench_samples_add(latency, now_ns - client->sent_ns[i]);
					client->sent_ns[i] = now_ns;
				}
				n_answers += n;
				send_pings(client, client->sockets[i], n);
			} else {
				n_under_way -= n;
			}
		}
	}
	return n_answers * 1000000000u / (end_ns - begin_ns);
}

static void run_pump(const struct bench_daemon *daemon, unsigned depth, uint64_t ns)
{
	static struct client client;
	struct bench_samples rates = {0};
	struct bench_samples latency = {0};
	open_client(&client, daemon->socket_path);
	for (int i = 0; i < RUNS; i++) {
		bench_samples_add(&rates, pump(&client, depth, ns, &latency));
	}
	close_client(&client);
	if (depth == 1) {
		bench_print_runs("64 sessions, one outstanding (target 60k)", &rates, 1, "/s");
		bench_print_latency("  from answer to answer of a session", &latency);
	} else {
		bench_print_runs("64 sessions, 16 under way in each", &rates, 1, "/s");
	}
	bench_samples_deinit(&rates);
	bench_samples_deinit(&latency);
}

/* ---- throughput, many processes -------------------------------------------------------------- */

struct shared {
	atomic_uint n_ready;
	atomic_bool go;
	atomic_bool stop;
	atomic_ullong n_answers;
};

static void __attribute__((noreturn)) loop_pings(struct shared *shared)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct glake_session *session = connect_plain();
	unsigned long long n = 0;
	atomic_fetch_add(&shared->n_ready, 1);
	while (!atomic_load(&shared->go)) {
		usleep(1000);
	}
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		bench_check(glake_ping(session), "glake_ping");
		n++;
	}
	atomic_fetch_add(&shared->n_answers, n);
	glake_disconnect(session);
	_exit(0);
}

static uint64_t run_processes_once(struct shared *shared, uint64_t ns)
{
	memset(shared, 0, sizeof(*shared));
	for (int i = 0; i < SESSIONS; i++) {
		if (fork() == 0) {
			loop_pings(shared);
		}
	}
	while (atomic_load(&shared->n_ready) < SESSIONS) {
		usleep(1000);
	}
	uint64_t begin_ns = bench_now_ns();
	atomic_store(&shared->go, true);
	usleep((useconds_t)(ns / 1000));
	atomic_store(&shared->stop, true);
	uint64_t took_ns = bench_now_ns() - begin_ns;
	for (int i = 0; i < SESSIONS; i++) {
		int status;
		if (wait(&status) < 0 || status != 0) {
			bench_fail("a client process failed");
		}
	}
	return atomic_load(&shared->n_answers) * 1000000000u / took_ns;
}

static void run_processes(uint64_t ns)
{
	struct bench_samples rates = {0};
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
	                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		bench_fail("mmap: %s", strerror(errno));
	}
	for (int i = 0; i < RUNS; i++) {
		bench_samples_add(&rates, run_processes_once(shared, ns));
	}
	munmap(shared, sizeof(*shared));
	bench_print_runs("64 processes, glake_ping", &rates, 1, "/s");
	bench_samples_deinit(&rates);
}

int main(int argc, char **argv)
{
	double seconds = bench_number(argc, argv, 1, 2);
	uint64_t ns = (uint64_t)(seconds * 1e9);
	struct bench_daemon daemon;
	bench_begin("bench_requests", NULL);
	bench_daemon_start(&daemon, "");
	run_latency();
	run_pump(&daemon, 1, ns);
	run_pump(&daemon, DEPTH, ns);
	run_processes(ns);
	bench_daemon_stop(&daemon);
	return 0;
}

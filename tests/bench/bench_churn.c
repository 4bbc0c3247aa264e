/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocating and freeing from many sessions while their processes are killed at random; at the end
 * everything must be as it was, and on the way the budget of fds must hold. The only benchmark that
 * judges: exit status 1 if something is wrong.
 *
 * SESSIONS raw sessions in PROCESSES processes keep DEPTH requests each under way, ChunkAlloc of
 * 1 to 4 chunks of 2 MiB and ChunkFree, in equal parts once a session holds some. Nothing is
 * mapped: the clients are as cheap as they can be, and the fds are closed as they come. Every
 * KILL_EVERY allocations or so one process is killed by SIGKILL and replaced.
 *
 * Twice: with the defaults, and with a tenth of the work and so small a budget of fds that chunks
 * are held by driver handles.
 *
 *   bench_churn [ALLOCATIONS]
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glake.h"
#include "glake_admin.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/wire.h"
#include "tests/bench/bench.h"
#include "tests/bench/raw.h"

#define PROCESSES 20u
#define SESSIONS_OF_PROCESS 10u
#define DEPTH 2u
#define MAX_LIVE 8u
#define MAX_CHUNKS 4u
#define KILL_EVERY 500u
#define SETTLE_NS 30000000000ull

struct shared {
	atomic_ullong n_allocs;
	atomic_ullong n_chunks;
	atomic_ullong n_frees;
	atomic_ullong n_refused;
};

/* ---- a client process ------------------------------------------------------------------------ */

struct allocation {
	size_t n_chunks;
	uint64_t chunks[MAX_CHUNKS];
};

struct client_session {
	int socket;
	unsigned n_under_way;
	unsigned n_coming; /* allocations asked for */
	unsigned n_live;
	struct allocation live[MAX_LIVE];
};

struct client {
	struct shared *shared;
	uint64_t random;
	uint64_t last_id;
	struct client_session sessions[SESSIONS_OF_PROCESS];
};

/* The daemon is stopped only when we are gone, so that it is gone is an error. */
static void send_request(const struct client_session *session, const uint8_t *bytes, size_t n_bytes)
{
	int r = wire_send(session->socket, bytes, n_bytes, NULL, 0, 0);
	if (r != 0) {
		bench_fail("glaked does not take a request: %d", r);
	}
}

static void ask(struct client *client, struct client_session *session)
{
	uint8_t bytes[RAW_REQUEST_BYTES];
	size_t n_bytes;
	uint64_t random = bench_random(&client->random);
	uint64_t id = ++client->last_id;
	bool has_room = session->n_live + session->n_coming < MAX_LIVE;
	if (session->n_live == 0 || (has_room && (random & 1))) {
		n_bytes = raw_pack_chunk_alloc(id, GLAKE_CHUNK_GRANULARITY,
		                               1 + (uint32_t)(random >> 8) % MAX_CHUNKS, bytes);
		session->n_coming++;
	} else {
		unsigned i = (unsigned)(random >> 8) % session->n_live;
		n_bytes = raw_pack_chunk_free(id, session->live[i].chunks,
		                              session->live[i].n_chunks, bytes);
		session->live[i] = session->live[--session->n_live];
	}
	send_request(session, bytes, n_bytes);
	session->n_under_way++;
}

static void take_alloc(struct client *client, struct client_session *session,
                       const Glake__Wire__ChunkAllocAnswer *body)
{
	struct allocation *allocation = &session->live[session->n_live++];
	if (body->n_ids == 0 || body->n_ids > MAX_CHUNKS) {
		bench_fail("%zu chunks came", body->n_ids);
	}
	allocation->n_chunks = body->n_ids;
	memcpy(allocation->chunks, body->ids, body->n_ids * sizeof(body->ids[0]));
	session->n_coming--;
	atomic_fetch_add(&client->shared->n_allocs, 1);
	atomic_fetch_add(&client->shared->n_chunks, body->n_ids);
}

static void take_answer(struct client *client, struct client_session *session,
                        const Glake__Wire__Answer *answer)
{
	if (answer->id == 0) {
		return;
	}
	session->n_under_way--;
	switch (answer->status) {
	case GLAKE__WIRE__STATUS__OK:
		if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC) {
			take_alloc(client, session, answer->chunk_alloc);
		} else {
			atomic_fetch_add(&client->shared->n_frees, 1);
		}
		return;
	case GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY:
	case GLAKE__WIRE__STATUS__NO_FDS:
		/* Only an allocation can be refused so. */
		session->n_coming--;
		atomic_fetch_add(&client->shared->n_refused, 1);
		return;
	default:
		bench_fail("refused with status %d: %s", (int)answer->status, answer->error);
	}
}

static void serve_session(struct client *client, struct client_session *session)
{
	Glake__Wire__Answer *answer;
	bool is_gone;
	while ((answer = raw_receive(session->socket, MSG_DONTWAIT, &is_gone))) {
		take_answer(client, session, answer);
		raw_free(answer);
	}
	if (is_gone) {
		bench_fail("glaked has closed a session");
	}
	while (session->n_under_way < DEPTH) {
		ask(client, session);
	}
}

/* Until it is killed. */
static void __attribute__((noreturn))
run_client(const struct bench_daemon *daemon, struct shared *shared, uint64_t seed)
{
	static struct client client;
	struct pollfd waiting[SESSIONS_OF_PROCESS];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	client = (struct client){.shared = shared, .random = seed};
	for (unsigned i = 0; i < SESSIONS_OF_PROCESS; i++) {
		client.sessions[i].socket = raw_connect(daemon->socket_path, "bench_churn");
		waiting[i] = (struct pollfd){.fd = client.sessions[i].socket, .events = POLLIN};
		serve_session(&client, &client.sessions[i]);
	}
	for (;;) {
		poll(waiting, SESSIONS_OF_PROCESS, -1);
		for (unsigned i = 0; i < SESSIONS_OF_PROCESS; i++) {
			if (waiting[i].revents) {
				serve_session(&client, &client.sessions[i]);
			}
		}
	}
}

/* ---- the level ------------------------------------------------------------------------------- */

/* Everything that must be back; each is one number with a name. */
struct level {
	uint64_t n_sessions;
	uint64_t private_bytes;
	uint64_t block_bytes;
	uint64_t pool_bytes;
	uint64_t logical_bytes;
	uint64_t fds_used; /* of the daemon's budget */
	uint64_t fds_budget;
	uint64_t tenant_bytes;
	uint64_t tenant_fds;
	uint64_t tenant_sessions;
	uint64_t unreleased_chunks; /* granted and not given back */
	uint64_t process_fds;
	uint64_t device_used_bytes; /* as the driver says, with the context that asks */
};

static const struct {
	const char *name;
	size_t offset;
} level_fields[] = {
	{"sessions", offsetof(struct level, n_sessions)},
	{"private bytes", offsetof(struct level, private_bytes)},
	{"block bytes", offsetof(struct level, block_bytes)},
	{"pool bytes", offsetof(struct level, pool_bytes)},
	{"logical bytes", offsetof(struct level, logical_bytes)},
	{"fds of the budget", offsetof(struct level, fds_used)},
	{"bytes of all tenants", offsetof(struct level, tenant_bytes)},
	{"fds of all tenants", offsetof(struct level, tenant_fds)},
	{"sessions of all tenants", offsetof(struct level, tenant_sessions)},
	{"chunks not released", offsetof(struct level, unreleased_chunks)},
	{"fds of the process", offsetof(struct level, process_fds)},
	{"device bytes in use", offsetof(struct level, device_used_bytes)},
};

static int take_status(void *user, const struct glake_status *status)
{
	struct level *level = user;
	level->n_sessions = status->n_sessions;
	level->fds_used = status->fds_used;
	level->fds_budget = status->fds_budget;
	for (uint32_t i = 0; i < status->n_devices; i++) {
		level->private_bytes += status->devices[i].private_bytes;
		level->block_bytes += status->devices[i].block_bytes;
		level->pool_bytes += status->devices[i].pool_bytes;
		level->logical_bytes += status->devices[i].logical_bytes;
	}
	return 0;
}

static int take_tenant(void *user, const struct glake_tenant_row *tenant)
{
	struct level *level = user;
	level->tenant_sessions += tenant->n_sessions;
	level->tenant_fds += tenant->n_fds;
	for (uint32_t i = 0; i < tenant->n_devices; i++) {
		level->tenant_bytes += tenant->devices[i].used_bytes;
	}
	return 0;
}

static int take_metric(void *user, const char *name, uint64_t value, const char *help)
{
	struct level *level = user;
	if (strcmp(name, "chunks_created") == 0) {
		level->unreleased_chunks += value;
	} else if (strcmp(name, "chunks_released") == 0) {
		level->unreleased_chunks -= value;
	}
	return 0;
}

/* In a process of its own, so that this one has no context and may fork. */
static uint64_t device_used_bytes(void)
{
	int ends[2];
	uint64_t used_bytes = 0;
	if (pipe(ends) < 0) {
		bench_fail("pipe: %s", strerror(errno));
	}
	pid_t child = fork();
	if (child == 0) {
		struct cudrv drv;
		size_t free_bytes;
		size_t total_bytes;
		bench_open_cuda(&drv);
		bench_check_cuda(&drv, drv.cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
		used_bytes = total_bytes - free_bytes;
		_exit(write(ends[1], &used_bytes, sizeof(used_bytes)) == sizeof(used_bytes) ? 0
		                                                                            : 1);
	}
	close(ends[1]);
	ssize_t n = read(ends[0], &used_bytes, sizeof(used_bytes));
	close(ends[0]);
	if (child < 0 || waitpid(child, NULL, 0) < 0 || n != sizeof(used_bytes)) {
		bench_fail("cannot ask the driver for its memory");
	}
	return used_bytes;
}

static struct level level_now(const struct bench_daemon *daemon, struct glake_session *session)
{
	struct level level = {0};
	bench_check(glake_get_status(session, take_status, &level), "glake_get_status");
	bench_check(glake_list_tenants(session, take_tenant, &level), "glake_list_tenants");
	bench_check(glake_get_stats(session, take_metric, &level), "glake_get_stats");
	level.process_fds = bench_process_now(daemon->pid).n_fds;
	return level;
}

static bool level_is_equal(const struct level *a, const struct level *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* The pool is filled beside: level once it is the same twice, a while apart. */
static struct level wait_until_calm(const struct bench_daemon *daemon,
                                    struct glake_session *session)
{
	struct level last = level_now(daemon, session);
	for (;;) {
		usleep(300000);
		struct level now = level_now(daemon, session);
		if (level_is_equal(&last, &now)) {
			now.device_used_bytes = device_used_bytes();
			return now;
		}
		last = now;
	}
}

/* Waits for it as long as glaked may need to notice every death. */
static struct level wait_for_level(const struct bench_daemon *daemon, struct glake_session *session,
                                   const struct level *wanted)
{
	uint64_t deadline_ns = bench_now_ns() + SETTLE_NS;
	struct level level;
	do {
		usleep(20000);
		level = level_now(daemon, session);
		level.device_used_bytes = device_used_bytes();
	} while (!level_is_equal(&level, wanted) && bench_now_ns() < deadline_ns);
	return level;
}

/* On a GPU others may use the device's memory too, so there that number is only shown. */
static bool judge_level(const struct level *before, const struct level *after)
{
	bool is_level = true;
	for (size_t i = 0; i < n_elements(level_fields); i++) {
		uint64_t was = *(const uint64_t *)((const char *)before + level_fields[i].offset);
		uint64_t is = *(const uint64_t *)((const char *)after + level_fields[i].offset);
		bool is_ours = level_fields[i].offset !=
		                       offsetof(struct level, device_used_bytes) ||
		               bench_is_simulated();
		bool is_back = was == is;
		bench_print(level_fields[i].name, "%" PRIu64 " -> %" PRIu64 "%s", was, is,
		            is_back   ? ""
		            : is_ours ? "  NOT LEVEL"
		                      : "  (others may use it)");
		is_level = is_level && (is_back || !is_ours);
	}
	return is_level;
}

/* ---- the run --------------------------------------------------------------------------------- */

struct churn {
	const struct bench_daemon *daemon;
	struct shared *shared;
	pid_t clients[PROCESSES];
	struct glake_session *session; /* borrowed: to look */
	uint64_t random;
	uint64_t n_kills;
	struct level halfway;
};

static void start_client(struct churn *churn, unsigned i)
{
	uint64_t seed = bench_random(&churn->random);
	fflush(NULL);
	churn->clients[i] = fork();
	if (churn->clients[i] == 0) {
		run_client(churn->daemon, churn->shared, seed);
	}
	if (churn->clients[i] < 0) {
		bench_fail("fork: %s", strerror(errno));
	}
}

static void kill_client(struct churn *churn, unsigned i)
{
	int status;
	kill(churn->clients[i], SIGKILL);
	if (waitpid(churn->clients[i], &status, 0) < 0 || !WIFSIGNALED(status) ||
	    WTERMSIG(status) != SIGKILL) {
		bench_fail("a client process has failed");
	}
}

static uint64_t churn_until(struct churn *churn, uint64_t n_allocs)
{
	uint64_t next_kill = KILL_EVERY;
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < PROCESSES; i++) {
		start_client(churn, i);
	}
	for (;;) {
		uint64_t n = atomic_load(&churn->shared->n_allocs);
		if (n >= n_allocs) {
			break;
		}
		if (n >= n_allocs / 2 && churn->halfway.n_sessions == 0) {
			churn->halfway = level_now(churn->daemon, churn->session);
		}
		if (n >= next_kill) {
			unsigned i = (unsigned)(bench_random(&churn->random) % PROCESSES);
			kill_client(churn, i);
			start_client(churn, i);
			churn->n_kills++;
			next_kill = n + 1 + bench_random(&churn->random) % (2 * KILL_EVERY);
		}
		if (waitpid(-1, NULL, WNOHANG) > 0) {
			bench_fail("a client process has failed");
		}
		usleep(500);
	}
	/* With memory in their hands and requests under way, all at once. */
	for (unsigned i = 0; i < PROCESSES; i++) {
		kill(churn->clients[i], SIGKILL);
	}
	uint64_t ns = bench_now_ns() - begin_ns;
	for (unsigned i = 0; i < PROCESSES; i++) {
		kill_client(churn, i);
	}
	return ns;
}

/* Returns whether everything is level. */
static bool run(const char *what, const char *config, uint64_t n_allocs, struct shared *shared)
{
	struct bench_daemon daemon;
	struct glake_session *session;
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	struct churn churn = {.daemon = &daemon, .shared = shared, .random = n_allocs};
	memset(shared, 0, sizeof(*shared));
	bench_daemon_start(&daemon, config);
	bench_check(glake_connect(&options, &session), "glake_connect");
	churn.session = session;
	struct level before = wait_until_calm(&daemon, session);
	struct bench_process process_before = bench_process_now(daemon.pid);
	uint64_t ns = churn_until(&churn, n_allocs);
	struct level after = wait_for_level(&daemon, session, &before);
	struct bench_process process_after = bench_process_now(daemon.pid);

	uint64_t n_granted = atomic_load(&shared->n_allocs);
	uint64_t n_frees = atomic_load(&shared->n_frees);
	bench_print(what, "%u sessions in %u processes", PROCESSES * SESSIONS_OF_PROCESS,
	            PROCESSES);
	bench_print("allocations, frees, refusals",
	            "%" PRIu64 " (%" PRIu64 " chunks), %" PRIu64 ", %" PRIu64, n_granted,
	            (uint64_t)atomic_load(&shared->n_chunks), n_frees,
	            (uint64_t)atomic_load(&shared->n_refused));
	bench_print("halfway",
	            "%" PRIu64 " sessions, %" PRIu64 " MiB in chunks, %" PRIu64 " of %" PRIu64
	            " fds of the budget, %" PRIu64 " of the process",
	            churn.halfway.n_sessions, (uint64_t)(churn.halfway.private_bytes / MIB),
	            churn.halfway.fds_used, churn.halfway.fds_budget, churn.halfway.process_fds);
	bench_print("processes killed on the way", "%" PRIu64, churn.n_kills);
	bench_print("allocations and frees", "%.0f /s, in %.1f s",
	            (double)(n_granted + n_frees) * 1e9 / (double)ns, (double)ns / 1e9);
	bench_print("private pages of glaked", "%llu -> %llu KiB",
	            (unsigned long long)(process_before.private_bytes / KIB),
	            (unsigned long long)(process_after.private_bytes / KIB));
	bool is_level = judge_level(&before, &after);
	if (churn.halfway.fds_used > churn.halfway.fds_budget) {
		bench_print("fds of the budget", "MORE THAN THERE ARE, halfway");
		is_level = false;
	}
	glake_disconnect(session);
	bench_daemon_stop(&daemon);
	return is_level;
}

int main(int argc, char **argv)
{
	uint64_t n_allocs = (uint64_t)bench_number(argc, argv, 1, 1000000);
	bench_begin("bench_churn", "64GiB");
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
	                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		bench_fail("mmap: %s", strerror(errno));
	}
	bool is_level = run("with the defaults", "", n_allocs, shared);
	is_level = run("held by handles", "fd_budget = 400;\n", n_allocs / 10, shared) && is_level;
	printf("  %s\n", is_level ? "everything is level" : "NOT everything is level");
	return is_level ? 0 : 1;
}

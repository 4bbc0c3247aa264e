/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an idle session costs glaked, and whether it comes back.
 *
 * Opens N sessions from one process (raw, after Hello), reads the daemon's memory and fds from
 * /proc, closes them, and does it again: what the first round left behind must not grow.
 *
 *   bench_sessions [N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/raw.h"

#define ROUNDS 3
#define SETTLE_MS 10000

/* The daemon notices our closing in its own time. */
static struct bench_process wait_for_fds(const struct bench_daemon *daemon, uint64_t n_fds)
{
	struct bench_process now = bench_process_now(daemon->pid);
	for (int i = 0; i < SETTLE_MS && now.n_fds > n_fds; i++) {
		usleep(1000);
		now = bench_process_now(daemon->pid);
	}
	return now;
}

static void print_process(const char *label, const struct bench_process *process)
{
	bench_print(label, "rss %llu KiB  pss %llu KiB  private %llu KiB  fds %llu",
	            (unsigned long long)(process->rss_bytes / KIB),
	            (unsigned long long)(process->pss_bytes / KIB),
	            (unsigned long long)(process->private_bytes / KIB),
	            (unsigned long long)process->n_fds);
}

static void run(const struct bench_daemon *daemon, int *sockets, unsigned n, unsigned round)
{
	char label[64];
	struct bench_process before = bench_process_calm(daemon->pid);
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		sockets[i] = raw_connect(daemon->socket_path, "bench_sessions");
	}
	uint64_t ns = bench_now_ns() - begin_ns;
	struct bench_process open = bench_process_now(daemon->pid);
	for (unsigned i = 0; i < n; i++) {
		raw_close(sockets[i]);
	}
	struct bench_process after = wait_for_fds(daemon, before.n_fds);
	if (round == 0) {
		print_process("before", &before);
	}
	snprintf(label, sizeof(label), "round %u: %u idle sessions", round + 1, n);
	print_process(label, &open);
	print_process("  after closing", &after);
	if (round == 0) {
		bench_print("private pages per session (target 20)", "%.2f KiB",
		            (double)(open.private_bytes - before.private_bytes) / (double)KIB / n);
	}
	bench_print("  connect and Hello, one after the other", "%.1f us each",
	            (double)ns / 1e3 / n);
}

int main(int argc, char **argv)
{
	unsigned n = (unsigned)bench_number(argc, argv, 1, 2000);
	struct bench_daemon daemon;
	bench_begin("bench_sessions", NULL);
	int *sockets = calloc(n, sizeof(*sockets));
	if (!sockets) {
		bench_fail("no memory");
	}
	bench_daemon_start(&daemon, "max_sessions = 16384;\n");
	for (unsigned round = 0; round < ROUNDS; round++) {
		run(&daemon, sockets, n, round);
	}
	bench_daemon_stop(&daemon);
	free(sockets);
	return 0;
}

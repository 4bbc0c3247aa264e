/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing: processes that each have the same weights in private memory, and seal it one after the other.
 *
 *   bench_seal [--bytes MIB] [--each MIB] [--processes N] [--runs N] [--one-allocation]
 *
 *     --bytes           of weights in each process (1024)
 *     --each            bytes of one allocation, a tensor (32)
 *     --one-allocation  all tensors in one allocation, as loaders do that allocate ahead
 *     --runs            all of it so often (3); the mover is started before
 *
 * Per process: the time of glake_seal(), and that of glake_unseal() of one tensor.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glake.h"
#include "glake_admin.h"
#include "tests/bench/bench.h"

struct options {
	uint64_t n_bytes;
	uint64_t each_bytes;
	unsigned n_processes;
	unsigned n_runs;
	bool is_one;
};

/* The report of a process. */
struct told {
	uint64_t seal_ns;
	uint64_t unseal_ns;
	struct glake_sealed sealed;
};

/* Other bytes in each page, and equal ones in each process. */
static void fill(const struct cudrv *drv, glake_ptr ptr, uint64_t n_bytes, uint32_t number)
{
	for (uint64_t at = 0; at < n_bytes; at += 2 * MIB) {
		uint32_t word = number << 16 | (uint32_t)(at / (2 * MIB));
		bench_check_cuda(drv, drv->cuMemsetD32Async(ptr + at, word, 2 * MIB / 4, 0),
		                 "cuMemsetD32Async");
	}
}

static size_t make_tensors(const struct options *options, struct glake_session *session,
                           const struct cudrv *drv, struct glake_span **spans_out)
{
	size_t n = options->n_bytes / options->each_bytes;
	struct glake_span *spans = calloc(n, sizeof(*spans));
	glake_ptr all = 0;
	if (options->is_one) {
		bench_check(glake_alloc(session, 0, options->n_bytes, 0, &all), "glake_alloc");
	}
	for (size_t i = 0; i < n; i++) {
		spans[i].bytes = options->each_bytes;
		spans[i].ptr = all + i * options->each_bytes;
		if (!all) {
			bench_check(glake_alloc(session, 0, options->each_bytes, 0, &spans[i].ptr),
			            "glake_alloc");
		}
		fill(drv, spans[i].ptr, options->each_bytes, (uint32_t)i);
	}
	bench_check_cuda(drv, drv->cuCtxSynchronize(), "cuCtxSynchronize");
	*spans_out = spans;
	return n;
}

/* A child, which seals when it is told to and ends when it is told to. */
static void run_child(const struct options *options, int from, int to)
{
	struct glake_session *session;
	struct cudrv drv;
	struct glake_span *spans;
	struct told told = {.sealed.size = sizeof(told.sealed)};
	char go;
	bench_open_cuda(&drv);
	bench_check(glake_connect(NULL, &session), "glake_connect");
	size_t n = make_tensors(options, session, &drv, &spans);
	if (write(to, "r", 1) != 1 || read(from, &go, 1) != 1) {
		_exit(1);
	}
	uint64_t begin_ns = bench_now_ns();
	bench_check(glake_seal(spans, n, &told.sealed), "glake_seal");
	told.seal_ns = bench_now_ns() - begin_ns;
	begin_ns = bench_now_ns();
	bench_check(glake_unseal(spans[0].ptr, 1), "glake_unseal");
	told.unseal_ns = bench_now_ns() - begin_ns;
	bench_check(glake_seal(spans, 1, NULL), "glake_seal");
	if (write(to, &told, sizeof(told)) != sizeof(told)) {
		_exit(1);
	}
	_exit(read(from, &go, 1) == 1 ? 0 : 1);
}

struct child {
	pid_t pid;
	int to;
	int from;
};

static struct child start_child(const struct options *options)
{
	int down[2];
	int up[2];
	struct child child;
	char ready;
	if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0) {
		bench_fail("no pipes");
	}
	fflush(NULL);
	child.pid = fork();
	if (child.pid == 0) {
		close(down[1]);
		run_child(options, down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	child.to = down[1];
	child.from = up[0];
	if (child.pid < 0 || read(child.from, &ready, 1) != 1) {
		bench_fail("a process with weights has failed");
	}
	return child;
}

static struct told seal_child(const struct child *child)
{
	struct told told;
	if (write(child->to, "s", 1) != 1 ||
	    read(child->from, &told, sizeof(told)) != sizeof(told)) {
		bench_fail("a process that seals has failed");
	}
	return told;
}

static void end_child(const struct child *child)
{
	int status;
	if (write(child->to, "e", 1) != 1 || waitpid(child->pid, &status, 0) != child->pid ||
	    status != 0) {
		bench_fail("a process with weights has failed");
	}
	close(child->to);
	close(child->from);
}

static int add_blocks(void *user, const struct glake_status *status)
{
	*(uint64_t *)user = status->devices[0].private_bytes + status->devices[0].block_bytes;
	return 0;
}

static uint64_t held_bytes(void)
{
	struct glake_connect_options connect = {.size = sizeof(connect), .no_cuda = 1};
	struct glake_session *session;
	uint64_t n_bytes = 0;
	bench_check(glake_connect(&connect, &session), "glake_connect");
	bench_check(glake_get_status(session, add_blocks, &n_bytes), "glake_get_status");
	glake_disconnect(session);
	return n_bytes;
}

static void run(const struct options *options, struct bench_samples *first,
                struct bench_samples *next, struct bench_samples *unseals)
{
	struct child children[16];
	for (unsigned i = 0; i < options->n_processes; i++) {
		children[i] = start_child(options);
	}
	uint64_t before = held_bytes();
	for (unsigned i = 0; i < options->n_processes; i++) {
		struct told told = seal_child(&children[i]);
		bench_samples_add(i ? next : first, told.seal_ns);
		bench_samples_add(unseals, told.unseal_ns);
		if (told.sealed.sealed_bytes != options->n_bytes ||
		    (i && told.sealed.shared_bytes != options->n_bytes)) {
			bench_fail("process %u: %llu bytes sealed, %llu shared", i,
			           (unsigned long long)told.sealed.sealed_bytes,
			           (unsigned long long)told.sealed.shared_bytes);
		}
	}
	bench_print("bytes held, before and after", "%.3f, %.3f x one copy",
	            (double)before / (double)options->n_bytes,
	            (double)held_bytes() / (double)options->n_bytes);
	for (unsigned i = 0; i < options->n_processes; i++) {
		end_child(&children[i]);
	}
	struct glake_connect_options connect = {.size = sizeof(connect), .no_cuda = 1};
	struct glake_session *session;
	uint64_t n_models;
	uint64_t n_bytes;
	bench_check(glake_connect(&connect, &session), "glake_connect");
	bench_check(glake_evict(session, NULL, &n_models, &n_bytes), "glake_evict");
	glake_disconnect(session);
}

static void __attribute__((noreturn)) usage(void)
{
	fputs("usage: bench_seal [--bytes MIB] [--each MIB] [--processes N] [--runs N]\n"
	      "                  [--one-allocation]\n",
	      stderr);
	exit(2);
}

static struct options parse(int argc, char **argv)
{
	static const struct option list[] = {
		{"bytes", required_argument, NULL, 'b'},     {"each", required_argument, NULL, 'e'},
		{"processes", required_argument, NULL, 'p'}, {"runs", required_argument, NULL, 'r'},
		{"one-allocation", no_argument, NULL, 'o'},  {0}};
	struct options options = {
		.n_bytes = 1024 * MIB,
		.each_bytes = 32 * MIB,
		.n_processes = 3,
		.n_runs = 3,
	};
	for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
		switch (key) {
		case 'b':
			options.n_bytes = strtoull(optarg, NULL, 10) * MIB;
			break;
		case 'e':
			options.each_bytes = strtoull(optarg, NULL, 10) * MIB;
			break;
		case 'p':
			options.n_processes = (unsigned)atoi(optarg);
			break;
		case 'r':
			options.n_runs = (unsigned)atoi(optarg);
			break;
		case 'o':
			options.is_one = true;
			break;
		default:
			usage();
		}
	}
	if (optind != argc || options.n_processes < 1 || options.n_processes > 16 ||
	    options.each_bytes == 0 || options.n_bytes % options.each_bytes) {
		usage();
	}
	return options;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct bench_samples first = {0};
	struct bench_samples next = {0};
	struct bench_samples unseals = {0};
	struct bench_daemon daemon;
	bench_begin("sealing", "1x16GiB");
	bench_daemon_start(&daemon, "mover_idle_ms = 3600000;\n");
	setenv("GLAKE_SOCKET", daemon.socket_path, 1);
	bench_print("weights", "%llu MiB in %llu tensors%s",
	            (unsigned long long)(options.n_bytes / MIB),
	            (unsigned long long)(options.n_bytes / options.each_bytes),
	            options.is_one ? ", one allocation" : "");
	for (unsigned i = 0; i < options.n_runs; i++) {
		run(&options, &first, &next, &unseals);
	}
	bench_print_runs("seal, the first process", &first, 1e6, "ms");
	bench_print_runs("seal, every further one", &next, 1e6, "ms");
	bench_print_runs("unseal of a tensor", &unseals, 1e6, "ms");
	bench_samples_deinit(&first);
	bench_samples_deinit(&next);
	bench_samples_deinit(&unseals);
	bench_daemon_stop(&daemon);
	return 0;
}

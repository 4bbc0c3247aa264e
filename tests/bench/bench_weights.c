/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published weights: a process that has them publishes, others attach, each in a fresh process, as an
 * engine's start is.
 *
 *   bench_weights [--bytes MIB] [--each MIB] [--small N] [--runs N]
 *
 *     --bytes   of large tensors (1024); each has an allocation of its own
 *     --each    bytes of one large tensor (64)
 *     --small   small tensors, of 8 KiB, side by side in one allocation (65)
 *     --runs    so many attaches (5); the mover is started before
 *
 * The time of an attach is that of glake_weights_attach(): the connection, in which the driver starts, is
 * not in it. Each attach reads a word of each large tensor and compares it.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glake.h"
#include "glake_admin.h"
#include "tests/bench/bench.h"

#define SMALL_BYTES (8 * KIB)
#define KEY "bench"

struct options {
	uint64_t n_bytes;
	uint64_t each_bytes;
	unsigned n_small;
	unsigned n_runs;
};

/* The report of a process. */
struct told {
	uint64_t publish_ns;
	uint64_t again_ns;
	uint64_t attach_ns;
	uint64_t map_ns;
	uint64_t mapped_bytes;
	struct glake_published published;
};

static uint64_t n_large(const struct options *options)
{
	return options->n_bytes / options->each_bytes;
}

/* The first word of large tensor @i. */
static uint32_t mark(uint64_t i)
{
	return 0x10000u + (uint32_t)i;
}

static void fill(const struct cudrv *drv, glake_ptr ptr, uint64_t n_bytes, uint32_t number)
{
	for (uint64_t at = 0; at < n_bytes; at += 2 * MIB) {
		uint64_t n = n_bytes - at < 2 * MIB ? n_bytes - at : 2 * MIB;
		uint32_t word = number + ((uint32_t)(at / (2 * MIB)) << 20);
		bench_check_cuda(drv, drv->cuMemsetD32Async(ptr + at, word, n / 4, 0),
		                 "cuMemsetD32Async");
	}
}

static size_t make_tensors(const struct options *options, struct glake_session *session,
                           const struct cudrv *drv, struct glake_tensor **tensors_out)
{
	size_t n = n_large(options) + options->n_small;
	struct glake_tensor *tensors = calloc(n, sizeof(*tensors));
	char(*names)[32] = calloc(n, sizeof(*names));
	uint64_t *shapes = calloc(n, sizeof(*shapes));
	glake_ptr small = 0;
	if (options->n_small > 0) {
		uint64_t n_bytes = options->n_small * SMALL_BYTES;
		n_bytes = n_bytes > 2 * MIB ? n_bytes : 2 * MIB;
		bench_check(glake_alloc(session, 0, n_bytes, 0, &small), "glake_alloc");
		fill(drv, small, n_bytes, 7);
	}
	for (size_t i = 0; i < n; i++) {
		bool is_large = i < n_large(options);
		shapes[i] = is_large ? options->each_bytes : SMALL_BYTES;
		snprintf(names[i], sizeof(names[i]), "%s.%04zu", is_large ? "large" : "small", i);
		tensors[i] = (struct glake_tensor){
			.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = GLAKE_U8,
			.n_dims = 1,
			.shape = &shapes[i],
			.ptr = small + (i - n_large(options)) * SMALL_BYTES,
		};
		if (is_large) {
			bench_check(glake_alloc(session, 0, shapes[i], 0, &tensors[i].ptr),
			            "glake_alloc");
			fill(drv, tensors[i].ptr, shapes[i], mark(i));
		}
	}
	bench_check_cuda(drv, drv->cuCtxSynchronize(), "cuCtxSynchronize");
	*tensors_out = tensors;
	return n;
}

static void publish(const struct options *options, struct glake_session *session,
                    const struct cudrv *drv, struct told *told)
{
	struct glake_tensor *tensors;
	size_t n = make_tensors(options, session, drv, &tensors);
	told->published.size = sizeof(told->published);
	uint64_t begin_ns = bench_now_ns();
	bench_check(glake_weights_publish(session, KEY, tensors, n, NULL, &told->published),
	            "glake_weights_publish");
	told->publish_ns = bench_now_ns() - begin_ns;
	begin_ns = bench_now_ns();
	bench_check(glake_weights_publish(session, KEY, tensors, n, NULL, NULL),
	            "glake_weights_publish");
	told->again_ns = bench_now_ns() - begin_ns;
}

static void check(const struct options *options, const struct glake_model *model,
                  const struct cudrv *drv)
{
	for (size_t i = 0; i < n_large(options); i++) {
		char name[32];
		uint32_t word;
		struct glake_tensor tensor = {.size = sizeof(tensor)};
		snprintf(name, sizeof(name), "large.%04zu", i);
		bench_check(glake_model_tensor(model, name, &tensor), "glake_model_tensor");
		bench_check_cuda(drv, drv->cuMemcpyDtoH(&word, tensor.ptr, sizeof(word)),
		                 "cuMemcpyDtoH");
		if (word != mark(i)) {
			bench_fail("%s begins with %x", name, word);
		}
	}
}

static void attach(const struct options *options, struct glake_session *session,
                   const struct cudrv *drv, struct told *told)
{
	struct glake_model *model;
	struct glake_model_info info = {.size = sizeof(info)};
	uint64_t begin_ns = bench_now_ns();
	bench_check(glake_weights_attach(session, KEY, NULL, &model), "glake_weights_attach");
	told->attach_ns = bench_now_ns() - begin_ns;
	bench_check(glake_model_info(model, &info), "glake_model_info");
	told->map_ns = info.map_ns;
	told->mapped_bytes = info.mapped_bytes;
	check(options, model, drv);
	glake_model_close(model);
}

typedef void (*task_fn)(const struct options *options, struct glake_session *session,
                        const struct cudrv *drv, struct told *told);

/* In a process of its own, which ends. */
static struct told run(const struct options *options, task_fn task)
{
	int ends[2];
	int status;
	struct told told = {0};
	if (pipe(ends) < 0) {
		bench_fail("no pipes");
	}
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		struct glake_session *session;
		struct cudrv drv;
		bench_open_cuda(&drv);
		bench_check(glake_connect(NULL, &session), "glake_connect");
		task(options, session, &drv, &told);
		glake_disconnect(session);
		_exit(write(ends[1], &told, sizeof(told)) == sizeof(told) ? 0 : 1);
	}
	close(ends[1]);
	if (pid < 0 || read(ends[0], &told, sizeof(told)) != sizeof(told) ||
	    waitpid(pid, &status, 0) != pid || status != 0) {
		bench_fail("a process has failed");
	}
	close(ends[0]);
	return told;
}

static int add_held(void *user, const struct glake_status *status)
{
	*(uint64_t *)user = status->devices[0].private_bytes + status->devices[0].block_bytes;
	return 0;
}

static uint64_t held_bytes(struct glake_session *session)
{
	uint64_t n_bytes = 0;
	bench_check(glake_get_status(session, add_held, &n_bytes), "glake_get_status");
	return n_bytes;
}

static struct options parse(int argc, char **argv)
{
	static const struct option list[] = {{"bytes", required_argument, NULL, 'b'},
	                                     {"each", required_argument, NULL, 'e'},
	                                     {"small", required_argument, NULL, 's'},
	                                     {"runs", required_argument, NULL, 'r'},
	                                     {0}};
	struct options options = {1024 * MIB, 64 * MIB, 65, 5};
	for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
		uint64_t number = key == '?' ? 0 : strtoull(optarg, NULL, 10);
		options.n_bytes = key == 'b' ? number * MIB : options.n_bytes;
		options.each_bytes = key == 'e' ? number * MIB : options.each_bytes;
		options.n_small = key == 's' ? (unsigned)number : options.n_small;
		options.n_runs = key == 'r' ? (unsigned)number : options.n_runs;
		optind = key == '?' ? argc + 1 : optind;
	}
	if (optind != argc || options.each_bytes == 0 || options.n_runs == 0 ||
	    options.n_bytes % options.each_bytes) {
		fputs("usage: bench_weights [--bytes MIB] [--each MIB] [--small N] [--runs N]\n",
		      stderr);
		exit(2);
	}
	return options;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct glake_connect_options connect = {.size = sizeof(connect), .no_cuda = 1};
	struct bench_samples attaches = {0};
	struct bench_samples maps = {0};
	struct bench_daemon daemon;
	struct glake_session *session;
	struct told told;
	bench_begin("published weights", "1x16GiB");
	bench_daemon_start(&daemon, "mover_idle_ms = 3600000;\n");
	setenv("GLAKE_SOCKET", daemon.socket_path, 1);
	bench_check(glake_connect(&connect, &session), "glake_connect");
	struct options warm = {2 * MIB, 2 * MIB, 0, 1};
	run(&warm, publish);
	bench_check(glake_evict(session, NULL, NULL, NULL), "glake_evict");

	uint64_t before = held_bytes(session);
	told = run(&options, publish);
	uint64_t n_bytes = options.n_bytes + options.n_small * SMALL_BYTES;
	bench_print("publish", "%.1f ms: %.3f GB in %" PRIu64 " + %u tensors, %.1f MiB copied",
	            (double)told.publish_ns / 1e6, (double)n_bytes / 1e9, n_large(&options),
	            options.n_small, (double)told.published.copied_bytes / (double)MIB);
	bench_print("publish the same again", "%.1f ms", (double)told.again_ns / 1e6);
	bench_print("bytes held", "%.4f x the tensors'",
	            (double)(held_bytes(session) - before) / (double)n_bytes);
	for (unsigned i = 0; i < options.n_runs; i++) {
		told = run(&options, attach);
		bench_samples_add(&attaches, told.attach_ns);
		bench_samples_add(&maps, told.map_ns);
	}
	bench_print_runs("attach", &attaches, 1e6, "ms");
	bench_print_runs("  of it mapping", &maps, 1e6, "ms");
	bench_print("bytes mapped", "%.4f x the tensors'",
	            (double)told.mapped_bytes / (double)n_bytes);
	bench_samples_deinit(&attaches);
	bench_samples_deinit(&maps);
	glake_disconnect(session);
	bench_daemon_stop(&daemon);
	return 0;
}

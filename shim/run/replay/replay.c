/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/replay.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/text.h"
#include "proto/cleanup.h"
#include "shim/run/replay/ours.h"
#include "shim/run/replay/play.h"
#include "shim/run/replay/progress.h"

enum {
	EXIT_USAGE = 125,
};

static const char usage_text[] =
	"usage: glake replay [OPTION]... TRACE\n"
	"Replay an allocation trace with several allocators: what would each reserve?\n"
	"TRACE is a file, or - for stdin; glake(1) describes its format.\n"
	"\n"
	"  --on=LIST       of stitch (glaked's memory, stitched), plain (glaked's memory),\n"
	"                  and models: caching (PyTorch's allocator), expandable (the same\n"
	"                  with expandable_segments), driver (cuMemAlloc). Default: all\n"
	"  --device=N      the CUDA device for stitch and plain (0)\n"
	"  --socket=PATH   glaked's socket ($GLAKE_SOCKET, /run/glake/glaked.sock)\n"
	"  --json          sizes in bytes, for programs\n"
	"  --help\n";

/* The allocators, ours first. */
static const struct {
	const char *name;
	const struct model *model; /* NULL: ours */
	int stitch;
} allocators[] = {
	{"stitch", NULL, 1},
	{"plain", NULL, 0},
	{"caching", &model_caching, 0},
	{"expandable", &model_expandable, 0},
	{"driver", &model_driver, 0},
};

#define N_ALLOCATORS n_elements(allocators)

struct options {
	const char *trace_path;
	const char *socket_path;
	int ordinal;
	unsigned on; /* bits, by index in allocators */
	bool is_json;
};

static int complain(const char *subject, const char *reason)
{
	fprintf(stderr, "glake: %s: %s\nTry 'glake replay --help'.\n", subject, reason);
	return EXIT_USAGE;
}

/* 0: the list has an unknown word. */
static unsigned parse_on(const char *list)
{
	unsigned on = 0;
	for (const char *word = list;; word++) {
		unsigned bit = 0;
		size_t n_bytes = strcspn(word, ",");
		for (size_t i = 0; i < N_ALLOCATORS; i++) {
			const char *name = allocators[i].name;
			if (strlen(name) == n_bytes && strncmp(word, name, n_bytes) == 0) {
				bit = 1u << i;
			}
		}
		if (bit == 0) {
			return 0;
		}
		on |= bit;
		word += n_bytes;
		if (*word == '\0') {
			return on;
		}
	}
}

/* -1: not a number. */
static int parse_ordinal(const char *text)
{
	size_t n_digits = strspn(text, "0123456789");
	return n_digits > 0 && n_digits < 5 && text[n_digits] == '\0' ? atoi(text) : -1;
}

/* Both texts may be somebody else's, so control characters must not reach the terminal. */
static void say(const char *path, const char *separator, const char *error)
{
	cleanup_free char *safe_path = text_escape(path);
	cleanup_free char *safe_error = text_escape(error);
	if (safe_path && safe_error) {
		fprintf(stderr, "glake: %s%s%s\n", safe_path, separator, safe_error);
	}
}

static int read_trace(const char *path, struct trace *trace)
{
	char error[TRACE_ERROR_BYTES];
	bool is_stdin = strcmp(path, "-") == 0;
	FILE *file = is_stdin ? stdin : fopen(path, "re");
	if (!file) {
		say(path, ": ", strerror(errno));
		return EXIT_FAILURE;
	}
	int r = trace_read(trace, file, error);
	if (!is_stdin) {
		fclose(file);
	}
	if (r < 0) {
		say(is_stdin ? "stdin" : path, ":", error);
		return EXIT_FAILURE;
	}
	return 0;
}

static int replay(const struct options *options)
{
	struct trace trace;
	struct result results[N_ALLOCATORS];
	size_t n = 0;
	int status = read_trace(options->trace_path, &trace);
	if (status != 0) {
		return status;
	}
	for (size_t i = 0; i < N_ALLOCATORS; i++) {
		const struct ours ours = {.name = allocators[i].name,
		                          .socket_path = options->socket_path,
		                          .ordinal = options->ordinal,
		                          .stitch = allocators[i].stitch};
		if (!(options->on & 1u << i)) {
			continue;
		}
		if (allocators[i].model) {
			play_model(allocators[i].model, &trace, &results[n++]);
		} else if (ours_play(&ours, &trace, &results[n]) == 0) {
			n++;
		} else {
			status = EXIT_FAILURE;
		}
	}
	progress_end();
	(options->is_json ? result_print_json : result_print)(stdout, &trace, results, n);
	trace_deinit(&trace);
	return status;
}

int replay_main(int argc, char **argv)
{
	static const struct option table[] = {
		{"on", required_argument, NULL, 'O'},     {"device", required_argument, NULL, 'd'},
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
	};
	struct options options = {.on = (1u << N_ALLOCATORS) - 1};
	int option;
	/* The variable would make `plain` stitch. */
	unsetenv("GLAKE_ALLOC");
	/* The name in messages of getopt(). */
	argv[0] = program_invocation_short_name;
	optind = 1;
	while ((option = getopt_long(argc, argv, "h", table, NULL)) != -1) {
		switch (option) {
		case 'O':
			options.on = parse_on(optarg);
			if (options.on == 0) {
				return complain(
					optarg,
					"must be a list of stitch, plain, caching, expandable "
					"and driver");
			}
			break;
		case 'd':
			options.ordinal = parse_ordinal(optarg);
			if (options.ordinal < 0) {
				return complain(optarg, "must be the number of a CUDA device");
			}
			break;
		case 's':
			options.socket_path = optarg;
			break;
		case 'j':
			options.is_json = true;
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		default:
			fputs("Try 'glake replay --help'.\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (argc - optind != 1) {
		return complain("replay", argc == optind ? "which trace?" : "one trace at a time");
	}
	options.trace_path = argv[optind];
	return replay(&options);
}

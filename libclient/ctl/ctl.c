/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: which command, with which options and operands; connect; run; report.
 *
 * Options that every command takes may stand before or behind its name.
 */
#include "ctl/ctl.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <time.h>

#include "ctl/text.h"
#include "glake.h"

const struct ctl_command *const ctl_commands[] = {
	&ctl_status,     &ctl_top,     &ctl_stats,  &ctl_sessions, &ctl_fragmentation, &ctl_dedup,
	&ctl_tiers,      &ctl_tenants, &ctl_models, &ctl_blocks,   &ctl_sleepers,      &ctl_events,
	&ctl_map,        &ctl_metrics, &ctl_doctor, &ctl_load,     &ctl_pin,           &ctl_unpin,
	&ctl_evict,      &ctl_quota,   &ctl_drain,  &ctl_seal,     &ctl_sleep,         &ctl_wake,
	&ctl_completion, &ctl_names,   NULL,
};

/* Numbers of long options; those of commands follow with the numbers of enum ctl_option. */
enum {
	OPTION_HELP = 'h',
	OPTION_VERSION = 'V',
	OPTION_SOCKET = 's',
	OPTION_VERBOSE = 'v', /* of commands that have it */
	OPTION_JSON = 256,
	OPTION_OF_COMMAND,
};

/* The result of reading options: go on, or end here with success (help was printed). */
enum {
	GO_ON = 0,
	DONE = -1,
};

static const struct option common_options[] = {
	{"help", no_argument, NULL, OPTION_HELP},
	{"version", no_argument, NULL, OPTION_VERSION},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"json", no_argument, NULL, OPTION_JSON},
};

#define N_COMMON (sizeof(common_options) / sizeof(common_options[0]))

const struct ctl_option_text ctl_options[] = {
	{CTL_OPTION_DEVICE, "device", "N",
         "the GPU, by the number that `glakectl status` shows (load: 0, quota: all)"},
	{CTL_OPTION_NAME, "name", "NAME", "what the model is called in listings (its path)"},
	{CTL_OPTION_PIN, "pin", NULL, "never evict it, until it is unpinned"},
	{CTL_OPTION_ALL, "all", NULL, "every model that nobody uses and nobody pinned"},
	{CTL_OPTION_QUOTA_BYTES, "bytes", "SIZE", "limit on the device, like 24G, or none"},
	{CTL_OPTION_SESSIONS, "sessions", "N", "limit of sessions at a time, or none"},
	{CTL_OPTION_MANIFESTS, "manifests", "SIZE",
         "limit of glaked's memory for manifests, or none"},
	{CTL_OPTION_FORCE, "force", NULL, "also if programs that sleep need more"},
	{CTL_OPTION_EXACT, "bytes", NULL, "sizes in bytes"},
	{CTL_OPTION_DRY_RUN, "dry-run", NULL, "only say how much would be sealed"},
	{CTL_OPTION_WATCH, "watch", NULL, "again each second, until it is interrupted"},
	{CTL_OPTION_HTML, "html", "[=FILE]", "write a page to FILE (fragmentation.html, map.html)"},
	{CTL_OPTION_SECONDS, "seconds", "N", "watch, follow or gather for so long"},
	{CTL_OPTION_FOLLOW, "follow", NULL,
         "then each new one as it comes, until it is interrupted"},
	{CTL_OPTION_VERBOSE, "verbose", NULL, "each number, with the words that name it (-v)"},
	{CTL_OPTION_ONCE, "once", NULL, "once, as plain lines"},
	{CTL_OPTION_SERVE, "serve", "ADDRESS",
         "over HTTP at unix:PATH, 127.0.0.1:PORT or [::1]:PORT; another IP:PORT needs a token"},
	{CTL_OPTION_TOKEN_FILE, "token-file", "FILE",
         "answer only requests that have the first line of FILE as bearer token"},
	{CTL_OPTION_FORGIVE, "forgive", "ID",
         "the program of that mistake, or all, may be sealed by itself again"},
	{CTL_OPTION_MODELS, "models", NULL, "also each model, by name"},
	{CTL_OPTION_UNDO, "undo", NULL, "let new programs in again"},
	{CTL_OPTION_WAIT, "wait", NULL, "until no program is left"},
	{CTL_OPTION_REASON, "reason", "TEXT", "for lists, and for those who are turned away"},
	{0},
};

#define N_OPTIONS (sizeof(ctl_options) / sizeof(ctl_options[0]) - 1)

static void print_commands(FILE *out)
{
	fputs("Usage: glakectl [--socket PATH] [--json] [--bytes] COMMAND [...]\n"
	      "Look at, and steer, the GPU memory that glaked owns.\n\nCommands:\n",
	      out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		fprintf(out, "  %-14s %s\n", ctl_commands[i]->name, ctl_commands[i]->summary);
	}
	fputs("\nOptions:\n"
	      "  --socket PATH  glaked's socket ($GLAKE_SOCKET, then /run/glake/glaked.sock)\n"
	      "  --json         one JSON document instead of text\n"
	      "  --bytes        sizes in bytes\n"
	      "  --help         this text; `glakectl COMMAND --help` says more\n"
	      "  --version      the version\n",
	      out);
}

static void print_command(const struct ctl_command *command, FILE *out)
{
	fprintf(out, "Usage: glakectl %s%s%s%s\n%s.\n\nOptions:\n", command->name,
	        command->options ? " [OPTION...]" : "", *command->operands ? " " : "",
	        command->operands, command->summary);
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (command->options & ctl_options[i].bit) {
			const char *argument = ctl_options[i].argument;
			const char *gap = argument && *argument == '[' ? "" : " ";
			int width = 19 - (int)strlen(ctl_options[i].name) - 2;
			fprintf(out, "  --%s%s%-*s %s\n", ctl_options[i].name, gap,
			        width - (int)strlen(gap), argument ? argument : "",
			        ctl_options[i].help);
		}
	}
	fprintf(out, "  --socket,%s --help: see glakectl --help\n",
	        command->has_no_json ? "" : " --json,");
}

static int set_count(struct ctl *ctl, const char *option, const char *text, uint32_t *count_out)
{
	uint64_t count;
	if (text_parse_count(text, UINT32_MAX, &count) < 0) {
		return ctl_usage(ctl, "--%s: not a number: %s", option, text);
	}
	*count_out = (uint32_t)count;
	return GO_ON;
}

/* @word means 0, which cannot be said as a number: it must be @what. */
static int set_count_or(struct ctl *ctl, const char *option, const char *text, const char *word,
                        const char *what, uint32_t *count_out)
{
	*count_out = 0;
	if (strcmp(text, word) == 0) {
		return GO_ON;
	}
	int err = set_count(ctl, option, text, count_out);
	if (err == GO_ON && *count_out == 0) {
		return ctl_usage(ctl, "--%s: must be %s, or %s", option, what, word);
	}
	return err;
}

static int set_size(struct ctl *ctl, const char *option, const char *text, uint64_t *bytes_out)
{
	if (text_parse_size(text, bytes_out) < 0) {
		return ctl_usage(ctl, "--%s: not a size like 24G or 512MiB, nor none: %s", option,
		                 text);
	}
	return GO_ON;
}

static int set_command_option(struct ctl *ctl, enum ctl_option bit, const char *argument)
{
	ctl->values.given |= bit;
	switch (bit) {
	case CTL_OPTION_DEVICE:
		return set_count(ctl, "device", argument, &ctl->values.device);
	case CTL_OPTION_NAME:
		ctl->values.name = argument;
		return GO_ON;
	case CTL_OPTION_QUOTA_BYTES:
		return set_size(ctl, "bytes", argument, &ctl->values.quota_bytes);
	case CTL_OPTION_MANIFESTS:
		return set_size(ctl, "manifests", argument, &ctl->values.quota_manifest_bytes);
	case CTL_OPTION_SESSIONS:
		return set_count_or(ctl, "sessions", argument, "none", "1 or more",
		                    &ctl->values.max_sessions);
	case CTL_OPTION_FORGIVE:
		return set_count_or(ctl, "forgive", argument, "all", "a number of the list",
		                    &ctl->values.mistake);
	case CTL_OPTION_EXACT:
		ctl->exact = true;
		return GO_ON;
	case CTL_OPTION_HTML:
		ctl->values.html = argument;
		return GO_ON;
	case CTL_OPTION_SERVE:
		ctl->values.serve = argument;
		return GO_ON;
	case CTL_OPTION_TOKEN_FILE:
		ctl->values.token_file = argument;
		return GO_ON;
	case CTL_OPTION_REASON:
		ctl->values.reason = argument;
		return GO_ON;
	case CTL_OPTION_SECONDS:
		return set_count(ctl, "seconds", argument, &ctl->values.seconds);
	default:
		return GO_ON;
	}
}

static int set_option(struct ctl *ctl, int option, char **argv)
{
	switch (option) {
	case OPTION_HELP:
		if (ctl->command) {
			print_command(ctl->command, ctl->out);
		} else {
			print_commands(ctl->out);
		}
		return DONE;
	case OPTION_VERSION:
		fprintf(ctl->out, "glakectl %s\n", glake_version());
		return DONE;
	case OPTION_SOCKET:
		ctl->socket_path = optarg;
		return GO_ON;
	case OPTION_JSON:
		ctl->json = true;
		return GO_ON;
	case OPTION_VERBOSE:
		return set_command_option(ctl, CTL_OPTION_VERBOSE, NULL);
	case ':':
		return ctl_usage(ctl, "%s needs a value", argv[optind - 1]);
	case '?':
		/* A letter may have others behind it. */
		if (optopt < OPTION_JSON && isgraph(optopt) && optopt != OPTION_HELP &&
		    optopt != OPTION_VERSION) {
			return ctl_usage(ctl, "unknown option: -%c", optopt);
		}
		return ctl_usage(ctl, "unknown option, or one that takes no value: %s",
		                 argv[optind - 1]);
	default:
		return set_command_option(
			ctl, (enum ctl_option)(1u << (option - OPTION_OF_COMMAND)), optarg);
	}
}

/* Options up to the first operand ("+"), or, of a command, wherever they stand. */
static int read_options(struct ctl *ctl, int argc, char **argv)
{
	struct option options[N_COMMON + N_OPTIONS + 1];
	unsigned taken = ctl->command ? ctl->command->options : CTL_OPTION_EXACT;
	size_t n_options = N_COMMON;
	memcpy(options, common_options, sizeof(common_options));
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (taken & ctl_options[i].bit) {
			const char *argument = ctl_options[i].argument;
			options[n_options++] = (struct option){
				.name = ctl_options[i].name,
				.has_arg = !argument          ? no_argument
			                   : *argument == '[' ? optional_argument
			                                      : required_argument,
				.val = OPTION_OF_COMMAND + __builtin_ctz(ctl_options[i].bit),
			};
		}
	}
	options[n_options] = (struct option){0};
	/* 0, not 1: glibc then forgets all of an earlier run. */
	optind = 0;
	for (;;) {
		int option = getopt_long(argc, argv,
		                         !ctl->command                ? "+:hVs:"
		                         : taken & CTL_OPTION_VERBOSE ? ":hVs:v"
		                                                      : ":hVs:",
		                         options, NULL);
		if (option == -1) {
			return GO_ON;
		}
		int err = set_option(ctl, option, argv);
		if (err != GO_ON) {
			return err;
		}
	}
}

static const struct ctl_command *find_command(const char *name)
{
	const struct ctl_command *const *at = ctl_commands;
	while (*at && strcmp((*at)->name, name) != 0) {
		at++;
	}
	return *at;
}

static int read_command_line(struct ctl *ctl, int argc, char **argv)
{
	int err = read_options(ctl, argc, argv);
	if (err != GO_ON) {
		return err;
	}
	if (optind >= argc) {
		return ctl_usage(ctl, "which command?");
	}
	argc -= optind;
	argv += optind;
	/* "help COMMAND" is COMMAND --help. */
	bool wants_help = strcmp(argv[0], "help") == 0;
	if (wants_help && argc > 1) {
		argv++;
	}
	ctl->command = find_command(argv[0]);
	if (wants_help && (ctl->command || argc == 1)) {
		return set_option(ctl, OPTION_HELP, argv);
	}
	if (!ctl->command) {
		return ctl_usage(ctl, "no such command: %s", argv[0]);
	}
	err = read_options(ctl, argc, argv);
	if (err != GO_ON) {
		return err;
	}
	if (ctl->json && ctl->command->has_no_json) {
		return ctl_usage(ctl, "--json: the other commands have it");
	}
	ctl->n_operands = argc - optind;
	ctl->operands = argv + optind;
	if (ctl->n_operands < ctl->command->min_operands) {
		return ctl_usage(ctl, "needs %s", ctl->command->operands);
	}
	if (ctl->n_operands > ctl->command->max_operands) {
		return ctl_usage(ctl, "too many operands, from '%s' on",
		                 ctl->operands[ctl->command->max_operands]);
	}
	return ctl->command->check ? ctl->command->check(ctl) : GO_ON;
}

uint64_t ctl_number(const struct ctl *ctl)
{
	uint64_t number = 0;
	if (ctl->n_operands > 0) {
		text_parse_count(ctl->operands[0], INT64_MAX, &number);
	}
	return number;
}

int ctl_check_number(struct ctl *ctl)
{
	/* A process that glaked does not see has pid 0 in its list. */
	if (ctl->n_operands > 0 && ctl_number(ctl) == 0) {
		return ctl_usage(ctl, "neither a pid nor a session: %s", ctl->operands[0]);
	}
	return 0;
}

uint64_t ctl_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int ctl_connect(struct ctl *ctl)
{
	struct glake_connect_options options = {
		.size = sizeof(options),
		.socket_path = ctl->socket_path,
		.program = "glakectl",
		.no_cuda = 1,
		.only_looks = !ctl->command->takes,
	};
	return glake_connect(&options, &ctl->session);
}

void ctl_disconnect(struct ctl *ctl)
{
	glake_disconnect(ctl->session);
	ctl->session = NULL;
}

static int connect_and_run(struct ctl *ctl)
{
	int err = ctl_connect(ctl);
	bool is_unreachable = ctl_exit_code(err) == CTL_UNREACHABLE;
	if (err == 0) {
		err = ctl->command->run(ctl);
	}
	if (err < 0) {
		char cause[512];
		snprintf(cause, sizeof(cause), "%s", *ctl->cause ? ctl->cause : glake_error());
		ctl_report(ctl, err, cause);
		if (is_unreachable && ctl->command->unreachable && !ctl->json) {
			ctl->command->unreachable(ctl, err, cause);
		}
	}
	ctl_disconnect(ctl);
	return err;
}

static bool wants_json(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (strcmp(argv[i], "--json") == 0) {
			return true;
		}
	}
	return false;
}

int ctl_run(int argc, char **argv, FILE *out, FILE *err)
{
	/* Looked for ahead, so that a bad command line is reported in the form asked for, too. */
	struct ctl ctl = {
		.out = out, .err = err, .json = wants_json(argc, argv), .arguments = argv};
	text_set_locale();
	int result = read_command_line(&ctl, argc, argv);
	if (result == GO_ON) {
		result = ctl.command->is_offline ? ctl.command->run(&ctl) : connect_and_run(&ctl);
	} else if (result == DONE) {
		result = 0;
	}
	if (fflush(out) != 0 || ferror(out) || result == CTL_E_OUTPUT) {
		fprintf(err, "glakectl: cannot write the answer: %s\n", strerror(errno));
		return CTL_FAILED;
	}
	return result == CTL_E_USAGE ? CTL_USAGE : ctl_exit_code(result);
}

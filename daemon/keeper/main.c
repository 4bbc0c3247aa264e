/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake-keeper: two small parents in one program. With a command it is the service manager of glaked
 * (supervisor.h). Without arguments it is a child of glaked, and the parent of its movers (movers.h).
 */
#include <argp.h>
#include <stdlib.h>

#include "daemon/keeper/movers.h"
#include "daemon/keeper/supervisor.h"

/* libc looks it up by its name. */
__attribute__((visibility("default")))
const char *argp_program_version = "glake-keeper " GLAKE_VERSION;

#define WATCHDOG_MS 30000

static const struct argp_option argp_options[] = {
	{"max-fds", 'n', "N", 0, "Keep no more than N fds (what the limit on open files allows)",
         0},
	{"watchdog", 'w', "SECONDS", 0, "Replace a glaked that is silent so long (30); 0 = never",
         0},
	{0},
};

static uint64_t number(const char *text, struct argp_state *state)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || value > UINT32_MAX) {
		argp_error(state, "not a number: '%s'", text);
	}
	return value;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct supervisor_options *options = state->input;
	switch (key) {
	case 'n':
		options->max_fds = number(value, state);
		return 0;
	case 'w':
		options->watchdog_ms = number(value, state) * 1000;
		return 0;
	case ARGP_KEY_ARGS:
		options->command = state->argv + state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "no command");
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		argp_options,
		parse,
		"-- glaked [ARGUMENT...]",
		"Keeps the memory of a glaked that ends, and starts the next one."
		"\vSIGTERM and SIGINT drain glaked and end both, SIGUSR2 restarts it, SIGHUP and "
		"SIGUSR1 are passed on.",
		NULL,
		NULL,
		NULL};
	struct supervisor_options options = {.watchdog_ms = WATCHDOG_MS};
	if (argc == 1) {
		return movers_keep();
	}
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
	return supervisor_run(&options);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* glaked: the owner of the GPU memory of one node. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "daemon/config/config.h"
#include "daemon/net/keeper_starter.h"
#include "daemon/server.h"

enum {
	OPTION_CHECK_CONFIG = 0x100,
	OPTION_WAIT_FOR_GPU,
};

struct arguments {
	struct server_options server;
	int check_config;
};

/* libc looks it up by its name, but glaked hides its names. */
__attribute__((visibility("default"))) const char *argp_program_version = "glaked " GLAKE_VERSION;

static const struct argp_option options[] = {
	{"config", 'c', "FILE", 0, "Read FILE ($GLAKE_CONFIG, else built-in defaults)", 0},
	{"socket", 's', "PATH", 0, "Listen on PATH ($GLAKE_SOCKET, else the configuration's)", 0},
	{"check-config", OPTION_CHECK_CONFIG, NULL, 0, "Check FILE and exit", 0},
	{"wait-for-gpu", OPTION_WAIT_FOR_GPU, NULL, 0,
         "Without a GPU, tell clients why, and end with status 75 after 2 to 60 seconds", 0},
	{0},
};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case 'c':
		arguments->server.config_path = value;
		return 0;
	case 's':
		arguments->server.socket_path = value;
		return 0;
	case OPTION_WAIT_FOR_GPU:
		arguments->server.waits_for_gpu = true;
		return 0;
	case OPTION_CHECK_CONFIG:
		arguments->check_config = 1;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument: '%s'", value);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int check_config(const char *path)
{
	struct config *config;
	char error[512];
	if (!path) {
		/* Built-in defaults are always right: whoever asks means a file. */
		fputs("glaked: --check-config: which file? Name it with --config or "
		      "$GLAKE_CONFIG\n",
		      stderr);
		return 2;
	}
	if (config_load(path, &config, error, sizeof(error)) < 0) {
		fprintf(stderr, "%s\n", error);
		return 2;
	}
	config_free(config);
	return 0;
}

/* An empty variable counts as unset. */
static const char *from_environment(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		NULL,
		"The owner of the GPU memory of one node."
		"\vRuns in the foreground. SIGINT drains and ends, SIGTERM leaves what there is to "
		"the next glaked if its fds are kept, SIGHUP reads the configuration again.",
		NULL,
		NULL,
		NULL};
	struct arguments arguments = {.server = {.config_path = from_environment("GLAKE_CONFIG"),
	                                         .socket_path = from_environment("GLAKE_SOCKET"),
	                                         .nodes_path = from_environment("GLAKE_NODES")}};
	/*
	 * If the shim is preloaded into everything, glaked and its mover must not become their own
	 * clients.
	 */
	setenv("GLAKE_SHIM", "off", 1);
	/*
	 * Nor clients of an MPS server, where a fault of one ends the contexts of all: no server
	 * answers there. Our children have this environment.
	 */
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	if (arguments.check_config) {
		return check_config(arguments.server.config_path);
	}
	/* Children inherit nothing of what the service manager passed. */
	sd_listen_fds(0);
	arguments.server.keeper_socket = keeper_starter_begin();
	if (arguments.server.keeper_socket < 0) {
		fprintf(stderr, "cannot start glake-keeper: %s\n",
		        strerror(-arguments.server.keeper_socket));
		return 1;
	}
	return server_run(&arguments.server);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names of what there is, a line each: for completions of shells, and for loops. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "glake.h"
#include "glake_admin.h"

#define DEFAULT_SOCKET "/run/glake/glaked.sock"

/* Nobody waits longer at a key for a glaked that does not answer. */
#define PATIENCE_S 2

struct names {
	struct ctl *ctl;
	json_t *list;
};

/*
 * Shells make words of it, and expand some: so nothing that means anything to one is in it. Names that have such characters
 * are left out.
 */
static bool is_plain(const char *name)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "._/@%+,-";
	return *name && *name != '-' && name[strspn(name, plain)] == '\0';
}

static int add(struct names *names, const char *name)
{
	size_t i;
	json_t *other;
	if (!is_plain(name)) {
		return 0;
	}
	json_array_foreach(names->list, i, other)
	{
		if (strcmp(json_string_value(other), name) == 0) {
			return 0;
		}
	}
	return json_array_append_new(names->list, json_string(name)) < 0 ? CTL_E_OUTPUT : 0;
}

static int add_pid(void *names, const struct glake_session_row *row)
{
	char text[16];
	snprintf(text, sizeof(text), "%u", row->pid);
	return row->pid == (uint32_t)getpid() ? 0 : add(names, text);
}

static int add_tenant(void *names, const struct glake_tenant_row *row)
{
	return add(names, row->name);
}

static int add_model(void *names, const struct glake_model_row *row)
{
	return add(names, row->name);
}

static int list_pids(struct names *names)
{
	return glake_list_sessions(names->ctl->session, add_pid, names);
}

static int list_tenants(struct names *names)
{
	return glake_list_tenants(names->ctl->session, add_tenant, names);
}

static int list_models(struct names *names)
{
	return glake_list_models(names->ctl->session, add_model, names);
}

static int list_sockets(struct names *names)
{
	const char *const paths[] = {getenv("GLAKE_SOCKET"), DEFAULT_SOCKET};
	int err = 0;
	for (size_t i = 0; err == 0 && i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct stat status;
		if (paths[i] && stat(paths[i], &status) == 0 && S_ISSOCK(status.st_mode)) {
			err = add(names, paths[i]);
		}
	}
	return err;
}

static const struct {
	const char *name;
	bool is_offline;
	int (*list)(struct names *names);
} kinds[] = {
	{"pids", false, list_pids},
	{"tenants", false, list_tenants},
	{"models", false, list_models},
	{"sockets", true, list_sockets},
};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static size_t find_kind(const char *name)
{
	size_t i = 0;
	while (i < N_KINDS && strcmp(kinds[i].name, name) != 0) {
		i++;
	}
	return i;
}

static int list_all(struct names *names)
{
	struct ctl *ctl = names->ctl;
	int err = 0;
	for (int i = 0; err == 0 && i < ctl->n_operands; i++) {
		size_t kind = find_kind(ctl->operands[i]);
		if (!kinds[kind].is_offline && !ctl->session) {
			err = ctl_connect(ctl);
		}
		err = err ? err : kinds[kind].list(names);
	}
	return err;
}

static int print(const struct names *names)
{
	size_t i;
	json_t *name;
	json_array_foreach(names->list, i, name)
	{
		fprintf(names->ctl->out, "%s\n", json_string_value(name));
	}
	return 0;
}

static int run_names(struct ctl *ctl)
{
	struct names names = {.ctl = ctl, .list = json_array()};
	/* The alarm's signal ends this process. */
	alarm(PATIENCE_S);
	int err = names.list ? list_all(&names) : CTL_E_OUTPUT;
	alarm(0);
	if (err < 0) {
		ctl_report(ctl, err, glake_error());
	} else if (err == 0 && ctl->json) {
		err = ctl_print_json(ctl, json_pack("{s:O}", "names", names.list));
	} else if (err == 0) {
		err = print(&names);
	}
	json_decref(names.list);
	ctl_disconnect(ctl);
	return err;
}

static int check_names(struct ctl *ctl)
{
	for (int i = 0; i < ctl->n_operands; i++) {
		if (find_kind(ctl->operands[i]) == N_KINDS) {
			return ctl_usage(ctl, "not a kind of names: %s", ctl->operands[i]);
		}
	}
	return 0;
}

const struct ctl_command ctl_names = {
	.name = "names",
	.operands = "pids | tenants | models | sockets",
	.summary = "Names of what there is, a line each, for completions and loops",
	.min_operands = 1,
	.max_operands = N_KINDS,
	.is_offline = true,
	.check = check_names,
	.run = run_names,
};

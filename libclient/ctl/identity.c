/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/identity.h"

#include <dirent.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The folder where the kubelet has pods/NAMESPACE_POD_UID/ and containers/POD_NAMESPACE_CONTAINER-ID.log */
#define LOGS "/var/log"
#define LOGS_VARIABLE "GLAKE_POD_LOGS"

/* A folder may have more; then some names are not found. */
#define MAX_ENTRIES 20000u

#define LOOK_AGAIN_MS 10000u

/* All texts are owned, so they stay where they are when rows move. */
struct identity_user {
	uint32_t uid;
	char *name;
};

struct identity_pod {
	char *namespace; /* owned; the others point into it */
	char *pod;
	char *uid;
};

struct identity_container {
	char *pod; /* owned; the others point into it */
	char *namespace;
	char *container;
	char *id;
};

void identities_init(struct identities *identities)
{
	*identities = (struct identities){.has_looked = false};
}

static void forget_pods(struct identities *identities)
{
	for (size_t i = 0; i < identities->pods.n; i++) {
		free(((struct identity_pod *)rows_at(&identities->pods, i))->namespace);
	}
	for (size_t i = 0; i < identities->containers.n; i++) {
		free(((struct identity_container *)rows_at(&identities->containers, i))->pod);
	}
	rows_deinit(&identities->pods);
	rows_deinit(&identities->containers);
	identities->has_looked = false;
	identities->has_missed = false;
}

void identities_deinit(struct identities *identities)
{
	for (size_t i = 0; i < identities->users.n; i++) {
		free(((struct identity_user *)rows_at(&identities->users, i))->name);
	}
	rows_deinit(&identities->users);
	forget_pods(identities);
}

void identities_refresh(struct identities *identities)
{
	if (identities->has_missed && ctl_now_ms() - identities->looked_ms > LOOK_AGAIN_MS) {
		forget_pods(identities);
	}
}

const char *identity_label(const char *name, const char *script, const char *program)
{
	return name && *name ? name : script && *script ? script : program ? program : "";
}

/* ---- users ------------------------------------------------------------------------------------ */

static char *find_user(uint32_t uid)
{
	char buffer[4096];
	char number[16];
	struct passwd user;
	struct passwd *found = NULL;
	if (getpwuid_r(uid, &user, buffer, sizeof(buffer), &found) == 0 && found) {
		return strdup(found->pw_name);
	}
	snprintf(number, sizeof(number), "%" PRIu32, uid);
	return strdup(number);
}

static const char *user_of(struct identities *identities, uint32_t uid)
{
	for (size_t i = 0; i < identities->users.n; i++) {
		const struct identity_user *user = rows_at(&identities->users, i);
		if (user->uid == uid) {
			return user->name ? user->name : "";
		}
	}
	struct identity_user *user = rows_add(&identities->users, sizeof(*user));
	if (!user) {
		return "";
	}
	user->uid = uid;
	user->name = find_user(uid);
	return user->name ? user->name : "";
}

/* ---- pods ------------------------------------------------------------------------------------- */

/* Ends the text at the first @mark behind @at and returns what follows; NULL: there is none. */
static char *cut(char *at, char mark)
{
	char *end = at ? strchr(at, mark) : NULL;
	if (end) {
		*end++ = '\0';
	}
	return end;
}

/* Names of Kubernetes have no underscore. */
static void take_pod(struct identities *identities, const char *name)
{
	char *copy = strdup(name);
	char *pod = cut(copy, '_');
	char *uid = cut(pod, '_');
	struct identity_pod *row = uid ? rows_add(&identities->pods, sizeof(*row)) : NULL;
	if (row) {
		*row = (struct identity_pod){.namespace = copy, .pod = pod, .uid = uid};
	} else {
		free(copy);
	}
}

static void take_container(struct identities *identities, const char *name)
{
	char *copy = strdup(name);
	char *namespace = cut(copy, '_');
	char *container = cut(namespace, '_');
	/* A container's name may have dashes; its id has none. */
	char *id = container ? strrchr(container, '-') : NULL;
	if (id) {
		*id++ = '\0';
		cut(id, '.');
	}
	struct identity_container *row = id ? rows_add(&identities->containers, sizeof(*row))
	                                    : NULL;
	if (row) {
		*row = (struct identity_container){
			.pod = copy, .namespace = namespace, .container = container, .id = id};
	} else {
		free(copy);
	}
}

static void read_names(struct identities *identities, const char *folder,
                       void (*take)(struct identities *identities, const char *name))
{
	const char *logs = getenv(LOGS_VARIABLE);
	char path[4096];
	snprintf(path, sizeof(path), "%s/%s", logs ? logs : LOGS, folder);
	DIR *names = opendir(path);
	const struct dirent *entry;
	for (unsigned i = 0; names && i < MAX_ENTRIES && (entry = readdir(names)); i++) {
		take(identities, entry->d_name);
	}
	if (names) {
		closedir(names);
	}
}

static void find_pod(struct identities *identities, const struct glake_session_row *row,
                     struct identity *identity)
{
	if (!identities->has_looked) {
		identities->has_looked = true;
		identities->looked_ms = ctl_now_ms();
		read_names(identities, "pods", take_pod);
		read_names(identities, "containers", take_container);
	}
	for (size_t i = 0; i < identities->pods.n; i++) {
		const struct identity_pod *of = rows_at(&identities->pods, i);
		if (strcmp(of->uid, row->pod_uid) == 0) {
			identity->pod = of->pod;
			identity->namespace = of->namespace;
		}
	}
	for (size_t i = 0; i < identities->containers.n; i++) {
		const struct identity_container *of = rows_at(&identities->containers, i);
		if (*row->container_id && strcmp(of->id, row->container_id) == 0) {
			identity->container = of->container;
			identity->pod = of->pod;
			identity->namespace = of->namespace;
		}
	}
	identities->has_missed |= !*identity->pod || (*row->container_id && !*identity->container);
}

struct identity identity_place(struct identities *identities, const struct glake_session_row *row)
{
	struct identity identity = {
		.label = identity_label(row->name, row->script, row->program),
		.user = "",
		.pod = "",
		.namespace = "",
		.container = "",
	};
	if (row->pod_uid && *row->pod_uid) {
		find_pod(identities, row, &identity);
	}
	return identity;
}

struct identity identity_of(struct identities *identities, const struct glake_session_row *row)
{
	struct identity identity = identity_place(identities, row);
	identity.user = user_of(identities, row->uid);
	return identity;
}

void identity_pod(const struct identity *identity, const struct glake_session_row *row,
                  char *text_out, size_t n_bytes)
{
	if (*identity->pod) {
		snprintf(text_out, n_bytes, "%s/%s", identity->namespace, identity->pod);
	} else {
		snprintf(text_out, n_bytes, "%s", row->pod_uid ? row->pod_uid : "");
	}
}

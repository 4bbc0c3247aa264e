/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A diff lists the keys in which two configurations differ. Each value is written as text and the texts are compared, so a key
 * can differ in nothing that its line does not show. Realms and tenants are matched by name.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/config_show.h"
#include "proto/cleanup.h"

/* Lists of groups: below. And names of users and groups: they are uids and gids when they are read. */
#define config_show_realms NULL
#define config_show_tenants NULL
#define config_show_users NULL
#define config_show_groups NULL

static const struct {
	const char *section;
	const char *name;
	config_show_fn show;
	size_t offset;
} keys[] = {
#define KEY_SHOWN(section, type, name, fallback, value, field, min, max) \
	{section, #name, config_show_##value, offsetof(struct type, field)},
	CONFIG_KEYS(KEY_SHOWN)
#undef KEY_SHOWN
};

/* The keys that glaked reads at its start only. */
static const char *const fixed[] = {
	"socket_path", "state_path", "socket_mode",   "libcuda",    "devices",
	"fd_budget",   "pool",       "reserve_bytes", "host_bytes",
};

struct diff {
	config_change_fn change;
	void *user;
	int n;     /* changes */
	int error; /* the first */
};

bool config_is_fixed(const char *section, const char *name)
{
	for (size_t i = 0; !*section && i < n_elements(fixed); i++) {
		if (strcmp(fixed[i], name) == 0) {
			return true;
		}
	}
	return false;
}

static void add(struct diff *diff, const char *key, const char *before, const char *after,
                bool holds_before)
{
	const struct config_change change = {
		.key = key, .before = before, .after = after, .is_fixed = holds_before};
	diff->n++;
	diff->change(diff->user, &change);
}

/* Owned by the caller; NULL: no memory. */
static char *text_of(config_show_fn show, const void *field)
{
	char *text = NULL;
	size_t n_bytes;
	FILE *out = open_memstream(&text, &n_bytes);
	if (!out) {
		return NULL;
	}
	show(field, out);
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* @prefix: "" or "tenants.research.". */
static void diff_group(struct diff *diff, const char *section, const char *prefix,
                       const void *before, const void *after)
{
	for (size_t i = 0; i < n_elements(keys); i++) {
		if (strcmp(keys[i].section, section) != 0 || !keys[i].show) {
			continue;
		}
		char key[2 * CONFIG_NAME_BYTES + 64];
		cleanup_free char *was = text_of(keys[i].show,
		                                 (const char *)before + keys[i].offset);
		cleanup_free char *is = text_of(keys[i].show, (const char *)after + keys[i].offset);
		if (!was || !is) {
			diff->error = -ENOMEM;
			return;
		}
		if (strcmp(was, is) != 0) {
			snprintf(key, sizeof(key), "%s%s", prefix, keys[i].name);
			add(diff, key, was, is, config_is_fixed(section, keys[i].name));
		}
	}
}

/* ---- lists of groups, each with a name at its beginning ---- */

struct groups {
	const char *array;
	size_t n;
	size_t element_bytes;
};

static const char *name_at(const struct groups *groups, size_t i)
{
	return groups->array + i * groups->element_bytes;
}

static const char *find_group(const struct groups *groups, const char *name)
{
	for (size_t i = 0; i < groups->n; i++) {
		if (strcmp(name_at(groups, i), name) == 0) {
			return name_at(groups, i);
		}
	}
	return NULL;
}

/* The names of @groups that @others has as well. */
static char *common_names(const struct groups *groups, const struct groups *others)
{
	char *text = NULL;
	size_t n_bytes;
	const char *gap = "";
	FILE *out = open_memstream(&text, &n_bytes);
	if (!out) {
		return NULL;
	}
	for (size_t i = 0; i < groups->n; i++) {
		if (find_group(others, name_at(groups, i))) {
			fprintf(out, "%s%s", gap, name_at(groups, i));
			gap = ", ";
		}
	}
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* The first rule that matches is taken. */
static void diff_order(struct diff *diff, const char *section, const struct groups *before,
                       const struct groups *after)
{
	char key[CONFIG_NAME_BYTES];
	cleanup_free char *was = common_names(before, after);
	cleanup_free char *is = common_names(after, before);
	if (!was || !is) {
		diff->error = -ENOMEM;
	} else if (strcmp(was, is) != 0) {
		snprintf(key, sizeof(key), "order of %s", section);
		add(diff, key, was, is, false);
	}
}

static void diff_groups(struct diff *diff, const char *section, const struct groups *before,
                        const struct groups *after)
{
	char key[2 * CONFIG_NAME_BYTES];
	for (size_t i = 0; i < before->n; i++) {
		const char *name = name_at(before, i);
		const char *other = find_group(after, name);
		snprintf(key, sizeof(key), "%s.%s%s", section, name, other ? "." : "");
		if (other) {
			diff_group(diff, section, key, name, other);
		} else {
			add(diff, key, "-", "removed", false);
		}
	}
	for (size_t i = 0; i < after->n; i++) {
		const char *name = name_at(after, i);
		if (!find_group(before, name)) {
			snprintf(key, sizeof(key), "%s.%s", section, name);
			add(diff, key, "-", "added", false);
		}
	}
	diff_order(diff, section, before, after);
}

_Static_assert(offsetof(struct config_realm, name) == 0, "see name_at()");
_Static_assert(offsetof(struct config_tenant, name) == 0, "see name_at()");

static struct groups realms_of(const struct config *config)
{
	return (struct groups){(const char *)config->realms, config->n_realms,
	                       sizeof(config->realms[0])};
}

static struct groups tenants_of(const struct config *config)
{
	return (struct groups){(const char *)config->tenants, config->n_tenants,
	                       sizeof(config->tenants[0])};
}

int config_diff(const struct config *before, const struct config *after, config_change_fn change,
                void *user)
{
	struct diff diff = {.change = change, .user = user};
	const struct groups realms[] = {realms_of(before), realms_of(after)};
	const struct groups tenants[] = {tenants_of(before), tenants_of(after)};
	diff_group(&diff, "", "", before, after);
	diff_groups(&diff, "realms", &realms[0], &realms[1]);
	diff_groups(&diff, "tenants", &tenants[0], &tenants[1]);
	return diff.error < 0 ? diff.error : diff.n;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/changes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"

/* Lines of the log about one reload. */
#define CHANGES_LOGGED 64u

/* The changes of a reload: a line of the log for each, and one event for all. */
struct changes {
	unsigned n;
	bool is_cut; /* not all of them fit the event's text */
	char text[EVENT_TEXT_BYTES - 96];
	char fixed[256]; /* names of those that hold from the start on */
};

static void append(char *text, size_t text_bytes, const char *gap, const char *more)
{
	size_t n_bytes = strlen(text);
	snprintf(text + n_bytes, text_bytes - n_bytes, "%s%s", n_bytes ? gap : "", more);
}

static void note_change(void *user, const struct config_change *change)
{
	struct changes *changes = user;
	bool is_group = strcmp(change->before, "-") == 0;
	char line[512];
	snprintf(line, sizeof(line), "%s %s%s%s", change->key, is_group ? "" : change->before,
	         is_group ? "" : " -> ", change->after);
	if (changes->n++ < CHANGES_LOGGED) {
		log_info("configuration: %s%s", line,
		         change->is_fixed ? " after a restart of glaked" : "");
	}
	if (change->is_fixed) {
		append(changes->fixed, sizeof(changes->fixed), ", ", change->key);
	}
	if (strlen(changes->text) + strlen(line) + 2 < sizeof(changes->text)) {
		append(changes->text, sizeof(changes->text), "; ", line);
	} else {
		changes->is_cut = true;
	}
}

static void say(struct events *events, const struct changes *changes)
{
	static const struct event_subject nobody = {.realm = NULL};
	if (changes->n > CHANGES_LOGGED) {
		log_info("configuration: and %u changes more", changes->n - CHANGES_LOGGED);
	}
	if (changes->n == 0) {
		log_info("read the configuration again: nothing has changed");
		return;
	}
	if (changes->fixed[0]) {
		log_warning("read the configuration again; these keys stay as they were until "
		            "glaked is restarted: %s",
		            changes->fixed);
	}
	events_add(events, EVENT_CONFIG, &nobody, "read the configuration again, %u change%s: %s%s",
	           changes->n, changes->n == 1 ? "" : "s", changes->text,
	           changes->is_cut ? "; and more, in the log" : "");
}

void changes_say(struct events *events, const struct config *before, const struct config *after)
{
	struct changes changes = {.n = 0};
	if (config_diff(before, after, note_change, &changes) < 0) {
		log_warning("read the configuration again; there is no host memory to say what has "
		            "changed");
		return;
	}
	say(events, &changes);
}

static bool has_set_limits(const struct tenant_table *table, uint32_t n_locations,
                           const struct tenant *tenant, const struct config_tenant *rule)
{
	bool has = tenant->max_sessions != rule->max_sessions ||
	           tenant->quota_manifest_bytes != rule->manifest_bytes;
	for (uint32_t i = 0; i < n_locations; i++) {
		has |= tenant->at[i].quota_bytes != tenant_configured_quota(table, rule, i);
	}
	return has;
}

void changes_say_reset(struct tenant_table *table, uint32_t n_locations,
                       const struct config *before)
{
	for (size_t i = 0; i < before->n_tenants; i++) {
		const struct config_tenant *rule = &before->tenants[i];
		const struct tenant *tenant = tenant_find(table, rule->name);
		if (tenant && has_set_limits(table, n_locations, tenant, rule)) {
			log_info("configuration: limits of tenant %s that glakectl quota has set "
			         "end",
			         rule->name);
		}
	}
}

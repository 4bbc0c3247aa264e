/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/pod_refusals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "glake_admin.h"

static bool is_of(const struct pod_refusal *row, const struct pod_refusal *who)
{
	return strcmp(row->pod_uid, who->pod_uid) == 0 &&
	       strcmp(row->container_id, who->container_id) == 0 &&
	       strcmp(row->tenant, who->tenant) == 0;
}

static struct pod_refusal *find(const struct pod_refusals *refusals, const struct pod_refusal *who)
{
	for (size_t i = 0; i < refusals->rows.n; i++) {
		struct pod_refusal *row = rows_at(&refusals->rows, i);
		if (is_of(row, who)) {
			return row;
		}
	}
	return NULL;
}

static struct pod_refusal *oldest(const struct pod_refusals *refusals)
{
	struct pod_refusal *oldest = rows_at(&refusals->rows, 0);
	for (size_t i = 1; i < refusals->rows.n; i++) {
		struct pod_refusal *row = rows_at(&refusals->rows, i);
		oldest = row->last < oldest->last ? row : oldest;
	}
	return oldest;
}

/* NULL: no memory. */
static struct pod_refusal *find_or_add(struct pod_refusals *refusals, const struct pod_refusal *who)
{
	struct pod_refusal *row = find(refusals, who);
	if (!row) {
		row = refusals->rows.n < POD_REFUSALS_MAX ? rows_add(&refusals->rows, sizeof(*row))
		                                          : oldest(refusals);
		if (row) {
			*row = *who;
		}
	}
	return row;
}

static void put(char *to, size_t n_bytes, const char *from)
{
	snprintf(to, n_bytes, "%s", from ? from : "");
}

struct following {
	struct pod_refusals *refusals;
	bool counts;
};

static int take_event(void *user, const struct glake_event_row *event)
{
	struct following *following = user;
	struct pod_refusals *refusals = following->refusals;
	struct pod_refusal who = {.n = 0};
	refusals->after = event->id;
	if (!following->counts || event->n_refused == 0 || !event->pod_uid || !*event->pod_uid) {
		return 0;
	}
	put(who.pod_uid, sizeof(who.pod_uid), event->pod_uid);
	put(who.container_id, sizeof(who.container_id), event->container_id);
	put(who.tenant, sizeof(who.tenant), event->tenant);
	struct pod_refusal *row = find_or_add(refusals, &who);
	if (!row) {
		return -ENOMEM;
	}
	row->n += event->n_refused;
	row->last = ++refusals->n_events;
	return 0;
}

int pod_refusals_follow(struct pod_refusals *refusals, struct ctl *ctl, uint64_t pid)
{
	struct following following = {.refusals = refusals, .counts = refusals->glaked != 0};
	if (refusals->glaked != pid) {
		/* Each glaked numbers its own. */
		refusals->after = 0;
		refusals->glaked = pid;
	}
	return glake_list_events_after(ctl->session, refusals->after, take_event, &following);
}

void pod_refusals_deinit(struct pod_refusals *refusals)
{
	rows_deinit(&refusals->rows);
}

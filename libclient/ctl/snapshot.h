/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that glaked tells at one time: what the live views and the metrics are made of.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; snapshot_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_SNAPSHOT_H
#define GLAKE_CTL_SNAPSHOT_H

#include "ctl/ctl.h"
#include "ctl/rows.h"
#include "glake_admin.h"

struct snapshot_metric {
	const char *name;
	uint64_t value;
	const char *help;
};

/* A session has a model open. */
struct snapshot_use {
	uint64_t session;
	uint64_t model;
};

/* Texts and lists of rows are owned by the snapshot. */
struct snapshot {
	uint64_t at_ms;             /* CLOCK_MONOTONIC */
	struct glake_status status; /* without its devices */
	struct rows devices;        /* struct glake_device_status */
	struct rows sessions;       /* struct glake_session_row by id, without glakectl's own */
	struct rows tenants;        /* struct glake_tenant_row */
	struct rows models;         /* struct glake_model_row */
	struct rows sleepers;       /* struct glake_sleeper_row by session, without what stays */
	struct rows uses;           /* struct snapshot_use, by model, then by session; each once */
	struct rows metrics;        /* struct snapshot_metric */
	struct rows histograms;     /* struct glake_histogram */
	struct rows refusals;       /* struct pod_refusal, if somebody follows them: has_refusals */
	bool has_refusals;
	struct rows kept; /* void *: what the others point to */
};

/* Returns 0 or a code of glake.h: then @snapshot is empty. It is to be ended either way. */
int snapshot_take(struct ctl *ctl, struct snapshot *snapshot);
void snapshot_deinit(struct snapshot *snapshot);

/* NULL: there is none of that number. */
const struct glake_device_status *snapshot_device(const struct snapshot *snapshot, uint32_t index);
/* NULL: there is none of that id. */
const struct glake_session_row *snapshot_session(const struct snapshot *snapshot, uint64_t id);
/* NULL: that session does not sleep. */
const struct glake_sleeper_row *snapshot_sleeper(const struct snapshot *snapshot, uint64_t session);
/* The index of the first use of @model; if it has none, of the first behind. */
size_t snapshot_uses_of(const struct snapshot *snapshot, uint64_t model);

/* The value of a counter; 0: there is none of that name. */
uint64_t snapshot_counter(const struct snapshot *snapshot, const char *name);

#endif

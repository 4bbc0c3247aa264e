/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/snapshot.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "glake.h"

void snapshot_deinit(struct snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->kept.n; i++) {
		free(*(void **)rows_at(&snapshot->kept, i));
	}
	rows_deinit(&snapshot->kept);
	rows_deinit(&snapshot->devices);
	rows_deinit(&snapshot->sessions);
	rows_deinit(&snapshot->tenants);
	rows_deinit(&snapshot->models);
	rows_deinit(&snapshot->sleepers);
	rows_deinit(&snapshot->uses);
	rows_deinit(&snapshot->metrics);
	rows_deinit(&snapshot->histograms);
	rows_deinit(&snapshot->refusals);
	*snapshot = (struct snapshot){.at_ms = 0};
}

/* A copy that lives as long as the snapshot; NULL: no memory. */
static void *keep(struct snapshot *snapshot, const void *bytes, size_t n_bytes)
{
	void **place = rows_add(&snapshot->kept, sizeof(*place));
	if (!place) {
		return NULL;
	}
	*place = malloc(n_bytes + 1);
	return *place && n_bytes > 0 ? memcpy(*place, bytes, n_bytes) : *place;
}

/* Keeps copies of texts: const char **, up to a NULL. Returns 0 or -ENOMEM. */
__attribute__((sentinel)) static int keep_texts(struct snapshot *snapshot, ...)
{
	va_list texts;
	const char **text;
	int err = 0;
	va_start(texts, snapshot);
	while (err == 0 && (text = va_arg(texts, const char **))) {
		*text = keep(snapshot, *text ? *text : "", *text ? strlen(*text) + 1 : 1);
		err = *text ? 0 : -ENOMEM;
	}
	va_end(texts);
	return err;
}

/* A copy of @row, without what it points to. NULL: no memory. */
static void *copy_row(struct rows *rows, const void *row, size_t n_bytes)
{
	void *copy = rows_add(rows, n_bytes);
	return copy ? memcpy(copy, row, n_bytes) : NULL;
}

static int take_status(void *user, const struct glake_status *status)
{
	struct snapshot *snapshot = user;
	snapshot->status = *status;
	snapshot->status.devices = NULL;
	snapshot->status.hosts = keep(snapshot, status->hosts,
	                              status->n_hosts * sizeof(*status->hosts));
	struct glake_status *copy = &snapshot->status;
	int err = !copy->hosts ? -ENOMEM
	                       : keep_texts(snapshot, &copy->hosts_lacking, &copy->version,
	                                    &copy->driver, &copy->config, &copy->drain_reason,
	                                    &copy->mover, NULL);
	for (uint32_t i = 0; err == 0 && i < status->n_devices; i++) {
		struct glake_device_status *row = copy_row(&snapshot->devices, &status->devices[i],
		                                           sizeof(*row));
		err = row ? keep_texts(snapshot, &row->name, &row->fabric, NULL) : -ENOMEM;
	}
	return err;
}

static int take_session(void *user, const struct glake_session_row *of)
{
	struct snapshot *snapshot = user;
	if (of->pid == (uint32_t)getpid() && of->reserved_bytes + of->shared_bytes == 0) {
		return 0;
	}
	struct glake_session_row *row = copy_row(&snapshot->sessions, of, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	row->devices = keep(snapshot, of->devices, of->n_devices * sizeof(*of->devices));
	row->refused_why = "";
	row->n_unsealed = 0;
	row->unsealed = NULL;
	row->n_pools = 0;
	row->pools = NULL;
	return row->devices ? keep_texts(snapshot, &row->program, &row->tenant, &row->realm,
	                                 &row->name, &row->script, &row->arguments, &row->cgroup,
	                                 &row->pod_uid, &row->container_id, &row->wait_bound, NULL)
	                    : -ENOMEM;
}

static int take_tenant(void *user, const struct glake_tenant_row *of)
{
	struct snapshot *snapshot = user;
	struct glake_tenant_row *row = copy_row(&snapshot->tenants, of, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	row->devices = keep(snapshot, of->devices, of->n_devices * sizeof(*of->devices));
	row->hosts = keep(snapshot, of->hosts, of->n_hosts * sizeof(*of->hosts));
	return row->devices && row->hosts ? keep_texts(snapshot, &row->name, NULL) : -ENOMEM;
}

static int take_model(void *user, const struct glake_model_row *of)
{
	struct snapshot *snapshot = user;
	struct glake_model_row *row = copy_row(&snapshot->models, of, sizeof(*row));
	return row ? keep_texts(snapshot, &row->name, &row->realm, &row->state, &row->reload_reason,
	                        NULL)
	           : -ENOMEM;
}

static int take_sleeper(void *user, const struct glake_sleeper_row *of)
{
	struct snapshot *snapshot = user;
	struct glake_sleeper_row *row = copy_row(&snapshot->sleepers, of, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	row->n_stays = 0;
	row->stays = NULL;
	row->n_models = 0;
	row->models = NULL;
	return keep_texts(snapshot, &row->program, &row->tenant, &row->realm, &row->state,
	                  &row->why, &row->name, &row->script, NULL);
}

static int take_use(void *user, const struct glake_use_row *row)
{
	struct snapshot *snapshot = user;
	for (uint32_t i = 0; i < row->n_models; i++) {
		const struct snapshot_use of = {.session = row->session, .model = row->models[i]};
		if (rows_append(&snapshot->uses, &of, sizeof(of)) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int compare(uint64_t left, uint64_t right)
{
	return left > right ? 1 : left < right ? -1 : 0;
}

static int by_id(const void *a, const void *b)
{
	const struct glake_session_row *left = a;
	const struct glake_session_row *right = b;
	return compare(left->session, right->session);
}

static int by_session(const void *a, const void *b)
{
	const struct glake_sleeper_row *left = a;
	const struct glake_sleeper_row *right = b;
	return compare(left->session, right->session);
}

static int by_model(const void *a, const void *b)
{
	const struct snapshot_use *left = a;
	const struct snapshot_use *right = b;
	int order = compare(left->model, right->model);
	return order != 0 ? order : compare(left->session, right->session);
}

/* A session has a model once, however often it has opened it. */
static void sort_uses(struct rows *uses)
{
	size_t n = 0;
	rows_sort(uses, by_model);
	for (size_t i = 0; i < uses->n; i++) {
		if (n == 0 || by_model(rows_at(uses, n - 1), rows_at(uses, i)) != 0) {
			memmove(rows_at(uses, n++), rows_at(uses, i), uses->row_bytes);
		}
	}
	uses->n = n;
}

/* An older glaked does not know each request. */
static int if_known(int err)
{
	return err == GLAKE_E_BAD_REQUEST ? 0 : err;
}

static int take_metric(void *user, const char *name, uint64_t value, const char *help)
{
	struct snapshot *snapshot = user;
	const struct snapshot_metric of = {.name = name, .value = value, .help = help};
	struct snapshot_metric *row = copy_row(&snapshot->metrics, &of, sizeof(of));
	return row ? keep_texts(snapshot, &row->name, &row->help, NULL) : -ENOMEM;
}

static int take_histogram(void *user, const struct glake_histogram *of)
{
	struct snapshot *snapshot = user;
	struct glake_histogram *row = copy_row(&snapshot->histograms, of, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	row->bounds_ns = keep(snapshot, of->bounds_ns, of->n_bounds * sizeof(*of->bounds_ns));
	row->counts = keep(snapshot, of->counts, (of->n_bounds + 1) * sizeof(*of->counts));
	return row->bounds_ns && row->counts ? keep_texts(snapshot, &row->name, &row->help, NULL)
	                                     : -ENOMEM;
}

int snapshot_take(struct ctl *ctl, struct snapshot *snapshot)
{
	*snapshot = (struct snapshot){
		.at_ms = ctl_now_ms(),
	};
	struct glake_session *session = ctl->session;
	int err = glake_get_status(session, take_status, snapshot);
	err = err ? err : glake_list_sessions(session, take_session, snapshot);
	err = err ? err : glake_list_tenants(session, take_tenant, snapshot);
	err = err ? err : glake_list_models(session, take_model, snapshot);
	err = err ? err : if_known(glake_list_uses(session, take_use, snapshot));
	err = err ? err : if_known(glake_list_sleepers(session, take_sleeper, snapshot));
	err = err ? err : glake_get_stats(session, take_metric, snapshot);
	err = err ? err : glake_get_histograms(session, take_histogram, snapshot);
	if (err) {
		snapshot_deinit(snapshot);
		return err;
	}
	rows_sort(&snapshot->sessions, by_id);
	rows_sort(&snapshot->sleepers, by_session);
	sort_uses(&snapshot->uses);
	return 0;
}

const struct glake_device_status *snapshot_device(const struct snapshot *snapshot, uint32_t index)
{
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		if (device->index == index) {
			return device;
		}
	}
	return NULL;
}

const struct glake_session_row *snapshot_session(const struct snapshot *snapshot, uint64_t id)
{
	const struct glake_session_row key = {.session = id};
	return rows_find(&snapshot->sessions, &key, by_id);
}

const struct glake_sleeper_row *snapshot_sleeper(const struct snapshot *snapshot, uint64_t session)
{
	const struct glake_sleeper_row key = {.session = session};
	return rows_find(&snapshot->sleepers, &key, by_session);
}

size_t snapshot_uses_of(const struct snapshot *snapshot, uint64_t model)
{
	const struct snapshot_use key = {.model = model};
	size_t begin = 0;
	size_t end = snapshot->uses.n;
	while (begin < end) {
		size_t middle = begin + (end - begin) / 2;
		if (by_model(rows_at(&snapshot->uses, middle), &key) < 0) {
			begin = middle + 1;
		} else {
			end = middle;
		}
	}
	return begin;
}

uint64_t snapshot_counter(const struct snapshot *snapshot, const char *name)
{
	for (size_t i = 0; i < snapshot->metrics.n; i++) {
		const struct snapshot_metric *metric = rows_at(&snapshot->metrics, i);
		if (strcmp(metric->name, name) == 0) {
			return metric->value;
		}
	}
	return 0;
}

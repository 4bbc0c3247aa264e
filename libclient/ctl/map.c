/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl/field.h"
#include "ctl/memory.h"
#include "ctl/page.h"

/* The uses of a device's memory, from the bottom of the chart up, as memory_uses() has them. */
static const char *const use_names[MEMORY_N_USES] = {
	"private", "blocks", "cached", "pool", "driver", "foreign", "unaccounted",
};

struct map_sample {
	uint64_t at_ms;
	uint32_t device;
	uint64_t bytes[MEMORY_N_USES];
};

/* Every second of the older half goes: what is long ago has fewer samples. */
static void thin(struct map *map)
{
	size_t kept = 0;
	size_t n_times = 0;
	uint64_t last_ms = UINT64_MAX;
	size_t i_time = 0;
	for (size_t i = 0; i < map->samples.n; i++) {
		const struct map_sample *sample = rows_at(&map->samples, i);
		bool is_new = sample->at_ms != last_ms;
		i_time += is_new && i > 0;
		last_ms = sample->at_ms;
		if (i_time % 2 == 0 || i_time >= map->n_times / 2) {
			n_times += is_new;
			memmove(rows_at(&map->samples, kept++), sample, sizeof(*sample));
		}
	}
	map->samples.n = kept;
	map->n_times = n_times;
}

int map_add(struct map *map, const struct snapshot *snapshot)
{
	if (map->n_times == MAP_MAX_SAMPLES) {
		thin(map);
	}
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		struct map_sample sample = {.at_ms = snapshot->at_ms, .device = device->index};
		memory_uses(device, sample.bytes);
		if (rows_append(&map->samples, &sample, sizeof(sample)) < 0) {
			return -ENOMEM;
		}
	}
	map->n_times++;
	return 0;
}

void map_deinit(struct map *map)
{
	rows_deinit(&map->samples);
	map->n_times = 0;
}

/* ---- the document ----------------------------------------------------------------------------- */

/* Sessions of a model that are named; it says how many there are. */
#define MAX_READERS 64u

/* Sessions, and models, in one document: of more, the largest. */
#define MAX_ROWS 1000u

static uint64_t session_bytes(const void *row)
{
	const struct glake_session_row *session = row;
	return session->reserved_bytes + session->shared_bytes;
}

static uint64_t model_bytes(const void *row)
{
	return ((const struct glake_model_row *)row)->part_bytes;
}

static int larger(const void *a, const void *b, void *user)
{
	uint64_t (*bytes_of)(const void *) = *(uint64_t(**)(const void *))user;
	uint64_t left = bytes_of(*(const void *const *)a);
	uint64_t right = bytes_of(*(const void *const *)b);
	return left < right ? 1 : left > right ? -1 : 0;
}

/* Pointers to the rows that are shown, @n_out of them, for the caller to free. NULL: there is none, or no memory. */
static const void **largest(const struct rows *rows, uint64_t (*bytes_of)(const void *row),
                            size_t *n_out)
{
	const void **list = rows->n > 0 ? calloc(rows->n, sizeof(*list)) : NULL;
	*n_out = 0;
	if (!list) {
		return NULL;
	}
	for (size_t i = 0; i < rows->n; i++) {
		list[i] = rows_at(rows, i);
	}
	if (rows->n > MAX_ROWS) {
		qsort_r(list, rows->n, sizeof(*list), larger, (void *)&bytes_of);
	}
	*n_out = rows->n < MAX_ROWS ? rows->n : MAX_ROWS;
	return list;
}

static json_t *model_object(const struct snapshot *snapshot, const struct glake_model_row *model)
{
	json_t *object = ctl_model_object(model);
	json_t *sessions = json_array();
	size_t begin = snapshot_uses_of(snapshot, model->id);
	for (size_t i = begin; i < snapshot->uses.n && i - begin < MAX_READERS; i++) {
		const struct snapshot_use *use = rows_at(&snapshot->uses, i);
		if (use->model != model->id) {
			break;
		}
		json_array_append_new(sessions, json_integer((json_int_t)use->session));
	}
	json_object_set_new(object, "sessions", sessions);
	return object;
}

/* Without arguments: who looks at the page is not known. */
static json_t *session_object(struct identities *identities,
                              const struct glake_session_row *session)
{
	json_t *object = ctl_session_object(identities, session);
	json_object_del(object, "arguments");
	return object;
}

static json_t *times(const struct map *map)
{
	json_t *list = json_array();
	uint64_t last_ms = 0;
	for (size_t i = 0; i < map->samples.n; i++) {
		const struct map_sample *sample = rows_at(&map->samples, i);
		if (i == 0 || sample->at_ms != last_ms) {
			json_array_append_new(list, json_integer((json_int_t)sample->at_ms));
		}
		last_ms = sample->at_ms;
	}
	return list;
}

static json_t *history_of(const struct map *map, uint32_t device)
{
	json_t *object = json_pack("{s:I}", "device", (json_int_t)device);
	for (size_t use = 0; use < MEMORY_N_USES; use++) {
		json_t *list = json_array();
		for (size_t i = 0; i < map->samples.n; i++) {
			const struct map_sample *sample = rows_at(&map->samples, i);
			if (sample->device == device) {
				json_array_append_new(list,
				                      json_integer((json_int_t)sample->bytes[use]));
			}
		}
		json_object_set_new(object, use_names[use], list);
	}
	return object;
}

static json_t *host_name(void)
{
	char host[256] = "";
	gethostname(host, sizeof(host) - 1);
	return field_string(host);
}

static json_t *begin_document(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return json_pack("{s:i, s:o, s:I}", "version", MAP_DOCUMENT_VERSION, "host", host_name(),
	                 "time_ms",
	                 (json_int_t)now.tv_sec * 1000 + (json_int_t)now.tv_nsec / 1000000);
}

json_t *map_no_document(const char *why)
{
	json_t *document = begin_document();
	json_object_set_new(document, "error", field_string(why));
	return document;
}

json_t *map_document(const struct map *map, const struct snapshot *snapshot,
                     struct identities *identities)
{
	json_t *document = begin_document();
	json_t *devices = json_array();
	json_t *history = json_array();
	json_t *sessions = json_array();
	json_t *tenants = json_array();
	json_t *models = json_array();
	json_t *sleepers = json_array();
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		json_array_append_new(devices, ctl_device_object(device));
		json_array_append_new(history, history_of(map, device->index));
	}
	size_t n_sessions;
	const void **shown = largest(&snapshot->sessions, session_bytes, &n_sessions);
	for (size_t i = 0; i < n_sessions; i++) {
		json_array_append_new(sessions, session_object(identities, shown[i]));
	}
	free(shown);
	for (size_t i = 0; i < snapshot->tenants.n; i++) {
		json_array_append_new(tenants, ctl_tenant_object(rows_at(&snapshot->tenants, i)));
	}
	size_t n_models;
	shown = largest(&snapshot->models, model_bytes, &n_models);
	for (size_t i = 0; i < n_models; i++) {
		json_array_append_new(models, model_object(snapshot, shown[i]));
	}
	free(shown);
	for (size_t i = 0; i < snapshot->sleepers.n; i++) {
		json_array_append_new(sleepers,
		                      ctl_sleeper_object(rows_at(&snapshot->sleepers, i)));
	}
	json_object_set_new(document, "error", json_null());
	json_object_set_new(document, "status", ctl_status_object(&snapshot->status));
	json_object_set_new(document, "devices", devices);
	json_object_set_new(document, "hosts", ctl_host_list(&snapshot->status));
	json_object_set_new(document, "sessions", sessions);
	json_object_set_new(document, "tenants", tenants);
	json_object_set_new(document, "models", models);
	json_object_set_new(document, "sleepers", sleepers);
	json_object_set_new(document, "n_sessions_left_out",
	                    json_integer((json_int_t)(snapshot->sessions.n - n_sessions)));
	json_object_set_new(document, "n_models_left_out",
	                    json_integer((json_int_t)(snapshot->models.n - n_models)));
	json_object_set_new(document, "history_ms", times(map));
	json_object_set_new(document, "history", history);
	return document;
}

int map_write(const struct map *map, const struct snapshot *snapshot, FILE *out)
{
	struct identities identities;
	identities_init(&identities);
	json_t *document = map_document(map, snapshot, &identities);
	int err = page_write(document, out);
	json_decref(document);
	identities_deinit(&identities);
	return err;
}

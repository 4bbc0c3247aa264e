/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/metrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/text.h"

/* ---- the format ------------------------------------------------------------------------------- */

static void begin(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label of foreign text: what is not UTF-8 is escaped as on a terminal, and then as the format wants it. */
static void label(FILE *out, const char *name, const char *text)
{
	char *escaped = text_is_utf8(text) ? NULL : text_escape(text);
	fprintf(out, "%s=\"", name);
	for (const char *at = escaped ? escaped : text; *at; at++) {
		if (*at == '\n') {
			fputs("\\n", out);
			continue;
		}
		if (*at == '"' || *at == '\\') {
			fputc('\\', out);
		}
		fputc(*at, out);
	}
	fputc('"', out);
	free(escaped);
}

static void value(FILE *out, uint64_t number)
{
	fprintf(out, "} %" PRIu64 "\n", number);
}

/* The whole of a metric that has no labels. */
static void plain(FILE *out, const char *name, const char *help, uint64_t number)
{
	begin(out, name, "gauge", help);
	fprintf(out, "%s %" PRIu64 "\n", name, number);
}

/* ---- glaked and its devices ------------------------------------------------------------------- */

static void write_daemon(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	begin(out, "glake_info", "gauge", "Versions of glaked and of the CUDA driver");
	fputs("glake_info{", out);
	label(out, "version", status->version);
	fputc(',', out);
	label(out, "driver", status->driver);
	value(out, 1);
	begin(out, "glake_uptime_seconds", "gauge", "Since glaked started");
	fprintf(out, "glake_uptime_seconds %.3f\n", (double)status->uptime_ms / 1000);
	plain(out, "glake_draining", "1 while glaked takes no new sessions",
	      (uint64_t)(status->draining != 0));
	plain(out, "glake_mover_running", "1 while glake-mover runs",
	      (uint64_t)(strncmp(status->mover, "running", 7) == 0));
	plain(out, "glake_sessions", "Sessions, detached ones included", status->n_sessions);
	plain(out, "glake_models", "Models in the store", status->n_models);
	plain(out, "glake_blocks", "Blocks in the store", status->n_blocks);
	plain(out, "glake_fds_used", "File descriptors of chunks and blocks", status->fds_used);
	plain(out, "glake_fds_budget", "What there may be of them: fd_budget less max_sessions",
	      status->fds_budget);
	plain(out, "glake_kept_fds", "File descriptors that the next glaked would have",
	      status->kept_fds);
	plain(out, "glake_max_kept_fds", "So many can be kept; 0: a restart loses the store",
	      status->max_kept_fds);
	plain(out, "glake_unkept_blocks", "Blocks that wait for room there: a restart loses them",
	      status->unkept_blocks);
	plain(out, "glake_unparked_bytes",
	      "Chunks without a file descriptor since glaked was restarted",
	      status->unparked_bytes);
}

#define OF(member) offsetof(struct glake_device_status, member)

static uint64_t number_at(const void *row, size_t offset)
{
	return *(const uint64_t *)((const char *)row + offset);
}

static void device_label(FILE *out, const char *name, uint32_t device)
{
	fprintf(out, "%s{device=\"%" PRIu32 "\"", name, device);
}

static void use(FILE *out, const struct glake_device_status *device, const char *name,
                uint64_t bytes)
{
	device_label(out, "glake_device_bytes", device->index);
	fprintf(out, ",use=\"%s\"", name);
	value(out, bytes);
}

/* Each byte of the device once, if NVML tells what is free. */
static void write_uses(const struct glake_device_status *device, FILE *out)
{
	uint64_t used = device->used_block_bytes;
	use(out, device, "private", device->private_bytes);
	use(out, device, "blocks_used", used);
	use(out, device, "blocks_cached",
	    device->block_bytes > used ? device->block_bytes - used : 0);
	use(out, device, "pool", device->pool_bytes);
	use(out, device, "context", device->context_bytes);
	use(out, device, "managed", device->managed_bytes);
	use(out, device, "array", device->array_bytes);
	use(out, device, "graph", device->graph_bytes);
	use(out, device, "other", device->other_bytes);
	use(out, device, "mover", device->mover_bytes);
	if (device->free_bytes > 0) {
		use(out, device, "foreign", device->foreign_bytes);
		use(out, device, "unaccounted", device->unaccounted_bytes);
		use(out, device, "free", device->free_bytes);
	}
}

static void write_devices(const struct snapshot *snapshot, FILE *out)
{
	static const struct {
		const char *name;
		const char *help;
		size_t offset;
	} numbers[] = {
		{"glake_device_total_bytes", "Memory of the device", OF(total_bytes)},
		{"glake_device_physical_bytes", "Chunks that exist", OF(physical_bytes)},
		{"glake_device_logical_bytes", "What sessions would have without sharing",
	         OF(logical_bytes)},
		{"glake_device_logical_block_bytes", "Of it, blocks", OF(logical_block_bytes)},
	};
	const struct rows *devices = &snapshot->devices;
	begin(out, "glake_device_info", "gauge", "Name and UUID of the device");
	for (size_t i = 0; i < devices->n; i++) {
		const struct glake_device_status *device = rows_at(devices, i);
		device_label(out, "glake_device_info", device->index);
		fputc(',', out);
		label(out, "name", device->name);
		fputs(",uuid=\"GPU-", out);
		for (int at = 0; at < 16; at++) {
			fprintf(out, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x",
			        device->uuid[at]);
		}
		fputc('"', out);
		value(out, 1);
	}
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
		begin(out, numbers[n].name, "gauge", numbers[n].help);
		for (size_t i = 0; i < devices->n; i++) {
			const struct glake_device_status *device = rows_at(devices, i);
			device_label(out, numbers[n].name, device->index);
			value(out, number_at(device, numbers[n].offset));
		}
	}
	begin(out, "glake_device_bytes", "gauge",
	      "Memory of the device by its use; the uses add up to the total if free is known");
	for (size_t i = 0; i < devices->n; i++) {
		write_uses(rows_at(devices, i), out);
	}
}

#undef OF

static void host_use(FILE *out, const struct glake_host_status *host, const char *name,
                     uint64_t bytes)
{
	fprintf(out, "glake_host_bytes{node=\"%" PRIu32 "\",use=\"%s\"", host->node, name);
	value(out, bytes);
}

static void write_hosts(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	begin(out, "glake_host_limit_bytes", "gauge", "Host memory that chunks may have");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		fprintf(out, "glake_host_limit_bytes{node=\"%" PRIu32 "\"", status->hosts[i].node);
		value(out, status->hosts[i].limit_bytes);
	}
	begin(out, "glake_host_bytes", "gauge", "Chunks in host memory by their use");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		const struct glake_host_status *host = &status->hosts[i];
		host_use(out, host, "private", host->private_bytes);
		host_use(out, host, "copies_used", host->used_copy_bytes);
		host_use(out, host, "copies_free", host->copy_bytes - host->used_copy_bytes);
	}
}

static void write_copies(const struct glake_host_status *host, const char *name, uint64_t bytes,
                         FILE *out)
{
	fprintf(out, "glake_host_copy_bytes{node=\"%" PRIu32 "\",for=\"%s\"", host->node, name);
	value(out, bytes);
}

/* Each copy once, and what those of sleepers stand for. */
static void write_tier(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	begin(out, "glake_host_copy_bytes", "gauge",
	      "Copies in host memory by what they are for; those that are made or read are not "
	      "here");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		const struct glake_host_status *host = &status->hosts[i];
		write_copies(host, "sleep", host->sleep_copy_bytes, out);
		write_copies(host, "model", host->model_copy_bytes, out);
		write_copies(host, "cache", host->cached_copy_bytes, out);
	}
	begin(out, "glake_host_slept_bytes", "gauge",
	      "What copies for sleep stand for: without sharing they would be so much");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		fprintf(out, "glake_host_slept_bytes{node=\"%" PRIu32 "\"", status->hosts[i].node);
		value(out, status->hosts[i].slept_bytes);
	}
}

static void write_asleep(const char *kind, uint64_t bytes, FILE *out)
{
	fprintf(out, "glake_asleep_bytes{kind=\"%s\"", kind);
	value(out, bytes);
}

static void write_sleepers(const struct snapshot *snapshot, FILE *out)
{
	struct glake_sleeper_row sum = {.session = 0};
	uint64_t n_waking = 0;
	uint64_t n_waiting = 0;
	for (size_t i = 0; i < snapshot->sleepers.n; i++) {
		const struct glake_sleeper_row *sleeper = rows_at(&snapshot->sleepers, i);
		sum.private_bytes += sleeper->private_bytes;
		sum.shared_bytes += sleeper->shared_bytes;
		sum.gpu_bytes += sleeper->gpu_bytes;
		sum.stays_bytes += sleeper->stays_bytes;
		n_waking += strcmp(sleeper->state, "waking") == 0;
		n_waiting += sleeper->place > 0;
		sum.waiting_ms = sleeper->waiting_ms > sum.waiting_ms ? sleeper->waiting_ms
		                                                      : sum.waiting_ms;
	}
	plain(out, "glake_sleepers", "Programs that sleep, or wake", snapshot->sleepers.n);
	plain(out, "glake_sleepers_waking", "Of them: those that wake", n_waking);
	plain(out, "glake_sleepers_waiting", "Of those: they wait for room", n_waiting);
	begin(out, "glake_sleepers_waiting_seconds", "gauge", "The longest of these waits so far");
	fprintf(out, "glake_sleepers_waiting_seconds %.3f\n", (double)sum.waiting_ms / 1000);
	begin(out, "glake_asleep_bytes", "gauge",
	      "Of programs that sleep: private and shared memory; of the shared one what the GPU "
	      "has "
	      "still; what stays there");
	write_asleep("private", sum.private_bytes, out);
	write_asleep("shared", sum.shared_bytes, out);
	write_asleep("on_gpu", sum.gpu_bytes, out);
	write_asleep("stays", sum.stays_bytes, out);
}

/* ---- tenants, sessions, models ---------------------------------------------------------------- */

static void tenant_label(FILE *out, const char *name, const struct glake_tenant_row *tenant)
{
	fprintf(out, "%s{", name);
	label(out, "tenant", tenant->name);
}

#define OF(member) offsetof(struct glake_tenant_device, member)

/* A limit that is not set has no sample. */
static void write_tenant_devices(const struct rows *tenants, FILE *out)
{
	static const struct {
		const char *name;
		const char *help;
		size_t offset;
		bool is_limit;
	} numbers[] = {
		{"glake_tenant_bytes", "What the tenant is charged for", OF(used_bytes), false},
		{"glake_tenant_peak_bytes", "The highest charge", OF(peak_bytes), false},
		{"glake_tenant_quota_bytes", "Its limit", OF(quota_bytes), true},
	};
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
		begin(out, numbers[n].name, "gauge", numbers[n].help);
		for (size_t i = 0; i < tenants->n; i++) {
			const struct glake_tenant_row *tenant = rows_at(tenants, i);
			for (uint32_t at = 0; at < tenant->n_devices; at++) {
				uint64_t number = number_at(&tenant->devices[at],
				                            numbers[n].offset);
				if (number == 0 && numbers[n].is_limit) {
					continue;
				}
				tenant_label(out, numbers[n].name, tenant);
				fprintf(out, ",device=\"%" PRIu32 "\"", tenant->devices[at].device);
				value(out, number);
			}
		}
	}
}

#undef OF

static void write_tenants(const struct snapshot *snapshot, FILE *out)
{
	const struct rows *tenants = &snapshot->tenants;
	write_tenant_devices(tenants, out);
	begin(out, "glake_tenant_host_bytes", "gauge", "What it is charged for in host memory");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		for (uint32_t at = 0; at < tenant->n_hosts; at++) {
			tenant_label(out, "glake_tenant_host_bytes", tenant);
			fprintf(out, ",node=\"%" PRIu32 "\"", tenant->hosts[at].device);
			value(out, tenant->hosts[at].used_bytes);
		}
	}
	begin(out, "glake_tenant_sessions", "gauge", "Sessions of the tenant");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		tenant_label(out, "glake_tenant_sessions", tenant);
		value(out, tenant->n_sessions);
	}
	begin(out, "glake_tenant_fds", "gauge", "Chunks and blocks that the tenant is charged for");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		tenant_label(out, "glake_tenant_fds", tenant);
		value(out, tenant->n_fds);
	}
}

/*
 * Sessions, and models, that have samples of their own. The smaller ones are one: a monitoring system keeps every series
 * that there ever was, and nodes may have thousands.
 */
#define MAX_SHOWN 200u

/* Pointers to @rows, the largest first; the caller's. NULL: no memory. */
static const void **sorted(const struct rows *rows, int (*compare)(const void *, const void *))
{
	const void **list = calloc(rows->n + 1, sizeof(*list));
	for (size_t i = 0; list && i < rows->n; i++) {
		list[i] = rows_at(rows, i);
	}
	if (list) {
		qsort(list, rows->n, sizeof(*list), compare);
	}
	return list;
}

struct kind {
	const char *name;
	size_t offset;
};

#define OF(member) offsetof(struct glake_session_row, member)

static int larger_session(const void *a, const void *b)
{
	const struct glake_session_row *left = *(const struct glake_session_row *const *)a;
	const struct glake_session_row *right = *(const struct glake_session_row *const *)b;
	uint64_t left_bytes = left->reserved_bytes + left->shared_bytes;
	uint64_t right_bytes = right->reserved_bytes + right->shared_bytes;
	return left_bytes < right_bytes ? 1 : left_bytes > right_bytes ? -1 : 0;
}

static void session_label(FILE *out, const char *name, const struct glake_session_row *session)
{
	fprintf(out, "%s{session=\"%" PRIu64 "\",pid=\"%" PRIu32 "\",", name, session->session,
	        session->pid);
	label(out, "program", session->program);
	fputc(',', out);
	label(out, "tenant", session->tenant);
}

static void write_sessions(const struct snapshot *snapshot, FILE *out)
{
	static const struct kind kinds[] = {
		{"reserved", OF(reserved_bytes)},
		{"live", OF(live_bytes)},
		{"warm", OF(warm_bytes)},
		{"shared", OF(shared_bytes)},
	};
	enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };
	size_t n = snapshot->sessions.n;
	const void **sessions = sorted(&snapshot->sessions, larger_session);
	uint64_t others[N_KINDS] = {0};
	begin(out, "glake_session_bytes", "gauge",
	      "Memory of a session; live and warm are the program's word");
	for (size_t i = 0; sessions && i < n; i++) {
		for (size_t at = 0; at < N_KINDS; at++) {
			uint64_t bytes = number_at(sessions[i], kinds[at].offset);
			if (i >= MAX_SHOWN) {
				others[at] += bytes;
				continue;
			}
			session_label(out, "glake_session_bytes", sessions[i]);
			fprintf(out, ",kind=\"%s\"", kinds[at].name);
			value(out, bytes);
		}
	}
	for (size_t at = 0; at < N_KINDS && n > MAX_SHOWN; at++) {
		fprintf(out, "glake_session_bytes{session=\"other\",kind=\"%s\"", kinds[at].name);
		value(out, others[at]);
	}
	/* Of others there is no sum that only grows. */
	begin(out, "glake_session_requests_total", "counter", "Requests of a session");
	for (size_t i = 0; sessions && i < n && i < MAX_SHOWN; i++) {
		const struct glake_session_row *session = sessions[i];
		session_label(out, "glake_session_requests_total", session);
		value(out, session->n_requests);
	}
	free(sessions);
}

#undef OF
#define OF(member) offsetof(struct glake_model_row, member)

static int larger_model(const void *a, const void *b)
{
	const struct glake_model_row *left = *(const struct glake_model_row *const *)a;
	const struct glake_model_row *right = *(const struct glake_model_row *const *)b;
	return left->span_bytes < right->span_bytes   ? 1
	       : left->span_bytes > right->span_bytes ? -1
	                                              : 0;
}

static void model_label(FILE *out, const char *name, const struct glake_model_row *model)
{
	fprintf(out, "%s{id=\"%" PRIu64 "\",", name, model->id);
	label(out, "model", model->name);
	fputc(',', out);
	label(out, "realm", model->realm);
	fprintf(out, ",device=\"%" PRIu32 "\"", model->device);
}

/* Those that have no samples of their own, by device. */
static void write_other_models(const struct snapshot *snapshot, const void *const *models,
                               const struct kind *kinds, size_t n_kinds, FILE *out)
{
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		for (size_t at = 0; at < n_kinds; at++) {
			uint64_t bytes = 0;
			for (size_t n = MAX_SHOWN; n < snapshot->models.n; n++) {
				const struct glake_model_row *model = models[n];
				bytes += model->device == device->index
				                 ? number_at(model, kinds[at].offset)
				                 : 0;
			}
			fprintf(out,
			        "glake_model_bytes{id=\"other\",device=\"%" PRIu32 "\",kind=\"%s\"",
			        device->index, kinds[at].name);
			value(out, bytes);
		}
	}
}

static void write_models(const struct snapshot *snapshot, FILE *out)
{
	static const struct kind kinds[] = {
		{"span", OF(span_bytes)},
		{"part", OF(part_bytes)},
		{"unique", OF(unique_bytes)},
		{"copied", OF(copied_bytes)},
	};
	enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };
	const void **models = sorted(&snapshot->models, larger_model);
	size_t n = !models ? 0 : snapshot->models.n < MAX_SHOWN ? snapshot->models.n : MAX_SHOWN;
	begin(out, "glake_model_bytes", "gauge",
	      "Blocks of a model; its part of them, which adds up over models; those that only it "
	      "has; those that host memory has a copy of");
	for (size_t i = 0; i < n; i++) {
		for (size_t at = 0; at < N_KINDS; at++) {
			model_label(out, "glake_model_bytes", models[i]);
			fprintf(out, ",kind=\"%s\"", kinds[at].name);
			value(out, number_at(models[i], kinds[at].offset));
		}
	}
	if (models && snapshot->models.n > MAX_SHOWN) {
		write_other_models(snapshot, models, kinds, N_KINDS, out);
	}
	begin(out, "glake_model_open", "gauge", "Sessions that have the model open");
	for (size_t i = 0; i < n; i++) {
		const struct glake_model_row *model = models[i];
		model_label(out, "glake_model_open", model);
		value(out, model->n_open);
	}
	begin(out, "glake_model_pinned", "gauge", "1 if the model is pinned");
	for (size_t i = 0; i < n; i++) {
		const struct glake_model_row *model = models[i];
		model_label(out, "glake_model_pinned", model);
		value(out, (uint64_t)(model->pinned != 0));
	}
	free(models);
}

#undef OF

/* ---- counters and histograms ------------------------------------------------------------------ */

static void write_counter(const struct snapshot_metric *metric, FILE *out)
{
	char name[128];
	size_t n = strlen(metric->name);
	bool has_suffix = n > 6 && strcmp(metric->name + n - 6, "_total") == 0;
	snprintf(name, sizeof(name), "glake_%s%s", metric->name, has_suffix ? "" : "_total");
	begin(out, name, "counter", metric->help);
	fprintf(out, "%s %" PRIu64 "\n", name, metric->value);
}

static void write_histogram(const struct glake_histogram *histogram, FILE *out)
{
	char name[128];
	snprintf(name, sizeof(name), "glake_%s_seconds", histogram->name);
	begin(out, name, "histogram", histogram->help);
	uint64_t n = 0;
	for (uint32_t i = 0; i < histogram->n_bounds; i++) {
		n += histogram->counts[i];
		fprintf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
		        (double)histogram->bounds_ns[i] / 1e9, n);
	}
	n += histogram->counts[histogram->n_bounds];
	fprintf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9f\n%s_count %" PRIu64 "\n",
	        name, n, name, (double)histogram->sum_ns / 1e9, name, n);
}

void metrics_write(const struct snapshot *snapshot, FILE *out)
{
	plain(out, "glake_up", "1 if glaked answers", (uint64_t)(snapshot != NULL));
	if (!snapshot) {
		return;
	}
	write_daemon(snapshot, out);
	write_devices(snapshot, out);
	write_hosts(snapshot, out);
	write_tier(snapshot, out);
	write_sleepers(snapshot, out);
	write_tenants(snapshot, out);
	write_sessions(snapshot, out);
	write_models(snapshot, out);
	for (size_t i = 0; i < snapshot->metrics.n; i++) {
		write_counter(rows_at(&snapshot->metrics, i), out);
	}
	for (size_t i = 0; i < snapshot->histograms.n; i++) {
		write_histogram(rows_at(&snapshot->histograms, i), out);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/metrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/exposition.h"
#include "ctl/memory.h"
#include "ctl/metrics_models.h"
#include "ctl/shares.h"

/* ---- glaked and its devices ------------------------------------------------------------------- */

static void write_daemon(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	exposition_begin(out, "glake_info", "gauge", "Versions of glaked and of the CUDA driver");
	exposition_open(out, "glake_info", "version", status->version);
	exposition_label(out, "driver", status->driver);
	exposition_value(out, 1);
	exposition_begin(out, "glake_uptime_seconds", "gauge", "Since glaked started");
	fprintf(out, "glake_uptime_seconds %.3f\n", (double)status->uptime_ms / 1000);
	exposition_plain(out, "glake_draining",
	                 "1 while glaked takes no new programs: it is drained, or ends",
	                 (uint64_t)(status->draining != 0));
	exposition_plain(out, "glake_mover_running", "1 while glake-mover runs",
	                 (uint64_t)(strncmp(status->mover, "running", 7) == 0));
	exposition_plain(out, "glake_sessions", "Sessions, detached ones included",
	                 status->n_sessions);
	exposition_plain(out, "glake_programs", "Sessions that do not only look",
	                 status->n_programs);
	exposition_plain(out, "glake_models", "Models in the store", status->n_models);
	exposition_plain(out, "glake_blocks", "Blocks in the store", status->n_blocks);
	exposition_plain(out, "glake_fds_used", "File descriptors of chunks and blocks",
	                 status->fds_used);
	exposition_plain(out, "glake_fds_budget",
	                 "What there may be of them: fd_budget less max_sessions",
	                 status->fds_budget);
	exposition_plain(out, "glake_kept_fds", "File descriptors that the next glaked would have",
	                 status->kept_fds);
	exposition_plain(out, "glake_max_kept_fds",
	                 "So many can be kept; 0: a restart loses the store", status->max_kept_fds);
	exposition_plain(out, "glake_unkept_blocks",
	                 "Blocks that wait for room there: a restart loses them",
	                 status->unkept_blocks);
	exposition_plain(out, "glake_unparked_bytes",
	                 "Chunks without a file descriptor since glaked was restarted",
	                 status->unparked_bytes);
}

#define OF(member) offsetof(struct glake_device_status, member)

static uint64_t number_at(const void *row, size_t offset)
{
	return *(const uint64_t *)((const char *)row + offset);
}

static void use(FILE *out, const struct glake_device_status *device, const char *name,
                uint64_t bytes)
{
	exposition_gpu(out, "glake_device_bytes", device);
	exposition_label(out, "use", name);
	exposition_value(out, bytes);
}

/* Each byte of the device once, if NVML tells what is free. */
static void write_uses(const struct glake_device_status *device, FILE *out)
{
	uint64_t used = device->used_block_bytes;
	use(out, device, "private", device->private_bytes);
	use(out, device, "blocks_used", used);
	use(out, device, "blocks_cached", memory_without(device->block_bytes, used));
	use(out, device, "pool", device->pool_bytes);
	use(out, device, "kept", device->kept_bytes);
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
		{"glake_device_saved_alone_bytes",
	         "What unsealing all that was sealed by itself would take", OF(saved_alone_bytes)},
		{"glake_device_unsealing_bytes",
	         "The reserve for unsealing, which nothing else gets; not physical",
	         OF(unsealing_bytes)},
		{"glake_device_unsealing_wanted_bytes",
	         "What the reserve is to have, by dedup_reserve", OF(unsealing_wanted_bytes)},
	};
	const struct rows *devices = &snapshot->devices;
	exposition_begin(out, "glake_device_info", "gauge", "Name and UUID of the device");
	for (size_t i = 0; i < devices->n; i++) {
		const struct glake_device_status *device = rows_at(devices, i);
		exposition_gpu(out, "glake_device_info", device);
		exposition_label(out, "name", device->name);
		exposition_value(out, 1);
	}
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
		exposition_begin(out, numbers[n].name, "gauge", numbers[n].help);
		for (size_t i = 0; i < devices->n; i++) {
			const struct glake_device_status *device = rows_at(devices, i);
			exposition_gpu(out, numbers[n].name, device);
			exposition_value(out, number_at(device, numbers[n].offset));
		}
	}
	exposition_begin(
		out, "glake_device_bytes", "gauge",
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
	exposition_value(out, bytes);
}

static void write_hosts(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	exposition_begin(out, "glake_host_limit_bytes", "gauge",
	                 "Host memory that chunks may have");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		fprintf(out, "glake_host_limit_bytes{node=\"%" PRIu32 "\"", status->hosts[i].node);
		exposition_value(out, status->hosts[i].limit_bytes);
	}
	exposition_begin(out, "glake_host_bytes", "gauge", "Chunks in host memory by their use");
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
	exposition_value(out, bytes);
}

/* Each copy once, and what those of sleepers stand for. */
static void write_tier(const struct snapshot *snapshot, FILE *out)
{
	const struct glake_status *status = &snapshot->status;
	exposition_begin(
		out, "glake_host_copy_bytes", "gauge",
		"Copies in host memory by what they are for; those that are made or read are not "
		"here");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		const struct glake_host_status *host = &status->hosts[i];
		write_copies(host, "sleep", host->sleep_copy_bytes, out);
		write_copies(host, "model", host->model_copy_bytes, out);
		write_copies(host, "cache", host->cached_copy_bytes, out);
	}
	exposition_begin(out, "glake_host_slept_bytes", "gauge",
	                 "What copies for sleep stand for: without sharing they would be so much");
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		fprintf(out, "glake_host_slept_bytes{node=\"%" PRIu32 "\"", status->hosts[i].node);
		exposition_value(out, status->hosts[i].slept_bytes);
	}
}

static void write_asleep(const char *kind, uint64_t bytes, FILE *out)
{
	fprintf(out, "glake_asleep_bytes{kind=\"%s\"", kind);
	exposition_value(out, bytes);
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
	exposition_plain(out, "glake_sleepers", "Programs that sleep, or wake",
	                 snapshot->sleepers.n);
	exposition_plain(out, "glake_sleepers_waking", "Of them: those that wake", n_waking);
	exposition_plain(out, "glake_sleepers_waiting", "Of those: they wait for room", n_waiting);
	exposition_begin(out, "glake_sleepers_waiting_seconds", "gauge",
	                 "The longest of these waits so far");
	fprintf(out, "glake_sleepers_waiting_seconds %.3f\n", (double)sum.waiting_ms / 1000);
	exposition_begin(
		out, "glake_asleep_bytes", "gauge",
		"Of programs that sleep: private and shared memory; of the shared one what the GPU "
		"has "
		"still; what stays there");
	write_asleep("private", sum.private_bytes, out);
	write_asleep("shared", sum.shared_bytes, out);
	write_asleep("on_gpu", sum.gpu_bytes, out);
	write_asleep("stays", sum.stays_bytes, out);
}

/* ---- tenants ---------------------------------------------------------------------------------- */

#define OF(member) offsetof(struct glake_tenant_device, member)

struct tenant_number {
	const char *name;
	const char *help;
	size_t offset;
	bool is_limit; /* one that is not set has no sample */
};

static void write_tenant_device(const struct snapshot *snapshot, const struct tenant_number *number,
                                const struct glake_tenant_row *tenant,
                                const struct glake_tenant_device *at, FILE *out)
{
	const struct glake_device_status *device = snapshot_device(snapshot, at->device);
	uint64_t bytes = number_at(at, number->offset);
	if (device && (bytes > 0 || !number->is_limit)) {
		exposition_gpu(out, number->name, device);
		exposition_label(out, "tenant", tenant->name);
		exposition_value(out, bytes);
	}
}

static void write_tenant_devices(const struct snapshot *snapshot, FILE *out)
{
	static const struct tenant_number numbers[] = {
		{"glake_tenant_bytes", "What the tenant is charged for", OF(used_bytes), false},
		{"glake_tenant_peak_bytes", "The highest charge", OF(peak_bytes), false},
		{"glake_tenant_quota_bytes", "Its limit", OF(quota_bytes), true},
	};
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
		exposition_begin(out, numbers[n].name, "gauge", numbers[n].help);
		for (size_t i = 0; i < snapshot->tenants.n; i++) {
			const struct glake_tenant_row *tenant = rows_at(&snapshot->tenants, i);
			for (uint32_t at = 0; at < tenant->n_devices; at++) {
				write_tenant_device(snapshot, &numbers[n], tenant,
				                    &tenant->devices[at], out);
			}
		}
	}
}

static const struct tenant_bound {
	const char *name;
	size_t offset;
	bool is_rare; /* one that was never met has no sample */
} tenant_bounds[] = {
	{"quota", OF(refused_quota), false},
	{"room", OF(refused_room), false},
	{"promise", OF(refused_promise), true},
	{"tenant_fds", OF(refused_tenant_fds), true},
	{"fds", OF(refused_fds), true},
	{"manifests", OF(refused_manifests), true},
	{"user_share", OF(refused_user_share), true},
	{"reserve", OF(refused_reserve), true},
};

#undef OF

static void write_refusals_of(const struct snapshot *snapshot,
                              const struct glake_tenant_row *tenant, FILE *out)
{
	for (uint32_t at = 0; at < tenant->n_devices; at++) {
		const struct glake_tenant_device *of = &tenant->devices[at];
		const struct glake_device_status *device = snapshot_device(snapshot, of->device);
		for (size_t i = 0; device && i < sizeof(tenant_bounds) / sizeof(tenant_bounds[0]);
		     i++) {
			uint64_t n = number_at(of, tenant_bounds[i].offset);
			if (n > 0 || !tenant_bounds[i].is_rare) {
				exposition_gpu(out, "glake_tenant_refusals_total", device);
				exposition_label(out, "tenant", tenant->name);
				exposition_label(out, "bound", tenant_bounds[i].name);
				exposition_value(out, n);
			}
		}
	}
}

static void write_tenants(const struct snapshot *snapshot, FILE *out)
{
	const struct rows *tenants = &snapshot->tenants;
	write_tenant_devices(snapshot, out);
	exposition_begin(out, "glake_tenant_refusals_total", "counter",
	                 "Requests for memory that were refused, by the bound that they met");
	for (size_t i = 0; i < tenants->n; i++) {
		write_refusals_of(snapshot, rows_at(tenants, i), out);
	}
	exposition_begin(out, "glake_tenant_host_bytes", "gauge",
	                 "What it is charged for in host memory");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		for (uint32_t at = 0; at < tenant->n_hosts; at++) {
			exposition_open(out, "glake_tenant_host_bytes", "tenant", tenant->name);
			fprintf(out, ",node=\"%" PRIu32 "\"", tenant->hosts[at].device);
			exposition_value(out, tenant->hosts[at].used_bytes);
		}
	}
	exposition_begin(out, "glake_tenant_sessions", "gauge", "Sessions of the tenant");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		exposition_open(out, "glake_tenant_sessions", "tenant", tenant->name);
		exposition_value(out, tenant->n_sessions);
	}
	exposition_begin(out, "glake_tenant_fds", "gauge",
	                 "Chunks and blocks that the tenant is charged for");
	for (size_t i = 0; i < tenants->n; i++) {
		const struct glake_tenant_row *tenant = rows_at(tenants, i);
		exposition_open(out, "glake_tenant_fds", "tenant", tenant->name);
		exposition_value(out, tenant->n_fds);
	}
}

/* ---- pods ------------------------------------------------------------------------------------- */

static void pod_labels(FILE *out, const struct share *share)
{
	exposition_label(out, "pod", share->pod);
	exposition_label(out, "container", share->container);
	exposition_label(out, "tenant", share->tenant);
}

static void pod_sample(FILE *out, const char *name, const struct share *share, uint64_t number)
{
	exposition_open(out, name, "namespace", share->namespace);
	pod_labels(out, share);
	exposition_value(out, number);
}

static void pod_bytes(FILE *out, const struct glake_device_status *device,
                      const struct share *share, const char *kind, uint64_t bytes)
{
	exposition_gpu(out, kind ? "glake_pod_bytes" : "glake_pod_driver_bytes", device);
	exposition_label(out, "namespace", share->namespace);
	pod_labels(out, share);
	if (kind) {
		exposition_label(out, "kind", kind);
	}
	exposition_value(out, bytes);
}

/* A pod has samples of the devices that it uses. What is in none has them all: they come and go with no program. */
static bool has_samples(const struct share *share, size_t device)
{
	const struct share_device *at = &share->at[device];
	return !*share->pod || at->private_bytes || at->shared_bytes || at->driver_bytes;
}

static void write_shares_of(const struct shares *shares, size_t i,
                            const struct glake_device_status *device, FILE *out)
{
	static const struct share cache = {
		.namespace = "", .pod = "", .container = "", .tenant = "cache"};
	static const struct share nobody = {
		.namespace = "", .pod = "", .container = "", .tenant = ""};
	const struct share_rest *rest = rows_at(&shares->rest, i);
	for (size_t j = 0; j < shares->list.n; j++) {
		const struct share *share = rows_at(&shares->list, j);
		if (has_samples(share, i)) {
			pod_bytes(out, device, share, "private", share->at[i].private_bytes);
			pod_bytes(out, device, share, "shared", share->at[i].shared_bytes);
		}
	}
	pod_bytes(out, device, &cache, "cache", rest->cache_bytes);
	pod_bytes(out, device, &nobody, "other", rest->other_bytes);
}

static void write_pod_devices(const struct snapshot *snapshot, const struct shares *shares,
                              FILE *out)
{
	exposition_begin(out, "glake_pod_bytes", "gauge",
	                 "Chunks by who has them, each block in equal parts; they add up to "
	                 "glake_device_physical_bytes");
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		write_shares_of(shares, i, rows_at(&snapshot->devices, i), out);
	}
	exposition_begin(
		out, "glake_pod_driver_bytes", "gauge",
		"What its processes have of the driver: contexts and code, arrays, graphs");
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		for (size_t j = 0; j < shares->list.n; j++) {
			const struct share *share = rows_at(&shares->list, j);
			if (has_samples(share, i)) {
				pod_bytes(out, rows_at(&snapshot->devices, i), share, NULL,
				          share->at[i].driver_bytes);
			}
		}
	}
}

static void write_waits(const struct shares *shares, FILE *out)
{
	exposition_begin(out, "glake_pod_waiting_seconds", "gauge",
	                 "The longest of these waits so far");
	for (size_t i = 0; i < shares->list.n; i++) {
		const struct share *share = rows_at(&shares->list, i);
		exposition_open(out, "glake_pod_waiting_seconds", "namespace", share->namespace);
		pod_labels(out, share);
		fprintf(out, "} %.3f\n", (double)share->waiting_ms / 1000);
	}
}

static void write_pod_refusals(const struct shares *shares, FILE *out)
{
	exposition_begin(out, "glake_pod_refusals_total", "counter",
	                 "Requests for memory of the pod's programs that were refused, since this "
	                 "began to serve");
	for (size_t i = 0; i < shares->list.n; i++) {
		const struct share *share = rows_at(&shares->list, i);
		if (*share->pod) {
			pod_sample(out, "glake_pod_refusals_total", share, share->n_refused);
		}
	}
}

#define OF(member) offsetof(struct share, member)

static void write_pods(const struct snapshot *snapshot, FILE *out)
{
	static const struct {
		const char *name;
		const char *help;
		size_t offset;
	} numbers[] = {
		{"glake_pod_sessions", "Sessions", OF(n_sessions)},
		{"glake_pod_live_bytes", "Of private memory, what programs say that they use",
	         OF(live_bytes)},
		{"glake_pod_warm_bytes",
	         "Of private memory, what they say that they keep for reuse", OF(warm_bytes)},
		{"glake_pod_host_bytes", "Private chunks in host memory", OF(host_bytes)},
		{"glake_pod_waiting", "Sessions with a request that waits for memory",
	         OF(n_waiting)},
		{"glake_pod_sleepers", "Sessions that sleep, or wake", OF(n_sleepers)},
		{"glake_pod_asleep_private_bytes", "What of these left the GPU and is theirs alone",
	         OF(asleep_private_bytes)},
		{"glake_pod_asleep_shared_bytes", "The same of blocks: others may still have them",
	         OF(asleep_shared_bytes)},
	};
	struct shares shares;
	if (shares_of(snapshot, &shares) == 0) {
		write_pod_devices(snapshot, &shares, out);
		for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
			exposition_begin(out, numbers[n].name, "gauge", numbers[n].help);
			for (size_t i = 0; i < shares.list.n; i++) {
				const struct share *share = rows_at(&shares.list, i);
				pod_sample(out, numbers[n].name, share,
				           number_at(share, numbers[n].offset));
			}
		}
		write_waits(&shares, out);
		if (snapshot->has_refusals) {
			write_pod_refusals(&shares, out);
		}
	}
	shares_deinit(&shares);
}

#undef OF

/* ---- counters and histograms ------------------------------------------------------------------ */

static void write_counter(const struct snapshot_metric *metric, FILE *out)
{
	char name[128];
	size_t n = strlen(metric->name);
	bool has_suffix = n > 6 && strcmp(metric->name + n - 6, "_total") == 0;
	snprintf(name, sizeof(name), "glake_%s%s", metric->name, has_suffix ? "" : "_total");
	exposition_begin(out, name, "counter", metric->help);
	fprintf(out, "%s %" PRIu64 "\n", name, metric->value);
}

static void write_histogram(const struct glake_histogram *histogram, FILE *out)
{
	char name[128];
	snprintf(name, sizeof(name), "glake_%s_seconds", histogram->name);
	exposition_begin(out, name, "histogram", histogram->help);
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

void metrics_write(const struct snapshot *snapshot, bool has_models, FILE *out)
{
	exposition_plain(out, "glake_up", "1 if glaked answers", (uint64_t)(snapshot != NULL));
	if (!snapshot) {
		return;
	}
	write_daemon(snapshot, out);
	write_devices(snapshot, out);
	write_hosts(snapshot, out);
	write_tier(snapshot, out);
	write_sleepers(snapshot, out);
	write_tenants(snapshot, out);
	write_pods(snapshot, out);
	if (has_models) {
		metrics_write_models(snapshot, out);
	}
	for (size_t i = 0; i < snapshot->metrics.n; i++) {
		write_counter(rows_at(&snapshot->metrics, i), out);
	}
	for (size_t i = 0; i < snapshot->histograms.n; i++) {
		write_histogram(rows_at(&snapshot->histograms, i), out);
	}
}

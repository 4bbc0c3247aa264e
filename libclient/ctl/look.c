/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon as a whole: status and its counters.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/glance.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"
#include "ctl/text.h"
#include "glake_admin.h"

#define ROW struct glake_status

static const struct field status_fields[] = {
	FIELD(ROW, version, TEXT, PLAIN, NULL),
	FIELD(ROW, driver, TEXT, PLAIN, NULL),
	FIELD(ROW, config, TEXT, PLAIN, NULL),
	FIELD(ROW, mover, TEXT, PLAIN, NULL),
	FIELD(ROW, pid, U64, PLAIN, NULL),
	FIELD(ROW, uptime_ms, U64, MS, NULL),
	FIELD(ROW, n_sessions, U64, PLAIN, NULL),
	FIELD(ROW, n_models, U64, PLAIN, NULL),
	FIELD(ROW, n_blocks, U64, PLAIN, NULL),
	FIELD(ROW, fds_used, U64, PLAIN, NULL),
	FIELD(ROW, fds_budget, U64, PLAIN, NULL),
	FIELD(ROW, draining, BOOL, PLAIN, NULL),
	FIELD(ROW, drained, BOOL, PLAIN, NULL),
	FIELD(ROW, drain_reason, TEXT, PLAIN, NULL),
	FIELD(ROW, drained_at_ms, U64, PLAIN, NULL),
	FIELD(ROW, drained_by, U32, PLAIN, NULL),
	FIELD(ROW, n_programs, U32, PLAIN, NULL),
	FIELD(ROW, kept_fds, U64, PLAIN, NULL),
	FIELD(ROW, max_kept_fds, U64, PLAIN, NULL),
	FIELD(ROW, unkept_blocks, U64, PLAIN, NULL),
	FIELD(ROW, unparked_bytes, U64, BYTES, NULL),
	FIELD(ROW, unkept_chunks, U64, PLAIN, NULL),
	FIELD(ROW, mover_idle_ms, U64, MS, NULL),
	FIELD(ROW, sleeps_idle, BOOL, PLAIN, NULL),
	FIELD(ROW, sleeps_on_pressure, BOOL, PLAIN, NULL),
	FIELD(ROW, waits, BOOL, PLAIN, NULL),
};

#undef ROW
#define ROW struct glake_device_status

static const struct field device_fields[] = {
	FIELD(ROW, index, U32, PLAIN, NULL),
	FIELD(ROW, name, TEXT, PLAIN, NULL),
	FIELD(ROW, uuid, UUID, PLAIN, NULL),
	FIELD(ROW, total_bytes, U64, BYTES, NULL),
	FIELD(ROW, physical_bytes, U64, BYTES, NULL),
	FIELD(ROW, private_bytes, U64, BYTES, NULL),
	FIELD(ROW, block_bytes, U64, BYTES, NULL),
	FIELD(ROW, used_block_bytes, U64, BYTES, NULL),
	FIELD(ROW, pool_bytes, U64, BYTES, NULL),
	FIELD(ROW, logical_bytes, U64, BYTES, NULL),
	FIELD(ROW, logical_block_bytes, U64, BYTES, NULL),
	FIELD(ROW, free_bytes, U64, BYTES, NULL),
	FIELD(ROW, context_bytes, U64, BYTES, NULL),
	FIELD(ROW, managed_bytes, U64, BYTES, NULL),
	FIELD(ROW, array_bytes, U64, BYTES, NULL),
	FIELD(ROW, graph_bytes, U64, BYTES, NULL),
	FIELD(ROW, other_bytes, U64, BYTES, NULL),
	FIELD(ROW, mover_bytes, U64, BYTES, NULL),
	FIELD(ROW, foreign_bytes, U64, BYTES, NULL),
	FIELD(ROW, n_foreign, U32, PLAIN, NULL),
	FIELD(ROW, fabric, TEXT, PLAIN, NULL),
	FIELD(ROW, rdma, BOOL, PLAIN, NULL),
	FIELD(ROW, kept_bytes, U64, BYTES, NULL),
	FIELD(ROW, saved_alone_bytes, U64, BYTES, NULL),
	FIELD(ROW, unsealing_bytes, U64, BYTES, NULL),
	FIELD(ROW, unsealing_wanted_bytes, U64, BYTES, NULL),
};

#undef ROW
#define ROW struct glake_host_status

static const struct field host_fields[] = {
	FIELD(ROW, node, U32, PLAIN, NULL),
	FIELD(ROW, total_bytes, U64, BYTES, NULL),
	FIELD(ROW, limit_bytes, U64, BYTES, NULL),
	FIELD(ROW, physical_bytes, U64, BYTES, NULL),
	FIELD(ROW, private_bytes, U64, BYTES, NULL),
	FIELD(ROW, copy_bytes, U64, BYTES, NULL),
	FIELD(ROW, used_copy_bytes, U64, BYTES, NULL),
	FIELD(ROW, sleep_copy_bytes, U64, BYTES, NULL),
	FIELD(ROW, model_copy_bytes, U64, BYTES, NULL),
	FIELD(ROW, cached_copy_bytes, U64, BYTES, NULL),
	FIELD(ROW, slept_bytes, U64, BYTES, NULL),
	FIELD(ROW, ready_bytes, U64, BYTES, NULL),
};

#undef ROW
#define ROW struct snapshot_metric

static const struct field metric_fields[] = {
	FIELD(ROW, name, TEXT, PLAIN, "NAME"),
	FIELD(ROW, value, U64, PLAIN, "VALUE"),
	FIELD(ROW, help, TEXT, PLAIN, "MEANING"),
};

#undef ROW

/* Logical over physical bytes of the blocks that sessions have open; -1 without any. */
static double dedup_ratio(const struct glake_device_status *device)
{
	if (device->used_block_bytes == 0) {
		return -1;
	}
	return (double)device->logical_block_bytes / (double)device->used_block_bytes;
}

json_t *ctl_device_object(const struct glake_device_status *device)
{
	static const char *const unknown[] = {"free_bytes", "unaccounted_bytes", "foreign_bytes",
	                                      "n_foreign"};
	json_t *object = field_object(FIELDS(device_fields), device);
	double ratio = dedup_ratio(device);
	json_object_set_new(object, "dedup_ratio", ratio < 0 ? json_null() : json_real(ratio));
	json_object_set_new(object, "unaccounted_bytes",
	                    json_integer((json_int_t)device->unaccounted_bytes));
	/* Numbers that only NVML knows are null without it. */
	for (size_t i = 0; device->free_bytes == 0 && i < sizeof(unknown) / sizeof(*unknown); i++) {
		json_object_set_new(object, unknown[i], json_null());
	}
	return object;
}

json_t *ctl_host_list(const struct glake_status *status)
{
	return field_list(FIELDS(host_fields), status->hosts, status->n_hosts,
	                  sizeof(*status->hosts));
}

json_t *ctl_status_object(const struct glake_status *status)
{
	return field_object(FIELDS(status_fields), status);
}

static int print_status_json(struct ctl *ctl, const struct glake_status *status)
{
	json_t *devices = json_array();
	for (uint32_t i = 0; i < status->n_devices; i++) {
		json_array_append_new(devices, ctl_device_object(&status->devices[i]));
	}
	json_t *object = ctl_status_object(status);
	json_object_set_new(object, "devices", devices);
	json_object_set_new(object, "hosts", ctl_host_list(status));
	json_object_set_new(object, "hosts_lacking",
	                    field_string(status->hosts_lacking ? status->hosts_lacking : ""));
	return ctl_print_json(ctl, object);
}

static void __attribute__((format(printf, 3, 4)))
line(struct ctl *ctl, const char *label, const char *format, ...)
{
	fprintf(ctl->out, "%-14s", label);
	va_list arguments;
	va_start(arguments, format);
	vfprintf(ctl->out, format, arguments);
	va_end(arguments);
	fputc('\n', ctl->out);
}

static void text_line(struct ctl *ctl, const char *label, const char *text)
{
	char *escaped = text_escape(text ? text : "");
	line(ctl, label, "%s", escaped ? escaped : "");
	free(escaped);
}

/* A number as `status` shows it, in one of several buffers that take turns. */
static const char *size(const struct ctl *ctl, uint64_t n_bytes)
{
	static char texts[8][TEXT_NUMBER_BYTES];
	static unsigned next;
	char *text = texts[next++ % 8];
	field_bytes(n_bytes, ctl->exact, text, TEXT_NUMBER_BYTES);
	return text;
}

/* Driver usage: used bytes of the device that glaked did not make. */
static void print_driver_usage(struct ctl *ctl, const struct glake_device_status *device)
{
	bool is_known = device->free_bytes > 0;
	uint64_t sessions_bytes = device->context_bytes + device->managed_bytes +
	                          device->array_bytes + device->graph_bytes + device->other_bytes;
	line(ctl, "  driver", "%s of sessions: contexts and code %s, managed %s, arrays %s,",
	     size(ctl, sessions_bytes), size(ctl, device->context_bytes),
	     size(ctl, device->managed_bytes), size(ctl, device->array_bytes));
	line(ctl, "", "graphs %s, other %s; of the mover %s", size(ctl, device->graph_bytes),
	     size(ctl, device->other_bytes), size(ctl, device->mover_bytes));
	if (is_known) {
		line(ctl, "  others", "%s in %" PRIu32 " process%s without a session",
		     size(ctl, device->foreign_bytes), device->n_foreign,
		     device->n_foreign == 1 ? "" : "es");
	} else {
		line(ctl, "  others", "?");
	}
	line(ctl, "  unaccounted", "%s", is_known ? size(ctl, device->unaccounted_bytes) : "?");
}

static void print_device(struct ctl *ctl, const struct glake_device_status *device)
{
	char *name = text_escape(device->name ? device->name : "");
	fprintf(ctl->out, "\ndevice %-7" PRIu32 "%s\n", device->index, name ? name : "");
	free(name);
	line(ctl, "  total", "%s, free %s", size(ctl, device->total_bytes),
	     device->free_bytes > 0 ? size(ctl, device->free_bytes) : "?");
	line(ctl, "  physical", "%s: private %s, blocks %s (in use %s), made ahead %s",
	     size(ctl, device->physical_bytes), size(ctl, device->private_bytes),
	     size(ctl, device->block_bytes), size(ctl, device->used_block_bytes),
	     size(ctl, device->pool_bytes));
	if (device->kept_bytes > 0) {
		line(ctl, "  kept", "%s of processes that have ended, for the next",
		     size(ctl, device->kept_bytes));
	}
	line(ctl, "  logical", "%s, of it blocks %s", size(ctl, device->logical_bytes),
	     size(ctl, device->logical_block_bytes));
	double ratio = dedup_ratio(device);
	if (ratio < 0) {
		line(ctl, "  dedup ratio", "-");
	} else {
		line(ctl, "  dedup ratio", "%.2f", ratio);
	}
	if (device->saved_alone_bytes > 0) {
		line(ctl, "  reserve", "%s of %s for unsealing; sealing by itself saves %s",
		     size(ctl, device->unsealing_bytes), size(ctl, device->unsealing_wanted_bytes),
		     size(ctl, device->saved_alone_bytes));
	}
	print_driver_usage(ctl, device);
	text_line(ctl, "  fabric", device->fabric);
	line(ctl, "  rdma", "%s", device->rdma ? "yes" : "no");
}

static void print_host(struct ctl *ctl, const struct glake_host_status *host)
{
	fprintf(ctl->out, "\nhost node %" PRIu32 "\n", host->node);
	line(ctl, "  total", "%s, limit %s", size(ctl, host->total_bytes),
	     size(ctl, host->limit_bytes));
	line(ctl, "  physical", "%s: private %s, copies %s (in use %s)",
	     size(ctl, host->physical_bytes), size(ctl, host->private_bytes),
	     size(ctl, host->copy_bytes), size(ctl, host->used_copy_bytes));
}

/* Fds that the next glaked would have. */
static void print_kept(struct ctl *ctl, const struct glake_status *status)
{
	char waiting[64] = "";
	char unkept[64] = "";
	if (status->max_kept_fds == 0) {
		line(ctl, "kept", "nothing: a restart of glaked loses the store");
		return;
	}
	if (status->unkept_blocks > 0) {
		snprintf(waiting, sizeof(waiting), ", %" PRIu64 " blocks wait for room",
		         status->unkept_blocks);
	}
	if (status->unkept_chunks > 0) {
		snprintf(unkept, sizeof(unkept), ", %" PRIu64 " named chunks are not kept",
		         status->unkept_chunks);
	}
	line(ctl, "kept", "%" PRIu64 " of %" PRIu64 " fds%s%s, unparked %s", status->kept_fds,
	     status->max_kept_fds, waiting, unkept, size(ctl, status->unparked_bytes));
}

const char *ctl_state_text(const struct glake_status *status)
{
	return status->drained ? ", drained" : status->draining ? ", ends" : "";
}

static int print_status(void *user, const struct glake_status *status)
{
	struct ctl *ctl = user;
	if (ctl->json) {
		return print_status_json(ctl, status);
	}
	char uptime[TEXT_NUMBER_BYTES];
	text_duration(status->uptime_ms, uptime);
	text_line(ctl, "glaked", status->version);
	line(ctl, "pid", "%" PRIu64 ", up %s%s", status->pid, uptime,
	     status->drained    ? ", drained: takes no new programs"
	     : status->draining ? ", ends: takes no new sessions"
	                        : "");
	text_line(ctl, "driver", status->driver);
	text_line(ctl, "config",
	          status->config && *status->config ? status->config : "built-in defaults");
	text_line(ctl, "mover", status->mover);
	line(ctl, "sessions", "%" PRIu64 ", %" PRIu32 " of programs", status->n_sessions,
	     status->n_programs);
	line(ctl, "store", "%" PRIu64 " models, %" PRIu64 " blocks", status->n_models,
	     status->n_blocks);
	line(ctl, "fds", "%" PRIu64 " of %" PRIu64, status->fds_used, status->fds_budget);
	print_kept(ctl, status);
	for (uint32_t i = 0; i < status->n_devices; i++) {
		print_device(ctl, &status->devices[i]);
	}
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		print_host(ctl, &status->hosts[i]);
	}
	if (status->hosts_lacking && status->hosts_lacking[0]) {
		fputc('\n', ctl->out);
		text_line(ctl, "host memory", status->hosts_lacking);
	}
	return 0;
}

static int run_status(struct ctl *ctl)
{
	bool is_full = ctl->json || ctl->values.given & CTL_OPTION_VERBOSE;
	return is_full ? glake_get_status(ctl->session, print_status, ctl) : glance_print(ctl);
}

/* ---- counters and times ----------------------------------------------------------------------- */

static int add_metric(void *rows, const char *name, uint64_t value, const char *help)
{
	struct snapshot_metric *metric = rows_add(rows, sizeof(*metric));
	if (!metric) {
		return CTL_E_OUTPUT;
	}
	*metric = (struct snapshot_metric){strdup(name), value, strdup(help)};
	return metric->name && metric->help ? 0 : CTL_E_OUTPUT;
}

static void free_metrics(struct rows *rows)
{
	for (size_t i = 0; i < rows->n; i++) {
		struct snapshot_metric *metric = rows_at(rows, i);
		free((char *)metric->name);
		free((char *)metric->help);
	}
	rows_deinit(rows);
}

static uint64_t n_times(const struct glake_histogram *histogram)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i <= histogram->n_bounds; i++) {
		n += histogram->counts[i];
	}
	return n;
}

static json_t *numbers(const uint64_t *list, uint32_t n)
{
	json_t *array = json_array();
	for (uint32_t i = 0; i < n; i++) {
		json_array_append_new(array, json_integer((json_int_t)list[i]));
	}
	return array;
}

static int add_histogram(void *user, const struct glake_histogram *histogram)
{
	json_t *list = user;
	json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "name", histogram->name,
	                           "help", histogram->help, "count", (json_int_t)n_times(histogram),
	                           "sum_ns", (json_int_t)histogram->sum_ns, "bounds_ns",
	                           numbers(histogram->bounds_ns, histogram->n_bounds), "counts",
	                           numbers(histogram->counts, histogram->n_bounds + 1));
	return json_array_append_new(list, object) < 0 ? CTL_E_OUTPUT : 0;
}

/* "30 us", "1.5 s" */
static void duration(double ns, char text_out[TEXT_NUMBER_BYTES])
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	unsigned unit = 0;
	while (ns >= 1000 && unit < 3) {
		ns /= 1000;
		unit++;
	}
	snprintf(text_out, TEXT_NUMBER_BYTES, ns < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", ns,
	         units[unit]);
}

/* Write the end of the bucket that @part of all values lie in, or below. */
static void bound(const struct glake_histogram *histogram, double part,
                  char text_out[TEXT_NUMBER_BYTES])
{
	uint64_t n_all = n_times(histogram);
	uint64_t n = 0;
	uint32_t i = 0;
	while (i < histogram->n_bounds && (n += histogram->counts[i]) < part * (double)n_all) {
		i++;
	}
	if (n_all == 0) {
		strcpy(text_out, "-");
	} else if (i == histogram->n_bounds) {
		strcpy(text_out, "more");
	} else {
		duration((double)histogram->bounds_ns[i], text_out);
	}
}

static int add_time(void *user, const struct glake_histogram *histogram)
{
	struct table *table = user;
	char text[TEXT_NUMBER_BYTES];
	uint64_t n = n_times(histogram);
	table_cell(table, histogram->name);
	snprintf(text, sizeof(text), "%" PRIu64, n);
	table_cell(table, text);
	strcpy(text, "-");
	if (n > 0) {
		duration((double)histogram->sum_ns / (double)n, text);
	}
	table_cell(table, text);
	bound(histogram, 0.5, text);
	table_cell(table, text);
	bound(histogram, 0.99, text);
	table_cell(table, text);
	table_cell(table, histogram->help);
	return 0;
}

static int print_times(struct ctl *ctl)
{
	static const char *const titles[] = {"TIME", "COUNT", "MEAN", "HALF", "99 %"};
	struct table table;
	table_init(&table);
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++) {
		table_column(&table, titles[i], i > 0);
	}
	table_column(&table, "MEANING", false);
	int err = glake_get_histograms(ctl->session, add_time, &table);
	if (err == 0) {
		fputc('\n', ctl->out);
		err = table_print(&table, ctl->out) < 0 ? CTL_E_OUTPUT : 0;
	}
	table_deinit(&table);
	return err;
}

static int print_stats_json(struct ctl *ctl, const struct rows *metrics)
{
	json_t *histograms = json_array();
	int err = glake_get_histograms(ctl->session, add_histogram, histograms);
	if (err) {
		json_decref(histograms);
		return err;
	}
	return ctl_print_json(ctl, json_pack("{s:o, s:o}", "metrics",
	                                     rows_json(metrics, FIELDS(metric_fields)),
	                                     "histograms", histograms));
}

static int run_stats(struct ctl *ctl)
{
	struct rows metrics = {.n = 0};
	int err = glake_get_stats(ctl->session, add_metric, &metrics);
	if (err == 0 && ctl->json) {
		err = print_stats_json(ctl, &metrics);
	} else if (err == 0) {
		err = rows_show(ctl, &metrics, NULL, FIELDS(metric_fields));
		err = err ? err : print_times(ctl);
	}
	free_metrics(&metrics);
	return err;
}

const struct ctl_command ctl_status = {
	.name = "status",
	.operands = "",
	.summary = "GPUs and tenants at a glance, and what is wrong",
	.options = CTL_OPTION_EXACT | CTL_OPTION_VERBOSE,
	.run = run_status,
	.unreachable = ctl_diagnose,
};

const struct ctl_command ctl_stats = {
	.name = "stats",
	.operands = "",
	.summary = "The daemon's counters, and how long requests and loads took",
	.run = run_stats,
};

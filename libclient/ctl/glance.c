/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/glance.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/doctor.h"
#include "ctl/identity.h"
#include "ctl/memory.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"
#include "ctl/text.h"

#define BAR_COLUMNS 20u
#define CELL_BYTES 128u

/* ---- GPUs ------------------------------------------------------------------------------------- */

#define ROW struct gpu

/* One line. Texts are in the row itself, but for the name. */
struct gpu {
	uint32_t index;
	const char *name; /* borrowed */
	uint64_t used_bytes;
	uint64_t total_bytes;
	uint64_t free_bytes; /* FIELD_NONE: nobody knows */
	char bar[BAR_COLUMNS + 3];
	char most[CELL_BYTES];
	uint64_t saved_bytes; /* FIELD_NONE: nothing is shared */
};

static const struct field gpu_fields[] = {
	FIELD(ROW, index, U32, PLAIN, "GPU"),
	FIELD(ROW, name, TEXT, NAME, "NAME"),
	FIELD(ROW, used_bytes, U64, BYTES, "USED"),
	FIELD(ROW, total_bytes, U64, BYTES, "TOTAL"),
	FIELD(ROW, free_bytes, MAYBE, BYTES, "FREE"),
	FIELD(ROW, bar, CHARS, PLAIN, "USE"),
	FIELD(ROW, saved_bytes, MAYBE, BYTES, "SAVED"),
	FIELD(ROW, most, CHARS, PLAIN, "MOST"),
};

#undef ROW

/* Memory that goes as soon as somebody wants it: cache, and chunks made ahead. */
static uint64_t reusable_bytes(const struct glake_device_status *device)
{
	return memory_cached_bytes(device) + device->pool_bytes;
}

/* By NVML, or what glaked itself knows of. */
static uint64_t used_bytes(const struct glake_device_status *device)
{
	return device->free_bytes > 0 ? memory_without(device->total_bytes, device->free_bytes)
	                              : device->physical_bytes;
}

/* The columns for @bytes: one at least, if there are any. */
static unsigned columns(uint64_t bytes, uint64_t total)
{
	double n = total > 0 ? (double)bytes * BAR_COLUMNS / (double)total : 0;
	unsigned rounded = n < BAR_COLUMNS ? (unsigned)(n + 0.5) : BAR_COLUMNS;
	return bytes > 0 && rounded == 0 ? 1 : rounded;
}

static void draw_bar(const struct glake_device_status *device, char bar_out[BAR_COLUMNS + 3])
{
	unsigned n_all = columns(used_bytes(device), device->total_bytes);
	unsigned n_reusable = columns(reusable_bytes(device), device->total_bytes);
	n_reusable = n_reusable < n_all ? n_reusable : n_all;
	char *at = bar_out;
	*at++ = '[';
	for (unsigned i = 0; i < BAR_COLUMNS; i++) {
		*at++ = i < n_all - n_reusable ? '#' : i < n_all ? '+' : '.';
	}
	*at++ = ']';
	*at = '\0';
}

static uint64_t has_on(const struct glake_session_row *session, uint32_t index)
{
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake_session_device *device = &session->devices[i];
		if (device->device == index) {
			return device->reserved_bytes + device->shared_bytes +
			       memory_device_driver_bytes(device) + device->managed_bytes;
		}
	}
	return 0;
}

static void find_most(const struct snapshot *snapshot, struct identities *identities,
                      const struct glake_device_status *device, char most_out[CELL_BYTES])
{
	const struct glake_session_row *most = NULL;
	uint64_t bytes = 0;
	char size[TEXT_NUMBER_BYTES];
	for (size_t i = 0; i < snapshot->sessions.n; i++) {
		const struct glake_session_row *session = rows_at(&snapshot->sessions, i);
		uint64_t has = has_on(session, device->index);
		if (has > bytes) {
			most = session;
			bytes = has;
		}
	}
	/* Only an admin sees others. */
	snprintf(most_out, CELL_BYTES, "%s",
	         device->private_bytes > 0 ? "others, whom only admins see" : "-");
	if (device->free_bytes > 0 && device->foreign_bytes > bytes) {
		text_size(device->foreign_bytes, size);
		snprintf(most_out, CELL_BYTES, "%s %" PRIu32 " process%s without a session", size,
		         device->n_foreign, device->n_foreign == 1 ? "" : "es");
	} else if (most) {
		const struct identity who = identity_of(identities, most);
		char *label = text_escape(who.label);
		char *user = text_escape(who.user);
		if (label && user) {
			text_shorten(label, 32);
			text_shorten(user, 16);
		}
		text_size(bytes, size);
		snprintf(most_out, CELL_BYTES, "%s %s (%s, pid %" PRIu32 ")", size,
		         label ? label : "", user ? user : "", most->pid);
		free(label);
		free(user);
	}
}

static int print_gpus(struct ctl *ctl, const struct snapshot *snapshot)
{
	struct rows rows = {.n = 0};
	struct identities identities;
	int err = 0;
	identities_init(&identities);
	for (size_t i = 0; err == 0 && i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		struct gpu *gpu = rows_add(&rows, sizeof(*gpu));
		if (!gpu) {
			err = -ENOMEM;
			break;
		}
		gpu->index = device->index;
		gpu->name = device->name;
		gpu->used_bytes = used_bytes(device);
		gpu->total_bytes = device->total_bytes;
		gpu->free_bytes = device->free_bytes > 0 ? device->free_bytes : FIELD_NONE;
		uint64_t saved = memory_without(device->logical_block_bytes,
		                                device->used_block_bytes);
		gpu->saved_bytes = saved > 0 ? saved : FIELD_NONE;
		draw_bar(device, gpu->bar);
		find_most(snapshot, &identities, device, gpu->most);
	}
	err = err ? err : rows_show_next(ctl, &rows, FIELDS(gpu_fields));
	if (err == 0 && rows.n > 0) {
		fputs("# in use  + reusable at once  . free\n", ctl->out);
	}
	identities_deinit(&identities);
	rows_deinit(&rows);
	return err;
}

/* ---- tenants ---------------------------------------------------------------------------------- */

#define ROW struct account

struct account {
	const char *name; /* borrowed */
	char sessions[CELL_BYTES];
	uint64_t used_bytes; /* on all GPUs, and as the next in host memory */
	uint64_t host_bytes;
	char nearest[CELL_BYTES];
};

static const struct field account_fields[] = {
	FIELD(ROW, name, TEXT, NAME, "TENANT"),
	FIELD(ROW, sessions, CHARS, PLAIN, "SESSIONS"),
	FIELD(ROW, used_bytes, U64, BYTES, "ON GPUS"),
	FIELD(ROW, host_bytes, U64, BYTES, "ON HOST"),
	FIELD(ROW, nearest, CHARS, PLAIN, "NEAREST LIMIT"),
};

#undef ROW

/* The limit that the tenant has used the largest part of. */
struct nearest {
	double part; /* -1: there is none */
	char text[CELL_BYTES];
};

static void consider(const struct ctl *ctl, struct nearest *nearest, const char *what,
                     uint64_t number, uint64_t used, uint64_t limit)
{
	char used_text[TEXT_NUMBER_BYTES];
	char limit_text[TEXT_NUMBER_BYTES];
	double part = limit > 0 ? (double)used / (double)limit : -1;
	if (part <= nearest->part) {
		return;
	}
	nearest->part = part;
	field_bytes(used, ctl->exact, used_text, sizeof(used_text));
	field_bytes(limit, ctl->exact, limit_text, sizeof(limit_text));
	snprintf(nearest->text, sizeof(nearest->text), "%3.0f %% of %s %" PRIu64 ": %s of %s",
	         part * 100, what, number, used_text, limit_text);
}

static void consider_count(struct nearest *nearest, const char *what, uint64_t used, uint64_t limit)
{
	double part = limit > 0 ? (double)used / (double)limit : -1;
	if (part > nearest->part) {
		nearest->part = part;
		snprintf(nearest->text, sizeof(nearest->text),
		         "%3.0f %% of %s: %" PRIu64 " of %" PRIu64, part * 100, what, used, limit);
	}
}

static int add_account(const struct ctl *ctl, struct rows *rows, const struct glake_tenant_row *of)
{
	struct nearest nearest = {.part = -1, .text = "none"};
	struct account *account = rows_add(rows, sizeof(*account));
	if (!account) {
		return -ENOMEM;
	}
	account->name = of->name;
	if (of->max_sessions > 0) {
		snprintf(account->sessions, CELL_BYTES, "%" PRIu32 " of %" PRIu32, of->n_sessions,
		         of->max_sessions);
	} else {
		snprintf(account->sessions, CELL_BYTES, "%" PRIu32, of->n_sessions);
	}
	for (uint32_t i = 0; i < of->n_devices; i++) {
		const struct glake_tenant_device *device = &of->devices[i];
		account->used_bytes += device->used_bytes;
		consider(ctl, &nearest, "GPU", device->device, device->used_bytes,
		         device->quota_bytes);
	}
	for (uint32_t i = 0; i < of->n_hosts; i++) {
		const struct glake_tenant_device *host = &of->hosts[i];
		account->host_bytes += host->used_bytes;
		consider(ctl, &nearest, "host node", host->device, host->used_bytes,
		         host->quota_bytes);
	}
	consider_count(&nearest, "sessions", of->n_sessions, of->max_sessions);
	consider_count(&nearest, "fds", of->n_fds, of->max_fds);
	snprintf(account->nearest, CELL_BYTES, "%s", nearest.text);
	return 0;
}

static int print_tenants(struct ctl *ctl, const struct snapshot *snapshot)
{
	struct rows rows = {.n = 0};
	int err = 0;
	for (size_t i = 0; err == 0 && i < snapshot->tenants.n; i++) {
		err = add_account(ctl, &rows, rows_at(&snapshot->tenants, i));
	}
	err = err ? err : rows_show_next(ctl, &rows, FIELDS(account_fields));
	rows_deinit(&rows);
	return err;
}

/* ---- the rest --------------------------------------------------------------------------------- */

static void print_hosts(const struct ctl *ctl, const struct glake_status *status)
{
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		const struct glake_host_status *host = &status->hosts[i];
		char used[TEXT_NUMBER_BYTES];
		char limit[TEXT_NUMBER_BYTES];
		field_bytes(host->physical_bytes, ctl->exact, used, sizeof(used));
		field_bytes(host->limit_bytes, ctl->exact, limit, sizeof(limit));
		fprintf(ctl->out, "%shost node %" PRIu32 ": %s of %s taken\n", i == 0 ? "\n" : "",
		        host->node, used, limit);
	}
}

/* Warnings and errors of the doctor, as far as glaked can tell them. */
static int print_wrong(struct ctl *ctl)
{
	struct findings findings = {.n_errors = 0};
	int err = doctor_check_connected(ctl, &findings);
	if (err == 0 && findings.is_lost) {
		err = CTL_E_OUTPUT;
	}
	if (err == 0) {
		fputc('\n', ctl->out);
		findings_print_wrong(&findings, ctl->out);
	}
	findings_deinit(&findings);
	return err;
}

int glance_print(struct ctl *ctl)
{
	struct snapshot snapshot;
	char uptime[TEXT_NUMBER_BYTES];
	int err = snapshot_take(ctl, &snapshot);
	if (err) {
		return err;
	}
	const struct glake_status *status = &snapshot.status;
	char *version = text_escape(status->version);
	text_duration(status->uptime_ms, uptime);
	fprintf(ctl->out,
	        "glaked %s, up %s%s: %" PRIu64 " sessions, %zu asleep, %" PRIu64 " models\n",
	        version ? version : "", uptime, ctl_state_text(status), status->n_sessions,
	        snapshot.sleepers.n, status->n_models);
	free(version);
	err = print_gpus(ctl, &snapshot);
	err = err ? err : print_tenants(ctl, &snapshot);
	if (err == 0) {
		print_hosts(ctl, status);
		err = print_wrong(ctl);
	}
	snapshot_deinit(&snapshot);
	return err;
}

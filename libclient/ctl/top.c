/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/top.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl/memory.h"
#include "ctl/table.h"
#include "ctl/text.h"
#include "glake.h"

/* When the last look is older, glaked is said not to answer. */
#define PATIENCE_MS 3000

int (*top_screen)(struct top *top);

#define ROW struct shown

/*
 * A session, with what it does in a second; or one GPU of it. What is not known by GPU stands in the row of the first:
 * FIELD_NONE in others.
 */
struct shown {
	struct glake_session_row row; /* borrowed from the snapshot */
	struct identity identity;
	char pod[128];
	uint64_t device; /* FIELD_NONE: none, or several */
	uint64_t reserved_bytes;
	uint64_t live_bytes;
	uint64_t shared_bytes;
	double utilization;
	uint64_t driver_bytes;
	double requests; /* per second; -1: not known yet */
};

/* Columns that may be missing on a narrow screen stand behind, but for the last. */
static const struct field session_fields[] = {
	FIELD_IN(ROW, row, session, U64, PLAIN, NULL),
	FIELD(ROW, device, MAYBE, PLAIN, "GPU"),
	FIELD_IN(ROW, row, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, identity, user, TEXT, NAME, "USER"),
	FIELD(ROW, reserved_bytes, U64, BYTES, "RESERVED"),
	FIELD(ROW, live_bytes, MAYBE, BYTES, "LIVE"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTIL"),
	FIELD(ROW, shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, driver_bytes, U64, BYTES, "DRIVER"),
	FIELD(ROW, requests, RATIO, PLAIN, "REQ/S"),
	FIELD_IN(ROW, row, tenant, TEXT, NAME, "TENANT"),
	FIELD_IN(ROW, row, program, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, identity, label, TEXT, NAME, "PROGRAM"),
};

#undef ROW
#define ROW struct glake_model_row

static const struct field model_fields[] = {
	FIELD(ROW, id, U64, PLAIN, "ID"),           FIELD(ROW, device, U32, PLAIN, "DEV"),
	FIELD(ROW, n_open, U32, PLAIN, "OPEN"),     FIELD(ROW, span_bytes, U64, BYTES, "SPAN"),
	FIELD(ROW, part_bytes, U64, BYTES, "PART"), FIELD(ROW, pinned, BOOL, PLAIN, "PINNED"),
	FIELD(ROW, idle_ms, U64, MS, "IDLE"),       FIELD(ROW, name, TEXT, PLAIN, "MODEL"),
};

#undef ROW
#define ROW struct charge

/* A tenant on a device. */
struct charge {
	const char *tenant;
	uint32_t n_sessions;
	struct glake_tenant_device at;
};

static const struct field tenant_fields[] = {
	FIELD_IN(ROW, at, device, U32, PLAIN, "DEV"),
	FIELD_IN(ROW, at, used_bytes, U64, BYTES, "USED"),
	FIELD_IN(ROW, at, quota_bytes, U64, BYTES_LIMIT, "QUOTA"),
	FIELD_IN(ROW, at, peak_bytes, U64, BYTES, "PEAK"),
	FIELD(ROW, n_sessions, U32, PLAIN, "SESSIONS"),
	FIELD(ROW, tenant, TEXT, PLAIN, "TENANT"),
};

#undef ROW

static const char *const view_names[TOP_N_VIEWS] = {"sessions", "models", "tenants"};

/* Orders, the largest first unless they are turned round; the first of a view is the one that it begins with. */
static const struct order {
	const char *name;
	enum top_view view;
	enum field_type type;
	size_t offset;
} orders[] = {
	{"reserved", TOP_SESSIONS, FIELD_U64, offsetof(struct shown, reserved_bytes)},
	{"live", TOP_SESSIONS, FIELD_MAYBE, offsetof(struct shown, live_bytes)},
	{"shared", TOP_SESSIONS, FIELD_U64, offsetof(struct shown, shared_bytes)},
	{"driver", TOP_SESSIONS, FIELD_U64, offsetof(struct shown, driver_bytes)},
	{"req/s", TOP_SESSIONS, FIELD_RATIO, offsetof(struct shown, requests)},
	{"pid", TOP_SESSIONS, FIELD_U32, offsetof(struct shown, row.pid)},
	{"gpu", TOP_SESSIONS, FIELD_MAYBE, offsetof(struct shown, device)},
	{"span", TOP_MODELS, FIELD_U64, offsetof(struct glake_model_row, span_bytes)},
	{"part", TOP_MODELS, FIELD_U64, offsetof(struct glake_model_row, part_bytes)},
	{"open", TOP_MODELS, FIELD_U32, offsetof(struct glake_model_row, n_open)},
	{"idle", TOP_MODELS, FIELD_U64, offsetof(struct glake_model_row, idle_ms)},
	{"used", TOP_TENANTS, FIELD_U64, offsetof(struct charge, at.used_bytes)},
	{"peak", TOP_TENANTS, FIELD_U64, offsetof(struct charge, at.peak_bytes)},
	{"sessions", TOP_TENANTS, FIELD_U32, offsetof(struct charge, n_sessions)},
};

#define N_ORDERS (sizeof(orders) / sizeof(orders[0]))

/* ---- looking ---------------------------------------------------------------------------------- */

void top_see(struct top *top, int ms)
{
	struct snapshot next;
	int err = top->is_looking ? looker_end(top->looker, ms, &next) : -EAGAIN;
	if (err == -EAGAIN) {
		return;
	}
	top->is_looking = false;
	top->err = err;
	if (err == 0) {
		snapshot_deinit(&top->before);
		top->before = top->now;
		top->now = next;
		identities_refresh(&top->identities);
	}
}

void top_begin_look(struct top *top)
{
	if (!top->is_looking) {
		looker_begin(top->looker);
		top->is_looking = true;
		top->began_ms = ctl_now_ms();
	}
}

const char *top_trouble(const struct top *top)
{
	if (top->is_looking && ctl_now_ms() - top->began_ms > PATIENCE_MS) {
		return "glaked does not answer";
	}
	return top->err ? glake_strerror(top->err) : NULL;
}

static void look(struct top *top)
{
	top_begin_look(top);
	top_see(top, -1);
}

/* How much more it is than before, per second; -1: nobody knows. */
static double rate(const struct top *top, uint64_t now, uint64_t before)
{
	uint64_t ms = top->now.at_ms - top->before.at_ms;
	bool is_known = top->before.at_ms > 0 && ms > 0 && now >= before;
	return is_known ? (double)(now - before) * 1000 / (double)ms : -1;
}

/* How much a counter grows in a second; -1: not known yet. */
static double counter_rate(const struct top *top, const char *counter)
{
	return rate(top, snapshot_counter(&top->now, counter),
	            snapshot_counter(&top->before, counter));
}

static double request_rate(const struct top *top, const struct glake_session_row *row)
{
	const struct glake_session_row *before = snapshot_session(&top->before, row->session);
	return before && before->pid == row->pid ? rate(top, row->n_requests, before->n_requests)
	                                         : -1;
}

static struct shown show_session(struct top *top, const struct glake_session_row *of)
{
	struct shown shown = {
		.row = *of,
		.identity = identity_of(&top->identities, of),
		.device = of->n_devices == 1 ? of->devices[0].device : FIELD_NONE,
		.reserved_bytes = of->reserved_bytes,
		.live_bytes = of->live_bytes,
		.shared_bytes = of->shared_bytes,
		.utilization = memory_utilization(of->live_bytes, of->reserved_bytes),
		.driver_bytes = memory_driver_bytes(of),
		.requests = request_rate(top, of),
	};
	identity_pod(&shown.identity, of, shown.pod, sizeof(shown.pod));
	return shown;
}

static void narrow(struct shown *shown, const struct glake_session_device *device, bool is_first)
{
	shown->device = device->device;
	shown->reserved_bytes = device->reserved_bytes;
	shown->shared_bytes = device->shared_bytes;
	shown->driver_bytes = memory_device_driver_bytes(device);
	if (!is_first) {
		shown->live_bytes = FIELD_NONE;
		shown->utilization = -1;
		shown->requests = -1;
	}
	if (device->knows_live) {
		shown->live_bytes = device->live_bytes;
		shown->utilization = memory_utilization(device->live_bytes, device->reserved_bytes);
	}
}

static int list_sessions(struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.sessions.n; i++) {
		const struct glake_session_row *of = rows_at(&top->now.sessions, i);
		struct shown shown = show_session(top, of);
		uint32_t n_rows = top->by_gpu && of->n_devices > 0 ? of->n_devices : 1;
		for (uint32_t at = 0; at < n_rows; at++) {
			struct shown *row = rows_add(rows, sizeof(*row));
			if (!row) {
				return CTL_E_OUTPUT;
			}
			*row = shown;
			if (top->by_gpu && of->n_devices > 0) {
				narrow(row, &of->devices[at], at == memory_first_device(of));
			}
		}
	}
	return 0;
}

static int list_models(struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.models.n; i++) {
		struct glake_model_row row = *(struct glake_model_row *)rows_at(&top->now.models,
		                                                                i);
		/* The end of a path says most, and a line has no room for all. */
		const char *slash = strrchr(row.name, '/');
		row.name = slash && slash[1] && !top->ctl->json ? slash + 1 : row.name;
		if (rows_append(rows, &row, sizeof(row)) < 0) {
			return CTL_E_OUTPUT;
		}
	}
	return 0;
}

static int list_tenants(struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.tenants.n; i++) {
		const struct glake_tenant_row *of = rows_at(&top->now.tenants, i);
		for (uint32_t at = 0; at < of->n_devices; at++) {
			const struct charge charge = {of->name, of->n_sessions, of->devices[at]};
			if (rows_append(rows, &charge, sizeof(charge)) < 0) {
				return CTL_E_OUTPUT;
			}
		}
	}
	return 0;
}

static const struct {
	int (*list)(struct top *top, struct rows *rows);
	const struct field *fields;
	size_t n_fields;
} views[TOP_N_VIEWS] = {
	[TOP_SESSIONS] = {list_sessions, FIELDS(session_fields)},
	[TOP_MODELS] = {list_models, FIELDS(model_fields)},
	[TOP_TENANTS] = {list_tenants, FIELDS(tenant_fields)},
};

static double number_at(const struct order *order, const void *row)
{
	const char *at = (const char *)row + order->offset;
	switch (order->type) {
	case FIELD_U32:
		return *(const uint32_t *)(const void *)at;
	case FIELD_MAYBE: {
		uint64_t number = *(const uint64_t *)(const void *)at;
		return number == FIELD_NONE ? -1 : (double)number;
	}
	case FIELD_U64:
		return (double)*(const uint64_t *)(const void *)at;
	default:
		return *(const double *)(const void *)at;
	}
}

static int compare(const void *a, const void *b, void *user)
{
	double left = number_at(user, a);
	double right = number_at(user, b);
	return left < right ? 1 : left > right ? -1 : 0;
}

static int compare_back(const void *a, const void *b, void *user)
{
	return compare(b, a, user);
}

/* ---- what is shown of it ---------------------------------------------------------------------- */

static bool has_text(const char *text, const char *part)
{
	return text && strcasestr(text, part);
}

static bool is_session_meant(const struct top *top, const struct shown *shown)
{
	char pid[16];
	const char *part = top->filter;
	snprintf(pid, sizeof(pid), "%" PRIu32, shown->row.pid);
	return (top->gpu == TOP_ALL_GPUS || shown->device == top->gpu) &&
	       (has_text(shown->identity.label, part) || has_text(shown->identity.user, part) ||
	        has_text(shown->row.program, part) || has_text(shown->row.script, part) ||
	        has_text(shown->row.tenant, part) || has_text(shown->pod, part) ||
	        has_text(pid, part));
}

static bool is_meant(const struct top *top, const void *row)
{
	const struct glake_model_row *model = row;
	const struct charge *charge = row;
	switch (top->view) {
	case TOP_SESSIONS:
		return is_session_meant(top, row);
	case TOP_MODELS:
		return (top->gpu == TOP_ALL_GPUS || model->device == top->gpu) &&
		       (has_text(model->name, top->filter) || has_text(model->realm, top->filter));
	case TOP_TENANTS:
		return (top->gpu == TOP_ALL_GPUS || charge->at.device == top->gpu) &&
		       has_text(charge->tenant, top->filter);
	case TOP_N_VIEWS:
		break;
	}
	return true;
}

static void leave_out(const struct top *top, struct rows *rows)
{
	size_t n = 0;
	for (size_t i = 0; i < rows->n; i++) {
		if (is_meant(top, rows_at(rows, i))) {
			memmove(rows_at(rows, n++), rows_at(rows, i), rows->row_bytes);
		}
	}
	rows->n = n;
}

int top_list(struct top *top, struct rows *rows)
{
	int err = views[top->view].list(top, rows);
	if (err == 0 && rows->n > 0) {
		leave_out(top, rows);
		qsort_r(rows->list, rows->n, rows->row_bytes,
		        top->is_reverse[top->view] ? compare_back : compare,
		        (void *)&orders[top->order[top->view]]);
	}
	return err;
}

const struct field *top_fields(const struct top *top, size_t *n_out)
{
	*n_out = views[top->view].n_fields;
	return views[top->view].fields;
}

const char *top_tenant_of(const struct top *top, const void *row)
{
	return top->view == TOP_SESSIONS  ? ((const struct shown *)row)->row.tenant
	       : top->view == TOP_TENANTS ? ((const struct charge *)row)->tenant
	                                  : "";
}

const char *top_view_name(enum top_view view)
{
	return view_names[view];
}

const char *top_order_name(const struct top *top)
{
	return orders[top->order[top->view]].name;
}

void top_next_order(struct top *top)
{
	size_t *order = &top->order[top->view];
	do {
		*order = (*order + 1) % N_ORDERS;
	} while (orders[*order].view != top->view);
}

/* ---- drawing ---------------------------------------------------------------------------------- */

#define BAR_COLUMNS 36u

void top_parts(const struct glake_device_status *device, struct top_part parts_out[TOP_N_PARTS])
{
	static const struct top_part parts[TOP_N_PARTS] = {
		{'P', "private", 0},     {'B', "blocks", 0}, {'c', "cached", 0},
		{'a', "made ahead", 0},  {'d', "driver", 0}, {'o', "others", 0},
		{'u', "unaccounted", 0},
	};
	uint64_t bytes[MEMORY_N_USES];
	memory_uses(device, bytes);
	for (size_t i = 0; i < TOP_N_PARTS; i++) {
		parts_out[i] = parts[i];
		parts_out[i].bytes = bytes[i];
	}
}

void top_ends(const struct top_part parts[TOP_N_PARTS], uint64_t total_bytes, unsigned n_columns,
              unsigned ends_out[TOP_N_PARTS])
{
	unsigned column = 0;
	uint64_t bytes = 0;
	for (unsigned i = 0; i < TOP_N_PARTS; i++) {
		bytes += parts[i].bytes;
		double part = (double)bytes / (double)(total_bytes + 1);
		unsigned end = (unsigned)((part < 1 ? part : 1) * n_columns + 0.5);
		end = end < column ? column : end;
		end = parts[i].bytes > 0 && end == column ? column + 1 : end;
		column = end < n_columns ? end : n_columns;
		ends_out[i] = column;
	}
}

void top_used(const struct glake_device_status *device, char *text_out, size_t n_bytes)
{
	char used[TEXT_NUMBER_BYTES];
	char total[TEXT_NUMBER_BYTES];
	bool is_known = device->free_bytes > 0;
	text_size(is_known && device->total_bytes > device->free_bytes
	                  ? device->total_bytes - device->free_bytes
	                  : device->physical_bytes,
	          used);
	text_size(device->total_bytes, total);
	snprintf(text_out, n_bytes, "%s%s of %s", is_known ? "" : ">= ", used, total);
}

static void put_bar(const struct glake_device_status *device, FILE *out)
{
	struct top_part parts[TOP_N_PARTS];
	unsigned ends[TOP_N_PARTS];
	unsigned column = 0;
	top_parts(device, parts);
	top_ends(parts, device->total_bytes, BAR_COLUMNS, ends);
	for (unsigned i = 0; i < TOP_N_PARTS; i++) {
		for (; column < ends[i]; column++) {
			fputc(parts[i].letter, out);
		}
	}
	for (; column < BAR_COLUMNS; column++) {
		fputc('.', out);
	}
}

static void put_device(const struct glake_device_status *device, FILE *out)
{
	char used[2 * TEXT_NUMBER_BYTES + 16];
	char *name = text_escape(device->name);
	fprintf(out, "%2" PRIu32 " %-12.12s [", device->index, name ? name : "");
	free(name);
	put_bar(device, out);
	top_used(device, used, sizeof(used));
	fprintf(out, "] %s\n", used);
}

static void rate_text(const struct top *top, const char *counter, char text_out[TEXT_NUMBER_BYTES])
{
	double per_second = counter_rate(top, counter);
	snprintf(text_out, TEXT_NUMBER_BYTES, per_second < 0 ? "-" : "%.*f",
	         per_second < 10 ? 1 : 0, per_second);
}

void top_numbers(const struct top *top, char daemon_out[TOP_LINE_BYTES],
                 char rates_out[TOP_LINE_BYTES])
{
	const struct glake_status *status = &top->now.status;
	char uptime[TEXT_NUMBER_BYTES];
	char requests[TEXT_NUMBER_BYTES];
	char refused[TEXT_NUMBER_BYTES];
	char chunks[TEXT_NUMBER_BYTES];
	char loaded[TEXT_NUMBER_BYTES] = "-";
	char clock[16] = "";
	time_t now = time(NULL);
	struct tm local;
	if (localtime_r(&now, &local)) {
		strftime(clock, sizeof(clock), "%T", &local);
	}
	char *version = text_escape(status->version);
	text_duration(status->uptime_ms, uptime);
	snprintf(daemon_out, TOP_LINE_BYTES,
	         "%s  glaked %s, up %s%s  %" PRIu64 " sessions  %" PRIu64 " models  fds %" PRIu64
	         " of %" PRIu64,
	         clock, version ? version : "", uptime, ctl_state_text(status), status->n_sessions,
	         status->n_models, status->fds_used, status->fds_budget);
	free(version);
	double bytes = counter_rate(top, "bytes_loaded");
	if (bytes >= 0) {
		text_size((uint64_t)bytes, loaded);
	}
	rate_text(top, "requests_total", requests);
	rate_text(top, "requests_refused", refused);
	rate_text(top, "chunks_created", chunks);
	snprintf(rates_out, TOP_LINE_BYTES,
	         "per second:  requests %s  refused %s  chunks made %s  loaded %s", requests,
	         refused, chunks, loaded);
}

static void put_head(const struct top *top, FILE *out)
{
	char daemon[TOP_LINE_BYTES];
	char rates[TOP_LINE_BYTES];
	top_numbers(top, daemon, rates);
	fprintf(out, "%s\n%s\n", daemon, rates);
	for (size_t i = 0; i < top->now.devices.n; i++) {
		put_device(rows_at(&top->now.devices, i), out);
	}
	fputs("P private  B blocks  c cached  a made ahead  d driver  o others  u unaccounted\n",
	      out);
}

static int put_text(struct top *top, FILE *out)
{
	struct rows rows = {.n = 0};
	put_head(top, out);
	fputc('\n', out);
	int err = top_list(top, &rows);
	err = err ? err
	          : rows_show(top->ctl, &rows, NULL, views[top->view].fields,
	                      views[top->view].n_fields);
	rows_deinit(&rows);
	return err;
}

/* The rates, which are in no field. */
static json_t *rates(const struct top *top)
{
	static const char *const names[] = {"requests_total", "requests_refused", "chunks_created",
	                                    "bytes_loaded"};
	json_t *object = json_object();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		double per_second = counter_rate(top, names[i]);
		json_object_set_new(object, names[i],
		                    per_second < 0 ? json_null() : json_real(per_second));
	}
	return object;
}

static int print_json(struct top *top)
{
	struct ctl *ctl = top->ctl;
	json_t *devices = json_array();
	json_t *document = json_pack("{s:o, s:o}", "per_second", rates(top), "devices", devices);
	for (size_t i = 0; i < top->now.devices.n; i++) {
		json_array_append_new(devices, ctl_device_object(rows_at(&top->now.devices, i)));
	}
	for (enum top_view i = 0; i < TOP_N_VIEWS; i++) {
		struct rows rows = {.n = 0};
		top->view = i;
		if (top_list(top, &rows) == 0) {
			json_object_set_new(document, view_names[i],
			                    rows_json(&rows, views[i].fields, views[i].n_fields));
		}
		rows_deinit(&rows);
	}
	return ctl_print_json(ctl, document);
}

/* ---- the command ------------------------------------------------------------------------------ */

static int run_lines(struct top *top)
{
	struct ctl *ctl = top->ctl;
	unsigned given = ctl->values.given;
	uint32_t n_seconds = given & CTL_OPTION_ONCE      ? 0
	                     : given & CTL_OPTION_SECONDS ? ctl->values.seconds
	                                                  : UINT32_MAX;
	int err = 0;
	for (uint32_t i = 0; err == 0 && i <= n_seconds; i++) {
		if (i > 0) {
			sleep(1);
			look(top);
			fputs(ctl->json ? "" : "\n", ctl->out);
		}
		err = top->err ? top->err : ctl->json ? print_json(top) : put_text(top, ctl->out);
		if (err == 0 && fflush(ctl->out) != 0) {
			err = CTL_E_OUTPUT;
		}
	}
	return err;
}

static void begin_orders(struct top *top)
{
	for (size_t i = N_ORDERS; i-- > 0;) {
		top->order[orders[i].view] = i;
	}
}

static bool is_lines(const struct ctl *ctl)
{
	return ctl->json || ctl->values.given & (CTL_OPTION_ONCE | CTL_OPTION_SECONDS) ||
	       table_room(ctl->out) == 0 || !isatty(STDIN_FILENO);
}

static int run_top(struct ctl *ctl)
{
	struct top top = {.ctl = ctl, .by_gpu = !ctl->json, .gpu = TOP_ALL_GPUS};
	begin_orders(&top);
	identities_init(&top.identities);
	top.looker = looker_new(ctl);
	if (!top.looker) {
		return -ENOMEM;
	}
	look(&top);
	int err = top.err;
	if (err == 0) {
		err = is_lines(ctl) ? run_lines(&top) : top_screen(&top);
	}
	looker_free(top.looker);
	snapshot_deinit(&top.before);
	snapshot_deinit(&top.now);
	identities_deinit(&top.identities);
	return err;
}

/* Beside our libraries: the same in the build, installed and packed. Returns only if it cannot be run. */
static int run_screen_program(struct ctl *ctl)
{
	char self[PATH_MAX];
	char path[2 * PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = '\0';
	snprintf(path, sizeof(path), "%s/../lib/glake/glake-top", dirname(self));
	if (n > 0) {
		execv(path, ctl->arguments);
	}
	return ctl_usage(ctl,
	                 "glake-top shows it on a terminal, and cannot be run: %s. Install the "
	                 "package glake-top; --once and --seconds N work without it",
	                 strerror(errno));
}

static int check_top(struct ctl *ctl)
{
	unsigned both = CTL_OPTION_ONCE | CTL_OPTION_SECONDS;
	if ((ctl->values.given & both) == both) {
		return ctl_usage(ctl, "--once or --seconds");
	}
	return is_lines(ctl) || top_screen ? 0 : run_screen_program(ctl);
}

const struct ctl_command ctl_top = {
	.name = "top",
	.operands = "",
	.summary = "Devices, sessions, models and tenants, live",
	.options = CTL_OPTION_EXACT | CTL_OPTION_ONCE | CTL_OPTION_SECONDS,
	.check = check_top,
	.run = run_top,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* What happens now: devices, and the sessions, models or tenants that use them, again each second. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/looker.h"
#include "ctl/memory.h"
#include "ctl/screen.h"
#include "ctl/snapshot.h"
#include "ctl/text.h"
#include "glake.h"

#define PERIOD_MS 1000

/* Of a look that is older glaked is said not to answer. */
#define PATIENCE_MS 3000

#define ROW struct shown

/* A session, with what it does in a second. */
struct shown {
	struct glake_session_row row; /* borrowed from the snapshot */
	double utilization;
	uint64_t driver_bytes;
	double requests; /* per second; -1: not known yet */
};

#define OF_ROW(member, type_, style_, title_) \
	{ \
		.key = #member, .offset = offsetof(ROW, row.member), .type = FIELD_##type_, \
		.style = FIELD_##style_, .title = title_ \
	}

static const struct field session_fields[] = {
	OF_ROW(session, U64, PLAIN, NULL),
	OF_ROW(pid, U32, PLAIN, "PID"),
	OF_ROW(reserved_bytes, U64, BYTES, "RESERVED"),
	OF_ROW(live_bytes, U64, BYTES, "LIVE"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTIL"),
	OF_ROW(shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, driver_bytes, U64, BYTES, "DRIVER"),
	FIELD(ROW, requests, RATIO, PLAIN, "REQ/S"),
	OF_ROW(tenant, TEXT, PLAIN, "TENANT"),
	OF_ROW(program, TEXT, PLAIN, "PROGRAM"),
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
	uint32_t device;
	uint32_t n_sessions;
	uint64_t used_bytes;
	uint64_t quota_bytes;
	uint64_t peak_bytes;
};

static const struct field tenant_fields[] = {
	FIELD(ROW, device, U32, PLAIN, "DEV"),
	FIELD(ROW, used_bytes, U64, BYTES, "USED"),
	FIELD(ROW, quota_bytes, U64, BYTES_LIMIT, "QUOTA"),
	FIELD(ROW, peak_bytes, U64, BYTES, "PEAK"),
	FIELD(ROW, n_sessions, U32, PLAIN, "SESSIONS"),
	FIELD(ROW, tenant, TEXT, PLAIN, "TENANT"),
};

#undef ROW

enum view {
	VIEW_SESSIONS,
	VIEW_MODELS,
	VIEW_TENANTS,
	N_VIEWS,
};

static const char *const view_names[N_VIEWS] = {"sessions", "models", "tenants"};

/* Orders, the largest first unless they are turned round; the first of a view is the one that it begins with. */
static const struct order {
	const char *name;
	enum view view;
	enum field_type type;
	size_t offset;
} orders[] = {
	{"reserved", VIEW_SESSIONS, FIELD_U64, offsetof(struct shown, row.reserved_bytes)},
	{"live", VIEW_SESSIONS, FIELD_U64, offsetof(struct shown, row.live_bytes)},
	{"shared", VIEW_SESSIONS, FIELD_U64, offsetof(struct shown, row.shared_bytes)},
	{"driver", VIEW_SESSIONS, FIELD_U64, offsetof(struct shown, driver_bytes)},
	{"req/s", VIEW_SESSIONS, FIELD_RATIO, offsetof(struct shown, requests)},
	{"pid", VIEW_SESSIONS, FIELD_U32, offsetof(struct shown, row.pid)},
	{"span", VIEW_MODELS, FIELD_U64, offsetof(struct glake_model_row, span_bytes)},
	{"part", VIEW_MODELS, FIELD_U64, offsetof(struct glake_model_row, part_bytes)},
	{"open", VIEW_MODELS, FIELD_U32, offsetof(struct glake_model_row, n_open)},
	{"idle", VIEW_MODELS, FIELD_U64, offsetof(struct glake_model_row, idle_ms)},
	{"used", VIEW_TENANTS, FIELD_U64, offsetof(struct charge, used_bytes)},
	{"peak", VIEW_TENANTS, FIELD_U64, offsetof(struct charge, peak_bytes)},
	{"sessions", VIEW_TENANTS, FIELD_U32, offsetof(struct charge, n_sessions)},
};

#define N_ORDERS (sizeof(orders) / sizeof(orders[0]))

struct top {
	struct ctl *ctl;
	struct looker *looker; /* owned */
	bool is_looking;       /* and began: */
	uint64_t began_ms;
	struct snapshot before; /* empty at first */
	struct snapshot now;    /* the same; stays while glaked is away */
	int err;                /* of the last look */
	enum view view;
	size_t order[N_VIEWS]; /* of orders */
	bool is_reverse[N_VIEWS];
	size_t first;  /* row that is shown */
	size_t n_rows; /* at most: a screen has no room for more */
	bool is_screen;
};

/* ---- looking ---------------------------------------------------------------------------------- */

/* Take over what the look that is under way has found, waiting for it until it is @ms old, or for ever (-1). */
static void see(struct top *top, int ms)
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
	}
}

static void begin_look(struct top *top)
{
	if (!top->is_looking) {
		looker_begin(top->looker);
		top->is_looking = true;
		top->began_ms = ctl_now_ms();
	}
}

static void look(struct top *top)
{
	begin_look(top);
	see(top, -1);
}

/* How much more it is than before, per second; -1: nobody knows. */
static double rate(const struct top *top, uint64_t now, uint64_t before)
{
	uint64_t ms = top->now.at_ms - top->before.at_ms;
	bool is_known = top->before.at_ms > 0 && ms > 0 && now >= before;
	return is_known ? (double)(now - before) * 1000 / (double)ms : -1;
}

static double counter_rate(const struct top *top, const char *name)
{
	return rate(top, snapshot_counter(&top->now, name), snapshot_counter(&top->before, name));
}

static double request_rate(const struct top *top, const struct glake_session_row *row)
{
	const struct glake_session_row *before = snapshot_session(&top->before, row->session);
	return before && before->pid == row->pid ? rate(top, row->n_requests, before->n_requests)
	                                         : -1;
}

static int list_sessions(const struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.sessions.n; i++) {
		const struct glake_session_row *of = rows_at(&top->now.sessions, i);
		struct shown *shown = rows_add(rows, sizeof(*shown));
		if (!shown) {
			return CTL_E_OUTPUT;
		}
		*shown = (struct shown){
			.row = *of,
			.utilization = memory_utilization(of->live_bytes, of->reserved_bytes),
			.driver_bytes = memory_driver_bytes(of),
			.requests = request_rate(top, of),
		};
	}
	return 0;
}

static int list_models(const struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.models.n; i++) {
		struct glake_model_row *row = rows_add(rows, sizeof(*row));
		if (!row) {
			return CTL_E_OUTPUT;
		}
		memcpy(row, rows_at(&top->now.models, i), sizeof(*row));
		/* The end of a path says most, and a line has no room for all. */
		const char *slash = strrchr(row->name, '/');
		row->name = slash && slash[1] && !top->ctl->json ? slash + 1 : row->name;
	}
	return 0;
}

static int list_tenants(const struct top *top, struct rows *rows)
{
	for (size_t i = 0; i < top->now.tenants.n; i++) {
		const struct glake_tenant_row *of = rows_at(&top->now.tenants, i);
		for (uint32_t at = 0; at < of->n_devices; at++) {
			struct charge *charge = rows_add(rows, sizeof(*charge));
			if (!charge) {
				return CTL_E_OUTPUT;
			}
			*charge = (struct charge){
				.tenant = of->name,
				.device = of->devices[at].device,
				.n_sessions = of->n_sessions,
				.used_bytes = of->devices[at].used_bytes,
				.quota_bytes = of->devices[at].quota_bytes,
				.peak_bytes = of->devices[at].peak_bytes,
			};
		}
	}
	return 0;
}

static const struct {
	int (*list)(const struct top *top, struct rows *rows);
	const struct field *fields;
	size_t n_fields;
} views[N_VIEWS] = {
	[VIEW_SESSIONS] = {list_sessions, FIELDS(session_fields)},
	[VIEW_MODELS] = {list_models, FIELDS(model_fields)},
	[VIEW_TENANTS] = {list_tenants, FIELDS(tenant_fields)},
};

static double number_at(const struct order *order, const void *row)
{
	const char *at = (const char *)row + order->offset;
	switch (order->type) {
	case FIELD_U32:
		return *(const uint32_t *)(const void *)at;
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

/* The rows of the view, in its order. */
static int list_view(const struct top *top, struct rows *rows)
{
	int err = views[top->view].list(top, rows);
	if (err == 0 && rows->n > 0) {
		qsort_r(rows->list, rows->n, rows->row_bytes,
		        top->is_reverse[top->view] ? compare_back : compare,
		        (void *)&orders[top->order[top->view]]);
	}
	return err;
}

/* ---- drawing ---------------------------------------------------------------------------------- */

#define BAR_COLUMNS 36u

/* Parts of a device, each with a letter, and a colour where there are colours. */
static void put_bar(const struct top *top, const struct glake_device_status *device, FILE *out)
{
	uint64_t used = device->used_block_bytes;
	const struct {
		char letter;
		const char *colour;
		uint64_t bytes;
	} parts[] = {
		{'P', "\033[34m", device->private_bytes},
		{'B', "\033[32m", used},
		{'c', "\033[36m", device->block_bytes > used ? device->block_bytes - used : 0},
		{'a', "\033[37m", device->pool_bytes},
		{'d', "\033[33m",
	         device->context_bytes + device->managed_bytes + device->array_bytes +
	                 device->graph_bytes + device->other_bytes + device->mover_bytes},
		{'o', "\033[31m", device->foreign_bytes},
		{'u', "\033[35m", device->unaccounted_bytes},
	};
	unsigned column = 0;
	uint64_t bytes = 0;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		bytes += parts[i].bytes;
		unsigned end = (unsigned)((double)bytes * BAR_COLUMNS /
		                                  (double)(device->total_bytes + 1) +
		                          0.5);
		/* What is there has a column, as long as there are any. */
		end = parts[i].bytes > 0 && end == column ? column + 1 : end;
		end = end < BAR_COLUMNS ? end : BAR_COLUMNS;
		if (end > column && top->is_screen) {
			fputs(parts[i].colour, out);
		}
		for (; column < end; column++) {
			fputc(parts[i].letter, out);
		}
	}
	fprintf(out, "%s%.*s", top->is_screen ? "\033[0m" : "", (int)(BAR_COLUMNS - column),
	        "....................................");
}

static void put_device(const struct top *top, const struct glake_device_status *device, FILE *out)
{
	char used[TEXT_NUMBER_BYTES];
	char total[TEXT_NUMBER_BYTES];
	bool is_known = device->free_bytes > 0;
	text_size(is_known ? device->total_bytes - device->free_bytes : device->physical_bytes,
	          used);
	text_size(device->total_bytes, total);
	char *name = text_escape(device->name);
	fprintf(out, "%2" PRIu32 " %-12.12s [", device->index, name ? name : "");
	free(name);
	put_bar(top, device, out);
	fprintf(out, "] %s%s of %s\n", is_known ? "" : ">= ", used, total);
}

static void put_rate(FILE *out, const char *name, double per_second)
{
	if (per_second < 0) {
		fprintf(out, "  %s -", name);
	} else {
		fprintf(out, "  %s %.*f", name, per_second < 10 ? 1 : 0, per_second);
	}
}

static void put_head(const struct top *top, FILE *out)
{
	const struct glake_status *status = &top->now.status;
	char uptime[TEXT_NUMBER_BYTES];
	char clock[16] = "";
	char loaded[TEXT_NUMBER_BYTES] = "-";
	time_t now = time(NULL);
	struct tm local;
	if (localtime_r(&now, &local)) {
		strftime(clock, sizeof(clock), "%T", &local);
	}
	text_duration(status->uptime_ms, uptime);
	fprintf(out,
	        "%s  glaked %s, up %s%s  %" PRIu64 " sessions  %" PRIu64 " models  fds %" PRIu64
	        " of %" PRIu64 "\n",
	        clock, status->version, uptime, status->draining ? ", draining" : "",
	        status->n_sessions, status->n_models, status->fds_used, status->fds_budget);
	double bytes = counter_rate(top, "bytes_loaded");
	if (bytes >= 0) {
		text_size((uint64_t)bytes, loaded);
	}
	fputs("per second:", out);
	put_rate(out, "requests", counter_rate(top, "requests_total"));
	put_rate(out, "refused", counter_rate(top, "requests_refused"));
	put_rate(out, "chunks made", counter_rate(top, "chunks_created"));
	fprintf(out, "  loaded %s\n", loaded);
	for (size_t i = 0; i < top->now.devices.n; i++) {
		put_device(top, rows_at(&top->now.devices, i), out);
	}
	fputs("P private  B blocks  c cached  a made ahead  d driver  o others  u unaccounted\n",
	      out);
}

static int put_rows(const struct top *top, FILE *out)
{
	struct rows rows = {.n = 0};
	struct table table;
	table_init(&table);
	field_columns(&table, views[top->view].fields, views[top->view].n_fields);
	int err = list_view(top, &rows);
	for (size_t i = top->first; i < rows.n && i - top->first < top->n_rows; i++) {
		field_cells(&table, views[top->view].fields, views[top->view].n_fields,
		            rows_at(&rows, i), top->ctl->exact);
	}
	if (err == 0 && table_print(&table, out) < 0) {
		err = CTL_E_OUTPUT;
	}
	table_deinit(&table);
	rows_deinit(&rows);
	return err;
}

static int put_text(const struct top *top, FILE *out)
{
	put_head(top, out);
	fputc('\n', out);
	return put_rows(top, out);
}

/* As its fields, but the rates. */
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

static int print_json(const struct top *top)
{
	static const enum view order[N_VIEWS] = {VIEW_SESSIONS, VIEW_MODELS, VIEW_TENANTS};
	struct ctl *ctl = top->ctl;
	json_t *devices = json_array();
	json_t *document = json_pack("{s:o, s:o}", "per_second", rates(top), "devices", devices);
	for (size_t i = 0; i < top->now.devices.n; i++) {
		json_array_append_new(devices, ctl_device_object(rows_at(&top->now.devices, i)));
	}
	for (size_t i = 0; i < N_VIEWS; i++) {
		struct top of = *top;
		struct rows rows = {.n = 0};
		of.view = order[i];
		if (list_view(&of, &rows) == 0) {
			json_object_set_new(
				document, view_names[order[i]],
				rows_json(&rows, views[order[i]].fields, views[order[i]].n_fields));
		}
		rows_deinit(&rows);
	}
	return ctl_print_json(ctl, document);
}

/* ---- on a screen ------------------------------------------------------------------------------ */

static size_t n_rows(const struct top *top)
{
	struct rows rows = {.n = 0};
	views[top->view].list(top, &rows);
	size_t n = rows.n;
	rows_deinit(&rows);
	return n;
}

static int draw(struct top *top, struct screen *screen)
{
	char *text = NULL;
	size_t n_bytes = 0;
	FILE *out = open_memstream(&text, &n_bytes);
	if (!out) {
		return CTL_E_OUTPUT;
	}
	size_t n = n_rows(top);
	fprintf(out, "\033[7m %s by %s%s, %zu of %zu \033[0m  ", view_names[top->view],
	        orders[top->order[top->view]].name, top->is_reverse[top->view] ? " up" : "",
	        n > 0 ? top->first + 1 : 0, n);
	bool is_late = top->is_looking && ctl_now_ms() - top->began_ms > PATIENCE_MS;
	if (top->err || is_late) {
		fprintf(out, "%s; trying again\n",
		        is_late ? "glaked does not answer" : glake_strerror(top->err));
	} else {
		fprintf(out, "q quit  s sort  r turn  m %s  arrows\n",
		        view_names[(top->view + 1) % N_VIEWS]);
	}
	top->n_rows = screen->rows;
	int err = put_text(top, out);
	err = fclose(out) != 0 ? CTL_E_OUTPUT : err;
	if (err == 0) {
		screen_draw(screen, text);
	}
	free(text);
	return err;
}

static void scroll(struct top *top, long by)
{
	size_t n = n_rows(top);
	long first = (long)top->first + by;
	long last = n > 0 ? (long)n - 1 : 0;
	top->first = (size_t)(first < 0 ? 0 : first > last ? last : first);
}

static void sort_next(struct top *top)
{
	size_t *order = &top->order[top->view];
	do {
		*order = (*order + 1) % N_ORDERS;
	} while (orders[*order].view != top->view);
}

/* Returns whether it goes on. */
static bool follow_key(struct top *top, const struct screen *screen, enum screen_key key)
{
	/* Less what stands above the rows. */
	long page = (long)screen->rows - (long)top->now.devices.n - 6;
	switch (key) {
	case KEY_QUIT:
		return false;
	case KEY_SORT:
		sort_next(top);
		break;
	case KEY_REVERSE:
		top->is_reverse[top->view] ^= true;
		break;
	case KEY_VIEW:
		top->view = (top->view + 1) % N_VIEWS;
		top->first = 0;
		break;
	case KEY_UP:
		scroll(top, -1);
		break;
	case KEY_DOWN:
		scroll(top, 1);
		break;
	case KEY_PAGE_UP:
		scroll(top, page > 1 ? -page : -1);
		break;
	case KEY_PAGE_DOWN:
		scroll(top, page > 1 ? page : 1);
		break;
	case KEY_HOME:
		top->first = 0;
		break;
	case KEY_END:
		/* The last page, full. */
		top->first = n_rows(top);
		scroll(top, page > 1 ? -page : -1);
		break;
	case KEY_NONE:
	case KEY_OTHER:
		break;
	}
	return true;
}

static int run_screen(struct top *top, struct screen *screen)
{
	uint64_t next_ms = ctl_now_ms() + PERIOD_MS;
	int err = draw(top, screen);
	while (err == 0) {
		uint64_t now = ctl_now_ms();
		enum screen_key key = screen_wait(screen, looker_fd(top->looker),
		                                  now < next_ms ? (int)(next_ms - now) : 0);
		if (!follow_key(top, screen, key)) {
			break;
		}
		if (ctl_now_ms() >= next_ms) {
			begin_look(top);
			next_ms = ctl_now_ms() + PERIOD_MS;
		}
		see(top, 0);
		scroll(top, 0);
		err = draw(top, screen);
	}
	return err;
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

static int run_top(struct ctl *ctl)
{
	struct top top = {.ctl = ctl, .n_rows = SIZE_MAX};
	struct screen screen;
	begin_orders(&top);
	top.looker = looker_new(ctl);
	if (!top.looker) {
		return -ENOMEM;
	}
	look(&top);
	int err = top.err;
	bool is_lines = ctl->json || ctl->values.given & (CTL_OPTION_ONCE | CTL_OPTION_SECONDS);
	if (err == 0 && !is_lines && screen_open(&screen, ctl->out)) {
		top.is_screen = true;
		err = run_screen(&top, &screen);
		screen_close(&screen);
	} else if (err == 0) {
		err = run_lines(&top);
	}
	looker_free(top.looker);
	snapshot_deinit(&top.before);
	snapshot_deinit(&top.now);
	return err;
}

static int check_top(struct ctl *ctl)
{
	unsigned both = CTL_OPTION_ONCE | CTL_OPTION_SECONDS;
	return (ctl->values.given & both) == both ? ctl_usage(ctl, "--once or --seconds") : 0;
}

const struct ctl_command ctl_top = {
	.name = "top",
	.operands = "",
	.summary = "Devices, sessions, models and tenants, live",
	.options = CTL_OPTION_EXACT | CTL_OPTION_ONCE | CTL_OPTION_SECONDS,
	.check = check_top,
	.run = run_top,
};

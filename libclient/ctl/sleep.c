/* SPDX-License-Identifier: Apache-2.0 */
/* Programs are put to sleep, or woken; and those that sleep. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/meant.h"
#include "ctl/progress.h"
#include "ctl/rows.h"
#include "ctl/text.h"
#include "glake_admin.h"

#define ROW struct outcome

struct outcome {
	uint64_t session;
	uint32_t pid;
	struct glake_sleep_report report; /* but for its list */
	uint64_t stays_bytes;
	uint64_t took_ms;
	uint64_t held_ms;
};

static const struct field outcome_fields[] = {
	FIELD(ROW, session, U64, PLAIN, "SESSION"),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, report, is_asleep, BOOL, PLAIN, "ASLEEP"),
	FIELD_IN(ROW, report, private_bytes, U64, BYTES, "PRIVATE"),
	FIELD_IN(ROW, report, shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, stays_bytes, U64, BYTES, "STAYS"),
	FIELD_IN(ROW, report, took_ns, U64, PLAIN, NULL),
	FIELD_IN(ROW, report, held_ns, U64, PLAIN, NULL),
	FIELD(ROW, took_ms, U64, MS, "TOOK"),
	FIELD(ROW, held_ms, U64, MS, "FOR WORK"),
	FIELD_IN(ROW, report, waited_ms, U64, MS, "FOR ROOM"),
};

#undef ROW
#define ROW struct stay

struct stay {
	uint32_t pid;
	uint64_t bytes;
	char *why; /* owned */
};

static const struct field stay_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, bytes, U64, BYTES, "STAYS"),
	FIELD(ROW, why, TEXT, PLAIN, "WHY"),
};

#undef ROW

/* ---- whom the operand means ------------------------------------------------------------------- */

static int add_number(struct rows *numbers, uint64_t number)
{
	return rows_append(numbers, &number, sizeof(number));
}

static bool has_number(const struct rows *numbers, uint64_t number)
{
	size_t i = 0;
	while (i < numbers->n && *(const uint64_t *)rows_at(numbers, i) != number) {
		i++;
	}
	return i < numbers->n;
}

/* The processes that have a model open: step by step. */
struct openers {
	const char *model;
	struct rows models; /* uint64_t, as the next two. Ids: of each device it is another one */
	struct rows sessions;
	struct rows pids;
	struct meant *meant;
};

static int note_model(void *user, const struct glake_model_row *row)
{
	struct openers *openers = user;
	return strcmp(row->name, openers->model) == 0 ? add_number(&openers->models, row->id) : 0;
}

static int note_use(void *user, const struct glake_use_row *row)
{
	struct openers *openers = user;
	uint32_t i = 0;
	while (i < row->n_models && !has_number(&openers->models, row->models[i])) {
		i++;
	}
	return i < row->n_models ? add_number(&openers->sessions, row->session) : 0;
}

/* The model itself may be gone. */
static int note_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct openers *openers = user;
	uint32_t i = 0;
	while (i < row->n_models && strcmp(row->models[i], openers->model) != 0) {
		i++;
	}
	return i < row->n_models ? add_number(&openers->sessions, row->session) : 0;
}

static int note_pid(void *user, const struct glake_session_row *row)
{
	struct openers *openers = user;
	return has_number(&openers->sessions, row->session) ? add_number(&openers->pids, row->pid)
	                                                    : 0;
}

static int find_of_pids(void *user, const struct glake_session_row *row)
{
	const struct openers *openers = user;
	return has_number(&openers->pids, row->pid) ? meant_add(openers->meant, row) : 0;
}

static int find_openers(struct ctl *ctl, const char *model, struct meant *meant)
{
	struct openers openers = {.model = model, .meant = meant};
	int err = glake_list_models(ctl->session, note_model, &openers);
	err = err ? err : glake_list_uses(ctl->session, note_use, &openers);
	err = err ? err : glake_list_sleepers(ctl->session, note_sleeper, &openers);
	err = err ? err : glake_list_sessions(ctl->session, note_pid, &openers);
	err = err ? err : glake_list_sessions(ctl->session, find_of_pids, &openers);
	rows_deinit(&openers.models);
	rows_deinit(&openers.sessions);
	rows_deinit(&openers.pids);
	return err;
}

/*
 * What is no number is a tenant; if none of that name has sessions, it is a model, and all sessions of the processes are meant that
 * have it open.
 */
static int find_all(struct ctl *ctl, struct meant *meant)
{
	if (text_parse_count(ctl->operands[0], INT64_MAX, &meant->number) < 0) {
		meant->tenant = ctl->operands[0];
	}
	int err = glake_list_sessions(ctl->session, meant_find, meant);
	if (err == 0 && meant->found.n == 0 && meant->tenant) {
		err = find_openers(ctl, meant->tenant, meant);
	}
	if (err == 0 && meant->found.n == 0 && meant->tenant) {
		snprintf(ctl->cause, sizeof(ctl->cause),
		         "no tenant '%s' has sessions, and nobody has such a model open",
		         meant->tenant);
		return GLAKE_E_NOT_FOUND;
	}
	return err == 0 && meant->found.n == 0 ? ctl_nobody(ctl, meant->number) : err;
}

/* ---- asking ----------------------------------------------------------------------------------- */

struct result {
	struct rows outcomes;
	struct rows stays;
	struct outcome now; /* session and pid of who is being asked */
};

static int take_report(void *user, const struct glake_sleep_report *report)
{
	struct result *result = user;
	struct outcome *row = rows_add(&result->outcomes, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	*row = result->now;
	row->report = *report;
	row->took_ms = report->took_ns / 1000000;
	row->held_ms = report->held_ns / 1000000;
	for (uint32_t i = 0; i < report->n_stays; i++) {
		const struct stay stay = {row->pid, report->stays[i].bytes,
		                          strdup(report->stays[i].why)};
		if (!stay.why || rows_append(&result->stays, &stay, sizeof(stay)) < 0) {
			free(stay.why);
			return -ENOMEM;
		}
		row->stays_bytes += report->stays[i].bytes;
	}
	return 0;
}

static int ask_one(struct ctl *ctl, struct result *result)
{
	struct progress progress = progress_begin(ctl);
	const struct glake_sleep_options options = {
		.size = sizeof(options),
		.wakes = ctl->command == &ctl_wake,
		.progress = progress_show,
		.progress_user = &progress,
		.waiting = progress_wait,
	};
	progress.pid = result->now.pid;
	int err = glake_sleep_session(ctl->session, result->now.session, &options, take_report,
	                              result);
	if (err == 0) {
		const struct outcome *done = rows_at(&result->outcomes, result->outcomes.n - 1);
		uint64_t n_bytes = done->report.private_bytes + done->report.shared_bytes;
		progress_show(&progress, n_bytes, n_bytes);
	}
	progress_end(&progress);
	return err;
}

/* A process may have a session beside the shim's, which is not asked: it sleeps along. */
static int ask_all(struct ctl *ctl, struct result *result)
{
	struct meant meant = {.number = 0};
	int err = find_all(ctl, &meant);
	for (size_t i = 0; err == 0 && i < meant.found.n; i++) {
		const struct meant_session *found = rows_at(&meant.found, i);
		result->now = (struct outcome){.session = found->session, .pid = found->pid};
		err = ask_one(ctl, result);
		if (err == GLAKE_E_BAD_REQUEST &&
		    (result->outcomes.n > 0 || i + 1 < meant.found.n)) {
			err = 0;
		}
	}
	meant_deinit(&meant);
	return err;
}

static int print(struct ctl *ctl, const struct result *result)
{
	if (ctl->json) {
		json_t *sessions = rows_json(&result->outcomes, FIELDS(outcome_fields));
		json_t *stays = rows_json(&result->stays, FIELDS(stay_fields));
		return ctl_print_json(
			ctl, json_pack("{s:o, s:o}", "sessions", sessions, "stays", stays));
	}
	int err = rows_show(ctl, &result->outcomes, NULL, FIELDS(outcome_fields));
	return err ? err : rows_show_next(ctl, &result->stays, FIELDS(stay_fields));
}

static int run(struct ctl *ctl)
{
	struct result result = {.outcomes = {0}};
	int err = ask_all(ctl, &result);
	err = err ? err : print(ctl, &result);
	for (size_t i = 0; i < result.stays.n; i++) {
		struct stay *stay = rows_at(&result.stays, i);
		free(stay->why);
	}
	rows_deinit(&result.stays);
	rows_deinit(&result.outcomes);
	return err;
}

const struct ctl_command ctl_sleep = {
	.name = "sleep",
	.operands = "PID | SESSION | TENANT | MODEL",
	.summary = "Have programs give their GPU memory to others, until they need it",
	.options = CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 1,
	.run = run,
};

const struct ctl_command ctl_wake = {
	.name = "wake",
	.operands = "PID | SESSION | TENANT | MODEL",
	.summary = "Have programs that sleep take their GPU memory back",
	.options = CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 1,
	.run = run,
};

/* ---- who sleeps ------------------------------------------------------------------------------- */

#define ROW struct sleeper

struct sleeper {
	struct glake_sleeper_row of;
	const char *label; /* identity_label() */
	uint64_t woke_ms;  /* FIELD_NONE: it has not woken yet; the same holds for the next */
	uint64_t waited_ms;
};

static const struct field sleeper_fields[] = {
	FIELD_IN(ROW, of, session, U64, PLAIN, "SESSION"),
	FIELD_IN(ROW, of, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, of, uid, U32, PLAIN, NULL),
	FIELD(ROW, label, TEXT, NAME, "PROGRAM"),
	FIELD_IN(ROW, of, program, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, of, name, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, of, script, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, of, tenant, TEXT, PLAIN, "TENANT"),
	FIELD_IN(ROW, of, realm, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, of, state, TEXT, PLAIN, "STATE"),
	FIELD_IN(ROW, of, why, TEXT, PLAIN, "WHY"),
	FIELD_IN(ROW, of, asleep_ms, U64, MS, "FOR"),
	FIELD_IN(ROW, of, private_bytes, U64, BYTES, "PRIVATE"),
	FIELD_IN(ROW, of, shared_bytes, U64, BYTES, "SHARED"),
	FIELD_IN(ROW, of, gpu_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, of, stays_bytes, U64, BYTES, "STAYS"),
	FIELD_IN(ROW, of, place, U32, PLAIN, "PLACE"),
	FIELD_IN(ROW, of, waiting_ms, U64, MS, "WAITING"),
	FIELD_IN(ROW, of, n_sleeps, U64, PLAIN, "SLEEPS"),
	FIELD_IN(ROW, of, slept_ns, U64, PLAIN, NULL),
	FIELD_IN(ROW, of, woke_ns, U64, PLAIN, NULL),
	FIELD_IN(ROW, of, woke_waited_ms, U64, MS, NULL),
	FIELD(ROW, woke_ms, MAYBE, MS, "LAST WAKE"),
	FIELD(ROW, waited_ms, MAYBE, MS, "WAITED"),
};

#undef ROW
#define ROW struct glake_stay

static const struct field row_stay_fields[] = {
	FIELD(ROW, why, TEXT, PLAIN, NULL),
	FIELD(ROW, bytes, U64, BYTES, NULL),
};

#undef ROW

static struct sleeper show(const struct glake_sleeper_row *row)
{
	return (struct sleeper){
		.of = *row,
		.label = identity_label(row->name, row->script, row->program),
		.woke_ms = row->woke_ns > 0 ? row->woke_ns / 1000000 : FIELD_NONE,
		.waited_ms = row->woke_ns > 0 ? row->woke_waited_ms : FIELD_NONE,
	};
}

json_t *ctl_sleeper_object(const struct glake_sleeper_row *row)
{
	const struct sleeper sleeper = show(row);
	json_t *stays = field_list(FIELDS(row_stay_fields), row->stays, row->n_stays,
	                           sizeof(*row->stays));
	json_t *models = json_array();
	for (uint32_t i = 0; i < row->n_models; i++) {
		json_array_append_new(models, json_string(row->models[i]));
	}
	json_t *object = field_object(FIELDS(sleeper_fields), &sleeper);
	json_object_set_new(object, "stays", stays);
	json_object_set_new(object, "models", models);
	return object;
}

static int add_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct ctl_list *list = user;
	const struct sleeper sleeper = show(row);
	return list->ctl->json ? ctl_list_add_object(list, ctl_sleeper_object(row))
	                       : ctl_list_add(list, &sleeper);
}

static int run_sleepers(struct ctl *ctl)
{
	struct ctl_list list;
	ctl_list_begin(&list, ctl, FIELDS(sleeper_fields));
	return ctl_list_end(&list, "sleepers",
	                    glake_list_sleepers(ctl->session, add_sleeper, &list));
}

const struct ctl_command ctl_sleepers = {
	.name = "sleepers",
	.operands = "",
	.summary = "List programs that sleep: since when, why, and what the last wake cost",
	.options = CTL_OPTION_EXACT,
	.run = run_sleepers,
};

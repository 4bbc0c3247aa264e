/* SPDX-License-Identifier: Apache-2.0 */
/* A program is asked to seal what looks like weights: all sessions of its process, or one. */
#include <errno.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/meant.h"
#include "ctl/progress.h"
#include "ctl/rows.h"
#include "glake_admin.h"

#define ROW struct outcome

struct outcome {
	uint64_t session;
	uint32_t pid;
	struct glake_seal_report report;
	uint64_t took_ms;
	uint64_t held_ms;
	const char *why; /* of the first that failed, or else of what is pinned */
};

static const struct field outcome_fields[] = {
	FIELD(ROW, session, U64, PLAIN, "SESSION"),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, report, sealed_bytes, U64, BYTES, "SEALED"),
	FIELD_IN(ROW, report, shared_bytes, U64, BYTES, "SHARED"),
	FIELD_IN(ROW, report, small_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, report, unfilled_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, report, rewritten_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, report, pinned_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, report, failed_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, report, took_ns, U64, PLAIN, NULL),
	FIELD_IN(ROW, report, held_ns, U64, PLAIN, NULL),
	FIELD_IN(ROW, report, longest_held_ns, U64, PLAIN, NULL),
	FIELD(ROW, took_ms, U64, MS, "TOOK"),
	FIELD(ROW, held_ms, U64, MS, "HELD BACK"),
	FIELD(ROW, why, TEXT, PLAIN, NULL),
};

#undef ROW
#define ROW struct left

/* The memory that stays private has a table of its own: all in one would not fit a terminal. */
struct left {
	uint32_t pid;
	uint64_t bytes;
	const char *cause;
	const char *meaning;
};

static const struct field left_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, bytes, U64, BYTES, "PRIVATE"),
	FIELD(ROW, cause, TEXT, PLAIN, "CAUSE"),
	FIELD(ROW, meaning, TEXT, PLAIN, "MEANING"),
};

#undef ROW

static int seal_one(struct ctl *ctl, uint64_t session, struct glake_seal_report *report)
{
	struct progress progress = progress_begin(ctl);
	const struct glake_seal_options options = {
		.size = sizeof(options),
		.dry_run = (ctl->values.given & CTL_OPTION_DRY_RUN) != 0,
		.progress = progress_show,
		.progress_user = &progress,
	};
	int err = glake_seal_session(ctl->session, session, &options, report);
	progress_end(&progress);
	return err;
}

/* A process may have a session beside the shim's, which cannot be sealed. */
static int seal_all(struct ctl *ctl, struct rows *outcomes)
{
	struct meant meant = {.number = ctl_number(ctl)};
	int err = glake_list_sessions(ctl->session, meant_find, &meant);
	if (err == 0 && meant.found.n == 0) {
		err = ctl_nobody(ctl, meant.number);
	}
	for (size_t i = 0; err == 0 && i < meant.found.n; i++) {
		const struct meant_session *found = rows_at(&meant.found, i);
		struct outcome outcome = {
			.session = found->session,
			.pid = found->pid,
			.report = {.size = sizeof(outcome.report)},
		};
		err = seal_one(ctl, outcome.session, &outcome.report);
		if (err == 0) {
			outcome.took_ms = outcome.report.took_ns / 1000000;
			outcome.held_ms = outcome.report.held_ns / 1000000;
			err = rows_append(outcomes, &outcome, sizeof(outcome));
		} else if (err == GLAKE_E_BAD_REQUEST &&
		           (outcomes->n > 0 || i + 1 < meant.found.n)) {
			err = 0;
		}
	}
	for (size_t i = 0; i < outcomes->n; i++) {
		struct outcome *row = rows_at(outcomes, i);
		row->why = row->report.failed_why[0] ? row->report.failed_why
		                                     : row->report.pinned_why;
	}
	meant_deinit(&meant);
	return err;
}

/* By cause, what is not nothing. */
static int find_left(const struct outcome *outcome, struct rows *left)
{
	const struct glake_seal_report *report = &outcome->report;
	const struct left causes[] = {
		{outcome->pid, report->small_bytes, "small", "allocations of less than 2 MiB"},
		{outcome->pid, report->unfilled_bytes, "unfilled",
	         "copies from the host have not filled it"},
		{outcome->pid, report->rewritten_bytes, "rewritten",
	         "written to after it was filled"},
		{outcome->pid, report->pinned_bytes, "pinned", report->pinned_why},
		{outcome->pid, report->failed_bytes, "failed", report->failed_why},
	};
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		if (causes[i].bytes > 0 && rows_append(left, &causes[i], sizeof(causes[i])) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int print_text(const struct ctl *ctl, const struct rows *outcomes)
{
	struct rows left = {0};
	int err = 0;
	for (size_t i = 0; err == 0 && i < outcomes->n; i++) {
		err = find_left(rows_at(outcomes, i), &left);
	}
	err = err ? err : rows_show(ctl, outcomes, NULL, FIELDS(outcome_fields));
	err = err ? err : rows_show_next(ctl, &left, FIELDS(left_fields));
	rows_deinit(&left);
	return err;
}

static int run_seal(struct ctl *ctl)
{
	struct rows outcomes = {0};
	int err = seal_all(ctl, &outcomes);
	if (err == 0 && ctl->json) {
		json_t *list = rows_json(&outcomes, FIELDS(outcome_fields));
		err = ctl_print_json(ctl, json_pack("{s:o}", "sessions", list));
	} else if (err == 0) {
		err = print_text(ctl, &outcomes);
	}
	rows_deinit(&outcomes);
	return err;
}

const struct ctl_command ctl_seal = {
	.name = "seal",
	.operands = "PID | SESSION",
	.summary = "Share what looks like weights in a program under glake run",
	.options = CTL_OPTION_DRY_RUN | CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 1,
	.check = ctl_check_number,
	.run = run_seal,
};

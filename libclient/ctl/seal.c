/* SPDX-License-Identifier: Apache-2.0 */
/* A program is asked to seal what looks like weights: all sessions of its process, or one. */

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/progress.h"
#include "ctl/text.h"
#include "glake_admin.h"

#define MAX_SESSIONS 64

#define ROW struct outcome

struct outcome {
	uint64_t session;
	uint32_t pid;
	struct glake_seal_report report;
	uint64_t took_ms;
	uint64_t held_ms;
	const char *why; /* of the first that failed, or else of what is pinned */
};

#define OF_REPORT(member, style_, title_) \
	{ \
		.key = #member, .offset = offsetof(ROW, report.member), .type = FIELD_U64, \
		.style = FIELD_##style_, .title = title_ \
	}

static const struct field outcome_fields[] = {
	FIELD(ROW, session, U64, PLAIN, "SESSION"),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	OF_REPORT(sealed_bytes, BYTES, "SEALED"),
	OF_REPORT(shared_bytes, BYTES, "SHARED"),
	OF_REPORT(small_bytes, BYTES, "SMALL"),
	OF_REPORT(unfilled_bytes, BYTES, "UNFILLED"),
	OF_REPORT(rewritten_bytes, BYTES, "REWRITTEN"),
	OF_REPORT(pinned_bytes, BYTES, "PINNED"),
	OF_REPORT(failed_bytes, BYTES, "FAILED"),
	OF_REPORT(took_ns, PLAIN, NULL),
	OF_REPORT(held_ns, PLAIN, NULL),
	OF_REPORT(longest_held_ns, PLAIN, NULL),
	FIELD(ROW, took_ms, U64, MS, "TOOK"),
	FIELD(ROW, held_ms, U64, MS, "HELD"),
	FIELD(ROW, why, TEXT, PLAIN, "WHY"),
};

#undef ROW

/* The sessions that the operand means: ids of sessions are far above any pid. */
struct meant {
	uint64_t number;
	size_t n;
	struct {
		uint64_t session;
		uint32_t pid;
	} found[MAX_SESSIONS];
};

static int find_meant(void *user, const struct glake_session_row *row)
{
	struct meant *meant = user;
	if ((row->session == meant->number || row->pid == meant->number) &&
	    meant->n < MAX_SESSIONS) {
		meant->found[meant->n].session = row->session;
		meant->found[meant->n].pid = row->pid;
		meant->n++;
	}
	return 0;
}

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
static int fill_outcomes(struct ctl *ctl, struct ctl_list *list)
{
	struct meant meant = {.n = 0};
	size_t n_sealed = 0;
	int err = text_parse_count(ctl->operands[0], INT64_MAX, &meant.number);
	if (err == 0) {
		err = glake_list_sessions(ctl->session, find_meant, &meant);
	}
	if (meant.n == 0) {
		/* glaked has the words for it. */
		meant.found[meant.n++].session = meant.number;
	}
	for (size_t i = 0; err == 0 && i < meant.n; i++) {
		struct outcome outcome = {
			.session = meant.found[i].session,
			.pid = meant.found[i].pid,
			.report = {.size = sizeof(outcome.report)},
		};
		err = seal_one(ctl, outcome.session, &outcome.report);
		bool is_other = err == GLAKE_E_BAD_REQUEST && (n_sealed > 0 || i + 1 < meant.n);
		if (err == 0) {
			outcome.took_ms = outcome.report.took_ns / 1000000;
			outcome.held_ms = outcome.report.held_ns / 1000000;
			outcome.why = outcome.report.failed_why[0] ? outcome.report.failed_why
			                                           : outcome.report.pinned_why;
			err = ctl_list_add(list, &outcome);
			n_sealed++;
		}
		err = is_other ? 0 : err;
	}
	return err;
}

static int check_seal(struct ctl *ctl)
{
	uint64_t number;
	if (text_parse_count(ctl->operands[0], INT64_MAX, &number) < 0) {
		return ctl_usage(ctl, "neither a pid nor a session: %s", ctl->operands[0]);
	}
	return 0;
}

static int run_seal(struct ctl *ctl)
{
	return ctl_print_list(ctl, "sessions", outcome_fields,
	                      sizeof(outcome_fields) / sizeof(outcome_fields[0]), fill_outcomes);
}

const struct ctl_command ctl_seal = {
	.name = "seal",
	.operands = "PID | SESSION",
	.summary = "Share what looks like weights in a program under glake run",
	.options = CTL_OPTION_DRY_RUN | CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 1,
	.check = check_seal,
	.run = run_seal,
};

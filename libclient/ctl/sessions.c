/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is connected, and how well each uses what it reserved.
 */
#include "ctl/ctl.h"
#include "ctl/field.h"
#include "glake_admin.h"

#define ROW struct glake_session_row

static const struct field session_fields[] = {
	FIELD(ROW, session, U64, PLAIN, "SESSION"),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, uid, U32, PLAIN, "UID"),
	FIELD(ROW, program, TEXT, PLAIN, "PROGRAM"),
	FIELD(ROW, tenant, TEXT, PLAIN, "TENANT"),
	FIELD(ROW, realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, reserved_bytes, U64, BYTES, "RESERVED"),
	FIELD(ROW, live_bytes, U64, BYTES, "LIVE"),
	FIELD(ROW, warm_bytes, U64, BYTES, "WARM"),
	FIELD(ROW, shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, n_chunks, U32, PLAIN, "CHUNKS"),
	FIELD(ROW, n_models, U32, PLAIN, "MODELS"),
	FIELD(ROW, age_ms, U64, MS, "AGE"),
	FIELD(ROW, n_requests, U64, PLAIN, "REQUESTS"),
};

#undef ROW
#define ROW struct usage

/* A session as `fragmentation` shows it. */
struct usage {
	uint64_t session;
	uint32_t pid;
	const char *program; /* borrowed from the row */
	uint64_t live_bytes;
	uint64_t reserved_bytes;
	uint64_t warm_bytes;
	double utilization;   /* live / reserved; -1 with nothing reserved */
	double fragmentation; /* 1 - utilization; -1 */
};

static const struct field usage_fields[] = {
	FIELD(ROW, session, U64, PLAIN, "SESSION"),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, program, TEXT, PLAIN, "PROGRAM"),
	FIELD(ROW, live_bytes, U64, BYTES, "LIVE"),
	FIELD(ROW, reserved_bytes, U64, BYTES, "RESERVED"),
	FIELD(ROW, warm_bytes, U64, BYTES, "WARM"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTILIZATION"),
	FIELD(ROW, fragmentation, RATIO, PERCENT, "FRAGMENTATION"),
};

#undef ROW

static int add_session(void *list, const struct glake_session_row *row)
{
	return ctl_list_add(list, row);
}

static int fill_sessions(struct ctl *ctl, struct ctl_list *list)
{
	return glake_list_sessions(ctl->session, add_session, list);
}

static int run_sessions(struct ctl *ctl)
{
	return ctl_print_list(ctl, "sessions", session_fields,
	                      sizeof(session_fields) / sizeof(session_fields[0]), fill_sessions);
}

static int add_usage(void *list, const struct glake_session_row *row)
{
	struct usage usage = {
		.session = row->session,
		.pid = row->pid,
		.program = row->program,
		.live_bytes = row->live_bytes,
		.reserved_bytes = row->reserved_bytes,
		.warm_bytes = row->warm_bytes,
		.utilization = -1,
		.fragmentation = -1,
	};
	if (row->reserved_bytes > 0) {
		/* Live bytes are what the client says; more than it has would be nonsense. */
		uint64_t live = row->live_bytes < row->reserved_bytes ? row->live_bytes
		                                                      : row->reserved_bytes;
		usage.utilization = (double)live / (double)row->reserved_bytes;
		usage.fragmentation = 1 - usage.utilization;
	}
	return ctl_list_add(list, &usage);
}

static int fill_usages(struct ctl *ctl, struct ctl_list *list)
{
	return glake_list_sessions(ctl->session, add_usage, list);
}

static int run_fragmentation(struct ctl *ctl)
{
	return ctl_print_list(ctl, "sessions", usage_fields,
	                      sizeof(usage_fields) / sizeof(usage_fields[0]), fill_usages);
}

const struct ctl_command ctl_sessions = {
	.name = "sessions",
	.operands = "",
	.summary = "Processes that are connected, and the memory each has",
	.options = CTL_OPTION_EXACT,
	.run = run_sessions,
};

const struct ctl_command ctl_fragmentation = {
	.name = "fragmentation",
	.operands = "",
	.summary = "How much of its reserved memory each session uses",
	.options = CTL_OPTION_EXACT,
	.run = run_fragmentation,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: their processes, and the memory of each. */
#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/memory.h"
#include "glake_admin.h"

#define ROW struct shown

/* A session as `sessions` shows it. */
struct shown {
	struct glake_session_row row; /* its texts and devices borrowed */
	double utilization;           /* live / reserved; -1 with nothing reserved */
	uint64_t promise_bytes;       /* on all devices */
	uint64_t driver_bytes;        /* of its process beside managed memory, on all devices */
};

#define OF_ROW(member, type_, style_, title_) \
	{ \
		.key = #member, .offset = offsetof(ROW, row.member), .type = FIELD_##type_, \
		.style = FIELD_##style_, .title = title_ \
	}

static const struct field session_fields[] = {
	OF_ROW(session, U64, PLAIN, "SESSION"),
	OF_ROW(pid, U32, PLAIN, "PID"),
	OF_ROW(uid, U32, PLAIN, "UID"),
	OF_ROW(program, TEXT, PLAIN, "PROGRAM"),
	OF_ROW(tenant, TEXT, PLAIN, "TENANT"),
	OF_ROW(realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, promise_bytes, U64, BYTES, "PROMISE"),
	OF_ROW(reserved_bytes, U64, BYTES, "RESERVED"),
	OF_ROW(live_bytes, U64, BYTES, "LIVE"),
	OF_ROW(peak_bytes, U64, BYTES, "PEAK"),
	OF_ROW(warm_bytes, U64, BYTES, "WARM"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTIL"),
	OF_ROW(shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, driver_bytes, U64, BYTES, "DRIVER"),
	OF_ROW(n_owned, U64, PLAIN, "OWNED"),
	OF_ROW(n_passed, U64, PLAIN, "PASSED"),
	OF_ROW(n_chunks, U32, PLAIN, NULL),
	OF_ROW(n_models, U32, PLAIN, NULL),
	OF_ROW(age_ms, U64, MS, "AGE"),
	OF_ROW(n_requests, U64, PLAIN, NULL),
	OF_ROW(detached, BOOL, PLAIN, "DETACHED"),
};

#undef ROW
#define ROW struct glake_session_device

static const struct field device_fields[] = {
	FIELD(ROW, device, U32, PLAIN, NULL),        FIELD(ROW, reserved_bytes, U64, BYTES, NULL),
	FIELD(ROW, shared_bytes, U64, BYTES, NULL),  FIELD(ROW, managed_bytes, U64, BYTES, NULL),
	FIELD(ROW, array_bytes, U64, BYTES, NULL),   FIELD(ROW, graph_bytes, U64, BYTES, NULL),
	FIELD(ROW, other_bytes, U64, BYTES, NULL),   FIELD(ROW, process_bytes, U64, BYTES, NULL),
	FIELD(ROW, promise_bytes, U64, BYTES, NULL), FIELD(ROW, left_bytes, U64, BYTES, NULL),
};

#undef ROW

static json_t *device_list(const struct glake_session_row *row)
{
	json_t *devices = json_array();
	for (uint32_t i = 0; i < row->n_devices; i++) {
		json_array_append_new(devices,
		                      field_object(device_fields,
		                                   sizeof(device_fields) / sizeof(*device_fields),
		                                   &row->devices[i]));
	}
	return devices;
}

static uint64_t promise_bytes(const struct glake_session_row *row)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		bytes += row->devices[i].promise_bytes;
	}
	return bytes;
}

static int add_session(void *list, const struct glake_session_row *row)
{
	struct shown shown = {
		.row = *row,
		.utilization = memory_utilization(row->live_bytes, row->reserved_bytes),
		.promise_bytes = promise_bytes(row),
		.driver_bytes = memory_driver_bytes(row),
	};
	return ctl_list_add_more(list, &shown, "devices", device_list(row));
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

const struct ctl_command ctl_sessions = {
	.name = "sessions",
	.operands = "",
	.summary = "Processes that are connected, and the memory each has",
	.options = CTL_OPTION_EXACT,
	.run = run_sessions,
};

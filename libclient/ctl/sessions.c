/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: their processes, and the memory of each. */

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/memory.h"
#include "glake_admin.h"

#define ROW struct shown

/*
 * A session as `sessions` shows it: in JSON as a whole, with a list of devices; in a table on one of its devices. What
 * is not known by device stands in one line of a session (memory_first_device()): FIELD_NONE in others, so that a column adds up.
 */
struct shown {
	struct glake_session_row row; /* its texts and devices borrowed */
	struct identity identity;
	const char *pod; /* of the table: NAMESPACE/POD, or the UID */
	uint64_t device; /* FIELD_NONE: none, or several */
	uint64_t reserved_bytes;
	uint64_t shared_bytes;
	uint64_t promise_bytes;
	uint64_t driver_bytes; /* of its process beside managed memory */
	double utilization;    /* live / reserved; -1 with nothing reserved */
	uint64_t live_bytes;
	uint64_t peak_bytes;
	uint64_t warm_bytes;
	uint64_t n_owned;
	uint64_t n_passed;
	uint64_t n_refused;
	const char *waits_for;
};

static const struct field session_fields[] = {
	FIELD_IN(ROW, row, session, U64, PLAIN, "SESSION"),
	FIELD_IN(ROW, row, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, row, uid, U32, PLAIN, NULL),
	FIELD_IN(ROW, identity, user, TEXT, NAME, "USER"),
	FIELD_IN(ROW, identity, label, TEXT, NAME, "PROGRAM"),
	FIELD_IN(ROW, row, program, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, name, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, script, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, arguments, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, tenant, TEXT, NAME, "TENANT"),
	FIELD_IN(ROW, row, realm, TEXT, NAME, "REALM"),
	FIELD(ROW, device, MAYBE, PLAIN, "GPU"),
	FIELD(ROW, promise_bytes, U64, BYTES, "PROMISE"),
	FIELD(ROW, reserved_bytes, U64, BYTES, "RESERVED"),
	FIELD(ROW, live_bytes, MAYBE, BYTES, "LIVE"),
	FIELD(ROW, peak_bytes, MAYBE, BYTES, "PEAK"),
	FIELD(ROW, warm_bytes, MAYBE, BYTES, "WARM"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTIL"),
	FIELD(ROW, shared_bytes, U64, BYTES, "SHARED"),
	FIELD(ROW, driver_bytes, U64, BYTES, "DRIVER"),
	FIELD(ROW, n_owned, MAYBE, PLAIN, "OWNED"),
	FIELD(ROW, n_passed, MAYBE, PLAIN, "PASSED"),
	FIELD(ROW, n_refused, MAYBE, PLAIN, "REFUSED"),
	FIELD(ROW, waits_for, TEXT, PLAIN, "WAITS FOR"),
	FIELD_IN(ROW, row, wait_bound, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, wait_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, row, wait_ms, U64, MS, NULL),
	FIELD_IN(ROW, row, host_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, row, n_chunks, U32, PLAIN, NULL),
	FIELD_IN(ROW, row, n_models, U32, PLAIN, NULL),
	FIELD_IN(ROW, row, age_ms, U64, MS, "AGE"),
	FIELD_IN(ROW, row, n_requests, U64, PLAIN, NULL),
	FIELD_IN(ROW, row, detached, BOOL, PLAIN, "DETACHED"),
	FIELD_IN(ROW, row, cgroup, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, pod_uid, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, container_id, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, identity, namespace, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, identity, pod, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, identity, container, TEXT, PLAIN, NULL),
	/* Last, since a table may be without it. */
	{.offset = offsetof(ROW, pod), .type = FIELD_TEXT, .style = FIELD_NAME, .title = "POD"},
};

#undef ROW
#define ROW struct glake_session_device

static const struct field device_fields[] = {
	FIELD(ROW, device, U32, PLAIN, NULL),        FIELD(ROW, reserved_bytes, U64, BYTES, NULL),
	FIELD(ROW, shared_bytes, U64, BYTES, NULL),  FIELD(ROW, managed_bytes, U64, BYTES, NULL),
	FIELD(ROW, array_bytes, U64, BYTES, NULL),   FIELD(ROW, graph_bytes, U64, BYTES, NULL),
	FIELD(ROW, other_bytes, U64, BYTES, NULL),   FIELD(ROW, process_bytes, U64, BYTES, NULL),
	FIELD(ROW, promise_bytes, U64, BYTES, NULL), FIELD(ROW, left_bytes, U64, BYTES, NULL),
	FIELD(ROW, live_bytes, U64, BYTES, NULL),    FIELD(ROW, reusable_bytes, U64, BYTES, NULL),
	FIELD(ROW, knows_live, BOOL, PLAIN, NULL),
};

#undef ROW

#define N_FIELDS (sizeof(session_fields) / sizeof(session_fields[0]))

struct listing {
	struct ctl_list list;
	struct identities identities;
};

/* The session as a whole. */
static struct shown show(const struct glake_session_row *row)
{
	struct shown shown = {
		.row = *row,
		.device = row->n_devices == 1 ? row->devices[0].device : FIELD_NONE,
		.reserved_bytes = row->reserved_bytes,
		.shared_bytes = row->shared_bytes,
		.driver_bytes = memory_driver_bytes(row),
		.utilization = memory_utilization(row->live_bytes, row->reserved_bytes),
		.live_bytes = row->live_bytes,
		.peak_bytes = row->peak_bytes,
		.warm_bytes = row->warm_bytes,
		.n_owned = row->n_owned,
		.n_passed = row->n_passed,
		.n_refused = row->n_refused,
		.waits_for = row->wait_bound,
	};
	for (uint32_t i = 0; i < row->n_devices; i++) {
		shown.promise_bytes += row->devices[i].promise_bytes;
	}
	return shown;
}

static void narrow(struct shown *shown, const struct glake_session_device *device, bool is_first)
{
	shown->device = device->device;
	shown->reserved_bytes = device->reserved_bytes;
	shown->shared_bytes = device->shared_bytes;
	shown->promise_bytes = device->promise_bytes;
	shown->driver_bytes = memory_device_driver_bytes(device);
	if (!is_first) {
		shown->utilization = -1;
		shown->live_bytes = FIELD_NONE;
		shown->peak_bytes = FIELD_NONE;
		shown->warm_bytes = FIELD_NONE;
		shown->n_owned = FIELD_NONE;
		shown->n_passed = FIELD_NONE;
		shown->n_refused = FIELD_NONE;
		shown->waits_for = "";
	}
	if (device->knows_live) {
		shown->live_bytes = device->live_bytes;
		shown->utilization = memory_utilization(device->live_bytes, device->reserved_bytes);
	}
}

static int add_lines(struct listing *listing, struct shown *shown)
{
	const struct glake_session_row *row = &shown->row;
	int err = row->n_devices == 0 ? ctl_list_add(&listing->list, shown) : 0;
	for (uint32_t i = 0; err == 0 && i < row->n_devices; i++) {
		struct shown line = *shown;
		narrow(&line, &row->devices[i], i == memory_first_device(row));
		err = ctl_list_add(&listing->list, &line);
	}
	return err;
}

json_t *ctl_session_object(struct identities *identities, const struct glake_session_row *row)
{
	struct shown shown = show(row);
	shown.identity = identity_of(identities, row);
	json_t *object = field_object(session_fields, N_FIELDS, &shown);
	json_object_set_new(object, "devices",
	                    field_list(FIELDS(device_fields), row->devices, row->n_devices,
	                               sizeof(*row->devices)));
	return object;
}

static int add_session(void *user, const struct glake_session_row *row)
{
	struct listing *listing = user;
	if (listing->list.ctl->json) {
		return ctl_list_add_object(&listing->list,
		                           ctl_session_object(&listing->identities, row));
	}
	struct shown shown = show(row);
	char pod[512];
	shown.identity = identity_of(&listing->identities, row);
	identity_pod(&shown.identity, row, pod, sizeof(pod));
	shown.pod = pod;
	return add_lines(listing, &shown);
}

static int look_for_pods(void *user, const struct glake_session_row *row)
{
	bool *has_pods = user;
	*has_pods |= row->pod_uid && *row->pod_uid;
	return 0;
}

static int run_sessions(struct ctl *ctl)
{
	struct listing listing;
	bool has_pods = false;
	int err = ctl->json ? 0 : glake_list_sessions(ctl->session, look_for_pods, &has_pods);
	ctl_list_begin(&listing.list, ctl, session_fields, has_pods ? N_FIELDS : N_FIELDS - 1);
	identities_init(&listing.identities);
	err = err ? err : glake_list_sessions(ctl->session, add_session, &listing);
	identities_deinit(&listing.identities);
	return ctl_list_end(&listing.list, "sessions", err);
}

const struct ctl_command ctl_sessions = {
	.name = "sessions",
	.operands = "",
	.summary = "Processes that are connected, and the memory each has, by GPU",
	.options = CTL_OPTION_EXACT,
	.run = run_sessions,
};

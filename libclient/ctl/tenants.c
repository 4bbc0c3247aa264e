/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: their charges and limits.
 */
#include <inttypes.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/text.h"
#include "glake_admin.h"

#define ROW struct glake_tenant_row

static const struct field tenant_fields[] = {
	FIELD(ROW, name, TEXT, PLAIN, "TENANT"),
	FIELD(ROW, n_sessions, U32, PLAIN, "SESSIONS"),
	FIELD(ROW, max_sessions, U32, LIMIT, "LIMIT"),
	FIELD(ROW, n_fds, U64, PLAIN, "FDS"),
	FIELD(ROW, max_fds, U64, LIMIT, "LIMIT"),
	FIELD(ROW, manifest_bytes, U64, BYTES, "MANIFESTS"),
	FIELD(ROW, quota_manifest_bytes, U64, BYTES_LIMIT, "LIMIT"),
	FIELD(ROW, priority, I32, PLAIN, "PRIORITY"),
};

#undef ROW
#define ROW struct glake_tenant_device

static const struct field device_fields[] = {
	FIELD(ROW, device, U32, PLAIN, "DEVICE"),
	FIELD(ROW, used_bytes, U64, BYTES, "USED"),
	FIELD(ROW, quota_bytes, U64, BYTES_LIMIT, "QUOTA"),
	FIELD(ROW, peak_bytes, U64, BYTES, "PEAK"),
	FIELD(ROW, n_refused, U64, PLAIN, "REFUSED"),
	FIELD(ROW, refused_quota, U64, PLAIN, NULL),
	FIELD(ROW, refused_promise, U64, PLAIN, NULL),
	FIELD(ROW, refused_room, U64, PLAIN, NULL),
	FIELD(ROW, refused_tenant_fds, U64, PLAIN, NULL),
	FIELD(ROW, refused_fds, U64, PLAIN, NULL),
	FIELD(ROW, refused_manifests, U64, PLAIN, NULL),
	FIELD(ROW, refused_user_share, U64, PLAIN, NULL),
	FIELD(ROW, refused_reserve, U64, PLAIN, NULL),
};

#undef ROW

#define N_TENANT_FIELDS (sizeof(tenant_fields) / sizeof(tenant_fields[0]))

json_t *ctl_tenant_object(const struct glake_tenant_row *row)
{
	json_t *devices = field_list(FIELDS(device_fields), row->devices, row->n_devices,
	                             sizeof(*row->devices));
	json_t *hosts = json_array();
	for (uint32_t i = 0; i < row->n_hosts; i++) {
		json_t *host = field_object(FIELDS(device_fields), &row->hosts[i]);
		json_object_del(host, "device");
		json_object_set_new(host, "node", json_integer(row->hosts[i].device));
		json_array_append_new(hosts, host);
	}
	json_t *tenant = field_object(FIELDS(tenant_fields), row);
	json_object_set_new(tenant, "devices", devices);
	json_object_set_new(tenant, "hosts", hosts);
	return tenant;
}

/* One line per tenant and device; in JSON the devices are a list of the tenant. */
static int add_tenant(void *user, const struct glake_tenant_row *row)
{
	struct ctl_list *list = user;
	bool exact = list->ctl->exact;
	if (list->ctl->json) {
		return ctl_list_add_object(list, ctl_tenant_object(row));
	}
	for (uint32_t i = 0; i < row->n_devices; i++) {
		field_cells(&list->table, tenant_fields, 1, row, exact);
		field_cells(&list->table, FIELDS(device_fields), &row->devices[i], exact);
		field_cells(&list->table, tenant_fields + 1, N_TENANT_FIELDS - 1, row, exact);
	}
	return 0;
}

static int run_tenants(struct ctl *ctl)
{
	struct ctl_list list;
	/* Columns that differ between the lines of a tenant come first, where a narrow terminal has them together. */
	ctl_list_begin(&list, ctl, tenant_fields, 1);
	field_columns(&list.table, FIELDS(device_fields));
	field_columns(&list.table, tenant_fields + 1, N_TENANT_FIELDS - 1);
	return ctl_list_end(&list, "tenants", glake_list_tenants(ctl->session, add_tenant, &list));
}

static int check_quota(struct ctl *ctl)
{
	unsigned given = ctl->values.given;
	if (!(given & (CTL_OPTION_QUOTA_BYTES | CTL_OPTION_SESSIONS | CTL_OPTION_MANIFESTS))) {
		return ctl_usage(ctl, "needs --bytes, --sessions or --manifests");
	}
	if ((given & CTL_OPTION_DEVICE) && !(given & CTL_OPTION_QUOTA_BYTES)) {
		return ctl_usage(ctl, "--device goes with --bytes");
	}
	if ((given & CTL_OPTION_FORCE) && !(given & CTL_OPTION_QUOTA_BYTES)) {
		return ctl_usage(ctl, "--force goes with --bytes");
	}
	return 0;
}

static void show_limit(const struct ctl *ctl, uint64_t bytes, char text_out[TEXT_NUMBER_BYTES])
{
	snprintf(text_out, TEXT_NUMBER_BYTES, "none");
	if (bytes > 0) {
		field_bytes(bytes, ctl->exact, text_out, TEXT_NUMBER_BYTES);
	}
}

/* The devices that the limit of bytes is for: one, or all. */
struct quota_devices {
	uint32_t first;
	uint32_t n;
};

static int set_bytes(struct ctl *ctl, struct quota_devices *devices_out)
{
	const struct ctl_values *values = &ctl->values;
	struct glake_session_info info = {.size = sizeof(info)};
	int err = glake_session_info(ctl->session, &info);
	bool is_one = values->given & CTL_OPTION_DEVICE;
	int (*set)(struct glake_session * session, const char *tenant, uint32_t device,
	           uint64_t quota_bytes) = values->given & CTL_OPTION_FORCE ? glake_force_quota
	                                                                    : glake_set_quota;
	*devices_out = (struct quota_devices){is_one ? values->device : 0,
	                                      is_one ? 1 : info.n_devices};
	for (uint32_t i = 0; err == 0 && i < devices_out->n; i++) {
		err = set(ctl->session, ctl->operands[0], devices_out->first + i,
		          values->quota_bytes);
	}
	return err;
}

static json_t *quota_object(const struct ctl *ctl, const struct quota_devices *devices)
{
	const struct ctl_values *values = &ctl->values;
	json_t *answer = json_pack("{s:o}", "tenant", field_string(ctl->operands[0]));
	if (values->given & CTL_OPTION_QUOTA_BYTES) {
		json_t *numbers = json_array();
		for (uint32_t i = 0; i < devices->n; i++) {
			json_array_append_new(numbers, json_integer(devices->first + i));
		}
		json_object_set_new(answer, "devices", numbers);
		json_object_set_new(answer, "quota_bytes",
		                    json_integer((json_int_t)values->quota_bytes));
	}
	if (values->given & CTL_OPTION_SESSIONS) {
		json_object_set_new(answer, "max_sessions", json_integer(values->max_sessions));
	}
	if (values->given & CTL_OPTION_MANIFESTS) {
		json_object_set_new(answer, "quota_manifest_bytes",
		                    json_integer((json_int_t)values->quota_manifest_bytes));
	}
	return answer;
}

static int print_quota(struct ctl *ctl, const struct quota_devices *devices)
{
	const struct ctl_values *values = &ctl->values;
	char size[TEXT_NUMBER_BYTES];
	if (ctl->json) {
		return ctl_print_json(ctl, quota_object(ctl, devices));
	}
	for (uint32_t i = 0; i < devices->n; i++) {
		show_limit(ctl, values->quota_bytes, size);
		fprintf(ctl->out, "quota on device %" PRIu32 ": %s\n", devices->first + i, size);
	}
	bool has_sessions = values->given & CTL_OPTION_SESSIONS;
	if (has_sessions && values->max_sessions > 0) {
		fprintf(ctl->out, "sessions: at most %" PRIu32 "\n", values->max_sessions);
	} else if (has_sessions) {
		fprintf(ctl->out, "sessions: no limit\n");
	}
	if (values->given & CTL_OPTION_MANIFESTS) {
		show_limit(ctl, values->quota_manifest_bytes, size);
		fprintf(ctl->out, "manifests: %s\n", size);
	}
	return 0;
}

static int run_quota(struct ctl *ctl)
{
	const struct ctl_values *values = &ctl->values;
	const char *tenant = ctl->operands[0];
	struct quota_devices devices = {0};
	int err = 0;
	if (values->given & CTL_OPTION_QUOTA_BYTES) {
		err = set_bytes(ctl, &devices);
	}
	if (err == 0 && (values->given & CTL_OPTION_SESSIONS)) {
		err = glake_set_max_sessions(ctl->session, tenant, values->max_sessions);
	}
	if (err == 0 && (values->given & CTL_OPTION_MANIFESTS)) {
		err = glake_set_manifest_quota(ctl->session, tenant, values->quota_manifest_bytes);
	}
	return err < 0 ? err : print_quota(ctl, &devices);
}

const struct ctl_command ctl_tenants = {
	.name = "tenants",
	.operands = "",
	.summary = "Tenants with their use and limits, per device",
	.options = CTL_OPTION_EXACT,
	.run = run_tenants,
};

const struct ctl_command ctl_quota = {
	.name = "quota",
	.operands = "TENANT",
	.summary = "Set a tenant's limits, until the configuration is read again",
	.options = CTL_OPTION_DEVICE | CTL_OPTION_QUOTA_BYTES | CTL_OPTION_SESSIONS |
                   CTL_OPTION_MANIFESTS | CTL_OPTION_FORCE,
	.min_operands = 1,
	.max_operands = 1,
	.check = check_quota,
	.run = run_quota,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes are: on GPUs, in host memory, or in both; by tenant, program and model; and what sharing saves there.
 *
 * Three kinds of numbers meet here, and each table has one kind. Tiers: each byte that exists, once. Tenants: what each is
 * charged for. Programs and models: what each has, so that bytes which several have count for each.
 */
#include <errno.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/memory.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"

#define ROW struct tier

/* A GPU, or a NUMA node of the host. FIELD_NONE: it has no such bytes, or nobody knows. */
struct tier {
	const char *tier; /* "gpu", "host" */
	uint32_t number;
	uint64_t limit_bytes; /* a GPU's memory; what chunks may have of the node */
	uint64_t private_bytes;
	uint64_t shared_bytes;  /* blocks in use */
	uint64_t asleep_bytes;  /* copies that programs which sleep have */
	uint64_t demoted_bytes; /* copies that only models in host memory alone have */
	uint64_t cached_bytes;  /* blocks, or copies, that nobody uses */
	uint64_t moving_bytes;  /* copies that are being made, or read */
	uint64_t ready_bytes;   /* made ahead */
	uint64_t free_bytes;
	uint64_t once_bytes;  /* what is shared: as it is there, each byte once, */
	uint64_t needs_bytes; /* and as programs would need it without sharing */
	uint64_t saved_bytes;
};

static const struct field tier_fields[] = {
	FIELD(ROW, tier, TEXT, PLAIN, "TIER"),
	FIELD(ROW, number, U32, PLAIN, "N"),
	FIELD(ROW, limit_bytes, U64, BYTES, "LIMIT"),
	FIELD(ROW, private_bytes, U64, BYTES, "PRIVATE"),
	FIELD(ROW, shared_bytes, MAYBE, BYTES, "SHARED"),
	FIELD(ROW, asleep_bytes, MAYBE, BYTES, "ASLEEP"),
	FIELD(ROW, demoted_bytes, MAYBE, BYTES, "DEMOTED"),
	FIELD(ROW, cached_bytes, U64, BYTES, "CACHE"),
	FIELD(ROW, moving_bytes, MAYBE, BYTES, NULL),
	FIELD(ROW, ready_bytes, U64, BYTES, "READY"),
	FIELD(ROW, free_bytes, MAYBE, BYTES, "FREE"),
	FIELD(ROW, once_bytes, U64, BYTES, NULL),
	FIELD(ROW, needs_bytes, U64, BYTES, NULL),
	FIELD(ROW, saved_bytes, U64, BYTES, NULL),
};

/* In a table of its own: all of it would not fit a terminal. */
static const struct field saving_fields[] = {
	FIELD(ROW, tier, TEXT, PLAIN, "TIER"),
	FIELD(ROW, number, U32, PLAIN, "N"),
	FIELD(ROW, once_bytes, U64, BYTES, "SHARED BYTES"),
	FIELD(ROW, needs_bytes, U64, BYTES, "STAND FOR"),
	FIELD(ROW, saved_bytes, U64, BYTES, "SAVED"),
};

#undef ROW
#define ROW struct tenant_tiers

struct tenant_tiers {
	const char *name;
	uint64_t gpu_bytes;  /* that it is charged for */
	uint64_t host_bytes; /* the same */
	uint32_t n_sleepers;
	uint64_t asleep_bytes; /* that its programs have, and that are not theirs on a GPU now */
};

static const struct field tenant_fields[] = {
	FIELD(ROW, name, TEXT, PLAIN, "TENANT"),
	FIELD(ROW, gpu_bytes, U64, BYTES, "GPU"),
	FIELD(ROW, host_bytes, U64, BYTES, "HOST"),
	FIELD(ROW, n_sleepers, U32, PLAIN, "SLEEPERS"),
	FIELD(ROW, asleep_bytes, U64, BYTES, "ASLEEP"),
};

#undef ROW
#define ROW struct program_tiers

struct program_tiers {
	struct glake_session_row of;
	const char *label; /* identity_label() */
	const char *state; /* "awake", and those of glake_sleeper_row */
	uint64_t gpu_bytes;
	uint64_t host_bytes; /* in host memory only */
	uint64_t both_bytes; /* asleep, and still on the GPU */
};

static const struct field program_fields[] = {
	FIELD_IN(ROW, of, session, U64, PLAIN, NULL),
	FIELD_IN(ROW, of, pid, U32, PLAIN, "PID"),
	FIELD(ROW, label, TEXT, NAME, "PROGRAM"),
	FIELD_IN(ROW, of, program, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, of, tenant, TEXT, PLAIN, "TENANT"),
	FIELD(ROW, state, TEXT, PLAIN, "STATE"),
	FIELD(ROW, gpu_bytes, U64, BYTES, "GPU"),
	FIELD(ROW, host_bytes, U64, BYTES, "HOST ONLY"),
	FIELD(ROW, both_bytes, U64, BYTES, "BOTH"),
};

#undef ROW
#define ROW struct model_tiers

struct model_tiers {
	struct glake_model_row of;
	uint64_t gpu_bytes;
	uint64_t host_bytes;
	uint64_t both_bytes;
};

static const struct field model_fields[] = {
	FIELD_IN(ROW, of, id, U64, PLAIN, NULL),
	FIELD_IN(ROW, of, name, TEXT, PLAIN, "MODEL"),
	FIELD_IN(ROW, of, realm, TEXT, PLAIN, "REALM"),
	FIELD_IN(ROW, of, device, U32, PLAIN, "DEV"),
	FIELD_IN(ROW, of, state, TEXT, PLAIN, "STATE"),
	FIELD(ROW, gpu_bytes, U64, BYTES, "GPU"),
	FIELD(ROW, host_bytes, U64, BYTES, "HOST ONLY"),
	FIELD(ROW, both_bytes, U64, BYTES, "BOTH"),
};

#undef ROW

/* Texts are the snapshot's. */
struct tiers {
	struct rows list;     /* struct tier */
	struct rows tenants;  /* struct tenant_tiers */
	struct rows programs; /* struct program_tiers */
	struct rows models;   /* struct model_tiers */
};

/* ---- gathering: each returns 0 or -ENOMEM ----------------------------------------------------- */

static int add_tier(struct tiers *tiers, struct tier tier)
{
	tier.saved_bytes = memory_without(tier.needs_bytes, tier.once_bytes);
	return rows_append(&tiers->list, &tier, sizeof(tier));
}

static int add_device(struct tiers *tiers, const struct glake_device_status *device)
{
	const struct tier tier = {
		.tier = "gpu",
		.number = device->index,
		.limit_bytes = device->total_bytes,
		.private_bytes = device->private_bytes,
		.shared_bytes = device->used_block_bytes,
		.asleep_bytes = FIELD_NONE,
		.demoted_bytes = FIELD_NONE,
		.cached_bytes = memory_cached_bytes(device),
		.moving_bytes = FIELD_NONE,
		.ready_bytes = device->pool_bytes,
		.free_bytes = device->free_bytes > 0 ? device->free_bytes : FIELD_NONE,
		.once_bytes = device->used_block_bytes,
		.needs_bytes = device->logical_block_bytes,
	};
	return add_tier(tiers, tier);
}

static int add_host(struct tiers *tiers, const struct glake_host_status *host)
{
	const struct tier tier = {
		.tier = "host",
		.number = host->node,
		.limit_bytes = host->limit_bytes,
		.private_bytes = host->private_bytes,
		.shared_bytes = FIELD_NONE,
		.asleep_bytes = host->sleep_copy_bytes,
		.demoted_bytes = host->model_copy_bytes,
		.cached_bytes = host->cached_copy_bytes,
		.moving_bytes = memory_without(host->used_copy_bytes,
	                                       host->sleep_copy_bytes + host->model_copy_bytes +
	                                               host->cached_copy_bytes),
		.ready_bytes = memory_without(host->copy_bytes, host->used_copy_bytes),
		.free_bytes = memory_without(host->limit_bytes, host->physical_bytes),
		.once_bytes = host->sleep_copy_bytes,
		.needs_bytes = host->slept_bytes,
	};
	return add_tier(tiers, tier);
}

static uint64_t charged_bytes(const struct glake_tenant_device *list, uint32_t n)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		bytes += list[i].used_bytes;
	}
	return bytes;
}

static int add_tenant(struct tiers *tiers, const struct snapshot *snapshot,
                      const struct glake_tenant_row *of)
{
	struct tenant_tiers *row = rows_add(&tiers->tenants, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	row->name = of->name;
	row->gpu_bytes = charged_bytes(of->devices, of->n_devices);
	row->host_bytes = charged_bytes(of->hosts, of->n_hosts);
	for (size_t i = 0; i < snapshot->sleepers.n; i++) {
		const struct glake_sleeper_row *sleeper = rows_at(&snapshot->sleepers, i);
		if (strcmp(sleeper->tenant, of->name) == 0) {
			row->n_sleepers++;
			row->asleep_bytes += sleeper->private_bytes + sleeper->shared_bytes;
		}
	}
	return 0;
}

static int add_program(struct tiers *tiers, const struct snapshot *snapshot,
                       const struct glake_session_row *of)
{
	const struct glake_sleeper_row *sleeper = snapshot_sleeper(snapshot, of->session);
	struct program_tiers row = {
		.of = *of,
		.label = identity_label(of->name, of->script, of->program),
		.state = sleeper ? sleeper->state : "awake",
		.gpu_bytes = of->reserved_bytes + of->shared_bytes,
		.host_bytes = of->host_bytes,
	};
	if (sleeper) {
		row.both_bytes = sleeper->gpu_bytes;
		row.host_bytes += sleeper->private_bytes +
		                  memory_without(sleeper->shared_bytes, sleeper->gpu_bytes);
	}
	if (row.gpu_bytes + row.host_bytes + row.both_bytes == 0) {
		return 0;
	}
	return rows_append(&tiers->programs, &row, sizeof(row));
}

static int add_model(struct tiers *tiers, const struct glake_model_row *of)
{
	bool is_demoted = strcmp(of->state, "host") == 0;
	const struct model_tiers row = {
		.of = *of,
		.gpu_bytes = is_demoted ? 0 : memory_without(of->span_bytes, of->copied_bytes),
		.host_bytes = is_demoted ? of->copied_bytes : 0,
		.both_bytes = is_demoted ? 0 : of->copied_bytes,
	};
	return rows_append(&tiers->models, &row, sizeof(row));
}

static int gather(struct tiers *tiers, const struct snapshot *snapshot)
{
	int err = 0;
	for (size_t i = 0; err == 0 && i < snapshot->devices.n; i++) {
		err = add_device(tiers, rows_at(&snapshot->devices, i));
	}
	for (uint32_t i = 0; err == 0 && i < snapshot->status.n_hosts; i++) {
		err = add_host(tiers, &snapshot->status.hosts[i]);
	}
	for (size_t i = 0; err == 0 && i < snapshot->tenants.n; i++) {
		err = add_tenant(tiers, snapshot, rows_at(&snapshot->tenants, i));
	}
	for (size_t i = 0; err == 0 && i < snapshot->sessions.n; i++) {
		err = add_program(tiers, snapshot, rows_at(&snapshot->sessions, i));
	}
	for (size_t i = 0; err == 0 && i < snapshot->models.n; i++) {
		err = add_model(tiers, rows_at(&snapshot->models, i));
	}
	return err;
}

/* ---- the output ------------------------------------------------------------------------------- */

static int print(struct ctl *ctl, const struct tiers *tiers)
{
	if (ctl->json) {
		json_t *list = rows_json(&tiers->list, FIELDS(tier_fields));
		json_t *tenants = rows_json(&tiers->tenants, FIELDS(tenant_fields));
		json_t *programs = rows_json(&tiers->programs, FIELDS(program_fields));
		json_t *models = rows_json(&tiers->models, FIELDS(model_fields));
		return ctl_print_json(ctl,
		                      json_pack("{s:o, s:o, s:o, s:o}", "tiers", list, "tenants",
		                                tenants, "programs", programs, "models", models));
	}
	int err = rows_show(ctl, &tiers->list, NULL, FIELDS(tier_fields));
	err = err ? err : rows_show_next(ctl, &tiers->list, FIELDS(saving_fields));
	err = err ? err : rows_show_next(ctl, &tiers->tenants, FIELDS(tenant_fields));
	err = err ? err : rows_show_next(ctl, &tiers->programs, FIELDS(program_fields));
	return err ? err : rows_show_next(ctl, &tiers->models, FIELDS(model_fields));
}

static int run_tiers(struct ctl *ctl)
{
	struct tiers tiers = {.list = {0}};
	struct snapshot snapshot = {.at_ms = 0};
	int err = snapshot_take(ctl, &snapshot);
	err = err ? err : gather(&tiers, &snapshot);
	err = err ? err : print(ctl, &tiers);
	rows_deinit(&tiers.list);
	rows_deinit(&tiers.tenants);
	rows_deinit(&tiers.programs);
	rows_deinit(&tiers.models);
	snapshot_deinit(&snapshot);
	return err;
}

const struct ctl_command ctl_tiers = {
	.name = "tiers",
	.operands = "",
	.summary = "Where the bytes are, on GPUs and in host memory, and what sharing saves",
	.options = CTL_OPTION_EXACT,
	.run = run_tiers,
};

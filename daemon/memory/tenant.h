/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: who pays for memory, sessions and fds, and how much of each they may have.
 *
 * Whatever glaked grants stores the charge that paid for it. A charge is made before the thing is,
 * moved when the thing changes hands (a private chunk becomes a block that nobody uses), refunded
 * when the thing is gone. Per tenant and device
 *
 *     used_bytes = sum of bytes over its charges,   n_fds = sum of n_fds over its charges,
 *     manifest_bytes = sum of manifest_bytes over its charges
 *
 * and a charge that would lift one above its limit is refused. A limit may be set below use: then
 * nothing is taken away, and further charges are refused until use has sunk.
 *
 * Owner: the table owns its tenants; sessions and charges borrow them.
 * Lifetime: a tenant that is no longer in the config lives until its last session left, its last
 * charge is refunded and nobody waits for it. tenant_table_free() asserts that every counter of every
 * tenant is zero.
 * Threads: loop thread only.
 */
#ifndef GLAKE_DAEMON_TENANT_H
#define GLAKE_DAEMON_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config/config.h"
#include "daemon/base/list.h"

enum {
	TENANT_E_BYTES = 1, /* over its bytes on that device */
	TENANT_E_FDS,       /* over its fds */
	TENANT_E_SESSIONS,  /* over its sessions */
	TENANT_E_MANIFESTS, /* over its host memory for manifests */
};

struct tenant_device {
	uint64_t used_bytes;
	uint64_t quota_bytes; /* 0 = no limit */
	uint64_t peak_bytes;  /* the highest used_bytes since the tenant is here */
	struct list queue;    /* of who waits for room here, in the order of their coming */
};

/* To be read by anyone; written by tenant.c. */
struct tenant {
	struct list link; /* link: tenant_table.tenants */
	uint64_t id;      /* from 1, in the order of appearance: the cursor of listings */
	char name[CONFIG_NAME_BYTES];
	bool is_leaving; /* not in the config any more */
	int32_t priority;
	uint32_t n_sessions;
	uint32_t max_sessions; /* 0 = no limit */
	uint64_t n_fds;
	uint64_t max_fds;              /* 0 = no limit */
	uint64_t manifest_bytes;       /* of glaked's memory */
	uint64_t quota_manifest_bytes; /* 0 = no limit */
	uint64_t n_charges;
	struct log_limit log_limit;   /* of lines about sessions that were closed */
	struct log_limit loads_limit; /* of lines about models that it loaded */
	uint32_t n_devices;
	struct tenant_device devices[];
};

/* What one granted thing costs whom. Zeroed memory is no charge. */
struct charge {
	struct tenant *tenant; /* borrowed; NULL = nothing charged */
	uint64_t bytes;
	uint64_t manifest_bytes;
	uint32_t device;
	uint32_t n_fds;
};

struct tenant_table;

/*
 * The built-in "cache" tenant, without limits, and one tenant per entry of @config (the default one
 * among them). Returns 0 or -ENOMEM.
 */
int tenant_table_new(const struct config *config, uint32_t n_devices,
                     struct tenant_table **table_out);

/* All sessions have left and all charges are refunded. NULL is fine. */
void tenant_table_free(struct tenant_table *table);

/*
 * Take limits and priorities from a config that was read again; counters stay, and whatever
 * tenant_set_*() changed is undone. Returns 0, or -ENOMEM: nothing has changed then.
 */
int tenant_table_apply(struct tenant_table *table, const struct config *config);

/* Pays for the pool and for blocks that nobody uses and nobody pinned. Never NULL. */
struct tenant *tenant_table_cache(struct tenant_table *table);

/* NULL when there is none of that name. */
struct tenant *tenant_find(struct tenant_table *table, const char *name);

/* The tenant with the smallest id above @after; NULL at the end. From 0, this walks over all. */
struct tenant *tenant_next(struct tenant_table *table, uint64_t after);

/* Until the config is read again. 0 = no limit. Returns 0, or -EINVAL: no such device. */
int tenant_set_quota(struct tenant *tenant, uint32_t device, uint64_t quota_bytes);
void tenant_set_max_sessions(struct tenant *tenant, uint32_t max_sessions);
void tenant_set_manifest_quota(struct tenant *tenant, uint64_t quota_bytes);

/* Returns 0 or TENANT_E_SESSIONS. */
int tenant_session_enter(struct tenant *tenant);

/* The session does not touch @tenant any more: it may be gone when this returns. */
void tenant_session_leave(struct tenant *tenant);

/*
 * @device is one of the table's. Returns 0, TENANT_E_BYTES or TENANT_E_FDS: nothing is charged then
 * and @charge_out is unchanged.
 */
int tenant_charge(struct tenant *tenant, uint32_t device, uint64_t bytes, uint32_t n_fds,
                  struct charge *charge_out);

/* For a manifest that begins. It has no bytes yet, so this cannot be refused. */
struct charge tenant_charge_manifest(struct tenant *tenant);
/* The manifest grows. Returns 0 or TENANT_E_MANIFESTS: nothing has changed then. */
int charge_grow_manifest(struct charge *charge, uint64_t more_bytes);

/*
 * Who waits until @device has room stands in line: @place hangs on its queue, and keeps the tenant.
 * Nobody is told of room; the first in line comes and tries.
 */
void tenant_queue_enter(struct tenant *tenant, uint32_t device, struct list *place);
/* Nothing to do when @place hangs nowhere; else the tenant may be gone when this returns. */
void tenant_queue_leave(struct tenant *tenant, struct list *place);
/* Nobody stands before @place, which may hang nowhere yet. */
bool tenant_queue_is_next(const struct tenant *tenant, uint32_t device, const struct list *place);

/* Pays back and zeroes @charge; nothing to do when it is zero already. The tenant may be gone. */
void charge_refund(struct charge *charge);

/* Let @to pay instead. Returns 0 or TENANT_E_*: nothing has changed then. */
int charge_move(struct charge *charge, struct tenant *to);

#endif

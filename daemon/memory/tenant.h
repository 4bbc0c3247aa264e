/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants pay for memory, sessions and fds, and have a limit for each.
 *
 * Everything that glaked grants stores its charge. The charge is made before the thing. It moves
 * when another tenant pays (a block becomes cache), and is refunded when the thing is gone. Per
 * tenant and location
 *
 *     used_bytes = sum of bytes over its charges,   n_fds = sum of n_fds over its charges,
 *     manifest_bytes = sum of manifest_bytes over its charges
 *
 * and a charge that would exceed a limit is refused. Bytes of manifests are shared out between the tenant's users, too
 * (user.h). A limit may be set below the current use:
 * nothing is taken away then, but further charges are refused until the use is low enough.
 *
 * Owner: the table owns its tenants; holders and charges borrow them. Lifetime: a tenant that is
 * not in the config any more lives until its last session has left, its last charge is refunded,
 * and no request waits in its queues. tenant_table_free() asserts that all counters of all tenants
 * are zero. Threads: loop thread only.
 */
#ifndef GLAKE_DAEMON_TENANT_H
#define GLAKE_DAEMON_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config/config.h"
#include "daemon/base/list.h"
#include "daemon/memory/bound.h"
#include "daemon/net/user.h"

/*
 * Manifests that tenants are charged for are written into the books as well, and those have an end (keep/journal.h), whatever
 * the tenants' limits are. A record takes at most a quarter more than the charge; the rest is for unused models
 * (STORE_IDLE_MANIFEST_BYTES), sessions, chunks and blocks, of which there are as many as there may be of them.
 */
#define TENANT_BOOKS_BYTES (320ull * 1024 * 1024)

enum {
	TENANT_E_BYTES = 1, /* over its bytes at that location */
	TENANT_E_FDS,       /* over its fds */
	TENANT_E_SESSIONS,  /* over its sessions */
	TENANT_E_MANIFESTS, /* over its host memory for manifests, or its user's share of it */
};

struct tenant_location {
	uint64_t used_bytes;
	uint64_t quota_bytes; /* 0 = no limit */
	uint64_t peak_bytes;  /* the highest used_bytes so far */
	uint64_t n_refused
		[N_BOUNDS]; /* requests for memory there, by the bound that they met (refusal.h) */
	struct list queue;  /* of requests that wait for room, in the order of arrival */
};

/* Anyone may read a tenant; only tenant.c writes it. */
struct tenant {
	struct list link; /* link: tenant_table.tenants */
	uint64_t id;      /* from 1, in the order of appearance: the cursor of listings */
	char name[CONFIG_NAME_BYTES];
	bool is_leaving; /* not in the config any more */
	int32_t priority;
	uint64_t idle_ms; /* its programs sleep when they were idle for this long; 0 = never */
	bool sleeps_on_pressure; /* its programs give way to others, and others to them */
	enum config_dedup dedup; /* told to sessions when they begin */
	uint32_t n_sessions;
	uint32_t max_sessions; /* 0 = no limit */
	uint64_t n_fds;
	uint64_t max_fds;              /* 0 = no limit */
	uint64_t manifest_bytes;       /* of glaked's memory */
	uint64_t quota_manifest_bytes; /* 0 = no limit */
	struct pot manifests;          /* of that, by user */
	uint64_t n_charges;
	struct log_limit log_limit;   /* of lines about sessions that were closed */
	struct log_limit loads_limit; /* of lines about models that it loaded */
	uint32_t n_locations;
	struct tenant_location at[];
};

/* The payer: a tenant, and of what its users share, the user. */
struct payer {
	struct tenant *tenant;
	struct user *user; /* NULL: glaked itself, which has no share */
};

static inline struct payer payer_alone(struct tenant *tenant)
{
	return (struct payer){.tenant = tenant};
}

/* The cost of one granted thing, and its payer. Zeroed memory is no charge. */
struct charge {
	struct tenant *tenant; /* borrowed; NULL = nothing charged */
	struct user
		*user; /* who pays for the bytes of a manifest; stays as long as there are any */
	struct user_charge of_user;  /* for those */
	struct user_charge of_books; /* the charge for the books, see TENANT_BOOKS_BYTES */
	uint64_t bytes;
	uint64_t manifest_bytes;
	uint32_t slot;
	uint32_t n_fds;
};

struct tenant_table;

/*
 * The built-in "cache" tenant, without limits, and one tenant per entry of @config (the default one
 * among them). Returns 0 or -ENOMEM.
 */
int tenant_table_new(const struct config *config, uint32_t n_devices, uint32_t n_nodes,
                     struct tenant_table **table_out);

/* All sessions have left and all charges are refunded. NULL is fine. */
void tenant_table_free(struct tenant_table *table);

/*
 * Take limits and priorities from a config that was read again. Counters stay; changes of
 * tenant_set_*() are lost. Returns 0, or -ENOMEM: nothing has changed.
 */
int tenant_table_apply(struct tenant_table *table, const struct config *config);

/* Pays for the stock, and for blocks that are neither used nor pinned. Never NULL. */
struct tenant *tenant_table_cache(struct tenant_table *table);

/* Find the tenant of that name; NULL when there is none. */
struct tenant *tenant_find(struct tenant_table *table, const char *name);

/* The tenant with the smallest id above @after; NULL at the end. From 0, this walks over all. */
struct tenant *tenant_next(struct tenant_table *table, uint64_t after);

/* The quota that @rule gives at @slot, one of the table's. 0 = no limit. */
uint64_t tenant_configured_quota(const struct tenant_table *table, const struct config_tenant *rule,
                                 uint32_t slot);

/* Set a limit until the config is read again. 0 = no limit. Returns 0, or -EINVAL: no such location. */
int tenant_set_quota(struct tenant *tenant, uint32_t slot, uint64_t quota_bytes);
void tenant_set_max_sessions(struct tenant *tenant, uint32_t max_sessions);
void tenant_set_manifest_quota(struct tenant *tenant, uint64_t quota_bytes);

/* Returns 0 or TENANT_E_SESSIONS. */
int tenant_session_enter(struct tenant *tenant);

/* A session of an earlier glaked: it was let in already. */
void tenant_session_adopt(struct tenant *tenant);

/* @tenant may be gone when this returns. */
void tenant_session_leave(struct tenant *tenant);

/*
 * @slot is one of the table's. Returns 0, TENANT_E_BYTES or TENANT_E_FDS: nothing is charged then
 * and @charge_out is unchanged.
 */
int tenant_charge(struct tenant *tenant, uint32_t slot, uint64_t bytes, uint32_t n_fds,
                  struct charge *charge_out);

/* Charge memory that is paid for already, by a promise that gives it up now: no limit of bytes. Returns 0 or TENANT_E_FDS. */
int tenant_charge_promised(struct tenant *tenant, uint32_t slot, uint64_t bytes, uint32_t n_fds,
                           struct charge *charge_out);

/* Charge memory that an earlier glaked has granted to @payer; limits do not change that. @slot is the table's. */
struct charge tenant_charge_adopted(struct payer payer, uint32_t slot, uint64_t bytes,
                                    uint32_t n_fds, uint64_t manifest_bytes);

/* The charge of a new manifest. It has no bytes yet, so this cannot be refused. */
struct charge tenant_charge_manifest(struct payer payer);
/* The manifest grows. Returns 0 or TENANT_E_MANIFESTS: nothing has changed then. */
int charge_grow_manifest(struct charge *charge, uint64_t more_bytes);
/* The bound that keeps @payer from @more_bytes of manifests, with its numbers. BOUND_NONE: nothing does. */
enum bound tenant_manifest_bound(struct payer payer, uint64_t more_bytes, uint64_t *used_out,
                                 uint64_t *limit_out);

/*
 * Enter the queue of requests that wait for room at @slot. While @place is there, the tenant
 * stays. No event tells about room; the first request tries again.
 */
void tenant_queue_enter(struct tenant *tenant, uint32_t slot, struct list *place);
/* Harmless if @place is in no queue; otherwise the tenant may be gone when this returns. */
void tenant_queue_leave(struct tenant *tenant, struct list *place);
/* Whether no request is before @place, which need not be in the queue yet. */
bool tenant_queue_is_next(const struct tenant *tenant, uint32_t slot, const struct list *place);

/* Refund and zero @charge; harmless if it is zero. The tenant may be gone afterwards. */
void charge_refund(struct charge *charge);

/* A part of what it is for is charged elsewhere, and comes back. The cache has no limits. */
void charge_shrink(struct charge *charge, uint64_t bytes);
void charge_grow(struct charge *charge, uint64_t bytes);
/* The bytes that @charge could grow by within its tenant's limit. 0 for no charge. */
uint64_t charge_room_bytes(const struct charge *charge);

/* @to pays from now on. Returns 0, or TENANT_E_*: nothing has changed. */
int charge_move(struct charge *charge, struct payer to);

#endif

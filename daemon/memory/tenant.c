/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/tenant.h"

/* The asserts are the accounting's proof: they stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node's models may all be loaded at once, and each is a line that its operator looks for. */
#define LOADS_IN_LOG 100

/* The charges of all tenants for manifests, by user. */
static struct pot books = {.row = USER_BOOKS, .limit = TENANT_BOOKS_BYTES};

struct tenant_table {
	struct list tenants; /* of tenant.link, ids rising */
	struct tenant *cache;
	uint64_t last_id;
	uint32_t n_devices;
	uint32_t n_locations;
};

/* ---- one tenant ---- */

static struct tenant *tenant_new(const char *name, uint32_t n_locations)
{
	struct tenant *tenant = calloc(1, sizeof(*tenant) + n_locations * sizeof(tenant->at[0]));
	if (tenant) {
		list_init(&tenant->link);
		snprintf(tenant->name, sizeof(tenant->name), "%s", name);
		tenant->n_locations = n_locations;
		tenant->loads_limit.n_burst = LOADS_IN_LOG;
		tenant->manifests.row = USER_MANIFESTS;
		for (uint32_t i = 0; i < n_locations; i++) {
			list_init(&tenant->at[i].queue);
		}
	}
	return tenant;
}

static bool tenant_is_unused(const struct tenant *tenant)
{
	for (uint32_t i = 0; i < tenant->n_locations; i++) {
		if (!list_is_empty(&tenant->at[i].queue)) {
			return false;
		}
	}
	return tenant->n_sessions == 0 && tenant->n_charges == 0;
}

static void tenant_free(struct tenant *tenant)
{
	assert(tenant_is_unused(tenant));
	assert(tenant->n_fds == 0 && tenant->manifest_bytes == 0);
	pot_deinit(&tenant->manifests);
	for (uint32_t i = 0; i < tenant->n_locations; i++) {
		assert(tenant->at[i].used_bytes == 0);
	}
	list_remove(&tenant->link);
	free(tenant);
}

static void tenant_free_if_gone(struct tenant *tenant)
{
	if (tenant->is_leaving && tenant_is_unused(tenant)) {
		tenant_free(tenant);
	}
}

/* ---- the table ---- */

uint64_t tenant_configured_quota(const struct tenant_table *table, const struct config_tenant *rule,
                                 uint32_t slot)
{
	return slot < table->n_devices
	               ? config_sizes_at(&rule->device_bytes, slot)
	               : config_sizes_at(&rule->host_bytes, slot - table->n_devices);
}

static void configure(const struct tenant_table *table, struct tenant *tenant,
                      const struct config_tenant *rule)
{
	tenant->is_leaving = false;
	tenant->priority = rule->priority;
	tenant->idle_ms = rule->idle_ms;
	tenant->sleeps_on_pressure = rule->on_pressure == CONFIG_ON_PRESSURE_SLEEP;
	tenant->dedup = rule->dedup;
	tenant->max_sessions = rule->max_sessions;
	tenant->max_fds = rule->max_fds;
	tenant_set_manifest_quota(tenant, rule->manifest_bytes);
	for (uint32_t i = 0; i < tenant->n_locations; i++) {
		tenant->at[i].quota_bytes = tenant_configured_quota(table, rule, i);
	}
}

static void table_add(struct tenant_table *table, struct tenant *tenant)
{
	tenant->id = ++table->last_id;
	list_insert(&table->tenants, &tenant->link);
}

int tenant_table_new(const struct config *config, uint32_t n_devices, uint32_t n_nodes,
                     struct tenant_table **table_out)
{
	struct tenant_table *table = calloc(1, sizeof(*table));
	if (!table) {
		return -ENOMEM;
	}
	list_init(&table->tenants);
	table->n_devices = n_devices;
	table->n_locations = n_devices + n_nodes;
	table->cache = tenant_new(CONFIG_CACHE_TENANT, table->n_locations);
	if (!table->cache) {
		free(table);
		return -ENOMEM;
	}
	table_add(table, table->cache);
	int result = tenant_table_apply(table, config);
	if (result < 0) {
		tenant_table_free(table);
		return result;
	}
	*table_out = table;
	return 0;
}

void tenant_table_free(struct tenant_table *table)
{
	if (!table) {
		return;
	}
	struct tenant *tenant, *spare;
	list_for_each_safe (tenant, spare, &table->tenants, link) {
		tenant_free(tenant);
	}
	pot_deinit(&books);
	free(table);
}

static int new_tenants(struct tenant_table *table, const struct config *config, struct list *fresh)
{
	for (size_t i = 0; i < config->n_tenants; i++) {
		if (tenant_find(table, config->tenants[i].name)) {
			continue;
		}
		struct tenant *tenant = tenant_new(config->tenants[i].name, table->n_locations);
		if (!tenant) {
			return -ENOMEM;
		}
		list_insert(fresh, &tenant->link);
	}
	return 0;
}

int tenant_table_apply(struct tenant_table *table, const struct config *config)
{
	struct tenant *tenant, *spare;
	struct list fresh = LIST_INIT(fresh);
	int result = new_tenants(table, config, &fresh);
	list_for_each_safe (tenant, spare, &fresh, link) {
		list_remove(&tenant->link);
		if (result < 0) {
			tenant_free(tenant);
		} else {
			table_add(table, tenant);
		}
	}
	if (result < 0) {
		return result;
	}
	list_for_each (tenant, &table->tenants, link) {
		tenant->is_leaving = tenant != table->cache;
	}
	for (size_t i = 0; i < config->n_tenants; i++) {
		configure(table, tenant_find(table, config->tenants[i].name), &config->tenants[i]);
	}
	list_for_each_safe (tenant, spare, &table->tenants, link) {
		tenant_free_if_gone(tenant);
	}
	return 0;
}

struct tenant *tenant_table_cache(struct tenant_table *table)
{
	return table->cache;
}

struct tenant *tenant_find(struct tenant_table *table, const char *name)
{
	struct tenant *tenant;
	list_for_each (tenant, &table->tenants, link) {
		if (strcmp(tenant->name, name) == 0) {
			return tenant;
		}
	}
	return NULL;
}

struct tenant *tenant_next(struct tenant_table *table, uint64_t after)
{
	struct tenant *tenant;
	list_for_each (tenant, &table->tenants, link) {
		if (tenant->id > after) {
			return tenant;
		}
	}
	return NULL;
}

/* ---- limits and sessions ---- */

int tenant_set_quota(struct tenant *tenant, uint32_t slot, uint64_t quota_bytes)
{
	if (slot >= tenant->n_locations) {
		return -EINVAL;
	}
	tenant->at[slot].quota_bytes = quota_bytes;
	return 0;
}

void tenant_set_max_sessions(struct tenant *tenant, uint32_t max_sessions)
{
	tenant->max_sessions = max_sessions;
}

void tenant_set_manifest_quota(struct tenant *tenant, uint64_t quota_bytes)
{
	tenant->quota_manifest_bytes = quota_bytes;
	tenant->manifests.limit = quota_bytes;
}

int tenant_session_enter(struct tenant *tenant)
{
	uint32_t limit = tenant->max_sessions ? tenant->max_sessions : UINT32_MAX;
	if (tenant->n_sessions >= limit) {
		return TENANT_E_SESSIONS;
	}
	tenant->n_sessions++;
	return 0;
}

void tenant_session_adopt(struct tenant *tenant)
{
	tenant->n_sessions++;
}

void tenant_session_leave(struct tenant *tenant)
{
	assert(tenant->n_sessions > 0);
	tenant->n_sessions--;
	tenant_free_if_gone(tenant);
}

/* ---- charges ---- */

/* @limit 0 = none; then only what the counter cannot hold is refused. */
static bool fits(uint64_t used, uint64_t more, uint64_t limit)
{
	if (limit == 0) {
		limit = UINT64_MAX;
	}
	return more == 0 || (used <= limit && more <= limit - used);
}

static enum bound find_share_bound(const struct pot *pot, const struct user *user,
                                   uint64_t more_bytes, uint64_t *used_out, uint64_t *limit_out)
{
	if (pot_has_room(pot, user, more_bytes)) {
		return BOUND_NONE;
	}
	*used_out = pot_used_by(pot, user);
	*limit_out = user_share(pot->row, pot->limit, pot->used - *used_out);
	return BOUND_USER_SHARE;
}

enum bound tenant_manifest_bound(struct payer payer, uint64_t more_bytes, uint64_t *used_out,
                                 uint64_t *limit_out)
{
	const struct tenant *tenant = payer.tenant;
	if (!fits(tenant->manifest_bytes, more_bytes, tenant->quota_manifest_bytes)) {
		*used_out = tenant->manifest_bytes;
		*limit_out = tenant->quota_manifest_bytes;
		return BOUND_MANIFESTS;
	}
	enum bound bound = find_share_bound(&tenant->manifests, payer.user, more_bytes, used_out,
	                                    limit_out);
	return bound ? bound
	             : find_share_bound(&books, payer.user, more_bytes, used_out, limit_out);
}

static bool may_have_manifests(struct payer payer, uint64_t more_bytes)
{
	uint64_t used;
	uint64_t limit;
	return tenant_manifest_bound(payer, more_bytes, &used, &limit) == BOUND_NONE;
}

static void count_manifest(struct charge *charge, uint64_t more_bytes)
{
	user_charge_anyway(&charge->of_user, &charge->tenant->manifests, charge->user, more_bytes);
	user_charge_anyway(&charge->of_books, &books, charge->user, more_bytes);
	charge->tenant->manifest_bytes += more_bytes;
}

static void count(struct payer payer, const struct charge *wanted, struct charge *charge_out)
{
	struct tenant *tenant = payer.tenant;
	struct tenant_location *on = &tenant->at[wanted->slot];
	on->used_bytes += wanted->bytes;
	if (on->peak_bytes < on->used_bytes) {
		on->peak_bytes = on->used_bytes;
	}
	tenant->n_fds += wanted->n_fds;
	tenant->n_charges++;
	*charge_out = *wanted;
	charge_out->tenant = tenant;
	charge_out->user = payer.user;
	charge_out->of_user = (struct user_charge){0};
	charge_out->of_books = (struct user_charge){0};
	count_manifest(charge_out, wanted->manifest_bytes);
}

/* Have @payer pay for what @wanted names. */
static int take(struct payer payer, const struct charge *wanted, struct charge *charge_out)
{
	struct tenant *tenant = payer.tenant;
	assert(wanted->slot < tenant->n_locations);
	struct tenant_location *on = &tenant->at[wanted->slot];
	if (!fits(on->used_bytes, wanted->bytes, on->quota_bytes)) {
		return TENANT_E_BYTES;
	}
	if (!fits(tenant->n_fds, wanted->n_fds, tenant->max_fds)) {
		return TENANT_E_FDS;
	}
	if (!may_have_manifests(payer, wanted->manifest_bytes)) {
		return TENANT_E_MANIFESTS;
	}
	count(payer, wanted, charge_out);
	return 0;
}

int tenant_charge(struct tenant *tenant, uint32_t slot, uint64_t bytes, uint32_t n_fds,
                  struct charge *charge_out)
{
	struct charge wanted = {.slot = slot, .bytes = bytes, .n_fds = n_fds};
	return take(payer_alone(tenant), &wanted, charge_out);
}

int tenant_charge_promised(struct tenant *tenant, uint32_t slot, uint64_t bytes, uint32_t n_fds,
                           struct charge *charge_out)
{
	struct charge wanted = {.slot = slot, .bytes = bytes, .n_fds = n_fds};
	if (!fits(tenant->n_fds, n_fds, tenant->max_fds)) {
		return TENANT_E_FDS;
	}
	count(payer_alone(tenant), &wanted, charge_out);
	return 0;
}

struct charge tenant_charge_adopted(struct payer payer, uint32_t slot, uint64_t bytes,
                                    uint32_t n_fds, uint64_t manifest_bytes)
{
	const struct charge wanted = {
		.slot = slot, .bytes = bytes, .n_fds = n_fds, .manifest_bytes = manifest_bytes};
	struct charge charge;
	count(payer, &wanted, &charge);
	return charge;
}

struct charge tenant_charge_manifest(struct payer payer)
{
	struct charge wanted = {0};
	struct charge charge = {0};
	take(payer, &wanted, &charge);
	return charge;
}

int charge_grow_manifest(struct charge *charge, uint64_t more_bytes)
{
	if (!may_have_manifests((struct payer){charge->tenant, charge->user}, more_bytes)) {
		return TENANT_E_MANIFESTS;
	}
	count_manifest(charge, more_bytes);
	charge->manifest_bytes += more_bytes;
	return 0;
}

void charge_refund(struct charge *charge)
{
	struct tenant *tenant = charge->tenant;
	if (!tenant) {
		return;
	}
	struct tenant_location *on = &tenant->at[charge->slot];
	assert(tenant->n_charges > 0);
	assert(on->used_bytes >= charge->bytes);
	assert(tenant->n_fds >= charge->n_fds);
	assert(tenant->manifest_bytes >= charge->manifest_bytes);
	on->used_bytes -= charge->bytes;
	tenant->n_fds -= charge->n_fds;
	tenant->manifest_bytes -= charge->manifest_bytes;
	tenant->n_charges--;
	user_refund_all(&charge->of_user);
	user_refund_all(&charge->of_books);
	*charge = (struct charge){0};
	tenant_free_if_gone(tenant);
}

void charge_shrink(struct charge *charge, uint64_t bytes)
{
	assert(charge->tenant && charge->bytes >= bytes);
	charge->bytes -= bytes;
	charge->tenant->at[charge->slot].used_bytes -= bytes;
}

void charge_grow(struct charge *charge, uint64_t bytes)
{
	struct tenant_location *on = &charge->tenant->at[charge->slot];
	charge->bytes += bytes;
	on->used_bytes += bytes;
	if (on->peak_bytes < on->used_bytes) {
		on->peak_bytes = on->used_bytes;
	}
}

uint64_t charge_room_bytes(const struct charge *charge)
{
	if (!charge->tenant) {
		return 0;
	}
	const struct tenant_location *on = &charge->tenant->at[charge->slot];
	uint64_t limit = on->quota_bytes ? on->quota_bytes : UINT64_MAX;
	return limit > on->used_bytes ? limit - on->used_bytes : 0;
}

int charge_move(struct charge *charge, struct payer to)
{
	assert(charge->tenant);
	if (charge->tenant == to.tenant && charge->user == to.user) {
		return 0;
	}
	struct charge moved;
	int result = take(to, charge, &moved);
	if (result != 0) {
		return result;
	}
	charge_refund(charge);
	*charge = moved;
	return 0;
}

/* ---- waiting ---- */

void tenant_queue_enter(struct tenant *tenant, uint32_t slot, struct list *place)
{
	assert(slot < tenant->n_locations);
	list_insert(&tenant->at[slot].queue, place);
}

void tenant_queue_leave(struct tenant *tenant, struct list *place)
{
	if (!list_is_empty(place)) {
		list_remove(place);
		tenant_free_if_gone(tenant);
	}
}

bool tenant_queue_is_next(const struct tenant *tenant, uint32_t slot, const struct list *place)
{
	const struct list *queue = &tenant->at[slot].queue;
	return list_is_empty(queue) || queue->next == place;
}

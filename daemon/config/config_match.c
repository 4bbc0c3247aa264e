/* SPDX-License-Identifier: Apache-2.0 */
/* The config decides about a peer: admin rights, realm, tenant; and a tenant's limits. */
#include "daemon/config/config.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static bool has_gid(const gid_t *gids, size_t n_gids, gid_t gid)
{
	for (size_t i = 0; i < n_gids; i++) {
		if (gids[i] == gid) {
			return true;
		}
	}
	return false;
}

static bool is_member(const struct config_members *members, const struct peer *peer)
{
	for (size_t i = 0; i < members->n_uids; i++) {
		if (members->uids[i] == peer->uid || members->uids[i] == peer->owner) {
			return true;
		}
	}
	for (size_t i = 0; i < members->n_gids; i++) {
		if (has_gid(peer->gids, peer->n_gids, members->gids[i])) {
			return true;
		}
	}
	return false;
}

/* /a/b holds /a/b and /a/b/c, not /a/bc. */
static bool is_below(const char *cgroup, const char *prefix)
{
	size_t n_bytes = strlen(prefix);
	return strncmp(cgroup, prefix, n_bytes) == 0 &&
	       (cgroup[n_bytes] == '\0' || cgroup[n_bytes] == '/');
}

static bool rule_matches(const struct config_tenant *rule, const struct peer *peer)
{
	bool names_somebody = rule->members.n_uids > 0 || rule->members.n_gids > 0;
	if (names_somebody && !is_member(&rule->members, peer)) {
		return false;
	}
	return !rule->cgroup || (peer->cgroup && is_below(peer->cgroup, rule->cgroup));
}

bool config_is_admin(const struct config *config, uid_t uid, const gid_t *gids, size_t n_gids)
{
	return uid == 0 || (config->admin_group && has_gid(gids, n_gids, config->admin_gid));
}

void config_realm_of(const struct config *config, const struct peer *peer, char *name_out,
                     size_t name_bytes)
{
	for (size_t i = 0; i < config->n_realms; i++) {
		if (is_member(&config->realms[i].members, peer)) {
			snprintf(name_out, name_bytes, "%s", config->realms[i].name);
			return;
		}
	}
	/* No name in the file has a colon, so no other realm has this name. */
	snprintf(name_out, name_bytes, "uid:%u", (unsigned)peer->owner);
}

bool config_names_cgroups(const struct config *config)
{
	for (size_t i = 0; i < config->n_tenants; i++) {
		if (config->tenants[i].cgroup) {
			return true;
		}
	}
	return false;
}

const struct config_tenant *config_tenant_of(const struct config *config, const struct peer *peer)
{
	size_t i = 0;
	while (!rule_matches(&config->tenants[i], peer)) {
		i++; /* The default tenant, the last one, matches everybody. */
	}
	return &config->tenants[i];
}

uint64_t config_sizes_at(const struct config_sizes *sizes, uint32_t i)
{
	if (sizes->n == 0) {
		return 0;
	}
	return sizes->bytes[i < sizes->n - 1 ? i : sizes->n - 1];
}

uint32_t config_user_sessions(const struct config *config)
{
	uint32_t quarter = config->max_sessions / 4;
	if (config->max_sessions_per_user) {
		return config->max_sessions_per_user;
	}
	return quarter > 16 ? quarter : 16;
}

/* The limit minus the reserve, at most @most. */
static uint32_t fds_left(uint64_t most)
{
	struct rlimit limit = {.rlim_max = CONFIG_MAX_FDS};
	getrlimit(RLIMIT_NOFILE, &limit);
	uint64_t max = limit.rlim_max < most ? limit.rlim_max : most;
	/* No value is right with such a small limit; half of it keeps glaked answering. */
	uint64_t left = max > 2 * CONFIG_RESERVED_FDS ? max - CONFIG_RESERVED_FDS : max / 2;
	return left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
}

uint32_t config_fd_budget(const struct config *config)
{
	uint32_t left = fds_left(config->fd_budget ? UINT64_MAX : CONFIG_MAX_FDS);
	return config->fd_budget && config->fd_budget < left ? config->fd_budget : left;
}

uint32_t config_mover_fds(const struct config *config)
{
	/* An administrator who sets more knows that the host allows it. */
	return fds_left(config->fd_budget > CONFIG_MAX_FDS ? config->fd_budget : CONFIG_MAX_FDS);
}

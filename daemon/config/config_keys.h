/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every key: KEY(section, struct, name, default, value, field, min, max). The defaults are
 * written as in a file, and are read like one: config_load() parses them first. config_value_... reads a
 * value, config_show_... writes it.
 */
#ifndef GLAKE_DAEMON_CONFIG_KEYS_H
#define GLAKE_DAEMON_CONFIG_KEYS_H

#include "proto/limits.h"

#define CONFIG_DAY_MS (24ull * 60 * 60 * 1000)
#define CONFIG_MAX_BYTES INT64_MAX

/* clang-format off */
#define CONFIG_KEYS(KEY) \
	KEY("", config, socket_path, "\"/run/glake/glaked.sock\"", \
	    socket_path, socket_path, 0, 0) \
	KEY("", config, socket_mode, "\"0666\"", mode, socket_mode, 0, 0) \
	KEY("", config, state_path, "", absolute_path, state_path, 0, 0) \
	KEY("", config, admin_group, "", admin_group, admin_group, 0, 0) \
	KEY("", config, mover_path, "", absolute_path, mover_path, 0, 0) \
	KEY("", config, mover_idle_ms, "30000", u64, mover_idle_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, libcuda, "", text, libcuda, 0, 0) \
	KEY("", config, devices, "", devices, devices, 0, 1023) \
	KEY("", config, log_level, "\"info\"", log_level, log_level, 0, 0) \
	KEY("", config, drain_ms, "5000", u64, drain_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, max_sessions, "4096", u32, max_sessions, 1, 1000000) \
	KEY("", config, max_sessions_per_user, "0", \
	    u32, max_sessions_per_user, 0, 1000000) \
	KEY("", config, max_requests_in_flight, "16", \
	    u32, max_requests_in_flight, 1, 65536) \
	KEY("", config, fd_budget, "0", u32, fd_budget, 0, 1000000000) \
	KEY("", config, pool, "( { chunk_bytes = \"2MiB\"; n_chunks = 16; }, " \
	    "{ chunk_bytes = \"64MiB\"; n_chunks = 2; } )", pool, stock, 0, 0) \
	KEY("", config, warm_bytes, "\"1GiB\"", size, warm_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("", config, load_window_bytes, "\"1GiB\"", \
	    size, load_window_bytes, GLAKE_MAX_BLOCK_BYTES, CONFIG_MAX_BYTES) \
	KEY("", config, trust_file_times, "false", flag, trust_file_times, 0, 0) \
	KEY("", config, demote, "false", flag, demote, 0, 0) \
	KEY("", config, dedup_reserve, "0.1", part, dedup_reserve, 0, 0) \
	KEY("", config, verify, "\"sample\"", verify, verify, 0, 0) \
	KEY("", config, measure_layout, "true", flag, measure_layout, 0, 0) \
	KEY("", config, reserve_bytes, "0", size, reserve_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("", config, host_bytes, "", sizes, host_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("", config, host_ready_bytes, "0", sizes, host_ready_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("", config, pressure, "\"refuse\"", pressure, pressure, 0, 0) \
	KEY("", config, wait_ms, "0", u64, wait_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, wake_wait_ms, "600000", u64, wake_wait_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, kept_ms, "600000", u64, kept_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, min_awake_ms, "5000", u64, min_awake_ms, 0, CONFIG_DAY_MS) \
	KEY("", config, readers, "", absolute_path, readers, 0, 0) \
	KEY("", config, realms, "()", realms, realms, 0, 0) \
	KEY("", config, tenants, "()", tenants, tenants, 0, 0) \
	KEY("pool", config_stock, chunk_bytes, "", chunk_size, chunk_bytes, \
	    GLAKE_CHUNK_GRANULARITY, GLAKE_MAX_CHUNK_BYTES) \
	KEY("pool", config_stock, n_chunks, "", u32, n_chunks, 1, CONFIG_MAX_STOCK_CHUNKS) \
	KEY("realms", config_realm, name, "", name, name, 0, 0) \
	KEY("realms", config_realm, uids, "", uids, members, 0, 0) \
	KEY("realms", config_realm, users, "", users, members, 0, 0) \
	KEY("realms", config_realm, gids, "", gids, members, 0, 0) \
	KEY("realms", config_realm, groups, "", groups, members, 0, 0) \
	KEY("tenants", config_tenant, name, "", name, name, 0, 0) \
	KEY("tenants", config_tenant, uids, "", uids, members, 0, 0) \
	KEY("tenants", config_tenant, users, "", users, members, 0, 0) \
	KEY("tenants", config_tenant, gids, "", gids, members, 0, 0) \
	KEY("tenants", config_tenant, groups, "", groups, members, 0, 0) \
	KEY("tenants", config_tenant, cgroup, "", cgroup, cgroup, 0, 0) \
	KEY("tenants", config_tenant, device_bytes, "0", sizes, device_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("tenants", config_tenant, host_bytes, "0", sizes, host_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("tenants", config_tenant, max_sessions, "0", u32, max_sessions, 0, 1000000) \
	KEY("tenants", config_tenant, max_fds, "0", u64, max_fds, 0, 1000000000) \
	KEY("tenants", config_tenant, manifest_bytes, "\"256MiB\"", \
	    size, manifest_bytes, 0, CONFIG_MAX_BYTES) \
	KEY("tenants", config_tenant, priority, "0", priority, priority, 0, 1000) \
	KEY("tenants", config_tenant, idle_ms, "0", u64, idle_ms, 0, 30 * CONFIG_DAY_MS) \
	KEY("tenants", config_tenant, on_pressure, "\"none\"", on_pressure, on_pressure, 0, 0) \
	KEY("tenants", config_tenant, dedup, "\"off\"", dedup, dedup, 0, 0)
/* clang-format on */

#endif

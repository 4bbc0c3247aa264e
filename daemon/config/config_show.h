/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value of the configuration as one would write it, without quotes: what config_value_... of the same name reads.
 *
 * Each function writes the text of @field, whose type is that of config_value_..., to @out.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_CONFIG_SHOW_H
#define GLAKE_DAEMON_CONFIG_SHOW_H

#include <stdio.h>

typedef void (*config_show_fn)(const void *field, FILE *out);

#define CONFIG_SHOW(name) void config_show_##name(const void *field, FILE *out)

CONFIG_SHOW(text);
CONFIG_SHOW(absolute_path);
CONFIG_SHOW(socket_path);
CONFIG_SHOW(cgroup);
CONFIG_SHOW(admin_group);
CONFIG_SHOW(name);
CONFIG_SHOW(mode);
CONFIG_SHOW(log_level);
CONFIG_SHOW(pressure);
CONFIG_SHOW(on_pressure);
CONFIG_SHOW(dedup);
CONFIG_SHOW(verify);
CONFIG_SHOW(part);
CONFIG_SHOW(flag);
CONFIG_SHOW(u32);
CONFIG_SHOW(u64);
CONFIG_SHOW(priority);
CONFIG_SHOW(size);
CONFIG_SHOW(chunk_size);
CONFIG_SHOW(sizes);
CONFIG_SHOW(devices); /* the member devices of a struct config */
CONFIG_SHOW(pool);    /* the member pool of a struct config */
CONFIG_SHOW(uids);    /* those of the members, and users together */
CONFIG_SHOW(gids);

#endif

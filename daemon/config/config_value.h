/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One value of a config file, checked and stored.
 *
 * Every function is a config_value_fn: it reads the setting @at into @field, whose type is named
 * beside it, and may be called on a field that is set already, which it then replaces (values that
 * collect, like uids, it adds to). @min and @max bound numbers and sizes, inclusive; the others
 * ignore them.
 * Returns 0, -EINVAL (the error text then says what is wrong, with its line) or -ENOMEM.
 *
 * Threads: any. Name services resolve user and group names, which may block.
 */
#ifndef GLAKE_DAEMON_CONFIG_VALUE_H
#define GLAKE_DAEMON_CONFIG_VALUE_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/config_file.h"

typedef int (*config_value_fn)(struct config_file *file, const config_setting_t *at, void *field,
                               uint64_t min, uint64_t max);

#define CONFIG_VALUE(name) \
	int config_value_##name(struct config_file *file, const config_setting_t *at, void *field, \
	                        uint64_t min, uint64_t max)

CONFIG_VALUE(text);          /* char *: not empty */
CONFIG_VALUE(absolute_path); /* char * */
CONFIG_VALUE(socket_path);   /* char *: absolute, fits sockaddr_un */
CONFIG_VALUE(cgroup);        /* char *: absolute, without a slash at its end */
CONFIG_VALUE(name);          /* char[CONFIG_NAME_BYTES] */
CONFIG_VALUE(mode);          /* mode_t, from an octal text */
CONFIG_VALUE(log_level);     /* enum log_level */
CONFIG_VALUE(pressure);      /* enum config_pressure */
CONFIG_VALUE(on_pressure);   /* enum config_on_pressure */
CONFIG_VALUE(dedup);         /* enum config_dedup */
CONFIG_VALUE(verify);        /* enum config_verify */
CONFIG_VALUE(part);          /* double: 0 to 1 */
CONFIG_VALUE(flag);          /* bool */
CONFIG_VALUE(u32);           /* uint32_t */
CONFIG_VALUE(u64);           /* uint64_t */
CONFIG_VALUE(priority);      /* int32_t, -max .. max */
CONFIG_VALUE(size);          /* uint64_t, a number of bytes or a text with a unit */
CONFIG_VALUE(chunk_size);    /* uint64_t, also a multiple of the granularity */
CONFIG_VALUE(uids);          /* struct config_members: adds */
CONFIG_VALUE(gids);          /* struct config_members: adds */
CONFIG_VALUE(users);         /* struct config_members: adds */
CONFIG_VALUE(groups);        /* struct config_members: adds */

/* The gid of group @name. Errors are placed at @at. */
int config_value_find_group(struct config_file *file, const config_setting_t *at, const char *name,
                            gid_t *gid_out);

/* Error text "LABEL must be EXPECTED, not a KIND". Always -EINVAL. */
int config_value_wrong_type(struct config_file *file, const config_setting_t *at,
                            const char *expected);

#endif

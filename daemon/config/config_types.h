/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of config values other than numbers: config_value.c reads them, config.h contains them.
 *
 * Owner: the embedding struct. Threads: any.
 */
#ifndef GLAKE_DAEMON_CONFIG_TYPES_H
#define GLAKE_DAEMON_CONFIG_TYPES_H

#include <stddef.h>
#include <sys/types.h>

/* Names of realms and tenants, with the NUL. Letters, digits, '.', '_' and '-'. */
#define CONFIG_NAME_BYTES 64u

/* How a tenant's requests behave at a full device, and what is done to its programs. */
enum config_on_pressure {
	CONFIG_ON_PRESSURE_NONE,
	CONFIG_ON_PRESSURE_SLEEP,
	N_CONFIG_ON_PRESSURE,
};
extern const char *const config_on_pressure_words[N_CONFIG_ON_PRESSURE];

/* Which memory becomes one copy without anybody asking, in a program that says nothing of it. */
enum config_dedup {
	CONFIG_DEDUP_OFF,
	CONFIG_DEDUP_AUTO,
	CONFIG_DEDUP_OBSERVED,
	N_CONFIG_DEDUP,
};
extern const char *const config_dedup_words[N_CONFIG_DEDUP];

enum config_pressure {
	CONFIG_PRESSURE_REFUSE, /* a request that does not fit is refused: see alloc.h */
	CONFIG_PRESSURE_WAIT,   /* it waits for memory, wait_ms at most */
	N_CONFIG_PRESSURE,
};
extern const char *const config_pressure_words[N_CONFIG_PRESSURE];

/* How often blocks are digested again: see patrol.h. */
enum config_verify {
	CONFIG_VERIFY_OFF,
	CONFIG_VERIFY_SAMPLE,
	CONFIG_VERIFY_ALWAYS,
	N_CONFIG_VERIFY,
};
extern const char *const config_verify_words[N_CONFIG_VERIFY];

/* A peer is a member if its uid is in uids, or one of its gids in gids. Names are resolved. */
struct config_members {
	uid_t *uids; /* owned */
	gid_t *gids; /* owned */
	size_t n_uids;
	size_t n_gids;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: one libconfig file, read whole, checked whole, never written to.
 *
 * Every key is optional, and no file means the defaults. A mistake (syntax, an unknown key, a wrong
 * type, a value out of range, a duplicate name, a user that does not exist) is refused with
 * "FILE:LINE: text". docs/configuration.md has the table of keys, and a test holds it
 * against config_keys(). Files are not included: @include is refused.
 *
 * A reload loads a second config and drops the first; nothing changes inside one.
 *
 * Owner: the server. Lifetime: until the next reload or the end. Code that needs a value for longer
 * than a turn of the loop keeps a copy.
 * Threads: read-only once loaded. config_load() may ask name services over a network: it blocks.
 */
#ifndef GLAKE_DAEMON_CONFIG_H
#define GLAKE_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/log.h"
#include "daemon/config/config_types.h"
#include "daemon/config/reader_tables.h"
#include "daemon/net/peer.h"

/* The tenant of sessions that match no rule; it always exists. */
#define CONFIG_DEFAULT_TENANT "default"

/* The tenant that is charged for unused memory; never in a config. */
#define CONFIG_CACHE_TENANT "cache"

/* Limits of a pool on each device: sizes, and chunks of each size. */
#define CONFIG_MAX_STOCK_SIZES 8u
#define CONFIG_MAX_STOCK_CHUNKS 64u

/* Some GPU hosts allow a process no more fds. Only fd_budget exceeds it. */
#define CONFIG_MAX_FDS 20000u

/* glaked keeps this many of those fds for itself: the driver's files, pipes, fds in flight (inflight.h). */
#define CONFIG_RESERVED_FDS 512u

/* Chunks to keep made ahead, on each device. */
struct config_stock {
	uint64_t chunk_bytes; /* a multiple of GLAKE_CHUNK_GRANULARITY */
	uint32_t n_chunks;
};

struct config_realm {
	char name[CONFIG_NAME_BYTES];
	struct config_members members;
};

/* One size for all, or a list whose last entry holds for all further ones. */
struct config_sizes {
	uint64_t *bytes; /* owned */
	size_t n;        /* 0: not given */
};

/* Limits: 0 = none. */
struct config_tenant {
	char name[CONFIG_NAME_BYTES];
	struct config_members members; /* if empty: any peer in the cgroup */
	char *cgroup;                  /* owned; NULL = any. Matches itself and what is below it */
	struct config_sizes device_bytes; /* by device */
	struct config_sizes host_bytes;   /* by host node, in glaked's order */
	uint64_t max_fds;                 /* chunks and blocks charged */
	uint64_t manifest_bytes;          /* of glaked's memory, for models in use or pinned */
	uint32_t max_sessions;
	int32_t priority; /* higher ones keep their idle models longer */
	uint64_t idle_ms; /* its programs sleep when they were idle for this long; 0 = never */
	enum config_on_pressure on_pressure;
	enum config_dedup dedup;
};

/* All strings and arrays are owned. */
struct config {
	char *path;        /* NULL = built-in defaults */
	char *socket_path; /* absolute; fits sockaddr_un */
	char *state_path;  /* absolute; NULL = beside the socket */
	char *mover_path;  /* absolute */
	char *libcuda;     /* NULL = as cudrv_open() decides */
	char *admin_group; /* NULL = only root is admin */
	gid_t admin_gid;   /* of admin_group */
	mode_t socket_mode;
	enum log_level log_level;

	uint32_t *devices; /* driver ordinals, in the order of glaked's numbering */
	size_t n_devices;  /* 0 = every device there is */

	uint64_t mover_idle_ms; /* 0 = the mover stays once started */
	uint64_t drain_ms;
	uint32_t max_sessions;
	uint32_t max_sessions_per_user;  /* as written; ask config_user_sessions() */
	uint32_t max_requests_in_flight; /* per session */
	uint32_t fd_budget;              /* as written; ask config_fd_budget() */

	struct config_stock *stock;
	size_t n_stock;
	uint64_t warm_bytes; /* per session and device */
	uint64_t load_window_bytes;
	bool trust_file_times; /* also if the files' times may miss a change */
	bool demote;           /* models are copied to host memory, and come back from there */
	double dedup_reserve;  /* of what sealing by itself saves; 0 to 1 */
	enum config_verify verify;
	bool measure_layout; /* blocks that programs sealed are looked at for what others have at other offsets */
	uint64_t reserve_bytes; /* per device, never given out */
	struct config_sizes
		host_bytes; /* by host node: that glaked gives out; not given: see node.h */
	struct config_sizes host_ready_bytes; /* by host node: kept free for copies */
	enum config_pressure pressure;
	uint64_t wait_ms; /* with CONFIG_PRESSURE_WAIT */
	uint64_t wake_wait_ms;
	uint64_t kept_ms;      /* 0: nothing is kept */
	uint64_t min_awake_ms; /* glaked puts no program to sleep before */

	char *readers; /* absolute; NULL = none: the folder of */
	struct reader_tables reader_tables;

	struct config_realm *realms;
	size_t n_realms;
	struct config_tenant *tenants; /* in the order of the rules; the default one is last */
	size_t n_tenants;
};

/*
 * Read @path, or take the defaults when it is NULL.
 * Returns 0, -EINVAL (the file is wrong), -errno of opening it, or -ENOMEM. On failure @error_out
 * holds one line: "FILE:LINE: text", or "FILE: text" where there is no line.
 */
int config_load(const char *path, struct config **config_out, char *error_out, size_t error_bytes);

/* NULL is fine. */
void config_free(struct config *config);

/* A key whose value differs. Texts are borrowed for the call. */
struct config_change {
	const char *key;    /* "warm_bytes", "tenants.research.device_bytes", "tenants.research" */
	const char *before; /* as one would write it; "not set"; of a tenant or realm "-" */
	const char
		*after; /* the same; of a tenant or realm that came or went "added" or "removed" */
	bool is_fixed;  /* glaked reads it at its start only: the one before holds on */
};

typedef void (*config_change_fn)(void *user, const struct config_change *change);

/* Does glaked read the key at its start only? @section: "" or "pool". */
bool config_is_fixed(const char *section, const char *name);

/* Each change from @before to @after, in the order of config_keys(). Returns their number, or -ENOMEM. */
int config_diff(const struct config *before, const struct config *after, config_change_fn change,
                void *user);

/*
 * Fds for clients: sessions, chunks, blocks. fd_budget if it is set, else CONFIG_MAX_FDS less
 * CONFIG_RESERVED_FDS; never more than the hard RLIMIT_NOFILE less the reserve.
 */
uint32_t config_fd_budget(const struct config *config);

/* Fds that glake-mover may have: the same computation, since it inherits the hard RLIMIT_NOFILE. */
uint32_t config_mover_fds(const struct config *config);

/* Sessions that one user may have: max_sessions_per_user, else a quarter of max_sessions, at least 16. */
uint32_t config_user_sessions(const struct config *config);

/* Root, or a member of admin_group. @uid is the kernel's, not the owner's. @gids: the primary too. */
bool config_is_admin(const struct config *config, uid_t uid, const gid_t *gids, size_t n_gids);

/*
 * The first realm that names @peer, else "uid:1000" with the uid of its owner. @name_out needs
 * CONFIG_NAME_BYTES. A rule with a uid matches peers with that uid or that owner.
 */
void config_realm_of(const struct config *config, const struct peer *peer, char *name_out,
                     size_t name_bytes);

/* Does any tenant's rule name a cgroup? */
bool config_names_cgroups(const struct config *config);

/*
 * The first rule that matches, else the default tenant; never NULL, valid as long as the config.
 * A rule with both members and a cgroup needs both; one with a cgroup matches no peer without.
 */
const struct config_tenant *config_tenant_of(const struct config *config, const struct peer *peer);

/* Number @i of them; 0 if they are not given. */
uint64_t config_sizes_at(const struct config_sizes *sizes, uint32_t i);

/* One key of the file, for documentation and its test. */
struct config_key {
	const char *section; /* "" for the top, else "pool", "realms", "tenants" */
	const char *name;
	const char *fallback; /* the default as one would write it; "" = none */
};

/* Every key there is. Static. */
const struct config_key *config_keys(size_t *n_keys_out);

#endif

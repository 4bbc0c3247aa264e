/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-client, the looking and steering half: what glakectl is made of.
 *
 * Lists show one's own realm, or everything to an admin. Each list function calls back once per
 * row; strings in a row are valid during the callback. A callback that returns nonzero ends the
 * list, and that value is returned. The callback must not call the library on the same session.
 * The words for numbers are those of docs/operations.md: physical, logical, live, reserved, warm.
 * Threads, errors, blocking: as in glake.h.
 */
#ifndef GLAKE_ADMIN_H
#define GLAKE_ADMIN_H

#include "glake.h"

#ifdef __cplusplus
extern "C" {
#endif

struct glake_device_status {
	uint32_t index;
	const char *name;
	uint8_t uuid[16];
	uint64_t total_bytes;
	uint64_t physical_bytes; /* chunks that exist: private + blocks + made ahead */
	uint64_t private_bytes;
	uint64_t block_bytes;
	uint64_t used_block_bytes; /* of block_bytes: somebody has it open, or it is being loaded */
	uint64_t pool_bytes;       /* made ahead */
	uint64_t logical_bytes;    /* sum over sessions of bytes mapped */
	uint64_t logical_block_bytes;
	uint64_t free_bytes; /* of the device as the daemon last saw it; 0 = not known */
	/*
	 * What is used of the device and not physical, by NVML: memory that the processes of
	 * sessions have of the driver itself,
	 */
	uint64_t context_bytes; /* contexts and code: all that they do not report */
	uint64_t managed_bytes; /* as they report, up to what nobody else has */
	uint64_t array_bytes;   /* as they report, no more than NVML says; and so the next */
	uint64_t graph_bytes;
	uint64_t other_bytes;
	uint64_t mover_bytes;       /* glake-mover's, */
	uint64_t foreign_bytes;     /* that of processes without a session, */
	uint64_t unaccounted_bytes; /* and the rest; 0 while free_bytes is not known */
	uint32_t n_foreign;         /* processes without a session */
	const char *fabric;         /* "yes", or the reason why not */
	int rdma;
};

struct glake_status {
	const char *version;
	const char *driver;
	const char *config; /* path; "" = built-in defaults */
	const char *mover;  /* "idle" or "running PID" */
	uint64_t pid;
	uint64_t uptime_ms;
	uint64_t n_sessions;
	uint64_t n_models;
	uint64_t n_blocks;
	uint64_t fds_used;
	uint64_t fds_budget;
	int draining;
	uint32_t n_devices;
	const struct glake_device_status *devices;
};

typedef int (*glake_status_fn)(void *user, const struct glake_status *status);
GLAKE_API int glake_get_status(struct glake_session *session, glake_status_fn row, void *user);

typedef int (*glake_metric_fn)(void *user, const char *name, uint64_t value, const char *help);
GLAKE_API int glake_get_stats(struct glake_session *session, glake_metric_fn row, void *user);

/* What a session, and the process that it is of, has on one device. */
struct glake_session_device {
	uint32_t device;
	uint64_t reserved_bytes;
	uint64_t shared_bytes;
	uint64_t managed_bytes; /* of the driver itself, as the program reports; and so the next */
	uint64_t array_bytes;
	uint64_t graph_bytes;
	uint64_t other_bytes;
	uint64_t process_bytes; /* of the driver beside managed, by NVML; 0 = not known */
};

struct glake_session_row {
	uint64_t session;
	uint32_t pid;
	uint32_t uid;
	const char *program;
	const char *tenant;
	const char *realm;
	uint64_t reserved_bytes;
	uint64_t live_bytes;
	uint64_t warm_bytes;
	uint64_t shared_bytes;
	uint32_t n_chunks;
	uint32_t n_models;
	uint64_t age_ms;
	uint64_t n_requests;
	uint64_t peak_bytes; /* the highest live_bytes; it and the next as the program reports */
	uint64_t n_owned;    /* allocations served with memory of glaked */
	uint64_t n_passed;   /* allocations left to the driver that glaked should have served */
	uint32_t n_devices;  /* where it has anything */
	const struct glake_session_device *devices;
};

typedef int (*glake_session_fn)(void *user, const struct glake_session_row *row);
GLAKE_API int glake_list_sessions(struct glake_session *session, glake_session_fn row, void *user);

struct glake_tenant_device {
	uint32_t device;
	uint64_t used_bytes;
	uint64_t quota_bytes; /* 0 = none */
	uint64_t peak_bytes;
};

struct glake_tenant_row {
	const char *name;
	uint32_t n_sessions;
	uint32_t max_sessions; /* 0 = none */
	uint64_t n_fds;
	uint64_t max_fds; /* 0 = none */
	int32_t priority;
	uint32_t n_devices;
	const struct glake_tenant_device *devices;
	uint64_t manifest_bytes;       /* of glaked's memory, for models in use or pinned */
	uint64_t quota_manifest_bytes; /* 0 = none */
};

typedef int (*glake_tenant_fn)(void *user, const struct glake_tenant_row *row);
GLAKE_API int glake_list_tenants(struct glake_session *session, glake_tenant_fn row, void *user);

struct glake_model_row {
	uint64_t id;
	const char *name;
	const char *realm;
	const char *state; /* "loading", "ready" */
	uint32_t device;
	uint64_t span_bytes;
	uint64_t content_bytes;
	uint64_t unique_bytes; /* chunks that only this model holds */
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint32_t n_open;
	int pinned;
	uint64_t idle_ms;
	const char *reload_reason; /* why each open loads it again; "" = its files find it */
};

typedef int (*glake_model_fn)(void *user, const struct glake_model_row *row);
GLAKE_API int glake_list_models(struct glake_session *session, glake_model_fn row, void *user);

struct glake_block_row {
	uint64_t id;
	struct glake_digest digest;
	uint32_t device;
	const char *realm;
	uint64_t chunk_bytes;
	uint64_t content_bytes;
	uint32_t n_models;
	uint32_t n_users;
};

typedef int (*glake_block_fn)(void *user, const struct glake_block_row *row);
GLAKE_API int glake_list_blocks(struct glake_session *session, glake_block_fn row, void *user);

/*
 * Pin or unpin a model (own realm, or all as admin), by its name, or by its id (glake_model_row) in
 * decimal digits: a text of digits alone is never a name. A pinned model is charged to the tenant
 * that pins it. GLAKE_E_NOT_FOUND, GLAKE_E_BAD_REQUEST: several have the name, glake_error() has their
 * ids; GLAKE_E_OVER_QUOTA, GLAKE_E_NO_FDS, GLAKE_E_BUSY: being loaded.
 */
GLAKE_API int glake_pin(struct glake_session *session, const char *model, int pin);

/*
 * Evict a model, by name or id as glake_pin(), or, with NULL, everything unused and unpinned.
 * GLAKE_E_NOT_FOUND, GLAKE_E_BAD_REQUEST: several have the name; GLAKE_E_BUSY: in use or pinned.
 */
GLAKE_API int glake_evict(struct glake_session *session, const char *model, uint64_t *n_models_out,
                          uint64_t *freed_bytes_out);

/* Admin. Until the daemon rereads its config. 0 = no limit. */
GLAKE_API int glake_set_quota(struct glake_session *session, const char *tenant, uint32_t device,
                              uint64_t quota_bytes);
GLAKE_API int glake_set_max_sessions(struct glake_session *session, const char *tenant,
                                     uint32_t max_sessions);
GLAKE_API int glake_set_manifest_quota(struct glake_session *session, const char *tenant,
                                       uint64_t quota_bytes);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-client: looking at glaked and steering it. glakectl is built on these calls.
 *
 * An admin (root, or a member of the configured group) sees everything; other sessions see their
 * own realm. The words for numbers are those of docs/status.md: physical, logical, live,
 * reserved, warm.
 *
 * Lists. A list function calls @row once per row, on the calling thread, with no lock held. The row
 * and its strings belong to the library and are valid during the callback. The list ends when a
 * callback returns nonzero, and the list function returns that value. The callback must not call
 * the library on the same session.
 *
 * Errors, threads and blocking are as in glake.h. All calls here ask glaked.
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
	uint64_t physical_bytes; /* chunks that exist: private + blocks + made ahead + kept */
	uint64_t private_bytes;
	uint64_t block_bytes;
	uint64_t used_block_bytes; /* of block_bytes: open in a session, or being loaded */
	uint64_t pool_bytes;       /* made ahead */
	uint64_t logical_bytes;    /* sum over sessions of bytes mapped */
	uint64_t logical_block_bytes;
	uint64_t free_bytes;    /* of the device, as NVML last told glaked; 0 = not known */
				/*
	 * Driver usage: the part of the device that is used but not physical. NVML gives the sum
	 * for each process; sessions report the kinds.
	 */
	uint64_t context_bytes; /* of sessions: contexts and code, all that they do not report */
	uint64_t managed_bytes; /* of sessions, as reported, up to what no one else has */
	uint64_t array_bytes;   /* of sessions, as reported, at most what NVML says; so the next */
	uint64_t graph_bytes;
	uint64_t other_bytes;
	uint64_t mover_bytes;       /* of glake-mover */
	uint64_t foreign_bytes;     /* of processes without a session */
	uint64_t unaccounted_bytes; /* the rest; 0 while free_bytes is not known */
	uint32_t n_foreign;         /* processes without a session */
	const char *fabric;         /* "yes", or why chunks have no fabric handle */
	int rdma;                   /* nonzero: chunks are made for GPUDirect RDMA */
	uint64_t
		kept_bytes; /* of physical_bytes: outlived their process, for the next; they go first */
	/* Sealing that nobody asked for: */
	uint64_t saved_alone_bytes; /* unsealing all of it would take this much more memory */
	uint64_t
		unsealing_bytes; /* the reserve for unsealing: not physical, and given for nothing else */
	uint64_t
		unsealing_wanted_bytes; /* that it is to have: dedup_reserve of the configuration */
};

/* Host memory of a NUMA node. */
struct glake_host_status {
	uint32_t node;
	uint64_t total_bytes;     /* of the node */
	uint64_t limit_bytes;     /* that chunks may have: host_bytes of the configuration */
	uint64_t physical_bytes;  /* of chunks that exist */
	uint64_t private_bytes;   /* of sessions */
	uint64_t copy_bytes;      /* of chunks for copies of what is elsewhere */
	uint64_t used_copy_bytes; /* of copy_bytes: copies */
	/* Parts of used_copy_bytes, each copy once. The rest is being made, or read. */
	uint64_t sleep_copy_bytes;  /* programs that sleep, or are about to, have them */
	uint64_t model_copy_bytes;  /* only models in host memory alone have them */
	uint64_t cached_copy_bytes; /* nobody has them: they go when room is wanted */
	uint64_t
		slept_bytes; /* what those of sleep_copy_bytes stand for: each as often as a program has it */
	uint64_t
		ready_bytes; /* that are to be kept ready for copies, used or not: host_ready_bytes */
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
	uint64_t fds_used;   /* of chunks and blocks */
	uint64_t fds_budget; /* for them: fd_budget of the configuration, less max_sessions */
	int draining;
	uint32_t n_devices;
	const struct glake_device_status *devices;
	/* State that the next glaked would have. */
	uint64_t kept_fds;      /* with the service manager */
	uint64_t max_kept_fds;  /* 0 = nobody keeps any: a restart loses the store */
	uint64_t unkept_blocks; /* that wait for room there: a restart loses them */
	uint64_t
		unparked_bytes; /* chunks without an fd since a restart: only their processes have them */
	uint64_t
		unkept_chunks; /* named memory without room there: after a restart nobody can open it */
	uint32_t n_hosts;      /* host nodes that have chunks */
	const struct glake_host_status *hosts;
	const char *hosts_lacking; /* why not all host memory is among them; "" = all is */
	/* Configuration for programs that sleep. */
	uint64_t mover_idle_ms; /* 0 = glake-mover stays */
	int sleeps_idle;        /* nonzero: a tenant's programs sleep when they are idle, */
	int sleeps_on_pressure; /* or when others need their memory */
	int waits;              /* nonzero: requests wait for memory */
	int drained; /* nonzero: by glake_drain(); then draining is, too, and the next say more */
	const char *drain_reason; /* "" = none was given */
	uint64_t drained_at_ms;   /* since 1970; 0 = not known */
	uint32_t drained_by;      /* a uid */
	uint32_t n_programs;      /* of n_sessions: those that do not only look */
};

typedef int (*glake_status_fn)(void *user, const struct glake_status *status);
/* One row: glaked and its devices. Errors: request errors; -ENOMEM. */
GLAKE_API int glake_get_status(struct glake_session *session, glake_status_fn row, void *user);

typedef int (*glake_metric_fn)(void *user, const char *name, uint64_t value, const char *help);
/* One row per counter. Errors: request errors. */
GLAKE_API int glake_get_stats(struct glake_session *session, glake_metric_fn row, void *user);

/* How long something took, many times since glaked started. */
struct glake_histogram {
	const char *name; /* "request", "alloc", "load" */
	const char *help;
	uint32_t n_bounds;
	const uint64_t *bounds_ns; /* upper ones, themselves included, ascending */
	const uint64_t *counts;    /* by bound, and one more: what is above the last */
	uint64_t sum_ns;
};

typedef int (*glake_histogram_fn)(void *user, const struct glake_histogram *histogram);
/* One row per histogram. Errors: request errors. */
GLAKE_API int glake_get_histograms(struct glake_session *session, glake_histogram_fn row,
                                   void *user);

/* The memory of a session, and of its process, on one device. */
struct glake_session_device {
	uint32_t device;
	uint64_t reserved_bytes;
	uint64_t shared_bytes;
	uint64_t managed_bytes; /* driver usage, as the program reports it; so the next three */
	uint64_t array_bytes;
	uint64_t graph_bytes;
	uint64_t other_bytes;
	uint64_t process_bytes; /* driver usage without managed memory, by NVML; 0 = not known */
	uint64_t
		promise_bytes; /* that its process was promised, all sessions of it together; 0 = nothing */
	uint64_t left_bytes; /* of that: what the process has not taken */
	/* A part of shared_bytes, each block divided by its mappings: summed over all sessions, the mapped blocks. */
	double part_bytes;
	/*
	 * The two parts of reserved_bytes: what the program can use again at once, as it reports, and the rest, which it uses
	 * (live). A chunk that came or went since its last report counts as used.
	 */
	uint64_t reusable_bytes;
	uint64_t live_bytes;
	int knows_live; /* 0: its library is an earlier one, and these two are 0 */
};

/* Pages of 2 MiB that were to be sealed, or a part of them, and are private. */
struct glake_unsealed {
	const char *why;
	uint64_t bytes;
};

/* Memory in stream order on one device, of a program that stitches; as it reports it. */
struct glake_session_pool {
	uint32_t device;
	uint64_t live_bytes; /* this and the others are those of struct glake_pool_stats */
	uint64_t peak_live_bytes;
	uint64_t reserved_bytes;
	uint64_t peak_reserved_bytes;
	uint64_t n_allocs;
	uint64_t n_stitches;
	uint64_t stitched_bytes;
	uint64_t n_reuses;
	uint64_t n_grows;
	uint64_t n_mapped;
	uint64_t n_unmapped;
	uint64_t n_kept;
	uint64_t kept_bytes;
	uint64_t
		free_bytes; /* of reserved_bytes: no allocation has them. 0 may be an earlier library */
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
	uint64_t
		peak_bytes; /* the highest live_bytes. It and the next two as the program reports */
	uint64_t n_owned;   /* allocations served with memory of glaked */
	uint64_t n_passed;  /* allocations left to the driver because glaked was not there */
	uint32_t n_devices; /* devices where it has memory */
	const struct glake_session_device *devices;
	int detached; /* its connection is lost; its process lives, and keeps what it has */
	uint64_t sealed_bytes; /* of shared_bytes: by glake_seal() and glake_block_publish() */
	uint64_t sealed_common_bytes; /* of sealed_bytes: mapped more than once, by any session */
	uint64_t part_bytes; /* of shared_bytes, each block divided by the number of its mappings */
	uint64_t n_seals;    /* calls of glake_seal(). It and the next as the program reports */
	uint64_t seal_ns;    /* that they took */
	uint64_t held_ns;    /* the process's work was held back, for them and to unseal */
	uint32_t n_unsealed;
	const struct glake_unsealed *unsealed; /* one per cause; of the memory that is live */
	uint32_t n_pools;                      /* devices where it stitches */
	const struct glake_session_pool *pools;
	uint64_t host_bytes; /* private chunks in host memory; no part of reserved_bytes */
	/* Labels that the process gives itself, as program does; never trusted. "" = nothing. */
	const char *name;      /* that it was given: $GLAKE_NAME, glake run --name */
	const char *script;    /* what its interpreter runs: "serve.py", "-m vllm" */
	const char *arguments; /* separated by blanks; "" unless root asks, or the session's user */
	/* When it connected, by the kernel. "" = not to be found out; in no pod; no container. */
	const char *cgroup;       /* path in the unified hierarchy */
	const char *pod_uid;      /* by the cgroup's name, as the kubelet writes it; so the next */
	const char *container_id; /* 64 hexadecimal digits */
	uint64_t n_refused;       /* requests for memory, and for models, that a bound refused */
	/*
	 * What the request of this session that has waited for memory longest waits for: "quota" (room in the tenant's limit) or
	 * "room" (at the full device or host node). "" = none waits.
	 */
	const char *wait_bound;
	uint64_t wait_bytes;
	uint64_t wait_ms; /* so far */
	/* Candidates of a process that seals without being asked, as it reports; all 0 and "" of others. */
	uint64_t filling_bytes; /* may be filled further */
	uint64_t quiet_bytes;   /* watched, before they are sealed */
	uint64_t alone_bytes;   /* sealed */
	uint64_t refused_bytes;
	const char *refused_why; /* all, or the largest of them */
};

typedef int (*glake_session_fn)(void *user, const struct glake_session_row *row);
/* One row per session. Errors: request errors; -ENOMEM. */
GLAKE_API int glake_list_sessions(struct glake_session *session, glake_session_fn row, void *user);

struct glake_tenant_device {
	uint32_t device;
	uint64_t used_bytes;
	uint64_t quota_bytes; /* 0 = none */
	uint64_t peak_bytes;
	/* Requests for memory here that were refused since glaked started: all of them, and by the bound that they met. */
	uint64_t n_refused;
	uint64_t refused_quota;      /* the tenant's bytes here */
	uint64_t refused_promise;    /* what the process was promised */
	uint64_t refused_room;       /* the device, or host node, is full */
	uint64_t refused_tenant_fds; /* the tenant's fds */
	uint64_t refused_fds;        /* glaked's fd budget */
	uint64_t refused_manifests;  /* the tenant's bytes for manifests */
	uint64_t refused_user_share; /* the user's share of these */
	uint64_t refused_reserve;    /* the device is full, but for the reserve for unsealing */
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
	uint64_t manifest_bytes;       /* host memory of glaked, for models in use or pinned */
	uint64_t quota_manifest_bytes; /* 0 = none */
	uint32_t n_hosts;
	const struct glake_tenant_device *hosts; /* host nodes; device is the node */
};

typedef int (*glake_tenant_fn)(void *user, const struct glake_tenant_row *row);
/* One row per tenant. Errors: request errors; -ENOMEM. */
GLAKE_API int glake_list_tenants(struct glake_session *session, glake_tenant_fn row, void *user);

struct glake_model_row {
	uint64_t id;
	const char *name;
	const char *realm;
	const char *
		state; /* "loading", "ready", "replaced" (another model has its key now), "host" (only host memory has it) */
	uint32_t device;
	uint64_t span_bytes;
	uint64_t content_bytes;
	uint64_t unique_bytes; /* of blocks that only this model has */
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint32_t n_open;
	int pinned;
	uint64_t idle_ms;
	const char *reload_reason; /* why each open loads it again; "" = opens reuse it */
	uint64_t part_bytes; /* of its blocks, each divided by the number of its places in models */
	int is_published;    /* by a program: its name is the key */
	uint64_t copied_bytes; /* of span_bytes: of chunks that host memory has a copy of */
};

typedef int (*glake_model_fn)(void *user, const struct glake_model_row *row);
/* One row per model. Errors: request errors. */
GLAKE_API int glake_list_models(struct glake_session *session, glake_model_fn row, void *user);

struct glake_block_row {
	uint64_t id;
	struct glake_digest digest;
	uint32_t device;
	const char *realm;
	uint64_t chunk_bytes;
	uint64_t content_bytes;
	uint32_t n_models;   /* places in models */
	uint32_t n_users;    /* models that are open, and sessions that have the block alone */
	uint32_t n_mappings; /* by sessions, each place of a model counted */
};

typedef int (*glake_block_fn)(void *user, const struct glake_block_row *row);
/* One row per block. Errors: request errors. */
GLAKE_API int glake_list_blocks(struct glake_session *session, glake_block_fn row, void *user);

/* The models that a session has open. */
struct glake_use_row {
	uint64_t session;
	uint32_t n_models;      /* 4096 at most */
	const uint64_t *models; /* ids of glake_model_row; one that is open twice is there twice */
};

typedef int (*glake_use_fn)(void *user, const struct glake_use_row *row);
/* One row per session that has models open. Errors: request errors; GLAKE_E_BAD_REQUEST (an older glaked). */
GLAKE_API int glake_list_uses(struct glake_session *session, glake_use_fn row, void *user);

struct glake_event_row {
	uint64_t id;      /* from 1 on, since glaked started */
	uint64_t time_ms; /* since 1970 */
	const char *
		kind; /* "block_damaged", "copy_damaged", "device_fault", "wake_refused", "limit_too_small", "mover_failed", "memory_refused" */
	const char *realm; /* "" = of none: only admins see it */
	uint64_t session;  /* 0 = of none */
	uint32_t pid;      /* 0 = of none */
	const char *text;
	const char *pod_uid; /* of the process, as in glake_session_row; and so the next */
	const char *container_id;
	/* The last refusal of "memory_refused", with the numbers of its moment; 0 and "" for other events. */
	uint64_t n_refused;
	const char *
		bound; /* "quota", "promise", "room", "reserve", "tenant_fds", "fds", "manifests", "user_share": as glake_tenant_device */
	const char *tenant; /* who would have paid */
	const char *program;
	int is_host;       /* nonzero: of a host node, else of a device; */
	uint32_t location; /* its number */
	uint64_t
		wanted; /* more than is used. Bytes; for "tenant_fds" and "fds", fds. And so the next */
	uint64_t used;
	uint64_t limit;
};

typedef int (*glake_event_fn)(void *user, const struct glake_event_row *row);
/*
 * One row per event that an operator must know, oldest first. glaked keeps the last 512 that it found, the last 512
 * that programs reported, and the last 512 refusals: its counters tell how many were dropped. Errors: request errors.
 */
GLAKE_API int glake_list_events(struct glake_session *session, glake_event_fn row, void *user);
/* glake_list_events() without events up to @after, an id. Errors: request errors. */
GLAKE_API int glake_list_events_after(struct glake_session *session, uint64_t after,
                                      glake_event_fn row, void *user);

/* An allocation that copies from the host have filled, in a program that seals without being asked. */
struct glake_candidate_row {
	uint64_t session;
	glake_ptr address; /* in that program */
	uint64_t bytes;
	uint64_t filled_bytes;   /* of its pages that look like weights */
	const char *state;       /* "filling", "quiet", "sealed", "refused" */
	const char *refused_why; /* "": it is not */
	uint32_t n_unsealed;     /* so often it became private again */
};

typedef int (*glake_candidate_fn)(void *user, const struct glake_candidate_row *row);
/*
 * One row per candidate of the session @id, of the own realm or of any as admin: the largest first, 256 at most. Its program
 * is asked, and answers within ten seconds. @n_out: the number that it has; may be NULL. Errors: request errors; GLAKE_E_NOT_FOUND;
 * GLAKE_E_BAD_REQUEST (the program is not under the shim); GLAKE_E_BUSY (it does not answer, or is being asked already);
 * -ENOTSUP (its glake, or glaked, is older).
 */
GLAKE_API int glake_list_candidates(struct glake_session *session, uint64_t id,
                                    glake_candidate_fn row, void *user, uint64_t *n_out);

/*
 * What a session has sealed that nobody else maps, and others of its realm have at other offsets: it could be shared if it lay as
 * theirs does. Estimated from samples: bytes, of those that were looked at, in which others have an equal part somewhere.
 */
struct glake_layout_row {
	uint64_t session;
	uint32_t pid;
	uint64_t with; /* the other session; 0: all others */
	uint32_t with_pid;
	uint64_t unshared_bytes;
	uint64_t looked_bytes; /* of them */
	uint64_t equal_bytes;  /* of these */
};

typedef int (*glake_layout_fn)(void *user, const struct glake_layout_row *row);
/*
 * With @id 0 one row per session that has sealed anything; else of the session @id one row for each other one that has
 * something equal. Errors: request errors; GLAKE_E_NOT_FOUND (@id); GLAKE_E_BAD_REQUEST (an older glaked).
 */
GLAKE_API int glake_list_layout(struct glake_session *session, uint64_t id, glake_layout_fn row,
                                void *user);

/*
 * A program that lost its context to an illegal access while memory was sealed that nobody had asked to seal. It is not
 * sealed by itself again, and of its user's programs none takes the words that it used last for readers.
 */
struct glake_mistake_row {
	uint64_t id;
	uint32_t uid;
	const char *program;
	const char *script;     /* that its interpreter ran; "": none */
	const char *executable; /* "build-id ..." of its file, or what there was instead */
	uint64_t time_ms;       /* of the last fault, since 1970 */
	uint64_t n_faults;
	uint32_t n_words;    /* that are no readers */
	const char *kernels; /* what was given sealed memory last; "": not known */
};

typedef int (*glake_mistake_fn)(void *user, const struct glake_mistake_row *row);
/* One row per such program of the own user, or of all as admin. Errors: request errors; GLAKE_E_BAD_REQUEST (an older glaked). */
GLAKE_API int glake_list_mistakes(struct glake_session *session, glake_mistake_fn row, void *user);

/*
 * Processes of the program that begin from now on may be sealed by themselves again. @id: of glake_mistake_row; 0: all of
 * the list. Errors: request errors; GLAKE_E_NOT_FOUND; GLAKE_E_BAD_REQUEST (an older glaked).
 */
GLAKE_API int glake_forgive(struct glake_session *session, uint64_t id);

/*
 * Pin or unpin a model of the own realm, or of any as admin. @model is its name, or its id
 * (glake_model_row) in decimal digits: a text of digits alone is always an id. A pinned model is
 * charged to the tenant that pins it. @pin: nonzero pins, 0 unpins.
 * Errors: request errors; GLAKE_E_NOT_FOUND; GLAKE_E_BAD_REQUEST (several models have the name:
 * glake_error() lists their ids). When pinning also GLAKE_E_OVER_QUOTA, GLAKE_E_NO_FDS,
 * GLAKE_E_NO_HOST_MEMORY and GLAKE_E_BUSY (being loaded).
 */
GLAKE_API int glake_pin(struct glake_session *session, const char *model, int pin);

/*
 * Evict a model, named as for glake_pin(). NULL evicts everything that is unused and unpinned, in
 * the own realm, or in all as admin. Either output may be NULL.
 * Errors: request errors; with a model also GLAKE_E_NOT_FOUND, GLAKE_E_BAD_REQUEST (several have
 * the name) and GLAKE_E_BUSY (in use or pinned).
 */
GLAKE_API int glake_evict(struct glake_session *session, const char *model, uint64_t *n_models_out,
                          uint64_t *freed_bytes_out);

struct glake_seal_options {
	size_t size; /* set by the caller */
	int dry_run; /* nonzero: only say how much it would be */
	/* Called during glake_seal_session(), on its thread; may be NULL. */
	glake_progress_fn progress;
	void *progress_user;
};

/* A program's memory after its sealing. Each byte that it has of glaked is in one of these. */
struct glake_seal_report {
	size_t size;              /* set by the caller */
	uint64_t sealed_bytes;    /* in blocks, also from before; of a dry run, what would be */
	uint64_t shared_bytes;    /* of them: the realm had an equal block; of a dry run, 0 */
	uint64_t small_bytes;     /* private: slabs of allocations smaller than 2 MiB */
	uint64_t unfilled_bytes;  /* private: pages that copies from the host have not filled */
	uint64_t rewritten_bytes; /* private: pages that were written to again */
	uint64_t pinned_bytes;    /* private: others may write to them by another way */
	uint64_t failed_bytes;    /* private: they could not be sealed */
	uint64_t took_ns;
	uint64_t held_ns;         /* of that, the program's work was held back, in sum */
	uint64_t longest_held_ns; /* at a time */
	char pinned_why[128];     /* of one of the pinned pages; "" = there is none */
	char failed_why[128];     /* the first error; "" = there was none */
};

/*
 * Ask the program of session @id, which runs under `glake run`, to seal what looks like weights: pages of
 * 2 MiB that copies from the host have filled once. Blocks until it has, or does not answer any more (10
 * seconds). glaked cannot see what kernels write: seal only programs whose weights are loaded, and that do
 * not change them by kernels.
 * @options may be NULL. @report is written on success only.
 * Errors: request errors; -EINVAL (@options or @report, their size); GLAKE_E_NOT_FOUND (no such session, or
 * it has ended); GLAKE_E_BAD_REQUEST (its program is not under glake run); GLAKE_E_BUSY (it is being
 * sealed, captures a stream, or does not answer; or nothing could be sealed, as its work on the GPU does
 * not end); GLAKE_E_NO_PERMISSION (the program must ask itself, or GLAKE_DEDUP=off; glake_error() tells
 * why); GLAKE_E_NO_HOST_MEMORY (of glaked or the program);
 * GLAKE_E_SHUTTING_DOWN.
 */
GLAKE_API int glake_seal_session(struct glake_session *session, uint64_t id,
                                 const struct glake_seal_options *options,
                                 struct glake_seal_report *report);

struct glake_sleep_options {
	size_t size; /* set by the caller */
	int wakes;   /* nonzero: it is to wake */
	/* Called during glake_sleep_session(), on its thread; may be NULL. */
	glake_progress_fn progress;
	void *progress_user;
	/* Called instead of progress while a wake waits for room; called with progress_user. */
	glake_waiting_fn waiting;
};

struct glake_sleep_report {
	int is_asleep;          /* nonzero: it sleeps now */
	uint64_t private_bytes; /* that have left the GPU, or came back */
	uint64_t shared_bytes;  /* the same of blocks: others may still have them */
	uint64_t took_ns;
	uint64_t held_ns; /* of it: until all work of the program had ended */
	uint32_t n_stays;
	const struct glake_stay *stays;
	uint64_t waited_ms; /* of it: the wake's wait for room, and until others had copied */
};

typedef int (*glake_sleep_fn)(void *user, const struct glake_sleep_report *report);
/*
 * Ask the program of session @id, which runs under `glake run`, to sleep, or to wake: see glake_sleep(). Blocks until it does. What
 * it submits next wakes it again. @options may be NULL. @report is called once, on success.
 * Errors: as glake_seal_session(); GLAKE_E_NO_HOST_MEMORY and GLAKE_E_OVER_QUOTA (there is no room for the copies, or the tenant may have
 * no more); GLAKE_E_NO_DEVICE_MEMORY (it has waited for room in vain, and sleeps on); GLAKE_E_MOVER; GLAKE_E_NO_FDS.
 */
GLAKE_API int glake_sleep_session(struct glake_session *session, uint64_t id,
                                  const struct glake_sleep_options *options, glake_sleep_fn report,
                                  void *user);

struct glake_sleeper_row {
	uint64_t session;
	uint32_t pid;
	uint32_t uid;
	const char *program;
	const char *tenant;
	const char *realm;
	const char *state; /* "asleep", "waking" */
	const char *why;   /* "itself", "asked", "idle", "pressure" */
	uint64_t asleep_ms;
	uint64_t private_bytes;
	uint64_t shared_bytes;
	uint64_t stays_bytes;
	uint32_t place; /* in the queue of those who wait to wake, from 1 on; 0 = it does not */
	uint64_t waiting_ms;
	uint64_t n_sleeps; /* with this one */
	uint64_t slept_ns; /* the last sleep took glaked, */
	uint64_t woke_ns;  /* and the last wake, waiting aside; 0 = it has not */
	uint32_t n_stays;
	const struct glake_stay *stays;
	uint64_t woke_waited_ms; /* that wake's wait before, for room and until others had copied */
	uint64_t
		gpu_bytes; /* of shared_bytes: of blocks that are on the GPU, for others or as cache */
	uint32_t n_models;         /* 16 at most */
	const char *const *models; /* names of those that it has open */
	const char *name;          /* as in glake_session_row; so the next */
	const char *script;
};

typedef int (*glake_sleeper_fn)(void *user, const struct glake_sleeper_row *row);
/* One row per session that sleeps. Errors: request errors; GLAKE_E_BAD_REQUEST (an older glaked). */
GLAKE_API int glake_list_sleepers(struct glake_session *session, glake_sleeper_fn row, void *user);

#define GLAKE_DRAIN_REASON_BYTES 200u /* the longest reason */

/*
 * Let no new program in from now on: its glake_connect() is GLAKE_E_DRAINED. Programs that have a session go on as before, and who only
 * looks is let in. It holds for later glakeds of this boot, too, until glake_undrain(). @reason: at most 200 bytes, for
 * those who are turned away, and for lists; NULL: none, or that which was given before. Only for admins.
 * Errors: request errors; GLAKE_E_NO_PERMISSION; GLAKE_E_BUSY (another call of these is under way); GLAKE_E_INTERNAL (glaked cannot keep
 * it: nothing has changed); GLAKE_E_NO_HOST_MEMORY; GLAKE_E_BAD_REQUEST (also: an older glaked; the reason is too long).
 */
GLAKE_API int glake_drain(struct glake_session *session, const char *reason);
/* New programs are let in again. Not being drained is no error. Errors: as glake_drain(). */
GLAKE_API int glake_undrain(struct glake_session *session);

/*
 * Set one limit of a tenant; 0 = no limit. Only for admins. The limit holds until glaked rereads
 * its configuration.
 */
/*
 * Bytes on one device. Errors: as glake_set_max_sessions(); GLAKE_E_BAD_REQUEST (no such device); GLAKE_E_BUSY (it is
 * less than before, and than what one of the tenant's programs needs that sleeps: glake_error() names them).
 */
GLAKE_API int glake_set_quota(struct glake_session *session, const char *tenant, uint32_t device,
                              uint64_t quota_bytes);
/*
 * The same, whoever sleeps: a program that needs more sleeps until the limit is raised.
 * Errors: as glake_set_max_sessions(); GLAKE_E_BAD_REQUEST (no such device).
 */
GLAKE_API int glake_force_quota(struct glake_session *session, const char *tenant, uint32_t device,
                                uint64_t quota_bytes);
/* Bytes in host memory of one NUMA node. Errors: as glake_set_max_sessions(); -ENOTSUP (glaked has no chunks there). */
GLAKE_API int glake_set_host_quota(struct glake_session *session, const char *tenant, uint32_t node,
                                   uint64_t quota_bytes);
/* Errors: request errors; GLAKE_E_NO_PERMISSION; GLAKE_E_NOT_FOUND (no such tenant). */
GLAKE_API int glake_set_max_sessions(struct glake_session *session, const char *tenant,
                                     uint32_t max_sessions);
/* Errors: as glake_set_max_sessions(). */
GLAKE_API int glake_set_manifest_quota(struct glake_session *session, const char *tenant,
                                       uint64_t quota_bytes);

#ifdef __cplusplus
}
#endif
#endif

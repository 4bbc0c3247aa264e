/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to glake-mover: starts it on demand, lets it go when idle, carries jobs to it and their
 * news back. When it dies, every job under way fails with STATUS_MOVER_FAILED and the next job
 * starts a new one: a GPU fault costs the jobs, not glaked. A dead mover that a file system keeps from
 * ending still has the chunks that it was given: their jobs hear of it (on_gone).
 *
 * The only file of glaked that knows the messages of proto/mover.proto.
 *
 * No mover runs until the first job; orders wait in the socket while it starts (mover_process.h).
 * The mover has a table of open files of its own, and no more is sent than it can hold: the fds of a job
 * count until its last news, those of a load's chunks until they are loaded. Of what loads may have, a
 * user gets half of what others leave.
 *
 * When it has been idle for idle_ms the link closes its end, and the mover exits on reading the end of
 * the stream.
 *
 * Owner: the server. A job is embedded in what wants it.
 * Lifetime: a job belongs to the link from mover_*() until on_failed or its last news.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MOVER_LINK_H
#define GLAKE_DAEMON_MOVER_LINK_H

#include <stdbool.h>

#include "daemon/memory/device.h"
#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/store/mover_process.h"
#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "proto/digest.h"

enum job_kind {
	JOB_LOAD,
	JOB_DIGEST,
	JOB_COMPARE,
};

/* What the link keeps of a job of any kind. */
struct mover_job {
	UT_hash_handle hh; /* mover_link.jobs */
	uint64_t id;       /* 0: the link does not know it */
	enum job_kind kind;
	size_t n_fds; /* that it counts for */
	bool is_cancelled;
	struct mover_process *held_by; /* failed, but this dead one still has what it was given */
	/* @error is one line, valid during the call. The link does not know the job any more. */
	void (*on_failed)(struct mover_job *job, enum status status, const char *error);
	/*
	 * If the mover has died and cannot end, on_failed comes with an id that is not 0, since the mover still
	 * has the job's fds. This comes when nothing is left of it.
	 */
	void (*on_gone)(struct mover_job *job);
};

struct load_job;

/*
 * News of a load. The handlers of a plan and of blocks return 0, or < 0 when the mover says what cannot
 * be; it is killed then.
 */
struct load_job_ops {
	int (*on_plan_tensor)(struct load_job *load, const char *name, uint32_t dtype,
	                      const uint64_t *shape, size_t n_dims, uint64_t offset,
	                      uint64_t bytes);
	int (*on_plan_block)(struct load_job *load, uint64_t content_bytes);
	/* @reload_reason: why the files must be loaded at each open; "" = they need not. Valid in the call. */
	int (*on_plan_end)(struct load_job *load, const char *reload_reason);
	int (*on_block_loaded)(struct load_job *load, uint64_t block, const struct digest *digest);
	/* The link does not know the job any more. */
	void (*on_done)(struct load_job *load, uint64_t read_bytes, uint64_t direct_bytes);
};

struct load_job {
	struct mover_job job;
	uid_t uid; /* whose files they are */
	size_t n_files;
	size_t n_chunks; /* reserved, and not loaded */
	const struct load_job_ops *ops;
};

/* The link does not know either any more when its handler is called. */
struct digest_job {
	struct mover_job job;
	void (*on_digested)(struct digest_job *job, const struct digest *digest);
};

struct compare_job {
	struct mover_job job;
	void (*on_compared)(struct compare_job *job, bool equal);
};

struct mover_link {
	uv_loop_t *loop;       /* borrowed */
	struct keeper *keeper; /* borrowed */
	struct stats *stats;   /* borrowed */
	char *path;            /* owned: the program */
	uint64_t idle_ms;      /* 0 = stays */
	uv_timer_t idle_timer;
	struct mover_process *process; /* owned; NULL: none runs */
	struct mover_job *jobs;        /* table by id */
	uint64_t last_job;
	size_t max_fds;
	size_t n_fds; /* of all jobs */
	bool is_closing;
};

/*
 * Starts nothing. Keeps a copy of @path. @max_fds: that the mover may have at a time. Returns 0 or
 * -errno: there is nothing to close then.
 */
int mover_link_init(struct mover_link *link, uv_loop_t *loop, struct keeper *keeper,
                    struct stats *stats, const char *path, uint64_t idle_ms, size_t max_fds);

/*
 * The program of movers wanted from now on; one that is wanted or runs already stays what it is. Takes
 * @path, which was allocated, over.
 */
void mover_link_take_path(struct mover_link *link, char *path);

/*
 * Ends the mover. No jobs may be under way but cancelled ones, which fail; none may be started
 * afterwards. What dead movers still have is let go of when the keeper is closed.
 */
void mover_link_close(struct mover_link *link);

/* The mover's pid, or 0 when none runs. */
int mover_link_pid(const struct mover_link *link);

/*
 * Start a job, of which the caller has set the handlers, and a load's uid. fds stay the caller's. Returns 0,
 * or -errno when it cannot be passed on: then it is not the link's. -EBUSY: the mover has too many fds for now; -EMFILE:
 * so many it will never have. That no mover can be started is told later, by on_failed.
 */
int mover_load(struct mover_link *link, struct load_job *load, const struct device *device,
               const char *const *names, const char *index, const int *fds, size_t n_fds,
               bool may_direct);
int mover_digest(struct mover_link *link, struct digest_job *digest, const struct device *device,
                 int fd, uint64_t chunk_bytes, uint64_t content_bytes);
int mover_compare(struct mover_link *link, struct compare_job *compare, const struct device *device,
                  int fd, int other_fd, uint64_t chunk_bytes);

/*
 * Of @n more chunks, so many may be granted to a load now; they count at once. There is always one for a
 * load that has none.
 */
size_t mover_reserve(struct mover_link *link, struct load_job *load, size_t n);

/* Chunks for blocks @first and on of a load under way, that were reserved. What goes wrong ends in on_failed, later. */
void mover_grant(struct mover_link *link, struct load_job *load, uint64_t first, const int *fds,
                 size_t n_fds);

/*
 * Have a job ended soon. Its news go on, and the last says that the mover has nothing of it any more; a
 * file system that does not answer can put off a load's for ever. Harmless for one that has ended.
 */
void mover_cancel(struct mover_link *link, struct mover_job *job);

/*
 * Loads that were cancelled, and keep a place in the mover until they end: a file system may not let
 * them. *n_own_out: those of @uid.
 */
size_t mover_n_cancelled(const struct mover_link *link, uid_t uid, size_t *n_own_out);

#endif

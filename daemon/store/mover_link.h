/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to glake-mover: starts it on demand, stops it when it is idle, sends jobs and delivers
 * reports. If the mover dies, every running job fails with STATUS_MOVER_FAILED, and the next job
 * starts a new mover. So a GPU fault costs the jobs, not glaked. If a file system keeps a dead
 * mover from ending, the mover still has its chunks; on_gone reports its end.
 *
 * The only file of glaked that knows the messages of proto/mover.proto.
 *
 * No mover runs until the first job; orders wait in the socket while it starts (mover_process.h).
 * The link sends no more fds than the mover's own table of open files can hold. The fds of a job
 * count until its last report, those of a load's chunks until they are loaded. A user has a share of the
 * loads, and of their fds (user.h).
 *
 * After idle_ms without jobs the link closes its end, and the mover exits.
 *
 * Owner: the server. A job is embedded by the caller.
 * Lifetime: a job belongs to the link from mover_*() until on_failed or its last report.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MOVER_LINK_H
#define GLAKE_DAEMON_MOVER_LINK_H

#include <stdbool.h>

#include "daemon/memory/device.h"
#include "daemon/base/events.h"
#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/net/user.h"
#include "daemon/store/mover_process.h"
#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "proto/digest.h"

enum job_kind {
	JOB_LOAD,
	JOB_DIGEST,
	JOB_COMPARE,
	JOB_FORGET,
	JOB_LAYOUT,
};

/* A job of any kind. */
struct mover_job {
	UT_hash_handle hh; /* mover_link.jobs */
	uint64_t id;       /* 0: the link does not know it */
	enum job_kind kind;
	size_t n_fds; /* that the job counts for */
	bool is_cancelled;
	bool is_aside; /* set by the caller: it does not keep an idle mover running */
	struct mover_process
		*held_by; /* the dead process that still has its fds, after it failed */
	/* @error is one line, valid during the call. The link does not know the job any more. */
	void (*on_failed)(struct mover_job *job, enum status status, const char *error);
	/*
	 * If the mover has died and cannot end, it still has the job's fds. Then on_failed comes
	 * with an id that is not 0, and on_gone when nothing is left of the mover.
	 */
	void (*on_gone)(struct mover_job *job);
};

struct load_job;

/*
 * Reports of a load. The handlers of a plan and of blocks return 0, or < 0 if the report is
 * impossible; then the mover is killed.
 */
struct load_job_ops {
	int (*on_plan_tensor)(struct load_job *load, const char *name, uint32_t dtype,
	                      const uint64_t *shape, size_t n_dims, uint64_t offset,
	                      uint64_t bytes);
	int (*on_plan_block)(struct load_job *load, uint64_t content_bytes);
	/* @reload_reason: why each open must load the files; "" = it need not. Valid during the call. */
	int (*on_plan_end)(struct load_job *load, const char *reload_reason);
	int (*on_block_loaded)(struct load_job *load, uint64_t block, const struct digest *digest);
	/* The link does not know the job any more. */
	void (*on_done)(struct load_job *load, uint64_t read_bytes, uint64_t direct_bytes);
};

struct load_job {
	struct mover_job job;
	uid_t uid; /* the user of the files */
	struct user *user;
	struct user_charge place; /* while the mover has it, or a promotion is under way */
	struct user_charge fds;   /* as many as job.n_fds */
	size_t n_files;
	size_t n_chunks; /* reserved, and not loaded */
	const struct load_job_ops *ops;
};

/* When its handler is called, the link has forgotten the job. */
struct digest_job {
	struct mover_job job;
	/* Set before the next. */
	bool is_equal; /* to the second chunk, if there was one */
	bool is_zero;  /* all bytes of the only chunk; not of one that was written */
	void (*on_digested)(struct digest_job *job, const struct digest *digest);
};

struct compare_job {
	struct mover_job job;
	void (*on_compared)(struct compare_job *job, bool equal);
};

struct layout_job {
	struct mover_job job;
	/* Each print once, at most GLAKE_MAX_PRINTS, borrowed. @ns: the time that the GPU copied. */
	void (*on_prints)(struct layout_job *job, const uint64_t *prints, size_t n_prints,
	                  uint64_t varied_bytes, uint64_t ns);
};

struct forget_job {
	struct mover_job job;
	void (*on_forgotten)(struct forget_job *job);
};

/* A place in a large chunk of host memory; with the fd alone, a chunk on the GPU. */
struct mover_host {
	int fd; /* borrowed: of the chunk */
	uint64_t chunk;
	uint64_t chunk_bytes;
	uint64_t offset;
};

struct mover_link {
	uv_loop_t *loop;       /* borrowed */
	struct keeper *keeper; /* borrowed */
	struct stats *stats;   /* borrowed */
	struct events *events; /* borrowed */
	char *path;            /* owned: the program */
	uint64_t idle_ms;      /* 0 = an idle mover stays */
	uv_timer_t idle_timer;
	struct mover_process *process; /* owned; NULL: none runs */
	struct mover_job *jobs;        /* table by id */
	uint64_t last_job;
	uint64_t last_begun_ms; /* when the last job began that is not aside */
	size_t max_fds;
	size_t n_fds; /* of all jobs */
	struct pot loads;
	struct pot load_fds;
	struct pot probes; /* fds of what programs publish: the rest is for what loads compare */
	bool is_closing;
};

/*
 * Starts nothing. Copies @path. The mover may have @max_fds fds at a time. Returns 0, or -errno:
 * there is nothing to close.
 */
int mover_link_init(struct mover_link *link, uv_loop_t *loop, struct keeper *keeper,
                    struct stats *stats, struct events *events, const char *path, uint64_t idle_ms,
                    size_t max_fds);

/*
 * Set the program of movers that are ordered from now on. Takes over @path, which was allocated.
 */
void mover_link_take_path(struct mover_link *link, char *path);

/*
 * Ends the mover. Only cancelled jobs may be running; they fail. None may be started afterwards.
 * Jobs that dead movers hold end when the keeper is closed.
 */
void mover_link_close(struct mover_link *link);

/* The mover's pid, or 0 when none runs. */
int mover_link_pid(const struct mover_link *link);

/* Whether it has jobs. */
bool mover_is_busy(const struct mover_link *link);

/*
 * Start a job. The caller has set its handlers, and the uid of a load; it keeps the fds. Returns 0,
 * or -errno: the job was not sent. -EBUSY: the mover has too many fds for now; -EMFILE: it can
 * never have so many. If no mover can be started, on_failed comes later.
 */
int mover_load(struct mover_link *link, struct load_job *load, const struct device *device,
               const char *const *names, const char *index, const int *fds, size_t n_fds,
               bool may_direct);
int mover_digest(struct mover_link *link, struct digest_job *digest, const struct device *device,
                 int fd, int other_fd, uint64_t chunk_bytes, uint64_t content_bytes);
/* All of the chunk with @other; in host memory that is as for mover_copy(). */
int mover_compare(struct mover_link *link, struct compare_job *compare, const struct device *device,
                  int fd, uint64_t chunk_bytes, const struct mover_host *other);

/*
 * Copy the chunk with @fd to @host, or from there. The digest is of what was written. The mover has the large chunk from
 * then on, until mover_forget().
 */
int mover_copy(struct mover_link *link, struct digest_job *copy, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes, const struct mover_host *host,
               bool to_host);
/* The chunk is to read zero. The digest is of that. */
int mover_zero(struct mover_link *link, struct digest_job *zero, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes);
/* Find the parts of the content that may be elsewhere as well (daemon/mover/layout.h). */
int mover_layout(struct mover_link *link, struct layout_job *layout, const struct device *device,
                 int fd, uint64_t chunk_bytes, uint64_t content_bytes);
/* A mover runs. */
int mover_forget(struct mover_link *link, struct forget_job *forget, uint64_t host_chunk);

/*
 * Reserve up to @n more chunks for a load. Returns how many may be granted now. A load without
 * chunks always gets one.
 */
size_t mover_reserve(struct mover_link *link, struct load_job *load, size_t n);

/* Send reserved chunks for the blocks of a load from @first on. An error ends in on_failed, later. */
void mover_grant(struct mover_link *link, struct load_job *load, uint64_t first, const int *fds,
                 size_t n_fds);

/*
 * Have a job ended soon. Its reports go on; after the last one the mover has nothing of it any
 * more. A file system that does not answer can delay the last report of a load for ever. Harmless
 * for a job that has ended.
 */
void mover_cancel(struct mover_link *link, struct mover_job *job);

/*
 * Whether the user may have one more load in the mover. Cancelled ones count until they end, which a file system may
 * keep them from. *n_own_out: how many it has.
 */
bool mover_may_load(const struct mover_link *link, uid_t uid, size_t *n_own_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover_link.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/closer.h"
#include "daemon/log.h"
#include "proto/cleanup.h"
#include "proto/mover.pb-c.h"

/* The fd on which the mover expects us. */
#define MOVER_FD 3
/* How often to look whether it would inherit files of clients, and how long. */
#define START_STEP_MS 2
#define START_MS 2000
/* How often to look whether it is dying, and how many times before it is given up. */
#define LOOK_MS 1000
#define MAX_DYING_LOOKS 3

/* One run of the program; freed when the process and the connection are both gone. */
struct mover_process {
	uv_process_t process;
	struct conn conn;
	struct mover_link *link; /* NULL: we let it go, its end is no news */
	int their_fd;            /* owned; -1 once the process is started */
	uint64_t since_ms;       /* wanted */
	int n_handles;           /* of process and conn still open */
	int n_dying_looks;
	bool was_killed; /* by us, for what it said */
};

typedef Glake__Mover__Order order_t;
typedef Glake__Mover__Report report_t;

static int send_order(struct mover_link *link, uint64_t job, order_t *order, const int *fds,
                      size_t n_fds)
{
	order->job = job;
	size_t n_bytes = glake__mover__order__get_packed_size(order);
	if (n_bytes > GLAKE_MAX_PACKET_BYTES) {
		return -EMSGSIZE;
	}
	uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	glake__mover__order__pack(order, bytes);
	return conn_send(&link->process->conn, bytes, n_bytes, fds, n_fds);
}

/* ---- the process ----------------------------------------------------------------------------- */

static void put_process(struct mover_process *process)
{
	if (--process->n_handles == 0) {
		free(process);
	}
}

static void on_conn_closed(struct conn *conn)
{
	put_process(container_of(conn, struct mover_process, conn));
}

static void on_process_closed(uv_handle_t *handle)
{
	put_process(container_of(handle, struct mover_process, process));
}

/* The link does not know @job any more. */
static void remove_job(struct mover_link *link, struct mover_job *job)
{
	HASH_DEL(link->jobs, job);
	job->id = 0;
}

static void fail_job(struct mover_link *link, struct mover_job *job, enum status status,
                     const char *error)
{
	remove_job(link, job);
	job->ops->on_failed(job, status, error);
}

/* The table keeps the order of insertion, so the oldest job is its head. */
static void fail_all(struct mover_link *link, const char *error)
{
	/* What a handler starts anew belongs to the next mover. */
	uint64_t last_job = link->last_job;
	while (link->jobs && link->jobs->id <= last_job) {
		fail_job(link, link->jobs, STATUS_MOVER_FAILED, error);
	}
}

/* It is of no more use: what it was doing fails, and the next job starts another. */
static void lose(struct mover_process *process, const char *error)
{
	struct mover_link *link = process->link;
	uv_timer_stop(&link->process_timer);
	process->link = NULL;
	link->process = NULL;
	link->stats->mover_deaths++;
	log_error("%s, %u jobs under way", error, HASH_COUNT(link->jobs));
	fail_all(link, error);
}

static void on_process_exit(uv_process_t *handle, int64_t exit_status, int signal)
{
	struct mover_process *process = container_of(handle, struct mover_process, process);
	uv_close((uv_handle_t *)handle, on_process_closed);
	conn_close(&process->conn, on_conn_closed);
	if (!process->link) {
		return;
	}
	char error[128];
	if (process->was_killed) {
		snprintf(error, sizeof(error), "glake-mover was ended, see the log");
	} else if (signal) {
		snprintf(error, sizeof(error), "glake-mover died: signal %d (%s)", signal,
		         strsignal(signal));
	} else {
		snprintf(error, sizeof(error), "glake-mover ended with status %d",
		         (int)exit_status);
	}
	lose(process, error);
}

/* Its first thread has ended. */
static bool is_zombie(int pid)
{
	char path[64];
	char text[128] = "";
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file) {
		return false;
	}
	bool is_read = fgets(text, sizeof(text), file) != NULL;
	fclose(file);
	/* The name in parentheses may be anything. */
	const char *state = is_read ? strrchr(text, ')') : NULL;
	return state && strncmp(state, ") Z", 3) == 0;
}

/*
 * A process ends with the last of its threads, and only then are we told. A file system can keep one of
 * them in close() for ever: a mover that nobody hears of any more.
 */
static void on_look(uv_timer_t *timer)
{
	struct mover_link *link = container_of(timer, struct mover_link, process_timer);
	struct mover_process *process = link->process;
	bool is_dying = process->conn.is_closing ||
	                is_zombie(uv_process_get_pid(&process->process));
	process->n_dying_looks = is_dying ? process->n_dying_looks + 1 : 0;
	if (process->n_dying_looks == MAX_DYING_LOOKS) {
		conn_close(&process->conn, on_conn_closed);
		/* Whenever it does, init has to bury it: glaked's own end does not wait. */
		uv_close((uv_handle_t *)&process->process, on_process_closed);
		lose(process, "glake-mover died, and does not end");
	}
}

static void on_conn_end(struct conn *conn, enum conn_end end, int error)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	/* Its exit brings the news; make sure that there is one. */
	if (end != CONN_END_EOF) {
		process->was_killed = true;
	}
	conn_pause(conn, true);
	uv_process_kill(&process->process, SIGKILL);
	conn_close(conn, on_conn_closed);
}

static bool is_started(const struct mover_process *process)
{
	return process->their_fd < 0;
}

static void kill_mover(struct mover_process *process)
{
	process->was_killed = true;
	if (is_started(process)) {
		uv_process_kill(&process->process, SIGKILL);
	}
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);

static int spawn(struct mover_link *link, struct mover_process *process, int their_fd)
{
	char *arguments[] = {(char *)"glake-mover", NULL};
	uv_stdio_container_t stdio[] = {
		{.flags = UV_IGNORE},
		{.flags = UV_INHERIT_FD, .data.fd = 2},
		{.flags = UV_INHERIT_FD, .data.fd = 2},
		{.flags = UV_INHERIT_FD, .data.fd = their_fd},
	};
	uv_process_options_t options = {
		.exit_cb = on_process_exit,
		.file = link->path,
		.args = arguments,
		.stdio = stdio,
		.stdio_count = MOVER_FD + 1,
		/* Signals of the terminal are for glaked, which drains while its mover works. */
		.flags = UV_PROCESS_DETACHED,
	};
	return uv_spawn(link->loop, &process->process, &options);
}

/* It never came to life: what was meant for it fails. */
static void give_up(struct mover_link *link, const char *error)
{
	struct mover_process *process = link->process;
	log_error("%s, %u jobs under way", error, HASH_COUNT(link->jobs));
	link->process = NULL;
	process->link = NULL;
	fd_close(&process->their_fd);
	conn_close(&process->conn, on_conn_closed);
	fail_all(link, error);
}

static void on_start(uv_timer_t *timer)
{
	struct mover_link *link = container_of(timer, struct mover_link, process_timer);
	struct mover_process *process = link->process;
	char error[256];
	if (process->was_killed) {
		give_up(link, "glake-mover was ended before it was started, see the log");
		return;
	}
	if (closer_hurry() > 0) {
		if (uv_now(link->loop) - process->since_ms < START_MS) {
			uv_timer_start(timer, on_start, START_STEP_MS, 0);
			return;
		}
		give_up(link, "cannot start glake-mover: a client's file does not close");
		return;
	}
	int r = spawn(link, process, process->their_fd);
	process->n_handles++;
	if (r < 0) {
		uv_close((uv_handle_t *)&process->process, on_process_closed);
		snprintf(error, sizeof(error), "cannot start %s: %s", link->path, uv_strerror(r));
		give_up(link, error);
		return;
	}
	fd_close(&process->their_fd);
	uv_timer_start(timer, on_look, LOOK_MS, LOOK_MS);
	link->stats->mover_starts++;
	log_info("started glake-mover, pid %d", uv_process_get_pid(&process->process));
}

static int start(struct mover_link *link)
{
	int sockets[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0) {
		return -errno;
	}
	cleanup_fd int our_fd = sockets[0];
	cleanup_fd int their_fd = sockets[1];
	struct mover_process *process = calloc(1, sizeof(*process));
	if (!process) {
		return -ENOMEM;
	}
	int r = conn_open(&process->conn, link->loop, our_fd, on_packet, on_conn_end);
	if (r < 0) {
		free(process);
		return r;
	}
	fd_steal(&our_fd);
	process->their_fd = fd_steal(&their_fd);
	process->n_handles = 1;
	process->since_ms = uv_now(link->loop);
	process->link = link;
	link->process = process;
	uv_timer_start(&link->process_timer, on_start, 0, 0);
	return 0;
}

/* It reads the end of the stream and exits by itself. */
static void let_go(struct mover_link *link)
{
	struct mover_process *process = link->process;
	if (!process) {
		return;
	}
	link->process = NULL;
	process->link = NULL;
	uv_timer_stop(&link->process_timer);
	fd_close(&process->their_fd);
	conn_close(&process->conn, on_conn_closed);
}

static void on_idle(uv_timer_t *timer)
{
	struct mover_link *link = container_of(timer, struct mover_link, idle_timer);
	if (!link->jobs) {
		log_info("glake-mover was idle, letting it go");
		let_go(link);
	}
}

static void start_idle_timer(struct mover_link *link)
{
	if (!link->jobs && link->process && link->idle_ms && !link->is_closing) {
		uv_timer_start(&link->idle_timer, on_idle, link->idle_ms, 0);
	}
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int begin(struct mover_link *link, struct mover_job *job, order_t *order, const int *fds,
                 size_t n_fds)
{
	if (!link->process) {
		int r = start(link);
		if (r < 0) {
			return r;
		}
	}
	/* What waits in our own queue would be open here when the mover is started. */
	if (!is_started(link->process) && conn_n_queued(&link->process->conn) > 0) {
		return -EBUSY;
	}
	uv_timer_stop(&link->idle_timer);
	job->id = ++link->last_job;
	HASH_ADD(hh, link->jobs, id, sizeof(job->id), job);
	int r = hash_has(job) ? 0 : -ENOMEM;
	if (r == 0) {
		r = send_order(link, job->id, order, fds, n_fds);
		if (r < 0) {
			HASH_DEL(link->jobs, job);
		}
	}
	if (r < 0) {
		job->id = 0;
		start_idle_timer(link);
	}
	return r;
}

static ProtobufCBinaryData uuid_of(const struct device *device)
{
	return (ProtobufCBinaryData){.len = sizeof(device->uuid), .data = (uint8_t *)device->uuid};
}

int mover_load(struct mover_link *link, struct mover_job *job, const struct device *device,
               const char *const *names, const char *index, const int *fds, size_t n_fds,
               bool may_direct)
{
	Glake__Mover__LoadStart load = GLAKE__MOVER__LOAD_START__INIT;
	order_t order = GLAKE__MOVER__ORDER__INIT;
	load.device_uuid = uuid_of(device);
	load.files = (char **)names;
	load.n_files = index ? n_fds - 1 : n_fds;
	load.index = (char *)(index ? index : "");
	load.may_direct = may_direct;
	order.body_case = GLAKE__MOVER__ORDER__BODY_LOAD_START;
	order.load_start = &load;
	return begin(link, job, &order, fds, n_fds);
}

int mover_digest(struct mover_link *link, struct mover_job *job, const struct device *device,
                 int fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	Glake__Mover__Digest digest = GLAKE__MOVER__DIGEST__INIT;
	order_t order = GLAKE__MOVER__ORDER__INIT;
	digest.device_uuid = uuid_of(device);
	digest.chunk_bytes = chunk_bytes;
	digest.content_bytes = content_bytes;
	order.body_case = GLAKE__MOVER__ORDER__BODY_DIGEST;
	order.digest = &digest;
	return begin(link, job, &order, &fd, 1);
}

int mover_compare(struct mover_link *link, struct mover_job *job, const struct device *device,
                  int fd, int other_fd, uint64_t chunk_bytes)
{
	Glake__Mover__Compare compare = GLAKE__MOVER__COMPARE__INIT;
	order_t order = GLAKE__MOVER__ORDER__INIT;
	compare.device_uuid = uuid_of(device);
	compare.chunk_bytes = chunk_bytes;
	order.body_case = GLAKE__MOVER__ORDER__BODY_COMPARE;
	order.compare = &compare;
	const int fds[] = {fd, other_fd};
	return begin(link, job, &order, fds, 2);
}

void mover_grant(struct mover_link *link, struct mover_job *job, uint64_t first, const int *fds,
                 size_t n_fds)
{
	Glake__Mover__Grant grant = GLAKE__MOVER__GRANT__INIT;
	order_t order = GLAKE__MOVER__ORDER__INIT;
	if (!link->process) {
		/* It died just now; on_failed is on its way. */
		return;
	}
	grant.first = first;
	order.body_case = GLAKE__MOVER__ORDER__BODY_GRANT;
	order.grant = &grant;
	int r = send_order(link, job->id, &order, fds, n_fds);
	if (r < 0) {
		/* A load that waits for chunks it cannot get would wait for ever. */
		log_error("cannot pass chunks to glake-mover: %s", strerror(-r));
		kill_mover(link->process);
	}
}

void mover_cancel(struct mover_link *link, struct mover_job *job)
{
	Glake__Mover__Cancel cancel = GLAKE__MOVER__CANCEL__INIT;
	order_t order = GLAKE__MOVER__ORDER__INIT;
	if (!job->id) {
		return;
	}
	uint64_t id = job->id;
	remove_job(link, job);
	if (link->process) {
		order.body_case = GLAKE__MOVER__ORDER__BODY_CANCEL;
		order.cancel = &cancel;
		send_order(link, id, &order, NULL, 0);
	}
	start_idle_timer(link);
}

/* ---- news ------------------------------------------------------------------------------------ */

static int get_digest(const ProtobufCBinaryData *data, struct digest *digest_out)
{
	if (data->len != DIGEST_BYTES) {
		return -EPROTO;
	}
	*digest_out = digest_from_bytes(data->data);
	return 0;
}

static int plan_tensors(struct mover_job *job, const Glake__Mover__PlanTensors *page)
{
	for (size_t i = 0; i < page->n_tensors; i++) {
		const Glake__Mover__PlanTensor *tensor = page->tensors[i];
		int r = job->ops->on_plan_tensor(job, tensor->name, tensor->dtype, tensor->shape,
		                                 tensor->n_shape, tensor->offset, tensor->bytes);
		if (r < 0) {
			return r;
		}
	}
	return 0;
}

static int plan_blocks(struct mover_job *job, const Glake__Mover__PlanBlocks *page)
{
	for (size_t i = 0; i < page->n_content_bytes; i++) {
		int r = job->ops->on_plan_block(job, page->content_bytes[i]);
		if (r < 0) {
			return r;
		}
	}
	return 0;
}

/* A load's news; -EPROTO for a job that is no load. */
static int deliver_load(struct mover_link *link, struct mover_job *job, const report_t *report)
{
	struct digest digest;
	if (!job->ops->on_plan_tensor) {
		return -EPROTO;
	}
	switch (report->body_case) {
	case GLAKE__MOVER__REPORT__BODY_PLAN_TENSORS:
		return plan_tensors(job, report->plan_tensors);
	case GLAKE__MOVER__REPORT__BODY_PLAN_BLOCKS:
		return plan_blocks(job, report->plan_blocks);
	case GLAKE__MOVER__REPORT__BODY_PLAN_END:
		return job->ops->on_plan_end(job);
	case GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED:
		if (get_digest(&report->block_loaded->digest, &digest) < 0) {
			return -EPROTO;
		}
		return job->ops->on_block_loaded(job, report->block_loaded->block, &digest);
	case GLAKE__MOVER__REPORT__BODY_LOAD_DONE:
		remove_job(link, job);
		job->ops->on_load_done(job, report->load_done->read_bytes,
		                       report->load_done->direct_bytes);
		return 0;
	default:
		return -EPROTO;
	}
}

static int deliver(struct mover_link *link, struct mover_job *job, const report_t *report)
{
	struct digest digest;
	uint32_t status;
	switch (report->body_case) {
	case GLAKE__MOVER__REPORT__BODY_FAILED:
		status = report->failed->status;
		fail_job(link, job,
		         status > STATUS_OK && status < STATUS_COUNT ? (enum status)status
		                                                     : STATUS_INTERNAL,
		         report->failed->error);
		return 0;
	case GLAKE__MOVER__REPORT__BODY_DIGESTED:
		if (!job->ops->on_digested || get_digest(&report->digested->digest, &digest) < 0) {
			return -EPROTO;
		}
		remove_job(link, job);
		job->ops->on_digested(job, &digest);
		return 0;
	case GLAKE__MOVER__REPORT__BODY_COMPARED:
		if (!job->ops->on_compared) {
			return -EPROTO;
		}
		remove_job(link, job);
		job->ops->on_compared(job, report->compared->equal);
		return 0;
	default:
		return deliver_load(link, job, report);
	}
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	struct mover_link *link = process->link;
	if (process->was_killed) {
		/* Nothing more of what it says is believed. */
		return;
	}
	report_t *report = glake__mover__report__unpack(NULL, n_bytes, bytes);
	int r = -EPROTO;
	if (report) {
		struct mover_job *job;
		HASH_FIND(hh, link->jobs, &report->job, sizeof(report->job), job);
		/* News of a cancelled job may still be under way. */
		r = job ? deliver(link, job, report) : 0;
		glake__mover__report__free_unpacked(report, NULL);
	}
	if (r < 0) {
		log_error("glake-mover sent what it must not send: %s", strerror(-r));
		kill_mover(process);
	}
	start_idle_timer(link);
}

int mover_link_pid(const struct mover_link *link)
{
	return link->process && is_started(link->process)
	               ? uv_process_get_pid(&link->process->process)
	               : 0;
}

int mover_link_init(struct mover_link *link, uv_loop_t *loop, struct stats *stats, const char *path,
                    uint64_t idle_ms)
{
	*link = (struct mover_link){.loop = loop, .stats = stats, .path = path, .idle_ms = idle_ms};
	uv_timer_init(loop, &link->process_timer);
	return uv_timer_init(loop, &link->idle_timer);
}

void mover_link_close(struct mover_link *link)
{
	assert(!link->jobs);
	link->is_closing = true;
	let_go(link);
	uv_close((uv_handle_t *)&link->idle_timer, NULL);
	uv_close((uv_handle_t *)&link->process_timer, NULL);
}

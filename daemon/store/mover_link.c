/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/mover_link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/inflight.h"
#include "daemon/base/log.h"
#include "proto/limits.h"
#include "proto/message.h"
#include "proto/mover.pb-c.h"

/* Every load may have this many chunks, whatever others do. */
#define MIN_CHUNKS 8

typedef Glake__Mover__Order order_t;
typedef Glake__Mover__Report report_t;

/* @uid: the user of the files; INFLIGHT_OURS: glaked's own fds. */
static int send_order(struct mover_link *link, uint64_t job, order_t *order, uid_t uid,
                      const int *fds, size_t n_fds)
{
	order->job = job;
	size_t n_bytes = glake__mover__order__get_packed_size(order);
	if (n_bytes > GLAKE_MAX_PACKET_BYTES) {
		return -EMSGSIZE;
	}
	uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	glake__mover__order__pack(order, bytes);
	return mover_process_send(link->process, uid, bytes, n_bytes, fds, n_fds);
}

/* ---- jobs that end --------------------------------------------------------------------------- */

static struct load_job *load_of(struct mover_job *job)
{
	return container_of(job, struct load_job, job);
}

static void count_fds(struct mover_link *link, struct mover_job *job, size_t n_fds)
{
	link->n_fds += n_fds - job->n_fds;
	job->n_fds = n_fds;
	if (job->kind == JOB_LOAD) {
		struct load_job *load = load_of(job);
		user_charge_set(&load->fds, &link->load_fds, load->user, n_fds);
	}
}

/* The mover has nothing of it any more, or is none any more. */
static void give_back(struct mover_link *link, struct mover_job *job)
{
	count_fds(link, job, 0);
	if (job->kind == JOB_LOAD) {
		user_refund_all(&load_of(job)->place);
	}
}

/* The link does not know @job any more. */
static void remove_job(struct mover_link *link, struct mover_job *job)
{
	give_back(link, job);
	HASH_DEL(link->jobs, job);
	job->id = 0;
}

static void fail_job(struct mover_link *link, struct mover_job *job, enum status status,
                     const char *error)
{
	remove_job(link, job);
	job->on_failed(job, status, error);
}

/*
 * The oldest job up to @last_job that @process has; NULL: the running mover, or none. The table
 * keeps the order of insertion.
 */
static struct mover_job *find_job_of(const struct mover_link *link,
                                     const struct mover_process *process, uint64_t last_job)
{
	struct mover_job *job;
	for (job = link->jobs; job && job->id <= last_job; job = job->hh.next) {
		if (job->held_by == process) {
			return job;
		}
	}
	return NULL;
}

/* Jobs that dead movers hold do not count. */
bool mover_is_busy(const struct mover_link *link)
{
	return find_job_of(link, NULL, link->last_job) != NULL;
}

/*
 * @holder: the dead process, if it cannot end and may still have chunks; else NULL. It is no mover
 * any more, so its fds do not count.
 */
static void fail_all(struct mover_link *link, struct mover_process *holder, const char *error)
{
	/* Jobs that a handler starts belong to the next mover. */
	uint64_t last_job = link->last_job;
	struct mover_job *job;
	while ((job = find_job_of(link, NULL, last_job))) {
		if (!holder) {
			fail_job(link, job, STATUS_MOVER_FAILED, error);
			continue;
		}
		give_back(link, job);
		job->held_by = holder;
		job->on_failed(job, STATUS_MOVER_FAILED, error);
	}
}

/* ---- what the mover can hold ------------------------------------------------------------------ */

/* The fds that a load with @n_chunks counts for. */
static size_t load_fds(const struct load_job *load, size_t n_chunks)
{
	return load->n_files + (n_chunks > MIN_CHUNKS ? n_chunks : MIN_CHUNKS);
}

size_t mover_reserve(struct mover_link *link, struct load_job *load, size_t n)
{
	size_t n_chunks = load->n_chunks + n;
	if (n_chunks > MIN_CHUNKS && !pot_has_room(&link->load_fds, load->user,
	                                           load_fds(load, n_chunks) - load->job.n_fds)) {
		n_chunks = load->n_chunks > MIN_CHUNKS ? load->n_chunks : MIN_CHUNKS;
	}
	n = n_chunks - load->n_chunks;
	load->n_chunks = n_chunks;
	count_fds(link, &load->job, load_fds(load, n_chunks));
	return n;
}

/* ---- the process ----------------------------------------------------------------------------- */

static void on_process_end(void *user, struct mover_process *process, const char *error,
                           bool is_gone)
{
	struct mover_link *link = user;
	link->process = NULL;
	const struct event_subject nobody = {.pid = mover_process_pid(process)};
	events_add(link->events, EVENT_MOVER_FAILED, &nobody, "%s, %u jobs under way", error,
	           HASH_COUNT(link->jobs));
	fail_all(link, is_gone ? NULL : process, error);
}

static void on_process_gone(void *user, struct mover_process *process)
{
	struct mover_link *link = user;
	struct mover_job *job;
	while ((job = find_job_of(link, process, link->last_job))) {
		job->held_by = NULL;
		remove_job(link, job);
		job->on_gone(job);
	}
}

/* Called when the mover has nothing to do any more. */
static void let_go(struct mover_link *link)
{
	if (link->process) {
		mover_process_leave(link->process);
		link->process = NULL;
	}
}

static void on_idle(uv_timer_t *timer)
{
	struct mover_link *link = container_of(timer, struct mover_link, idle_timer);
	if (!mover_is_busy(link)) {
		log_info("glake-mover was idle and is stopped");
		let_go(link);
	}
}

static void start_idle_timer(struct mover_link *link)
{
	/* The timer runs already behind a job that was aside. */
	bool is_started = uv_is_active((const uv_handle_t *)&link->idle_timer);
	if (!mover_is_busy(link) && link->process && link->idle_ms && !link->is_closing &&
	    !is_started) {
		uv_timer_start(&link->idle_timer, on_idle, link->idle_ms, 0);
	}
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void on_packet(void *user, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);

static const struct mover_process_ops process_ops = {
	.on_packet = on_packet,
	.on_end = on_process_end,
	.on_gone = on_process_gone,
};

/* The job counts for @n_counted fds; @fds belong to @uid. */
static int begin(struct mover_link *link, struct mover_job *job, size_t n_counted, order_t *order,
                 uid_t uid, const int *fds, size_t n_fds)
{
	if (!link->process) {
		int r = mover_process_new(link->loop, link->keeper, link->path, link->stats,
		                          &process_ops, link, &link->process);
		if (r < 0) {
			return r;
		}
	}
	if (!job->is_aside) {
		uv_timer_stop(&link->idle_timer);
		link->last_begun_ms = uv_now(link->loop);
	}
	job->id = ++link->last_job;
	job->is_cancelled = false;
	HASH_ADD(hh, link->jobs, id, sizeof(job->id), job);
	int r = hash_has(job) ? 0 : -ENOMEM;
	if (r == 0) {
		count_fds(link, job, n_counted);
		r = send_order(link, job->id, order, uid, fds, n_fds);
		if (r < 0) {
			remove_job(link, job);
		}
		r = r == -EAGAIN ? -EBUSY : r;
	}
	if (r < 0) {
		job->id = 0;
		start_idle_timer(link);
	}
	return r;
}

/* An order to a mover (message.h). */
#define ORDER(CASE, Type, member, ...) \
	MESSAGE(order_t, glake__mover__order__descriptor, \
	        .body_case = GLAKE__MOVER__ORDER__BODY_##CASE, \
	        .member = MESSAGE(Glake__Mover__##Type, glake__mover__##member##__descriptor, \
	                          __VA_ARGS__))

static ProtobufCBinaryData uuid_of(const struct device *device)
{
	return (ProtobufCBinaryData){.len = sizeof(device->uuid), .data = (uint8_t *)device->uuid};
}

int mover_load(struct mover_link *link, struct load_job *load, const struct device *device,
               const char *const *names, const char *index, const int *fds, size_t n_fds,
               bool may_direct)
{
	order_t *order = ORDER(LOAD_START, LoadStart, load_start, .device_uuid = uuid_of(device),
	                       .files = (char **)names, .n_files = index ? n_fds - 1 : n_fds,
	                       .index = (char *)index, .may_direct = may_direct, .uid = load->uid);
	load->job.kind = JOB_LOAD;
	load->n_files = n_fds;
	load->n_chunks = 0;
	load->user = user_get(load->uid);
	if (!load->user) {
		return -ENOMEM;
	}
	if (load_fds(load, 0) > link->load_fds.limit) {
		return -EMFILE;
	}
	if (!pot_has_room(&link->load_fds, load->user, load_fds(load, 0)) ||
	    !user_charge(&load->place, &link->loads, load->user, 1)) {
		return -EBUSY;
	}
	int r = begin(link, &load->job, load_fds(load, 0), order, load->uid, fds, n_fds);
	if (r < 0) {
		user_refund_all(&load->place);
	}
	return r;
}

/* Begin a job on chunks; their fds are glaked's own. */
static int begin_probe(struct mover_link *link, struct mover_job *job, order_t *order,
                       const int *fds, size_t n_fds)
{
	if (link->n_fds + n_fds > link->max_fds) {
		return -EBUSY;
	}
	return begin(link, job, n_fds, order, INFLIGHT_OURS, fds, n_fds);
}

int mover_digest(struct mover_link *link, struct digest_job *digest, const struct device *device,
                 int fd, int other_fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	order_t *order = ORDER(DIGEST, Digest, digest, .device_uuid = uuid_of(device),
	                       .chunk_bytes = chunk_bytes, .content_bytes = content_bytes);
	digest->job.kind = JOB_DIGEST;
	const int fds[] = {fd, other_fd};
	return begin_probe(link, &digest->job, order, fds, other_fd < 0 ? 1 : 2);
}

int mover_compare(struct mover_link *link, struct compare_job *compare, const struct device *device,
                  int fd, uint64_t chunk_bytes, const struct mover_host *other)
{
	order_t *order = ORDER(COMPARE, Compare, compare, .device_uuid = uuid_of(device),
	                       .chunk_bytes = chunk_bytes, .host_chunk = other->chunk,
	                       .host_bytes = other->chunk_bytes, .host_offset = other->offset);
	compare->job.kind = JOB_COMPARE;
	const int fds[] = {fd, other->fd};
	return begin_probe(link, &compare->job, order, fds, 2);
}

int mover_copy(struct mover_link *link, struct digest_job *copy, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes, const struct mover_host *host,
               bool to_host)
{
	order_t *order = ORDER(COPY, Copy, copy, .device_uuid = uuid_of(device),
	                       .chunk_bytes = chunk_bytes, .content_bytes = content_bytes,
	                       .to_host = to_host, .host_chunk = host->chunk,
	                       .host_bytes = host->chunk_bytes, .host_offset = host->offset);
	copy->job.kind = JOB_DIGEST;
	const int fds[] = {fd, host->fd};
	return begin_probe(link, &copy->job, order, fds, 2);
}

int mover_zero(struct mover_link *link, struct digest_job *zero, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	order_t *order = ORDER(ZERO, Zero, zero, .device_uuid = uuid_of(device),
	                       .chunk_bytes = chunk_bytes, .content_bytes = content_bytes);
	zero->job.kind = JOB_DIGEST;
	return begin_probe(link, &zero->job, order, &fd, 1);
}

int mover_layout(struct mover_link *link, struct layout_job *layout, const struct device *device,
                 int fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	order_t *order = ORDER(LAYOUT, Layout, layout, .device_uuid = uuid_of(device),
	                       .chunk_bytes = chunk_bytes, .content_bytes = content_bytes);
	layout->job.kind = JOB_LAYOUT;
	return begin_probe(link, &layout->job, order, &fd, 1);
}

int mover_forget(struct mover_link *link, struct forget_job *forget, uint64_t host_chunk)
{
	order_t *order = ORDER(FORGET, Forget, forget, .host_chunk = host_chunk);
	forget->job.kind = JOB_FORGET;
	forget->job.is_aside = true;
	return begin_probe(link, &forget->job, order, NULL, 0);
}

void mover_grant(struct mover_link *link, struct load_job *load, uint64_t first, const int *fds,
                 size_t n_fds)
{
	if (!link->process) {
		/* The mover has just died; on_failed comes soon. */
		return;
	}
	int r = send_order(link, load->job.id, ORDER(GRANT, Grant, grant, .first = first),
	                   INFLIGHT_OURS, fds, n_fds);
	if (r < 0) {
		/* Otherwise the load would wait for its chunks for ever. */
		log_error("cannot pass chunks to glake-mover: %s", strerror(-r));
		mover_process_kill(link->process);
	}
}

static void send_cancel(struct mover_link *link, uint64_t id)
{
	if (link->process) {
		send_order(link, id, ORDER(CANCEL, Cancel, cancel), INFLIGHT_OURS, NULL, 0);
	}
}

void mover_cancel(struct mover_link *link, struct mover_job *job)
{
	if (job->id && !job->is_cancelled) {
		job->is_cancelled = true;
		send_cancel(link, job->id);
	}
}

bool mover_may_load(const struct mover_link *link, uid_t uid, size_t *n_own_out)
{
	const struct user *user = user_get(uid);
	*n_own_out = user ? pot_used_by(&link->loads, user) : 0;
	return !user || pot_has_room(&link->loads, user, 1);
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

static int plan_tensors(struct load_job *load, const Glake__Mover__PlanTensors *page)
{
	for (size_t i = 0; i < page->n_tensors; i++) {
		const Glake__Mover__PlanTensor *tensor = page->tensors[i];
		int r = load->ops->on_plan_tensor(load, tensor->name, tensor->dtype, tensor->shape,
		                                  tensor->n_shape, tensor->offset, tensor->bytes);
		if (r < 0) {
			return r;
		}
	}
	return 0;
}

static int plan_blocks(struct load_job *load, const Glake__Mover__PlanBlocks *page)
{
	for (size_t i = 0; i < page->n_content_bytes; i++) {
		int r = load->ops->on_plan_block(load, page->content_bytes[i]);
		if (r < 0) {
			return r;
		}
	}
	return 0;
}

static int block_loaded(struct mover_link *link, struct load_job *load,
                        const Glake__Mover__BlockLoaded *loaded)
{
	struct digest digest;
	if (get_digest(&loaded->digest, &digest) < 0 || load->n_chunks == 0) {
		return -EPROTO;
	}
	load->n_chunks--;
	count_fds(link, &load->job, load_fds(load, load->n_chunks));
	return load->ops->on_block_loaded(load, loaded->block, &digest);
}

/* All reports but Failed. -EPROTO: no report of a job of that kind. */
static int deliver_load(struct mover_link *link, struct load_job *load, const report_t *report)
{
	switch (report->body_case) {
	case GLAKE__MOVER__REPORT__BODY_PLAN_TENSORS:
		return plan_tensors(load, report->plan_tensors);
	case GLAKE__MOVER__REPORT__BODY_PLAN_BLOCKS:
		return plan_blocks(load, report->plan_blocks);
	case GLAKE__MOVER__REPORT__BODY_PLAN_END:
		return load->ops->on_plan_end(load, report->plan_end->reload_reason);
	case GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED:
		return block_loaded(link, load, report->block_loaded);
	case GLAKE__MOVER__REPORT__BODY_LOAD_DONE:
		remove_job(link, &load->job);
		load->ops->on_done(load, report->load_done->read_bytes,
		                   report->load_done->direct_bytes);
		return 0;
	default:
		return -EPROTO;
	}
}

static int deliver_digest(struct mover_link *link, struct digest_job *job, const report_t *report)
{
	struct digest digest;
	if (report->body_case != GLAKE__MOVER__REPORT__BODY_DIGESTED ||
	    get_digest(&report->digested->digest, &digest) < 0) {
		return -EPROTO;
	}
	remove_job(link, &job->job);
	job->is_equal = report->digested->equal;
	job->is_zero = report->digested->zero;
	job->on_digested(job, &digest);
	return 0;
}

static int deliver_compare(struct mover_link *link, struct compare_job *job, const report_t *report)
{
	if (report->body_case != GLAKE__MOVER__REPORT__BODY_COMPARED) {
		return -EPROTO;
	}
	remove_job(link, &job->job);
	job->on_compared(job, report->compared->equal);
	return 0;
}

static int deliver_forget(struct mover_link *link, struct forget_job *job, const report_t *report)
{
	if (report->body_case != GLAKE__MOVER__REPORT__BODY_FORGOTTEN) {
		return -EPROTO;
	}
	remove_job(link, &job->job);
	job->on_forgotten(job);
	return 0;
}

static int deliver_layout(struct mover_link *link, struct layout_job *job, const report_t *report)
{
	const Glake__Mover__Prints *prints = report->prints;
	if (report->body_case != GLAKE__MOVER__REPORT__BODY_PRINTS ||
	    prints->n_prints > GLAKE_MAX_PRINTS) {
		return -EPROTO;
	}
	for (size_t i = 1; i < prints->n_prints; i++) {
		if (prints->prints[i] <= prints->prints[i - 1]) {
			return -EPROTO;
		}
	}
	remove_job(link, &job->job);
	job->on_prints(job, prints->prints, prints->n_prints, prints->varied_bytes, prints->ns);
	return 0;
}

static int deliver(struct mover_link *link, struct mover_job *job, const report_t *report)
{
	if (report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED) {
		uint32_t status = report->failed->status;
		fail_job(link, job,
		         status > STATUS_OK && status < STATUS_COUNT ? (enum status)status
		                                                     : STATUS_INTERNAL,
		         report->failed->error);
		return 0;
	}
	switch (job->kind) {
	case JOB_LOAD:
		return deliver_load(link, load_of(job), report);
	case JOB_DIGEST:
		return deliver_digest(link, container_of(job, struct digest_job, job), report);
	case JOB_COMPARE:
		return deliver_compare(link, container_of(job, struct compare_job, job), report);
	case JOB_FORGET:
		return deliver_forget(link, container_of(job, struct forget_job, job), report);
	case JOB_LAYOUT:
		return deliver_layout(link, container_of(job, struct layout_job, job), report);
	}
	return -EPROTO;
}

static void on_packet(void *user, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct mover_link *link = user;
	report_t *report = glake__mover__report__unpack(NULL, n_bytes, bytes);
	int r = -EPROTO;
	if (report) {
		struct mover_job *job;
		HASH_FIND(hh, link->jobs, &report->job, sizeof(report->job), job);
		/* A report about an unknown job is ignored. */
		r = job && !job->held_by ? deliver(link, job, report) : 0;
		glake__mover__report__free_unpacked(report, NULL);
	}
	if (r < 0) {
		log_error("glake-mover broke the protocol: %s", strerror(-r));
		mover_process_kill(link->process);
	}
	start_idle_timer(link);
}

int mover_link_pid(const struct mover_link *link)
{
	return link->process ? mover_process_pid(link->process) : 0;
}

int mover_link_init(struct mover_link *link, uv_loop_t *loop, struct keeper *keeper,
                    struct stats *stats, struct events *events, const char *path, uint64_t idle_ms,
                    size_t max_fds)
{
	*link = (struct mover_link){.loop = loop,
	                            .keeper = keeper,
	                            .stats = stats,
	                            .events = events,
	                            .idle_ms = idle_ms,
	                            .max_fds = max_fds,
	                            .loads = {.row = USER_LOADS, .limit = GLAKE_MAX_LOADS},
	                            /* The others are for comparisons, which end by themselves. */
	                            .probes = {.row = USER_PROBES, .limit = max_fds / 8},
	                            .load_fds = {.row = USER_LOAD_FDS, .limit = max_fds / 4 * 3}};
	link->path = strdup(path);
	if (!link->path) {
		return -ENOMEM;
	}
	return uv_timer_init(loop, &link->idle_timer);
}

void mover_link_take_path(struct mover_link *link, char *path)
{
	free(link->path);
	link->path = path;
}

void mover_link_close(struct mover_link *link)
{
	link->is_closing = true;
	let_go(link);
	fail_all(link, NULL, "glaked ends");
	assert(!mover_is_busy(link));
	pot_deinit(&link->loads);
	pot_deinit(&link->load_fds);
	pot_deinit(&link->probes);
	mover_link_take_path(link, NULL);
	uv_close((uv_handle_t *)&link->idle_timer, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/jobs.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/limits.h"
#include "proto/mover.pb-c.h"

static void load_ended(void *user, struct load *load)
{
	struct jobs *jobs = user;
	pthread_mutex_lock(&jobs->lock);
	for (struct load **link = &jobs->loads; *link; link = &(*link)->next) {
		if (*link == load) {
			*link = load->next;
			break;
		}
	}
	jobs->ended[jobs->n_ended++ % JOBS_ENDED] = load->job;
	pthread_mutex_unlock(&jobs->lock);
}

static void load_freed(void *user)
{
	struct jobs *jobs = user;
	pthread_mutex_lock(&jobs->lock);
	jobs->n_loads--;
	pthread_cond_signal(&jobs->freed);
	pthread_mutex_unlock(&jobs->lock);
}

void jobs_init(struct jobs *jobs, const struct cudrv *drv, struct devices *devices,
               struct pump *pump, struct prober *prober, struct refuser *refuser,
               struct budget *budget, struct report *report)
{
	*jobs = (struct jobs){
		.prober = prober,
		.refuser = refuser,
		.host = {.drv = drv,
	                 .devices = devices,
	                 .pump = pump,
	                 .budget = budget,
	                 .report = report,
	                 .ended = load_ended,
	                 .freed = load_freed,
	                 .user = jobs},
	};
	pthread_mutex_init(&jobs->lock, NULL);
	pthread_cond_init(&jobs->freed, NULL);
}

void jobs_deinit(struct jobs *jobs)
{
	struct fault fault;
	fault_set(&fault, FAULT_CANCELLED, "glaked is gone");
	pthread_mutex_lock(&jobs->lock);
	for (struct load *load = jobs->loads; load; load = load->next) {
		load_fail(load, &fault);
	}
	while (jobs->n_loads > 0) {
		pthread_cond_wait(&jobs->freed, &jobs->lock);
	}
	pthread_mutex_unlock(&jobs->lock);
	pthread_cond_destroy(&jobs->freed);
	pthread_mutex_destroy(&jobs->lock);
}

/* Called with the lock held. */
static struct load *find_load(const struct jobs *jobs, uint64_t job)
{
	struct load *load = jobs->loads;
	while (load && load->job != job) {
		load = load->next;
	}
	return load;
}

/* Called with the lock held. */
static bool has_ended(const struct jobs *jobs, uint64_t job)
{
	uint64_t n = jobs->n_ended < JOBS_ENDED ? jobs->n_ended : JOBS_ENDED;
	for (uint64_t i = 0; i < n; i++) {
		if (jobs->ended[i] == job) {
			return true;
		}
	}
	return false;
}

__attribute__((format(printf, 5, 6))) static void refuse(struct jobs *jobs, uint64_t job,
                                                         struct fdlist *fds, enum fault_kind kind,
                                                         const char *format, ...)
{
	struct fault fault;
	char cause[200];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(cause, sizeof(cause), format, arguments);
	va_end(arguments);
	fault_set(&fault, kind, "%s", cause);
	refuser_refuse(jobs->refuser, job, &fault, fds);
}

static void order_load(struct jobs *jobs, uint64_t job, const Glake__Mover__LoadStart *body,
                       struct fdlist *fds)
{
	const struct load_order order = {
		.job = job,
		.device_uuid = body->device_uuid.data,
		.n_uuid_bytes = body->device_uuid.len,
		.names = body->files,
		.n_files = body->n_files,
		.index = body->index[0] ? body->index : NULL,
		.may_direct = body->may_direct,
		.uid = body->uid,
	};
	struct fault fault = {0};
	struct fault twice;
	fault_set(&twice, FAULT_INTERNAL, "a second load was started under its number");
	pthread_mutex_lock(&jobs->lock);
	struct load *load = find_load(jobs, job);
	bool is_taken = false;
	if (load) {
		load_fail(load, &twice);
	} else if (jobs->n_loads == GLAKE_MAX_LOADS) {
		fault_set(&fault, FAULT_BUSY, "%u loads are under way", GLAKE_MAX_LOADS);
	} else if (load_launch(&jobs->host, &order, fds, &load, &fault) == 0) {
		is_taken = true;
		load->next = jobs->loads;
		jobs->loads = load;
		jobs->n_loads++;
	}
	pthread_mutex_unlock(&jobs->lock);
	if (!is_taken) {
		refuser_refuse(jobs->refuser, job, &fault, fds);
	}
}

static void order_grant(struct jobs *jobs, uint64_t job, uint64_t first, struct fdlist *fds)
{
	pthread_mutex_lock(&jobs->lock);
	struct load *load = find_load(jobs, job);
	bool is_late = has_ended(jobs, job);
	if (load) {
		load_grant(load, first, fds);
	}
	pthread_mutex_unlock(&jobs->lock);
	if (!load && !is_late) {
		refuse(jobs, job, fds, FAULT_INTERNAL, "chunks were granted to no load");
	}
}

static void order_cancel(struct jobs *jobs, uint64_t job)
{
	struct fault fault;
	fault_set(&fault, FAULT_CANCELLED, "cancelled");
	pthread_mutex_lock(&jobs->lock);
	struct load *load = find_load(jobs, job);
	if (load) {
		load_fail(load, &fault);
	}
	pthread_mutex_unlock(&jobs->lock);
	if (!load) {
		prober_cancel(jobs->prober, job);
	}
}

static void put_uuid(struct probe *probe, const ProtobufCBinaryData *uuid)
{
	probe->n_uuid_bytes = uuid->len;
	if (uuid->len == sizeof(probe->uuid)) {
		memcpy(probe->uuid, uuid->data, uuid->len);
	}
}

static void submit(struct jobs *jobs, struct probe *probe, struct fdlist *fds, size_t n_fds)
{
	if (fds->n_fds != n_fds) {
		refuse(jobs, probe->job, fds, FAULT_INTERNAL, "%zu chunks were sent, expected %zu",
		       fds->n_fds, n_fds);
		return;
	}
	probe->fds[0] = n_fds > 0 ? fdlist_take(fds, 0) : -1;
	probe->fds[1] = n_fds > 1 ? fdlist_take(fds, 1) : -1;
	prober_submit(jobs->prober, probe);
}

static void order_probe(struct jobs *jobs, const Glake__Mover__Order *order, struct fdlist *fds)
{
	struct probe probe = {.job = order->job, .fds = {-1, -1}};
	if (order->body_case == GLAKE__MOVER__ORDER__BODY_DIGEST) {
		probe.kind = PROBE_DIGEST;
		probe.chunk_bytes = order->digest->chunk_bytes;
		probe.content_bytes = order->digest->content_bytes;
		put_uuid(&probe, &order->digest->device_uuid);
		submit(jobs, &probe, fds, fds->n_fds == 2 ? 2 : 1);
	} else {
		probe.kind = order->compare->host_bytes ? PROBE_COMPARE_HOST : PROBE_COMPARE;
		probe.chunk_bytes = order->compare->chunk_bytes;
		probe.host_chunk = order->compare->host_chunk;
		probe.host_bytes = order->compare->host_bytes;
		probe.host_offset = order->compare->host_offset;
		put_uuid(&probe, &order->compare->device_uuid);
		submit(jobs, &probe, fds, 2);
	}
}

static void order_copy(struct jobs *jobs, uint64_t job, const Glake__Mover__Copy *body,
                       struct fdlist *fds)
{
	struct probe probe = {
		.kind = body->to_host ? PROBE_COPY_OUT : PROBE_COPY_IN,
		.job = job,
		.chunk_bytes = body->chunk_bytes,
		.content_bytes = body->content_bytes,
		.host_chunk = body->host_chunk,
		.host_bytes = body->host_bytes,
		.host_offset = body->host_offset,
	};
	put_uuid(&probe, &body->device_uuid);
	submit(jobs, &probe, fds, 2);
}

/* Orders to zero a chunk, and to look at its layout, have the same members. */
static void order_one(struct jobs *jobs, enum probe_kind kind, uint64_t job, uint64_t chunk_bytes,
                      uint64_t content_bytes, const ProtobufCBinaryData *uuid, struct fdlist *fds)
{
	struct probe probe = {.kind = kind,
	                      .job = job,
	                      .chunk_bytes = chunk_bytes,
	                      .content_bytes = content_bytes};
	put_uuid(&probe, uuid);
	submit(jobs, &probe, fds, 1);
}

static void order_forget(struct jobs *jobs, uint64_t job, uint64_t host_chunk, struct fdlist *fds)
{
	struct probe probe = {.kind = PROBE_FORGET, .job = job, .host_chunk = host_chunk};
	submit(jobs, &probe, fds, 0);
}

/* Fail the load, or refuse the order, since not all of its fds had room here. */
static void order_cut(struct jobs *jobs, uint64_t job, struct fdlist *fds)
{
	struct fault fault;
	fault_set(&fault, FAULT_NO_FDS, "glake-mover has as many files open as it may");
	pthread_mutex_lock(&jobs->lock);
	struct load *load = find_load(jobs, job);
	bool is_late = has_ended(jobs, job);
	if (load) {
		load_fail(load, &fault);
	}
	pthread_mutex_unlock(&jobs->lock);
	if (!load && !is_late) {
		refuser_refuse(jobs->refuser, job, &fault, fds);
	}
}

static void take_order(struct jobs *jobs, const Glake__Mover__Order *order, struct fdlist *fds)
{
	switch (order->body_case) {
	case GLAKE__MOVER__ORDER__BODY_LOAD_START:
		order_load(jobs, order->job, order->load_start, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_GRANT:
		order_grant(jobs, order->job, order->grant->first, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_CANCEL:
		order_cancel(jobs, order->job);
		break;
	case GLAKE__MOVER__ORDER__BODY_DIGEST:
	case GLAKE__MOVER__ORDER__BODY_COMPARE:
		order_probe(jobs, order, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_COPY:
		order_copy(jobs, order->job, order->copy, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_ZERO:
		order_one(jobs, PROBE_ZERO, order->job, order->zero->chunk_bytes,
		          order->zero->content_bytes, &order->zero->device_uuid, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_LAYOUT:
		order_one(jobs, PROBE_LAYOUT, order->job, order->layout->chunk_bytes,
		          order->layout->content_bytes, &order->layout->device_uuid, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY_FORGET:
		order_forget(jobs, order->job, order->forget->host_chunk, fds);
		break;
	case GLAKE__MOVER__ORDER__BODY__NOT_SET:
	default:
		refuse(jobs, order->job, fds, FAULT_INTERNAL,
		       "a request that this mover does not know");
		break;
	}
}

int jobs_order(struct jobs *jobs, const uint8_t *packet, size_t n_bytes, struct fdlist *fds)
{
	Glake__Mover__Order *order = glake__mover__order__unpack(NULL, n_bytes, packet);
	if (!order) {
		return JOBS_E_MALFORMED;
	}
	if (fds->is_cut) {
		order_cut(jobs, order->job, fds);
	} else {
		take_order(jobs, order, fds);
	}
	glake__mover__order__free_unpacked(order, NULL);
	/* Only chunks are left. */
	fdlist_deinit(fds);
	return 0;
}

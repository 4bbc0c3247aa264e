/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake_admin.h: requests whose answers are rows for a callback. Rows point into the answer, so
 * nothing is copied, and no lock is held while a callback runs.
 */
#include "libclient/glake_admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/admin/pod.h"
#include "libclient/link/why.h"
#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/session.h"
#include "libclient/link/sized.h"

#define TEXT(string) ((string) ? (string) : "")

/* ---- one request, one answer ------------------------------------------------------------------ */

/* The caller's function that gets the rows of an answer. */
struct reader {
	union {
		glake_status_fn status;
		glake_metric_fn metric;
		glake_histogram_fn histogram;
		glake_session_fn session;
		glake_tenant_fn tenant;
		glake_model_fn model;
		glake_block_fn block;
		glake_event_fn event;
		glake_use_fn use;
		glake_sleeper_fn sleeper;
		glake_mistake_fn mistake;
	} row;
	void *user;
};

/* Returns what @show returns of the answer, or an error. NULL: it says no more than that it was done. */
static int ask(struct glake_session *session, Glake__Wire__Request *request,
               Glake__Wire__Answer__BodyCase kind,
               int (*show)(const Glake__Wire__Answer *answer, const struct reader *reader),
               const struct reader *reader)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__call call;
	r = glake__call(&session->link, &call, request, kind, NULL, 0);
	if (r == 0) {
		r = show ? show(call.answer, reader) : 0;
		glake__call_end(&session->link, &call);
	}
	return glake__leave(session, r);
}

static void take_device(struct glake_device_status *to, const Glake__Wire__DeviceStatus *from)
{
	*to = (struct glake_device_status){
		.index = from->index,
		.name = TEXT(from->name),
		.total_bytes = from->total_bytes,
		.physical_bytes = from->physical_bytes,
		.private_bytes = from->private_bytes,
		.block_bytes = from->block_bytes,
		.used_block_bytes = from->used_block_bytes,
		.pool_bytes = from->pool_bytes,
		.logical_bytes = from->logical_bytes,
		.logical_block_bytes = from->logical_block_bytes,
		.free_bytes = from->free_bytes,
		.context_bytes = from->context_bytes,
		.managed_bytes = from->managed_bytes,
		.array_bytes = from->array_bytes,
		.graph_bytes = from->graph_bytes,
		.other_bytes = from->other_bytes,
		.mover_bytes = from->mover_bytes,
		.foreign_bytes = from->foreign_bytes,
		.unaccounted_bytes = from->unaccounted_bytes,
		.n_foreign = from->n_foreign,
		.fabric = TEXT(from->fabric),
		.rdma = from->rdma,
		.kept_bytes = from->kept_bytes,
		.saved_alone_bytes = from->saved_alone_bytes,
		.unsealing_bytes = from->unsealing_bytes,
		.unsealing_wanted_bytes = from->unsealing_wanted_bytes,
	};
	if (from->uuid.len == sizeof(to->uuid)) {
		memcpy(to->uuid, from->uuid.data, sizeof(to->uuid));
	}
}

static void take_host(struct glake_host_status *to, const Glake__Wire__HostStatus *from)
{
	*to = (struct glake_host_status){
		.node = from->node,
		.total_bytes = from->total_bytes,
		.limit_bytes = from->limit_bytes,
		.physical_bytes = from->physical_bytes,
		.private_bytes = from->private_bytes,
		.copy_bytes = from->copy_bytes,
		.used_copy_bytes = from->used_copy_bytes,
		.sleep_copy_bytes = from->sleep_copy_bytes,
		.model_copy_bytes = from->model_copy_bytes,
		.cached_copy_bytes = from->cached_copy_bytes,
		.slept_bytes = from->slept_bytes,
		.ready_bytes = from->ready_bytes,
	};
}

static int show_status(const Glake__Wire__Answer *answer, const struct reader *reader)
{
	const Glake__Wire__StatusAnswer *from = answer->status_get;
	cleanup_free struct glake_device_status *devices = calloc(from->n_devices + 1,
	                                                          sizeof(*devices));
	cleanup_free struct glake_host_status *hosts = calloc(from->n_hosts + 1, sizeof(*hosts));
	if (!devices || !hosts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < from->n_hosts; i++) {
		take_host(&hosts[i], from->hosts[i]);
	}
	for (size_t i = 0; i < from->n_devices; i++) {
		take_device(&devices[i], from->devices[i]);
	}
	struct glake_status status = {
		.version = TEXT(from->version),
		.driver = TEXT(from->driver),
		.config = TEXT(from->config),
		.mover = TEXT(from->mover),
		.pid = from->pid,
		.uptime_ms = from->uptime_ms,
		.n_sessions = from->n_sessions,
		.n_models = from->n_models,
		.n_blocks = from->n_blocks,
		.fds_used = from->fds_used,
		.fds_budget = from->fds_budget,
		.draining = from->draining,
		.n_devices = (uint32_t)from->n_devices,
		.devices = devices,
		.kept_fds = from->kept_fds,
		.max_kept_fds = from->max_kept_fds,
		.unkept_blocks = from->unkept_blocks,
		.unparked_bytes = from->unparked_bytes,
		.unkept_chunks = from->unkept_chunks,
		.n_hosts = (uint32_t)from->n_hosts,
		.hosts = hosts,
		.hosts_lacking = TEXT(from->hosts_lacking),
		.mover_idle_ms = from->mover_idle_ms,
		.sleeps_idle = from->sleeps_idle,
		.sleeps_on_pressure = from->sleeps_on_pressure,
		.waits = from->waits,
		.drained = from->drained,
		.drain_reason = TEXT(from->drain_reason),
		.drained_at_ms = from->drained_at_ms,
		.drained_by = from->drained_by,
		.n_programs = from->n_programs,
	};
	return reader->row.status(reader->user, &status);
}

int glake_get_status(struct glake_session *session, glake_status_fn row, void *user)
{
	const struct reader reader = {.row.status = row, .user = user};
	return ask(session, REQUEST(STATUS_GET, StatusGet, status_get),
	           GLAKE__WIRE__ANSWER__BODY_STATUS_GET, show_status, &reader);
}

static int show_metrics(const Glake__Wire__Answer *answer, const struct reader *reader)
{
	const Glake__Wire__StatsAnswer *stats = answer->stats_get;
	int r = 0;
	for (size_t i = 0; r == 0 && i < stats->n_metrics; i++) {
		const Glake__Wire__Metric *metric = stats->metrics[i];
		r = reader->row.metric(reader->user, TEXT(metric->name), metric->value,
		                       TEXT(metric->help));
	}
	return r;
}

int glake_get_stats(struct glake_session *session, glake_metric_fn row, void *user)
{
	const struct reader reader = {.row.metric = row, .user = user};
	return ask(session, REQUEST(STATS_GET, StatsGet, stats_get),
	           GLAKE__WIRE__ANSWER__BODY_STATS_GET, show_metrics, &reader);
}

static int show_histograms(const Glake__Wire__Answer *answer, const struct reader *reader)
{
	const Glake__Wire__StatsAnswer *stats = answer->stats_get;
	int r = 0;
	for (size_t i = 0; r == 0 && i < stats->n_histograms; i++) {
		const Glake__Wire__Histogram *from = stats->histograms[i];
		if (from->n_counts != from->n_bounds_ns + 1) {
			return glake__fail(GLAKE_E_PROTOCOL,
			                   "a histogram has no count for each bound");
		}
		const struct glake_histogram histogram = {
			.name = TEXT(from->name),
			.help = TEXT(from->help),
			.n_bounds = (uint32_t)from->n_bounds_ns,
			.bounds_ns = from->bounds_ns,
			.counts = from->counts,
			.sum_ns = from->sum_ns,
		};
		r = reader->row.histogram(reader->user, &histogram);
	}
	return r;
}

int glake_get_histograms(struct glake_session *session, glake_histogram_fn row, void *user)
{
	const struct reader reader = {.row.histogram = row, .user = user};
	return ask(session, REQUEST(STATS_GET, StatsGet, stats_get),
	           GLAKE__WIRE__ANSWER__BODY_STATS_GET, show_histograms, &reader);
}

/* ---- paged lists ------------------------------------------------------------------------------ */

/* One list: how to ask for the page behind @after, and how to show one. */
struct list {
	Glake__Wire__Answer__BodyCase kind;
	void (*ask)(Glake__Wire__Request *request, void *body, uint64_t after);
	/* Returns what the callback returned; *next_out: the next page's cursor. */
	int (*show)(const Glake__Wire__Answer *answer, const struct reader *reader,
	            uint64_t *next_out);
	struct reader reader;
	uint64_t after; /* begin behind this row */
};

union list_body {
	Glake__Wire__SessionList sessions;
	Glake__Wire__TenantList tenants;
	Glake__Wire__ModelList models;
	Glake__Wire__BlockList blocks;
	Glake__Wire__EventList events;
	Glake__Wire__UseList uses;
	Glake__Wire__SleeperList sleepers;
	Glake__Wire__MistakeList mistakes;
};

/* The list of @name: it is asked for and shown by ask_@names() and show_@names(). */
#define LIST(NAME, name, row_, user_) \
	{ \
		.kind = GLAKE__WIRE__ANSWER__BODY_##NAME##_LIST, .ask = ask_##name##s, \
		.show = show_##name##s, .reader.row.name = (row_), .reader.user = (user_) \
	}

/* Defines those two, behind show_@name(), which shows one row; and glake_list_@names(). */
#define PAGES(Name, NAME, name) \
	static void ask_##name##s(Glake__Wire__Request *request, void *body, uint64_t after) \
	{ \
		Glake__Wire__##Name##List *list = body; \
		glake__wire__##name##_list__init(list); \
		list->after = after; \
		request->body_case = GLAKE__WIRE__REQUEST__BODY_##NAME##_LIST; \
		request->name##_list = list; \
	} \
	static int show_##name##s(const Glake__Wire__Answer *answer, const struct reader *reader, \
	                          uint64_t *next_out) \
	{ \
		const Glake__Wire__##Name##ListAnswer *page = answer->name##_list; \
		int r = 0; \
		for (size_t i = 0; r == 0 && i < page->n_##name##s; i++) { \
			r = show_##name(page->name##s[i], reader); \
		} \
		*next_out = page->next; \
		return r; \
	} \
	int glake_list_##name##s(struct glake_session *session, glake_##name##_fn row, void *user) \
	{ \
		const struct list list = LIST(NAME, name, row, user); \
		return walk(session, &list); \
	}

static int walk_pages(struct glake_session *session, const struct list *list)
{
	int r = 0;
	uint64_t after = list->after;
	do {
		union list_body body;
		Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
		list->ask(&request, &body, after);
		struct glake__call call;
		r = glake__call(&session->link, &call, &request, list->kind, NULL, 0);
		if (r < 0) {
			return r;
		}
		uint64_t next = 0;
		r = list->show(call.answer, &list->reader, &next);
		glake__call_end(&session->link, &call);
		if (r == 0 && next != 0 && next <= after) {
			return glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
			                        "the daemon's list does not come to an end");
		}
		after = next;
	} while (r == 0 && after != 0);
	return r;
}

static int walk(struct glake_session *session, const struct list *list)
{
	int r = glake__session_check(session);
	return r < 0 ? r : glake__leave(session, walk_pages(session, list));
}

static const char *unsealed_text(uint32_t why)
{
	static const char *const texts[] = {
		[GLAKE__UNSEALED_EDGE] = "only a part of the page is to be sealed",
		[GLAKE__UNSEALED_FAILED] = "sealing failed",
		[GLAKE__UNSEALED_WRITTEN] = "written to by the driver's API",
		[GLAKE__UNSEALED_ASKED] = "unsealed by the program",
		[GLAKE__UNSEALED_NAMED] = "handed out to another process or device",
	};
	enum glake__pin pin = (enum glake__pin)(why - GLAKE__UNSEALED_NAMED);
	return why <= GLAKE__UNSEALED_NAMED      ? texts[why]
	       : why == GLAKE__UNSEALED_LAUNCHED ? "something was launched that might write to it"
	       : why < GLAKE__UNSEALED_LAUNCHED  ? glake__pin_text(pin)
	                                         : "for a reason of a later version";
}

static void take_pool(struct glake_session_pool *to, const Glake__Wire__PoolReport *from)
{
	*to = (struct glake_session_pool){
		.device = from->device,
		.live_bytes = from->live_bytes,
		.peak_live_bytes = from->peak_live_bytes,
		.reserved_bytes = from->reserved_bytes,
		.peak_reserved_bytes = from->peak_reserved_bytes,
		.n_allocs = from->n_allocs,
		.n_stitches = from->n_stitches,
		.stitched_bytes = from->stitched_bytes,
		.n_reuses = from->n_reuses,
		.n_grows = from->n_grows,
		.n_mapped = from->n_mapped,
		.n_unmapped = from->n_unmapped,
		.n_kept = from->n_kept,
		.kept_bytes = from->kept_bytes,
		.free_bytes = from->free_bytes,
	};
}

static int show_session(const Glake__Wire__SessionInfo *from, const struct reader *reader)
{
	cleanup_free struct glake_session_device *devices = calloc(from->n_devices + 1,
	                                                           sizeof(*devices));
	cleanup_free struct glake_unsealed *unsealed = calloc(from->n_unsealed + 1,
	                                                      sizeof(*unsealed));
	cleanup_free struct glake_session_pool *pools = calloc(from->n_pools + 1, sizeof(*pools));
	if (!devices || !unsealed || !pools) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < from->n_devices; i++) {
		devices[i] = (struct glake_session_device){
			.device = from->devices[i]->device,
			.reserved_bytes = from->devices[i]->reserved_bytes,
			.shared_bytes = from->devices[i]->shared_bytes,
			.managed_bytes = from->devices[i]->managed_bytes,
			.array_bytes = from->devices[i]->array_bytes,
			.graph_bytes = from->devices[i]->graph_bytes,
			.other_bytes = from->devices[i]->other_bytes,
			.process_bytes = from->devices[i]->process_bytes,
			.promise_bytes = from->devices[i]->promise_bytes,
			.left_bytes = from->devices[i]->left_bytes,
			.part_bytes = from->devices[i]->part_bytes,
			.reusable_bytes = from->devices[i]->reusable_bytes,
			.live_bytes = from->devices[i]->live_bytes,
			.knows_live = from->devices[i]->knows_live,
		};
	}
	for (size_t i = 0; i < from->n_pools; i++) {
		take_pool(&pools[i], from->pools[i]);
	}
	for (size_t i = 0; i < from->n_unsealed; i++) {
		unsealed[i] = (struct glake_unsealed){
			.why = unsealed_text((uint32_t)from->unsealed[i]->why),
			.bytes = from->unsealed[i]->bytes,
		};
	}
	struct glake__pod pod;
	glake__pod_of_cgroup(TEXT(from->cgroup), &pod);
	struct glake_session_row row = {
		.session = from->session,
		.pid = from->pid,
		.uid = from->uid,
		.program = TEXT(from->program),
		.tenant = TEXT(from->tenant),
		.realm = TEXT(from->realm),
		.reserved_bytes = from->reserved_bytes,
		.live_bytes = from->live_bytes,
		.warm_bytes = from->warm_bytes,
		.shared_bytes = from->shared_bytes,
		.n_chunks = from->n_chunks,
		.n_models = from->n_models,
		.age_ms = from->age_ms,
		.n_requests = from->n_requests,
		.peak_bytes = from->peak_bytes,
		.n_owned = from->n_owned,
		.n_passed = from->n_passed,
		.n_devices = (uint32_t)from->n_devices,
		.devices = devices,
		.detached = from->detached,
		.sealed_bytes = from->sealed_bytes,
		.sealed_common_bytes = from->sealed_common_bytes,
		.part_bytes = from->part_bytes,
		.n_seals = from->n_seals,
		.seal_ns = from->seal_ns,
		.held_ns = from->held_ns,
		.n_unsealed = (uint32_t)from->n_unsealed,
		.unsealed = unsealed,
		.n_pools = (uint32_t)from->n_pools,
		.pools = pools,
		.host_bytes = from->host_bytes,
		.name = TEXT(from->name),
		.script = TEXT(from->script),
		.arguments = TEXT(from->arguments),
		.cgroup = TEXT(from->cgroup),
		.pod_uid = pod.uid,
		.container_id = pod.container,
		.n_refused = from->n_refused,
		.wait_bound = TEXT(from->wait_bound),
		.wait_bytes = from->wait_bytes,
		.wait_ms = from->wait_ms,
		.refused_why = "",
	};
	if (from->alone) {
		row.filling_bytes = from->alone->filling_bytes;
		row.quiet_bytes = from->alone->quiet_bytes;
		row.alone_bytes = from->alone->sealed_bytes;
		row.refused_bytes = from->alone->refused_bytes;
		row.refused_why = TEXT(from->alone->why);
	}
	return reader->row.session(reader->user, &row);
}

PAGES(Session, SESSION, session)

static void take_refused(const Glake__Wire__Refused *from, struct glake_tenant_device *to)
{
	const struct {
		const char *bound;
		uint64_t *n;
	} places[] = {
		{"quota", &to->refused_quota},
		{"promise", &to->refused_promise},
		{"room", &to->refused_room},
		{"tenant_fds", &to->refused_tenant_fds},
		{"fds", &to->refused_fds},
		{"manifests", &to->refused_manifests},
		{"user_share", &to->refused_user_share},
		{"reserve", &to->refused_reserve},
	};
	to->n_refused += from->n;
	for (size_t i = 0; i < n_elements(places); i++) {
		if (strcmp(TEXT(from->bound), places[i].bound) == 0) {
			*places[i].n += from->n;
		}
	}
}

/* For the caller to free; NULL: out of memory. */
static struct glake_tenant_device *take_tenant_devices(Glake__Wire__TenantDevice *const *from,
                                                       size_t n)
{
	struct glake_tenant_device *to = calloc(n + 1, sizeof(*to));
	for (size_t i = 0; to && i < n; i++) {
		to[i] = (struct glake_tenant_device){
			.device = from[i]->device,
			.used_bytes = from[i]->used_bytes,
			.quota_bytes = from[i]->quota_bytes,
			.peak_bytes = from[i]->peak_bytes,
		};
		for (size_t k = 0; k < from[i]->n_refused; k++) {
			take_refused(from[i]->refused[k], &to[i]);
		}
	}
	return to;
}

static int show_tenant(const Glake__Wire__TenantInfo *from, const struct reader *reader)
{
	cleanup_free struct glake_tenant_device *devices = take_tenant_devices(from->devices,
	                                                                       from->n_devices);
	cleanup_free struct glake_tenant_device *hosts = take_tenant_devices(from->hosts,
	                                                                     from->n_hosts);
	if (!devices || !hosts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	struct glake_tenant_row row = {
		.name = TEXT(from->name),
		.n_sessions = from->n_sessions,
		.max_sessions = from->max_sessions,
		.n_fds = from->n_fds,
		.max_fds = from->max_fds,
		.manifest_bytes = from->manifest_bytes,
		.quota_manifest_bytes = from->quota_manifest_bytes,
		.n_hosts = (uint32_t)from->n_hosts,
		.hosts = hosts,
		.priority = from->priority,
		.n_devices = (uint32_t)from->n_devices,
		.devices = devices,
	};
	return reader->row.tenant(reader->user, &row);
}

PAGES(Tenant, TENANT, tenant)

static int show_model(const Glake__Wire__ModelInfo *from, const struct reader *reader)
{
	struct glake_model_row row = {
		.id = from->id,
		.name = TEXT(from->name),
		.realm = TEXT(from->realm),
		.state = TEXT(from->state),
		.device = from->device,
		.span_bytes = from->span_bytes,
		.content_bytes = from->content_bytes,
		.unique_bytes = from->unique_bytes,
		.n_tensors = from->n_tensors,
		.n_blocks = from->n_blocks,
		.n_open = from->n_open,
		.pinned = from->pinned,
		.idle_ms = from->idle_ms,
		.reload_reason = TEXT(from->reload_reason),
		.part_bytes = from->part_bytes,
		.is_published = from->is_published,
		.copied_bytes = from->copied_bytes,
	};
	return reader->row.model(reader->user, &row);
}
PAGES(Model, MODEL, model)

static int show_block(const Glake__Wire__BlockInfo *from, const struct reader *reader)
{
	struct glake_block_row row = {
		.id = from->id,
		.device = from->device,
		.realm = TEXT(from->realm),
		.chunk_bytes = from->chunk_bytes,
		.content_bytes = from->content_bytes,
		.n_models = from->n_models,
		.n_users = from->n_users,
		.n_mappings = from->n_mappings,
	};
	if (from->digest.len == sizeof(row.digest.bytes)) {
		memcpy(row.digest.bytes, from->digest.data, sizeof(row.digest.bytes));
	}
	return reader->row.block(reader->user, &row);
}
PAGES(Block, BLOCK, block)

static int show_event(const Glake__Wire__EventInfo *from, const struct reader *reader)
{
	struct glake__pod pod;
	glake__pod_of_cgroup(TEXT(from->cgroup), &pod);
	struct glake_event_row row = {
		.id = from->id,
		.time_ms = from->time_ms,
		.kind = TEXT(from->kind),
		.realm = TEXT(from->realm),
		.session = from->session,
		.pid = from->pid,
		.text = TEXT(from->text),
		.pod_uid = pod.uid,
		.container_id = pod.container,
		.n_refused = from->n_refused,
		.bound = TEXT(from->bound),
		.tenant = TEXT(from->tenant),
		.program = TEXT(from->program),
		.is_host = from->at == GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST,
		.location = from->number,
		.wanted = from->wanted,
		.used = from->used,
		.limit = from->limit,
	};
	return reader->row.event(reader->user, &row);
}
PAGES(Event, EVENT, event)

int glake_list_events_after(struct glake_session *session, uint64_t after, glake_event_fn row,
                            void *user)
{
	struct list list = LIST(EVENT, event, row, user);
	list.after = after;
	return walk(session, &list);
}

static int show_use(const Glake__Wire__Use *from, const struct reader *reader)
{
	const struct glake_use_row row = {
		.session = from->session,
		.n_models = (uint32_t)from->n_models,
		.models = from->models,
	};
	return reader->row.use(reader->user, &row);
}
PAGES(Use, USE, use)

static int show_mistake(const Glake__Wire__MistakeInfo *from, const struct reader *reader)
{
	const struct glake_mistake_row row = {
		.id = from->id,
		.uid = from->uid,
		.program = TEXT(from->program),
		.script = TEXT(from->script),
		.executable = TEXT(from->executable),
		.time_ms = from->time_ms,
		.n_faults = from->n_faults,
		.n_words = from->n_words,
		.kernels = TEXT(from->kernels),
	};
	return reader->row.mistake(reader->user, &row);
}
PAGES(Mistake, MISTAKE, mistake)

/* ---- layout ----------------------------------------------------------------------------------- */

struct layout_walk {
	glake_layout_fn row;
	void *user;
	struct glake_layout_row
		sum; /* of the rows about the same two so far; session 0: there are none */
};

static int end_layout_row(struct layout_walk *walk)
{
	const struct glake_layout_row row = walk->sum;
	walk->sum.session = 0;
	return row.session ? walk->row(walk->user, &row) : 0;
}

static int show_layout(struct layout_walk *walk, const Glake__Wire__LayoutInfo *from)
{
	struct glake_layout_row *sum = &walk->sum;
	int r = 0;
	if (sum->session != from->session || sum->with != from->with) {
		r = end_layout_row(walk);
		*sum = (struct glake_layout_row){.session = from->session,
		                                 .pid = from->pid,
		                                 .with = from->with,
		                                 .with_pid = from->with_pid};
	}
	sum->unshared_bytes += from->unshared_bytes;
	sum->looked_bytes += from->looked_bytes;
	sum->equal_bytes += from->equal_bytes;
	return r;
}

static int walk_layout(struct glake_session *session, uint64_t id, struct layout_walk *walk)
{
	Glake__Wire__LayoutList list = GLAKE__WIRE__LAYOUT_LIST__INIT;
	bool more = true;
	int r = 0;
	list.session = id;
	while (r == 0 && more) {
		Glake__Wire__Request *request = REQUEST_OF(LAYOUT_LIST, layout_list, &list);
		struct glake__call call;
		r = glake__call(&session->link, &call, request,
		                GLAKE__WIRE__ANSWER__BODY_LAYOUT_LIST, NULL, 0);
		if (r < 0) {
			return r;
		}
		const Glake__Wire__LayoutListAnswer *page = call.answer->layout_list;
		for (size_t i = 0; r == 0 && i < page->n_rows; i++) {
			r = show_layout(walk, page->rows[i]);
		}
		more = page->more;
		bool goes_on = page->from > list.from ||
		               (page->from == list.from && page->place > list.place);
		list.from = page->from;
		list.place = page->place;
		glake__call_end(&session->link, &call);
		if (r == 0 && more && !goes_on) {
			return glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
			                        "the daemon's list does not come to an end");
		}
	}
	return r == 0 ? end_layout_row(walk) : r;
}

int glake_list_layout(struct glake_session *session, uint64_t id, glake_layout_fn row, void *user)
{
	struct layout_walk walk = {.row = row, .user = user};
	int r = glake__session_check(session);
	return r < 0 ? r : glake__leave(session, walk_layout(session, id, &walk));
}

/* ---- sleepers --------------------------------------------------------------------------------- */

/* Owned by the caller. NULL: no memory, the error set. */
static struct glake_stay *take_stays(Glake__Wire__SleepStay *const *from, size_t n)
{
	struct glake_stay *stays = calloc(n + 1, sizeof(*stays));
	if (!stays) {
		glake__fail(-ENOMEM, "out of memory");
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		stays[i] = (struct glake_stay){TEXT(from[i]->why), from[i]->bytes};
	}
	return stays;
}

static const char *sleep_text(Glake__Wire__SleepWhy why)
{
	static const char *const names[] = {
		[GLAKE__WIRE__SLEEP_WHY__SLEEP_SELF] = "itself",
		[GLAKE__WIRE__SLEEP_WHY__SLEEP_ASKED] = "asked",
		[GLAKE__WIRE__SLEEP_WHY__SLEEP_IDLE] = "idle",
		[GLAKE__WIRE__SLEEP_WHY__SLEEP_PRESSURE] = "pressure",
	};
	return (unsigned)why < n_elements(names) ? names[why] : "unknown";
}

static int show_sleeper(const Glake__Wire__SleeperInfo *from, const struct reader *reader)
{
	cleanup_free struct glake_stay *stays = take_stays(from->stays, from->n_stays);
	if (!stays) {
		return -ENOMEM;
	}
	struct glake_sleeper_row row = {
		.session = from->session,
		.pid = from->pid,
		.uid = from->uid,
		.program = TEXT(from->program),
		.tenant = TEXT(from->tenant),
		.realm = TEXT(from->realm),
		.state = TEXT(from->state),
		.why = sleep_text(from->why),
		.asleep_ms = from->asleep_ms,
		.private_bytes = from->private_bytes,
		.shared_bytes = from->shared_bytes,
		.place = from->place,
		.waiting_ms = from->waiting_ms,
		.n_sleeps = from->n_sleeps,
		.slept_ns = from->slept_ns,
		.woke_ns = from->woke_ns,
		.woke_waited_ms = from->woke_waited_ms,
		.gpu_bytes = from->gpu_bytes,
		.n_models = (uint32_t)from->n_models,
		.models = (const char *const *)from->models,
		.name = TEXT(from->name),
		.script = TEXT(from->script),
		.n_stays = (uint32_t)from->n_stays,
		.stays = stays,
	};
	for (size_t i = 0; i < from->n_stays; i++) {
		row.stays_bytes += stays[i].bytes;
	}
	return reader->row.sleeper(reader->user, &row);
}

PAGES(Sleeper, SLEEPER, sleeper)

static int report_sleep(const Glake__Wire__SleepResult *from, glake_sleep_fn report, void *user)
{
	cleanup_free struct glake_stay *stays = take_stays(from->stays, from->n_stays);
	const struct glake_sleep_report full = {
		.is_asleep = from->is_asleep,
		.private_bytes = from->private_bytes,
		.shared_bytes = from->shared_bytes,
		.took_ns = from->took_ns,
		.held_ns = from->held_ns,
		.n_stays = (uint32_t)from->n_stays,
		.stays = stays,
		.waited_ms = from->waited_ms,
	};
	return stays ? report(user, &full) : -ENOMEM;
}

int glake_sleep_session(struct glake_session *session, uint64_t id,
                        const struct glake_sleep_options *options, glake_sleep_fn report,
                        void *user)
{
	struct glake_sleep_options full;
	int r = glake__session_check(session);
	r = r < 0 ? r : glake__sized_in(options, &full, sizeof(full));
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	Glake__Wire__Request *request = REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                                        .session = id, .wakes = full.wakes != 0,
	                                        .progress = full.progress || full.waiting);
	struct glake__call call;
	r = glake__call_start(&session->link, &call, request,
	                      GLAKE__WIRE__ANSWER__BODY_SESSION_SLEEP, NULL, 0);
	if (r == 0) {
		const struct glake__news news = {full.progress, full.waiting, full.progress_user};
		r = glake__call_wait_news(&session->link, &call, &news);
		r = r < 0 ? r : report_sleep(call.answer->session_sleep, report, user);
		glake__call_end(&session->link, &call);
	}
	return glake__leave(session, r);
}

/* ---- acting ----------------------------------------------------------------------------------- */

static int act(struct glake_session *session, Glake__Wire__Request *request)
{
	return ask(session, request, GLAKE__WIRE__ANSWER__BODY__NOT_SET, NULL, NULL);
}

int glake_forgive(struct glake_session *session, uint64_t id)
{
	return act(session, REQUEST(MISTAKE_FORGIVE, MistakeForgive, mistake_forgive, .id = id));
}

int glake_pin(struct glake_session *session, const char *model, int pin)
{
	return act(session, REQUEST(PIN, Pin, pin, .name = (char *)model, .unpin = !pin));
}

int glake_evict(struct glake_session *session, const char *model, uint64_t *n_models_out,
                uint64_t *freed_bytes_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (model && !*model) {
		/* glaked would evict everything. */
		return glake__fail(GLAKE_E_NOT_FOUND, "there is no model ''");
	}
	Glake__Wire__Request *request = REQUEST(EVICT, Evict, evict, .name = (char *)model);
	struct glake__call call;
	r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_EVICT, NULL, 0);
	if (r == 0) {
		if (n_models_out) {
			*n_models_out = call.answer->evict->n_models;
		}
		if (freed_bytes_out) {
			*freed_bytes_out = call.answer->evict->freed_bytes;
		}
		glake__call_end(&session->link, &call);
	}
	return glake__leave(session, r);
}

static int take_report(const Glake__Wire__SealResult *from, struct glake_seal_report *report)
{
	struct glake_seal_report full = {
		.sealed_bytes = from->sealed_bytes,
		.shared_bytes = from->shared_bytes,
		.small_bytes = from->small_bytes,
		.unfilled_bytes = from->unfilled_bytes,
		.rewritten_bytes = from->rewritten_bytes,
		.pinned_bytes = from->pinned_bytes,
		.failed_bytes = from->failed_bytes,
		.took_ns = from->took_ns,
		.held_ns = from->held_ns,
		.longest_held_ns = from->longest_held_ns,
	};
	snprintf(full.pinned_why, sizeof(full.pinned_why), "%s", TEXT(from->pinned_why));
	snprintf(full.failed_why, sizeof(full.failed_why), "%s", TEXT(from->failed_why));
	return glake__sized_out(report, &full, sizeof(full));
}

int glake_seal_session(struct glake_session *session, uint64_t id,
                       const struct glake_seal_options *options, struct glake_seal_report *report)
{
	struct glake_seal_options full;
	int r = glake__session_check(session);
	if (r == 0) {
		r = glake__sized_in(options, &full, sizeof(full));
	}
	if (r == 0) {
		/* Before the program seals. */
		r = glake__sized_check(report);
	}
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	Glake__Wire__Request *request = REQUEST(SESSION_SEAL, SessionSeal, session_seal,
	                                        .session = id, .dry_run = full.dry_run,
	                                        .progress = full.progress != NULL);
	struct glake__call call;
	r = glake__call_start(&session->link, &call, request,
	                      GLAKE__WIRE__ANSWER__BODY_SESSION_SEAL, NULL, 0);
	if (r == 0) {
		r = glake__call_wait(&session->link, &call, full.progress, full.progress_user);
		r = r < 0 ? r : take_report(call.answer->session_seal, report);
		glake__call_end(&session->link, &call);
	}
	return glake__leave(session, r);
}

static const char *candidate_state(Glake__Wire__CandidateState state)
{
	static const char *const names[] = {"filling", "quiet", "sealed", "refused"};
	return (unsigned)state < n_elements(names) ? names[state] : "unknown";
}

static int show_candidates(const Glake__Wire__SealResult *from, uint64_t id, glake_candidate_fn fn,
                           void *user)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < from->n_candidates; i++) {
		const Glake__Wire__Candidate *candidate = from->candidates[i];
		bool has_why = candidate->reason > 0 && candidate->reason <= from->n_reasons;
		const struct glake_candidate_row row = {
			.session = id,
			.address = candidate->address,
			.bytes = candidate->bytes,
			.filled_bytes = candidate->filled_bytes,
			.state = candidate_state(candidate->state),
			.refused_why = has_why ? TEXT(from->reasons[candidate->reason - 1]) : "",
			.n_unsealed = candidate->n_unsealed,
		};
		r = fn(user, &row);
	}
	return r;
}

int glake_list_candidates(struct glake_session *session, uint64_t id, glake_candidate_fn row,
                          void *user, uint64_t *n_out)
{
	Glake__Wire__Request *request = REQUEST(SESSION_SEAL, SessionSeal, session_seal,
	                                        .session = id, .dry_run = true, .candidates = true);
	struct glake__call call;
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_SESSION_SEAL,
	                NULL, 0);
	if (r == 0) {
		const Glake__Wire__SealResult *result = call.answer->session_seal;
		r = result->tells_candidates
		            ? show_candidates(result, id, row, user)
		            : glake__fail(-ENOTSUP, "the program's glake, or glaked, is older");
		if (r == 0 && n_out) {
			*n_out = result->all_candidates;
		}
		glake__call_end(&session->link, &call);
	}
	return glake__leave(session, r);
}

int glake_set_quota(struct glake_session *session, const char *tenant, uint32_t device,
                    uint64_t quota_bytes)
{
	return act(session, REQUEST(QUOTA_SET, QuotaSet, quota_set, .tenant = (char *)TEXT(tenant),
	                            .device = device, .quota_bytes = quota_bytes));
}

int glake_force_quota(struct glake_session *session, const char *tenant, uint32_t device,
                      uint64_t quota_bytes)
{
	return act(session, REQUEST(QUOTA_SET, QuotaSet, quota_set, .tenant = (char *)TEXT(tenant),
	                            .device = device, .quota_bytes = quota_bytes, .force = true));
}

int glake_set_host_quota(struct glake_session *session, const char *tenant, uint32_t node,
                         uint64_t quota_bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (!glake__session_host(session, node)) {
		return -ENOTSUP;
	}
	return act(session, REQUEST(QUOTA_SET, QuotaSet, quota_set, .tenant = (char *)TEXT(tenant),
	                            .at = GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST, .device = node,
	                            .quota_bytes = quota_bytes));
}

int glake_set_max_sessions(struct glake_session *session, const char *tenant, uint32_t max_sessions)
{
	return act(session, REQUEST(QUOTA_SET, QuotaSet, quota_set, .tenant = (char *)TEXT(tenant),
	                            .set_sessions = true, .max_sessions = max_sessions));
}

int glake_set_manifest_quota(struct glake_session *session, const char *tenant,
                             uint64_t quota_bytes)
{
	return act(session, REQUEST(QUOTA_SET, QuotaSet, quota_set, .tenant = (char *)TEXT(tenant),
	                            .set_manifests = true, .manifest_bytes = quota_bytes));
}

_Static_assert(GLAKE_DRAIN_REASON_BYTES == GLAKE_MAX_REASON_BYTES, "one limit");

int glake_drain(struct glake_session *session, const char *reason)
{
	return act(session, REQUEST(DRAIN, Drain, drain, .reason = (char *)TEXT(reason)));
}

int glake_undrain(struct glake_session *session)
{
	return act(session, REQUEST(DRAIN, Drain, drain, .undo = true));
}

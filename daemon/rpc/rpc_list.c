/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that only look: status, statistics and the lists.
 *
 * An admin sees everything. Others see their own realm and their own tenant. Lists are answered in
 * pages. The rows have the order of their ids, and the cursor is the id of the last row, so rows
 * may be added and removed between two pages.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/memory/reserve.h"
#include "daemon/rpc/driver_usage.h"
#include "daemon/store/copies.h"
#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

#define PAGE_ROWS 256

static uint64_t age_ms(const struct session *session, uint64_t since_ms)
{
	return uv_now(session->all->loop) - since_ms;
}

/* ---- status ---------------------------------------------------------------------------------- */

static void describe_driver_usage(const struct driver_usage *usage, Glake__Wire__DeviceStatus *row)
{
	row->context_bytes = usage->context_bytes;
	row->managed_bytes = usage->driver.managed_bytes;
	row->array_bytes = usage->driver.array_bytes;
	row->graph_bytes = usage->driver.graph_bytes;
	row->other_bytes = usage->driver.other_bytes;
	row->mover_bytes = usage->mover_bytes;
	row->foreign_bytes = usage->foreign_bytes;
	row->n_foreign = usage->n_foreign;
	row->unaccounted_bytes = usage->unaccounted_bytes;
}

static void describe_device(const struct rpc_context *rpc, const struct device *device,
                            Glake__Wire__DeviceStatus *row)
{
	glake__wire__device_status__init(row);
	row->index = device->index;
	row->name = (char *)device->name;
	row->uuid.data = (uint8_t *)device->uuid;
	row->uuid.len = sizeof(device->uuid);
	row->total_bytes = device->at.total_bytes;
	row->physical_bytes = location_physical_bytes(&device->at);
	row->private_bytes = device->at.use_bytes[CHUNK_PRIVATE];
	row->block_bytes = device->at.use_bytes[CHUNK_BLOCK] + device->at.use_bytes[CHUNK_LOADING];
	/* Chunks of loads are not open yet, but cannot be evicted. */
	row->used_block_bytes = device->at.used_block_bytes + device->at.use_bytes[CHUNK_LOADING];
	row->pool_bytes = device->at.use_bytes[CHUNK_STOCK];
	row->kept_bytes = device->at.use_bytes[CHUNK_KEPT];
	row->saved_alone_bytes = device->at.saved_alone_bytes;
	row->unsealing_bytes = device->at.unsealing_bytes;
	row->unsealing_wanted_bytes = reserve_wanted_bytes(&device->at);
	row->logical_block_bytes = device->at.logical_block_bytes;
	row->logical_bytes = device->at.logical_block_bytes + device->at.use_bytes[CHUNK_PRIVATE];
	row->fabric = (char *)device->fabric;
	row->rdma = device->rdma;
	row->free_bytes = device_free_bytes(device);
	struct driver_usage usage;
	driver_usage_of_device(rpc, device, &usage);
	describe_driver_usage(&usage, row);
}

static void describe_node(const struct extents *copies, const struct copies_use *use,
                          Glake__Wire__HostStatus *row)
{
	const struct location *at = copies->at;
	glake__wire__host_status__init(row);
	row->node = at->number;
	row->total_bytes = at->total_bytes;
	row->limit_bytes = at->usable_bytes;
	row->physical_bytes = location_physical_bytes(at);
	row->private_bytes = at->use_bytes[CHUNK_PRIVATE];
	row->copy_bytes = at->use_bytes[CHUNK_COPIES];
	row->used_copy_bytes = copies->used_bytes;
	row->ready_bytes = copies->ready_bytes;
	row->sleep_copy_bytes = use->bytes[COPY_USE_SLEEP];
	row->model_copy_bytes = use->bytes[COPY_USE_MODEL];
	row->cached_copy_bytes = use->bytes[COPY_USE_CACHE];
	row->slept_bytes = use->slept_bytes;
}

/* Describe the part of the configuration that concerns programs that sleep. */
static void describe_sleep(const struct config *config, Glake__Wire__StatusAnswer *body)
{
	body->mover_idle_ms = config->mover_idle_ms;
	body->waits = config->pressure == CONFIG_PRESSURE_WAIT;
	for (size_t i = 0; i < config->n_tenants; i++) {
		const struct config_tenant *tenant = &config->tenants[i];
		body->sleeps_idle |= tenant->idle_ms > 0;
		body->sleeps_on_pressure |= tenant->on_pressure == CONFIG_ON_PRESSURE_SLEEP;
	}
}

void rpc_status_get(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct rpc_context *rpc = rpc_of(session);
	Glake__Wire__StatusAnswer body = GLAKE__WIRE__STATUS_ANSWER__INIT;
	Glake__Wire__DeviceStatus rows[RPC_MAX_DEVICES];
	Glake__Wire__DeviceStatus *list[RPC_MAX_DEVICES];
	Glake__Wire__HostStatus hosts[NODE_MAX];
	Glake__Wire__HostStatus *host_list[NODE_MAX];
	char mover[32] = "idle";
	char driver[16];

	int mover_pid = mover_link_pid(rpc->mover);
	if (mover_pid) {
		snprintf(mover, sizeof(mover), "running %d", mover_pid);
	}
	snprintf(driver, sizeof(driver), "%d.%d", rpc->driver_version / 1000,
	         rpc->driver_version % 1000 / 10);
	body.version = (char *)GLAKE_VERSION;
	body.pid = (uint64_t)getpid();
	body.uptime_ms = age_ms(session, rpc->started_ms);
	body.n_sessions = rpc->holders.n;
	body.n_models = rpc->store->n_models;
	body.n_blocks = rpc->store->n_blocks;
	body.mover = mover;
	body.fds_used = rpc->allocator->books.n_fds;
	body.fds_budget = rpc->allocator->books.max_fds;
	body.draining = rpc->is_draining || rpc->drain.mark.is_on;
	body.drained = rpc->drain.mark.is_on;
	body.drain_reason = (char *)rpc->drain.mark.reason;
	body.drained_at_ms = rpc->drain.mark.since_ms;
	body.drained_by = rpc->drain.mark.uid;
	body.n_programs = holders_n_programs(&rpc->holders);
	body.driver = driver;
	body.config = rpc->config->path ? rpc->config->path : (char *)"";
	if (rpc->books && !fdstore_is_lost(rpc->fdstore)) {
		body.kept_fds = fdstore_n_kept(rpc->fdstore);
		body.max_kept_fds = fdstore_max(rpc->fdstore);
		body.unkept_blocks = rpc->store->n_roomless;
		body.unkept_chunks = rpc->holders.n_unkept;
		body.unparked_bytes = rpc->allocator->books.unparked_bytes;
	}
	for (uint32_t i = 0; i < rpc->n_devices && i < RPC_MAX_DEVICES; i++) {
		describe_device(rpc, &rpc->devices[i], &rows[i]);
		list[i] = &rows[i];
		body.n_devices++;
	}
	body.devices = list;
	for (uint32_t i = 0; i < rpc->nodes->n; i++) {
		describe_node(&rpc->copies->nodes[i], &rpc->copies->use[i], &hosts[i]);
		host_list[i] = &hosts[i];
		body.n_hosts++;
	}
	body.hosts = host_list;
	body.hosts_lacking = (char *)rpc->nodes->lacking;
	describe_sleep(rpc->config, &body);
	rpc_answer(session, request->id, ANSWER_OF(STATUS_GET, status_get, &body), NULL, 0);
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
	return bytes > taken ? bytes - taken : 0;
}

void rpc_device_get(struct session *session, const request_t *request, struct fdlist *fds)
{
	const struct location *at = rpc_location(session, request->id, (int)request->device_get->at,
	                                         request->device_get->device);
	if (!at) {
		return;
	}
	const struct tenant_location *tenant = &session->holder->tenant->at[at->slot];
	Glake__Wire__DeviceGetAnswer body = GLAKE__WIRE__DEVICE_GET_ANSWER__INIT;
	body.quota_bytes = tenant->quota_bytes;
	body.used_bytes = tenant->used_bytes;
	body.reserved_bytes = session->holder->at[at->slot].reserved_bytes;
	/* The driver does not count it as free yet, but a request for memory gets it. */
	uint64_t leaving_bytes = at->leaving_bytes;
	body.idle_bytes = at->use_bytes[CHUNK_KEPT] +
	                  less(at->use_bytes[CHUNK_STOCK], at->anchor_bytes) +
	                  less(at->use_bytes[CHUNK_BLOCK], at->used_block_bytes) + leaving_bytes;
	body.room_bytes = less(location_room_bytes(at), leaving_bytes);
	const struct promise *promise = session->holder->at[at->slot].promise;
	body.promise_bytes = promise ? promise->bytes : 0;
	body.left_bytes = promise ? promise_left_bytes(promise) : 0;
	rpc_answer(session, request->id, ANSWER_OF(DEVICE_GET, device_get, &body), NULL, 0);
}

#define COUNT_STAT(name, help) +1
enum { N_STATS = 0 STATS_LIST(COUNT_STAT) };
#undef COUNT_STAT

struct metrics {
	Glake__Wire__Metric rows[N_STATS];
	Glake__Wire__Metric *list[N_STATS];
	size_t n;
};

static void add_metric(void *user, const char *name, uint64_t value, const char *help)
{
	struct metrics *metrics = user;
	Glake__Wire__Metric *row = &metrics->rows[metrics->n];
	glake__wire__metric__init(row);
	row->name = (char *)name;
	row->value = value;
	row->help = (char *)help;
	metrics->list[metrics->n++] = row;
}

#define COUNT_TIME(name, help) +1
enum { N_TIMES = 0 STATS_TIMES(COUNT_TIME) };
#undef COUNT_TIME

struct times {
	Glake__Wire__Histogram rows[N_TIMES];
	Glake__Wire__Histogram *list[N_TIMES];
	size_t n;
};

static void add_time(void *user, const char *name, const struct histogram *histogram,
                     const char *help)
{
	struct times *times = user;
	Glake__Wire__Histogram *row = &times->rows[times->n];
	glake__wire__histogram__init(row);
	row->name = (char *)name;
	row->help = (char *)help;
	row->bounds_ns = (uint64_t *)histogram_bounds_ns;
	row->n_bounds_ns = HISTOGRAM_N_BOUNDS;
	row->counts = (uint64_t *)histogram->counts;
	row->n_counts = HISTOGRAM_N_BUCKETS;
	row->sum_ns = histogram->sum_ns;
	times->list[times->n++] = row;
}

void rpc_stats_get(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct metrics metrics = {.n = 0};
	struct times times = {.n = 0};
	Glake__Wire__StatsAnswer body = GLAKE__WIRE__STATS_ANSWER__INIT;
	stats_for_each(rpc_of(session)->stats, add_metric, &metrics);
	body.metrics = metrics.list;
	body.n_metrics = metrics.n;
	stats_for_each_time(rpc_of(session)->stats, add_time, &times);
	body.histograms = times.list;
	body.n_histograms = times.n;
	rpc_answer(session, request->id, ANSWER_OF(STATS_GET, stats_get, &body), NULL, 0);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Devices of the rows of one page. */
#define PAGE_DEVICES 2048
/* Things held that are looked at for one page of sessions, and blocks for one of models. */
#define PAGE_HELD 16384

/* The place for what a row has lists of: room for RPC_MAX_DEVICES and GLAKE_N_UNSEALED. */
struct row_lists {
	Glake__Wire__SessionDevice *devices;
	Glake__Wire__SessionDevice **device_list;
	Glake__Wire__Unsealed *unsealed;
	Glake__Wire__Unsealed **unsealed_list;
	Glake__Wire__PoolReport *pools;
	Glake__Wire__PoolReport **pool_list;
	Glake__Wire__Alone *alone;
};

/*
 * The bytes that @holder uses. A program reports now and then, and not behind its last request: bytes that came since are used,
 * and bytes that went were, unless it sleeps. An earlier client gives back warm memory without a report.
 */
static uint64_t live_bytes(const struct rpc_context *rpc, const struct holder *holder)
{
	uint64_t now_bytes = 0;
	const struct holder_usage *usage = &holder->usage;
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		now_bytes += holder->at[i].reserved_bytes;
	}
	if (now_bytes >= usage->reserved_bytes) {
		return usage->live_bytes + (now_bytes - usage->reserved_bytes);
	}
	bool is_known = usage->knows_reusable && !holder->sleeper;
	return is_known ? less(usage->live_bytes, usage->reserved_bytes - now_bytes)
	                : usage->live_bytes;
}

/* Returns whether the holder or its process has anything on the device. */
static bool describe_share(const struct rpc_context *rpc, const struct holder *holder,
                           uint32_t index, Glake__Wire__SessionDevice *row)
{
	const struct holder_location *device = &holder->at[index];
	const struct driver_memory *driver = &device->driver;
	glake__wire__session_device__init(row);
	row->device = index;
	row->reserved_bytes = device->reserved_bytes;
	row->shared_bytes = device->shared_bytes;
	row->part_bytes = device->part_bytes;
	row->managed_bytes = driver->managed_bytes;
	row->array_bytes = driver->array_bytes;
	row->graph_bytes = driver->graph_bytes;
	row->other_bytes = driver->other_bytes;
	row->process_bytes = driver_usage_of_process(rpc, holder, &rpc->devices[index]);
	row->promise_bytes = device->promise ? device->promise->bytes : 0;
	row->left_bytes = device->promise ? promise_left_bytes(device->promise) : 0;
	row->knows_live = holder->usage.knows_reusable;
	if (row->knows_live) {
		row->live_bytes = less(device->reserved_bytes, device->reusable_bytes);
		row->reusable_bytes = device->reserved_bytes - row->live_bytes;
	}
	return row->reserved_bytes || row->shared_bytes || row->managed_bytes || row->array_bytes ||
	       row->graph_bytes || row->other_bytes || row->process_bytes || row->promise_bytes;
}

/* Returns whether the holder has reported any. */
static bool describe_pool(const struct holder *holder, uint32_t index, Glake__Wire__PoolReport *row)
{
	const struct holder_pool *pool = &holder->at[index].pool;
	glake__wire__pool_report__init(row);
	row->device = index;
#define TELL(name) row->name = pool->name;
	HOLDER_POOL_LIST(TELL)
#undef TELL
	return pool->n_allocs > 0 || pool->reserved_bytes > 0;
}

static void describe_seals(const struct holder *holder, const struct row_lists *lists,
                           Glake__Wire__SessionInfo *row)
{
	const struct holder_usage *usage = &holder->usage;
	row->n_seals = usage->n_seals;
	row->seal_ns = usage->seal_ns;
	row->held_ns = usage->held_ns;
	row->unsealed = lists->unsealed_list;
	for (unsigned i = 0; i < GLAKE_N_UNSEALED; i++) {
		if (usage->unsealed_bytes[i] > 0) {
			Glake__Wire__Unsealed *unsealed = &lists->unsealed[row->n_unsealed];
			glake__wire__unsealed__init(unsealed);
			unsealed->why = (Glake__Wire__UnsealedWhy)i;
			unsealed->bytes = usage->unsealed_bytes[i];
			lists->unsealed_list[row->n_unsealed++] = unsealed;
		}
	}
}

/* Arguments hold keys and passwords: they are for the user himself, and for root. */
static bool may_see_arguments(const struct session *asker, const struct holder *holder)
{
	uid_t uid = asker->holder->peer.uid;
	return uid == 0 || uid == holder->peer.uid;
}

static void describe_process(const struct session *asker, const struct holder *holder,
                             Glake__Wire__SessionInfo *row)
{
	const struct holder_labels *labels = &holder->labels;
	row->program = labels->program ? labels->program : row->program;
	row->name = labels->name ? labels->name : row->name;
	row->script = labels->script ? labels->script : row->script;
	row->cgroup = labels->cgroup ? labels->cgroup : row->cgroup;
	if (labels->arguments && may_see_arguments(asker, holder)) {
		row->arguments = labels->arguments;
	}
}

static void describe_alone(struct holder *holder, const struct row_lists *lists,
                           Glake__Wire__SessionInfo *row)
{
	struct holder_alone *alone = &holder->usage.alone;
	if (!alone->is_told) {
		return;
	}
	glake__wire__alone__init(lists->alone);
	lists->alone->filling_bytes = alone->filling_bytes;
	lists->alone->quiet_bytes = alone->quiet_bytes;
	lists->alone->sealed_bytes = alone->sealed_bytes;
	lists->alone->refused_bytes = alone->refused_bytes;
	lists->alone->why = alone->why;
	row->alone = lists->alone;
}

static void describe_holder(const struct session *asker, struct holder *holder,
                            const struct row_lists *lists, Glake__Wire__SessionInfo *row)
{
	const struct rpc_context *rpc = rpc_of(asker);
	const struct holder_sharing *sharing = &holder->sharing;
	glake__wire__session_info__init(row);
	row->session = holder->id;
	row->pid = (uint32_t)holder->peer.pid;
	row->uid = holder->peer.uid;
	describe_process(asker, holder, row);
	row->tenant = holder->tenant->name;
	row->realm = holder->realm->name;
	row->live_bytes = live_bytes(rpc, holder);
	row->warm_bytes = holder->usage.warm_bytes;
	row->n_chunks = holder->n_held[HELD_CHUNK];
	row->n_models = holder->n_held[HELD_MODEL];
	row->age_ms = uv_now(rpc->sessions.loop) - holder->since_ms;
	row->n_requests = holder->n_requests;
	row->peak_bytes = holder->usage.peak_bytes;
	row->n_owned = holder->usage.n_owned;
	row->n_passed = holder->usage.n_passed;
	row->detached = holder->state == HOLDER_DETACHED;
	row->sealed_bytes = sharing->sealed_bytes;
	row->sealed_common_bytes = sharing->sealed_common_bytes;
	row->part_bytes = (uint64_t)(sharing->part_bytes + 0.5);
	describe_seals(holder, lists, row);
	describe_alone(holder, lists, row);
	for (uint32_t i = rpc->n_devices; i < rpc->n_locations; i++) {
		row->host_bytes += holder->at[i].reserved_bytes;
	}
	row->n_refused = holder->refused.n;
	row->wait_bound = (char *)bound_name(holder->wait.bound);
	row->wait_bytes = holder->wait.bytes;
	row->wait_ms = holder->wait.ms;
	row->devices = lists->device_list;
	row->pools = lists->pool_list;
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		Glake__Wire__SessionDevice *device = &lists->devices[row->n_devices];
		row->reserved_bytes += holder->at[i].reserved_bytes;
		row->shared_bytes += holder->at[i].shared_bytes;
		if (row->n_devices < RPC_MAX_DEVICES && describe_share(rpc, holder, i, device)) {
			lists->device_list[row->n_devices++] = device;
		}
		Glake__Wire__PoolReport *pool = &lists->pools[row->n_pools];
		if (row->n_pools < RPC_MAX_DEVICES && describe_pool(holder, i, pool)) {
			lists->pool_list[row->n_pools++] = pool;
		}
	}
}

/*
 * Whether the sharing of @holder is up to date; or a whole page was not enough for that, and the row has the last known. Else
 * the holder is the next page's.
 */
static bool may_describe(const struct rpc_page *page, struct holder *holder, size_t *n_steps)
{
	return holder_look_at_sharing(holder, n_steps) || page->n_rows == 0;
}

/* Note what all holders wait for, for the rows that follow. */
static void look_at_waits(struct rpc_context *rpc)
{
	struct holder *holder;
	struct session *session;
	const struct pending *pending;
	list_for_each (holder, &rpc->holders.list, link) {
		holder->wait = (struct pressure_wait){.bound = BOUND_NONE};
	}
	list_for_each (session, &rpc->sessions.list, link) {
		list_for_each (pending, &session->pending, link) {
			const struct pressure_wait waits[] = {rpc_chunk_wait(pending),
			                                      rpc_promise_wait(pending),
			                                      rpc_model_wait(pending)};
			for (size_t i = 0; i < n_elements(waits); i++) {
				struct pressure_wait *longest = &session->holder->wait;
				if (waits[i].bound &&
				    (!longest->bound || waits[i].ms > longest->ms)) {
					*longest = waits[i];
				}
			}
		}
	}
}

void rpc_session_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__SessionInfo, PAGE_ROWS);
	static Glake__Wire__SessionDevice devices[PAGE_DEVICES];
	static Glake__Wire__SessionDevice *device_list[PAGE_DEVICES];
	static Glake__Wire__Unsealed unsealed[PAGE_ROWS + 1][GLAKE_N_UNSEALED];
	static Glake__Wire__Unsealed *unsealed_list[PAGE_ROWS + 1][GLAKE_N_UNSEALED];
	static Glake__Wire__Alone alone[PAGE_ROWS + 1];
	static Glake__Wire__PoolReport pools[PAGE_DEVICES];
	static Glake__Wire__PoolReport *pool_list[PAGE_DEVICES];
	size_t n_devices = 0;
	size_t n_pools = 0;
	size_t n_steps = PAGE_HELD;
	struct rpc_context *rpc = rpc_of(session);
	struct holder *holder;
	look_at_waits(rpc);
	list_for_each (holder, &rpc->holders.list, link) {
		if (holder->id <= request->session_list->after || holder->state == HOLDER_NEW ||
		    !rpc_may_act(session, holder->realm)) {
			continue;
		}
		Glake__Wire__SessionInfo next;
		const struct row_lists lists = {&devices[n_devices],   &device_list[n_devices],
		                                unsealed[page.n_rows], unsealed_list[page.n_rows],
		                                &pools[n_pools],       &pool_list[n_pools],
		                                &alone[page.n_rows]};
		if (n_devices + RPC_MAX_DEVICES > PAGE_DEVICES ||
		    n_pools + RPC_MAX_DEVICES > PAGE_DEVICES ||
		    !may_describe(&page, holder, &n_steps)) {
			page.next = page.last;
			break;
		}
		describe_holder(session, holder, &lists, &next);
		if (!rpc_page_add(&page, holder->id, &next.base)) {
			break;
		}
		n_devices += next.n_devices;
		n_pools += next.n_pools;
	}
	RPC_ANSWER_PAGE(session, request, page, Session, SESSION, session);
}

/* Models of the rows of one page, and of one row. */
#define PAGE_USES 8192
#define ROW_USES 4096

static size_t list_models(const struct holder *holder, uint64_t *ids_out)
{
	size_t n = 0;
	struct held *held;
	struct held *next;
	HASH_ITER(hh, holder->held, held, next)
	{
		if (held->kind == HELD_MODEL && n < ROW_USES) {
			ids_out[n++] = held->model->id;
		}
	}
	return n;
}

void rpc_use_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__Use, PAGE_ROWS);
	static uint64_t ids[PAGE_USES];
	size_t n_ids = 0;
	size_t n_walked = 0;
	struct holder *holder;
	list_for_each (holder, &rpc_of(session)->holders.list, link) {
		if (holder->id <= request->use_list->after || holder->state == HOLDER_NEW ||
		    holder->n_held[HELD_MODEL] == 0 || !rpc_may_act(session, holder->realm)) {
			continue;
		}
		Glake__Wire__Use next = GLAKE__WIRE__USE__INIT;
		if (n_ids + ROW_USES > PAGE_USES || n_walked > PAGE_HELD) {
			page.next = page.last;
			break;
		}
		next.session = holder->id;
		next.models = &ids[n_ids];
		next.n_models = list_models(holder, next.models);
		if (!rpc_page_add(&page, holder->id, &next.base)) {
			break;
		}
		n_ids += next.n_models;
		n_walked += HASH_COUNT(holder->held);
	}
	RPC_ANSWER_PAGE(session, request, page, Use, USE, use);
}

/* The refusals at one location of a tenant; lists by slot. */
struct refused_lists {
	Glake__Wire__Refused rows[N_BOUNDS];
	Glake__Wire__Refused *list[N_BOUNDS];
};

static void describe_refused(const struct tenant_location *tenant, struct refused_lists *lists,
                             Glake__Wire__TenantDevice *row)
{
	row->refused = lists->list;
	for (int bound = BOUND_NONE + 1; bound < N_BOUNDS; bound++) {
		if (tenant->n_refused[bound] > 0) {
			Glake__Wire__Refused *refused = &lists->rows[row->n_refused];
			glake__wire__refused__init(refused);
			refused->bound = (char *)bound_name((enum bound)bound);
			refused->n = tenant->n_refused[bound];
			lists->list[row->n_refused++] = refused;
		}
	}
}

/* One tenant a page: there are few, and each has a row for each device. */
static void describe_tenant(const struct tenant *tenant, const struct location *at,
                            Glake__Wire__TenantDevice *row)
{
	static struct refused_lists lists[RPC_MAX_DEVICES + NODE_MAX];
	const struct tenant_location *there = &tenant->at[at->slot];
	glake__wire__tenant_device__init(row);
	row->device = at->number;
	row->used_bytes = there->used_bytes;
	row->quota_bytes = there->quota_bytes;
	row->peak_bytes = there->peak_bytes;
	if (at->slot < n_elements(lists)) {
		describe_refused(there, &lists[at->slot], row);
	}
}

static void describe_tenant_nodes(const struct rpc_context *rpc, const struct tenant *tenant,
                                  Glake__Wire__TenantDevice *rows, Glake__Wire__TenantDevice **list)
{
	for (uint32_t i = 0; i < rpc->nodes->n; i++) {
		describe_tenant(tenant, &rpc->nodes->at[i], &rows[i]);
		list[i] = &rows[i];
	}
}

void rpc_tenant_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	Glake__Wire__TenantListAnswer body = GLAKE__WIRE__TENANT_LIST_ANSWER__INIT;
	Glake__Wire__TenantInfo row = GLAKE__WIRE__TENANT_INFO__INIT;
	Glake__Wire__TenantInfo *list[] = {&row};
	Glake__Wire__TenantDevice devices[RPC_MAX_DEVICES];
	Glake__Wire__TenantDevice *device_list[RPC_MAX_DEVICES];
	Glake__Wire__TenantDevice hosts[NODE_MAX];
	Glake__Wire__TenantDevice *host_list[NODE_MAX];

	struct tenant *tenant = tenant_next(rpc_of(session)->tenants, request->tenant_list->after);
	while (tenant && !session->holder->is_admin && tenant != session->holder->tenant) {
		tenant = tenant_next(rpc_of(session)->tenants, tenant->id);
	}
	if (tenant) {
		row.name = tenant->name;
		row.n_sessions = tenant->n_sessions;
		row.max_sessions = tenant->max_sessions;
		row.n_fds = tenant->n_fds;
		row.max_fds = tenant->max_fds;
		row.manifest_bytes = tenant->manifest_bytes;
		row.quota_manifest_bytes = tenant->quota_manifest_bytes;
		row.priority = tenant->priority;
		for (uint32_t i = 0; i < rpc_of(session)->n_devices && i < RPC_MAX_DEVICES; i++) {
			describe_tenant(tenant, &rpc_of(session)->devices[i].at, &devices[i]);
			device_list[i] = &devices[i];
			row.n_devices++;
		}
		row.devices = device_list;
		describe_tenant_nodes(rpc_of(session), tenant, hosts, host_list);
		row.hosts = host_list;
		row.n_hosts = rpc_of(session)->nodes->n;
		body.tenants = list;
		body.n_tenants = 1;
		body.next = tenant->id;
	}
	rpc_answer(session, request->id, ANSWER_OF(TENANT_LIST, tenant_list, &body), NULL, 0);
}

static void describe_model(const struct session *session, const struct model *model,
                           Glake__Wire__ModelInfo *row)
{
	bool is_complete = model_is_complete(model);
	glake__wire__model_info__init(row);
	row->id = model->id;
	row->name = model->name;
	row->realm = model->realm->name;
	row->device = model->device->index;
	row->state = (char *)(model->state == MODEL_REPLACED  ? "replaced"
	                      : model->state == MODEL_DEMOTED ? "host"
	                      : is_complete                   ? "ready"
	                                                      : "loading");
	row->span_bytes = model->span_bytes;
	row->content_bytes = model->content_bytes;
	row->unique_bytes = model->parts.unique_bytes;
	row->part_bytes = (uint64_t)(model->parts.part_bytes + 0.5);
	row->copied_bytes = model->parts.copied_bytes;
	row->n_tensors = model->n_tensors;
	row->n_blocks = model->n_blocks;
	row->n_open = is_complete ? model->n_holders : 0;
	row->pinned = model->is_pinned;
	row->reload_reason = (char *)(model->reload_reason ? model->reload_reason : "");
	row->is_published = model->key.is_published;
	row->idle_ms = model->n_holders == 0 ? age_ms(session, model->idle.since_ms) : 0;
}

void rpc_model_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__ModelInfo, PAGE_ROWS);
	size_t n_steps = PAGE_HELD;
	struct model *model;
	list_for_each (model, &rpc_of(session)->store->model_list, link) {
		if (model->id <= request->model_list->after ||
		    !rpc_may_act(session, model->realm)) {
			continue;
		}
		Glake__Wire__ModelInfo next;
		/* The model is the next page's, unless a whole page was not enough: see may_describe(). */
		if (!store_look_at_parts(rpc_of(session)->store, model, &n_steps) &&
		    page.n_rows > 0) {
			page.next = page.last;
			break;
		}
		describe_model(session, model, &next);
		if (!rpc_page_add(&page, model->id, &next.base)) {
			break;
		}
	}
	RPC_ANSWER_PAGE(session, request, page, Model, MODEL, model);
}

static void describe_block(const struct block *block, Glake__Wire__BlockInfo *row,
                           uint8_t digest[DIGEST_BYTES])
{
	glake__wire__block_info__init(row);
	digest_to_bytes(&block->key.digest, digest);
	row->id = block->id;
	row->digest.data = digest;
	row->digest.len = DIGEST_BYTES;
	row->device = block->chunk.at->number;
	row->realm = block->realm->name;
	row->chunk_bytes = block->chunk.bytes;
	row->content_bytes = block->content_bytes;
	row->n_models = block->n_manifests;
	row->n_users = block->n_users;
	row->n_mappings = block->n_mappings;
}

void rpc_block_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__BlockInfo, PAGE_ROWS);
	static uint8_t digests[PAGE_ROWS + 1][DIGEST_BYTES];
	struct block *block;
	list_for_each (block, &rpc_of(session)->store->block_list, link) {
		if (block->id <= request->block_list->after ||
		    !rpc_may_act(session, block->realm)) {
			continue;
		}
		Glake__Wire__BlockInfo next;
		describe_block(block, &next, digests[page.n_rows]);
		if (!rpc_page_add(&page, block->id, &next.base)) {
			break;
		}
	}
	RPC_ANSWER_PAGE(session, request, page, Block, BLOCK, block);
}

static void describe_refusal(const struct event_refusal *refusal, Glake__Wire__EventInfo *row)
{
	row->n_refused = refusal->n;
	row->bound = (char *)refusal->bound;
	row->tenant = (char *)refusal->tenant;
	row->program = (char *)refusal->program;
	row->at = refusal->is_host ? GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST
	                           : GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
	row->number = refusal->number;
	row->wanted = refusal->wanted;
	row->used = refusal->used;
	row->limit = refusal->limit;
}

static void describe_event(const struct event *event, Glake__Wire__EventInfo *row)
{
	glake__wire__event_info__init(row);
	row->id = event->id;
	row->time_ms = event->time_ms;
	row->kind = (char *)event_kind_name(event->kind);
	row->realm = (char *)event->realm;
	row->session = event->session;
	row->pid = (uint32_t)event->pid;
	row->text = (char *)event->text;
	row->cgroup = (char *)event->cgroup;
	if (event->refusal.n > 0) {
		describe_refusal(&event->refusal, row);
	}
}

void rpc_event_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__EventInfo, PAGE_ROWS);
	uint64_t after = request->event_list->after;
	const struct event *event;
	while ((event = events_next(rpc_of(session)->events, after))) {
		after = event->id;
		if (!session->holder->is_admin &&
		    strcmp(event->realm, session->holder->realm->name) != 0) {
			continue;
		}
		Glake__Wire__EventInfo next;
		describe_event(event, &next);
		if (!rpc_page_add(&page, event->id, &next.base)) {
			break;
		}
	}
	RPC_ANSWER_PAGE(session, request, page, Event, EVENT, event);
}

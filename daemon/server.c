/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/changes.h"
#include "daemon/holders/sleep_limit.h"
#include "daemon/memory/reserve.h"
#include "daemon/net/inflight.h"
#include "daemon/net/listener.h"
#include "daemon/base/notify.h"
#include "daemon/rpc/naps.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/rpc_answer.h"
#include "daemon/rpc/rpc_ask.h"
#include "daemon/rpc/wake_again.h"
#include "daemon/waiting.h"
#include "daemon/net/turn.h"
#include "proto/cleanup.h"

#define TICK_MS 1000
/* The next try of a beat when the manager's queue is full. */
#define BEAT_RETRY_MS 20
/* How often NVML is asked. */
#define NVML_TICKS 5
/* The start waits this long for kept memory to be free. */
#define GIVE_BACK_MS 5000

/* ---- what the lower parts ask for ------------------------------------------------------------ */

static void drop_kept_bytes(void *user, struct location *at, uint64_t bytes)
{
	struct server *server = user;
	kept_steps_take_bytes(&server->kept, at, bytes);
}

static void drop_kept_fds(void *user, uint64_t n_fds)
{
	struct server *server = user;
	kept_steps_take_fds(&server->kept, n_fds);
}

static void evict_bytes(void *user, struct location *at, uint64_t bytes)
{
	struct server *server = user;
	if (at->kind == LOCATION_HOST) {
		copies_make_way(&server->copies, at, bytes);
	} else {
		store_evict(&server->store, at, bytes);
	}
}

static void evict_fds(void *user, uint64_t n_fds)
{
	struct server *server = user;
	store_evict_fds(&server->store, n_fds);
}

static void on_model_evicted(void *user, const struct model *model)
{
	struct server *server = user;
	struct session *session;
	list_for_each (session, &server->rpc.sessions.list, link) {
		if (session->holder->realm == model->realm) {
			rpc_notify_evicted(session, model->name);
		}
	}
}

static void on_block_damaged(void *user, struct block *block)
{
	struct server *server = user;
	damage_begin(&server->damage, block);
}

static void on_connection(void *user, int fd)
{
	struct server *server = user;
	owners_find(server->owners, fd);
	if (owners_is_full(server->owners)) {
		server->is_paused = true;
		listener_pause(server->listener);
	}
}

static void on_owner_known(void *user, int fd, uid_t owner)
{
	struct server *server = user;
	int r = session_new(&server->rpc.sessions, fd, owner);
	if (r < 0) {
		log_limited(log_limits_of(&server->rpc.holders.log_limits, owner),
		            LOG_LEVEL_WARNING, "cannot take a connection: %s", strerror(-r));
	}
	if (server->is_paused && server->listener && !owners_is_full(server->owners)) {
		server->is_paused = false;
		listener_resume(server->listener);
	}
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t physical_bytes(const struct server *server)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < server->n_devices; i++) {
		bytes += location_physical_bytes(&server->devices[i].at);
	}
	return bytes;
}

static void on_tick(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, tick);
	if (server->state != SERVER_RUNNING) {
		return;
	}
	for (uint32_t i = 0; i < server->n_devices; i++) {
		stock_resume(&server->allocator.stocks[i]);
	}
	copies_tick(&server->copies);
	sessions_tick(&server->rpc.sessions);
	refused_tick(&server->rpc.holders.refused);
	rpc_asks_tick(&server->rpc);
	naps_tick(&server->rpc);
	wake_again_tick(&server->rpc);
	owners_tick(server->owners);
	inflight_tick();
	orders_tick(&server->rpc.holders.orders);
	if (server->store.parking) {
		store_use_room(&server->store);
	}
	kept_steps_tick(&server->kept);
	store_trim(&server->store);
	/* Not at the first tick: then chunks are being made ahead. */
	if (server->n_ticks++ % NVML_TICKS == 1) {
		nvml_ask(server->nvml);
	}
	books_tick(server->books, server->config);
	notify_status("%s%u sessions, %llu models, %.1f GiB%s",
	              server->rpc.drain.mark.is_on ? "drained, " : "", server->rpc.holders.n,
	              (unsigned long long)server->store.n_models,
	              (double)physical_bytes(server) / (1 << 30),
	              books_are_good(server->books) ? "" : ", and a restart would lose them");
}

/* Again and again until it was sent: the manager ends a glaked that it does not hear. */
static void on_watchdog(uv_timer_t *timer)
{
	if (!notify_watchdog()) {
		uv_timer_start(timer, on_watchdog, BEAT_RETRY_MS, uv_timer_get_repeat(timer));
	}
}

/* ---- the end --------------------------------------------------------------------------------- */

static void stop(struct server *server)
{
	if (server->state == SERVER_STOPPED) {
		return;
	}
	server->state = SERVER_STOPPED;
	owners_close(server->owners);
	sessions_close(&server->rpc.sessions);
	holders_drain(&server->rpc.holders);
	uv_stop(&server->loop);
}

static void on_drained(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, drain);
	log_info("drain_ms is over, with %u sessions left", server->rpc.holders.n);
	stop(server);
}

static void on_session_closed(void *user)
{
	struct server *server = user;
	rpc_asks_tick(&server->rpc);
	if (server->state == SERVER_DRAINING && server->rpc.holders.n == 0) {
		stop(server);
	}
}

static const struct session_hooks session_hooks = {
	.packet = rpc_handle,
	.reclaim = rpc_notify_reclaim,
	.closed = on_session_closed,
};

static void drain(struct server *server, int signal)
{
	struct session *session;
	if (server->state != SERVER_RUNNING) {
		stop(server);
		return;
	}
	log_info("%s: draining %u sessions", strsignal(signal), server->rpc.holders.n);
	notify_stopping();
	server->state = SERVER_DRAINING;
	server->rpc.is_draining = true;
	holders_drain(&server->rpc.holders);
	listener_close(server->listener);
	server->listener = NULL;
	list_for_each (session, &server->rpc.sessions.list, link) {
		rpc_notify_shutting_down(session, server->config->drain_ms);
	}
	if (server->rpc.holders.n == 0) {
		stop(server);
		return;
	}
	uv_timer_start(&server->drain, on_drained, server->config->drain_ms, 0);
}

/* The next glaked has the books, the service manager the fds, and the processes their mappings. */
static void leave(struct server *server, int signal)
{
	log_info("%s: leaving %u sessions to the next glaked", strsignal(signal),
	         server->rpc.holders.n);
	notify_stopping();
	server->is_left = true;
	books_leave(server->books);
	listener_close(server->listener);
	server->listener = NULL;
	stop(server);
}

static void on_term_signal(uv_signal_t *handle, int signal)
{
	struct server *server = container_of(handle, struct server, on_term);
	if (server->books && server->state == SERVER_RUNNING) {
		leave(server, signal);
	} else {
		drain(server, signal);
	}
}

static void on_int_signal(uv_signal_t *handle, int signal)
{
	drain(container_of(handle, struct server, on_int), signal);
}

/* ---- reading the config again ---------------------------------------------------------------- */

static void want_stocks(struct server *server)
{
	for (uint32_t i = 0; i < server->n_devices; i++) {
		for (size_t k = 0; k < server->config->n_stock; k++) {
			stock_want(&server->allocator.stocks[i],
			           server->config->stock[k].chunk_bytes,
			           server->config->stock[k].n_chunks);
		}
	}
}

static void apply_limits(struct server *server)
{
	const struct config *config = server->config;
	log_set_level(config->log_level);
	server->allocator.pressure.wait_ms = config->pressure == CONFIG_PRESSURE_WAIT
	                                             ? config->wait_ms
	                                             : 0;
	server->load_context.window_bytes = config->load_window_bytes;
	server->load_context.trust_file_times = config->trust_file_times;
	server->sleep_context.wake_wait_ms = config->wake_wait_ms;
	server->kept.keep_ms = config->kept_ms;
	copies_set(&server->copies, config->demote);
	copies_keep_ready(&server->copies, &config->host_ready_bytes);
	server->mover.idle_ms = config->mover_idle_ms;
	patrol_set_mode(&server->patrol, config->verify);
	server->layout.is_on = config->measure_layout;
	server->rpc.config = config;
	server->rpc.sessions.config = config;
}

/* Once the books are open: what they have needs its memory first. */
static void set_reserve(struct server *server)
{
	for (uint32_t i = 0; i < server->n_devices; i++) {
		reserve_set_part(&server->devices[i].at, server->config->dedup_reserve);
	}
}

static void start_reload(struct server *server);

/* A config that a thread of libuv's stock reads, because looking up users' names may need a network. */
struct reload {
	uv_work_t work;
	struct server *server;
	char *path; /* owned; NULL = defaults */
	struct config *config;
	int result;
	char error[512];
};

static void read_config(uv_work_t *work)
{
	struct reload *reload = container_of(work, struct reload, work);
	reload->result = config_load(reload->path, &reload->config, reload->error,
	                             sizeof(reload->error));
}

/*
 * Take limits, and tenants, realms and owners of uids for new sessions. Existing sessions keep
 * their tenant and realm. Sockets, devices and stocks stay as they were at the start. Parts that
 * outlive a config have their own copies of its values: @mover_path is one.
 */
static void take_config(struct server *server, struct config *config, char *mover_path)
{
	changes_say(&server->events, server->config, config);
	mover_link_take_path(&server->mover, mover_path);
	config_free(server->config);
	server->config = config;
	books_forget_limits(server->books);
	set_reserve(server);
	owners_forget(server->owners);
	apply_limits(server);
	sleep_limit_tell(&server->rpc.holders, NULL);
}

static void on_config_read(uv_work_t *work, int status)
{
	struct reload *reload = container_of(work, struct reload, work);
	struct server *server = reload->server;
	const char *error = reload->result < 0 ? reload->error : NULL;
	char *mover_path = error ? NULL : strdup(reload->config->mover_path);
	if (!error) {
		changes_say_reset(server->tenants, server->n_locations, server->config);
	}
	if (!error && (!mover_path || tenant_table_apply(server->tenants, reload->config) < 0)) {
		config_free(reload->config);
		free(mover_path);
		error = "no host memory";
	}
	if (error) {
		log_error("the configuration stays as it was: %s", error);
	} else {
		take_config(server, reload->config, mover_path);
	}
	bool again = server->reload == RELOAD_AGAIN;
	server->reload = RELOAD_NONE;
	free(reload->path);
	free(reload);
	notify_ready(NULL);
	if (again) {
		start_reload(server);
	}
}

/* One at a time. A signal that comes meanwhile may be for a newer file, so read again afterwards. */
static void start_reload(struct server *server)
{
	if (server->reload != RELOAD_NONE) {
		server->reload = RELOAD_AGAIN;
		return;
	}
	struct reload *reload = calloc(1, sizeof(*reload));
	char *path = server->config->path ? strdup(server->config->path) : NULL;
	if (!reload || (server->config->path && !path)) {
		log_error("the configuration stays as it was: no host memory");
		free(reload);
		free(path);
		return;
	}
	notify_reloading();
	reload->server = server;
	reload->path = path;
	server->reload = RELOAD_READS;
	uv_queue_work(&server->loop, &reload->work, read_config, on_config_read);
}

static void on_hup_signal(uv_signal_t *handle, int signal)
{
	start_reload(container_of(handle, struct server, on_hup));
}

/* ---- the beginning --------------------------------------------------------------------------- */

static int open_fdstore(struct server *server)
{
	int r = fdstore_open(&server->loop, &server->fdstore);
	if (r == -EINVAL) {
		log_error("the service manager passed something that is not one listening "
		          "SEQPACKET socket");
	} else if (r < 0) {
		log_error("cannot take what the service manager passed: %s", strerror(-r));
	}
	return r;
}

/* Chunks are fds, so take as many as the system allows. */
static void raise_fd_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* There are no devices for that reason. */
__attribute__((format(printf, 2, 3))) static void lack(struct server *server, const char *format,
                                                       ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(server->lacking, sizeof(server->lacking), format, arguments);
	va_end(arguments);
	log_error("%s", server->lacking);
}

static int open_driver(struct server *server)
{
	char error[512];
	const struct config *config = server->config;
	/* glake-mover inherits it. */
	if (config->libcuda) {
		setenv("GLAKE_LIBCUDA", config->libcuda, 1);
	}
	int r = cudrv_open(&server->drv, NULL, error, sizeof(error));
	if (r < 0) {
		lack(server, "%s", error);
		return r;
	}
	CUresult result = server->drv.cuInit(0);
	if (result == CUDA_SUCCESS) {
		result = server->drv.cuDriverGetVersion(&server->rpc.driver_version);
	}
	if (result != CUDA_SUCCESS) {
		lack(server, "the CUDA driver does not start: %s",
		     cudrv_error(&server->drv, result));
		return cudrv_errno(result);
	}
	return 0;
}

static void close_devices(struct server *server)
{
	for (uint32_t i = 0; i < server->n_devices; i++) {
		device_close(&server->devices[i]);
	}
	nodes_close(&server->nodes);
}

static int open_devices(struct server *server)
{
	const struct config *config = server->config;
	int n_ordinals = 0;
	CUresult result = server->drv.cuDeviceGetCount(&n_ordinals);
	if (result != CUDA_SUCCESS || n_ordinals == 0) {
		lack(server, "there is no CUDA device: %s",
		     result == CUDA_SUCCESS ? "the driver sees none"
		                            : cudrv_error(&server->drv, result));
		return -ENODEV;
	}
	size_t n = config->n_devices ? config->n_devices : (size_t)n_ordinals;
	server->devices = calloc(n, sizeof(server->devices[0]));
	if (!server->devices) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		int ordinal = config->n_devices ? (int)config->devices[i] : (int)i;
		if (ordinal >= n_ordinals) {
			lack(server, "the configuration names device %d; there are %d devices",
			     ordinal, n_ordinals);
			return -ENODEV;
		}
		int r = device_open(&server->devices[i], &server->loop, &server->drv, (uint32_t)i,
		                    ordinal, config->reserve_bytes);
		if (r < 0) {
			/* device_open() has said why. */
			snprintf(server->lacking, sizeof(server->lacking),
			         "device %d cannot be opened, and glaked's log says why", ordinal);
			return r;
		}
		server->n_devices++;
	}
	return 0;
}

static void add_location(struct server *server, struct location *at)
{
	at->slot = server->n_locations;
	server->locations[server->n_locations++] = at;
}

/* In the order of their slots. */
static int list_locations(struct server *server)
{
	server->locations = calloc(server->n_devices + NODE_MAX, sizeof(struct location *));
	if (!server->locations) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < server->n_devices; i++) {
		add_location(server, &server->devices[i].at);
	}
	for (uint32_t i = 0; i < server->nodes.n; i++) {
		add_location(server, &server->nodes.at[i]);
	}
	return 0;
}

/*
 * Clients pass ids to each other (the shim's IPC handles), so ids outlive glaked, and no later
 * glaked may use them again. They begin at the clock, in units of 1024 ns, which no JSON reader
 * rounds.
 */
static uint64_t first_id(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) / 1024u;
}

static void open_rpc(struct server *server)
{
	struct rpc_context *rpc = &server->rpc;
	rpc->stats = &server->stats;
	rpc->events = &server->events;
	rpc->tenants = server->tenants;
	rpc->allocator = &server->allocator;
	rpc->store = &server->store;
	rpc->copies = &server->copies;
	rpc->superblocks = &server->superblocks;
	rpc->mover = &server->mover;
	rpc->admit_context = &server->admit_context;
	rpc->load_context = &server->load_context;
	rpc->sleep_context = &server->sleep_context;
	rpc->nvml = server->nvml;
	rpc->devices = server->devices;
	rpc->n_devices = server->n_devices;
	rpc->nodes = &server->nodes;
	rpc->locations = server->locations;
	rpc->n_locations = server->n_locations;
	rpc->fdstore = server->fdstore;
	rpc->started_ms = uv_now(&server->loop);
	holders_init(&rpc->holders, &server->loop, server->locations, server->n_locations,
	             &server->store, first_id());
	rpc->holders.refused.events = &server->events;
	rpc->holders.kept = &server->kept;
	server->kept.holders = &rpc->holders;
	list_init(&rpc->sessions.list);
	list_init(&rpc->asks);
	rpc->looks = &server->looks;
	rpc->sessions.loop = &server->loop;
	rpc->sessions.holders = &rpc->holders;
	rpc->sessions.pressure = &server->allocator.pressure;
	rpc->sessions.tenants = server->tenants;
	rpc->sessions.stats = &server->stats;
	rpc->sessions.hooks = &session_hooks;
	rpc->sessions.user = server;
}

static uint64_t all_device_bytes(const struct server *server)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < server->n_devices; i++) {
		bytes += server->devices[i].at.usable_bytes;
	}
	return bytes;
}

static int open_parts(struct server *server)
{
	const struct config *config = server->config;
	uint32_t budget = config_fd_budget(config);
	int r = owners_new(&server->loop, on_owner_known, server, &server->owners);
	if (r < 0) {
		return r;
	}
	r = tenant_table_new(config, server->n_devices, server->nodes.n, &server->tenants);
	if (r < 0) {
		goto err_tenants;
	}
	events_init(&server->events, &server->stats);
	r = mover_link_init(&server->mover, &server->loop, &server->keeper, &server->stats,
	                    &server->events, config->mover_path, config->mover_idle_ms,
	                    config_mover_fds(config));
	if (r < 0) {
		goto err_mover;
	}
	/* Every session needs an fd as well. */
	uint64_t n_chunk_fds = budget > 2 * config->max_sessions ? budget - config->max_sessions
	                                                         : budget / 2;
	struct tenant *cache = tenant_table_cache(server->tenants);
	r = allocator_init(&server->allocator, &server->loop, server->locations,
	                   server->n_locations, n_chunk_fds, cache, &server->stats);
	if (r < 0) {
		goto err_allocator;
	}
	store_init(&server->store, &server->loop, cache, &server->stats);
	kept_steps_init(&server->kept, &server->loop, cache, &server->stats,
	                all_device_bytes(server), n_chunk_fds / 4);
	server->allocator.pressure.sources[PRESSURE_KEPT] = (struct pressure_source){
		.take_bytes = drop_kept_bytes,
		.take_fds = drop_kept_fds,
		.user = server,
	};
	server->allocator.pressure.sources[PRESSURE_UNUSED] = (struct pressure_source){
		.take_bytes = evict_bytes,
		.take_fds = evict_fds,
		.user = server,
	};
	server->allocator.pressure.sleepers = (struct pressure_sleepers){
		.ask = naps_for,
		.user = &server->rpc,
	};
	server->store.on_evicted = on_model_evicted;
	server->store.user = server;
	r = copies_init(&server->copies, &server->store, &server->mover, &server->allocator,
	                server->nodes.at, server->nodes.n);
	if (r < 0) {
		goto err_copies;
	}
	server->store.copies = &server->copies;
	server->admit_context = (struct admit_context){
		.store = &server->store,
		.allocator = &server->allocator,
		.mover = &server->mover,
	};
	server->load_context = (struct load_context){
		.admit = &server->admit_context,
		.copies = &server->copies,
		.stats = &server->stats,
	};
	server->sleep_context = (struct sleep_context){
		.copies = &server->copies,
		.allocator = &server->allocator,
		.admit = &server->admit_context,
		.events = &server->events,
	};
	server->nvml = nvml_new(&server->loop, server->devices, server->n_devices);
	open_rpc(server);
	damage_init(&server->damage, &server->loop, &server->rpc);
	patrol_init(&server->patrol, &server->loop, &server->store, &server->mover, server->devices,
	            server->n_devices);
	layout_init(&server->layout, &server->loop, &server->store, &server->mover);
	server->patrol.on_damaged = on_block_damaged;
	server->patrol.user = server;
	apply_limits(server);
	want_stocks(server);
	turns_begin(&server->loop);
	return 0;
err_copies:
	kept_steps_deinit(&server->kept);
	store_deinit(&server->store);
	allocator_deinit(&server->allocator);
err_allocator:
	mover_link_close(&server->mover);
err_mover:
	tenant_table_free(server->tenants);
err_tenants:
	owners_close(server->owners);
	owners_free(server->owners);
	return r;
}

static void open_handles(struct server *server)
{
	uv_timer_init(&server->loop, &server->tick);
	uv_timer_init(&server->loop, &server->looks);
	uv_timer_init(&server->loop, &server->drain);
	uv_timer_init(&server->loop, &server->watchdog);
	uv_signal_init(&server->loop, &server->on_term);
	uv_signal_init(&server->loop, &server->on_int);
	uv_signal_init(&server->loop, &server->on_hup);
	uv_signal_start(&server->on_term, on_term_signal, SIGTERM);
	uv_signal_start(&server->on_int, on_int_signal, SIGINT);
	uv_signal_start(&server->on_hup, on_hup_signal, SIGHUP);
	uv_timer_start(&server->tick, on_tick, 0, TICK_MS);
	uint64_t watchdog_ms = notify_watchdog_interval_ms();
	if (watchdog_ms) {
		uv_timer_start(&server->watchdog, on_watchdog, watchdog_ms, watchdog_ms);
	}
}

static void close_handles(struct server *server)
{
	uv_close((uv_handle_t *)&server->tick, NULL);
	uv_close((uv_handle_t *)&server->looks, NULL);
	uv_close((uv_handle_t *)&server->drain, NULL);
	uv_close((uv_handle_t *)&server->watchdog, NULL);
	uv_close((uv_handle_t *)&server->on_term, NULL);
	uv_close((uv_handle_t *)&server->on_int, NULL);
	uv_close((uv_handle_t *)&server->on_hup, NULL);
}

static bool workers_are_busy(const struct server *server)
{
	for (uint32_t i = 0; i < server->n_locations; i++) {
		if (server->locations[i]->worker.n_pending > 0) {
			return true;
		}
	}
	return false;
}

/* Close all parts, in the order of their dependencies. */
static void close_parts(struct server *server)
{
	patrol_close(&server->patrol);
	layout_close(&server->layout);
	damage_close(&server->damage);
	copies_close(&server->copies);
	mover_link_close(&server->mover);
	keeper_close(&server->keeper);
	kept_steps_deinit(&server->kept);
	store_deinit(&server->store);
	copies_deinit(&server->copies);
	for (uint32_t i = 0; i < server->n_devices; i++) {
		stock_drain(&server->allocator.stocks[i]);
	}
	owners_close(server->owners);
	while (workers_are_busy(server) || server->reload != RELOAD_NONE ||
	       owners_is_busy(server->owners) || server->rpc.drain.is_busy) {
		uv_run(&server->loop, UV_RUN_ONCE);
	}
	drain_close(&server->rpc.drain);
	owners_free(server->owners);
	books_close(server->books);
	while (books_is_busy(server->books)) {
		uv_run(&server->loop, UV_RUN_ONCE);
	}
	books_free(server->books);
	orders_deinit(&server->rpc.holders.orders);
	mistakes_deinit(&server->rpc.holders.mistakes);
	allocator_deinit(&server->allocator);
	tenant_table_free(server->tenants);
	turns_end();
}

/* Kept memory that nothing describes is free before anybody is served, and refused for its sake. */
static void give_back(struct server *server)
{
	int r = fdstore_settle(server->fdstore) > 0 ? fdstore_await(server->fdstore, GIVE_BACK_MS)
	                                            : 0;
	if (r < 0) {
		log_warning("the service manager may have their memory still: %s", strerror(-r));
	}
}

/* The books are beside the socket, if the configuration does not say otherwise. */
static int open_books(struct server *server)
{
	char socket_path[LISTENER_PATH_BYTES];
	char beside[PATH_MAX];
	const struct books_parts parts = {.loop = &server->loop,
	                                  .fdstore = server->fdstore,
	                                  .config = server->config,
	                                  .devices = server->devices,
	                                  .n_devices = server->n_devices,
	                                  .locations = server->locations,
	                                  .n_locations = server->n_locations,
	                                  .chunk_books = &server->allocator.books,
	                                  .promises = &server->allocator.promises,
	                                  .tenants = server->tenants,
	                                  .store = &server->store,
	                                  .holders = &server->rpc.holders,
	                                  .sleep = &server->sleep_context};
	/* A socket unit has its own path. */
	listener_get_path(server->listener, socket_path);
	snprintf(beside, sizeof(beside), "%s.state",
	         socket_path[0] ? socket_path : server->config->socket_path);
	const char *path = server->config->state_path ? server->config->state_path : beside;
	waiting_forget(path);
	int r = drain_open(&server->rpc.drain, path);
	if (r == 0) {
		r = books_open(&parts, path, &server->books);
	}
	if (r == 0) {
		server->rpc.books = server->books;
		superblocks_adopt(&server->superblocks, server->fdstore);
		give_back(server);
		set_reserve(server);
	}
	return r;
}

static int serve(struct server *server, const struct server_options *options)
{
	const char *path = options->socket_path ? options->socket_path
	                                        : server->config->socket_path;
	int keeper = options->keeper_socket ? options->keeper_socket : -1;
	int r = keeper_open(&server->keeper, &server->loop, keeper);
	if (r == 0) {
		r = open_parts(server);
	}
	if (r < 0) {
		log_error("cannot start: %s", strerror(-r));
		keeper_close(&server->keeper);
		return r;
	}
	/* Before others see the socket: a signal waits for the loop from now on. */
	open_handles(server);
	r = listener_open(&server->loop, server->fdstore, path, server->config->socket_mode,
	                  on_connection, server, &server->listener);
	if (r == 0) {
		r = open_books(server);
	}
	if (r == 0) {
		log_info("glaked %s is ready", GLAKE_VERSION);
		notify_ready("ready");
		uv_run(&server->loop, UV_RUN_DEFAULT);
	} else {
		listener_close(server->listener);
	}
	close_handles(server);
	close_parts(server);
	log_info("glaked ends");
	return r;
}

int server_run(const struct server_options *options)
{
	static struct server server; /* large, and there is only one */
	char error[512];
	bool is_waited = false;
	int r = config_load(options->config_path, &server.config, error, sizeof(error));
	if (r < 0) {
		log_error("%s", error);
		return 2;
	}
	log_set_level(server.config->log_level);
	/* The reader of the log may go. glake-mover sets its own handler. */
	signal(SIGPIPE, SIG_IGN);
	raise_fd_limit();
	r = uv_loop_init(&server.loop);
	if (r == 0) {
		r = open_fdstore(&server);
		if (r == 0) {
			r = open_driver(&server);
		}
		if (r == 0) {
			r = open_devices(&server);
		}
		if (r < 0 && server.lacking[0] && options->waits_for_gpu) {
			server.is_left = waiting_run(&server.loop, server.fdstore, server.config,
			                             options->socket_path
			                                     ? options->socket_path
			                                     : server.config->socket_path,
			                             server.lacking);
			/* The missing device is no error of glaked's. */
			is_waited = true;
		}
		if (r == 0) {
			nodes_open(&server.nodes, &server.drv, server.devices[0].cu,
			           &server.config->host_bytes, options->nodes_path);
			r = list_locations(&server);
		}
		if (r == 0) {
			r = serve(&server, options);
		}
		close_devices(&server);
		fdstore_close(server.fdstore);
		while (uv_run(&server.loop, UV_RUN_DEFAULT) != 0) {
		}
		int closed = uv_loop_close(&server.loop);
		assert(closed == 0);
	}
	nvml_free(server.nvml);
	free(server.locations);
	free(server.devices);
	config_free(server.config);
	if (r < 0 && !is_waited) {
		return 1;
	}
	return server.is_left ? SERVER_LEAVES : 0;
}

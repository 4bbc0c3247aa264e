/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's report about itself: its own memory and its memory of the driver, for listings; and
 * whether it has followed a Reclaim. The numbers are bounded, so no sum of them overflows.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/events.h"
#include "daemon/base/text.h"
#include "daemon/rpc/rpc_handlers.h"

static uint64_t bounded(uint64_t bytes, uint64_t limit)
{
	return bytes < limit ? bytes : limit;
}

/* Whether @device is one of glaked, and not in *seen. If not, the request was refused. */
static bool is_next(struct session *session, uint64_t id, uint32_t device, uint64_t *seen)
{
	_Static_assert(RPC_MAX_DEVICES <= 64, "a bit for each");
	if (device >= rpc_of(session)->n_devices || device >= RPC_MAX_DEVICES ||
	    *seen & 1ull << device) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST,
		           "device %u is unknown, or reported twice", device);
		return false;
	}
	*seen |= 1ull << device;
	return true;
}

/* Whether each entry names a device of glaked, and none twice. If not, the request was refused. */
static bool is_sound(struct session *session, uint64_t id, const Glake__Wire__UsageReport *report)
{
	uint64_t drivers = 0;
	uint64_t pools = 0;
	uint64_t reusable = 0;
	bool is = true;
	for (size_t i = 0; is && i < report->n_driver; i++) {
		is = is_next(session, id, report->driver[i]->device, &drivers);
	}
	for (size_t i = 0; is && i < report->n_pools; i++) {
		is = is_next(session, id, report->pools[i]->device, &pools);
	}
	for (size_t i = 0; is && i < report->n_reusable; i++) {
		is = is_next(session, id, report->reusable[i]->device, &reusable);
	}
	return is;
}

/* Only managed memory may be more than the device has. */
static struct driver_memory take_driver(const Glake__Wire__DriverMemory *from, uint64_t total_bytes)
{
	return (struct driver_memory){
		.managed_bytes = bounded(from->managed_bytes, GLAKE_MAX_REPORTED_BYTES),
		.array_bytes = bounded(from->array_bytes, total_bytes),
		.graph_bytes = bounded(from->graph_bytes, total_bytes),
		.other_bytes = bounded(from->other_bytes, total_bytes),
	};
}

/* A stitched range has addresses, but no memory of its own. */
static struct holder_pool take_pool(const Glake__Wire__PoolReport *from, uint64_t total_bytes)
{
	struct holder_pool pool = {
#define TAKE(name) .name = from->name,
		HOLDER_POOL_LIST(TAKE)
#undef TAKE
	};
	pool.live_bytes = bounded(pool.live_bytes, total_bytes);
	pool.peak_live_bytes = bounded(pool.peak_live_bytes, total_bytes);
	pool.reserved_bytes = bounded(pool.reserved_bytes, total_bytes);
	pool.peak_reserved_bytes = bounded(pool.peak_reserved_bytes, total_bytes);
	pool.free_bytes = bounded(pool.free_bytes, total_bytes);
	pool.kept_bytes = bounded(pool.kept_bytes, GLAKE_MAX_REPORTED_BYTES);
	return pool;
}

/* Causes of later versions are passed over. */
static void take_seals(struct holder_usage *usage, const Glake__Wire__UsageReport *report)
{
	_Static_assert(GLAKE_N_UNSEALED == GLAKE__WIRE__UNSEALED_WHY__UNSEALED_LAUNCHED + 1,
	               "all causes");
	memset(usage->unsealed_bytes, 0, sizeof(usage->unsealed_bytes));
	for (size_t i = 0; i < report->n_unsealed; i++) {
		const Glake__Wire__Unsealed *unsealed = report->unsealed[i];
		if ((uint32_t)unsealed->why < GLAKE_N_UNSEALED) {
			usage->unsealed_bytes[unsealed->why] = bounded(unsealed->bytes,
			                                               GLAKE_MAX_REPORTED_BYTES);
		}
	}
	usage->n_seals = report->n_seals;
	usage->seal_ns = report->seal_ns;
	usage->held_ns = report->held_ns;
}

static void take_alone(struct holder_alone *alone, const Glake__Wire__Alone *from)
{
	*alone = (struct holder_alone){.is_told = from != NULL};
	if (from) {
		alone->filling_bytes = bounded(from->filling_bytes, GLAKE_MAX_REPORTED_BYTES);
		alone->quiet_bytes = bounded(from->quiet_bytes, GLAKE_MAX_REPORTED_BYTES);
		alone->sealed_bytes = bounded(from->sealed_bytes, GLAKE_MAX_REPORTED_BYTES);
		alone->refused_bytes = bounded(from->refused_bytes, GLAKE_MAX_REPORTED_BYTES);
		alone->n_refused_launches = from->n_refused_launches;
		snprintf(alone->why, sizeof(alone->why), "%s", from->why);
		text_clean(alone->why);
	}
}

/* The program has got an error for each, and may have tried again. */
static void note_refused(struct session *session, const Glake__Wire__Alone *from)
{
	struct holder *holder = session->holder;
	struct event_subject subject = holder_subject(holder);
	subject.limit = &holder->tenant->log_limit;
	if (from && from->n_refused_launches > holder->usage.alone.n_refused_launches) {
		events_add(rpc_of(session)->events, EVENT_LAUNCH_REFUSED, &subject,
		           "%" PRIu64
		           " launches so far: what they might write to was sealed without "
		           "being asked, and could not become private",
		           from->n_refused_launches);
	}
}

/* The program reports that it works, or since when it does not; nothing comes while that stays. */
static void take_idle(struct holder *holder, uint64_t idle_ms)
{
	uint64_t now_ms = uv_now(holder->all->loop);
	holder->usage.idle_since_ms = idle_ms == 0 ? 0 : idle_ms >= now_ms ? 1 : now_ms - idle_ms;
}

/* Note the reusable memory, and what glaked's books have at that moment: the difference later is what came or went since. */
static void take_reusable(const struct rpc_context *rpc, struct holder *holder,
                          const Glake__Wire__UsageReport *report)
{
	holder->usage.knows_reusable = report->tells_reusable;
	holder->usage.reserved_bytes = 0;
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		holder->usage.reserved_bytes += holder->at[i].reserved_bytes;
		holder->at[i].reusable_bytes = 0;
	}
	for (size_t i = 0; i < report->n_reusable; i++) {
		const Glake__Wire__ReusableMemory *from = report->reusable[i];
		holder->at[from->device].reusable_bytes = bounded(
			from->bytes, rpc->devices[from->device].at.total_bytes);
	}
}

void rpc_usage_report(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__UsageReport *report = request->usage_report;
	const struct rpc_context *rpc = rpc_of(session);
	struct driver_memory drivers[RPC_MAX_DEVICES];
	if (!is_sound(session, request->id, report)) {
		return;
	}
	session->holder->usage.live_bytes = bounded(report->live_bytes, GLAKE_MAX_REPORTED_BYTES);
	session->holder->usage.warm_bytes = bounded(report->warm_bytes, GLAKE_MAX_REPORTED_BYTES);
	session->holder->usage.peak_bytes = bounded(report->peak_bytes, GLAKE_MAX_REPORTED_BYTES);
	session->holder->usage.n_owned = report->n_owned;
	session->holder->usage.n_passed = report->n_passed;
	take_seals(&session->holder->usage, report);
	note_refused(session, report->alone);
	take_alone(&session->holder->usage.alone, report->alone);
	take_idle(session->holder, report->idle_ms);
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		drivers[i] = (struct driver_memory){0};
		session->holder->at[i].pool = (struct holder_pool){0};
	}
	for (size_t i = 0; i < report->n_driver; i++) {
		const Glake__Wire__DriverMemory *from = report->driver[i];
		drivers[from->device] = take_driver(from,
		                                    rpc->devices[from->device].at.total_bytes);
	}
	for (uint32_t i = 0; i < rpc->n_devices; i++) {
		holder_set_driver(session->holder, i, &drivers[i]);
	}
	for (size_t i = 0; i < report->n_pools; i++) {
		const Glake__Wire__PoolReport *from = report->pools[i];
		session->holder->at[from->device].pool = take_pool(
			from, rpc->devices[from->device].at.total_bytes);
	}
	take_reusable(rpc, session->holder, report);
	pressure_client_answer(session->all->pressure, &session->warm, report->reclaim);
	rpc_answer_ok(session, request->id);
}

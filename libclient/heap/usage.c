/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/usage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "libclient/link/why.h"
#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/supply.h"
#include "libclient/stitch/pool.h"
#include "libclient/space/space.h"

/* Called with the lock held. */
static uint64_t warm_bytes_locked(const struct glake_session *session)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		n_bytes += glake__heap_free_bytes_locked(&session->heaps[i]) +
		           glake__supply_lent_bytes_locked(&session->devices[i]);
	}
	return n_bytes;
}

/* Live bytes leave out the memory that the program has lent. Called with the lock held. */
static uint64_t live_bytes_locked(const struct glake_session *session)
{
	uint64_t n_lent = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		n_lent += glake__supply_lent_bytes_locked(&session->devices[i]);
	}
	uint64_t n_bytes = session->books.live_bytes;
	return n_lent < n_bytes ? n_bytes - n_lent : 0;
}

/* Hashes all numbers of the pools: one that differs is news. 0: none was used. Called with the lock held. */
static uint64_t pools_hash_locked(const struct glake_session *session)
{
	uint64_t hash = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake_pool_stats *pool = &session->heaps[i].pool;
		if (pool->n_allocs > 0) {
			hash = XXH3_64bits_withSeed(pool, sizeof(*pool), hash);
		}
	}
	return hash;
}

/* Parked memory is its stream's at once, and anybody's a moment later. Called with the lock held. */
static uint64_t reusable_bytes_locked(const struct glake_session *session, uint32_t i)
{
	return glake__heap_free_bytes_locked(&session->heaps[i]) + session->heaps[i].parked_bytes +
	       glake__supply_lent_bytes_locked(&session->devices[i]);
}

/* Hashes the reusable bytes by device. 0: there are none. Called with the lock held. */
static uint64_t reusable_hash_locked(const struct glake_session *session)
{
	uint64_t hash = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const uint64_t at[] = {i, reusable_bytes_locked(session, i)};
		hash = at[1] > 0 ? XXH3_64bits_withSeed(at, sizeof(at), hash) : hash;
	}
	return hash;
}

static struct glake__usage measure(struct glake_session *session)
{
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&session->link.lock);
	uint64_t connection = session->link.n_connections;
	pthread_mutex_unlock(&session->link.lock);
	glake__lock();
	struct glake__usage usage = {
		.connection = connection,
		.live_bytes = live_bytes_locked(session),
		.warm_bytes = warm_bytes_locked(session),
		.peak_bytes = books->peak_bytes,
		.n_seals = books->n_seals,
		.seal_ns = books->seal_ns,
		.held_ns = glake__gate_held_ns(),
		.pools_hash = pools_hash_locked(session),
		.reusable_hash = reusable_hash_locked(session),
	};
	memcpy(usage.unsealed_bytes, books->unsealed_bytes, sizeof(usage.unsealed_bytes));
	glake__unlock();
	return usage;
}

/* ---- reporting -------------------------------------------------------------------------------- */

/* A UsageReport and the structs that it points to. */
struct report {
	Glake__Wire__UsageReport body;
	Glake__Wire__DriverMemory rows[GLAKE_MAX_REPORTED_DEVICES];
	Glake__Wire__DriverMemory *list[GLAKE_MAX_REPORTED_DEVICES];
	Glake__Wire__Unsealed unsealed[GLAKE_N_UNSEALED];
	Glake__Wire__Unsealed *unsealed_list[GLAKE_N_UNSEALED];
	Glake__Wire__Alone alone;
	struct glake__alone alone_copy;
	Glake__Wire__PoolReport pools[GLAKE_MAX_REPORTED_DEVICES];
	Glake__Wire__PoolReport *pool_list[GLAKE_MAX_REPORTED_DEVICES];
	Glake__Wire__ReusableMemory reusable[GLAKE_MAX_REPORTED_DEVICES];
	Glake__Wire__ReusableMemory *reusable_list[GLAKE_MAX_REPORTED_DEVICES];
};

_Static_assert((int)GLAKE__UNSEALED_NAMED == (int)GLAKE__WIRE__UNSEALED_WHY__UNSEALED_NAMED &&
                       GLAKE__UNSEALED_NAMED + (int)GLAKE__PIN_MULTICAST ==
                               (int)GLAKE__WIRE__UNSEALED_WHY__UNSEALED_MULTICAST &&
                       (int)GLAKE__UNSEALED_LAUNCHED ==
                               (int)GLAKE__WIRE__UNSEALED_WHY__UNSEALED_LAUNCHED,
               "the wire has the same causes");

static void add_seals(struct report *report, const struct glake__usage *usage)
{
	report->body.n_seals = usage->n_seals;
	report->body.seal_ns = usage->seal_ns;
	report->body.held_ns = usage->held_ns;
	report->body.unsealed = report->unsealed_list;
	for (unsigned why = 0; why < GLAKE_N_UNSEALED; why++) {
		if (usage->unsealed_bytes[why] > 0) {
			Glake__Wire__Unsealed *row = &report->unsealed[report->body.n_unsealed];
			glake__wire__unsealed__init(row);
			row->why = (Glake__Wire__UnsealedWhy)why;
			row->bytes = usage->unsealed_bytes[why];
			report->unsealed_list[report->body.n_unsealed++] = row;
		}
	}
}

/* Called with the lock held. */
static void add_pool(struct report *report, uint32_t device, const struct glake__heap *heap)
{
	const struct glake_pool_stats *pool = &heap->pool;
	Glake__Wire__PoolReport *row = &report->pools[report->body.n_pools];
	glake__wire__pool_report__init(row);
	row->device = device;
	row->live_bytes = pool->live_bytes;
	row->peak_live_bytes = pool->peak_live_bytes;
	row->reserved_bytes = pool->reserved_bytes;
	row->peak_reserved_bytes = pool->peak_reserved_bytes;
	row->n_allocs = pool->n_allocs;
	row->n_stitches = pool->n_stitches;
	row->stitched_bytes = pool->stitched_bytes;
	row->n_reuses = pool->n_reuses;
	row->n_grows = pool->n_grows;
	row->n_mapped = pool->n_mapped;
	row->n_unmapped = pool->n_unmapped;
	row->n_kept = pool->n_kept;
	row->kept_bytes = pool->kept_bytes;
	row->free_bytes = heap->stitching ? glake__pool_free_bytes_locked(heap->stitching) : 0;
	report->pool_list[report->body.n_pools++] = row;
}

static void add_pools(struct glake_session *session, struct report *report)
{
	report->body.pools = report->pool_list;
	glake__lock();
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake_pool_stats *pool = &session->heaps[i].pool;
		bool is_used = pool->n_allocs > 0 || pool->reserved_bytes > 0;
		if (is_used && report->body.n_pools < GLAKE_MAX_REPORTED_DEVICES) {
			add_pool(report, session->devices[i].public.index, &session->heaps[i]);
		}
	}
	glake__unlock();
}

static void add_reusable(struct glake_session *session, struct report *report)
{
	report->body.tells_reusable = true;
	report->body.reusable = report->reusable_list;
	glake__lock();
	for (uint32_t i = 0; i < session->n_devices; i++) {
		uint64_t n_bytes = reusable_bytes_locked(session, i);
		if (n_bytes > 0 && report->body.n_reusable < GLAKE_MAX_REPORTED_DEVICES) {
			Glake__Wire__ReusableMemory *row =
				&report->reusable[report->body.n_reusable];
			glake__wire__reusable_memory__init(row);
			row->device = session->devices[i].public.index;
			row->bytes = n_bytes;
			report->reusable_list[report->body.n_reusable++] = row;
		}
	}
	glake__unlock();
}

static bool has_any(const struct glake__driver_memory *driver)
{
	return driver->managed_bytes || driver->array_bytes || driver->graph_bytes ||
	       driver->other_bytes;
}

/* Called with the usage lock held. */
static void add_program_locked(const struct glake_session *session, struct report *report)
{
	const struct glake__program *program = &session->program;
	report->body.n_owned = program->n_owned;
	report->body.n_passed = program->n_passed;
	if (program->idle_since_ns > 0) {
		uint64_t idle_ms = (clock_now_ns() - program->idle_since_ns) / 1000000;
		report->body.idle_ms = idle_ms > 0 ? idle_ms : 1;
	}
	if (program->alone) {
		report->alone_copy = *program->alone;
		glake__wire__alone__init(&report->alone);
		report->alone.filling_bytes = report->alone_copy.filling_bytes;
		report->alone.quiet_bytes = report->alone_copy.quiet_bytes;
		report->alone.sealed_bytes = report->alone_copy.sealed_bytes;
		report->alone.refused_bytes = report->alone_copy.refused_bytes;
		report->alone.n_refused_launches = report->alone_copy.n_refused_launches;
		report->alone.why = report->alone_copy.why;
		report->body.alone = &report->alone;
	}
	report->body.driver = report->list;
	for (uint32_t i = 0; program->driver && i < session->n_devices; i++) {
		const struct glake__driver_memory *driver = &program->driver[i];
		if (!has_any(driver) || report->body.n_driver == GLAKE_MAX_REPORTED_DEVICES) {
			continue;
		}
		Glake__Wire__DriverMemory *row = &report->rows[report->body.n_driver];
		glake__wire__driver_memory__init(row);
		row->device = session->devices[i].public.index;
		row->managed_bytes = driver->managed_bytes;
		row->array_bytes = driver->array_bytes;
		row->graph_bytes = driver->graph_bytes;
		row->other_bytes = driver->other_bytes;
		report->list[report->body.n_driver++] = row;
	}
}

/* True if a report is due, which it is @period_ns after the last one, or wanted; it is then taken as sent. */
static bool take_due(struct glake_session *session, struct glake__usage usage, uint64_t period_ns,
                     bool is_wanted, struct report *report)
{
	pthread_mutex_lock(&session->usage_lock);
	uint64_t now_ns = clock_now_ns();
	usage.program_version = session->program.version;
	bool due = is_wanted || (now_ns - session->usage_sent_ns >= period_ns &&
	                         memcmp(&usage, &session->usage_sent, sizeof(usage)) != 0);
	if (due) {
		session->usage_sent_ns = now_ns;
		session->usage_sent = usage;
		add_program_locked(session, report);
	}
	pthread_mutex_unlock(&session->usage_lock);
	return due;
}

/* @reclaim: the id of the Reclaim that it answers; 0 = none. */
static void send_report(struct glake_session *session, uint64_t period_ns, uint64_t reclaim)
{
	struct glake__usage usage = measure(session);
	struct report report;
	glake__wire__usage_report__init(&report.body);
	if (!take_due(session, usage, period_ns, reclaim != 0, &report)) {
		return;
	}
	add_seals(&report, &usage);
	add_pools(session, &report);
	add_reusable(session, &report);
	report.body.live_bytes = usage.live_bytes;
	report.body.warm_bytes = usage.warm_bytes;
	report.body.peak_bytes = usage.peak_bytes;
	report.body.reclaim = reclaim;
	Glake__Wire__Request *request = REQUEST_OF(USAGE_REPORT, usage_report, &report.body);
	glake__call_forget(&session->link, request);
}

void glake__usage_report(struct glake_session *session)
{
	send_report(session, USAGE_PERIOD_NS, 0);
}

void glake__usage_report_now(struct glake_session *session)
{
	send_report(session, 0, 0);
}

int glake__tell_usage(struct glake_session *session)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	glake__usage_report_now(session);
	return glake_ping(session);
}

void glake__usage_answer(struct glake_session *session, uint64_t id)
{
	send_report(session, USAGE_PERIOD_NS, id);
}

/* ---- of the program --------------------------------------------------------------------------- */

/* Sort the entries of @usage by position into @driver_out, zeroed, of n_devices. */
static int place(const struct glake_session *session, const struct glake__program_usage *usage,
                 struct glake__driver_memory *driver_out, bool *is_taken)
{
	for (size_t i = 0; i < usage->n_driver; i++) {
		const struct glake__driver_memory *driver = &usage->driver[i];
		uint32_t at = 0;
		while (at < session->n_devices &&
		       session->devices[at].public.index != driver->device) {
			at++;
		}
		if (at == session->n_devices) {
			return glake__fail(-ENODEV, "the daemon has no device %u", driver->device);
		}
		if (is_taken[at]) {
			return glake__fail(-EINVAL, "device %u is there twice", driver->device);
		}
		is_taken[at] = true;
		/* Field by field: they are compared as bytes, padding and all. */
		driver_out[at].device = driver->device;
		driver_out[at].managed_bytes = driver->managed_bytes;
		driver_out[at].array_bytes = driver->array_bytes;
		driver_out[at].graph_bytes = driver->graph_bytes;
		driver_out[at].other_bytes = driver->other_bytes;
	}
	return 0;
}

/* Without memory it is told later. */
static void set_alone_locked(struct glake__program *program, const struct glake__alone *alone)
{
	if (alone && !program->alone) {
		program->alone = calloc(1, sizeof(*program->alone));
	}
	if (alone && program->alone && memcmp(program->alone, alone, sizeof(*alone)) != 0) {
		*program->alone = *alone;
		program->version++;
	}
}

/* Takes *driver over and leaves the array there that is to be freed. */
static void set_program(struct glake_session *session, const struct glake__program_usage *usage,
                        struct glake__driver_memory **driver)
{
	struct glake__program *program = &session->program;
	size_t n_bytes = session->n_devices * sizeof(**driver);
	pthread_mutex_lock(&session->usage_lock);
	set_alone_locked(program, usage->alone);
	if (!program->driver || program->n_owned != usage->n_owned ||
	    program->n_passed != usage->n_passed ||
	    program->idle_since_ns != usage->idle_since_ns ||
	    memcmp(program->driver, *driver, n_bytes) != 0) {
		struct glake__driver_memory *before = program->driver;
		program->version++;
		program->n_owned = usage->n_owned;
		program->n_passed = usage->n_passed;
		program->idle_since_ns = usage->idle_since_ns;
		program->driver = *driver;
		*driver = before;
	}
	pthread_mutex_unlock(&session->usage_lock);
}

int glake__set_program_usage(struct glake_session *session,
                             const struct glake__program_usage *usage)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	cleanup_free struct glake__driver_memory *driver = calloc(session->n_devices + 1,
	                                                          sizeof(*driver));
	cleanup_free bool *is_taken = calloc(session->n_devices + 1, sizeof(*is_taken));
	if (!driver || !is_taken) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	r = place(session, usage, driver, is_taken);
	if (r == 0) {
		set_program(session, usage, &driver);
	}
	return r;
}

int glake_usage(struct glake_session *session, struct glake_usage *usage)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__books *books = &session->books;
	glake__lock();
	struct glake_usage full = {
		.live_bytes = live_bytes_locked(session),
		.reserved_bytes = books->reserved_bytes,
		.warm_bytes = warm_bytes_locked(session),
		.shared_bytes = books->shared_bytes,
		.n_warm_allocs = books->n_warm_allocs,
		.n_cold_allocs = books->n_cold_allocs,
		.peak_bytes = books->peak_bytes,
	};
	glake__unlock();
	return glake__sized_out(usage, &full, sizeof(full));
}

int glake_device_view(struct glake_session *session, uint32_t index, struct glake_device_view *view)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake_device_view full;
	r = glake__rpc_device_get(session, index, &full);
	if (r == 0) {
		const struct glake__device *device = glake__session_device(session, index);
		glake__lock();
		/* An allocation that needs what is parked waits for its stream, and has it. */
		full.warm_bytes = device ? glake__heap_free_bytes_locked(device->heap) +
		                                   glake__supply_lent_bytes_locked(device) +
		                                   device->heap->parked_bytes
		                         : 0;
		glake__unlock();
		if (full.promise_bytes == 0 && device) {
			full.promise_bytes = device->promise_bytes;
			full.left_bytes = device->promise_bytes;
		}
		r = glake__sized_out(view, &full, sizeof(full));
	}
	return glake__leave(session, r);
}

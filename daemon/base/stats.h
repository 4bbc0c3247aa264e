/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters and histograms since the start of glaked. A list of each makes the struct, the names and the help.
 *
 * Counters only grow. Current values (sessions, bytes, fds) are not here: the object that owns a
 * value answers for it, so no number is kept twice.
 *
 * Owner: embedded in the server. Zeroed memory is ready.
 * Threads: loop thread only; plain increments.
 */
#ifndef GLAKE_DAEMON_STATS_H
#define GLAKE_DAEMON_STATS_H

#include <stdint.h>

#include "daemon/base/histogram.h"

/* X(name, help) */
#define STATS_LIST(X) \
	X(sessions_total, "connections that became sessions") \
	X(sessions_refused, "connections turned away by a limit") \
	X(sessions_drained, "connections of new programs turned away while glaked was drained") \
	X(sessions_bad, \
	  "sessions closed for what the peer did: bytes that are not a request, silence") \
	X(sessions_lost, "sessions that lost their connection before their process ended") \
	X(sessions_resumed, "sessions that went on with another connection") \
	X(requests_total, "requests that came, refused ones included") \
	X(requests_refused, "requests answered with a refusal") \
	X(chunks_created, "chunks made by the driver") \
	X(chunks_released, "chunks given back to the driver") \
	X(pool_hits, "chunks granted from those made ahead") \
	X(pool_misses, "chunks that had to be made on request") \
	X(models_loaded, "model loads that finished") \
	X(models_failed, "model loads that failed") \
	X(models_hit, "model opens answered from the store") \
	X(models_published, "models that programs published") \
	X(bytes_loaded, "bytes read from model files") \
	X(bytes_direct, "of them past the page cache") \
	X(bytes_deduplicated, "bytes whose block was in the store already") \
	X(blocks_sealed, "chunks that became blocks") \
	X(blocks_collapsed, "chunks given up for an equal block") \
	X(blocks_evicted, "unreferenced blocks given back") \
	X(models_evicted, "models dropped from the store") \
	X(evicted_bytes, "bytes of evicted blocks") \
	X(blocks_copied, "blocks copied to host memory") \
	X(models_demoted, "models that only host memory has from then on") \
	X(models_promoted, "models that came back from host memory") \
	X(blocks_verified, "times that a block was digested again, see verify") \
	X(blocks_damaged, "blocks whose digest was another one then") \
	X(blocks_looked_at, "blocks looked at for what others have at other offsets, once each") \
	X(look_us, "microseconds that copies from GPUs took for that") \
	X(reclaims_sent, "notices asking clients for warm memory") \
	X(quota_waits, "requests that waited for room in a tenant's limit") \
	X(quota_refusals, "requests refused by a tenant's limit") \
	X(memory_waits, "requests that waited for room at a full device or host node") \
	X(memory_refusals, "requests refused for lack of device memory") \
	X(fd_refusals, "requests refused because the fd budget of glaked is spent") \
	X(sleeps, "times that a program fell asleep") \
	X(sleeps_asked, "of them: because somebody asked") \
	X(sleeps_idle, "of them: because it was idle") \
	X(sleeps_pressure, "of them: because others needed its memory") \
	X(slept_bytes, "bytes that left a GPU so, shared ones included") \
	X(wakes, "times that a program woke") \
	X(wakes_failed, "wakes that failed: the program slept on, and may have tried again") \
	X(wakes_refused, "of them: they waited for room in vain") \
	X(woken_bytes, "bytes that came back to a GPU so") \
	X(steps_kept, "parts of programs' memory that outlived their process, for the next one") \
	X(steps_adopted, "of them: that the next one took") \
	X(steps_dropped, "of them: that went for room, a share or kept_ms") \
	X(mover_starts, "times glake-mover was started") \
	X(mover_deaths, "times glake-mover ended without being asked to") \
	X(notices_dropped, "notices not sent to a client that does not read") \
	X(events_total, "events, dropped ones included") \
	X(events_dropped, "events dropped for newer ones")

/* X(name, help). Members have the suffix _time. */
#define STATS_TIMES(X) \
	X(request, \
	  "time that glaked's thread took to handle a request; it serves nobody else then") \
	X(alloc, "time from a request for private memory to its answer, refused ones included") \
	X(load, "time that the load of a model took") \
	X(sleep, "time that copying took when a program fell asleep") \
	X(wake, "time that a wake took from when it could copy") \
	X(wake_wait, "time that it had waited before, for room and until others had copied")

struct stats {
#define STATS_FIELD(name, help) uint64_t name;
	STATS_LIST(STATS_FIELD)
#undef STATS_FIELD
#define STATS_TIME(name, help) struct histogram name##_time;
	STATS_TIMES(STATS_TIME)
#undef STATS_TIME
};

typedef void (*stats_fn)(void *user, const char *name, uint64_t value, const char *help);

/* Call @fn for each number, in the order of the list. Names and help texts are static. */
void stats_for_each(const struct stats *stats, stats_fn fn, void *user);

typedef void (*stats_time_fn)(void *user, const char *name, const struct histogram *histogram,
                              const char *help);

/* Call @fn for each histogram. */
void stats_for_each_time(const struct stats *stats, stats_time_fn fn, void *user);

#endif

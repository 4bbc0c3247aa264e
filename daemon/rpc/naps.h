/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that glaked puts to sleep by itself: those that were idle for their tenant's idle_ms, and for requests that do
 * not fit (pressure.h) the one that was idle for longest; or, if those are not enough, one that works now and then: it
 * finds out itself whether it does at that moment.
 *
 * A program counts as idle if it has reported so. It is not asked while it waits for an answer of glaked (but see below), while
 * somebody asks it something, and before it was awake for min_awake_ms. One that was busy is asked again when it has worked and
 * is idle, or after 10 s, then 20 s, and so on; if host memory was full, nobody is asked for 10 s.
 *
 * A program that waits for nothing but room is put to sleep for requests that came before its own: so of those that wait for
 * each other the first one gets what it waits for. Since it waits, it is asked to wake at once, and its wake gets in line.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_NAPS_H
#define GLAKE_DAEMON_NAPS_H

#include "daemon/rpc/rpc_context.h"

/* To be called once a second: programs nap that were idle for long enough, and wake again. */
void naps_tick(struct rpc_context *rpc);

/* The function of pressure_sleepers.ask; @user is the rpc_context. */
bool naps_for(void *user, const struct pressure_request *request, uint64_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small jobs: digest a chunk, compare two, copy one to host memory or back. They run in their order on a thread and streams
 * of their own, so that they never wait behind a load. A few are under way at a time: what takes long is mapping the chunks,
 * and the GPU works meanwhile.
 *
 * Owner: the mover. Lifetime: prober_init() to prober_deinit(), which works off what is queued.
 * Threads: prober_submit() and prober_cancel() from any.
 */
#ifndef GLAKE_MOVER_PROBE_H
#define GLAKE_MOVER_PROBE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/probe_run.h"
#include "daemon/mover/report.h"

/* More are refused as busy. */
#define PROBER_MAX_QUEUED 1024u

struct prober {
	struct report *report;    /* borrowed */
	struct probe_lanes lanes; /* prober thread only */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct probe *first; /* under lock, owned: oldest first */
	struct probe *last;  /* under lock */
	unsigned n_queued;   /* under lock */
	bool is_stopping;    /* under lock */
};

/* Start the prober. Returns 0 or -errno. */
int prober_init(struct prober *prober, struct devices *devices, struct report *report);
/* The devices are still open. */
void prober_deinit(struct prober *prober);

/* A copy of @probe is queued, whose fds are taken in any case; its report comes when it is done. */
void prober_submit(struct prober *prober, const struct probe *probe);

/* Drop the job if it has not begun; it is then reported as failed. */
void prober_cancel(struct prober *prober, uint64_t job);

#endif

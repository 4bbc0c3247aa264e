/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes glaked's orders and passes each on.
 *
 * glaked is trusted, but its bugs are told from races: a grant or a cancel that crosses the end of its
 * load is dropped; one for a load that never existed is answered with Failed. So is an order whose fds
 * did not all arrive because this process had no room for them.
 *
 * Owner: main. Lifetime: jobs_init() to jobs_deinit(), which waits for the loads it has cancelled.
 * Threads: jobs_order() from one.
 */
#ifndef GLAKE_MOVER_JOBS_H
#define GLAKE_MOVER_JOBS_H

#include <pthread.h>
#include <stdint.h>

#include "daemon/mover/load.h"
#include "daemon/mover/probe.h"
#include "daemon/mover/pump.h"
#include "daemon/mover/refuser.h"
#include "daemon/mover/report.h"
#include "proto/fdlist.h"

/* The ends of this many loads are remembered. */
#define JOBS_ENDED 256u

enum {
	JOBS_E_MALFORMED = 1, /* not an order: nothing after it can be trusted */
};

struct jobs {
	struct prober *prober;   /* borrowed */
	struct refuser *refuser; /* borrowed */
	struct load_host host;
	pthread_mutex_t lock;
	pthread_cond_t freed;
	struct load *loads;         /* under lock: known by their jobs */
	unsigned n_loads;           /* under lock: threads, also of ended loads that are not gone */
	uint64_t ended[JOBS_ENDED]; /* under lock: a ring */
	uint64_t n_ended;           /* under lock */
};

void jobs_init(struct jobs *jobs, const struct cudrv *drv, struct devices *devices,
               struct pump *pump, struct prober *prober, struct refuser *refuser,
               struct budget *budget, struct report *report);
void jobs_deinit(struct jobs *jobs);

/* Handle one packet and take over its fds. Closes no client's file. Returns 0 or JOBS_E_MALFORMED. */
int jobs_order(struct jobs *jobs, const uint8_t *packet, size_t n_bytes, struct fdlist *fds);

#endif

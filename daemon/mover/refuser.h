/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses orders: closes their fds, then reports the reason.
 *
 * The fds are clients' files, and a hostile file system (FUSE) can make close() last for ever. So
 * separate threads close them, and one more thread starts when all others are busy: the caller does
 * not wait, and no refusal waits for another. glaked bounds their number, because the job counts
 * until the report.
 *
 * Owner: main. Lifetime: refuser_init() to refuser_deinit(), which waits for running closes.
 * Threads: refuser_refuse() from any.
 */
#ifndef GLAKE_MOVER_REFUSER_H
#define GLAKE_MOVER_REFUSER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/fault.h"
#include "daemon/mover/report.h"
#include "proto/fdlist.h"

struct refusal;

struct refuser {
	struct report *report; /* borrowed */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct refusal *refusals; /* under lock, owned: not taken by a thread yet */
	unsigned n_refusals;      /* under lock: of these */
	unsigned n_threads;       /* under lock */
	unsigned n_idle;          /* under lock: of them, waiting for one */
	bool is_stopping;         /* under lock */
};

/* Starts the first thread, so there is one even if no other can be started. 0 or -errno. */
int refuser_init(struct refuser *refuser, struct report *report);
void refuser_deinit(struct refuser *refuser);

/*
 * Takes over the fds; @fds is empty afterwards. Without a fault nothing is reported: another load
 * has the number.
 */
void refuser_refuse(struct refuser *refuser, uint64_t job, const struct fault *fault,
                    struct fdlist *fds);

#endif

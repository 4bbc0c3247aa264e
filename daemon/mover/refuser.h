/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders that are refused: the fds that came with one are closed, then it is told why.
 *
 * They are clients' files, and a file system that is a program can make close() last for ever. So
 * threads of their own do it, one more whenever all others are at it: whoever refuses does not wait,
 * and no refusal waits for another. glaked bounds them all: until it is told, the job counts.
 *
 * Owner: main. Lifetime: refuser_init() to refuser_deinit(), which waits for what is closed.
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
	struct refusal *refusals; /* under lock, owned: which no thread has taken */
	unsigned n_refusals;      /* under lock: of these */
	unsigned n_threads;       /* under lock */
	unsigned n_idle;          /* under lock: of them, waiting for one */
	bool is_stopping;         /* under lock */
};

/* Starts the first thread, so that there is one when none can be had. 0 or -errno. */
int refuser_init(struct refuser *refuser, struct report *report);
void refuser_deinit(struct refuser *refuser);

/* Takes the fds; @fds is empty afterwards. With no fault nothing is told: another load has the number. */
void refuser_refuse(struct refuser *refuser, uint64_t job, const struct fault *fault,
                    struct fdlist *fds);

#endif

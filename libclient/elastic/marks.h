/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers behind work on a stream: a number has passed when all work that was queued before it was set has ended.
 *
 * Owner: embedded in its range. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_MARKS_H
#define GLAKE_LIBCLIENT_MARKS_H

#include <pthread.h>
#include <stdint.h>

#include "proto/cudrv.h"

/* At most this many marks wait; one more takes the place of the last, which passes with it. */
#define GLAKE__N_MARKS 16u

struct glake__elastic_marks {
	pthread_mutex_t lock;           /* for all of it; no call of glaked is made with it */
	CUcontext context;              /* borrowed from the program: of the events */
	CUevent events[GLAKE__N_MARKS]; /* owned; NULL: not made yet */
	uint64_t numbers[GLAKE__N_MARKS];
	uint32_t first; /* of those that wait, in a ring */
	uint32_t n;
	uint64_t last;   /* number that was set */
	uint64_t passed; /* the highest that has */
};

void glake__marks_init(struct glake__elastic_marks *marks);

/* With the events, unless @is_forked: then the driver must not be called. */
void glake__marks_deinit(struct glake__elastic_marks *marks, const struct cudrv *drv,
                         bool is_forked);

/* Errors, the text set: -EINVAL (@number is not higher than the last), GLAKE_E_CUDA. */
int glake__marks_set(struct glake__elastic_marks *marks, const struct cudrv *drv, uint64_t number,
                     CUstream stream);

/* By a thread of the library, which has that context then. Never blocks for the GPU. */
uint64_t glake__marks_passed(struct glake__elastic_marks *marks, const struct cudrv *drv);

#endif

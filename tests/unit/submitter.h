/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that enters the shim's gate and leaves it as it is told. */
#ifndef GLAKE_TESTS_SUBMITTER_H
#define GLAKE_TESTS_SUBMITTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "shim/gate.h"
#include "tests/check_glake.h"

struct submitter {
	pthread_t thread;
	atomic_int wanted; /* calls to be inside of; -1: end as it is */
	atomic_int inside;
};

static inline void *submitter_run(void *argument)
{
	struct submitter *submitter = argument;
	int inside = 0;
	for (;;) {
		int wanted = atomic_load(&submitter->wanted);
		if (wanted < 0) {
			return NULL;
		}
		if (wanted > inside) {
			inside += gate_enter() ? 1 : 0;
		} else if (wanted < inside) {
			gate_leave(gate_me);
			inside--;
		} else {
			usleep(100);
		}
		atomic_store(&submitter->inside, inside);
	}
}

static inline void submitter_start(struct submitter *submitter)
{
	*submitter = (struct submitter){0};
	ck_assert_int_eq(pthread_create(&submitter->thread, NULL, submitter_run, submitter), 0);
}

static inline void submitter_go(struct submitter *submitter, int wanted)
{
	atomic_store(&submitter->wanted, wanted);
	while (atomic_load(&submitter->inside) != wanted) {
		usleep(100);
	}
}

static inline void submitter_end(struct submitter *submitter)
{
	atomic_store(&submitter->wanted, -1);
	pthread_join(submitter->thread, NULL);
}

#endif

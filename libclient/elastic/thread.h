/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread of the library, which is told by an eventfd that it is wanted, or that it is to end.
 *
 * Owner: embedded by who starts it. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_THREAD_H
#define GLAKE_LIBCLIENT_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct glake__thread {
	pthread_t id;
	int wanted; /* owned: an eventfd, readable when somebody has rung */
	atomic_bool is_over;
};

/* The thread runs @run(@user) with all signals of the program blocked. 0, -ENOMEM or -EAGAIN, the text set, and nothing is left. */
int glake__thread_start(struct glake__thread *thread, void *(*run)(void *user), void *user);

void glake__thread_ring(struct glake__thread *thread);

/* Called by the thread: the rings until now are heard. */
void glake__thread_hear(struct glake__thread *thread);

/* Have it end, and wait for that; @is_forked: it is not in this process, and only forgotten. */
void glake__thread_end(struct glake__thread *thread, bool is_forked);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/turn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "shim/shim.h"

/* A turn takes milliseconds, unless it and the exiting thread wait for each other. */
#define EXIT_S 2

/* For reading: a turn. */
static pthread_rwlock_t turns = PTHREAD_RWLOCK_INITIALIZER;
static atomic_bool is_ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A forked child inherits the handler, but not the threads that would end their turns. */
static void at_exit(void)
{
	struct timespec end;
	if (shim_is_forked()) {
		return;
	}
	is_ending = true;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += EXIT_S;
	if (pthread_rwlock_timedwrlock(&turns, &end) == 0) {
		pthread_rwlock_unlock(&turns);
	}
}

/* Registered after the driver's own handlers, so it runs before them. */
static void watch_exit(void)
{
	atexit(at_exit);
}

void turn_watch_exit(void)
{
	pthread_once(&once, watch_exit);
}

bool turn_begin(void)
{
	pthread_rwlock_rdlock(&turns);
	if (is_ending) {
		pthread_rwlock_unlock(&turns);
		return false;
	}
	return true;
}

void turn_end(void)
{
	pthread_rwlock_unlock(&turns);
}

bool turn_is_last(void)
{
	return is_ending;
}

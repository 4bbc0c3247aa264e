/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/turn.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "shim/shim.h"

/* A turn takes milliseconds, unless it and the exiting thread wait for each other. */
#define EXIT_S 2
/* The stack for our own functions and the driver's. */
#define STACK_BYTES (256u * 1024)

/* A turn holds this for reading, exit() for writing. */
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

/* ---- threads ---------------------------------------------------------------------------------- */

static int add_local_bytes(struct dl_phdr_info *info, size_t n_info, void *user)
{
	size_t *n_bytes = user;
	(void)n_info;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		*n_bytes += part->p_type == PT_TLS ? part->p_memsz + part->p_align : 0;
	}
	return 0;
}

bool turn_start_thread(void *(*run)(void *), void *user)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	/* The thread's copy of the program's _Thread_local memory lies in its stack. */
	size_t n_bytes = STACK_BYTES;
	dl_iterate_phdr(add_local_bytes, &n_bytes);
	if (pthread_attr_init(&attributes) != 0) {
		return false;
	}
	pthread_attr_setstacksize(&attributes, n_bytes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, run, user);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return error == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libclient/link/error.h"

/* No signal of the program ends up in it. */
static int start(struct glake__thread *thread, void *(*run)(void *user), void *user)
{
	sigset_t all;
	sigset_t before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread->id, NULL, run, user);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

int glake__thread_start(struct glake__thread *thread, void *(*run)(void *user), void *user)
{
	thread->is_over = false;
	thread->wanted = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (thread->wanted < 0) {
		return glake__fail(-ENOMEM, "out of memory, or of file descriptors");
	}
	if (start(thread, run, user) != 0) {
		close(thread->wanted);
		return glake__fail(-EAGAIN, "no thread can be started");
	}
	return 0;
}

void glake__thread_ring(struct glake__thread *thread)
{
	const uint64_t one = 1;
	while (write(thread->wanted, &one, sizeof(one)) < 0 && errno == EINTR) {
	}
}

void glake__thread_hear(struct glake__thread *thread)
{
	uint64_t n;
	while (read(thread->wanted, &n, sizeof(n)) < 0 && errno == EINTR) {
	}
}

void glake__thread_end(struct glake__thread *thread, bool is_forked)
{
	if (!is_forked) {
		thread->is_over = true;
		glake__thread_ring(thread);
		pthread_join(thread->id, NULL);
	}
	close(thread->wanted);
}

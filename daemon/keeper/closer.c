/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* The size of a pipe that any user may have: 262,144 fds wait before closer_close() does. */
#define PIPE_BYTES (1 << 20)

static int line[2];
static atomic_size_t n_waiting;

static void *close_all(void *user)
{
	int fd;
	while (read(line[0], &fd, sizeof(fd)) == (ssize_t)sizeof(fd)) {
		close(fd);
		atomic_fetch_sub(&n_waiting, 1);
	}
	return NULL;
}

int closer_start(void)
{
	pthread_t thread;
	if (pipe2(line, O_CLOEXEC) < 0) {
		return -errno;
	}
	fcntl(line[1], F_SETPIPE_SZ, PIPE_BYTES);
	int error = pthread_create(&thread, NULL, close_all, NULL);
	if (error == 0) {
		pthread_detach(thread);
	}
	return -error;
}

void closer_close(int fd)
{
	atomic_fetch_add(&n_waiting, 1);
	if (write(line[1], &fd, sizeof(fd)) != (ssize_t)sizeof(fd)) {
		close(fd);
		atomic_fetch_sub(&n_waiting, 1);
	}
}

size_t closer_n_waiting(void)
{
	return atomic_load(&n_waiting);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

/* What any user may have: 262,144 fds wait before closer_close() does. */
#define PIPE_BYTES (1 << 20)

static int line[2];

static void *close_all(void *user)
{
	int fd;
	while (read(line[0], &fd, sizeof(fd)) == (ssize_t)sizeof(fd)) {
		close(fd);
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
	if (write(line[1], &fd, sizeof(fd)) != (ssize_t)sizeof(fd)) {
		close(fd);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/closer.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

struct closing {
	uv_work_t work;
	size_t n_fds;
	int fds[];
};

static unsigned n_pending;

static void close_all(const int *fds, size_t n_fds)
{
	for (size_t i = 0; i < n_fds; i++) {
		int fd = fds[i];
		fd_close(&fd);
	}
}

static void run(uv_work_t *work)
{
	struct closing *closing = container_of(work, struct closing, work);
	close_all(closing->fds, closing->n_fds);
}

static void done(uv_work_t *work, int status)
{
	n_pending--;
	free(container_of(work, struct closing, work));
}

void closer_close(uv_loop_t *loop, const int *fds, size_t n_fds)
{
	if (n_fds == 0) {
		return;
	}
	struct closing *closing = malloc(sizeof(*closing) + n_fds * sizeof(fds[0]));
	if (!closing) {
		/* Slow beats leaked. */
		close_all(fds, n_fds);
		return;
	}
	closing->n_fds = n_fds;
	memcpy(closing->fds, fds, n_fds * sizeof(fds[0]));
	n_pending++;
	uv_queue_work(loop, &closing->work, run, done);
}

unsigned closer_n_pending(void)
{
	return n_pending;
}

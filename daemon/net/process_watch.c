/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/process_watch.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct process_watch {
	uv_poll_t poll;
	int pidfd; /* owned */
	process_end_fn on_end;
	void *user;
};

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct process_watch *watch = container_of(poll, struct process_watch, poll);
	watch->on_end(watch->user);
}

int process_watch_new(uv_loop_t *loop, int pidfd, process_end_fn on_end, void *user,
                      struct process_watch **watch_out)
{
	cleanup_free struct process_watch *watch = calloc(1, sizeof(*watch));
	if (!watch) {
		return -ENOMEM;
	}
	int r = uv_poll_init(loop, &watch->poll, pidfd);
	if (r < 0) {
		return r;
	}
	watch->pidfd = pidfd;
	watch->on_end = on_end;
	watch->user = user;
	/* uv_poll_start() fails only for a handle that is closing. */
	uv_poll_start(&watch->poll, UV_READABLE, on_readable);
	*watch_out = ptr_steal(watch);
	return 0;
}

static void on_closed(uv_handle_t *handle)
{
	struct process_watch *watch = container_of(handle, struct process_watch, poll);
	fd_close(&watch->pidfd);
	free(watch);
}

void process_watch_free(struct process_watch *watch)
{
	if (watch) {
		uv_close((uv_handle_t *)&watch->poll, on_closed);
	}
}

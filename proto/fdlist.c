/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/fdlist.h"

#include <errno.h>

#include "proto/cleanup.h"

void fdlist_init(struct fdlist *list)
{
	list->n_fds = 0;
	list->is_cut = false;
}

void fdlist_deinit(struct fdlist *list)
{
	for (size_t i = 0; i < list->n_fds; i++) {
		fd_close(&list->fds[i]);
	}
	fdlist_init(list);
}

int fdlist_add(struct fdlist *list, int fd)
{
	if (list->n_fds == GLAKE_MAX_PACKET_FDS) {
		return -ENOSPC;
	}
	list->fds[list->n_fds++] = fd;
	return 0;
}

int fdlist_take(struct fdlist *list, size_t index)
{
	if (index >= list->n_fds) {
		return -1;
	}
	return fd_steal(&list->fds[index]);
}

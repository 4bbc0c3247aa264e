/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds that travel with one packet.
 *
 * Owner: a list owns the fds in it; fdlist_take() moves one out, fdlist_deinit() closes the rest.
 * Lifetime: embedded, usually on the stack for one receive or one send.
 * Threads: none of its own.
 */
#ifndef GLAKE_PROTO_FDLIST_H
#define GLAKE_PROTO_FDLIST_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/limits.h"

struct fdlist {
	size_t n_fds;
	bool is_cut; /* the packet had more fds than the receiver's limit let in */
	int fds[GLAKE_MAX_PACKET_FDS]; /* owned; -1 once taken */
};

void fdlist_init(struct fdlist *list);

/* Close the fds that are still in the list, and empty it. Safe to call twice. */
void fdlist_deinit(struct fdlist *list);

/* Append @fd, which the list then owns. Returns 0, or -ENOSPC (fd stays the caller's). */
int fdlist_add(struct fdlist *list, int fd);

/* Move fd number @index out to the caller. Returns -1 when there is none (any more). */
int fdlist_take(struct fdlist *list, size_t index);

#define cleanup_fdlist __attribute__((cleanup(fdlist_deinit)))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What copies_keep.c and copies_make.c have in common.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_COPIES_PARTS_H
#define GLAKE_DAEMON_COPIES_PARTS_H

#include "daemon/store/copies.h"

void copy_set_state(struct copy *copy, enum copy_state state);

/* In the table, whatever its state. */
struct copy *copy_find(const struct copies *copies, const struct realm *realm,
                       const struct digest *digest);

/* TAKING. Without @digest it is of private memory, and nobody finds it. NULL: no memory. */
struct copy *copy_new(struct copies *copies, struct realm *realm, const struct digest *digest,
                      uint64_t bytes, uint64_t content_bytes);
void copy_free(struct copies *copies, struct copy *copy);

/* For an order to the mover. @fd: of its large chunk. */
struct mover_host copy_place(const struct copy *copy, int fd);

/*
 * The copy at @at (NULL: anywhere) that nobody has used for longest goes, and a model that only host memory has with it.
 * False: none is left.
 */
bool copies_make_room(struct copies *copies, const struct location *at);

/* A chunk was forgotten, or will not be soon: what waits for room looks again. */
void copies_look_for_room(struct copies *copies);

/* Begin what is wanted and has its turn. */
void copies_copy_next(struct copies *copies);

#endif

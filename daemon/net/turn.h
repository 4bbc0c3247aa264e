/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares the loop's time out by user, however many connections a user has.
 *
 * A connection with work waits in its user's line. After each poll, the loop serves every user that
 * has a line for one slice (SLICE_NS in the .c): some steps of one connection after the other. The
 * rest of the line waits for the next poll, so every other user has a slice before. A user with
 * many or costly connections delays itself, and each other user by one slice. Users without such a
 * rest come first.
 *
 * Owner: a conn embeds a struct turn.
 * Lifetime: turns_begin() to turns_end(), when no turn is left.
 * Threads: loop thread only.
 */
#ifndef GLAKE_DAEMON_TURN_H
#define GLAKE_DAEMON_TURN_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/list.h"

struct user;
struct turn;

/*
 * Take one step, as short as possible. Returns whether there is another one to take; false if
 * turn_leave() was called meanwhile.
 */
typedef bool (*turn_fn)(struct turn *turn);

/* The turn of one connection, or of the listening socket. */
struct turn {
	struct list link; /* link: user.line, while it waits */
	struct user *user;
	turn_fn serve;
};

void turns_begin(uv_loop_t *loop);
void turns_end(void);

/* Begin with a connection of glaked's own, or without a user until turn_enter(). */
void turn_init(struct turn *turn, turn_fn serve);

/* @turn belongs to @uid from now on. It must not be waiting. Returns 0, or -ENOMEM: nothing has changed. */
int turn_enter(struct turn *turn, uid_t uid);

/* @turn does not wait any more, and may be freed. Idempotent. */
void turn_leave(struct turn *turn);

/* Wait in line. Harmless if it does already. */
void turn_wait(struct turn *turn);
bool turn_is_waiting(const struct turn *turn);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is: the loop's time is shared out by user, however many connections one has.
 *
 * A connection with something to do stands in its user's line. Each time the loop has polled, every
 * user with a line is served for a slice (SLICE_NS in the .c), some steps of one connection after the
 * other; what is left of the line waits until the loop has polled again, and everybody else had his
 * slice. So a user with many connections, or costly ones, waits for himself, and anybody else for one
 * slice of each other user. Users that were not left over go first.
 *
 * Owner: a conn embeds a struct turn; users are the process's.
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
 * Take one step, as short as there is. Returns whether to stand in line again for the next one;
 * false if the turn was left meanwhile.
 */
typedef bool (*turn_fn)(struct turn *turn);

/* Of one connection, or of the socket that they come from. */
struct turn {
	struct list link; /* link: user.line, while it waits */
	struct user *user;
	turn_fn serve;
};

void turns_begin(uv_loop_t *loop);
void turns_end(void);

/* Of our own connection, or of one that is nobody's yet, until turn_enter(). */
void turn_init(struct turn *turn, turn_fn serve);

/* It is @uid's from now on; while it does not wait. Returns 0, or -ENOMEM: it is not. */
int turn_enter(struct turn *turn, uid_t uid);

/* It waits no more, and may go. Idempotent. */
void turn_leave(struct turn *turn);

/* Stand in line, if it does not yet. */
void turn_wait(struct turn *turn);
bool turn_is_waiting(const struct turn *turn);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users: a uid, with its subordinate uids, and what glaked shares out between users. This is the
 * one table of them; turn.c and inflight.c each own a part of an entry.
 *
 * Owner: the process. Lifetime: from the first user_get() until user_forget(), which
 * inflight_tick() calls for those that have nothing. Threads: loop thread, but inflight.c's part,
 * which its mutex protects.
 */
#ifndef GLAKE_DAEMON_USER_H
#define GLAKE_DAEMON_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"

struct user;

/* Fds that one thread closes, one after the other. */
struct lane {
	struct user *user;
	bool has_connections;
	struct list closings;
	struct list left;
	size_t n_fds;    /* not closed yet */
	bool has_thread; /* which ends when there are no closings */
};

enum lane_kind { FILES, CONNECTIONS, N_LANES };

struct user {
	struct list link; /* link: users */
	uid_t uid;

	/* turn.c */
	size_t n_turns;    /* entered */
	struct list place; /* link: turn.c's fresh or left, while it has a line */
	struct list line;  /* of struct turn */

	/* inflight.c */
	size_t n_connections; /* entered, and left */
	size_t n_unread;      /* of all of them, and so the next */
	size_t n_queued;
	struct list unread; /* of struct inflight */
	uint64_t look_ms;   /* not before that */
	struct lane lanes[N_LANES];
};

extern struct list users;

/* A new one, unless there is one of @uid. NULL: no memory. */
struct user *user_get(uid_t uid);

/* It has no turns, and nothing in flight. */
void user_forget(struct user *user);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users: a uid, with its subordinate uids, and what glaked shares out between users. This is the
 * one table of them; turn.c and inflight.c each own a part of an entry.
 *
 * Everything of glaked that is limited and that a request can take has a row in users.def. Of most rows
 * there is a pot: glaked's one, or one for each tenant. A user takes from it with a charge, which lies beside what
 * was taken, and is paid back with it. user_charge() refuses what is beyond the user's share:
 *
 *   share = (limit - what all others have) / part, and at least so much as the row says while there is room
 *
 * So the first user may have a half, the next one half of the rest, and each new user gets something. pot_deinit()
 * asserts that all is paid back.
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
#include "proto/limits.h"

struct user;

enum user_row {
#define USER_ROW(name, ...) USER_##name,
#include "daemon/net/users.def"
#undef USER_ROW
	USER_N_ROWS,
};

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
	size_t n_refs;   /* of holders, and of what they have made */
	size_t n_shares; /* of pots */

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

/* @user stays until user_unref(). NULL is fine. */
struct user *user_ref(struct user *user);
void user_unref(struct user *user);

/* Forget a user without turns, charges, or anything in flight. */
void user_forget(struct user *user);

/* ---- accounts -------------------------------------------------------------------------------- */

/* All that users have of one thing. Zeroed memory, but for its row, is one without a limit. */
struct pot {
	enum user_row row;
	uint64_t limit;       /* 0 = none */
	uint64_t used;        /* by all users */
	struct share *shares; /* table by user */
};

/* A charge is the part of a pot that a user has taken. Zeroed memory is nothing. */
struct user_charge {
	struct share *share; /* NULL: nothing, or glaked's own, which nobody pays */
	uint64_t n;
};

/* The share that a user may have if the others have so much. */
uint64_t user_share(enum user_row row, uint64_t limit, uint64_t n_of_others);

/* Whether the user may take @n more. NULL: glaked itself, which may. */
bool pot_has_room(const struct pot *pot, const struct user *user, uint64_t n);
/* The part of @pot that the user has. */
uint64_t pot_used_by(const struct pot *pot, const struct user *user);
/* Everything is paid back. */
void pot_deinit(struct pot *pot);

/*
 * Take @n more for the user, of the same pot as before. Returns false if that is beyond its share, or without host
 * memory: nothing has changed. @user NULL: glaked itself, of whom nothing is counted.
 */
bool user_charge(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n);
/* Take @n more for the user, whatever the share is. Without host memory nobody pays. */
void user_charge_anyway(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n);
/* Pay it back; harmless if there is nothing. */
void user_refund_all(struct user_charge *charge);
/* Have @n in all, whatever the share is. */
void user_charge_set(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n);

#endif

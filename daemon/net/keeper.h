/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to glake-keeper, whose children are processes that glaked wants: order one, have it killed,
 * hear of its end. See proto/keeper.h and daemon/keeper/main.c.
 *
 * A keeper that dies takes its children with it: glaked kills them and waits for the end of each. There is
 * another keeper soon (keeper_starter.h), for which children ordered meanwhile wait.
 *
 * Owner: the server embeds it. Lifetime: keeper_open() to keeper_close(), and the loop's next turn.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_KEEPER_H
#define GLAKE_DAEMON_KEEPER_H

#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/net/conn.h"
#include "proto/keeper.h"

struct keeper_child;
struct process_watch;

/* With the last event (proto/keeper.h) the keeper has forgotten @child, which may be freed. */
typedef void (*keeper_event_fn)(struct keeper_child *child, enum keeper_event event, int value);

struct keeper_child {
	struct list link; /* link: keeper.children */
	uint64_t id;      /* 0: it waits for a keeper */
	keeper_event_fn on_event;
	int pidfd;                   /* owned; -1: not started, or orphaned */
	struct process_watch *watch; /* owned; while it is orphaned */
};

struct keeper {
	uv_loop_t *loop;     /* borrowed */
	struct conn starter; /* brings the next keeper's socket */
	struct conn *conn;   /* owned; NULL: there is no keeper for now */
	struct list children;
	struct list orphans; /* of keepers that have died */
	uint64_t last_id;
};

/* Takes @socket, of keeper_starter_begin(), over; -1: there is no keeper ever. Returns 0 or -errno. */
int keeper_open(struct keeper *keeper, uv_loop_t *loop, int socket);

/* All children are lost: their events come from in here. */
void keeper_close(struct keeper *keeper);

/*
 * Have @program started, with a duplicate of @fd as its fd 3, its stdout and stderr being ours, and with
 * @setting ("NAME=value", NULL: none) in its environment. @child->on_event is set by the caller; no event
 * comes from in here. While there is no keeper @child only waits: with KEEPER_READY this is to be called
 * again. Returns 0 or -errno.
 */
int keeper_start(struct keeper *keeper, struct keeper_child *child, const char *program,
                 const char *setting, int fd);

/* SIGKILL. Harmless for one that has ended, or waits. */
void keeper_kill(struct keeper *keeper, const struct keeper_child *child);

#endif

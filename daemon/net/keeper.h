/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to glake-keeper. glaked orders processes from it, has them killed, and hears of their
 * end. They are the keeper's children. See proto/keeper.h and daemon/keeper/main.c.
 *
 * A keeper that dies takes its children with it: glaked kills them and waits for the end of each.
 * There is another keeper soon (keeper_starter.h), for which children ordered meanwhile wait.
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

/* With the last event (proto/keeper.h) the link forgets @child, which may be freed. */
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
	struct conn starter; /* the sockets of new keepers come here */
	struct conn *conn;   /* owned; NULL: there is no keeper for now */
	struct list children;
	struct list orphans; /* of keepers that have died */
	uint64_t last_id;
};

/* Takes over @socket, of keeper_starter_begin(); -1: there will be no keeper. Returns 0 or -errno. */
int keeper_open(struct keeper *keeper, uv_loop_t *loop, int socket);

/* All children are lost: on_event is called from here. */
void keeper_close(struct keeper *keeper);

/*
 * Have @program started. Its fd 3 is a duplicate of @fd, stdout and stderr are glaked's, and its
 * environment has @setting ("NAME=value", NULL: none). The caller sets @child->on_event, which is
 * not called from here. While there is no keeper, @child waits; at KEEPER_READY the caller calls
 * this again. Returns 0 or -errno.
 */
int keeper_start(struct keeper *keeper, struct keeper_child *child, const char *program,
                 const char *setting, int fd);

/* SIGKILL. Harmless for a child that has ended, or waits. */
void keeper_kill(struct keeper *keeper, const struct keeper_child *child);

#endif

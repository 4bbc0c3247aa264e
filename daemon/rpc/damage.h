/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A damaged block: it is withdrawn, and an event names those who use it. Both look at all models and all that
 * holders have, so they go on in steps, one in each turn of the loop. Then the event comes.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_DAMAGE_H
#define GLAKE_DAEMON_DAMAGE_H

#include "daemon/rpc/rpc_context.h"

/* Models, places, holders and things that one turn of the loop looks at: a tenth of a millisecond. */
#define DAMAGE_STEPS 4096u

/* A list of names as part of a line, cut when it is full. */
struct damage_names {
	char text[160];
	size_t n_bytes;
	unsigned n;
};

struct damage {
	uv_idle_t idle;
	struct rpc_context *rpc; /* borrowed */
	struct block *block;     /* held in the store; NULL: none is damaged */
	bool has_models;         /* all were looked at */
	struct damage_names models;
	struct damage_names sessions;
};

void damage_init(struct damage *damage, uv_loop_t *loop, struct rpc_context *rpc);

/* One at a time: until its event has come, the patrol looks at no other block. */
void damage_begin(struct damage *damage, struct block *block);

/* Close: there will be no event. */
void damage_close(struct damage *damage);

#endif

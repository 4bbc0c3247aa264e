/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operator drains glaked: no new program is let in, so that in the end there is none, and nobody is cut off. It is a state
 * that outlives glaked, because a client that connects starts the next one; only the operator ends it, or a boot.
 *
 * A program that has a session already goes on as before: it gets memory, wakes, connects again after a restart of glaked,
 * and may have further sessions. Who only looks is let in, and gets nothing.
 *
 * The order is kept in a file by a thread of libuv's stock. Draining begins at once, and is taken back if the file cannot be
 * written; its end comes with the file's.
 *
 * Owner: embedded in the rpc context. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_DRAIN_H
#define GLAKE_DAEMON_DRAIN_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/holders/holder.h"
#include "daemon/keep/drained.h"

#define DRAIN_WHY_BYTES (GLAKE_MAX_REASON_BYTES + 160u)

struct drain {
	struct drained mark;
	char *path;   /* owned: of the file */
	bool is_busy; /* the file is being written */
};

/* A drain that an earlier glaked was told goes on. @beside: the path of the books. Returns 0 or -ENOMEM. */
int drain_open(struct drain *drain, const char *beside);
/* Close the drain, but not while it is busy. */
void drain_close(struct drain *drain);

/* Whether a new session of @holder's process is let in. */
bool drain_lets_in(const struct drain *drain, const struct holder *holder, bool only_looks);
/* Why it is not, for its user. */
void drain_say_why(const struct drain *drain, char why_out[DRAIN_WHY_BYTES]);

#endif

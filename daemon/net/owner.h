/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a connection counts as: the user whose subordinate uid its peer has, or the peer's own uid.
 *
 * A user may be given ranges of uids for his containers (/etc/subuid, or what nsswitch.conf names for
 * "subid"). Each would be a user of its own, with a share of everything. So a uid is its owner's when
 * all of this holds, and its own in any doubt:
 *
 *   - exactly one user owns it: with two, either could act as the other;
 *   - he is a person (OWNER_MIN): ranges of root and of system accounts serve containers of many;
 *   - nobody has it as his account's: ranges that overlap accounts are a mistake, and the account must
 *     not become somebody else.
 *
 * It says nothing of what the peer may steer: admin is who the kernel says is one (config_is_admin()).
 *
 * The system may have to ask a network for it, so that is done on a thread of libuv's pool, one uid at
 * a time, while the connections wait; what was found holds for a minute, or until owners_forget().
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_OWNER_H
#define GLAKE_DAEMON_OWNER_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

/* Where the system's tools begin to give uids to people. */
#define OWNER_MIN 1000u

/* Connections that wait; what glaked keeps for itself (CONFIG_RESERVED_FDS) has room for them. */
#define OWNERS_MAX_WAITING 256u

struct owners;

/* Of a connection that waited or did not: the fd is the callee's. */
typedef void (*owner_fn)(void *user, int fd, uid_t owner);

/* Returns 0 or -ENOMEM. */
int owners_new(uv_loop_t *loop, owner_fn on_known, void *user, struct owners **owners_out);

/* Takes @fd, a connected socket, over. @on_known may be called in here. */
void owners_find(struct owners *owners, int fd);

/* OWNERS_MAX_WAITING connections wait: better take no more for a while. */
bool owners_is_full(const struct owners *owners);

/* Once in a while: whoever has waited for longer than a client does is closed. */
void owners_tick(struct owners *owners);

/* Everything is looked up anew. */
void owners_forget(struct owners *owners);

/* Close what waits; nothing is called back any more. */
void owners_close(struct owners *owners);

/* A look-up is under way, which only the loop can end. */
bool owners_is_busy(const struct owners *owners);

/* After owners_close(), and not busy. NULL is fine. */
void owners_free(struct owners *owners);

#endif

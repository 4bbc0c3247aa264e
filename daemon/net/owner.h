/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the user that a connection counts as: the owner of its peer's subordinate uid, or the
 * peer's own uid.
 *
 * A user may have ranges of uids for containers (/etc/subuid, or the source that nsswitch.conf
 * names for "subid"). Without this, each of those uids would have a share of everything. A uid
 * counts as its owner if all of this holds, and as itself otherwise:
 *
 *   - Exactly one user owns it. With two owners, one could act as the other.
 *   - The owner is a person (OWNER_MIN). Ranges of root and of system accounts serve containers of many people.
 *   - It is not the uid of an account. A range that overlaps accounts is a mistake, and the account must not
 *     become somebody else.
 *
 * Admin rights do not follow from this: they depend on the kernel's uid and groups (config_is_admin()).
 *
 * The look-up may go over a network. So a thread of libuv's pool does it, one uid at a time, while the
 * connections wait. A result is valid for a minute, or until owners_forget().
 *
 * Look-ups go by turns of owners, and each owner has a share of the places of those who wait (owner_line.h). So who
 * connects with many uids waits behind himself. If the database is slow, connections beyond the share are closed.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_OWNER_H
#define GLAKE_DAEMON_OWNER_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

/* The first uid that the system's tools give to people. */
#define OWNER_MIN 1000u

/* About this many connections may wait; glaked's own reserve (CONFIG_RESERVED_FDS) has room for them. */
#define OWNERS_MAX_WAITING 256u

struct owners;

/* The owner of a connection is known, after a look-up or at once. The callee owns the fd. */
typedef void (*owner_fn)(void *user, int fd, uid_t owner);

/* Returns 0 or -ENOMEM. */
int owners_new(uv_loop_t *loop, owner_fn on_known, void *user, struct owners **owners_out);

/* Takes @fd, a connected socket, over. @on_known may be called in here. */
void owners_find(struct owners *owners, int fd);

/*
 * Somebody's connections have their share of the places, and are being looked up: the caller should accept no more until
 * one of them is known.
 */
bool owners_is_full(const struct owners *owners);

/* To be called once in a while: close connections that have waited longer than a client waits. */
void owners_tick(struct owners *owners);

/* Forget all results. */
void owners_forget(struct owners *owners);

/* Close the connections that wait. Nothing is called back any more. */
void owners_close(struct owners *owners);

/* A look-up is running; only the loop can end it. */
bool owners_is_busy(const struct owners *owners);

/* Free the owners after owners_close(), when they are not busy. NULL is fine. */
void owners_free(struct owners *owners);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fd store: the service manager keeps duplicates of our fds under names, and passes them to the
 * next glaked. The manager is systemd (FileDescriptorStoreMax=) or `glake-keeper -- glaked`; both
 * speak sd_notify(3): FDSTORE=1, FDSTOREREMOVE=1, BARRIER=1.
 *
 *   glaked                             manager
 *     fdstore_put("b1", fd)    ------>   keeps a duplicate
 *     fdstore_barrier(fn)      ------>   has handled everything before
 *     fn() is called           <------   closes the barrier's fd
 *     fdstore_remove("b1")     ------>   closes its duplicate
 *
 * The manager answers nothing else: an fd that it refuses is lost silently. So glaked counts, and
 * refuses before the manager does. There are two limits:
 *
 * - $FDSTORE, the number of fds. systemd sets it from version 254; the unit sets it for older ones.
 *   Without it nobody keeps fds.
 * - FDSTORE_NAMES_BYTES: the manager passes all names in one environment variable, for which the
 *   kernel has 128 KiB. A manager that exceeds it cannot start glaked again. So names must be short:
 *   names of 6 characters fill it with 18,700 fds, names of 17 characters with 7,200.
 *
 * Nothing here blocks. What cannot be sent waits in a queue, in order, with duplicates of its fds. If an fd is
 * removed that was not sent yet, the manager hears of neither. The watchdog's beat (notify.h) goes before all.
 *
 * A passed fd stays kept under its name until fdstore_remove(). systemd keeps a file once: a second
 * name for the same open file is ignored.
 *
 * Owner: the server. Lifetime: fdstore_open() to fdstore_close(), and the loop's next turns.
 * Threads: the loop thread.
 */
#ifndef GLAKE_DAEMON_FDSTORE_H
#define GLAKE_DAEMON_FDSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* Room for the names of all kept fds, each with one byte more. The rest is for a socket unit's. */
#define FDSTORE_NAMES_BYTES (127u * 1024)
#define FDSTORE_NAME_BYTES 256u /* the longest name, with its NUL */
#define FDSTORE_SHORT_BYTES 24u /* a name that is not longer fits if there is room at all */
/* A passed listening socket with another name is a socket unit's. */
#define FDSTORE_LISTEN "listen"

struct fdstore;

typedef void (*fdstore_fn)(void *user);

/*
 * Take the fds that the manager passed ($LISTEN_FDS), close-on-exec, and connect to it. To be called
 * once: it clears the variables, so that no child sees them. If nobody keeps fds there is a store as
 * well: fdstore_is_kept() says false, and the socket of a socket unit can be taken from it.
 * Returns 0, -EINVAL: there is a passed socket that is not a listening AF_UNIX SOCK_SEQPACKET one, or
 * two of a socket unit; or another -errno. After an error all passed fds are closed.
 */
int fdstore_open(uv_loop_t *loop, struct fdstore **store_out);

/*
 * Close the store: nothing is called back any more. Messages that wait to be sent are dropped, fds that nobody took are closed
 * and stay kept. The loop frees the store. NULL is fine.
 */
void fdstore_close(struct fdstore *store);

/* Somebody keeps fds. It never changes. */
bool fdstore_is_kept(const struct fdstore *store);

/* The manager is gone, or refuses messages: what it has not said to have may be lost. It takes no fds any more. */
bool fdstore_is_lost(const struct fdstore *store);

/* How many fds are kept, and about how many can be, if their names are as long. A queued put counts. */
uint32_t fdstore_n_kept(const struct fdstore *store);
uint32_t fdstore_max(const struct fdstore *store);
/* A short name will be refused. */
bool fdstore_is_full(const struct fdstore *store);

/* ---- at the start: what was passed ------------------------------------------------------------ */

/* The listening socket of a socket unit, which is then the caller's. -ENOENT: none was passed. */
int fdstore_take_listener(struct fdstore *store);

/* The fd that was kept under @name, which is then the caller's, and is still kept. Or -ENOENT. */
int fdstore_take(struct fdstore *store, const char *name);

/*
 * The names of what was passed and kept, in the order of the alphabet, @index from 0; taken ones
 * too. NULL: no more. Valid until fdstore_settle().
 */
const char *fdstore_passed(const struct fdstore *store, size_t index);

/*
 * All were taken that are wanted: remove the others from the manager, close them, and log how many. Blocks while the
 * driver frees their memory: start-up only. Returns the number.
 */
size_t fdstore_settle(struct fdstore *store);

/*
 * Wait until the manager has handled everything that was put and removed before, as a barrier does, but here.
 * Blocks: start-up only. Returns 0, also if nobody keeps fds; -ETIMEDOUT; or another -errno.
 */
int fdstore_await(struct fdstore *store, uint64_t patience_ms);

/* ---- afterwards ------------------------------------------------------------------------------- */

/*
 * Keep a duplicate of @fd, which stays the caller's, under @name: 1 to 255 printable characters
 * without ':', under which nothing is kept now. The manager has it when a later barrier comes back.
 * Returns 0, -ENOTSUP: nobody keeps fds, or not any more; -ENOSPC: the store is full, which is logged; -EINVAL: not a
 * name; -ENOMEM or -EMFILE: it would have to wait, and cannot.
 */
int fdstore_put(struct fdstore *store, const char *name, int fd);

/*
 * The manager closes its duplicate of what was put or passed under @name. When a later barrier comes
 * back, glake-keeper has closed it, and so has systemd up to 253; later ones begin to. Returns whether the manager
 * is told: false if it has nothing of that name, and nobody need wait.
 */
bool fdstore_remove(struct fdstore *store, const char *name);

/*
 * Call @fn from the loop, never from here, when the manager has handled everything that was put and
 * removed before. Without a manager, or with one that is lost, that is soon. Returns 0, -ENOMEM or -EMFILE.
 */
int fdstore_barrier(struct fdstore *store, fdstore_fn fn, void *user);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What glaked tells the service manager, and what it gets from it: sd_notify(3), socket activation.
 *
 * Without a service manager ($NOTIFY_SOCKET is not set) every notify_* call does nothing. A message
 * that cannot be sent is lost: glaked works without its manager, and does not wait for one that
 * does not read, but for 100 ms where a change of state is to be told. Status text may come from a
 * client's request; line breaks in it become spaces, since a line is a command to the manager.
 *
 * Threads: the loop thread.
 */
#ifndef GLAKE_DAEMON_NOTIFY_H
#define GLAKE_DAEMON_NOTIFY_H

#include <stdint.h>

/* Start-up, or a reload, is over. @status: one line for `systemctl status`; NULL = unchanged. */
void notify_ready(const char *status);

/* A status that was told already is not told again, so this may be called often. */
__attribute__((format(printf, 1, 2))) void notify_status(const char *format, ...);

/* A reload begins; notify_ready() ends it. Sends the time that Type=notify-reload asks for. */
void notify_reloading(void);

/* The drain begins. */
void notify_stopping(void);

/* How often to call notify_watchdog(): half of the manager's patience. 0 = nobody watches. */
uint64_t notify_watchdog_interval_ms(void);

/* "The loop turns." */
void notify_watchdog(void);

/*
 * The listening socket that the manager passed, close-on-exec, which is then the caller's. To be
 * called once: it forgets the passed fds and clears $LISTEN_FDS, so that no child sees them.
 * Returns the fd, -ENOENT when none was passed, -EINVAL when what was passed is not exactly one
 * listening AF_UNIX SOCK_SEQPACKET socket (every passed fd is then closed), or another -errno.
 */
int notify_listen_fd(void);

#endif

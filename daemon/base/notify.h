/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications to the service manager, sd_notify(3).
 *
 * Without a service manager ($NOTIFY_SOCKET is not set) every notify_* call does nothing. A message
 * that cannot be sent is lost: glaked works without its manager. It does not wait for a manager
 * that does not read, except for up to 100 ms to tell a change of state. But the watchdog's beat must get there: it
 * stays due until it was sent, and goes before what fdstore.h has to say. Status text may come from
 * a client's request; line breaks in it become spaces, because a line is a command to the manager.
 *
 * Threads: the loop thread.
 */
#ifndef GLAKE_DAEMON_NOTIFY_H
#define GLAKE_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Start-up, or a reload, is over. @status: one line for `systemctl status`; NULL = unchanged. */
void notify_ready(const char *status);

/* Does not send an unchanged status again, so it may be called often. */
__attribute__((format(printf, 1, 2))) void notify_status(const char *format, ...);

/* A reload begins; notify_ready() ends it. Sends the time that Type=notify-reload asks for. */
void notify_reloading(void);

/* The drain begins. */
void notify_stopping(void);

/* How often to call notify_watchdog(): half of the manager's time-out. 0 = there is no watchdog. */
uint64_t notify_watchdog_interval_ms(void);

/* "The loop turns." Returns false if the manager's queue is full: the beat is due. */
bool notify_watchdog(void);
/* Try to send a beat that is due. Returns whether none is due any more: who has other messages sends them now. */
bool notify_catch_up(void);

/*
 * A datagram socket, connected to the manager, for what fdstore.h sends. Returns the fd, which is the
 * caller's, -ENOENT when there is no manager, or another -errno.
 */
int notify_connect(void);

#endif

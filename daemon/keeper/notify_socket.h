/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket for the messages of a glaked, in a folder of its own that only this user can enter: messages can bring
 * fds that are slow to close. Folders of keepers that were killed go with the next one's start.
 *
 * Threads: one. Nothing blocks.
 */
#ifndef GLAKE_DAEMON_KEEPER_NOTIFY_SOCKET_H
#define GLAKE_DAEMON_KEEPER_NOTIFY_SOCKET_H

#include <sys/un.h>

/* The socket, which tells who sent what, or -errno. Its folder lies in the first of the usual ones that has room for it. */
int notify_socket_open(struct sockaddr_un *address_out);
/* The file and its folder go. {0} is fine. */
void notify_socket_remove(const struct sockaddr_un *address);

#endif

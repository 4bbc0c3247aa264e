/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packet in, one packet out, on a SOCK_SEQPACKET Unix socket, with the fds it carries.
 *
 * Only this file calls sendmsg() and recvmsg(). It knows nothing of the messages' content. A
 * truncated packet (MSG_TRUNC) is malformed. A packet with cut fds (MSG_CTRUNC) is not: its bytes
 * are whole, and the receiver, not the peer, is at its limit of open files.
 *
 * Threads: any; calls on one socket must not overlap in one direction.
 */
#ifndef GLAKE_PROTO_WIRE_H
#define GLAKE_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fdlist.h"

enum {
	WIRE_E_EOF = 1,   /* the peer closed its end, or is gone */
	WIRE_E_MALFORMED, /* too long, or empty with fds: close the connection */
};

/*
 * Send @n_bytes (1 .. GLAKE_MAX_PACKET_BYTES) and copies of @n_fds fds, which stay the caller's.
 * @flags: 0 or MSG_DONTWAIT. Returns 0, WIRE_E_EOF, -EAGAIN, or another -errno.
 */
int wire_send(int socket, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
              int flags);

/*
 * Receive one packet into @buffer (@capacity >= GLAKE_MAX_PACKET_BYTES) and its fds into @fds, an
 * initialised list that must be empty. The fds arrive close-on-exec and belong to the list; if not
 * all could be received, fds->is_cut is set, which the caller must check. Returns 0,
 * WIRE_E_EOF, WIRE_E_MALFORMED (the list has what fds came), -EAGAIN, or another -errno.
 */
int wire_recv(int socket, void *buffer, size_t capacity, size_t *n_bytes_out, struct fdlist *fds,
              int flags);

/* Does the packet that wire_recv() would return now carry fds? Does not block. */
bool wire_has_fds(int socket);

/*
 * Let nothing more into the socket, and discard all unread packets. This thread closes their fds,
 * which may take as long as close().
 */
void wire_discard(int socket);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way to glaked's socket.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SOCKET_H
#define GLAKE_LIBCLIENT_SOCKET_H

#include <stdbool.h>

/* glaked answers within microseconds. This much is for hosts that are short of time. */
struct glake__patience {
	unsigned hello_ms;   /* 5000 */
	unsigned silence_ms; /* 10000 */
};

/* Only tests change it. */
extern struct glake__patience glake__patience;

/*
 * Connect to glaked at @path within @timeout_ms. @is_high: give the socket a high number. Returns 0 or an
 * error with its text; GLAKE_E_GONE: nobody listens there now.
 */
int glake__socket_open(const char *path, bool is_high, unsigned timeout_ms, int *socket_out);

#endif

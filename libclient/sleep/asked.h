/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glaked asks a session that no shim looks after to sleep, or to wake. Nobody but the program knows when its memory
 * is not in use. So the wish is only noted when it comes, and followed by glake_dispatch(), in the thread that calls it.
 *
 * glaked wants one thing at a time, and gives up a wish that nobody follows for 10 s; a later one takes its place.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ASKED_H
#define GLAKE_LIBCLIENT_ASKED_H

struct glake_session;

/* glaked may ask @session from now on. Before other threads use it. */
void glake__asked_begin(struct glake_session *session);

#endif

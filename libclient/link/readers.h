/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of readers that glaked has (glake-readers(5)), for the shim.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_READERS_H
#define GLAKE_LIBCLIENT_READERS_H

#include <stddef.h>

#include "glake.h"

/*
 * All of them, one behind the other, each with a NUL at its end: *text_out is the caller's to free; NULL: glaked has none, or is
 * an older one. 0 or an error, such as of the connection, or that what glaked gave could change. Blocks until glaked answers.
 * Calls no driver.
 */
int glake__readers_get(struct glake_session *session, char **text_out, size_t *n_bytes_out);

#endif

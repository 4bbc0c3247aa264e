/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that does with a range what another process asks for, over a socket (struct glake_elastic_request). It ends when that
 * process closes the socket or sends what is no request, and with the range.
 *
 * Owner: the range, which has a list of them. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ATTENDANT_H
#define GLAKE_LIBCLIENT_ATTENDANT_H

#include <stdbool.h>
#include <stdint.h>

#include "glake_elastic.h"

struct glake__attendant;

/* On the thread: do it, and fill in all of @reply but the number. Behind it is room for the states. */
typedef void glake__attendant_fn(struct glake_elastic *elastic,
                                 const struct glake_elastic_request *request,
                                 struct glake_elastic_reply *reply);

/*
 * Start one with room for @n_states, and put it onto @list, which the lock of the space guards. @fd is its own then.
 * Errors, the text set: -EINVAL, -EPERM (@fd), -ENOMEM, -EAGAIN.
 */
int glake__attendant_start(struct glake__attendant **list, int fd, uint32_t n_states,
                           glake__attendant_fn *follow, struct glake_elastic *elastic);

/* None is left when this returns; a commit that one is at is waited for. A forked child, which lacks them, only forgets them. */
void glake__attendants_end(struct glake__attendant **list, bool is_forked);

#endif

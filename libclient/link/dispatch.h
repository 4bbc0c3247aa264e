/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a public function.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_DISPATCH_H
#define GLAKE_LIBCLIENT_DISPATCH_H

#include "libclient/link/session.h"

/*
 * The last step of every public function that talked to the daemon, with no lock held: report usage
 * if that is due, deliver notices. Returns @result; keeps errno and the error text.
 */
int glake__leave(struct glake_session *session, int result);

#endif

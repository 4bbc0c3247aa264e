/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books: what glaked has granted, written down for the next glaked, and taken over from an earlier one.
 *
 * At every moment, what glaked has answered is in the books (keep/journal.h), and the memory that others may get
 * from the store is parked with the service manager (keep/parking.h). So a restart, however it comes, loses
 * nothing: processes have their memory mapped all the while, and the next glaked finds the rest here.
 *
 * The parts do not know the books: the store and the holders tell a watch of each change.
 *
 * An fd "books" is parked first, with the serial of the file. A file that has not this serial does not describe the
 * other parked fds.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_BOOKS_H
#define GLAKE_DAEMON_BOOKS_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/books/adopt.h"
#include "daemon/books/kinds.h"

struct books;

/*
 * Read the books @path, adopt what they say, give back what does not fit, with a line in the log, and keep the books
 * from now on. Blocks: start-up only. *@books_out is NULL after a line in the log: nobody keeps fds, or the file
 * cannot be written. Then there are no books, and glaked works without. Returns 0; or -EADDRINUSE after a line in the
 * log: another glaked has them. Then nothing was given back, and this one must end.
 */
int books_open(const struct books_parts *parts, const char *path, struct books **books_out);

/* NULL is fine for all of the following. */

/* A limit was set, until the configuration is read again: books_forget_limits(). 0 = none. @at: see write_limit(). */
void books_set_limit(struct books *books, const struct tenant *tenant, enum books_limit limit,
                     const struct location *at, uint64_t value);
void books_forget_limits(struct books *books);

/*
 * To be called every second. If the books could not be written, they are begun anew every minute, with a line in the
 * log when that succeeds. @config is the current one, for this call.
 */
void books_tick(struct books *books, const struct config *config);
/* Whether everything is written down, or nobody wants it to be. */
bool books_are_good(const struct books *books);

/* From now on nothing is written or given back: everything is the next glaked's. */
void books_leave(struct books *books);

/* The parts have nothing any more, or it is the next glaked's. The loop runs while books_is_busy(). */
void books_close(struct books *books);
bool books_is_busy(const struct books *books);
void books_free(struct books *books);

#endif

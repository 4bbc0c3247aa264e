/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes records: all of them are complete when a function returns.
 *
 * Owner: books. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_BOOKS_WRITE_H
#define GLAKE_DAEMON_BOOKS_WRITE_H

#include "daemon/books/kinds.h"
#include "daemon/holders/holder.h"
#include "daemon/keep/journal.h"

/* The user of both watches is the journal. */
extern const struct store_watch write_store_watch;
extern const struct holder_watch write_holder_watch;

void write_device(struct journal *journal, const struct device *device);
/* @at: of BOOKS_BYTES only, else NULL. */
void write_limit(struct journal *journal, const struct tenant *tenant, enum books_limit limit,
                 const struct location *at, uint64_t value);
void write_no_limit(struct journal *journal, const struct tenant *tenant, enum books_limit limit,
                    const struct location *at);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots taken by a thread of their own, so that a glaked that is stopped holds up neither a screen nor a scrape.
 *
 * Owner: whoever has the pointer. Lifetime: looker_new() to looker_free().
 * Threads: those of its own; of others one at a time.
 */
#ifndef GLAKE_CTL_LOOKER_H
#define GLAKE_CTL_LOOKER_H

#include "ctl/ctl.h"
#include "ctl/snapshot.h"

struct looker;

/* A looker asks over @ctl's session, which it takes over, and connects again when that has ended. NULL: no memory. */
struct looker *looker_new(struct ctl *ctl);
/* A looker whose snapshots have refusals by pod, from now on. */
struct looker *looker_new_following(struct ctl *ctl);

/* Ends the session. A thread that glaked still holds up is left to the end of the process. NULL is allowed. */
void looker_free(struct looker *looker);

/* Begin a look. One that is under way goes on instead. */
void looker_begin(struct looker *looker);

/*
 * The end of the look that has begun, waiting until it is @ms old, or for ever (-1). Returns 0 with a snapshot that is
 * the caller's, a code of glake.h, or -EAGAIN: it still goes on.
 */
int looker_end(struct looker *looker, int ms, struct snapshot *snapshot_out);

/* Can be read when looker_end() would not wait. Borrowed. */
int looker_fd(const struct looker *looker);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark that glaked is drained: a small file beside the books. It is no part of them, because they are only adopted with
 * the fds that somebody keeps, and the next client starts a glaked that has none.
 *
 * That the file is there says that glaked is drained. What is in it is for people: a line for each of reason, uid, time.
 *
 * Threads: any, one at a time. These calls wait for the disk.
 */
#ifndef GLAKE_DAEMON_DRAINED_H
#define GLAKE_DAEMON_DRAINED_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

struct drained {
	bool is_on;
	uint64_t since_ms;                       /* since 1970; 0: not known, and so the next */
	uint32_t uid;                            /* who wanted it so */
	char reason[GLAKE_MAX_REASON_BYTES + 1]; /* one line, safe to show; "" = none was given */
};

/*
 * Read the mark at @path. No file, or one that others than glaked's user and root could have written: it is not on, and the
 * latter is said in the log.
 */
void drained_read(const char *path, struct drained *drained_out);

/* Make the mark at @path what @drained says: after success it outlives glaked, however it ends. Returns 0 or -errno. */
int drained_write(const char *path, const struct drained *drained);

#endif

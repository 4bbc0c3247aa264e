/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An fd for a chunk that only its driver handle holds. Only the process that made a chunk can export it,
 * and that is the device's worker's to do.
 *
 * Owner: embedded in what wants the fd, which stays until done. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_CHUNK_EXPORT_H
#define GLAKE_DAEMON_CHUNK_EXPORT_H

#include "daemon/memory/pressure.h"

struct chunk_export;

/* STATUS_OK: the chunk has its fd, and no handle. STATUS_INTERNAL: it is as it was; logged. */
typedef void (*chunk_export_fn)(struct chunk_export *export, enum status status);

struct chunk_export {
	struct work work;
	struct pressure *pressure; /* borrowed */
	struct chunk *chunk;       /* borrowed */
	chunk_export_fn done;
	int fd; /* the worker's, until done */
	CUresult result;
};

/*
 * @chunk, which is charged, stays where it is until @done, which is called later. Returns STATUS_OK, or
 * STATUS_NO_FDS: the budget of fds is spent, and @done is not called.
 */
enum status chunk_export_start(struct chunk_export *export, struct pressure *pressure,
                               struct chunk *chunk, chunk_export_fn done);

#endif

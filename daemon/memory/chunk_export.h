/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes an fd for a chunk that only its driver handle holds. Only the process that made a chunk can
 * export it; the location's worker does.
 *
 * Owner: embedded by the caller, until done. Threads: loop thread.
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
	int fd; /* of the worker, until done */
	CUresult result;
};

/*
 * @chunk is charged, and stays in its place until @done, which is called later. Returns STATUS_OK, or
 * STATUS_NO_FDS: the fd budget is spent, and @done is not called.
 */
enum status chunk_export_start(struct chunk_export *export, struct pressure *pressure,
                               struct chunk *chunk, chunk_export_fn done);

#endif

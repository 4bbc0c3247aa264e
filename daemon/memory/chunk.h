/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk: one physical allocation, which in the daemon *is* its exported fd.
 *
 * The fd alone keeps the memory alive and can be passed on. fds are finite, though, so beyond the
 * budget small private chunks are held as driver handles (`handle`) instead, and their fd is closed
 * once the client has it.
 *
 * Invariants: a chunk is made at zero and never changes hands between realms, it is released and
 * made anew; it has exactly one charge from the moment it is given out; its bytes are counted in
 * exactly one device->use_bytes.
 *
 * Owner: embedded in what it is for: the pool, a session's private chunk, a block.
 * Lifetime: alloc fills it; chunk_release() ends it.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_CHUNK_H
#define GLAKE_DAEMON_CHUNK_H

#include <stddef.h>

#include "daemon/memory/device.h"
#include "daemon/base/stats.h"
#include "daemon/memory/tenant.h"

/* What the chunks of all devices share: how many fds they may hold, and where they are counted. */
struct chunk_books {
	uint64_t n_fds; /* of chunks that exist, and reserved for those being made */
	uint64_t max_fds;
	struct stats *stats; /* borrowed */
};

struct chunk {
	struct device *device;     /* borrowed; NULL: no chunk here */
	struct chunk_books *books; /* borrowed */
	uint64_t bytes;
	int fd;                              /* owned; -1 when only the handle holds it */
	CUmemGenericAllocationHandle handle; /* owned; 0 when the fd alone holds it */
	enum chunk_use use;
	struct charge charge;
};

/* Count a freshly made chunk in the books. @charge is taken over. */
void chunk_init(struct chunk *chunk, struct device *device, struct chunk_books *books,
                uint64_t bytes, int fd, CUmemGenericAllocationHandle handle, enum chunk_use use,
                struct charge *charge);

/* Move @from, which is empty afterwards, to @to. */
void chunk_move(struct chunk *to, struct chunk *from);

void chunk_set_use(struct chunk *chunk, enum chunk_use use);

/* A chunk whose handle holds it needs its fd no more once that was sent. */
void chunk_drop_fd(struct chunk *chunk);

/*
 * Refund, uncount and let the device's worker close what holds the memory. What is submitted to the
 * worker later finds the memory free (worker_catch_up). Empty chunks are fine.
 */
void chunk_release(struct chunk *chunk);
/* The same for many of one device, as one job. */
void chunk_release_all(struct chunk *chunks, size_t n_chunks);

#endif

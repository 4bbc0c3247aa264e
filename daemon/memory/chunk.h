/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk: one physical allocation, which in the daemon *is* its exported fd.
 *
 * The fd alone keeps the memory alive and can be passed on. But fds are finite. Beyond the budget,
 * glaked holds small private chunks by driver handle (`handle`) and closes their fd when the client
 * has it.
 *
 * A chunk of an earlier glaked is unparked if nobody kept its fd: only mappings of its process hold the memory,
 * so it is charged and counted, and cannot be passed on.
 *
 * Invariants: a fresh chunk is zero. A chunk never changes realms: it is released, and a new one is
 * made. A granted chunk has exactly one charge. Its bytes count in exactly one use of its location.
 *
 * Owner: embedded in the stock, a holder's entry, or a block.
 * Lifetime: alloc fills it; chunk_release() ends it.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_CHUNK_H
#define GLAKE_DAEMON_CHUNK_H

#include <stddef.h>

#include "daemon/base/stats.h"
#include "daemon/keep/parking.h"
#include "daemon/memory/location.h"
#include "daemon/memory/promise.h"
#include "daemon/memory/tenant.h"

/* Shared by the chunks of all locations: their fd budget and counters. */
struct chunk_books {
	uint64_t n_fds; /* of existing chunks, and reserved for chunks that are being made */
	uint64_t max_fds;
	uint64_t unparked_bytes; /* of unparked chunks */
	struct stats *stats;     /* borrowed */
	struct parking *parking; /* borrowed; NULL: nobody keeps fds */
};

struct chunk {
	struct location *at;       /* borrowed; NULL: no chunk here */
	struct chunk_books *books; /* borrowed */
	uint64_t bytes;
	int fd;                              /* owned; -1: only the handle holds the memory */
	CUmemGenericAllocationHandle handle; /* owned; 0: the fd alone holds the memory */
	enum chunk_use use;
	bool is_unparked;
	uint64_t
		removed; /* number of the order to close the service manager's fd; 0: it has none */
	struct charge charge;
	struct promise *promise; /* a reference: it was drawn from that, and not handed over yet */
	uint64_t
		unsealing_bytes; /* of the reserve (reserve.h), which gets them back with its release; 0: none */
};

/* Enter a fresh chunk into the books. Takes over @charge. */
void chunk_init(struct chunk *chunk, struct location *at, struct chunk_books *books, uint64_t bytes,
                int fd, CUmemGenericAllocationHandle handle, enum chunk_use use,
                struct charge *charge);

/* Enter a chunk of an earlier glaked into the books. Takes over @charge and @fd; -1: the chunk is unparked. */
void chunk_adopt(struct chunk *chunk, struct location *at, struct chunk_books *books,
                 uint64_t bytes, int fd, enum chunk_use use, struct charge *charge);

/* Move @from, which is empty afterwards, to @to. */
void chunk_move(struct chunk *to, struct chunk *from);

/* The chunk's process has it from now on: the caller says so with promise_use(). Harmless if it was not drawn. */
void chunk_hand_over(struct chunk *chunk);

void chunk_set_use(struct chunk *chunk, enum chunk_use use);

/* Close the fd, which was sent, of a chunk that its handle holds. */
void chunk_drop_fd(struct chunk *chunk);

/*
 * Refund the charge, remove the chunk from the books, and have the location's worker close it, and wait for
 * the service manager to close its fd. Work that is submitted later finds the memory free
 * (worker_catch_up). Empty chunks are fine.
 */
void chunk_release(struct chunk *chunk);
/* Release many chunks of one location, as one job. */
void chunk_release_all(struct chunk *chunks, size_t n_chunks);

#endif

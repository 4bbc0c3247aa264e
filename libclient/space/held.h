/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that are held: whoever seals, unseals or copies memory keeps it from being freed, named and
 * held by others meanwhile. The program goes on using it.
 *
 * What an allocation is, and who may wait for its end, each use of ranges says itself: glake__use.hold and
 * .let (range.h). A use without them has no memory that can be held, or sealed. Not every use can keep its
 * memory in place: a program may unmap what it has mapped itself. So whoever holds an allocation still looks
 * at its pieces again when it works on them, under a hold of the pieces.
 *
 * Threads: any; no lock is held by the caller. The end of a hold is another thread's wait: a holder waits only for
 * what has a deadline, for glaked, and for those who hold memory at higher addresses; and it is not cancelled.
 */
#ifndef GLAKE_LIBCLIENT_HELD_H
#define GLAKE_LIBCLIENT_HELD_H

#include "libclient/space/range.h"

struct glake__device;

struct glake__held {
	const struct glake__use *use; /* of its range; NULL: nothing is held */
	glake_ptr begin;              /* of the allocation */
	glake_ptr end;
	glake_ptr
		tail; /* the bytes behind it, up to here, are nobody's, and nobody gets them meanwhile */
	struct glake__device
		*device;   /* whose memory it is; for chunks of other devices, of that session */
	bool keeps_chunks; /* the program unmaps it chunk by chunk: they may be cut, and not joined */
	bool has_neighbours; /* chunks that reach beyond it have memory of others, whose work goes on */
	void *user;          /* the use's */
};

/*
 * Hold the allocation that @address lies in. Waits while it is held, also by the same thread. Callers hold several in
 * the order of their addresses, so that they cannot wait for each other. Returns 0; -ENOTSUP: it is memory that
 * shares its pages with other memory, and is not held; -ENOENT: nothing that could be held is there. No text is set.
 * The session of held_out->device stays until the end.
 */
int glake__held_begin(glake_ptr address, struct glake__held *held_out);
/* Nothing happens if nothing is held. */
void glake__held_end(struct glake__held *held);

/* Wait, without the lock, until a thread lets what it has held. Earlier lookups may be stale then. */
void glake__held_wait_locked(void);

#endif

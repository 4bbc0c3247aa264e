/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is asleep: not mapped anywhere, while its pieces and chunks stay as they are, with their access and their ids.
 *
 *   hold -> unmap -> (glaked has copies, and its memory goes) -> map -> let
 *
 * All of it is held (range.h) from the first step to the last. So whoever wants to change, free, pin, name or map it waits, as
 * for any hold, and asks meanwhile that it be woken (gate.h): nobody can touch what is not there. What others hold, and
 * what comes meanwhile, is not asleep.
 *
 * A step that fails can be repeated: it goes on where it stopped.
 *
 * Owner: whoever sleeps (sleep.h). Threads: one at a time; no lock is held by the caller.
 */
#ifndef GLAKE_LIBCLIENT_ASLEEP_H
#define GLAKE_LIBCLIENT_ASLEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/range.h"

struct glake__asleep_chunk {
	struct glake__chunk *chunk; /* held */
	bool keeps_handle;          /* the library's own, when it is mapped */
	uint64_t whole; /* the id of what it is a part of, by place; 0: it has one itself */
	uint64_t place;
};

struct glake__asleep {
	struct glake__asleep_chunk *chunks; /* owned; the parts of a whole are side by side */
	size_t n_chunks;
	struct glake__piece **pieces; /* owned: all places of the chunks, by range and offset */
	size_t n_pieces;
	uint64_t private_bytes;
	uint64_t shared_bytes; /* of blocks */
	struct glake_stay stays[GLAKE_MAX_STAYS_SLEPT];
	size_t n_stays;
};

/*
 * Hold all memory of @session that can be asleep, with all its places. 0; -EBUSY: other threads work on some, and nothing is held;
 * -ENOMEM. glake__asleep_let() is due if 0.
 */
int glake__asleep_hold(struct glake__asleep *asleep, const struct glake_session *session);
void glake__asleep_let(struct glake__asleep *asleep);
/* In a forked child: free it, and nothing else. */
void glake__asleep_forget(struct glake__asleep *asleep);

/* Nobody uses it: unmap it everywhere, and give the library's handles back. 0 or GLAKE_E_CUDA: some is, and map() is due. */
int glake__asleep_unmap(struct glake__asleep *asleep);

/*
 * All memory of @range, which is unmapped, is wanted no more: the range is a hole, and its chunks, which nobody holds any more,
 * are put onto @dead. False: some of it is at another place too, or used, or no private memory, and nothing has happened.
 */
bool glake__asleep_drop(struct glake__asleep *asleep, struct glake__range *range,
                        struct glake__chunk **dead);

/*
 * Map what is not mapped, with its access. @open has @n_max fds at most of chunks, in the order of asleep->chunks from @first
 * on: it returns how many, or an error. The fds are closed here.
 */
typedef int glake__asleep_open_fn(void *user, const struct glake__asleep *asleep, size_t first,
                                  int *fds_out, size_t n_max);
int glake__asleep_map(struct glake__asleep *asleep, glake__asleep_open_fn *open, void *user);

#endif

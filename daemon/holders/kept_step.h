/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept steps: chunks that outlived their process, because it had made a will (will.h), and wait for an heir. Nobody has them
 * mapped, so their bytes are what the process left.
 *
 *   a holder's, in a will --its process has ended--> KEPT --adopted--> another holder's, in the same will
 *                                                     '--pressure, kept_ms, its user's share--> released
 *
 * An heir is of the same user and realm, and asks for key, GPU, size and number of the chunks. It gets the youngest. One turn
 * of the loop moves them, with the will: if the heir ends before it has taken that back, they are kept once more, and so they
 * are if it did not read the answer. So of two who ask, one has them, and no death on the way loses them.
 *
 * The built-in tenant pays for the memory, so it is cache: the first that goes under pressure, before what is made
 * ahead, a whole step at a time, the oldest first. The record is paid by whose it was.
 *
 * With books (books/books.h) it outlives glaked as well: its chunks are parked, if they fit into a quarter of what there is
 * room for, and it has a record. A restart loses what is not parked.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_KEPT_STEP_H
#define GLAKE_DAEMON_KEPT_STEP_H

#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "daemon/holders/will.h"
#include "daemon/memory/chunk.h"
#include "daemon/memory/refusal.h"
#include "daemon/store/realm.h"

struct held;
struct holder;

struct kept_step {
	struct list link;  /* link: kept_steps.list */
	struct will *will; /* owned; of nobody's chunks */
	struct user *user; /* a reference, as the next */
	struct realm *realm;
	uint64_t since_ms;
	uint64_t id; /* its last chunk's; 0: it is not parked, and in no book */
	struct user_charge bytes;
	struct user_charge places; /* in the fd store */
	struct user_charge fds;
	struct chunk chunks[]; /* will->n_chunks */
};

struct kept_steps {
	struct list list; /* the oldest first */
	uv_loop_t *loop;  /* borrowed, as the next two */
	struct tenant *cache;
	struct stats *stats;
	uint64_t keep_ms;        /* 0: nothing is kept */
	struct holders *holders; /* borrowed: their watch and store; NULL: nothing is parked */
	uint64_t n_parked;       /* chunks */
	struct pot bytes;        /* of users */
	struct pot fds;
};

/* Users share @max_bytes and @max_fds. */
void kept_steps_init(struct kept_steps *kept, uv_loop_t *loop, struct tenant *cache,
                     struct stats *stats, uint64_t max_bytes, uint64_t max_fds);
/* Releases all. */
void kept_steps_deinit(struct kept_steps *kept);

/*
 * Nobody has the chunks of the holder's will mapped any more: they are kept, and older ones of the user go if its share is too
 * small for all. The will is gone from the holder in any case, and so are its chunks, if they are kept.
 */
void kept_steps_keep(struct kept_steps *kept, struct holder *holder, struct will *will);
/* The holder's process has ended: keep the chunks of all its wills. */
void kept_steps_inherit(struct kept_steps *kept, struct holder *holder);

/* Tell the watch of all that are parked. */
void kept_steps_note_all(const struct kept_steps *kept);

struct kept_adopted {
	uint64_t id;
	struct user *user; /* borrowed, as the next */
	struct realm *realm;
	uint64_t since_ms;
};
/*
 * Restore at the start what an earlier glaked kept, in the order of time. The chunks are empty afterwards. Takes over @will, of
 * that many, which has its charge. Returns 0 or -ENOMEM: nothing has changed.
 */
int kept_steps_restore(struct kept_steps *kept, const struct kept_adopted *as, struct will *will,
                       struct chunk *chunks);

/* The youngest for an heir like @holder; NULL: there is none. */
struct kept_step *kept_steps_find(struct kept_steps *kept, const struct holder *holder,
                                  const struct will_wanted *wanted);
/*
 * Give the step's chunks to the holder, brought by that request; @held_out gets their entries. @step is gone then. Returns
 * STATUS_OK; STATUS_OVER_QUOTA, STATUS_NO_FDS or STATUS_NO_HOST_MEMORY: nothing has changed. *@refusal_out is the bound that
 * was met, or none.
 */
enum status kept_step_adopt(struct kept_steps *kept, struct kept_step *step, struct holder *holder,
                            uint64_t request, struct held **held_out, struct refusal *refusal_out);

/* Release steps, the oldest first: until @bytes at @at are free, or @n_fds, or there is none. */
void kept_steps_take_bytes(struct kept_steps *kept, const struct location *at, uint64_t bytes);
void kept_steps_take_fds(struct kept_steps *kept, uint64_t n_fds);
/* All of the realm (NULL: of all realms). Returns the bytes. */
uint64_t kept_steps_evict(struct kept_steps *kept, const struct realm *realm);
/* To be called once in a while: steps go whose time is over. */
void kept_steps_tick(struct kept_steps *kept);

#endif

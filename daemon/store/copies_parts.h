/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the host tier share:
 *
 *   copies_keep.c  who holds a copy, who finds it, and what goes for room
 *   copies_park.c  what the next glaked is to have
 *   copies_make.c  making copies: in the background, and on order
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_COPIES_PARTS_H
#define GLAKE_DAEMON_COPIES_PARTS_H

#include "daemon/store/copies.h"

/* ---- copies_keep.c ---------------------------------------------------------------------------- */

struct copy_wanted {
	struct realm *realm;
	const struct digest *digest; /* NULL: not known yet */
	uint64_t content_bytes;
	uint64_t bytes;
	bool is_found; /* has a digest, and no copy is found by it */
};

/* TAKING. NULL: no memory. */
struct copy *copies_new(struct copies *copies, const struct copy_wanted *wanted);
/* Nobody holds it. */
void copies_free(struct copies *copies, struct copy *copy);
/* Also one that is on its way. NULL: there is none. */
struct copy *copies_find_any(const struct copies *copies, const struct realm *realm,
                             const struct digest *digest);
/* Nobody finds it any more. */
void copies_hide(struct copies *copies, struct copy *copy);
/* All of it was written: it is THERE, as @digest says, and held once. */
void copies_written(struct copies *copies, struct copy *copy, const struct digest *digest);
void copies_set_state(struct copy *copy, enum copy_state state);
/* Who holds it has changed, or it is parked no more or for the first time: count it for what it is there for. */
void copies_count_use(struct copies *copies, struct copy *copy);
struct copies_use *copies_use_at(const struct copies *copies, const struct copy *copy);

/*
 * The copy on one of @nodes (bits: 1 << its index) that nobody has used for longest goes, of those that may; and a model that only host memory
 * has with it. False: none is left.
 */
bool copies_make_room(struct copies *copies, uint64_t nodes);

/* The most that there could be room for on a node, if all goes that may. */
uint64_t copies_room_bytes(const struct copies *copies, size_t i_node);

/* @fd: of its large chunk. */
struct mover_host copies_place(const struct copy *copy, int fd);

/* ---- copies_park.c ---------------------------------------------------------------------------- */

/* It has changed. */
void copies_note(const struct copies *copies, const struct copy *copy);

/* ---- copies_make.c ---------------------------------------------------------------------------- */

/* A chunk was forgotten, or will not be soon. */
void copies_look_for_room(struct copies *copies);
void copies_close_makings(struct copies *copies);

#endif

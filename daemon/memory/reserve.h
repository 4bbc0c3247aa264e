/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reserve for unsealing: bytes of a GPU that only a program gets which unseals what glake sealed without being asked.
 *
 * Sealing sets memory free, and others fill it. A program that nobody has asked does not expect that a launch of its own lacks
 * the memory which it had before. So of what such sealing saves, a part stays the reserve.
 *
 *     saved    bytes that would be needed beside what there is, if all of it were unsealed: of each block, its size for each
 *              holder that found it there when it was sealed by itself, but at most for each user but one. The last
 *              user leaves the block, whose memory is then free (block.h)
 *     wanted   the part of saved, at least one block, at most saved
 *     has      location.unsealing_bytes: no chunks, but taken off the location's room, as what is promised is (promise.h)
 *
 * Invariants: has <= wanted <= saved. Chunks, chunks that come, promises, and the reserve are together no more than the
 * location has. It shrinks at once with what is saved. It grows only out of memory that was set free in the same turn: of a
 * chunk for which an equal block was found, a block that went with its last user, or a copy that was not wanted after all. So
 * nobody who could have had memory without the sealing is refused it, and who waits for room never waits for the reserve: a
 * sleeper fits again when those who were awake before it are asleep, as if nothing had been sealed.
 *
 * Nothing of it is written down. The next glaked computes it from the books, as far as there is room.
 *
 * Owner: the location. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RESERVE_H
#define GLAKE_DAEMON_RESERVE_H

#include "daemon/memory/location.h"

/*
 * The reserve wants @part of the saved bytes from now on: 0 (nothing) to 1. It takes what room there is. Before the first call
 * it wants nothing.
 */
void reserve_set_part(struct location *at, double part);

/* The saved bytes change from @before to @after. */
void reserve_note_saved(struct location *at, uint64_t before, uint64_t after);

/* @bytes were just set free there: they are the reserve's, as far as it wants them. */
void reserve_keep(struct location *at, uint64_t bytes);

/* Take up to @bytes for the caller, who counts them as coming. Returns how many. */
uint64_t reserve_take(struct location *at, uint64_t bytes);

uint64_t reserve_wanted_bytes(const struct location *at);

#endif

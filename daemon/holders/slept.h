/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder reports things that have a copy, or get one (sleeper.h), when it gives them up.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SLEPT_H
#define GLAKE_DAEMON_SLEPT_H

struct chunk;
struct held;
struct holder;

/* The watch of holders is told that @held has a copy, or that the holder sleeps, if so. */
void sleeper_note(const struct held *held);
void sleeper_note_asleep(const struct holder *holder);
/* @held goes: harmless if it has no copy, and had none. */
void sleeper_forget(struct held *held);
/*
 * The holder gives @held up while it is being copied: @chunk (NULL: it is a block) is released when the mover is done with it.
 */
void sleeper_leave_bed(struct held *held, struct chunk *chunk);
/* The holder ends: nobody waits for a wake. */
void sleeper_end(struct holder *holder);

#endif

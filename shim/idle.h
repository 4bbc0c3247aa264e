/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Since when the program has not worked on a GPU. The service looks now and then. The program is idle if nobody has passed the
 * gate since the last look, and all work that was submitted before is done. Only the first look after the last call asks the
 * driver, since no work can be under way that nobody has submitted.
 *
 * Threads: idle_look() and idle_is_now(): ours, in a turn (turn.h), one look at a time; idle_is_still(): any.
 */
#ifndef GLAKE_SHIM_IDLE_H
#define GLAKE_SHIM_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* Like glake__gate.wait: waits for all work that is submitted by now. */
typedef int idle_wait_fn(void *user, uint64_t patience_ns);

/* Look. Returns when the program was last seen to work, by clock_now_ns(); 0: it works now. */
uint64_t idle_look(idle_wait_fn *wait);

/* Was the program idle at the last look, and has nobody passed since? */
bool idle_is_still(void);

/* Like idle_is_still(), but if that is false, looks twice more, some milliseconds apart. False before the first idle_look(). */
bool idle_is_now(void);

#endif

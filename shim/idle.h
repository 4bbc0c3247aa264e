/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Since when the program has not worked on a GPU. The service looks now and then: nobody has passed the gate since the last
 * look, and all work that was submitted before is done. Only the first look after the last call asks the driver, since
 * nothing can be under way that nobody has submitted.
 *
 * Threads: any of ours, in a turn (turn.h), for idle_look() and idle_is_now(): looks follow one another. idle_is_still() any.
 */
#ifndef GLAKE_SHIM_IDLE_H
#define GLAKE_SHIM_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* As glake__gate.wait: it waits for what is submitted by now. */
typedef int idle_wait_fn(void *user, uint64_t patience_ns);

/* Returns when it was last seen to work, by clock_now_ns(); 0: it does. */
uint64_t idle_look(idle_wait_fn *wait);

/* Whether it was idle at the last look, and nobody has passed since. */
bool idle_is_still(void);

/* The same; or, if somebody has passed since, two looks more, some milliseconds apart: it may be idle again. False before the first. */
bool idle_is_now(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep: the memory of a session, or of all of a process (party.h), leaves the GPUs, and its addresses stay.
 *
 *   hold    all that can sleep (asleep.h), with nothing of the program's under way
 *   close   the gate falls asleep: nobody submits work until it wakes
 *   copy    glaked has each chunk and block copied to host memory
 *   unmap   all of it
 *   enter   glaked gives the memory to others
 *
 * While copies are made nothing has changed. So if the program wants to work again, the sleep is given up there; but not one that
 * an operator has asked for. A step that fails is undone, and the session is awake as before. wake.h is the way back, and
 * slept_free.h the end of memory that is asleep.
 *
 * Lock order: the party's lock is outermost (party.h). What waits for memory that is asleep holds no lock of the library.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SLEEP_H
#define GLAKE_LIBCLIENT_SLEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake.h"

/* The values are those of SleepWhy in glake.proto. */
enum glake__sleep_why {
	GLAKE__SLEEP_SELF,
	GLAKE__SLEEP_ASKED,
	GLAKE__SLEEP_IDLE,
	GLAKE__SLEEP_PRESSURE,
};

/*
 * Put @session to sleep, and all that sleep together with it (party.h), but what sleeps already: all or none. NULL: all of
 * the process, where all sleep together. The program's work is waited for, @patience_ns at most, with its new work held back for
 * 20 ms at a time. @progress (may be NULL) is called on this thread while glaked copies. Returns 0 and *slept_out, of @session
 * alone, or of all; 0 too if it sleeps already. -EBUSY: work did not end, others work on the memory, another thread puts it to
 * sleep, a session leaves, or it works again (not, if @why is ASKED); the gate's errors; GLAKE_E_CUDA; request errors. Then it is
 * awake, or what was unmapped could not be mapped again: glake__is_asleep() tells. *slept_out need not have its size.
 */
int glake__sleep(struct glake_session *session, enum glake__sleep_why why, uint64_t patience_ns,
                 glake_progress_fn progress, void *user, struct glake_slept *slept_out);

bool glake__is_asleep(const struct glake_session *session);

#endif

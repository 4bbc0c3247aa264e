/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What glaked remembers of faults while memory was sealed by itself (daemon/holders/mistakes.h): words that tables call
 * readers and that are none for this user's programs, and whether this program may be sealed by itself at all.
 *
 * A word is known by a hash of what the table says it is of: the image, the function's name, the byte of the parameters. It is
 * the same in all processes.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_DOUBTS_H
#define GLAKE_SHIM_DOUBTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim/kernels.h"

struct glake_session;

/* What its session was told, and what it will be told. Before other threads use the session. */
void doubts_begin(struct glake_session *session);

/* Why the program is not to be sealed by itself; NULL: it may be. Stays. */
const char *doubts_why(void);

/* Of word @number of the kernel's parameters. 0: no table knows the kernel. */
uint64_t doubts_word(const struct kernel *kernel, size_t number);

/* Is that one no reader, whatever its table says? */
bool doubts_has(const struct kernel *kernel, size_t number);

#endif

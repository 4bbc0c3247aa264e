/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doubts: glaked remembers faults of memory that was sealed by itself (daemon/holders/mistakes.h). It tells the words that
 * tables call readers and that are none for this user's programs, and whether this program may be sealed by itself at all.
 *
 * A word is known by a hash of the image, the function's name and the byte of the parameters. The hash is the same in all
 * processes.
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

/* Take over the doubts that glaked tells this session, now and later. Called before other threads use the session. */
void doubts_begin(struct glake_session *session);

/* Why the program is not to be sealed by itself; NULL: it may be. The text stays. */
const char *doubts_why(void);

/* The hash of word @number of the kernel's parameters. 0: no table knows the kernel. */
uint64_t doubts_word(const struct kernel *kernel, size_t number);

/* Is that word no reader, whatever its table says? */
bool doubts_has(const struct kernel *kernel, size_t number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of kernels that were given sealed memory, to name the one that wrote to it. While memory is sealed, the parameters of
 * each launch are looked up in the page map, in words of 8 bytes at multiples of 8, where pointers are aligned.
 *
 * A kernel that reads sealed memory is launched over and over, and one that writes to it faults at once. So a word of
 * a kernel's parameters is noted when it points to sealed memory for the first time since the last sealing:
 * the newest note is the most suspect when the context is lost.
 *
 * Of a graph, only the first launch since the last sealing is noted; its kernels are seen if they are captured while memory is
 * sealed. Not seen: pointers that lie in device memory, memory outside the window, and all kernels on drivers before
 * CUDA 12.4, which do not tell where parameters are.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_EYES_H
#define GLAKE_SHIM_EYES_H

#include <stdbool.h>
#include <stddef.h>

#include "glake_shim.h"
#include "proto/cudrv.h"

/* Look at a launch before it is submitted, inside the gate. @params and @extra are the call's; either may be NULL. */
void eyes_look(CUfunction function, void *const *params, void *const *extra);

/* An executable graph is about to be launched. *@seen: glake__sealed.n_sealings when it was noted last. */
void eyes_look_at_graph(uint64_t *seen);

/* False: the driver does not tell where parameters are. */
bool eyes_can_see(void);

/*
 * The kernels that were noted with memory that is still sealed, the newest first; a graph has no pointer. Returns how many,
 * at most @max; names are static.
 */
size_t eyes_suspects(struct glake__suspect *suspects_out, size_t max);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out which kernels read, under GLAKE_DEDUP=learn: what `glake learn` runs programs with, to make tables of readers.
 *
 * Each launch runs alone. All work before it is waited for behind a closed gate; then access to the candidates is changed: those
 * that a word of its parameters points into can be read, sixteen of the others (each time others) not even that. The kernel
 * runs, it is waited for, and the memory is as it was before the gate opens. So between launches nothing is different from any
 * program, and whatever frees, copies, or puts memory to sleep need not know of it.
 *
 * A kernel that ends well has written nothing through those words, and has touched no candidate that it did not name: the
 * GPU's page tables say so. One that faults is the suspect, and the only one. The program ends by it, which is why `glake
 * learn` runs it again: the state file says then what may be written to (learned.h).
 *
 * Candidates are those of auto.h, but cut into chunks of their own, since access is by chunk. What they hold does not
 * matter: any memory that kernels leave alone for a while would do.
 *
 * Of graphs, what no node is known to write to can be read by all of its kernels, so they prove nothing of what
 * a function touches; only that it writes nothing.
 *
 *   A kernel waits for another, or for a thread at the gate.  After ten seconds the memory is as before, the function is
 *       noted as one that does not end alone, and the process learns no more.
 *   The work before does not end, or a stream is captured.  The launch is not looked at.
 *
 * What is found goes to $GLAKE_LEARN_FACTS, a line at a time, since the program may end at any time:
 *
 *     machine PID TEXT                 the GPU and the driver
 *     kernel PID N IMAGE NAME          a function; N is its number in the process
 *     alone PID N COUNT                so often, at least, it touched no candidate that it did not name, and there were such
 *     read PID N OFFSET COUNT          the same: it wrote nothing through this word, which pointed to what could be read only
 *     granted PID N OFFSET             it ended well while it could write through this word
 *     fault PID N NAMED GRANTED        it faulted; offsets, by commas, or -
 *     graph PID                        a graph faulted
 *     stuck PID N                      it did not end
 *     untold PID N                     the driver does not tell its parameters
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_LEARN_H
#define GLAKE_SHIM_LEARN_H

#include <stdbool.h>

#include "glake.h"
#include "proto/cudrv.h"
#include "shim/gate.h"
#include "shim/heap.h"
#include "shim/learn_functions.h"

/* Parts of an allocation whose access can be changed are candidates from now on. False: no memory. */
bool learn_add(const struct heap_facts *facts, const struct glake_span *parts, size_t n);
void learn_drop(uint64_t id);

/* A launch that is looked at, from before it is submitted until it has ended. */
struct learn_turn {
	bool is_alone;
	int cancel;
};

/*
 * Around the call of the driver. Leaves the gate and enters again; *thread is NULL if the program ends, as with gate_enter().
 * The end leaves the gate, and returns the call's result, or that its context is lost.
 */
void learn_begin(struct learn_turn *turn, struct gate_thread **thread, CUfunction function,
                 void *const *params, void *const *extra);
void learn_begin_graph(struct learn_turn *turn, struct gate_thread **thread, CUgraphExec exec);
CUresult learn_end(struct learn_turn *turn, struct gate_thread *thread, CUresult result);

#endif

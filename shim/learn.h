/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out which kernels read, under GLAKE_DEDUP=learn. `glake learn` runs programs so, to make tables of readers.
 *
 * Each launch runs alone. The gate is closed and all work before the launch is waited for. Then access to the candidates is
 * changed: those that a word of the parameters points into can only be read, from the first such word on, and sixteen other
 * parts (each time different ones) cannot be accessed. The kernel runs to its end, and access is given back before the gate
 * opens. So between launches nothing differs from any program, and code that frees memory, copies it, or puts it to sleep
 * need not know of learning.
 *
 * A kernel that ends well has written nothing through those words, and has touched no candidate that it did not name: the
 * GPU's page tables say so. One that faults is the suspect, and the only one. The program ends by it, which is why `glake
 * learn` runs it again: the state file says then what may be written to (learned.h).
 *
 * Candidates are those of auto.h, but cut into chunks of their own, since access is by chunk. Their content does not
 * matter: any memory that kernels leave alone for a while would do.
 *
 * The kernels of a graph can read all candidates that no node is known to write to. So a launch of a graph does not prove
 * which candidates a function touches, only that it writes nothing.
 *
 *   A kernel waits for another, or for a thread at the gate.  After ten seconds the memory is as before, the function is
 *       noted as one that does not end alone, and the process learns no more.
 *   The work before does not end, or a stream is captured.  The launch is not looked at.
 *
 * Findings go to $GLAKE_LEARN_FACTS, a line at a time, since the program may end at any time:
 *
 *     machine PID TEXT                 the GPU and the driver
 *     kernel PID N IMAGE NAME          a function; N is its number in the process
 *     alone PID N COUNT                it touched no unnamed candidate in at least COUNT launches that had unnamed ones
 *     read PID N OFFSET COUNT          in at least COUNT launches it wrote nothing through this word to read-only memory
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

/* Make parts of an allocation, whose access can be changed, candidates. False: no memory. */
bool learn_add(const struct heap_facts *facts, const struct glake_span *parts, size_t n);
void learn_drop(uint64_t id);

/* A launch under test, from before it is submitted until it has ended. */
struct learn_turn {
	bool is_alone;
	int cancel;
};

/*
 * Begin before the call of the driver, end after it. Begin leaves the gate and enters again; *thread is NULL if the program
 * ends, as with gate_enter(). End leaves the gate, and returns the call's result, or the error of a lost context.
 */
void learn_begin(struct learn_turn *turn, struct gate_thread **thread, CUfunction function,
                 void *const *params, void *const *extra);
void learn_begin_graph(struct learn_turn *turn, struct gate_thread **thread, CUgraphExec exec);
CUresult learn_end(struct learn_turn *turn, struct gate_thread *thread, CUresult result);

/*
 * A thread that gets the error of a launch that is tried may end the program at once: it waits here until the launch's own thread
 * has told which one it was, two seconds at most. So does the program's end. Not for the launch's own thread, before learn_end().
 */
void learn_wait_for_turn(void);

#endif

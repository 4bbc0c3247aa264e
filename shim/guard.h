/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch guard: memory that glake seals by itself is sealed only while nothing that is submitted can write to it.
 *
 * Marks. The unit is an allocation of the program. While one is marked, everything that is submitted is judged
 * before the driver gets it; auto.c marks, waits, and seals. A word of a launch's parameters that points into a marked
 * allocation and is not a known reader (readers.h) takes the mark away: the allocation is private again *before* the launch
 * is submitted. If no table knows the function of a launch, or a table calls it opaque, all marked memory becomes private,
 * the process is not sealed by itself any more, and the reason is kept.
 *
 * What can go wrong, and why it does not.
 *
 *   A kernel writes by a word that points there.  Then the word is no reader, or its conditions do not hold. A wrong table
 *       would not say so; audits look for those.
 *   It writes through a word that points to another place: beside the allocation, or to a pointer in device memory.  A
 *       function is in a table only if it is closed (readers.h), and opaque otherwise. GLAKE_DEDUP=observed takes functions
 *       that are in no table to be closed: whoever sets it takes that risk.
 *   A launch is submitted before the mark is seen.  Memory is sealed behind a closed gate, when all that was submitted before
 *       has ended (drain.h). A thread that enters later sees the marks, which are older.
 *   A graph is launched that was made before.  Its kernels were judged when it was made or changed (graphs.h), and each
 *       non-reading word was noted. auto.c marks first and then looks through the notes; a hook notes first and then looks
 *       at the marks: one of the two sees the other. A replay is not looked at.
 *   The driver does not tell what a graph does: bodies of conditional nodes, nodes that the device changes, graphs that the
 *       device launches.  They are noted as opaque.
 *   The driver does not tell parameters (before CUDA 12.4), or a call has none to look at (cuLaunch, cuLaunchGrid).  The
 *       launch is opaque.
 *   Code is unloaded, and its handles are another's.  The driver is asked again for each handle (kernels.h), and an image
 *       that is unloaded is forgotten before (code.h).
 *   Memory is freed, and its address is another's.  Allocations are known by a number that is never used again.
 *   The allocation is being sealed while it is to become private.  The thread that makes it private forbids sealing it, then
 *       holds it, which waits for the seal under way, and then unseals it. The mark goes last, so that others who are about
 *       to write wait for the same.
 *   It cannot become private: no memory, or work on the GPU does not end.  The launch is refused with
 *       CUDA_ERROR_OUT_OF_MEMORY, before it is submitted. Nothing of the program is lost.
 *   Two threads make memory private at once.  They take turns, and hold nothing that the other wants.
 *   The driver's own calls write (copies, sets, words).  They get copies, as with all sealed memory (writes.h).
 *   Another process or a NIC writes.  Memory that these can reach is pinned, and is not sealed (may.h).
 *   The program calls the driver past the shim.  The shim does not see that. A program with a context that the shim has not
 *       seen is not sealed (may.h).
 *
 * Where nothing is marked, a launch pays for one load and one branch.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_GUARD_H
#define GLAKE_SHIM_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "proto/cudrv.h"
#include "shim/gate.h"
#include "shim/heap.h"
#include "shim/kernels.h"

#define GUARD_WHY_BYTES 320u

/* Something is marked. Each launch reads this. */
extern atomic_bool guard_awake __attribute__((visibility("hidden")));

static inline bool guard_is_awake(void)
{
	return __builtin_expect(atomic_load_explicit(&guard_awake, memory_order_relaxed), 0);
}

/* ---- what is submitted: inside the gate -------------------------------------------------------- */

/*
 * A launch is about to be submitted. Leaves the gate and enters again if memory has to become private. CUDA_SUCCESS: the
 * driver may get it. *thread is NULL with an error if the program ends (gate_enter()).
 */
CUresult guard_launch(struct gate_thread **thread, CUstream stream, bool is_per_thread,
                      CUfunction function, void *const *params, void *const *extra);

/* Like guard_launch(), for a call that tells no parameters. */
CUresult guard_opaque(struct gate_thread **thread, const char *why);

/* An executable graph is launched, or another call shows that the program computes. */
void guard_note_launch(void);

/* ---- graphs (graphs.c) ------------------------------------------------------------------------- */

/* A kernel may write through @ptr, the word at byte @at of its parameters. Returns false to stop. */
typedef bool guard_word_fn(void *user, CUdeviceptr ptr, const struct kernel *kernel, size_t at);

/*
 * Call @fn with each word of a launch that points to glake's memory and is not a known reader. Returns NULL, or @why_out
 * with the reason why the function may write elsewhere as well. Under GLAKE_DEDUP=learn no word is a
 * known reader, and a function whose parameters the driver tells is never said to write elsewhere.
 */
const char *guard_each_word(CUfunction function, void *const *params, void *const *extra,
                            guard_word_fn *fn, void *user, char why_out[GUARD_WHY_BYTES]);

/* Like guard_launch(), for a note that @kernel writes to @ptr, or (0) anywhere. */
CUresult guard_noted(struct gate_thread **thread, CUdeviceptr ptr, const char *kernel);
/* Does @ptr point to marked memory, or (0) is anything marked? */
bool guard_is_marked(CUdeviceptr ptr);

/* ---- marks (auto.c) ---------------------------------------------------------------------------- */

/* Mark an allocation; one that was taken is marked again. False: no memory, or the process is refused. */
bool guard_mark(const struct heap_facts *facts);
/* Remove the mark of an allocation that is private, or freed. */
void guard_unmark(uint64_t id);

/* Is the allocation still marked, so that it may be sealed? Asked while it is held. */
bool guard_may_seal(uint64_t id);

/* Has anything taken the mark away? The reason stays until the allocation is marked again or unmarked. */
bool guard_was_taken(uint64_t id, char why_out[GUARD_WHY_BYTES]);

/* Make all of the allocation private, outside the gate. 0, or the library's error. */
int guard_make_private(uint64_t id, const char *why);

/* Was anything launched since the first mark was set? */
bool guard_has_launched(void);

/* Is the process not sealed by itself any more? Then *why_out says why. */
bool guard_is_refused(char why_out[GUARD_WHY_BYTES]);
/* Stop sealing by itself for good; all marked memory becomes private. The first reason stays. 0, or the library's error. */
int guard_refuse(const char *why);

#endif

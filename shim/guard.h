/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch guard: memory that glake seals by itself is sealed only while nothing that is submitted can write to it.
 *
 * What is marked. The unit is an allocation of the program. While one is marked, everything that is submitted is judged
 * before the driver gets it; auto.c marks, waits, and seals. A word of a launch's parameters that points into a marked
 * allocation and is not a known reader (readers.h) takes the mark away: the allocation is private again *before* the launch
 * is submitted. So is everything that is marked, if a launch is of a function that no table knows, or calls opaque: then
 * the process is not sealed by itself any more, and the reason is kept.
 *
 * What can go wrong, and why it does not.
 *
 *   A kernel writes by a word that points there.  The word is not a reader, or its conditions do not hold; or the table is
 *       wrong, which is what an audit is for.
 *   It writes through a word that points to another place: beside the allocation, or to a pointer in device memory.  A
 *       function is in a table only if it is closed (readers.h). What is not in one is opaque. With
 *       GLAKE_DEDUP=observed functions that are in no table are taken to be closed: that is the risk of the word.
 *   A launch is submitted before the mark is seen.  Memory is sealed behind a closed gate, when all that was submitted before
 *       has ended (drain.h). Who enters later sees the marks, which are older.
 *   A graph is launched that was made before.  Its kernels were judged when it was made or changed (graphs.h), and each
 *       non-reading word was noted. Marking first and then looking through the notes, against noting first and then
 *       looking at the marks: one of the two sees the other. A replay is not looked at.
 *   What a graph does is not told: bodies of conditional nodes, nodes that the device changes, graphs that the device
 *       launches.  They are noted as opaque.
 *   The driver does not tell parameters (before CUDA 12.4), or a call has none to look at (cuLaunch, cuLaunchGrid).  Opaque.
 *   Code is unloaded, and its handles are another's.  What is known of a handle is asked again (kernels.h), and an image
 *       that is unloaded is forgotten before (code.h).
 *   Memory is freed, and its address is another's.  Allocations are known by a number that is never used again.
 *   The allocation is being sealed while it is to become private.  Whoever makes it private takes it from those that may be
 *       sealed, then holds it, which waits for the sealing, and then unseals it. The mark goes last: others who are about to
 *       write come to the same place meanwhile.
 *   It cannot become private: no memory, or work on the GPU does not end.  The launch is refused with
 *       CUDA_ERROR_OUT_OF_MEMORY, before it is submitted. Nothing of the program is lost.
 *   Two threads make memory private at once.  They take turns, with nothing held that the other wants.
 *   The driver's own calls write (copies, sets, words).  They get copies, as with all sealed memory (writes.h).
 *   Somebody writes who is not this process: shared memory, NICs.  Such memory is pinned, and is not sealed (may.h).
 *   The program calls the driver past the shim.  Not seen. A program with a context that the shim has not seen is not
 *       sealed (may.h).
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

/* Each launch looks at it. */
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

/* The same of a call that tells no parameters. */
CUresult guard_opaque(struct gate_thread **thread, const char *why);

/* An executable graph is launched, or another call shows that the program computes. */
void guard_note_launch(void);

/* ---- graphs (graphs.c) ------------------------------------------------------------------------- */

/* A kernel may write through @ptr, the word at byte @at of its parameters. Returns false to stop. */
typedef bool guard_word_fn(void *user, CUdeviceptr ptr, const struct kernel *kernel, size_t at);

/*
 * Call @fn with each word of a launch that is in glake's memory and is not a known reader; returns NULL if that is all, or
 * why the function may write elsewhere as well (static, or the kernel's, which stays). Under GLAKE_DEDUP=learn no word is a
 * known reader, and no function is said to write elsewhere of which the driver tells the parameters.
 */
const char *guard_each_word(CUfunction function, void *const *params, void *const *extra,
                            guard_word_fn *fn, void *user, char why_out[GUARD_WHY_BYTES]);

/* Something with this pointer, or (0) with any, was noted to be written to by @kernel. As guard_launch(). */
CUresult guard_noted(struct gate_thread **thread, CUdeviceptr ptr, const char *kernel);
/* Would that find something marked? */
bool guard_is_marked(CUdeviceptr ptr);

/* ---- marks (auto.c) ---------------------------------------------------------------------------- */

/* False: no memory. What has the same id already is marked anew. */
bool guard_mark(const struct heap_facts *facts);
/* It is private, or gone. */
void guard_unmark(uint64_t id);

/* Is it still marked, so that it may be sealed? Asked while it is held. */
bool guard_may_seal(uint64_t id);

/* Has anything taken the mark away? Then why, until it is marked again or unmarked. */
bool guard_was_taken(uint64_t id, char why_out[GUARD_WHY_BYTES]);

/* Make all of it private, from a thread of ours. 0, or the library's error. */
int guard_make_private(uint64_t id, const char *why);

/* Was anything launched since anything was marked first? */
bool guard_has_launched(void);

/* Why the process is not sealed by itself any more; false: it may be. */
bool guard_is_refused(char why_out[GUARD_WHY_BYTES]);
/* From now on it is, and what is sealed by itself becomes private. The first reason stays. 0, or the library's error. */
int guard_refuse(const char *why);

#endif

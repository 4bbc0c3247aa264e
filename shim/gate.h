/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: every call that submits work to a GPU passes it (gates.c, from the list shim/gen/gates.txt).
 * Closed, it lets nobody in and nobody is inside, so that memory can change its backing or its access
 * without a launch that was looked up before and runs after.
 *
 * Passing is two plain stores to a word of the thread and one load. Closing pays for them: it sets a
 * flag, has the kernel run a memory barrier on every core that runs a thread of this process
 * (membarrier(2), PRIVATE_EXPEDITED), and waits until every thread is out. Once membarrier was found
 * not permitted, or not known, passing takes a full fence instead.
 *
 *   submitter: depth = 1;  [compiler barrier]; read the flag   -> out again and wait, if set
 *   closer:    flag = set; membarrier;         read each depth -> wait while one is not 0
 * One of the two sees the other's store. (The asymmetric form of Dekker's algorithm, as in liburcu.)
 *
 * Calls that wait or ask are not gated (their results are looked at, fault.h): work under way may depend on the thread that makes them. A
 * synchronous copy both submits and waits, and may hold up the closer for as long as work does that
 * waits for a thread at the gate. So closing has a deadline and is tried again later.
 *
 * Lifetime: the process. A forked child begins with the gate open and nobody else inside.
 * Threads: any. Cancelled threads and such that end inside leave by a destructor of the thread.
 */
#ifndef GLAKE_SHIM_GATE_H
#define GLAKE_SHIM_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One for each thread that ever passed; alone on its cache line. Never freed, only used again. */
struct gate_thread {
	_Alignas(64) _Atomic uint32_t depth; /* of calls inside; written by its thread only */
	_Atomic uint32_t is_used;
	struct gate_thread *next; /* link: all of them; written once */
};

/* What gate.state says. */
#define GATE_CLOSED 1u
#define GATE_FENCED 2u /* there is no membarrier: passing takes a full fence */

struct gate {
	_Atomic uint32_t state; /* a futex: those at the gate wait for it to change */
};

extern struct gate gate __attribute__((visibility("hidden")));
extern _Thread_local struct gate_thread *gate_me
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Before the first call passes. Returns 0, or -errno: no key for the destructor of threads. */
int gate_init(void);

/* The slow parts of gate_enter(): the thread's first time; a gate that is not just open. */
struct gate_thread *gate_join(void);
void gate_wait(struct gate_thread *me);

/*
 * A thread that is inside passes freely: what it submits belongs to the call that let it in. So does
 * the thread that has closed the gate. Returns what gate_leave() wants.
 */
static inline struct gate_thread *gate_enter(void)
{
	struct gate_thread *me = gate_me;
	if (__builtin_expect(!me, 0)) {
		me = gate_join();
	}
	uint32_t depth = atomic_load_explicit(&me->depth, memory_order_relaxed);
	atomic_store_explicit(&me->depth, depth + 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	if (__builtin_expect(atomic_load(&gate.state) != 0, 0)) {
		gate_wait(me);
	}
	return me;
}

static inline void gate_leave(struct gate_thread *me)
{
	uint32_t depth = atomic_load_explicit(&me->depth, memory_order_relaxed);
	atomic_store_explicit(&me->depth, depth - 1, memory_order_release);
}

/*
 * Close it, and wait until everybody is out. One closer at a time; others wait for their turn.
 * 0: it is closed, until gate_open() by the same thread. -ETIMEDOUT: not within @timeout_ns; it is open.
 * -EAGAIN: there is no membarrier; the next try will do without it. -EDEADLK: the caller is inside, or has
 * closed it. -ENOSYS: gate_init() has failed. -ENOMEM: for want of memory a thread once passed unseen. With
 * these two it can never be closed.
 */
int gate_close(uint64_t timeout_ns);
void gate_open(void);

/* Called by fork.c in the child; async-signal-safe. */
void gate_forked(void);

#endif

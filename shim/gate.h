/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: every call that submits work to a GPU passes it (gates.c, from the list shim/gen/gates.txt).
 * While it is closed nobody enters and nobody is inside. So memory can change its backing or its access,
 * and no launch is checked before the change and runs after it.
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
 * Calls that wait or query are not gated (fault.h looks at their results), because work under way may depend on the thread
 * that makes them. A synchronous copy both submits and waits. It may hold up the closer as long as it depends on work that
 * waits for a thread at the gate. So closing has a deadline and is tried again later.
 *
 * The gate is closed for milliseconds, by a thread that opens it again. It can be asleep for any time. Sleep belongs to no
 * thread, and nobody is exempt, not even the thread that asked for it: the program's memory may be anywhere meanwhile. glake's
 * own copies call the driver directly and do not pass the gate.
 *
 *                gate_close()           all are out
 *     open  ------------------> closing -----------> closed         a closer's: it passes, others wait
 *      | ^                         |                 |    |
 *      | |<------------------------'<----------------'    | gate_sleep() by the closer
 *      | |         too late             gate_open()       v
 *      | |                                         closed, asleep   nobody passes
 *      | |                                           |    ^
 *      | | gate_wake()                   gate_open() v    | gate_close(), all are out
 *      | '----------------------------------------- asleep          nobody passes
 *      '---------------------------------------------^ |
 *         gate_sleep(): as closing and opening do      | exit()
 *                                                      v
 *                                                   ending          calls fail, nobody waits
 *
 * Closed and asleep are bits of one word, and a thread waits while either is set. So code that changes ranges need not know
 * of sleep: at a gate that is asleep, closing succeeds as soon as it is the closer's turn, and opening leaves it asleep. A
 * gate that is closed stays closed when it wakes.
 *
 * A thread that waits at a gate that is asleep is in no call yet and holds nothing of ours, so it can be cancelled there, if
 * it permits that. Signals are handled, and let nobody in. exit() ends the wait: from then on calls at a
 * gate that is asleep fail with CUDA_ERROR_DEINITIALIZED, in all threads, since handlers of the program may wait for
 * them. The memory that these calls would use is not there, and under MPS a fault ends other programs' contexts, too.
 * Destructors of thread_local objects run before exit handlers: one that submits work waits, and so does a handler that the
 * program registers while it sleeps.
 *
 * Lifetime: the process. A forked child begins with the gate open and awake, and nobody else inside.
 * Threads: any. A thread that is cancelled or ends inside leaves by a destructor.
 */
#ifndef GLAKE_SHIM_GATE_H
#define GLAKE_SHIM_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record for each thread that ever passed; alone on its cache line. A record is never freed, only used again. */
struct gate_thread {
	_Alignas(64) _Atomic uint32_t depth; /* nested calls inside; written by its thread only */
	_Atomic uint32_t is_used;
	_Atomic uint32_t is_waiting; /* for the gate to wake */
	struct gate_thread *next;    /* link: all records; written once */
};

/* Bits of gate.state. */
#define GATE_CLOSED 1u
#define GATE_FENCED 2u /* there is no membarrier: passing takes a full fence */
#define GATE_ASLEEP 4u
#define GATE_ENDING 8u   /* exit() has begun */
#define GATE_WATCHED 16u /* the next thread that passes takes the slow part, and clears this bit */

struct gate {
	_Atomic uint32_t state; /* a futex: threads at the gate wait for a change */
};

extern struct gate gate __attribute__((visibility("hidden")));
extern _Thread_local struct gate_thread *gate_me
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Called before the first call passes. Returns 0, or -errno: there is no key for the destructor of threads. */
int gate_init(void);

/* The slow parts of gate_enter(): the thread's first time; a gate that is not just open. */
struct gate_thread *gate_join(void) __attribute__((returns_nonnull));
bool gate_wait(struct gate_thread *me);

/*
 * A thread that is inside passes freely: what it submits belongs to the call that let it in. So does
 * the thread that has closed the gate, unless the gate is asleep. Returns the argument of gate_leave(), or NULL: the program
 * ends, and the call is to fail.
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
	if (__builtin_expect(atomic_load(&gate.state) != 0, 0) && !gate_wait(me)) {
		return NULL;
	}
	return me;
}

static inline void gate_leave(struct gate_thread *me)
{
	uint32_t depth = atomic_load_explicit(&me->depth, memory_order_relaxed);
	atomic_store_explicit(&me->depth, depth - 1, memory_order_release);
}

/* The slow part of gate_pass(). */
bool gate_await(void);

/* For calls that do not enter, and wait only while the gate is asleep. False: the program ends, and the call is to fail. */
static inline bool gate_pass(void)
{
	return __builtin_expect(
		       !(atomic_load_explicit(&gate.state, memory_order_relaxed) & GATE_ASLEEP),
		       1) ||
	       gate_await();
}

/* For calls that must not wait. */
static inline bool gate_is_asleep(void)
{
	return atomic_load_explicit(&gate.state, memory_order_relaxed) & GATE_ASLEEP;
}

/* exit() has begun: a gate that is asleep lets calls fail. */
static inline bool gate_is_ending(void)
{
	return atomic_load_explicit(&gate.state, memory_order_relaxed) & GATE_ENDING;
}

/*
 * Close the gate, and wait until everybody is out. One thread closes at a time; others wait for their turn.
 * 0: it is closed, until gate_open() by the same thread, which must not be cancelled meanwhile (cleanup.h). -ETIMEDOUT:
 * somebody was still inside, or another thread had it closed, after @timeout_ns; it is open.
 * -EAGAIN: there is no membarrier; the next try will do without it. -EDEADLK: the caller is inside, or has
 * closed it. After -ENOSYS and -ENOMEM it can never be closed: gate_init() has failed, or for want of memory a thread once
 * passed unseen.
 */
int gate_close(uint64_t timeout_ns);
void gate_open(void);

/*
 * Put the gate to sleep, until gate_wake() by any thread; both do nothing if it is asleep, or awake, already. gate_sleep()
 * closes the gate for a moment, and after an error of gate_close() it is still awake; or the caller has closed it, and opens
 * it later. -ESHUTDOWN: the program ends.
 */
int gate_sleep(uint64_t timeout_ns);
void gate_wake(void);

/*
 * Does a thread wait for the gate to wake? From gate_set_wanted() on, each thread that begins to wait calls @wanted: anywhere,
 * in signal handlers, too.
 */
bool gate_is_wanted(void);
void gate_set_wanted(void (*wanted)(void));

/*
 * gate_was_passed(): has anybody passed since gate_watch()? Only the first thread that passes pays for it, a few nanoseconds.
 */
void gate_watch(void);
bool gate_was_passed(void);

/* Called by fork.c in the child; async-signal-safe. */
void gate_forked(void);

#endif

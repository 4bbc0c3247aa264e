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
 * The gate is closed for milliseconds, by a thread that opens it. It is asleep for as long as somebody wants: no thread
 * belongs to that, and nobody is exempt, the thread that asked for it no more than others. What of the program's memory
 * is where, nobody needs to know meanwhile. Our own copies are calls of the driver itself, which do not pass.
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
 * Both are bits of one word, and who comes waits while one is set. So what changes ranges need not know of sleep: at a
 * gate that is asleep closing succeeds as soon as it is the closer's turn, and opening leaves it asleep. A gate that is
 * closed stays so when it wakes.
 *
 * Who waits at a gate that is asleep is in no call yet and has nothing of ours, so he can be cancelled there, if
 * the thread permits that. Signals are handled, and do not let anybody in. exit() ends the wait: from then on calls at a
 * gate that is asleep fail with CUDA_ERROR_DEINITIALIZED, in all threads, since handlers of the program may wait for
 * them. What they would use is not there, and a fault ends other programs' contexts, too, under MPS. Destructors of
 * thread_local objects run before such handlers: one that submits waits, and so does a handler that the program
 * registers while it sleeps.
 *
 * Lifetime: the process. A forked child begins with the gate open and awake, and nobody else inside.
 * Threads: any. Cancelled threads and such that end inside leave by a destructor of the thread.
 */
#ifndef GLAKE_SHIM_GATE_H
#define GLAKE_SHIM_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One for each thread that ever passed; alone on its cache line. Never freed, only used again. */
struct gate_thread {
	_Alignas(64) _Atomic uint32_t depth; /* of calls inside; written by its thread only */
	_Atomic uint32_t is_used;
	_Atomic uint32_t is_waiting; /* for it to wake */
	struct gate_thread *next;    /* link: all of them; written once */
};

/* What gate.state says. */
#define GATE_CLOSED 1u
#define GATE_FENCED 2u /* there is no membarrier: passing takes a full fence */
#define GATE_ASLEEP 4u
#define GATE_ENDING 8u   /* exit() has begun */
#define GATE_WATCHED 16u /* the next who passes takes the slow part, and removes this */

struct gate {
	_Atomic uint32_t state; /* a futex: those at the gate wait for it to change */
};

extern struct gate gate __attribute__((visibility("hidden")));
extern _Thread_local struct gate_thread *gate_me
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Before the first call passes. Returns 0, or -errno: no key for the destructor of threads. */
int gate_init(void);

/* The slow parts of gate_enter(): the thread's first time; a gate that is not just open. */
struct gate_thread *gate_join(void) __attribute__((returns_nonnull));
bool gate_wait(struct gate_thread *me);

/*
 * A thread that is inside passes freely: what it submits belongs to the call that let it in. So does
 * the thread that has closed the gate, unless it is asleep. Returns what gate_leave() wants, or NULL: the program
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

/* For calls that do not enter, and wait only for it to wake. False: the program ends, and the call is to fail. */
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
 * Close it, and wait until everybody is out. One closer at a time; others wait for their turn.
 * 0: it is closed, until gate_open() by the same thread, which is not cancelled (cleanup.h). -ETIMEDOUT: not within @timeout_ns; it is open.
 * -EAGAIN: there is no membarrier; the next try will do without it. -EDEADLK: the caller is inside, or has
 * closed it. -ENOSYS: gate_init() has failed. -ENOMEM: for want of memory a thread once passed unseen. With
 * these two it can never be closed.
 */
int gate_close(uint64_t timeout_ns);
void gate_open(void);

/*
 * Put it to sleep, until gate_wake() by any thread; both do nothing where it is so already. Closes it for that, as
 * gate_close() does and with its errors, then it is still awake; or the caller has it closed, and opens it later.
 * -ESHUTDOWN: the program ends.
 */
int gate_sleep(uint64_t timeout_ns);
void gate_wake(void);

/*
 * Does a thread wait for it to wake? @wanted is called by each that begins to, from then on: anywhere, in handlers of signals, too.
 */
bool gate_is_wanted(void);
void gate_set_wanted(void (*wanted)(void));

/*
 * Whether anybody has passed since gate_watch(). To know costs the first who passes after that a few nanoseconds, and nobody
 * else anything.
 */
void gate_watch(void);
bool gate_was_passed(void);

/* Called by fork.c in the child; async-signal-safe. */
void gate_forked(void);

#endif

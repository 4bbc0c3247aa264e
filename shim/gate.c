/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate's threads, closing and sleeping; gate.h has the whole theory.
 *
 * What can go wrong is a thread inside that the closer does not see, or two that wait for each other. A thread stores its
 * depth before it reads the state; the closer sets its bit before it reads the depths, with a memory barrier on all cores
 * between: one of the two sees the other. A new record is in the list before its thread reads the state, and no record is
 * freed, so the closer's walk misses none. A thread that got no record could pass unseen: from then on closing fails. Whoever
 * waits at the gate has depth 0, so the closer does not wait for it, and looks at the state again before it passes.
 */
#include "shim/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

/* Records are allocated one page at a time. */
#define RECORD_PAGE_BYTES 4096u

/* A closer spins this many rounds before it sleeps: most calls are out within a microsecond. */
#define N_SPINS 2000u
#define SLEEP_NS 20000u

/* The most exit() handlers that are registered; each takes 32 bytes. */
#define MAX_WATCHES 4096u

struct gate gate;
_Thread_local struct gate_thread *gate_me;

static _Atomic(struct gate_thread *) all;
static struct gate_thread unseen; /* shared by threads that got no record; in no list */
static atomic_bool is_blind;      /* `unseen` was used */
static atomic_bool is_ready;
static pthread_key_t key;
static _Atomic(pid_t) closer; /* the thread that closes or has closed it; 0: nobody */
static void (*_Atomic on_wanted)(void);

/* ---- threads ---------------------------------------------------------------------------------- */

static void leave_for_good(void *record)
{
	struct gate_thread *me = record;
	gate_me = NULL;
	atomic_store_explicit(&me->depth, 0, memory_order_release);
	atomic_store(&me->is_waiting, 0);
	atomic_store_explicit(&me->is_used, 0, memory_order_release);
}

static bool take(struct gate_thread *record)
{
	uint32_t expected = 0;
	return atomic_compare_exchange_strong(&record->is_used, &expected, 1);
}

static struct gate_thread *take_free(void)
{
	for (struct gate_thread *record = atomic_load(&all); record; record = record->next) {
		if (take(record)) {
			return record;
		}
	}
	return NULL;
}

/* Make a page of records and take the first. The list has them before the thread reads the state. */
static struct gate_thread *take_new(void)
{
	struct gate_thread *page = mmap(NULL, RECORD_PAGE_BYTES, PROT_READ | PROT_WRITE,
	                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED) {
		return NULL;
	}
	const size_t n = RECORD_PAGE_BYTES / sizeof(*page);
	page[0].is_used = 1;
	for (size_t i = 0; i + 1 < n; i++) {
		page[i].next = &page[i + 1];
	}
	struct gate_thread *head = atomic_load(&all);
	do {
		page[n - 1].next = head;
	} while (!atomic_compare_exchange_weak(&all, &head, page));
	return page;
}

struct gate_thread *gate_join(void)
{
	const int saved = errno;
	struct gate_thread *me = take_free();
	if (!me) {
		me = take_new();
	}
	if (!me) {
		/*
		 * The work of this thread goes on, but from now on the gate cannot be closed: nobody
		 * can see that this thread is out. A gate that is already closed must open first,
		 * because its closer does not know of the thread.
		 */
		is_blind = true;
		me = &unseen;
	} else {
		/* Without the destructor the record is lost when the thread ends: 64 bytes. */
		pthread_setspecific(key, me);
		gate_me = me;
	}
	errno = saved;
	return me;
}

/* ---- at the gate ------------------------------------------------------------------------------ */

enum answer { PASS, WAIT, REFUSED };

/* The closer passes a closed gate, because what it submits is part of the change. Nobody passes a gate that is asleep. */
static enum answer answer_at(uint32_t state)
{
	if (state & GATE_ASLEEP) {
		return state & GATE_ENDING ? REFUSED : WAIT;
	}
	return state & GATE_CLOSED && atomic_load(&closer) != gettid() ? WAIT : PASS;
}

/* Wait with cancellation allowed, because a sleep may be long. */
static void wait_asleep(struct gate_thread *me, uint32_t state)
{
	void (*wanted)(void) = on_wanted;
	int type;
	/* Set before the call, because wanted() leads to gate_is_wanted(). wait_there() and gate_await() clear it. */
	atomic_store(&me->is_waiting, 1);
	if (wanted) {
		wanted();
	}
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	syscall(SYS_futex, &gate.state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
	pthread_setcanceltype(type, &type);
}

/* Wait until the state differs from @state. A closed gate opens within milliseconds, so that wait cannot be cancelled. */
static void wait_for_other_than(struct gate_thread *me, uint32_t state)
{
	const int saved = errno;
	if (state & GATE_ASLEEP) {
		wait_asleep(me, state);
	} else {
		syscall(SYS_futex, &gate.state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
	}
	errno = saved;
}

static bool wait_there(struct gate_thread *me)
{
	enum answer answer;
	uint32_t state;
	while ((answer = answer_at(state = atomic_load(&gate.state))) == WAIT) {
		atomic_store_explicit(&me->depth, 0, memory_order_release);
		wait_for_other_than(me, state);
		atomic_store(&me->depth, 1);
	}
	atomic_store(&me->is_waiting, 0);
	if (answer == REFUSED) {
		atomic_store_explicit(&me->depth, 0, memory_order_release);
	}
	return answer == PASS;
}

bool gate_wait(struct gate_thread *me)
{
	if (atomic_load_explicit(&gate.state, memory_order_relaxed) & GATE_WATCHED) {
		atomic_fetch_and(&gate.state, ~GATE_WATCHED);
	}
	if (me != &unseen && atomic_load(&me->depth) > 1) {
		return true;
	}
	/* Store the depth once more, with a full fence, because closers may do without membarrier. */
	atomic_store(&me->depth, 1);
	return !(atomic_load(&gate.state) & (GATE_CLOSED | GATE_ASLEEP)) || wait_there(me);
}

bool gate_await(void)
{
	struct gate_thread *me = gate_me ? gate_me : gate_join();
	uint32_t state;
	while ((state = atomic_load(&gate.state)) & GATE_ASLEEP && !(state & GATE_ENDING)) {
		wait_for_other_than(me, state);
	}
	atomic_store(&me->is_waiting, 0);
	return !(state & GATE_ASLEEP);
}

/* ---- closing ---------------------------------------------------------------------------------- */

int gate_init(void)
{
	int error = pthread_key_create(&key, leave_for_good);
	is_ready = error == 0;
	return -error;
}

static bool membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0) == 0;
}

/*
 * A memory barrier on every core that runs a thread of the process: earlier stores of all threads are visible after it, and
 * later loads see the flag.
 *
 * The process registers when it first closes, since that can take milliseconds in a process with
 * threads. Without membarrier all threads pass with fences from then on; those that passed without one
 * are out when closing is tried again.
 */
static int barrier_everywhere(void)
{
	if (atomic_load(&gate.state) & GATE_FENCED ||
	    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
	    (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
	     membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))) {
		return 0;
	}
	atomic_fetch_or(&gate.state, GATE_FENCED);
	return -EAGAIN;
}

static bool is_out(const struct gate_thread *record, uint64_t deadline)
{
	for (unsigned i = 0; atomic_load(&record->depth); i++) {
		if (i < N_SPINS) {
			__builtin_ia32_pause();
		} else if (clock_now_ns() >= deadline) {
			return false;
		} else {
			clock_sleep_ns(SLEEP_NS);
		}
	}
	return true;
}

static bool is_everybody_out(uint64_t deadline)
{
	for (struct gate_thread *record = atomic_load(&all); record; record = record->next) {
		if (!is_out(record, deadline)) {
			return false;
		}
	}
	return true;
}

/* Become the closer. Waiting polls, because closers are rare and quick. */
static bool take_turn(uint64_t deadline)
{
	pid_t nobody = 0;
	while (!atomic_compare_exchange_strong(&closer, &nobody, gettid())) {
		if (clock_now_ns() >= deadline) {
			return false;
		}
		clock_sleep_ns(SLEEP_NS);
		nobody = 0;
	}
	return true;
}

int gate_close(uint64_t timeout_ns)
{
	const uint64_t deadline = clock_now_ns() + timeout_ns;
	const struct gate_thread *me = gate_me;
	if (!is_ready) {
		return -ENOSYS;
	}
	if (atomic_load(&closer) == gettid() || (me && atomic_load(&me->depth) > 0)) {
		return -EDEADLK;
	}
	if (!take_turn(deadline)) {
		return -ETIMEDOUT;
	}
	atomic_fetch_or(&gate.state, GATE_CLOSED);
	int result = is_blind ? -ENOMEM : barrier_everywhere();
	if (result == 0 && !is_everybody_out(deadline)) {
		result = -ETIMEDOUT;
	}
	if (result < 0) {
		gate_open();
	}
	return result;
}

/* Set @bit and wake all who wait, so that they look again. */
static void set(uint32_t bit)
{
	atomic_fetch_or(&gate.state, bit);
	syscall(SYS_futex, &gate.state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void clear(uint32_t bit)
{
	atomic_fetch_and(&gate.state, ~bit);
	syscall(SYS_futex, &gate.state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void gate_open(void)
{
	clear(GATE_CLOSED);
	atomic_store(&closer, 0);
}

/* ---- whether anybody passes -------------------------------------------------------------------- */

void gate_watch(void)
{
	atomic_fetch_or(&gate.state, GATE_WATCHED);
}

bool gate_was_passed(void)
{
	return !(atomic_load(&gate.state) & GATE_WATCHED);
}

/* ---- sleeping --------------------------------------------------------------------------------- */

static void end(void)
{
	set(GATE_ENDING);
}

/*
 * exit() runs the handler that was registered last first. Each sleep registers one, so that it runs before all that were
 * registered earlier. Handlers cannot be removed, so their number is limited.
 */
static int watch_exit(void)
{
	static atomic_uint n_watches;
	if (n_watches < MAX_WATCHES) {
		n_watches++;
		return atexit(end) == 0 ? 0 : -ENOMEM;
	}
	return 0;
}

int gate_sleep(uint64_t timeout_ns)
{
	cleanup_cancel int cancel = cancel_disable();
	const bool is_closer = atomic_load(&closer) == gettid();
	if (atomic_load(&gate.state) & GATE_ENDING) {
		return -ESHUTDOWN;
	}
	int r = watch_exit();
	if (r == 0 && !is_closer) {
		r = gate_close(timeout_ns);
	}
	if (r < 0) {
		return r;
	}
	set(GATE_ASLEEP);
	if (!is_closer) {
		gate_open();
	}
	return 0;
}

void gate_wake(void)
{
	clear(GATE_ASLEEP);
}

bool gate_is_wanted(void)
{
	const struct gate_thread *record = atomic_load(&all);
	while (record && !atomic_load(&record->is_waiting)) {
		record = record->next;
	}
	return record || atomic_load(&unseen.is_waiting);
}

void gate_set_wanted(void (*wanted)(void))
{
	on_wanted = wanted;
}

void gate_forked(void)
{
	for (struct gate_thread *record = atomic_load(&all); record; record = record->next) {
		if (record != gate_me) {
			record->depth = 0;
			record->is_used = 0;
		}
		record->is_waiting = 0;
	}
	atomic_fetch_and(&gate.state, ~(GATE_CLOSED | GATE_ASLEEP | GATE_ENDING | GATE_WATCHED));
	atomic_store(&closer, 0);
}

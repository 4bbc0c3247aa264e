/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, and closing. The reasoning is in the header. */
#include "shim/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/clock.h"

/* Records are made by the page. */
#define RECORD_PAGE_BYTES 4096u

/* A closer spins for so many rounds before it sleeps: most calls are out within a microsecond. */
#define N_SPINS 2000u
#define SLEEP_NS 20000u

struct gate gate;
_Thread_local struct gate_thread *gate_me;

static _Atomic(struct gate_thread *) all;
static struct gate_thread unseen; /* of threads without a record of their own; in no list */
static atomic_bool is_blind;      /* there was such a thread */
static atomic_bool is_ready;
static pthread_key_t key;
static _Atomic(pid_t) closer; /* the thread that closes or has closed it; 0: nobody */

/* ---- threads ---------------------------------------------------------------------------------- */

static void leave_for_good(void *record)
{
	struct gate_thread *me = record;
	gate_me = NULL;
	atomic_store_explicit(&me->depth, 0, memory_order_release);
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

/* A page of records, all but the first of them free. The closer's list has it before its flag is read. */
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

/* What the closer submits is part of the change. */
static bool must_wait(void)
{
	return atomic_load(&gate.state) & GATE_CLOSED && atomic_load(&closer) != gettid();
}

static void wait_until_open(void)
{
	const int saved = errno;
	while (must_wait()) {
		uint32_t state = atomic_load(&gate.state);
		if (state & GATE_CLOSED) {
			syscall(SYS_futex, &gate.state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
		}
	}
	errno = saved;
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
		wait_until_open();
	} else {
		/* Without the destructor the record is lost when the thread ends: 64 bytes. */
		pthread_setspecific(key, me);
		gate_me = me;
	}
	errno = saved;
	return me;
}

void gate_wait(struct gate_thread *me)
{
	if (me == &unseen || atomic_load(&me->depth) > 1) {
		return;
	}
	/* Again, and ordered: the gate may be fenced. */
	atomic_store(&me->depth, 1);
	while (must_wait()) {
		atomic_store_explicit(&me->depth, 0, memory_order_release);
		wait_until_open();
		atomic_store(&me->depth, 1);
	}
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
 * What every thread stored before is seen from here on; what it loads after, it loads after the flag.
 *
 * The process registers when it first closes, since that can take milliseconds in a process with
 * threads. Without membarrier all pass with fences from then on, and those that did not yet are
 * through when closing is tried again.
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
			nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
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

/* Closers are rare, and done within microseconds. */
static bool take_turn(uint64_t deadline)
{
	pid_t nobody = 0;
	while (!atomic_compare_exchange_strong(&closer, &nobody, gettid())) {
		if (clock_now_ns() >= deadline) {
			return false;
		}
		nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
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

void gate_open(void)
{
	atomic_fetch_and(&gate.state, ~GATE_CLOSED);
	syscall(SYS_futex, &gate.state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	atomic_store(&closer, 0);
}

void gate_forked(void)
{
	for (struct gate_thread *record = atomic_load(&all); record; record = record->next) {
		if (record != gate_me) {
			record->depth = 0;
			record->is_used = 0;
		}
	}
	atomic_fetch_and(&gate.state, ~GATE_CLOSED);
	atomic_store(&closer, 0);
}

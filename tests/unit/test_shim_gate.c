/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's gate: nobody is inside while it is closed, whatever threads do. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/gate.h"
#include "shim/gates.h"
#include "tests/check_glake.h"
#include "tests/unit/forbid.h"
#include "tests/unit/submitter.h"

#define SOON_NS 2000000u     /* a close that is to fail fails after this */
#define LONG_NS 60000000000u /* only what hangs takes so long */
#define STRESS_NS 300000000u /* how long threads pass and a closer closes */
#define N_THREADS 4

static void ck_closes(void)
{
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	gate_open();
}

/* ---- one by one ------------------------------------------------------------------------------- */

START_TEST(closing_waits_for_those_inside)
{
	struct submitter submitter;
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	ck_assert_int_eq(gate_close(SOON_NS), -ETIMEDOUT);
	/* The gate is open again. */
	submitter_go(&submitter, 0);
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	ck_closes();
	submitter_end(&submitter);
}
END_TEST

START_TEST(nobody_enters_a_closed_gate)
{
	struct submitter submitter;
	submitter_start(&submitter);
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	atomic_store(&submitter.wanted, 1);
	usleep(20000);
	ck_assert_int_eq(atomic_load(&submitter.inside), 0);
	gate_open();
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	submitter_end(&submitter);
}
END_TEST

/* A call that calls: the inner one would wait for ever for the outer one to leave. */
START_TEST(calls_inside_pass)
{
	struct submitter submitter;
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	ck_assert_int_eq(gate_close(SOON_NS), -ETIMEDOUT);
	submitter_go(&submitter, 3);
	submitter_go(&submitter, 1);
	ck_assert_int_eq(gate_close(SOON_NS), -ETIMEDOUT);
	submitter_go(&submitter, 0);
	ck_closes();
	submitter_end(&submitter);
}
END_TEST

START_TEST(threads_that_end_inside_have_left)
{
	struct submitter submitter;
	submitter_start(&submitter);
	submitter_go(&submitter, 2);
	submitter_end(&submitter);
	ck_closes();
	/* Another thread gets the same record, with nobody inside. */
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	ck_closes();
	submitter_end(&submitter);
}
END_TEST

static void *record_of_thread(void *argument)
{
	gate_leave(gate_enter());
	return gate_me;
}

/* Programs make and end threads for as long as they run. */
START_TEST(records_are_used_again)
{
	void *records[2];
	pthread_t thread;
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(pthread_create(&thread, NULL, record_of_thread, NULL), 0);
		pthread_join(thread, &records[i]);
	}
	ck_assert_ptr_eq(records[0], records[1]);
}
END_TEST

static pthread_key_t late_key;
static bool was_ours;

/* The second time the gate's own destructor has run. */
static void submit_late(void *argument)
{
	int *n_calls = argument;
	if (++*n_calls < 2) {
		pthread_setspecific(late_key, argument);
		return;
	}
	struct gate_thread *me = gate_enter();
	was_ours = me->is_used;
	gate_leave(me);
}

static void *end_late(void *argument)
{
	gate_leave(gate_enter());
	pthread_setspecific(late_key, argument);
	return NULL;
}

START_TEST(a_thread_submits_while_it_ends)
{
	int n_calls = 0;
	pthread_t thread;
	ck_assert_int_eq(pthread_key_create(&late_key, submit_late), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, end_late, &n_calls), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(n_calls, 2);
	ck_assert(was_ours);
	ck_closes();
}
END_TEST

/* Without a destructor nobody would know of threads that end inside. */
START_TEST(without_a_key_it_does_not_close)
{
	pthread_key_t key;
	while (pthread_key_create(&key, NULL) == 0) {
	}
	ck_assert_int_eq(gate_init(), -EAGAIN);
	ck_assert_int_eq(gate_close(LONG_NS), -ENOSYS);
	ck_assert_int_eq(gate_sleep(LONG_NS), -ENOSYS);
	gate_leave(gate_enter());
}
END_TEST

START_TEST(who_closes_is_told_what_cannot_be)
{
	struct gate_thread *me = gate_enter();
	ck_assert_int_eq(gate_close(SOON_NS), -EDEADLK);
	gate_leave(me);
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	ck_assert_int_eq(gate_close(SOON_NS), -EDEADLK);
	/* Its own submissions are part of what it does. */
	gate_leave(gate_enter());
	gate_open();
}
END_TEST

static void *close_soon(void *result)
{
	*(int *)result = gate_close(SOON_NS);
	return NULL;
}

START_TEST(closers_take_turns)
{
	int result = 0;
	pthread_t thread;
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, close_soon, &result), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(result, -ETIMEDOUT);
	gate_open();
}
END_TEST

static bool child_says(bool (*check)(struct gate_thread *record), struct gate_thread *record)
{
	int status;
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		gate_forked();
		_exit(check(record) ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return status == 0;
}

static bool passes_and_closes(struct gate_thread *record)
{
	gate_leave(gate_enter());
	return gate_close(SOON_NS) == 0;
}

START_TEST(a_child_begins_open)
{
	struct submitter submitter;
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	ck_assert(child_says(passes_and_closes, NULL));
	submitter_go(&submitter, 0);
	submitter_end(&submitter);
}
END_TEST

static bool leaves(struct gate_thread *me)
{
	gate_leave(me);
	return me->depth == 0 && me->is_used && gate_close(SOON_NS) == 0;
}

static bool finds(struct gate_thread *record)
{
	return gate_join() == record;
}

/* A callback of the driver may fork, and be in the middle of a call in the child as well. */
START_TEST(who_forks_inside_leaves_in_the_child)
{
	struct gate_thread *me = gate_enter();
	ck_assert(child_says(leaves, me));
	gate_leave(me);
}
END_TEST

START_TEST(records_of_the_parents_threads_are_free)
{
	struct gate_thread *record = gate_join();
	ck_assert_ptr_ne(gate_join(), record);
	ck_assert(child_says(finds, record));
}
END_TEST

/* ---- all at once ------------------------------------------------------------------------------ */

struct stress {
	atomic_bool is_over;
	atomic_int n_inside;
	atomic_ullong n_passed;
};

static void *pass_on_and_on(void *argument)
{
	struct stress *stress = argument;
	while (!atomic_load_explicit(&stress->is_over, memory_order_relaxed)) {
		struct gate_thread *me = gate_enter();
		/* Plain enough not to order anything by itself. */
		atomic_fetch_add_explicit(&stress->n_inside, 1, memory_order_relaxed);
		atomic_fetch_sub_explicit(&stress->n_inside, 1, memory_order_relaxed);
		gate_leave(me);
		atomic_fetch_add_explicit(&stress->n_passed, 1, memory_order_relaxed);
	}
	return NULL;
}

static void stress_gate(void)
{
	struct stress stress = {0};
	pthread_t threads[N_THREADS];
	for (int i = 0; i < N_THREADS; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, pass_on_and_on, &stress), 0);
	}
	const uint64_t end = clock_now_ns() + STRESS_NS;
	unsigned n_closed = 0;
	while (clock_now_ns() < end || n_closed < 10) {
		ck_assert_int_eq(gate_close(LONG_NS), 0);
		for (int i = 0; i < 100; i++) {
			ck_assert_int_eq(atomic_load(&stress.n_inside), 0);
		}
		n_closed++;
		gate_open();
		usleep(50);
	}
	atomic_store(&stress.is_over, true);
	for (int i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert_uint_gt(atomic_load(&stress.n_passed), n_closed);
}

START_TEST(nobody_is_inside_while_it_is_closed)
{
	stress_gate();
	ck_assert_uint_eq(gate.state, 0);
}
END_TEST

START_TEST(without_membarrier_as_well)
{
	forbid_membarrier();
	ck_assert_int_eq(gate_close(LONG_NS), -EAGAIN);
	ck_assert_uint_eq(gate.state, GATE_FENCED);
	stress_gate();
}
END_TEST

START_TEST(membarrier_may_be_forbidden_later)
{
	stress_gate();
	ck_assert_uint_eq(gate.state, 0);
	forbid_membarrier();
	ck_assert_int_eq(gate_close(LONG_NS), -EAGAIN);
	ck_assert_uint_eq(gate.state, GATE_FENCED);
	stress_gate();
}
END_TEST

/* ---- without memory --------------------------------------------------------------------------- */

#define N_POOR 40

static atomic_int n_have_come;
static atomic_int n_are_in;

static void *enter_without_memory(void *argument)
{
	forbid(SYS_mmap, ENOMEM);
	atomic_fetch_add(&n_have_come, 1);
	struct gate_thread *me = gate_enter();
	/* And calls that call. */
	gate_leave(gate_enter());
	atomic_fetch_add(&n_are_in, 1);
	gate_leave(me);
	return argument;
}

static void do_nothing(int signal)
{
	(void)signal;
}

/* No thread has a record of its own from now on, unless there is memory. */
static void use_up_records(void)
{
	for (int i = 0; i < 64; i++) {
		gate_join();
	}
}

/* They come one after the other, and a signal wakes those who wait: they look at the gate again. */
START_TEST(threads_without_memory_wait_at_a_closed_gate)
{
	const struct sigaction action = {.sa_handler = do_nothing};
	pthread_t threads[N_POOR];
	if (TEST_SANITIZED) {
		return; /* its own threads need memory */
	}
	sigaction(SIGUSR1, &action, NULL);
	use_up_records();
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	for (int i = 0; i < N_POOR; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, enter_without_memory, NULL), 0);
		while (atomic_load(&n_have_come) <= i) {
			pthread_kill(threads[0], SIGUSR1);
		}
		for (int k = 0; k < 200; k++) {
			pthread_kill(threads[0], SIGUSR1);
		}
	}
	ck_assert_int_eq(atomic_load(&n_are_in), 0);
	gate_open();
	for (int i = 0; i < N_POOR; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert_int_eq(atomic_load(&n_are_in), N_POOR);
	/* Nobody can know any more that such a thread is out. */
	ck_assert_int_eq(gate_close(SOON_NS), -ENOMEM);
	gate_leave(gate_enter());
}
END_TEST

/* ---- the calls -------------------------------------------------------------------------------- */

static unsigned depth_seen;

static int real_call(void)
{
	depth_seen = gate_me ? gate_me->depth : 0;
	return 77;
}

/* With more arguments than any takes: what is too many is not looked at. */
typedef int any_call_fn(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                        void *, void *, void *);

START_TEST(gated_calls_are_made_inside)
{
	ck_assert_uint_gt(n_gated_calls, 100);
	for (size_t i = 0; i < n_gated_calls; i++) {
		*gated_calls[i].real = (void *)real_call;
		any_call_fn *body = (any_call_fn *)gated_calls[i].body;
		depth_seen = 0;
		ck_assert_int_eq(body(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 77);
		ck_assert_msg(depth_seen == (gated_calls[i].kind == GATES_PASSES), "%s",
		              gated_calls[i].symbol);
		ck_assert_uint_eq(gate_me ? gate_me->depth : 0, 0);
	}
}
END_TEST

/* A new toolkit may bring calls: each has to be thought about, and put into shim/gen/gates.txt. */
START_TEST(every_call_is_gated_or_excused)
{
	static const char *const unknown[] = {
#define UNKNOWN(symbol) #symbol,
#include "shim/gates.def"
		NULL};
	ck_assert_msg(!unknown[0], "%s is not in shim/gen/gates.txt", unknown[0]);
}
END_TEST

static const char *const of_hooks[] = {
#define HOOK(symbol, prototype, class, version, flags) #symbol,
#define PASS(symbol, class) #symbol,
#include "shim/hooks.def"
};

static const char *const listed[] = {
#define GATE(symbol, ...) #symbol,
#define CAPTURE GATE
#define WRITE GATE
#define WRITE_OR_AWAIT GATE
#define REPLAY GATE
#define AWAIT GATE
#define LAUNCH GATE
#define OPAQUE GATE
#define LOAD GATE
#define ASK GATE
#define UNLOAD GATE
#define WAKE GATE
#define EXCUSED GATE
#include "shim/gates.def"
};

/* By its symbol, or an excuse without a prototype by its name without _vN. */
static bool is_listed(const char *symbol)
{
	const char *version = strstr(symbol, "_v");
	size_t n_base = version ? (size_t)(version - symbol) : strlen(symbol);
	for (size_t i = 0; i < n_elements(listed); i++) {
		if (strcmp(listed[i], symbol) == 0 ||
		    (strncmp(listed[i], symbol, n_base) == 0 && !listed[i][n_base])) {
			return true;
		}
	}
	return false;
}

/* Each says whether it wakes a process that is asleep. */
START_TEST(every_call_with_a_hook_passes_or_wakes_or_is_excused)
{
	for (size_t i = 0; i < n_elements(of_hooks); i++) {
		ck_assert_msg(is_listed(of_hooks[i]), "%s is not in shim/gen/gates.txt",
		              of_hooks[i]);
	}
}
END_TEST

/* A call that takes a destination says where that is, or why nothing of ours can be there. */
START_TEST(every_gated_call_says_what_it_writes)
{
	static const char *const undecided[] = {
#define UNDECIDED(symbol) #symbol,
#include "shim/gates.def"
		NULL};
	ck_assert_msg(!undecided[0], "%s has neither a finder nor a reason in shim/gen/gates.txt",
	              undecided[0]);
}
END_TEST

int main(void)
{
	if (gate_init() < 0) {
		return EXIT_FAILURE;
	}
	return tests_run();
}

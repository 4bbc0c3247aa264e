/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's gate while it is asleep: nobody passes, however long, and whoever wants to end ends. */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/gate.h"
#include "shim/gates.h"
#include "shim/writes.h"
#include "tests/check_glake.h"
#include "tests/unit/own_process.h"
#include "tests/unit/submitter.h"

#define SOON_NS 2000000u
#define LONG_NS 60000000000u /* only what hangs takes so long */
#define A_WHILE_US 20000

static void *sleep_now(void *result)
{
	*(int *)result = gate_sleep(LONG_NS);
	return NULL;
}

static void *wake_now(void *argument)
{
	gate_wake();
	return argument;
}

static void in_thread(void *(*fn)(void *), void *argument)
{
	pthread_t thread;
	ck_assert_int_eq(pthread_create(&thread, NULL, fn, argument), 0);
	pthread_join(thread, NULL);
}

static void ck_closes(void)
{
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	gate_open();
}

/* A thread that passes once. */
struct passer {
	pthread_t thread;
	_Atomic pid_t tid;
	atomic_bool has_passed;
	bool is_steadfast; /* cannot be cancelled */
	bool stays_out;    /* gate_pass() */
	int error;         /* errno behind */
};

static void *pass_once(void *argument)
{
	struct passer *passer = argument;
	int cancel;
	if (passer->is_steadfast) {
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	}
	errno = 77;
	passer->tid = gettid();
	if (passer->stays_out) {
		ck_assert(gate_pass());
	} else {
		gate_leave(gate_enter());
	}
	passer->error = errno;
	passer->has_passed = true;
	return NULL;
}

/* When this returns, @passer waits at the gate. */
static void passer_start(struct passer *passer)
{
	char path[64];
	char line[256];
	char state = 'R';
	ck_assert_int_eq(pthread_create(&passer->thread, NULL, pass_once, passer), 0);
	while (!passer->tid) {
		usleep(100);
	}
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)passer->tid);
	while (state != 'S') {
		FILE *file = fopen(path, "r");
		ck_assert_ptr_nonnull(file);
		ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
		fclose(file);
		state = strrchr(line, ')')[2];
	}
	ck_assert(!passer->has_passed);
}

static void passer_end(struct passer *passer, bool passes)
{
	void *result;
	pthread_join(passer->thread, &result);
	ck_assert_int_eq(passer->has_passed, passes);
	ck_assert_ptr_eq(result, passes ? NULL : PTHREAD_CANCELED);
}

/* ---- in and out ------------------------------------------------------------------------------- */

START_TEST(it_sleeps_without_whoever_told_it_to)
{
	struct submitter submitter;
	int result = 1;
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	in_thread(sleep_now, &result);
	ck_assert_int_eq(result, 0);
	atomic_store(&submitter.wanted, 1);
	usleep(A_WHILE_US);
	ck_assert_int_eq(atomic_load(&submitter.inside), 0);
	in_thread(wake_now, NULL);
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	submitter_end(&submitter);
	ck_closes();
}
END_TEST

static void *sleep_and_submit(void *argument)
{
	struct passer *passer = argument;
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	return pass_once(passer);
}

static void *close_sleep_and_submit(void *argument)
{
	struct passer *passer = argument;
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	/* This is part of the change. */
	gate_leave(gate_enter());
	ck_assert_int_eq(gate_sleep(SOON_NS), 0);
	pass_once(passer);
	gate_open();
	return NULL;
}

START_TEST_WITH(nobody_is_exempt, .n = 2)
{
	struct passer passer = {0};
	ck_assert_int_eq(pthread_create(&passer.thread, NULL,
	                                _i ? close_sleep_and_submit : sleep_and_submit, &passer),
	                 0);
	while (!passer.tid) {
		usleep(100);
	}
	usleep(A_WHILE_US);
	ck_assert(!passer.has_passed);
	gate_wake();
	passer_end(&passer, true);
	ck_closes();
}
END_TEST

START_TEST(sleep_waits_for_those_inside)
{
	struct submitter submitter;
	struct gate_thread *me = gate_enter();
	ck_assert_int_eq(gate_sleep(SOON_NS), -EDEADLK);
	gate_leave(me);
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	ck_assert_int_eq(gate_sleep(SOON_NS), -ETIMEDOUT);
	ck_assert_uint_eq(gate.state, 0);
	/* The gate is awake. */
	gate_leave(gate_enter());
	submitter_go(&submitter, 2);
	submitter_go(&submitter, 0);
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	gate_wake();
	submitter_end(&submitter);
	ck_closes();
}
END_TEST

START_TEST(sleep_is_no_count)
{
	gate_wake();
	gate_leave(gate_enter());
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	gate_wake();
	gate_leave(gate_enter());
	ck_assert_uint_eq(gate.state, 0);
}
END_TEST

/* ---- and changes ------------------------------------------------------------------------------ */

START_TEST(changes_go_on_while_it_sleeps)
{
	struct passer passer = {0};
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	for (int i = 0; i < 10; i++) {
		ck_closes();
		ck_assert_uint_eq(gate.state, GATE_ASLEEP);
	}
	usleep(A_WHILE_US);
	ck_assert(!passer.has_passed);
	gate_wake();
	passer_end(&passer, true);
}
END_TEST

START_TEST(a_closed_gate_stays_closed_when_it_wakes)
{
	struct passer passer = {0};
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	gate_wake();
	gate_leave(gate_enter());
	usleep(A_WHILE_US);
	ck_assert(!passer.has_passed);
	gate_open();
	passer_end(&passer, true);
}
END_TEST

START_TEST(a_closer_can_leave_it_asleep)
{
	struct passer passer = {0};
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	passer_start(&passer);
	ck_assert_int_eq(gate_sleep(SOON_NS), 0);
	gate_open();
	usleep(A_WHILE_US);
	ck_assert(!passer.has_passed);
	/* Another closer has its turn. */
	ck_closes();
	gate_wake();
	passer_end(&passer, true);
}
END_TEST

/* ---- who wants it awake ----------------------------------------------------------------------- */

static atomic_int n_wanted;

static void note_wanted(void)
{
	n_wanted++;
}

/* Calls that do not pass, too. */
START_TEST_WITH(who_waits_asks_for_it_to_wake, .n = 2)
{
	struct passer passer = {.stays_out = _i};
	gate_set_wanted(note_wanted);
	ck_assert(gate_pass());
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	ck_assert(!gate_is_wanted());
	ck_assert_int_eq(n_wanted, 0);
	passer_start(&passer);
	ck_assert(gate_is_wanted());
	ck_assert_int_eq(n_wanted, 1);
	gate_wake();
	passer_end(&passer, true);
	ck_assert_int_eq(passer.error, 77);
	ck_assert(!gate_is_wanted());
	ck_closes();
}
END_TEST

START_TEST_WITH(who_is_cancelled_wants_nothing, .n = 2)
{
	struct passer passer = {.stays_out = _i};
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	ck_assert(gate_is_wanted());
	pthread_cancel(passer.thread);
	passer_end(&passer, false);
	ck_assert(!gate_is_wanted());
	gate_wake();
	/* Nobody is left inside. */
	ck_closes();
}
END_TEST

/* They would wait for the closer, who may need them. */
START_TEST(calls_that_do_not_pass_do_not_wait_for_a_closer)
{
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	struct passer passer = {.stays_out = true};
	ck_assert_int_eq(pthread_create(&passer.thread, NULL, pass_once, &passer), 0);
	passer_end(&passer, true);
	gate_open();
}
END_TEST

static void *sleep_soon(void *result)
{
	*(int *)result = gate_sleep(SOON_NS);
	return NULL;
}

START_TEST(sleep_waits_for_its_turn)
{
	int result = 0;
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	in_thread(sleep_soon, &result);
	ck_assert_int_eq(result, -ETIMEDOUT);
	gate_open();
	ck_assert_uint_eq(gate.state, 0);
	gate_leave(gate_enter());
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------- */

static void *do_nothing(void *argument)
{
	return argument;
}

START_TEST(threads_come_and_go_meanwhile)
{
	struct submitter submitter;
	struct passer passers[8] = {0};
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	submitter_go(&submitter, 0);
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	submitter_end(&submitter);
	for (int i = 0; i < 8; i++) {
		passer_start(&passers[i]);
		in_thread(do_nothing, NULL);
	}
	gate_wake();
	for (int i = 0; i < 8; i++) {
		passer_end(&passers[i], true);
		ck_assert_int_eq(passers[i].error, 77);
	}
	ck_closes();
}
END_TEST

static atomic_int n_signals;

static void count(int signal)
{
	(void)signal;
	n_signals++;
}

START_TEST(signals_let_nobody_in)
{
	const struct sigaction action = {.sa_handler = count};
	struct passer passer = {0};
	sigaction(SIGUSR1, &action, NULL);
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	for (int i = 0; i < 100; i++) {
		pthread_kill(passer.thread, SIGUSR1);
		while (n_signals <= i) {
			usleep(100);
		}
	}
	ck_assert(!passer.has_passed);
	gate_wake();
	passer_end(&passer, true);
	ck_assert_int_eq(passer.error, 77);
}
END_TEST

START_TEST(who_waited_already_can_be_cancelled_too)
{
	struct passer passer = {0};
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	passer_start(&passer);
	pthread_cancel(passer.thread);
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_end(&passer, false);
	gate_open();
	gate_wake();
	ck_closes();
}
END_TEST

/* As today: a gate that is only closed is open again before it would matter. */
START_TEST(who_waits_for_a_closer_is_not_cancelled)
{
	struct passer passer = {0};
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	passer_start(&passer);
	pthread_cancel(passer.thread);
	usleep(A_WHILE_US);
	gate_open();
	passer_end(&passer, true);
	ck_closes();
}
END_TEST

static void *sleep_for_long(void *argument)
{
	gate_sleep(LONG_NS);
	pthread_testcancel();
	return argument;
}

/* A cancelled thread would leave the gate closed for ever. */
START_TEST(who_puts_it_to_sleep_is_not_cancelled)
{
	struct submitter submitter;
	pthread_t thread;
	void *result;
	submitter_start(&submitter);
	submitter_go(&submitter, 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, sleep_for_long, NULL), 0);
	while (!(gate.state & GATE_CLOSED)) {
		usleep(100);
	}
	usleep(A_WHILE_US);
	pthread_cancel(thread);
	usleep(A_WHILE_US);
	submitter_go(&submitter, 0);
	pthread_join(thread, &result);
	ck_assert_ptr_eq(result, PTHREAD_CANCELED);
	ck_assert_uint_eq(gate.state, GATE_ASLEEP);
	gate_wake();
	submitter_end(&submitter);
	ck_closes();
}
END_TEST

START_TEST(who_forbids_it_is_not_cancelled)
{
	struct passer passer = {.is_steadfast = true};
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	pthread_cancel(passer.thread);
	usleep(A_WHILE_US);
	gate_wake();
	passer_end(&passer, true);
	ck_closes();
}
END_TEST

static void *pass_and_idle(void *argument)
{
	atomic_bool *has_passed = argument;
	gate_leave(gate_enter());
	*has_passed = true;
	while (true) {
		/* Nothing here may be cancelled. */
	}
	return NULL;
}

/* Who was let in has the type that he had: cancelled in the middle of anything he would leave it broken. */
START_TEST(who_has_waited_is_cancelled_as_before)
{
	pthread_t thread;
	void *result = NULL;
	int status;
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		atomic_bool has_passed = false;
		gate_sleep(LONG_NS);
		pthread_create(&thread, NULL, pass_and_idle, &has_passed);
		usleep(A_WHILE_US);
		gate_wake();
		while (!has_passed) {
			usleep(100);
		}
		pthread_cancel(thread);
		usleep(A_WHILE_US);
		_exit(pthread_tryjoin_np(thread, &result) == EBUSY ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}
END_TEST

/* ---- processes -------------------------------------------------------------------------------- */

START_TEST(a_child_begins_awake)
{
	struct passer passer = {0};
	int status;
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	passer_start(&passer);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		gate_forked();
		gate_leave(gate_enter());
		int result = gate_close(SOON_NS);
		_exit(result == 0 && gate.state == GATE_CLOSED && !gate_is_wanted() ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert(!passer.has_passed);
	gate_wake();
	passer_end(&passer, true);
}
END_TEST

/* Also one of a process that ends. What the kernel cannot do, it cannot do there either. */
START_TEST(a_child_does_not_end)
{
	gate.state = GATE_CLOSED | GATE_ASLEEP | GATE_ENDING | GATE_FENCED;
	gate_forked();
	ck_assert_uint_eq(gate.state, GATE_FENCED);
}
END_TEST

#define N_WAITING 3

static pthread_t waiting[N_WAITING];
static atomic_int n_refused;

static void *want_in(void *argument)
{
	n_refused += gate_enter() == NULL;
	return argument;
}

static void start_waiting(void)
{
	for (int i = 0; i < N_WAITING; i++) {
		pthread_create(&waiting[i], NULL, want_in, NULL);
	}
	usleep(A_WHILE_US);
}

/* As destructors of programs do, which end a pool of threads; one submits work itself. */
static void join_and_submit(void)
{
	for (int i = 0; i < N_WAITING; i++) {
		pthread_join(waiting[i], NULL);
	}
	bool is_refused = gate_enter() == NULL && gate_me->depth == 0;
	_exit(is_refused && n_refused == N_WAITING && gate_sleep(0) == -ESHUTDOWN ? 0 : 5);
}

static void exit_asleep(void)
{
	atexit(join_and_submit);
	gate_sleep(LONG_NS);
	start_waiting();
	exit(7);
}

/* The exit handler is registered while the gate is awake between. */
static void exit_in_the_second_sleep(void)
{
	gate_sleep(LONG_NS);
	gate_wake();
	exit_asleep();
}

static void *exit_there(void *argument)
{
	exit(7);
	return argument;
}

static void exit_in_another_thread(void)
{
	pthread_t thread;
	atexit(join_and_submit);
	gate_sleep(LONG_NS);
	start_waiting();
	pthread_create(&thread, NULL, exit_there, NULL);
	gate_enter();
	pause();
}

static void exit_in_handler(int signal)
{
	(void)signal;
	exit(7);
}

/* The handler interrupts a wait at the gate, and those of exit() pass there again. */
static void exit_in_a_signal_handler(void)
{
	const struct sigaction action = {.sa_handler = exit_in_handler};
	sigaction(SIGALRM, &action, NULL);
	atexit(join_and_submit);
	gate_sleep(LONG_NS);
	start_waiting();
	ualarm(A_WHILE_US, 0);
	gate_enter();
}

START_TEST(exit_waits_for_nobody)
{
	ck_assert_int_eq(status_of(exit_asleep), 0);
	ck_assert_int_eq(status_of(exit_in_the_second_sleep), 0);
	ck_assert_int_eq(status_of(exit_in_another_thread), 0);
	ck_assert_int_eq(status_of(exit_in_a_signal_handler), 0);
}
END_TEST

static void pass_and_close(void)
{
	gate_leave(gate_enter());
	_exit(gate_close(LONG_NS) == 0 && gate.state == (GATE_CLOSED | GATE_ENDING) ? 0 : 5);
}

static void exit_awake(void)
{
	atexit(pass_and_close);
	gate_sleep(LONG_NS);
	gate_wake();
	exit(7);
}

/* Handlers submit as ever, in a process that slept once. */
START_TEST(who_is_awake_ends_awake)
{
	ck_assert_int_eq(status_of(exit_awake), 0);
}
END_TEST

static void be_terminated(void)
{
	signal(SIGTERM, SIG_DFL);
	gate_sleep(LONG_NS);
	start_waiting();
	kill(getpid(), SIGTERM);
	gate_enter();
}

START_TEST(a_signal_ends_a_process_that_sleeps)
{
	int status = status_of(be_terminated);
	ck_assert(WIFSIGNALED(status));
	ck_assert_int_eq(WTERMSIG(status), SIGTERM);
}
END_TEST

/* A write has left the gate for its private copy, and does not get in again. */
START_TEST(a_call_that_waits_for_a_copy_fails_when_the_program_ends_asleep)
{
	const struct writes_span span = {.n_bytes = 16};
	CUresult result = CUDA_SUCCESS;
	struct gate_thread *me = gate_enter();
	struct gate_thread *thread = me;
	gate.state = GATE_ASLEEP | GATE_ENDING;
	ck_assert(!writes_give_copies_to(&thread, span, &result));
	ck_assert_ptr_null(thread);
	ck_assert_int_eq((int)result, (int)CUDA_ERROR_DEINITIALIZED);
	ck_assert_uint_eq(me->depth, 0);
}
END_TEST

/* ---- the calls -------------------------------------------------------------------------------- */

static atomic_int n_real_calls;

static int real_call(void)
{
	n_real_calls++;
	return 77;
}

/* With more arguments than any takes: what is too many is not looked at. */
typedef int any_call_fn(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                        void *, void *, void *);

START_TEST(calls_fail_when_the_program_ends_asleep)
{
	gate.state = GATE_ASLEEP | GATE_ENDING;
	for (size_t i = 0; i < n_gated_calls; i++) {
		*gated_calls[i].real = (void *)real_call;
		any_call_fn *body = (any_call_fn *)gated_calls[i].body;
		n_real_calls = 0;
		int result = body(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
		bool is_made = gated_calls[i].kind == GATES_LOOKS;
		ck_assert_msg(result == (is_made ? 77 : CUDA_ERROR_DEINITIALIZED), "%s",
		              gated_calls[i].symbol);
		ck_assert_int_eq(n_real_calls, is_made);
		ck_assert_uint_eq(gate_me ? gate_me->depth : 0, 0);
	}
}
END_TEST

int main(void)
{
	if (gate_init() < 0) {
		return EXIT_FAILURE;
	}
	return tests_run();
}

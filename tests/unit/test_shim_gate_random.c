/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that pass the shim's gate, close it, put it to sleep, wake it, are cancelled and fork, at random. Each gets through or ends. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/gate.h"
#include "tests/harness/churn.h"
#include "tests/check_glake.h"
#include "tests/unit/own_process.h"

#define SOON_NS 2000000u
#define LONG_NS 60000000000u /* only what hangs takes so long */

#define N_ACTORS 6
#define N_ROUNDS (TEST_SANITIZED ? 2000 : 20000)
#define N_ENDS 30

/* Nobody wakes it while somebody looks whether it sleeps. */
static pthread_mutex_t bed = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_inside;
static atomic_uint n_slept, n_closed, n_passed, n_cancelled, n_forked;
static atomic_bool is_over;

static void pass(void)
{
	struct gate_thread *me = gate_enter();
	if (me) {
		n_inside++;
		/* A call that calls. */
		struct gate_thread *again = gate_enter();
		n_inside--;
		gate_leave(again);
		gate_leave(me);
		n_passed++;
	}
}

static void must(bool is_so)
{
	if (!is_so) {
		abort();
	}
}

static void nobody_may_be_inside(void)
{
	for (int i = 0; i < 50; i++) {
		must(n_inside == 0);
	}
}

static void close_sometimes(unsigned *seed)
{
	if (gate_close(churn_pick(seed, 2) ? LONG_NS : SOON_NS) == 0) {
		nobody_may_be_inside();
		n_closed++;
		gate_open();
	}
}

static void sleep_sometimes(unsigned *seed)
{
	pthread_mutex_lock(&bed);
	bool is_closer = churn_pick(seed, 2) && gate_close(SOON_NS) == 0;
	if (gate_sleep(churn_pick(seed, 2) ? LONG_NS : SOON_NS) == 0) {
		nobody_may_be_inside();
		n_slept++;
	}
	pthread_mutex_unlock(&bed);
	if (is_closer) {
		nobody_may_be_inside();
		gate_open();
	}
}

static void wake_sometimes(void)
{
	pthread_mutex_lock(&bed);
	gate_wake();
	pthread_mutex_unlock(&bed);
}

static void *pass_until_cancelled(void *argument)
{
	while (!is_over) {
		pass();
		pthread_testcancel();
	}
	return argument;
}

/* ThreadSanitizer wants each thread that has ended joined, whenever the process ends. */
static bool keeps_threads;

static void cancel_somebody(unsigned *seed)
{
	pthread_t thread;
	if (keeps_threads) {
		return;
	}
	must(pthread_create(&thread, NULL, pass_until_cancelled, NULL) == 0);
	usleep(churn_pick(seed, 200));
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	n_cancelled++;
}

static void fork_somebody(void)
{
	int status;
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		gate_forked();
		gate_leave(gate_enter());
		_exit(gate_close(LONG_NS) == 0 ? 0 : 1);
	}
	must(waitpid(child, &status, 0) == child && status == 0);
	n_forked++;
}

static void *act(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	while (!is_over) {
		unsigned what = churn_pick(&seed, 100);
		if (what < 50) {
			pass();
		} else if (what < 70) {
			close_sometimes(&seed);
		} else if (what < 85) {
			sleep_sometimes(&seed);
		} else if (what < 94) {
			wake_sometimes();
		} else if (what < 98) {
			cancel_somebody(&seed);
		} else {
			fork_somebody();
		}
	}
	return NULL;
}

static void start_actors(pthread_t *actors, unsigned seed)
{
	for (uintptr_t i = 0; i < N_ACTORS; i++) {
		must(pthread_create(&actors[i], NULL, act, (void *)(seed * N_ACTORS + i + 1)) == 0);
	}
}

/* All that actors may wait for is that it wakes; somebody does so now and then. */
START_TEST(whatever_threads_do_they_get_through)
{
	pthread_t actors[N_ACTORS];
	start_actors(actors, (unsigned)getpid());
	while (n_passed < N_ROUNDS || n_slept < N_ROUNDS / 10 || n_closed < N_ROUNDS / 10 ||
	       n_cancelled < 10 || n_forked < 5) {
		usleep(200);
		wake_sometimes();
	}
	is_over = true;
	for (int i = 0; i < N_ACTORS; i++) {
		/* The gate may sleep anew until the last actor has ended. */
		while (pthread_tryjoin_np(actors[i], NULL) == EBUSY) {
			usleep(200);
			wake_sometimes();
		}
	}
	gate_wake();
	ck_assert_uint_eq(gate.state, 0);
	ck_assert_int_eq(n_inside, 0);
	ck_assert_int_eq(gate_close(LONG_NS), 0);
	gate_open();
}
END_TEST

static unsigned a_seed;

static void submit_at_the_end(void)
{
	pass();
	_exit(0);
}

static void act_and_exit(void)
{
	pthread_t actors[N_ACTORS];
	unsigned seed = a_seed;
	keeps_threads = TEST_SANITIZED;
	atexit(submit_at_the_end);
	gate_sleep(LONG_NS);
	start_actors(actors, a_seed);
	usleep(churn_pick(&seed, 5000));
	exit(7);
}

/* Without anybody who wakes it. */
START_TEST(whatever_threads_do_the_program_ends)
{
	for (unsigned i = 0; i < N_ENDS; i++) {
		a_seed = (unsigned)getpid() + i;
		int status = status_of(act_and_exit);
		ck_assert_msg(status == 0, "seed %u: %#x", a_seed, (unsigned)status);
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

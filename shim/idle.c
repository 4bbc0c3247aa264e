/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/idle.h"

#include <pthread.h>
#include <stdatomic.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/gate.h"

/* The time for threads inside the gate to leave, and for work to end. */
#define LOOK_NS 1000000u
/* A program that works does something within this. */
#define BETWEEN_NS 30000000u

/* Looks take turns, because a look clears the sign that somebody has passed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t since_ns;       /* 0: the program works; written with the lock held */
static uint64_t worked_ns;              /* when it was last seen to work; under the lock */
static idle_wait_fn *_Atomic looked_by; /* the last look's */

static bool has_work(idle_wait_fn *wait)
{
	return gate_was_passed() || (since_ns == 0 && wait(NULL, LOOK_NS) != 0);
}

/* Called with the lock held. */
static void look(idle_wait_fn *wait)
{
	/* Nobody passes a gate that is asleep, and the driver cannot be asked whether work is done. */
	if (gate_is_asleep()) {
		return;
	}
	if (worked_ns == 0 || has_work(wait)) {
		worked_ns = clock_now_ns();
		since_ns = 0;
		gate_watch();
	} else {
		since_ns = worked_ns;
	}
}

uint64_t idle_look(idle_wait_fn *wait)
{
	pthread_mutex_lock(&lock);
	looked_by = wait;
	look(wait);
	uint64_t seen_ns = since_ns;
	pthread_mutex_unlock(&lock);
	return seen_ns;
}

bool idle_is_still(void)
{
	return since_ns > 0 && !gate_was_passed();
}

bool idle_is_now(void)
{
	idle_wait_fn *wait = looked_by;
	if (wait && !idle_is_still()) {
		idle_look(wait);
		clock_sleep_ns(BETWEEN_NS);
		idle_look(wait);
	}
	return idle_is_still();
}

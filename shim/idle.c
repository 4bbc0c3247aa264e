/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/idle.h"

#include <stdatomic.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/gate.h"

/* For those who are inside to leave. */
#define LOOK_NS 1000000u
/* A program that works does something within this. */
#define BETWEEN_NS 30000000u

static _Atomic uint64_t since_ns; /* 0: it works */
static uint64_t worked_ns;        /* seen last */
static idle_wait_fn *looked_by;   /* the last time */

static bool has_work(idle_wait_fn *wait)
{
	return gate_was_passed() || (since_ns == 0 && wait(NULL, LOOK_NS) != 0);
}

uint64_t idle_look(idle_wait_fn *wait)
{
	looked_by = wait;
	/* Nobody passes, and what is done cannot be asked for. */
	if (gate_is_asleep()) {
		return since_ns;
	}
	if (worked_ns == 0 || has_work(wait)) {
		worked_ns = clock_now_ns();
		since_ns = 0;
		gate_watch();
	} else {
		since_ns = worked_ns;
	}
	return since_ns;
}

bool idle_is_still(void)
{
	return since_ns > 0 && !gate_was_passed();
}

bool idle_is_now(void)
{
	if (looked_by && !idle_is_still()) {
		idle_look(looked_by);
		clock_sleep_ns(BETWEEN_NS);
		idle_look(looked_by);
	}
	return idle_is_still();
}

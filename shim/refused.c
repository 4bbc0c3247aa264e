/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/refused.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "glake.h"
#include "proto/clock.h"
#include "shim/connection.h"
#include "shim/policy.h"

#define QUIET_NS 1000000000ull

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t said_ns; /* 0: never; under the lock, as n_unsaid */
static uint64_t n_unsaid;

/* Returns whether this refusal is reported, and how many were not since the last one that was. */
static bool take_turn(uint64_t *n_unsaid_out)
{
	uint64_t now_ns = clock_now_ns();
	pthread_mutex_lock(&lock);
	bool is_said = said_ns == 0 || now_ns - said_ns >= QUIET_NS;
	*n_unsaid_out = n_unsaid;
	n_unsaid = is_said ? 0 : n_unsaid + 1;
	said_ns = is_said ? now_ns : said_ns;
	pthread_mutex_unlock(&lock);
	return is_said;
}

void refused_say(int error)
{
	uint64_t n;
	char more[64] = "";
	if (!shim_policy()->says_refused || !take_turn(&n)) {
		return;
	}
	if (n > 0) {
		snprintf(more, sizeof(more), " (and %llu more before)", (unsigned long long)n);
	}
	const char *why = error == CONNECTION_E_ABSENT ? "glaked is not there" : glake_error();
	dprintf(STDERR_FILENO, "glake: pid %d: memory refused: %s%s\n", (int)getpid(),
	        *why ? why : "glaked refused it", more);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/space.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "libclient/link/error.h"
#include "libclient/link/fork.h"
#include "libclient/space/sealed.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

struct glake__space glake__space = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.let = PTHREAD_COND_INITIALIZER,
	.sleep_lock = PTHREAD_MUTEX_INITIALIZER,
};
struct glake__sealed glake__sealed;

/* The fork generation that the space belongs to. 0: none yet; ~0: a thread is setting it up. */
static _Atomic uint64_t generation;
#define AT_IT (~0ull)

/* A child's threads may come here together, and the parent's lock may be held for ever. */
void glake__space_begin(void)
{
	uint64_t now = glake__fork_generation();
	uint64_t seen = generation;
	while (seen != now) {
		if (seen == AT_IT) {
			sched_yield();
			seen = generation;
		} else if (atomic_compare_exchange_weak(&generation, &seen, AT_IT)) {
			if (seen != 0) {
				glake__window_forget();
				glake__space = (struct glake__space){.has_drv = false};
				glake__sealed.n = 0;
				pthread_mutex_init(&glake__space.lock, NULL);
				pthread_cond_init(&glake__space.let, NULL);
				pthread_mutex_init(&glake__space.sleep_lock, NULL);
			}
			generation = now;
			return;
		}
	}
}

bool glake__space_is_parents(void)
{
	uint64_t seen = generation;
	return seen != 0 && seen != AT_IT && seen != glake__fork_generation();
}

void glake__space_open(const struct cudrv *drv)
{
	glake__lock();
	if (!glake__space.has_drv) {
		glake__space.drv = *drv;
		glake__space.has_drv = true;
		/* The one driver call under the lock: nobody else has memory yet. */
		glake__window_open(drv);
	}
	glake__unlock();
}

/* ---- the gate --------------------------------------------------------------------------------- */

/* The gate as this thread has closed it. The thread cannot be cancelled meanwhile: others wait for it. */
static _Thread_local struct {
	unsigned depth;
	uint64_t readers; /* of the outermost closing */
	int cancel;       /* the state before */
	bool is_waived;   /* the outermost one holds nothing back */
	uint64_t since_ns;
	struct glake__held_back time;
} closed;

static _Atomic uint64_t all_held_ns;

static void count_time(void)
{
	uint64_t held_ns = clock_now_ns() - closed.since_ns;
	closed.time.sum_ns += held_ns;
	all_held_ns += held_ns;
	if (held_ns > closed.time.longest_ns) {
		closed.time.longest_ns = held_ns;
	}
}

uint64_t glake__gate_held_ns(void)
{
	return all_held_ns;
}

struct glake__held_back glake__gate_take_time(void)
{
	struct glake__held_back time = closed.time;
	closed.time = (struct glake__held_back){0};
	return time;
}

static int close_first(uint64_t readers, uint64_t patience_ns)
{
	const struct glake__gate *gate = &glake__space.gate;
	int cancel = cancel_disable();
	closed.since_ns = gate->close ? clock_now_ns() : 0;
	int r = gate->close ? gate->close(gate->user, patience_ns) : 0;
	closed.readers = readers;
	closed.cancel = cancel;
	if (r < 0) {
		count_time();
		pthread_setcancelstate(cancel, &cancel);
	}
	return r < 0 ? glake__fail(r, "the program's work cannot be held back%s",
	                           r == -EAGAIN ? " now: it goes on, or is captured" : "")
	             : 0;
}

bool glake__gate_holds(void)
{
	return glake__space.gate.close && !closed.is_waived;
}

void glake__gate_waive(void)
{
	if (closed.depth++ == 0) {
		closed.readers = ~0ull;
		closed.is_waived = true;
		closed.cancel = cancel_disable();
	}
}

static int close_again(uint64_t readers)
{
	return readers & ~closed.readers
	               ? glake__fail(-EINVAL, "the gate is closed for other devices only")
	               : 0;
}

int glake__gate_close(uint64_t readers, uint64_t patience_ns)
{
	int r = closed.depth == 0 ? close_first(readers, patience_ns) : close_again(readers);
	closed.depth += r == 0;
	return r;
}

/* For work that is queued when a change begins. */
#define WAIT_NS 500000000u

int glake__gate_wait_soon(uint64_t readers)
{
	const struct glake__gate *gate = &glake__space.gate;
	bool waits = closed.depth == 0 && gate->wait;
	int r = waits ? gate->wait(gate->user, WAIT_NS) : 0;
	return r < 0 ? glake__fail(r == -EAGAIN ? -EBUSY : r,
	                           "the program's work goes on, or is captured")
	             : 0;
}

/*
 * Each try waits this long, and the pause behind it is twice as long as the one before, up to a limit. A program that
 * queues the next work at once leaves no moment between: the last tries hold it back until all of its work has ended.
 */
#define SOON_WAIT_NS 10000000u
#define SOON_TRY_NS 3000000u
#define SOON_LAST_TRY_NS 20000000u
#define SOON_N_LAST 4u
#define SOON_FIRST_PAUSE_NS 2000000u
#define SOON_MAX_PAUSE_NS 32000000u
#define SOON_TRIES 14u
/* After the last tries were necessary, threads in a hurry begin with them for this long. */
#define HURRY_NS 1000000000u

static _Atomic uint64_t hurry_until_ns;

/* A program that was held back for this long gets a pause. */
#define LONG_NS 4000000u
#define PAUSE_NS 1000000

/* Most of the work is waited for while the program goes on. */
static int try_to_close(uint64_t readers, bool is_last)
{
	const struct glake__gate *gate = &glake__space.gate;
	if (is_last) {
		return glake__gate_close(readers, SOON_LAST_TRY_NS);
	}
	int r = closed.depth == 0 && gate->wait ? gate->wait(gate->user, SOON_WAIT_NS) : 0;
	return r == -EAGAIN ? r : glake__gate_close(readers, SOON_TRY_NS);
}

/* The long tries come last, or first as well if @hurries. */
static int close_soon(uint64_t readers, bool hurries)
{
	uint64_t pause_ns = SOON_FIRST_PAUSE_NS;
	unsigned n_long = hurries ? SOON_N_LAST : 0;
	bool is_long = hurries;
	int r = try_to_close(readers, is_long);
	for (unsigned i = 1; r == -EAGAIN && i < n_long + SOON_TRIES; i++) {
		nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
		pause_ns = pause_ns < SOON_MAX_PAUSE_NS ? 2 * pause_ns : pause_ns;
		is_long = i < n_long || i + SOON_N_LAST >= n_long + SOON_TRIES;
		r = try_to_close(readers, is_long);
	}
	if (r == 0 && is_long) {
		hurry_until_ns = clock_now_ns() + HURRY_NS;
	}
	/* The last try has set the text. */
	return r == -EAGAIN ? -EBUSY : r;
}

int glake__gate_close_soon(uint64_t readers)
{
	return close_soon(readers, false);
}

int glake__gate_close_in_a_hurry(uint64_t readers)
{
	return close_soon(readers, clock_now_ns() < hurry_until_ns);
}

/* ---- who writes waits as long as work moves --------------------------------------------------- */

/* If nothing has ended for this long, it never will. */
#define STUCK_NS 10000000000u
/* No context ends during a wait. */
#define MAX_WAIT_NS 2000000000u
/* The gate stays closed no longer, and the program has as much time afterwards. */
#define MAX_HELD_NS 1600000000u

struct patience {
	uint64_t since_ns; /* all that had been queued before has ended */
	uint64_t wait_ns;  /* for work, while the program goes on */
	uint64_t held_ns;  /* and while it is held back */
};

static uint64_t left_of(const struct patience *patience)
{
	uint64_t waited_ns = clock_now_ns() - patience->since_ns;
	return waited_ns < STUCK_NS ? STUCK_NS - waited_ns : 0;
}

/* Has what is queued by now ended? -EAGAIN: not yet. Next time it has twice as long. */
static int see_work_end(struct patience *patience)
{
	const struct glake__gate *gate = &glake__space.gate;
	uint64_t left_ns = left_of(patience);
	uint64_t wait_ns = patience->wait_ns < left_ns ? patience->wait_ns : left_ns;
	int r = gate->wait(gate->user, wait_ns);
	if (r == 0) {
		patience->since_ns = clock_now_ns();
	} else {
		bool is_long = patience->wait_ns >= MAX_WAIT_NS / 2;
		patience->wait_ns = is_long ? MAX_WAIT_NS : 2 * patience->wait_ns;
	}
	return r;
}

/*
 * The work may wait for a thread at the gate, and ends in the pause behind. Longer and longer times find the end of
 * work that is long; short ones, again and again, find a moment at which nobody is waited for.
 */
static int try_to_hold(struct patience *patience, uint64_t readers)
{
	int r = glake__gate_close(readers, patience->held_ns);
	if (r == -EAGAIN) {
		clock_sleep_ns(patience->held_ns);
		bool is_long = patience->held_ns >= MAX_HELD_NS;
		patience->held_ns = is_long ? SOON_TRY_NS : 2 * patience->held_ns;
	}
	return r;
}

/* Work that does not end while the program goes on will not end while it is held back. */
static int try_patiently(struct patience *patience, uint64_t readers)
{
	bool waits = closed.depth == 0 && glake__space.gate.wait;
	int r = waits ? see_work_end(patience) : 0;
	return r < 0 ? glake__fail(r, "the program's work goes on, or is captured")
	             : try_to_hold(patience, readers);
}

int glake__gate_close_patiently(uint64_t readers)
{
	bool hurries = clock_now_ns() < hurry_until_ns;
	struct patience patience = {
		.since_ns = clock_now_ns(),
		.wait_ns = SOON_WAIT_NS,
		.held_ns = hurries ? SOON_LAST_TRY_NS : SOON_TRY_NS,
	};
	int r = hurries ? try_to_hold(&patience, readers) : try_patiently(&patience, readers);
	while (r == -EAGAIN && left_of(&patience) > 0) {
		clock_sleep_ns(SOON_FIRST_PAUSE_NS);
		r = try_patiently(&patience, readers);
	}
	if (r == 0 && patience.held_ns >= SOON_LAST_TRY_NS) {
		hurry_until_ns = clock_now_ns() + HURRY_NS;
	}
	return r == -EAGAIN ? -EBUSY : r;
}

int glake__gate_pause(uint64_t readers)
{
	bool holds = closed.depth == 1 && glake__gate_holds();
	if (!holds || clock_now_ns() - closed.since_ns < LONG_NS) {
		return 0;
	}
	glake__gate_open();
	nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	return glake__gate_close_soon(readers);
}

void glake__gate_open(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	closed.depth--;
	if (closed.depth > 0) {
		return;
	}
	if (gate->close && !closed.is_waived) {
		gate->open(gate->user);
		count_time();
	}
	closed.is_waived = false;
	pthread_setcancelstate(closed.cancel, &closed.cancel);
}

/* ---- contexts --------------------------------------------------------------------------------- */

/* Ending one waits for the work in it. */
#define HOLD_PATIENCE_NS 500000000u

int glake__context_hold(int device, void **context_out)
{
	const struct glake__gate *gate = &glake__space.gate;
	*context_out = NULL;
	int r = gate->hold_context
	                ? gate->hold_context(gate->user, device, HOLD_PATIENCE_NS, context_out)
	                : 0;
	if (r == -EAGAIN) {
		return glake__fail(-EBUSY, "a context of the program is ending");
	}
	return r < 0 ? glake__fail(GLAKE_E_CUDA, "the program has no context of device %d", device)
	             : 0;
}

void glake__context_let(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	if (gate->let_context) {
		gate->let_context(gate->user);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sleeper; sleep.h has the whole theory. A lost wake-up would leave the program waiting for ever. So a thread that waits
 * sets its flag (gate_is_wanted(), is_library_waiting) before it posts `kicks`, and the sleeper looks at the flags before it
 * waits for a post. A sleeper that ended too early would do the same: is_over() decides under the lock, under which another
 * one is started and the process falls asleep. glaked may have no room: is_library_waiting is set again, and the sleeper tries
 * again after a pause.
 */
#include "shim/sleep.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/ask.h"
#include "shim/capture.h"
#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/heap.h"
#include "shim/idle.h"
#include "shim/may.h"
#include "shim/order.h"
#include "shim/record.h"
#include "shim/shim.h"
#include "shim/turn.h"

/* A sleep that somebody outside asks for waits this long for the program's work. */
#define PATIENCE_NS 5000000000u
/* The pause before glaked is asked for room once more. */
#define FIRST_PAUSE_MS 100u
#define LONGEST_PAUSE_MS 30000u

/* An ask has a SleepWhy, or this. */
#define ASK_WAKE 7u

struct sleeper {
	bool is_there;                 /* its thread runs */
	struct connection *connection; /* a reference, for reports; NULL: there was none yet */
	bool is_asleep; /* set before the gate falls asleep, cleared after it wakes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper sleeper; /* under the lock */

static sem_t kicks; /* each post makes the sleeper look again */
static atomic_bool is_library_waiting;

/* ---- kicks: by any thread, in handlers of signals too ----------------------------------------- */

static void kick(void)
{
	const int saved = errno;
	sem_post(&kicks);
	errno = saved;
}

void sleep_is_wanted(void)
{
	if (!atomic_exchange(&is_library_waiting, true)) {
		kick();
	}
}

bool sleep_is_awaited(void)
{
	return gate_is_wanted() || is_library_waiting;
}

void sleep_init(void)
{
	sem_init(&kicks, 0, 0);
	gate_set_wanted(kick);
}

static bool has_wish(const struct connection *connection)
{
	return connection && connection->sleep_ask != 0;
}

static void await_kick(void)
{
	while (sem_wait(&kicks) < 0) {
		/* EINTR: again. */
	}
}

/* Wait for @pause_ms, less if a wish comes. */
static void pause_for(const struct connection *connection, unsigned pause_ms)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += pause_ms / 1000;
	end.tv_nsec += pause_ms % 1000 * 1000000l;
	if (end.tv_nsec >= 1000000000l) {
		end.tv_nsec -= 1000000000l;
		end.tv_sec++;
	}
	while (!has_wish(connection) && (sem_timedwait(&kicks, &end) == 0 || errno == EINTR)) {
		/* Another thread waits, or a sleep has ended. */
	}
}

/* ---- sleeping and waking ---------------------------------------------------------------------- */

struct work {
	struct connection *connection; /* may be NULL */
	uint64_t id;                   /* the wish's */
	struct glake__sleep_report report;
	struct glake_slept slept;
	char why[256]; /* why it failed */
};

static void tell(struct work *work)
{
	glake__sleep_tell(work->connection->session, work->id, &work->report);
}

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct work *work = user;
	work->report.done_bytes = done_bytes;
	work->report.total_bytes = total_bytes;
	tell(work);
}

static int note(struct work *work, int r)
{
	if (r < 0) {
		snprintf(work->why, sizeof(work->why), "%s", glake_error());
	}
	if (work->connection) {
		connection_note(work->connection, r);
	}
	return r;
}

/* Called in a turn. Freed memory that streams are done with is given back first, so that it need not sleep. */
static int fall_asleep(struct work *work, unsigned why)
{
	if (!gate_is_asleep()) {
		int r = may_sleep(work->connection->session, work->why, sizeof(work->why));
		if (r < 0) {
			return r;
		}
		order_collect_all();
		graphmem_collect();
	}
	return note(work, glake__sleep(NULL, (enum glake__sleep_why)why, PATIENCE_NS, on_progress,
	                               work, &work->slept));
}

/* Waits without a turn, because that may take minutes. */
static int wake(struct work *work)
{
	const uint64_t began_ns = clock_now_ns();
	is_library_waiting = false;
	int r = glake__wake_wait();
	if (r == 0 && !turn_begin()) {
		snprintf(work->why, sizeof(work->why), "the program ends");
		return -ESHUTDOWN;
	}
	if (r == 0) {
		r = glake__wake(NULL, &work->slept);
		work->slept.took_ns = clock_now_ns() - began_ns;
		turn_end();
	}
	if (r < 0) {
		shim_count(SHIM_COUNT_unwoken);
	}
	return note(work, r);
}

/*
 * Does the program work again? glaked would learn of that two seconds later. Where others wait for room, a moment without work
 * is enough.
 */
static bool works(unsigned why)
{
	return (why == GLAKE__SLEEP_IDLE && !idle_is_still()) ||
	       (why == GLAKE__SLEEP_PRESSURE && !idle_is_now());
}

static int do_as(struct work *work, unsigned what)
{
	if (what == ASK_WAKE) {
		return wake(work);
	}
	if (!turn_begin()) {
		snprintf(work->why, sizeof(work->why), "the program ends");
		return -EBUSY;
	}
	int r = -EBUSY;
	if (works(what)) {
		snprintf(work->why, sizeof(work->why), "it works again");
	} else {
		r = fall_asleep(work, what);
	}
	turn_end();
	return r;
}

static void follow(struct connection *connection, struct ask ask)
{
	struct work work = {.connection = connection, .id = ask.id};
	/* glaked waits only for programs that answer. */
	tell(&work);
	work.report.error = do_as(&work, ask.what);
	work.report.is_over = true;
	work.report.why = work.why;
	work.report.is_asleep = gate_is_asleep();
	work.report.slept = &work.slept;
	ask_clear(&connection->sleep_ask);
	tell(&work);
}

/* ---- the sleeper ------------------------------------------------------------------------------ */

/* True: there is nothing to do, and no sleeper from now on; the caller owns *connection_out then. */
static bool is_over(struct connection **connection_out)
{
	pthread_mutex_lock(&lock);
	*connection_out = sleeper.connection;
	bool is_done = !sleeper.is_asleep && !has_wish(sleeper.connection);
	if (is_done) {
		sleeper = (struct sleeper){.is_there = false};
	}
	pthread_mutex_unlock(&lock);
	return is_done;
}

/* If glaked refuses, wait for @pause_ms. Returns the next pause. */
static unsigned wake_or_pause(struct connection *connection, unsigned pause_ms)
{
	struct work work = {.connection = connection};
	if (wake(&work) == 0) {
		return FIRST_PAUSE_MS;
	}
	is_library_waiting = true;
	pause_for(connection, pause_ms);
	return 2 * pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
}

static void *sleep_and_wake(void *user)
{
	unsigned pause_ms = FIRST_PAUSE_MS;
	struct connection *connection;
	(void)user;
	if (turn_begin()) {
		capture_relax();
		turn_end();
	}
	while (!is_over(&connection)) {
		if (has_wish(connection)) {
			follow(connection, ask_look(&connection->sleep_ask));
		} else if (sleep_is_awaited()) {
			pause_ms = wake_or_pause(connection, pause_ms);
		} else {
			await_kick();
		}
	}
	connection_unref(connection);
	return NULL;
}

/* Called with the lock held. -EBUSY: the sleeper works for another connection; -EAGAIN: no thread can be started. */
static int start(struct connection *connection)
{
	if (sleeper.is_there) {
		if (!sleeper.connection && connection) {
			sleeper.connection = connection_ref(connection);
		}
		return !connection || sleeper.connection == connection ? 0 : -EBUSY;
	}
	sleeper.is_there = true;
	sleeper.connection = connection ? connection_ref(connection) : NULL;
	if (!turn_start_thread(sleep_and_wake, NULL)) {
		connection_unref(sleeper.connection);
		sleeper = (struct sleeper){.is_there = false};
		return -EAGAIN;
	}
	return 0;
}

/* ---- the gate --------------------------------------------------------------------------------- */

/* Starts the sleeper if there is none, because the program asked for the sleep itself. */
static int start_asleep(void)
{
	struct connection *connection = connection_peek();
	pthread_mutex_lock(&lock);
	/* A sleeper that works for a dead connection is good enough. */
	int r = start(sleeper.is_there ? NULL : connection);
	if (r == 0) {
		sleeper.is_asleep = true;
		is_library_waiting = false;
	}
	pthread_mutex_unlock(&lock);
	connection_unref(connection);
	return r;
}

int sleep_enter(void)
{
	int r = start_asleep();
	if (r == 0) {
		r = gate_sleep(0);
		if (r < 0) {
			sleep_leave();
		}
	}
	return r;
}

void sleep_leave(void)
{
	pthread_mutex_lock(&lock);
	if (sleeper.is_asleep) {
		gate_wake();
		is_library_waiting = false;
		sleeper.is_asleep = false;
		kick();
	}
	pthread_mutex_unlock(&lock);
}

/* ---- freeing ---------------------------------------------------------------------------------- */

bool sleep_free(CUdeviceptr address)
{
	struct glake__allocation *allocation = NULL;
	if (address && gate_is_asleep() && !gate_is_ending()) {
		allocation = glake__heap_claim(address);
	}
	if (!allocation) {
		return false;
	}
	int ordinal = allocation->ordinal;
	if (graphmem_has(allocation) || !heap_release_asleep(allocation)) {
		glake__heap_unclaim(allocation);
		return false;
	}
	shim_count(SHIM_COUNT_freed);
	record_free(ordinal, address, 0);
	return true;
}

/* ---- wishes of glaked ------------------------------------------------------------------------- */

static void refuse(struct connection *connection, uint64_t id, const char *why)
{
	const struct glake__sleep_report report = {.is_over = true, .error = -EBUSY, .why = why};
	glake__sleep_tell(connection->session, id, &report);
}

static void on_ask(void *user, uint64_t id, bool wakes, uint32_t why)
{
	struct connection *connection = user;
	unsigned what = wakes ? ASK_WAKE : why < ASK_WAKE ? why : GLAKE__SLEEP_ASKED;
	if (!ask_put(&connection->sleep_ask, id, what)) {
		refuse(connection, id, "it falls asleep or wakes already");
	}
}

void sleep_follow(struct connection *connection)
{
	glake__sleep_follow(connection->session, on_ask, connection);
}

void sleep_serve(struct connection *connection)
{
	const struct ask ask = ask_look(&connection->sleep_ask);
	if (!ask.id) {
		return;
	}
	pthread_mutex_lock(&lock);
	int r = start(connection);
	pthread_mutex_unlock(&lock);
	if (r == 0) {
		kick();
		return;
	}
	ask_clear(&connection->sleep_ask);
	refuse(connection, ask.id,
	       r == -EBUSY ? "memory of an earlier connection of the program is asleep"
	                   : "no thread can be started that would wake it");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that runs while memory leaves would fault or lose writes. So the memory is held and the gate asleep before the first
 * copy. A failure before the unmapping changes nothing; a later one maps the memory again, and where that fails the sessions
 * stay asleep, with their copies, for the next wake (sleep.h has the steps).
 */
#include "libclient/sleep/sleep.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/heap/async.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/supply.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/sleep/party.h"
#include "libclient/sleep/sleeping.h"
#include "libclient/sleep/wake.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* The pause between two tries to find a moment without work, and without others at work on the memory: at first, and at most. */
#define PAUSE_NS 20000000u
#define MAX_PAUSE_NS 320000000u
/* Other threads that work on some of the memory end within this many tries, mostly. */
#define HOLD_TRIES 1000u
/* Copies that were given up are out of the mover's hands within this many tries, mostly. */
#define COPY_TRIES 100u

/* ---- holding ---------------------------------------------------------------------------------- */

static int try_hold(struct glake__sleeping *first)
{
	int r = 0;
	for (struct glake__sleeping *at = first; at; at = at->next) {
		at->session->sleeps_along = glake__party_is_all();
	}
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		r = glake__asleep_hold(&at->memory, at->session);
		at->is_held = r == 0;
	}
	if (r < 0) {
		glake__sleeping_let(first);
	}
	return r;
}

static int hold(struct glake__sleeping *first)
{
	int r = try_hold(first);
	for (unsigned i = 1; r == -EBUSY && i < HOLD_TRIES && !glake__party_is_left(); i++) {
		glake__busy_pause();
		r = try_hold(first);
	}
	return r == -EBUSY ? glake__fail(-EBUSY, "other threads work on the memory") : r;
}

/* With all held, nothing of the program's is under way, and its new work waits; for @held_ns, or as short as can be. */
static int hold_and_close(struct glake__sleeping *first, uint64_t held_ns)
{
	int r = hold(first);
	if (r == 0) {
		r = held_ns == 0 ? glake__gate_close_soon(UINT64_MAX)
		                 : glake__gate_close(UINT64_MAX, held_ns);
		if (r < 0) {
			glake__sleeping_let(first);
			glake__sleeping_end_late(first);
		}
	}
	return r == -EAGAIN ? -EBUSY : r;
}

/*
 * Repeats hold_and_close() until @patience_ns are over. A program that always has work queued is held back until it ends,
 * longer each time. It has as long a pause before that: the work may wait for a thread that is held back.
 */
static int find_moment(struct glake__sleeping *first, uint64_t patience_ns)
{
	const uint64_t end_ns = clock_now_ns() + patience_ns;
	uint64_t pause_ns = PAUSE_NS;
	int r = hold_and_close(first, 0);
	while (r == -EBUSY && clock_now_ns() < end_ns && !glake__party_is_left()) {
		clock_sleep_ns(pause_ns);
		r = hold_and_close(first, pause_ns);
		pause_ns = pause_ns < MAX_PAUSE_NS ? 2 * pause_ns : pause_ns;
	}
	return r;
}

/*
 * The gate is closed. If it falls asleep, it opens without letting anybody pass. glake__sleeping_end() is due in any
 * case. Who joins a party that sleeps finds it asleep.
 */
static int let_gate_sleep(const struct glake__sleeping *first)
{
	const struct glake__gate *gate = &glake__space.gate;
	const bool is_asleep = glake__sleeping_gather_asleep(first->session) != NULL;
	for (const struct glake__sleeping *at = first; at; at = at->next) {
		glake__space.n_asleep++;
	}
	int r = gate->sleep && !is_asleep ? gate->sleep(gate->user) : 0;
	glake__gate_open();
	return r < 0 ? glake__fail(r, "the program's work cannot be held back") : 0;
}

/* ---- copying ---------------------------------------------------------------------------------- */

static void add_id(struct glake__sleeping *sleeping, const struct glake__asleep_chunk *at)
{
	size_t n = sleeping->n_ids;
	if (!at->whole || n == 0 || sleeping->ids[n - 1] != at->whole) {
		sleeping->ids[n] = at->whole ? at->whole : at->chunk->id;
		sleeping->n_ids = ++n;
	}
	sleeping->bytes[n - 1] += at->chunk->n_bytes;
}

static int list_ids(struct glake__sleeping *sleeping)
{
	const struct glake__asleep *memory = &sleeping->memory;
	sleeping->ids = calloc(memory->n_chunks + 1, sizeof(*sleeping->ids));
	sleeping->bytes = calloc(memory->n_chunks + 1, sizeof(*sleeping->bytes));
	if (!sleeping->ids || !sleeping->bytes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < memory->n_chunks; i++) {
		add_id(sleeping, &memory->chunks[i]);
	}
	return 0;
}

static bool is_gate_wanted(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	return gate->is_wanted && gate->is_wanted(gate->user);
}

/*
 * Copies change nothing of the program's. So it goes on as soon as it wants to; but not if somebody has
 * asked from outside, who would never get what he wants of a program that always works.
 */
static bool is_work_wanted(void)
{
	return glake__party_is_left() || is_gate_wanted();
}

typedef bool is_unwanted_fn(void);

static is_unwanted_fn *ends_copies(const struct glake__sleeping *sleeping)
{
	return sleeping->why != GLAKE__SLEEP_ASKED ? is_work_wanted : glake__party_is_left;
}

struct progress {
	glake_progress_fn fn; /* may be NULL */
	void *user;
	uint64_t done_bytes;
	uint64_t total_bytes;
};

/* A copy that was given up may be in the mover's hands still: then its chunk is busy. */
static int copy_batch(const struct glake__sleeping *sleeping, size_t first, size_t n)
{
	struct glake_session *session = sleeping->session;
	is_unwanted_fn *is_unwanted = ends_copies(sleeping);
	int r = glake__rpc_sleep_copy(session, sleeping->ids + first, n, is_unwanted);
	for (unsigned i = 0; r == GLAKE_E_BUSY && i < COPY_TRIES && !is_unwanted(); i++) {
		clock_sleep_ns(PAUSE_NS);
		r = glake__rpc_sleep_copy(session, sleeping->ids + first, n, is_unwanted);
	}
	return is_unwanted() ? glake__fail(-EBUSY, "it works again, or a session of it ends") : r;
}

static int copy(const struct glake__sleeping *sleeping, struct progress *progress)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < sleeping->n_ids;) {
		/* A batch of some GiB: then who asked hears of it. */
		size_t first = i;
		uint64_t n_bytes = 0;
		while (i < sleeping->n_ids && i - first < GLAKE_MAX_SLEPT &&
		       (n_bytes == 0 || !progress->fn || n_bytes < 4ull << 30)) {
			n_bytes += sleeping->bytes[i++];
		}
		r = copy_batch(sleeping, first, i - first);
		progress->done_bytes += n_bytes;
		if (r == 0 && progress->fn) {
			progress->fn(progress->user, progress->done_bytes, progress->total_bytes);
		}
	}
	return r;
}

/* Copies the memory of each session, or of none. */
static int copy_all(struct glake__sleeping *first, struct progress *progress)
{
	int r = 0;
	struct glake__sleeping *at = first;
	for (; at; at = at->next) {
		progress->total_bytes += at->memory.private_bytes + at->memory.shared_bytes;
	}
	for (at = first; r == 0 && at; at = at->next) {
		r = copy(at, progress);
	}
	if (r < 0) {
		char *text = glake__error_save();
		for (const struct glake__sleeping *done = first; done != at; done = done->next) {
			glake__rpc_sleep_forget(done->session);
		}
		glake__error_restore(text);
	}
	return r;
}

/* ---- sleeping --------------------------------------------------------------------------------- */

/*
 * Back to where they were, with the gate asleep. What cannot be mapped again stays asleep, and all the others with it, for the
 * next wake. If some of one is still mapped, the copies of that are not what is wanted.
 */
static bool bring_back(struct glake__sleeping *first)
{
	char *text = glake__error_save();
	for (struct glake__sleeping *at = first; at; at = at->next) {
		if (at->is_begun) {
			glake__rpc_sleep_forget(at->session);
		}
	}
	bool is_back = glake__wake_all(first) == 0;
	glake__error_restore(text);
	return is_back;
}

static int unmap_all(struct glake__sleeping *first)
{
	int r = 0;
	for (struct glake__sleeping *at = first; at; at = at->next) {
		r = r < 0 ? r : glake__asleep_unmap(&at->memory);
		at->is_begun = r < 0;
		at->state = at->is_begun ? GLAKE__SLEEPING_AWAY : GLAKE__SLEEPING_UNTOLD;
	}
	return r;
}

/* All is held, and the gate asleep. Returns whether they are asleep. */
static bool go(struct glake__sleeping *first, enum glake__sleep_why why, struct progress *progress,
               int *result_out)
{
	int r = 0;
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		at->why = why;
		r = list_ids(at);
	}
	r = r < 0 ? r : copy_all(first, progress);
	if (r < 0) {
		*result_out = r;
		return false;
	}
	r = unmap_all(first);
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		r = glake__sleeping_tell(at);
	}
	*result_out = r;
	return r == 0 || !bring_back(first);
}

static int sleep_now(struct glake__sleeping *first, enum glake__sleep_why why, uint64_t patience_ns,
                     struct progress *progress, uint64_t *held_ns_out)
{
	const uint64_t began_ns = clock_now_ns();
	int r = find_moment(first, patience_ns);
	if (r < 0) {
		glake__sleeping_drop(first);
		return r;
	}
	*held_ns_out = clock_now_ns() - began_ns;
	r = let_gate_sleep(first);
	if (r == 0 && go(first, why, progress, &r)) {
		glake__sleeping_begin(first);
		return r;
	}
	glake__sleeping_end(first, first->session);
	glake__sleeping_end_late(first);
	glake__sleeping_drop(first);
	return r;
}

/* Memory that the program does not use need not be copied. Its notices wait: a handler may wake the session. */
static void give_up_warm(struct glake_session *session)
{
	glake__async_collect(session);
	for (uint32_t i = 0; i < session->n_devices; i++) {
		if (session->devices[i].public.ordinal >= 0) {
			glake__heap_trim(&session->devices[i], 0);
			glake__supply_give_lent(&session->devices[i], UINT64_MAX);
		}
	}
}

int glake__sleep(struct glake_session *session, enum glake__sleep_why why, uint64_t patience_ns,
                 glake_progress_fn progress, void *user, struct glake_slept *slept_out)
{
	cleanup_cancel int cancel = cancel_disable();
	const uint64_t began_ns = clock_now_ns();
	struct progress told = {.fn = progress, .user = user};
	struct glake__sleeping *first;
	uint64_t held_ns = 0;
	if (!glake__party_try_lock(session)) {
		return glake__fail(-EBUSY, "another thread puts the session to sleep, or wakes it");
	}
	int r = glake__sleeping_gather_awake(session, &first);
	for (struct glake__sleeping *at = first; at; at = at->next) {
		give_up_warm(at->session);
	}
	if (first) {
		r = sleep_now(first, why, patience_ns, &told, &held_ns);
	}
	glake__sleeping_describe(glake__sleeping_gather_asleep(session), session, began_ns, held_ns,
	                         slept_out);
	glake__party_unlock(session);
	return session ? glake__leave(session, r) : r;
}

bool glake__is_asleep(const struct glake_session *session)
{
	return session->asleep != NULL;
}

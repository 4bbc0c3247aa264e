/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/sleep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/heap/async.h"
#include "libclient/heap/heap.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/report.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/sleep/party.h"
#include "libclient/space/asleep.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Between two tries to find a moment without work, and without others at work on the memory: at first, and at most. */
#define PAUSE_NS 20000000u
#define MAX_PAUSE_NS 320000000u
/* Others that work on some of the memory end within this, mostly. */
#define HOLD_TRIES 1000u
/* Copies that were given up are out of the mover's hands within this, mostly. */
#define COPY_TRIES 100u
/* So long one session waits for room with others of the process on the GPU already, whose memory a peer may wait for. */
#define OTHERS_PATIENCE_MS 10000u
/* Restarts of glaked in the moment of a wake. */
#define MAP_TRIES 3u

/* Of one session, from the hold to its end. */
struct glake__sleeping {
	struct glake__asleep memory;
	struct glake_session *session;
	struct glake__sleeping *next; /* of the party */
	uint64_t *ids;                /* owned: of the chunks, and of wholes */
	uint64_t *bytes;              /* owned: of each */
	size_t n_ids;
	enum glake__sleep_why why;
	bool is_held;
	bool is_told;  /* glaked knows that all of it is unmapped, as far as that is so */
	bool is_here;  /* glaked has brought it to the GPU */
	bool is_begun; /* some of what is here may be mapped */
	bool is_stale; /* what of it is mapped has to go first: it is not what glaked has */
};

_Static_assert(GLAKE_MAX_STAYS == GLAKE_MAX_STAYS_SLEPT, "what is reported");

/* ---- parties ---------------------------------------------------------------------------------- */

static void drop(struct glake__sleeping *sleeping)
{
	if (sleeping) {
		free(sleeping->ids);
		free(sleeping->bytes);
		free(sleeping);
	}
}

static void drop_all(struct glake__sleeping *first)
{
	while (first) {
		struct glake__sleeping *next = first->next;
		drop(first);
		first = next;
	}
}

/* Of a session whose connection is lost nothing can sleep: only who asks is told. */
static bool is_member(struct glake_session *at, const struct glake_session *asked)
{
	return at == asked || !glake__session_is_gone(at);
}

/* All that are awake. With the party's lock, as all that follow. */
static int gather_awake(struct glake_session *asked, struct glake__sleeping **first_out)
{
	struct glake__sleeping **end = first_out;
	*first_out = NULL;
	struct glake_session *at = glake__party_first(asked);
	for (; at; at = glake__party_next(at)) {
		if (at->asleep || !is_member(at, asked)) {
			continue;
		}
		struct glake__sleeping *sleeping = calloc(1, sizeof(*sleeping));
		if (!sleeping) {
			drop_all(*first_out);
			*first_out = NULL;
			return glake__fail(-ENOMEM, "out of memory");
		}
		sleeping->session = at;
		*end = sleeping;
		end = &sleeping->next;
	}
	return 0;
}

/* All that are asleep; they stay their sessions'. */
static struct glake__sleeping *gather_asleep(struct glake_session *asked)
{
	struct glake__sleeping *first = NULL;
	struct glake__sleeping **end = &first;
	struct glake_session *at = glake__party_first(asked);
	for (; at; at = glake__party_next(at)) {
		struct glake__sleeping *sleeping = at->asleep;
		if (sleeping) {
			*end = sleeping;
			end = &sleeping->next;
			sleeping->next = NULL;
		}
	}
	return first;
}

static bool is_any_asleep(struct glake_session *asked)
{
	return gather_asleep(asked) != NULL;
}

/* ---- reports ---------------------------------------------------------------------------------- */

static void add_stay(struct glake_slept *slept, const struct glake_stay *stay)
{
	uint32_t i = 0;
	while (i < slept->n_stays && strcmp(slept->stays[i].why, stay->why) != 0) {
		i++;
	}
	if (i == GLAKE_MAX_STAYS_SLEPT) {
		i--;
	} else if (i == slept->n_stays) {
		slept->n_stays++;
		slept->stays[i] = (struct glake_stay){.why = stay->why};
	}
	slept->stays[i].bytes += stay->bytes;
}

/* Of @of alone; NULL: of all. */
static void describe(const struct glake__sleeping *first, const struct glake_session *of,
                     uint64_t began_ns, uint64_t held_ns, struct glake_slept *slept_out)
{
	*slept_out = (struct glake_slept){.took_ns = clock_now_ns() - began_ns, .held_ns = held_ns};
	for (; first; first = first->next) {
		const struct glake__asleep *memory = &first->memory;
		if (of && of != first->session) {
			continue;
		}
		slept_out->private_bytes += memory->private_bytes;
		slept_out->shared_bytes += memory->shared_bytes;
		for (size_t i = 0; i < memory->n_stays; i++) {
			add_stay(slept_out, &memory->stays[i]);
		}
	}
}

/* ---- holding ---------------------------------------------------------------------------------- */

/* It is not asleep any more, and the gate is awake: models that ended meanwhile can be unmapped. */
static void end_late(struct glake_session *session)
{
	if (session->end_late_models) {
		session->end_late_models(session);
	}
}

static void let(struct glake__sleeping *first)
{
	char *text = glake__error_save();
	for (struct glake__sleeping *at = first; at; at = at->next) {
		if (at->is_held) {
			glake__asleep_let(&at->memory);
			at->is_held = false;
		}
		at->session->sleeps_along = false;
	}
	glake__error_restore(text);
}

static void end_all_late(struct glake__sleeping *first)
{
	char *text = glake__error_save();
	for (; first; first = first->next) {
		end_late(first->session);
	}
	glake__error_restore(text);
}

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
		let(first);
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
			let(first);
			end_all_late(first);
		}
	}
	return r == -EAGAIN ? -EBUSY : r;
}

/*
 * The same, until @patience_ns are over. A program that always has work queued is held back until it ends, longer each
 * time. It has as long a pause before that: the work may wait for a thread that is held back.
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

/* ---- the gate --------------------------------------------------------------------------------- */

/*
 * It is closed. If it falls asleep, it opens without letting anybody pass. wake_gate() is due in any case. Who joins a party
 * that sleeps finds it asleep.
 */
static int let_gate_sleep(const struct glake__sleeping *first)
{
	const struct glake__gate *gate = &glake__space.gate;
	const bool is_asleep = is_any_asleep(first->session);
	for (const struct glake__sleeping *at = first; at; at = at->next) {
		glake__space.n_asleep++;
	}
	int r = gate->sleep && !is_asleep ? gate->sleep(gate->user) : 0;
	glake__gate_open();
	return r < 0 ? glake__fail(r, "the program's work cannot be held back") : 0;
}

/* Of @n sessions of the party of @session, none is asleep any more. */
static void wake_gate(struct glake_session *session, unsigned n)
{
	const struct glake__gate *gate = &glake__space.gate;
	glake__space.n_asleep -= n;
	if (gate->wake && !is_any_asleep(session)) {
		gate->wake(gate->user);
	}
}

static bool is_gate_wanted(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	return gate->is_wanted && gate->is_wanted(gate->user);
}

/* ---- with glaked: going ----------------------------------------------------------------------- */

/*
 * As long as copies are made, nothing of the program's has changed. So it goes on as soon as it wants to; but not if somebody has
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

/* Of each session, or of none. */
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

/* All of it is unmapped. */
static int enter(struct glake__sleeping *sleeping)
{
	const struct glake__asleep *memory = &sleeping->memory;
	int r = memory->n_chunks > 0
	                ? glake__rpc_sleep_enter(sleeping->session, (uint32_t)sleeping->why,
	                                         memory->stays, memory->n_stays)
	                : 0;
	sleeping->is_told = r == 0;
	return r;
}

/* ---- with glaked: coming back ----------------------------------------------------------------- */

/* An answer is of one device, or of one whole, from a place on. */
static bool is_asked_with(const struct glake__asleep_chunk *first,
                          const struct glake__asleep_chunk *at)
{
	return first->whole ? at->whole == first->whole &&
	                              at->place == first->place + (uint64_t)(at - first)
	                    : !at->whole && at->chunk->device == first->chunk->device;
}

static int ask_chunks(struct glake_session *session, const struct glake__asleep_chunk *chunks,
                      size_t n, uint64_t *sizes_out, struct fdlist *fds)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	uint32_t device;
	for (size_t i = 0; i < n; i++) {
		ids[i] = chunks[i].chunk->id;
	}
	const struct glake__chunk_names names = {.ids = ids, .n_ids = n};
	return glake__rpc_chunk_open(session, &names, sizes_out, &device, fds);
}

/* The first @n of @fds are the caller's. */
static void give_fds(struct fdlist *fds, int *fds_out, size_t n)
{
	memcpy(fds_out, fds->fds, n * sizeof(fds_out[0]));
	fds->n_fds -= n;
	memmove(fds->fds, fds->fds + n, fds->n_fds * sizeof(fds->fds[0]));
}

static int open_some(void *user, const struct glake__asleep *asleep, size_t first, int *fds_out,
                     size_t n_max)
{
	struct glake_session *session = user;
	const struct glake__asleep_chunk *chunks = asleep->chunks + first;
	uint64_t sizes[GLAKE_MAX_PACKET_FDS];
	size_t n = 0;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	while (n < n_max && first + n < asleep->n_chunks && is_asked_with(chunks, &chunks[n])) {
		n++;
	}
	int r = chunks->whole ? glake__rpc_model_blocks(session, chunks->whole, chunks->place,
	                                                sizes, &fds)
	                      : ask_chunks(session, chunks, n, sizes, &fds);
	n = n < fds.n_fds ? n : fds.n_fds;
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = sizes[i] == chunks[i].chunk->n_bytes
		            ? 0
		            : glake__fail(GLAKE_E_PROTOCOL, "a chunk has changed its size");
	}
	if (r < 0) {
		return r;
	}
	give_fds(&fds, fds_out, n);
	return (int)n;
}

/* glaked has all of it on the GPU. */
static int map(struct glake__sleeping *sleeping)
{
	sleeping->is_begun = true;
	return glake__asleep_map(&sleeping->memory, open_some, sleeping->session);
}

/*
 * Have glaked bring it to the GPU. What glaked does not know to be asleep is there: an earlier wake came so far. A glaked that
 * was not told of the sleep takes our memory to be mapped still, so that is said first. Makes no driver call: what is stale
 * comes later.
 */
static int fetch(struct glake__sleeping *sleeping, uint64_t patience_ms)
{
	if (sleeping->memory.n_chunks == 0 || sleeping->is_stale) {
		return 0;
	}
	int r = sleeping->is_told ? 0 : enter(sleeping);
	if (r == 0 || r == GLAKE_E_BAD_REQUEST) {
		r = glake__rpc_sleep_wake(sleeping->session, patience_ms, glake__party_is_left);
	}
	r = r == GLAKE_E_BAD_REQUEST ? 0 : r;
	sleeping->is_here = r == 0;
	return r;
}

/* Who has nothing on the GPU may wait for long. */
static int fetch_beside_others(struct glake__sleeping *first, struct glake__sleeping *sleeping)
{
	bool has_others = false;
	for (const struct glake__sleeping *at = first; at; at = at->next) {
		has_others |= at != sleeping && at->is_here;
	}
	return fetch(sleeping, has_others ? OTHERS_PATIENCE_MS : 0);
}

/* What was imported before is not what comes now. If it cannot be unmapped, nothing may come to stand beside it. */
static int drop_stale(struct glake__sleeping *sleeping)
{
	int r = sleeping->is_stale ? glake__asleep_unmap(&sleeping->memory) : 0;
	sleeping->is_stale = r < 0;
	return r;
}

/*
 * One of them has no room. So the others give back what they have: a peer that waits for it may have what that one waits for.
 * What may be mapped goes only if @unmaps, as that takes driver calls. If all are here, nobody waits.
 */
static void give_back(struct glake__sleeping *first, bool unmaps)
{
	char *text = glake__error_save();
	bool is_all_here = true;
	for (const struct glake__sleeping *at = first; at; at = at->next) {
		is_all_here &= at->is_here || at->memory.n_chunks == 0;
	}
	for (struct glake__sleeping *at = first; !is_all_here && at; at = at->next) {
		if (at->is_here && at->is_begun && unmaps) {
			at->is_begun = glake__asleep_unmap(&at->memory) < 0;
		}
		if (at->is_here && !at->is_begun) {
			at->is_here = false;
			enter(at);
		}
	}
	glake__error_restore(text);
}

/* Each is a reservation of its own; they come in the order of connecting, or none stays. Makes no driver call. */
static int fetch_all(struct glake__sleeping *first)
{
	int r = 0;
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		r = fetch_beside_others(first, at);
	}
	if (r < 0 && !glake__party_is_left()) {
		give_back(first, false);
	}
	return r;
}

/* If glaked was started anew since it was fetched, what had come is lost, but not the copies: they stay until all is mapped. */
static int map_again(struct glake__sleeping *first, struct glake__sleeping *sleeping)
{
	int r = sleeping->is_stale ? GLAKE_E_NO_FDS : map(sleeping);
	for (unsigned i = 1; r == GLAKE_E_NO_FDS && i < MAP_TRIES; i++) {
		sleeping->is_stale = true;
		sleeping->is_told = false;
		sleeping->is_here = false;
		r = drop_stale(sleeping);
		r = r < 0 ? r : fetch_beside_others(first, sleeping);
		r = r < 0 ? r : map(sleeping);
	}
	if (r == GLAKE_E_NO_FDS) {
		sleeping->is_stale = true;
		sleeping->is_told = false;
		sleeping->is_here = false;
	}
	return r;
}

static int come_back(struct glake__sleeping *first)
{
	int r = fetch_all(first);
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		r = map_again(first, at);
	}
	char *text = glake__error_save();
	for (struct glake__sleeping *at = first; r == 0 && at; at = at->next) {
		if (at->memory.n_chunks > 0) {
			glake__rpc_sleep_forget(at->session);
		}
	}
	glake__error_restore(text);
	if (r < 0 && !glake__party_is_left()) {
		give_back(first, true);
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
	bool is_back = come_back(first) == 0;
	glake__error_restore(text);
	return is_back;
}

static int unmap_all(struct glake__sleeping *first)
{
	int r = 0;
	for (struct glake__sleeping *at = first; at; at = at->next) {
		r = r < 0 ? r : glake__asleep_unmap(&at->memory);
		at->is_begun = r < 0;
		at->is_told = at->is_begun;
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
		r = enter(at);
	}
	*result_out = r;
	return r == 0 || !bring_back(first);
}

static unsigned set_asleep(struct glake__sleeping *first, bool is_asleep)
{
	unsigned n = 0;
	for (; first; first = first->next, n++) {
		first->session->asleep = is_asleep ? first : NULL;
	}
	return n;
}

static int sleep_now(struct glake__sleeping *first, enum glake__sleep_why why, uint64_t patience_ns,
                     struct progress *progress, uint64_t *held_ns_out)
{
	const uint64_t began_ns = clock_now_ns();
	int r = find_moment(first, patience_ns);
	if (r < 0) {
		drop_all(first);
		return r;
	}
	*held_ns_out = clock_now_ns() - began_ns;
	r = let_gate_sleep(first);
	if (r == 0 && go(first, why, progress, &r)) {
		set_asleep(first, true);
		return r;
	}
	let(first);
	wake_gate(first->session, set_asleep(first, false));
	end_all_late(first);
	drop_all(first);
	return r;
}

/* Memory that the program does not use need not be copied. Its notices wait: a handler may wake the session. */
static void give_up_warm(struct glake_session *session)
{
	glake__async_collect(session);
	for (uint32_t i = 0; i < session->n_devices; i++) {
		if (session->devices[i].public.ordinal >= 0) {
			glake__heap_trim(&session->devices[i], 0);
		}
	}
}

static int leave(struct glake_session *session, int r)
{
	return session ? glake__leave(session, r) : r;
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
	int r = gather_awake(session, &first);
	for (struct glake__sleeping *at = first; at; at = at->next) {
		give_up_warm(at->session);
	}
	if (first) {
		r = sleep_now(first, why, patience_ns, &told, &held_ns);
	}
	describe(gather_asleep(session), session, began_ns, held_ns, slept_out);
	glake__party_unlock(session);
	return leave(session, r);
}

/* ---- waking ----------------------------------------------------------------------------------- */

/* Nothing of it is asleep any more. */
static void end_sleep(struct glake__sleeping *first, struct glake_session *session)
{
	unsigned n = set_asleep(first, false);
	let(first);
	wake_gate(session, n);
}

int glake__wake_wait(void)
{
	cleanup_cancel int cancel = cancel_disable();
	bool is_left;
	int r;
	do {
		glake__party_lock(NULL);
		r = fetch_all(gather_asleep(NULL));
		is_left = r < 0 && glake__party_is_left();
		glake__party_unlock(NULL);
	} while (is_left);
	return r;
}

static int wake_once(struct glake_session *session, struct glake_slept *slept_out)
{
	const uint64_t began_ns = clock_now_ns();
	struct glake__sleeping *first = gather_asleep(session);
	int r = first ? come_back(first) : 0;
	if (r == 0 && first) {
		describe(first, session, began_ns, 0, slept_out);
		end_sleep(first, first->session);
		end_all_late(first);
		drop_all(first);
	}
	return r;
}

int glake__wake(struct glake_session *session, struct glake_slept *slept_out)
{
	cleanup_cancel int cancel = cancel_disable();
	bool is_left;
	int r;
	*slept_out = (struct glake_slept){.private_bytes = 0};
	do {
		glake__party_lock(session);
		r = wake_once(session, slept_out);
		is_left = r < 0 && glake__party_is_left();
		glake__party_unlock(session);
	} while (is_left);
	return leave(session, r);
}

int glake__wake_plainly(struct glake_session *session)
{
	struct glake_slept slept;
	return glake__wake(session, &slept);
}

/* ---- freeing ---------------------------------------------------------------------------------- */

bool glake__sleep_free(struct glake_session *session, struct glake__allocation *allocation)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__chunk *dead = NULL;
	if (session->asleep && glake__heap_release_part(allocation)) {
		return true;
	}
	/* Who wakes it has the lock for long. */
	if (!session->asleep || !glake__party_try_lock(session)) {
		return false;
	}
	struct glake__sleeping *sleeping = session->asleep;
	struct glake__range *range = glake__heap_range_of(allocation);
	bool is_free = sleeping && range && glake__asleep_drop(&sleeping->memory, range, &dead);
	if (is_free) {
		glake__heap_release_gone(session, allocation, dead);
	}
	glake__party_unlock(session);
	return is_free;
}

bool glake__is_asleep(const struct glake_session *session)
{
	return session->asleep != NULL;
}

/* In a forked child there is no lock, and no party. */
static void forget(struct glake_session *session)
{
	struct glake__sleeping *sleeping = session->asleep;
	if (sleeping) {
		glake__asleep_forget(&sleeping->memory);
		drop(sleeping);
		session->asleep = NULL;
		end_late(session);
	}
}

void glake__sleep_end(struct glake_session *session)
{
	if (session->is_forked) {
		forget(session);
		return;
	}
	glake__party_leave(session);
	struct glake__sleeping *sleeping = session->asleep;
	if (sleeping) {
		sleeping->next = NULL;
		end_sleep(sleeping, session);
		drop(sleeping);
	}
	glake__party_unlock(session);
	if (sleeping) {
		end_late(session);
	}
}

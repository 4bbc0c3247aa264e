/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/sleep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/heap/async.h"
#include "libclient/heap/heap.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
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
/* Restarts of glaked in the moment of a wake. */
#define MAP_TRIES 3u

/* From the hold to its end. */
struct glake__sleeping {
	struct glake__asleep memory;
	uint64_t *ids;   /* owned: of the chunks, and of wholes */
	uint64_t *bytes; /* owned: of each */
	size_t n_ids;
	enum glake__sleep_why why;
	bool is_told;  /* glaked knows that all of it is unmapped, as far as that is so */
	bool is_stale; /* what of it is mapped has to go first: it is not what glaked has */
};

_Static_assert(GLAKE_MAX_STAYS == GLAKE_MAX_STAYS_SLEPT, "what is reported");

/* ---- reports ---------------------------------------------------------------------------------- */

static void describe(const struct glake__sleeping *sleeping, uint64_t began_ns, uint64_t held_ns,
                     struct glake_slept *slept_out)
{
	const struct glake__asleep *memory = &sleeping->memory;
	*slept_out = (struct glake_slept){
		.private_bytes = memory->private_bytes,
		.shared_bytes = memory->shared_bytes,
		.took_ns = clock_now_ns() - began_ns,
		.held_ns = held_ns,
		.n_stays = (uint32_t)memory->n_stays,
	};
	memcpy(slept_out->stays, memory->stays, sizeof(memory->stays));
}

/* ---- holding ---------------------------------------------------------------------------------- */

static void drop(struct glake__sleeping *sleeping)
{
	if (sleeping) {
		free(sleeping->ids);
		free(sleeping->bytes);
		free(sleeping);
	}
}

/* It is not asleep any more, and the gate is awake: models that ended meanwhile can be unmapped. */
static void end_late(struct glake_session *session)
{
	if (session->end_late_models) {
		session->end_late_models(session);
	}
}

static int hold(struct glake__sleeping *sleeping, const struct glake_session *session)
{
	int r = glake__asleep_hold(&sleeping->memory, session);
	for (unsigned i = 1; r == -EBUSY && i < HOLD_TRIES; i++) {
		glake__busy_pause();
		r = glake__asleep_hold(&sleeping->memory, session);
	}
	return r == -EBUSY ? glake__fail(-EBUSY, "other threads work on the memory") : r;
}

/* With all held, nothing of the program's is under way, and its new work waits; for @held_ns, or as short as can be. */
static int hold_and_close(struct glake__sleeping *sleeping, struct glake_session *session,
                          uint64_t held_ns)
{
	int r = hold(sleeping, session);
	if (r == 0) {
		r = held_ns == 0 ? glake__gate_close_soon(UINT64_MAX)
		                 : glake__gate_close(UINT64_MAX, held_ns);
		if (r < 0) {
			char *text = glake__error_save();
			glake__asleep_let(&sleeping->memory);
			end_late(session);
			glake__error_restore(text);
		}
	}
	return r == -EAGAIN ? -EBUSY : r;
}

/*
 * The same, until @patience_ns are over. A program that always has work queued is held back until it ends, longer each
 * time. It has as long a pause before that: the work may wait for a thread that is held back.
 */
static int find_moment(struct glake__sleeping *sleeping, struct glake_session *session,
                       uint64_t patience_ns)
{
	const uint64_t end_ns = clock_now_ns() + patience_ns;
	uint64_t pause_ns = PAUSE_NS;
	int r = hold_and_close(sleeping, session, 0);
	while (r == -EBUSY && clock_now_ns() < end_ns) {
		clock_sleep_ns(pause_ns);
		r = hold_and_close(sleeping, session, pause_ns);
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

/* It is closed. If it falls asleep, it opens without letting anybody pass. wake_gate() is due in any case. */
static int let_gate_sleep(struct glake_session *session)
{
	const struct glake__gate *gate = &glake__space.gate;
	glake__space.n_asleep++;
	int r = gate->sleep ? gate->sleep(gate->user, session) : 0;
	glake__gate_open();
	return r < 0 ? glake__fail(r, "the program's work cannot be held back") : 0;
}

static void wake_gate(struct glake_session *session)
{
	const struct glake__gate *gate = &glake__space.gate;
	glake__space.n_asleep--;
	if (gate->wake) {
		gate->wake(gate->user, session);
	}
}

static bool is_gate_wanted(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	return gate->is_wanted && gate->is_wanted(gate->user);
}

/* ---- with glaked ------------------------------------------------------------------------------ */

/*
 * As long as copies are made, nothing of the program's has changed. So it goes on as soon as it wants to; but not if somebody has
 * asked from outside, who would never get what he wants of a program that always works.
 */
static bool yields(const struct glake__sleeping *sleeping)
{
	return sleeping->why != GLAKE__SLEEP_ASKED;
}

/* A copy that was given up may be in the mover's hands still: then its chunk is busy. */
static int copy_batch(struct glake_session *session, const struct glake__sleeping *sleeping,
                      size_t first, size_t n)
{
	bool (*is_unwanted)(void) = yields(sleeping) ? is_gate_wanted : NULL;
	int r = glake__rpc_sleep_copy(session, sleeping->ids + first, n, is_unwanted);
	for (unsigned i = 0;
	     r == GLAKE_E_BUSY && i < COPY_TRIES && !(yields(sleeping) && is_gate_wanted()); i++) {
		clock_sleep_ns(PAUSE_NS);
		r = glake__rpc_sleep_copy(session, sleeping->ids + first, n, is_unwanted);
	}
	return yields(sleeping) && is_gate_wanted() ? glake__fail(-EBUSY, "it works again") : r;
}

static int copy_all(struct glake_session *session, const struct glake__sleeping *sleeping,
                    glake_progress_fn progress, void *user)
{
	const struct glake__asleep *memory = &sleeping->memory;
	const uint64_t total = memory->private_bytes + memory->shared_bytes;
	uint64_t done = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < sleeping->n_ids;) {
		/* A batch of some GiB: then who asked hears of it. */
		size_t first = i;
		uint64_t n_bytes = 0;
		while (i < sleeping->n_ids && i - first < GLAKE_MAX_SLEPT &&
		       (n_bytes == 0 || !progress || n_bytes < 4ull << 30)) {
			n_bytes += sleeping->bytes[i++];
		}
		r = copy_batch(session, sleeping, first, i - first);
		done += n_bytes;
		if (r == 0 && progress) {
			progress(user, done, total);
		}
	}
	return r;
}

/* All of it is unmapped. */
static int enter(struct glake_session *session, struct glake__sleeping *sleeping)
{
	const struct glake__asleep *memory = &sleeping->memory;
	int r = memory->n_chunks > 0 ? glake__rpc_sleep_enter(session, (uint32_t)sleeping->why,
	                                                      memory->stays, memory->n_stays)
	                             : 0;
	sleeping->is_told = r == 0;
	return r;
}

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
static int map(struct glake_session *session, struct glake__sleeping *sleeping)
{
	return glake__asleep_map(&sleeping->memory, open_some, session);
}

/*
 * Have glaked bring it to the GPU. What glaked does not know to be asleep is there: an earlier wake came so far. A glaked that
 * was not told of the sleep takes our memory to be mapped still, so that is said first. Makes no driver call: what is stale
 * comes later.
 */
static int fetch(struct glake_session *session, struct glake__sleeping *sleeping)
{
	if (sleeping->memory.n_chunks == 0 || sleeping->is_stale) {
		return 0;
	}
	int r = sleeping->is_told ? 0 : enter(session, sleeping);
	if (r == 0 || r == GLAKE_E_BAD_REQUEST) {
		r = glake__rpc_sleep_leave(session, true);
	}
	return r == GLAKE_E_BAD_REQUEST ? 0 : r;
}

/* What was imported before is not what comes now. If it cannot be unmapped, nothing may come to stand beside it. */
static int drop_stale(struct glake__sleeping *sleeping)
{
	int r = sleeping->is_stale ? glake__asleep_unmap(&sleeping->memory) : 0;
	sleeping->is_stale = r < 0;
	return r;
}

/*
 * And map it. If glaked is started anew between the two, what it has brought is lost, but not its copies: they stay until all
 * is mapped.
 */
static int fetch_and_map(struct glake_session *session, struct glake__sleeping *sleeping)
{
	int r = GLAKE_E_NO_FDS;
	for (unsigned i = 0; r == GLAKE_E_NO_FDS && i < MAP_TRIES; i++) {
		r = drop_stale(sleeping);
		r = r < 0 ? r : fetch(session, sleeping);
		r = r < 0 ? r : map(session, sleeping);
		if (r == GLAKE_E_NO_FDS) {
			sleeping->is_stale = true;
			sleeping->is_told = false;
		}
	}
	if (r == 0 && sleeping->memory.n_chunks > 0) {
		char *text = glake__error_save();
		glake__rpc_sleep_leave(session, false);
		glake__error_restore(text);
	}
	return r;
}

/* ---- sleeping --------------------------------------------------------------------------------- */

/*
 * Back to where it was, with the gate asleep. What cannot be mapped again stays asleep, for the next wake. Not
 * @is_unmapped: some of it is still mapped, and so the copies are not what is wanted.
 */
static bool bring_back(struct glake_session *session, struct glake__sleeping *sleeping,
                       bool is_unmapped)
{
	char *text = glake__error_save();
	bool is_back;
	if (is_unmapped) {
		is_back = fetch_and_map(session, sleeping) == 0;
	} else {
		glake__rpc_sleep_leave(session, false);
		is_back = map(session, sleeping) == 0;
	}
	glake__error_restore(text);
	return is_back;
}

static void set_asleep(struct glake_session *session, struct glake__sleeping *sleeping)
{
	session->asleep = sleeping;
}

/* All is held, and the gate asleep. Returns whether @sleeping is asleep. */
static bool go(struct glake_session *session, struct glake__sleeping *sleeping,
               enum glake__sleep_why why, glake_progress_fn progress, void *user, int *result_out)
{
	int r = list_ids(sleeping);
	sleeping->why = why;
	r = r < 0 ? r : copy_all(session, sleeping, progress, user);
	if (r < 0) {
		char *text = glake__error_save();
		glake__rpc_sleep_leave(session, false);
		glake__error_restore(text);
		*result_out = r;
		return false;
	}
	r = glake__asleep_unmap(&sleeping->memory);
	bool is_unmapped = r == 0;
	sleeping->is_told = !is_unmapped;
	r = r < 0 ? r : enter(session, sleeping);
	*result_out = r;
	return r == 0 || !bring_back(session, sleeping, is_unmapped);
}

static int sleep_now(struct glake_session *session, struct glake__sleeping *sleeping,
                     enum glake__sleep_why why, uint64_t patience_ns, glake_progress_fn progress,
                     void *user, struct glake_slept *slept_out)
{
	const uint64_t began_ns = clock_now_ns();
	int r = find_moment(sleeping, session, patience_ns);
	if (r < 0) {
		return r;
	}
	const uint64_t held_ns = clock_now_ns() - began_ns;
	r = let_gate_sleep(session);
	bool is_asleep = r == 0 && go(session, sleeping, why, progress, user, &r);
	if (is_asleep) {
		describe(sleeping, began_ns, held_ns, slept_out);
		set_asleep(session, sleeping);
	} else {
		char *text = glake__error_save();
		glake__asleep_let(&sleeping->memory);
		wake_gate(session);
		end_late(session);
		glake__error_restore(text);
	}
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

int glake__sleep(struct glake_session *session, enum glake__sleep_why why, uint64_t patience_ns,
                 glake_progress_fn progress, void *user, struct glake_slept *slept_out)
{
	cleanup_cancel int cancel = cancel_disable();
	if (pthread_mutex_trylock(&session->sleep_lock) != 0) {
		return glake__fail(-EBUSY, "another thread puts the session to sleep, or wakes it");
	}
	struct glake__sleeping *sleeping = session->asleep;
	int r = 0;
	if (sleeping) {
		describe(sleeping, clock_now_ns(), 0, slept_out);
	} else {
		give_up_warm(session);
		sleeping = calloc(1, sizeof(*sleeping));
		r = sleeping ? sleep_now(session, sleeping, why, patience_ns, progress, user,
		                         slept_out)
		             : glake__fail(-ENOMEM, "out of memory");
		if (session->asleep != sleeping) {
			drop(sleeping);
		}
	}
	pthread_mutex_unlock(&session->sleep_lock);
	return glake__leave(session, r);
}

/* ---- waking ----------------------------------------------------------------------------------- */

static void end_sleep(struct glake_session *session, struct glake__sleeping *sleeping)
{
	session->asleep = NULL;
	glake__asleep_let(&sleeping->memory);
	drop(sleeping);
}

int glake__wake_wait(struct glake_session *session)
{
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&session->sleep_lock);
	int r = session->asleep ? fetch(session, session->asleep) : 0;
	pthread_mutex_unlock(&session->sleep_lock);
	return glake__leave(session, r);
}

int glake__wake(struct glake_session *session, struct glake_slept *slept_out)
{
	cleanup_cancel int cancel = cancel_disable();
	const uint64_t began_ns = clock_now_ns();
	*slept_out = (struct glake_slept){.private_bytes = 0};
	pthread_mutex_lock(&session->sleep_lock);
	struct glake__sleeping *sleeping = session->asleep;
	int r = 0;
	if (sleeping) {
		r = fetch_and_map(session, sleeping);
		if (r == 0) {
			describe(sleeping, began_ns, 0, slept_out);
			end_sleep(session, sleeping);
			wake_gate(session);
			end_late(session);
		}
	}
	pthread_mutex_unlock(&session->sleep_lock);
	return glake__leave(session, r);
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
	if (!session->asleep || pthread_mutex_trylock(&session->sleep_lock) != 0) {
		return false;
	}
	struct glake__sleeping *sleeping = session->asleep;
	struct glake__range *range = glake__heap_range_of(allocation);
	bool is_free = sleeping && range && glake__asleep_drop(&sleeping->memory, range, &dead);
	if (is_free) {
		glake__heap_release_gone(session, allocation, dead);
	}
	pthread_mutex_unlock(&session->sleep_lock);
	return is_free;
}

bool glake__is_asleep(const struct glake_session *session)
{
	return session->asleep != NULL;
}

void glake__sleep_end(struct glake_session *session)
{
	struct glake__sleeping *sleeping = session->asleep;
	if (sleeping && session->is_forked) {
		glake__asleep_forget(&sleeping->memory);
		drop(sleeping);
		session->asleep = NULL;
		end_late(session);
	} else if (sleeping) {
		end_sleep(session, sleeping);
		wake_gate(session);
		end_late(session);
	}
}

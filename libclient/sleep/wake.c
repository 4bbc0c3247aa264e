/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several sessions that each wait for room while they hold memory can wait for each other for ever. So if one session has no
 * room, the others of its party give their memory back before it waits on. The copies in host memory stay until all is mapped:
 * a failure loses nothing, and all sleep on.
 */
#include "libclient/sleep/wake.h"

#include <string.h>

#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/sleep/party.h"
#include "libclient/sleep/sleeping.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* The longest that one session waits for room while others of the process are on the GPU already: a peer may wait for their memory. */
#define OTHERS_PATIENCE_MS 10000u
/* Restarts of glaked in the moment of a wake. */
#define MAP_TRIES 3u

/* ---- opening ---------------------------------------------------------------------------------- */

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

/* ---- coming ----------------------------------------------------------------------------------- */

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
	if (sleeping->memory.n_chunks == 0 || sleeping->state == GLAKE__SLEEPING_STALE) {
		return 0;
	}
	int r = sleeping->state == GLAKE__SLEEPING_UNTOLD ? glake__sleeping_tell(sleeping) : 0;
	if (r == 0 || r == GLAKE_E_BAD_REQUEST) {
		r = glake__rpc_sleep_wake(sleeping->session, patience_ms, glake__party_is_left);
	}
	r = r == GLAKE_E_BAD_REQUEST ? 0 : r;
	if (r == 0) {
		sleeping->state = GLAKE__SLEEPING_HERE;
	} else if (sleeping->state == GLAKE__SLEEPING_HERE) {
		sleeping->state = GLAKE__SLEEPING_AWAY;
	}
	return r;
}

/* A process that has nothing on the GPU may wait for long. */
static int fetch_beside_others(struct glake__sleeping *first, struct glake__sleeping *sleeping)
{
	bool has_others = false;
	for (const struct glake__sleeping *at = first; at; at = at->next) {
		has_others |= at != sleeping && at->state == GLAKE__SLEEPING_HERE;
	}
	return fetch(sleeping, has_others ? OTHERS_PATIENCE_MS : 0);
}

/* Unmaps memory of an earlier import, which the new one replaces. If that fails, nothing may be mapped beside it. */
static int drop_stale(struct glake__sleeping *sleeping)
{
	int r = glake__asleep_unmap(&sleeping->memory);
	sleeping->state = r < 0 ? GLAKE__SLEEPING_STALE : GLAKE__SLEEPING_UNTOLD;
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
		is_all_here &= at->state == GLAKE__SLEEPING_HERE || at->memory.n_chunks == 0;
	}
	for (struct glake__sleeping *at = first; !is_all_here && at; at = at->next) {
		bool is_here = at->state == GLAKE__SLEEPING_HERE;
		if (is_here && at->is_begun && unmaps) {
			at->is_begun = glake__asleep_unmap(&at->memory) < 0;
		}
		if (is_here && !at->is_begun) {
			glake__sleeping_tell(at);
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
	int r = sleeping->state == GLAKE__SLEEPING_STALE ? GLAKE_E_NO_FDS : map(sleeping);
	for (unsigned i = 1; r == GLAKE_E_NO_FDS && i < MAP_TRIES; i++) {
		r = drop_stale(sleeping);
		r = r < 0 ? r : fetch_beside_others(first, sleeping);
		r = r < 0 ? r : map(sleeping);
	}
	if (r == GLAKE_E_NO_FDS) {
		sleeping->state = GLAKE__SLEEPING_STALE;
	}
	return r;
}

int glake__wake_all(struct glake__sleeping *first)
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

/* ---- waking ----------------------------------------------------------------------------------- */

int glake__wake_wait(void)
{
	cleanup_cancel int cancel = cancel_disable();
	bool is_left;
	int r;
	do {
		glake__party_lock(NULL);
		r = fetch_all(glake__sleeping_gather_asleep(NULL));
		is_left = r < 0 && glake__party_is_left();
		glake__party_unlock(NULL);
	} while (is_left);
	return r;
}

static int wake_once(struct glake_session *session, struct glake_slept *slept_out)
{
	const uint64_t began_ns = clock_now_ns();
	struct glake__sleeping *first = glake__sleeping_gather_asleep(session);
	int r = first ? glake__wake_all(first) : 0;
	if (r == 0 && first) {
		glake__sleeping_describe(first, session, began_ns, 0, slept_out);
		glake__sleeping_end(first, first->session);
		glake__sleeping_end_late(first);
		glake__sleeping_drop(first);
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
	return session ? glake__leave(session, r) : r;
}

int glake__wake_plainly(struct glake_session *session)
{
	struct glake_slept slept;
	return glake__wake(session, &slept);
}

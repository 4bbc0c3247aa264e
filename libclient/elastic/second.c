/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step in a second place, see glake_elastic.h: its chunks are mapped once more, read-only, in a hole of the same or another range.
 *
 *   of:  HELD --show--> SHOWN (n_shown = 1, 2, ..) --the last one hidden--> HELD
 *   at:  HOLE --show--> COMING --> READ --hide--> GOING --> HOLE
 *
 * A step of another process has its first place there: glaked passes its chunks, and gives them to this session if that process does not want them
 * any more, or ends. Such a chunk is pinned, as another process's memory is, and a sleep leaves it mapped.
 *
 * A step that is SHOWN is first of all held. As it is not HELD, whoever would lend it, or give it to others, finds nothing to do; and as no
 * chunk is given back while it has a place, a reader never reads what is another's. So nothing else has to know of second places: a
 * sleep unmaps all places of a chunk, and a wake maps each with the access that it had.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/elastic/elastic.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/space/grant.h"
#include "libclient/space/guard.h"
#include "libclient/space/map.h"
#include "libclient/space/reback.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"

/* ---- who is shown ------------------------------------------------------------------------------ */

/* Called with the lock held, as the next. */
static bool begin_shown(struct glake_elastic *of, uint32_t step)
{
	if (of->n_shown[step] == 0 &&
	    !glake__elastic_turn(of, step, GLAKE_ELASTIC_HELD, GLAKE_ELASTIC_SHOWN)) {
		return false;
	}
	of->n_shown[step]++;
	return true;
}

static void end_shown(struct glake_elastic *of, uint32_t step)
{
	if (--of->n_shown[step] == 0) {
		glake__elastic_turn(of, step, GLAKE_ELASTIC_SHOWN, GLAKE_ELASTIC_HELD);
	}
}

static void end_all_shown(struct glake_elastic *of, const uint32_t *steps, uint32_t n)
{
	glake__lock();
	for (uint32_t i = 0; i < n; i++) {
		end_shown(of, steps[i]);
	}
	glake__unlock();
}

static int refuse_shown(uint32_t step)
{
	return glake__fail(-EBUSY, "step %u is read in a second place", step);
}

/* All of them, or none. What is lent is taken. */
static int begin_all_shown(struct glake_elastic *of, const uint32_t *steps, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		bool is_shown = glake__elastic_take(of, steps[i]);
		glake__lock();
		is_shown = is_shown && begin_shown(of, steps[i]);
		glake__unlock();
		if (!is_shown) {
			end_all_shown(of, steps, i);
			return glake__fail(-EBUSY, "step %u is not held", steps[i]);
		}
	}
	return 0;
}

int glake__elastic_check_shown(const struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		if (elastic->states[i] == GLAKE_ELASTIC_SHOWN) {
			return refuse_shown(i);
		}
		if (elastic->states[i] == GLAKE_ELASTIC_READ) {
			return glake__fail(-EBUSY, "step %u is a second place of another one", i);
		}
	}
	return 0;
}

static void forget_origin_locked(struct glake_elastic *at, uint32_t step)
{
	const struct glake__origin origin = at->origins[step];
	at->origins[step] = (struct glake__origin){.of = NULL};
	if (origin.of) {
		end_shown(origin.of, origin.step);
	}
}

/* Second places in the range itself end with it. */
static uint32_t n_shown_here(const struct glake_elastic *elastic, uint32_t step)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < elastic->desc.n_steps; i++) {
		const struct glake__origin *origin = &elastic->origins[i];
		n += origin->of == elastic && origin->step == step;
	}
	return n;
}

int glake__elastic_end_origins(struct glake_elastic *elastic)
{
	const uint32_t n_steps = elastic->desc.n_steps;
	uint32_t i = 0;
	glake__lock();
	while (i < n_steps &&
	       (elastic->n_shown[i] == 0 || elastic->n_shown[i] == n_shown_here(elastic, i))) {
		i++;
	}
	for (uint32_t k = 0; i == n_steps && k < n_steps; k++) {
		forget_origin_locked(elastic, k);
	}
	glake__unlock();
	return i < n_steps ? refuse_shown(i) : 0;
}

/* ---- places ------------------------------------------------------------------------------------ */

/* The places of some steps in all lanes, lane by lane. */
struct places {
	size_t n; /* of steps */
	size_t n_all;
	struct glake__part *parts; /* owned, as the next */
	uint64_t *offsets;
};

static void places_deinit(struct places *places)
{
	free(places->parts);
	free(places->offsets);
}

static int places_init(struct places *places, const struct glake_elastic *at, uint32_t first,
                       uint32_t n)
{
	const struct glake_elastic_desc *desc = &at->desc;
	*places = (struct places){.n = n, .n_all = (size_t)n * desc->n_lanes};
	places->parts = calloc(places->n_all + 1, sizeof(*places->parts));
	places->offsets = calloc(places->n_all + 1, sizeof(*places->offsets));
	if (!places->parts || !places->offsets) {
		places_deinit(places);
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < places->n_all; i++) {
		places->offsets[i] = i / n * desc->lane_stride +
		                     (first + i % n) * desc->chunk_bytes;
		places->parts[i] = (struct glake__part){
			.n_bytes = desc->chunk_bytes, .access = GLAKE__ACCESS_READ, .fd = -1};
	}
	return 0;
}

/* The chunks of @steps, unless somebody holds one, who sleeps for example. From here on nobody does, before let_chunks(). */
static bool keep_chunks(const struct places *places, const struct glake_elastic *of,
                        const uint32_t *steps)
{
	bool is_held = false;
	glake__lock();
	for (size_t i = 0; i < places->n_all; i++) {
		const uint64_t offset = i / places->n * of->desc.lane_stride +
		                        steps[i % places->n] * of->desc.chunk_bytes;
		places->parts[i].chunk = glake__range_piece_locked(of->range, offset)->chunk;
		is_held |= places->parts[i].chunk->holder != NULL;
	}
	for (size_t i = 0; !is_held && i < places->n_all; i++) {
		places->parts[i].chunk->n_coming++;
	}
	glake__unlock();
	return !is_held;
}

static void let_chunks(const struct places *places)
{
	glake__lock();
	for (size_t i = 0; i < places->n_all; i++) {
		places->parts[i].chunk->n_coming--;
	}
	glake__unlock();
}

static glake_ptr first_place(const struct glake_elastic *of, uint32_t step, size_t lane)
{
	return of->range->ptr + lane * of->desc.lane_stride + step * of->desc.chunk_bytes;
}

/* The library gets and keeps a handle of each chunk: a range with a guard needs that. */
static int have_handles(const struct places *places, const struct glake_elastic *of,
                        const uint32_t *steps)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < places->n_all; i++) {
		struct glake__chunk *chunk = places->parts[i].chunk;
		CUmemGenericAllocationHandle handle = 0;
		if (!chunk->handle) {
			r = glake__map_retain(first_place(of, steps[i % places->n], i / places->n),
			                      &handle);
		}
		glake__lock();
		if (r == 0 && !chunk->handle) {
			chunk->handle = handle;
			handle = 0;
		}
		glake__unlock();
		if (handle) {
			glake__map_release(handle);
		}
	}
	return r;
}

static void clear_lanes(struct glake_elastic *at, const struct places *places, uint32_t n_lanes,
                        struct glake__chunk **dead)
{
	for (uint32_t i = 0; i < n_lanes; i++) {
		glake__range_clear(at->range, places->offsets[i * places->n],
		                   places->n * at->desc.chunk_bytes, dead);
	}
}

/* Map the parts in all places, or in none. */
static int map(struct glake_elastic *at, const struct places *places)
{
	struct glake__chunk *none = NULL;
	int r = 0;
	if (at->range->guard) {
		return glake__guard_exchange(at->range, places->offsets, places->parts,
		                             places->n_all, GLAKE__GUARD_WAITS, &none);
	}
	uint32_t n_done = 0;
	while (r == 0 && n_done < at->desc.n_lanes) {
		const size_t i = n_done * places->n;
		r = glake__range_fill(at->range, places->offsets[i], &places->parts[i], places->n);
		n_done += r == 0;
	}
	if (r < 0) {
		char *text = glake__error_save();
		clear_lanes(at, places, n_done, &none);
		glake__error_restore(text);
	}
	return r;
}

static int unmap(struct glake_elastic *at, const struct places *places, struct glake__chunk **dead)
{
	int error = 0;
	if (at->range->guard) {
		return glake__guard_exchange(at->range, places->offsets, NULL, places->n_all,
		                             GLAKE__GUARD_PINNED, dead);
	}
	for (size_t i = 0; i < places->n_all; i++) {
		int r = glake__range_clear(at->range, places->offsets[i], at->desc.chunk_bytes,
		                           dead);
		error = error ? error : r;
	}
	return error;
}

/* ---- showing ----------------------------------------------------------------------------------- */

static int check_pair(const struct glake_elastic *at, const struct glake_elastic *of)
{
	if (at->session != of->session || at->device != of->device ||
	    at->desc.n_lanes != of->desc.n_lanes || at->desc.chunk_bytes != of->desc.chunk_bytes) {
		return glake__fail(-EINVAL,
		                   "a second place is in a range of the same session and GPU, "
		                   "with chunks of that size in as many lanes");
	}
	return 0;
}

static int check_show(const struct glake_elastic *at, uint32_t first,
                      const struct glake_elastic *of, const uint32_t *steps, uint32_t n)
{
	int r = glake__elastic_check(at, first, n);
	r = r < 0 ? r : glake__elastic_check(of, 0, 0);
	if (r == 0 && n > 0 && !steps) {
		r = glake__fail(-EINVAL, "an argument is NULL");
	}
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		r = glake__elastic_check(of, steps[i], 1);
	}
	return r < 0 ? r : check_pair(at, of);
}

/* All of [first, first + n) are COMING, by this thread, or none. */
static int claim_all(struct glake_elastic *at, uint32_t first, uint32_t n)
{
	uint32_t n_claimed = 0;
	while (n_claimed < n && glake__elastic_claim(at, first + n_claimed)) {
		n_claimed++;
	}
	if (n_claimed == n) {
		return 0;
	}
	for (uint32_t i = first; i < first + n_claimed; i++) {
		glake__elastic_turn(at, i, GLAKE_ELASTIC_COMING, GLAKE_ELASTIC_HOLE);
	}
	return glake__fail(-EBUSY, "step %u is no hole", first + n_claimed);
}

/* The steps are SHOWN, and the places COMING. A session that falls asleep meanwhile is woken. */
static int map_shown(struct glake_elastic *at, uint32_t first, struct glake_elastic *of,
                     const uint32_t *steps, uint32_t n)
{
	struct places places;
	int r = places_init(&places, at, first, n);
	if (r < 0) {
		return r;
	}
	bool is_kept = keep_chunks(&places, of, steps);
	while (!is_kept && r == 0) {
		glake__busy_pause();
		r = glake__session_awake(of->session);
		is_kept = r == 0 && keep_chunks(&places, of, steps);
	}
	if (is_kept) {
		r = at->range->guard ? have_handles(&places, of, steps) : 0;
		r = r < 0 ? r : map(at, &places);
		let_chunks(&places);
	}
	places_deinit(&places);
	return r;
}

static void settle(struct glake_elastic *at, uint32_t first, uint32_t n, uint32_t from, int result,
                   uint32_t done, uint32_t undone)
{
	const bool was_there = undone == GLAKE_ELASTIC_READ;
	for (uint32_t i = first; i < first + n; i++) {
		glake__elastic_turn(at, i, from,
		                    result == 0                               ? done
		                    : glake__elastic_is_all(at, i, was_there) ? undone
		                                                              : GLAKE_ELASTIC_LOST);
	}
}

static int show(struct glake_elastic *at, uint32_t first, struct glake_elastic *of,
                const uint32_t *steps, uint32_t n)
{
	int r = begin_all_shown(of, steps, n);
	if (r < 0) {
		return r;
	}
	r = claim_all(at, first, n);
	if (r == 0) {
		r = map_shown(at, first, of, steps, n);
		glake__lock();
		for (uint32_t i = 0; r == 0 && i < n; i++) {
			at->origins[first + i] = (struct glake__origin){of, steps[i]};
		}
		glake__unlock();
		settle(at, first, n, GLAKE_ELASTIC_COMING, r, GLAKE_ELASTIC_READ,
		       GLAKE_ELASTIC_HOLE);
	}
	if (r < 0) {
		end_all_shown(of, steps, n);
	}
	return r;
}

int glake_elastic_show(struct glake_elastic *at, uint32_t first, struct glake_elastic *of,
                       const uint32_t *steps, uint32_t n)
{
	int r = check_show(at, first, of, steps, n);
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(of->session);
	r = r == 0 && n > 0 ? show(at, first, of, steps, n) : r;
	return r == GLAKE_E_FORKED ? r : glake__leave(of->session, r);
}

/* ---- of other processes ------------------------------------------------------------------------ */

static int read_one(struct glake_elastic *at, uint32_t step, struct glake__adopted *adopted)
{
	const struct glake__lanes lanes = glake__elastic_lanes(at, step, 1);
	int r = claim_all(at, step, 1);
	if (r == 0) {
		r = glake__grant_read_lanes(at->device, at->range, &lanes, adopted);
		settle(at, step, 1, GLAKE_ELASTIC_COMING, r, GLAKE_ELASTIC_READ,
		       GLAKE_ELASTIC_HOLE);
	}
	return r;
}

int glake_elastic_read(struct glake_elastic *at, uint32_t step, const void *name, size_t n_name,
                       void *record, size_t *n_record_out)
{
	int r = glake__elastic_check(at, step, 1);
	r = r < 0 ? r : glake__elastic_check_keeps(at);
	if (r == 0 && (!record || !n_record_out || (n_name > 0 && !name))) {
		r = glake__fail(-EINVAL, "an argument is NULL");
	}
	if (r == 0 && n_name > GLAKE_ELASTIC_KEY_BYTES) {
		r = glake__fail(-EINVAL, "a name of %zu bytes: %u at most", n_name,
		                GLAKE_ELASTIC_KEY_BYTES);
	}
	if (r < 0) {
		return r;
	}
	struct glake__adopted adopted = {.key = at->key,
	                                 .n_key = at->desc.n_key,
	                                 .name = name,
	                                 .n_name = n_name,
	                                 .record = record};
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(at->session);
	r = r < 0 ? r : read_one(at, step, &adopted);
	*n_record_out = adopted.n_record;
	return r == GLAKE_E_FORKED ? r : glake__leave(at->session, r);
}

/* ---- hiding ------------------------------------------------------------------------------------ */

/* A step that is GOING, by this thread. */
static int hide(struct glake_elastic *at, uint32_t step)
{
	struct places places;
	struct glake__chunk *dead = NULL;
	int r = places_init(&places, at, step, 1);
	if (r == 0) {
		r = unmap(at, &places, &dead);
		places_deinit(&places);
	}
	if (r == 0) {
		glake__lock();
		forget_origin_locked(at, step);
		glake__unlock();
	}
	settle(at, step, 1, GLAKE_ELASTIC_GOING, r, GLAKE_ELASTIC_HOLE, GLAKE_ELASTIC_READ);
	char *text = glake__error_save();
	glake__grant_return(at->session, dead);
	glake__error_restore(text);
	return r;
}

int glake_elastic_hide(struct glake_elastic *at, uint32_t first, uint32_t n)
{
	int r = glake__elastic_check(at, first, n);
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(at->session);
	for (uint32_t i = first; r == 0 && i < first + n; i++) {
		if (glake__elastic_turn(at, i, GLAKE_ELASTIC_READ, GLAKE_ELASTIC_GOING)) {
			r = hide(at, i);
		}
	}
	return r == GLAKE_E_FORKED ? r : glake__leave(at->session, r);
}

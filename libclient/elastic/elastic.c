/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/elastic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/elastic/ahead.h"
#include "libclient/elastic/attendant.h"
#include "libclient/elastic/serve.h"
#include "libclient/heap/elastic_calls.h"
#include "libclient/heap/supply.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/space/grant.h"
#include "libclient/space/guard.h"
#include "libclient/space/reback.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

#define MAX_LANES 4096u

static struct glake_session *session_of(const struct glake__range *range)
{
	const struct glake_elastic *elastic = range->user;
	return elastic ? elastic->session : NULL;
}

/* Without hold: what changes is not sealed. */
const struct glake__use glake__use_elastic = {
	.name = "elastic",
	.kind = GLAKE__OWN,
	.session = session_of,
	.has_seconds = true,
};

const struct glake__use glake__use_elastic_guarded = {
	.name = "elastic, guarded",
	.kind = GLAKE__OWN,
	.session = session_of,
	.has_seconds = true,
	.keeps_handles = true,
};

static uint64_t step_bytes(const struct glake_elastic *elastic)
{
	return elastic->desc.chunk_bytes * elastic->desc.n_lanes;
}

static uint64_t step_offset(const struct glake_elastic *elastic, uint32_t step)
{
	return elastic->desc.chunk_bytes * step;
}

/* ---- states ----------------------------------------------------------------------------------- */

static bool is_held(uint32_t state)
{
	return state == GLAKE_ELASTIC_HELD || state == GLAKE_ELASTIC_SHOWN;
}

static bool turn(struct glake_elastic *elastic, uint32_t step, uint32_t from, uint32_t to)
{
	if (!atomic_compare_exchange_strong(&elastic->states[step], &from, to)) {
		return false;
	}
	/* Only between states that are counted differently; readers may see a sum that is one off for a moment. */
	if (from == GLAKE_ELASTIC_LENT) {
		elastic->n_lent--;
	}
	if (to == GLAKE_ELASTIC_LENT) {
		elastic->n_lent++;
	}
	if (is_held(from) && !is_held(to)) {
		elastic->n_held--;
	}
	if (is_held(to) && !is_held(from)) {
		elastic->n_held++;
	}
	elastic->n_read += to == GLAKE_ELASTIC_READ;
	elastic->n_read -= from == GLAKE_ELASTIC_READ;
	return true;
}

bool glake__elastic_turn(struct glake_elastic *elastic, uint32_t step, uint32_t from, uint32_t to)
{
	return turn(elastic, step, from, to);
}

static bool take(struct glake_elastic *elastic, uint32_t step)
{
	if (turn(elastic, step, GLAKE_ELASTIC_LENT, GLAKE_ELASTIC_HELD)) {
		elastic->n_takes++;
		return true;
	}
	return is_held(elastic->states[step]);
}

bool glake__elastic_take(struct glake_elastic *elastic, uint32_t step)
{
	return take(elastic, step);
}

static bool is_all(const struct glake_elastic *elastic, uint32_t step, bool is_there)
{
	const struct glake__range *range = elastic->range;
	bool is_all = true;
	glake__lock();
	for (uint32_t i = 0; i < elastic->desc.n_lanes; i++) {
		uint64_t offset = step_offset(elastic, step) + i * elastic->desc.lane_stride;
		const struct glake__piece *piece = glake__range_piece_locked(range, offset);
		bool has_own = piece->chunk != range->guard;
		is_all &= is_there ? piece->chunk && has_own : !has_own;
	}
	glake__unlock();
	return is_all;
}

bool glake__elastic_is_all(const struct glake_elastic *elastic, uint32_t step, bool is_there)
{
	return is_all(elastic, step, is_there);
}

static bool has_steps(const struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	return elastic && first <= elastic->desc.n_steps && n <= elastic->desc.n_steps - first;
}

static int refuse_steps(const struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	return elastic ? glake__fail(-EINVAL, "%u steps from %u on: the range has %u", n, first,
	                             elastic->desc.n_steps)
	               : glake__fail(-EINVAL, "the range is NULL");
}

/* ---- memory that comes ------------------------------------------------------------------------ */

struct glake__lanes glake__elastic_lanes(const struct glake_elastic *elastic, uint32_t first,
                                         uint32_t n)
{
	return (struct glake__lanes){
		.offset = step_offset(elastic, first),
		.n_bytes = elastic->desc.chunk_bytes * n,
		.chunk_bytes = elastic->desc.chunk_bytes,
		.stride = elastic->desc.lane_stride,
		.n = elastic->desc.n_lanes,
	};
}

static void count_come(struct glake_elastic *elastic, uint32_t n)
{
	glake__lock();
	glake__books_add_live(&elastic->session->books, n * step_bytes(elastic));
	glake__unlock();
	elastic->n_commits += n;
}

/* Holes that are COMING, by this thread: all of them, or none. A spare one has free memory or none. */
static int fill(struct glake_elastic *elastic, uint32_t first, uint32_t n, bool is_spare)
{
	const struct glake__lanes lanes = glake__elastic_lanes(elastic, first, n);
	struct glake__wait wait = {.is_spare = is_spare};
	int r = glake__grant_fill_lanes(elastic->device, elastic->range, &lanes, &wait);
	while (r < 0 && !is_spare && glake__supply_make_room(elastic->device, r, &wait)) {
		r = glake__grant_fill_lanes(elastic->device, elastic->range, &lanes, &wait);
	}
	if (r == 0) {
		count_come(elastic, n);
		elastic->n_ahead += is_spare ? n : 0;
	}
	return r;
}

/* Holes from @first on, at most @n, are COMING now. Returns how many. */
static uint32_t claim_holes(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	uint32_t n_claimed = 0;
	while (n_claimed < n &&
	       turn(elastic, first + n_claimed, GLAKE_ELASTIC_HOLE, GLAKE_ELASTIC_COMING)) {
		n_claimed++;
	}
	return n_claimed;
}

/* Steps that were COMING are @come, or have not come: then they are holes, unless the driver did not undo all. */
static void settle(struct glake_elastic *elastic, uint32_t first, uint32_t n, int result,
                   uint32_t come)
{
	for (uint32_t i = first; i < first + n; i++) {
		turn(elastic, i, GLAKE_ELASTIC_COMING,
		     result == 0                 ? come
		     : is_all(elastic, i, false) ? GLAKE_ELASTIC_HOLE
		                                 : GLAKE_ELASTIC_LOST);
	}
}

int glake__elastic_check(const struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	return has_steps(elastic, first, n) ? 0 : refuse_steps(elastic, first, n);
}

bool glake__elastic_claim(struct glake_elastic *elastic, uint32_t step)
{
	return claim_holes(elastic, step, 1) == 1;
}

void glake__elastic_settle(struct glake_elastic *elastic, uint32_t step, int result)
{
	if (result == 0) {
		count_come(elastic, 1);
	}
	settle(elastic, step, 1, result, GLAKE_ELASTIC_HELD);
}

/* At least one step more, from @first on; *n_out says how many. A step that another thread works on is waited for. */
static int commit_some(struct glake_elastic *elastic, uint32_t first, uint32_t n, uint32_t *n_out)
{
	*n_out = 0;
	while (*n_out == 0) {
		if (take(elastic, first)) {
			*n_out = 1;
			return 0;
		}
		uint32_t n_claimed = claim_holes(elastic, first, n);
		if (n_claimed > 0) {
			int r = fill(elastic, first, n_claimed, false);
			settle(elastic, first, n_claimed, r, GLAKE_ELASTIC_HELD);
			*n_out = n_claimed;
			return r;
		}
		const uint32_t state = elastic->states[first];
		if (state == GLAKE_ELASTIC_LOST) {
			return glake__fail(GLAKE_E_CUDA, "the driver has lost step %u", first);
		}
		if (state == GLAKE_ELASTIC_READ) {
			return glake__fail(-EBUSY, "step %u is a second place of another one",
			                   first);
		}
		glake__busy_pause();
	}
	return 0;
}

int glake_elastic_commit(struct glake_elastic *elastic, uint32_t first, uint32_t n, uint32_t *n_out)
{
	if (!has_steps(elastic, first, n)) {
		return refuse_steps(elastic, first, n);
	}
	cleanup_cancel int cancel = cancel_disable();
	int r = glake__session_awake(elastic->session);
	uint32_t n_done = 0;
	while (r == 0 && n_done < n) {
		uint32_t n_more;
		r = commit_some(elastic, first + n_done, n - n_done, &n_more);
		n_done += r == 0 ? n_more : 0;
	}
	if (n_out) {
		*n_out = n_done;
	}
	return r == GLAKE_E_FORKED ? r : glake__leave(elastic->session, r);
}

/* ---- memory that is not needed ---------------------------------------------------------------- */

int glake_elastic_lend(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	if (!has_steps(elastic, first, n)) {
		return refuse_steps(elastic, first, n);
	}
	if (n > 0 && first < elastic->desc.floor_steps) {
		return glake__fail(-EINVAL, "step %u is of the floor, which stays", first);
	}
	int r = glake__elastic_check_shown(elastic, first, n);
	if (r < 0) {
		return r;
	}
	for (uint32_t i = first; i < first + n; i++) {
		turn(elastic, i, GLAKE_ELASTIC_HELD, GLAKE_ELASTIC_LENT);
	}
	return 0;
}

uint32_t glake_elastic_take(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	uint32_t n_taken = 0;
	if (!has_steps(elastic, first, n) || glake__session_check(elastic->session) < 0) {
		return 0;
	}
	while (n_taken < n && take(elastic, first + n_taken)) {
		n_taken++;
	}
	return n_taken;
}

/* ---- memory that goes ------------------------------------------------------------------------- */

/* A step that is GOING, by this thread. */
static int unmap(struct glake_elastic *elastic, uint32_t step, struct glake__chunk **dead)
{
	const uint32_t n_lanes = elastic->desc.n_lanes;
	cleanup_free uint64_t *offsets = calloc(n_lanes, sizeof(*offsets));
	if (!offsets) {
		return -EBUSY;
	}
	for (uint32_t i = 0; i < n_lanes; i++) {
		offsets[i] = step_offset(elastic, step) + i * elastic->desc.lane_stride;
	}
	if (elastic->guard) {
		return glake__guard_exchange(elastic->range, offsets, NULL, n_lanes,
		                             GLAKE__GUARD_NOW, dead);
	}
	return glake__range_clear_all(elastic->range, offsets, n_lanes, elastic->desc.chunk_bytes,
	                              dead);
}

static void forget_lost(struct glake_elastic *elastic)
{
	glake__lock();
	elastic->session->books.live_bytes -= step_bytes(elastic);
	glake__unlock();
}

/* Whether the step was LENT, and has gone. What is held, asleep for example, stays. */
static bool give_step(struct glake_elastic *elastic, uint32_t step, struct glake__chunk **dead)
{
	if (!turn(elastic, step, GLAKE_ELASTIC_LENT, GLAKE_ELASTIC_GOING)) {
		return false;
	}
	int r = unmap(elastic, step, dead);
	if (r < 0 && !is_all(elastic, step, true)) {
		forget_lost(elastic);
		turn(elastic, step, GLAKE_ELASTIC_GOING, GLAKE_ELASTIC_LOST);
		return false;
	}
	turn(elastic, step, GLAKE_ELASTIC_GOING, r == 0 ? GLAKE_ELASTIC_HOLE : GLAKE_ELASTIC_LENT);
	elastic->n_returns += r == 0;
	return r == 0;
}

static void settle_dead(struct glake_elastic *elastic, uint32_t n_steps, struct glake__chunk *dead)
{
	glake__lock();
	elastic->session->books.live_bytes -= n_steps * step_bytes(elastic);
	glake__unlock();
	glake__grant_return(elastic->session, dead);
}

/* Steps of [first, first + n) go, from the last one down, until @n_bytes have gone. Returns how many steps did. */
static uint32_t give_steps(struct glake_elastic *elastic, uint32_t first, uint32_t n,
                           uint64_t n_bytes)
{
	char *text = glake__error_save();
	struct glake__chunk *dead = NULL;
	uint32_t n_given = 0;
	for (uint32_t i = first + n; i > first && n_given * step_bytes(elastic) < n_bytes; i--) {
		n_given += give_step(elastic, i - 1, &dead);
	}
	settle_dead(elastic, n_given, dead);
	glake__error_restore(text);
	return n_given;
}

int glake_elastic_return(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	if (!has_steps(elastic, first, n)) {
		return refuse_steps(elastic, first, n);
	}
	cleanup_cancel int cancel = cancel_disable();
	int r = glake__session_check(elastic->session);
	return r < 0 ? r
	             : glake__leave(elastic->session,
	                            (int)give_steps(elastic, first, n, UINT64_MAX));
}

/* ---- what the session is asked ----------------------------------------------------------------- */

static uint64_t lent_bytes_locked(const struct glake__device *device)
{
	uint64_t n_bytes = 0;
	const struct glake_elastic *at = device->session->books.elastics;
	for (; at; at = at->next) {
		n_bytes += at->device == device ? at->n_lent * step_bytes(at) : 0;
	}
	return n_bytes;
}

/* The next one of @device behind @before (NULL: the first), to be used without the lock; @before is let. */
static struct glake_elastic *use_next(const struct glake__device *device,
                                      struct glake_elastic *before)
{
	glake__lock();
	struct glake_elastic *at = device->session->books.elastics;
	/* One that has ended meanwhile has none behind it that could be trusted. */
	while (before && at && at != before) {
		at = at->next;
	}
	at = before && at ? at->next : at;
	while (at && at->device != device) {
		at = at->next;
	}
	if (at) {
		at->n_users++;
	}
	if (before) {
		before->n_users--;
	}
	glake__unlock();
	return at;
}

static uint64_t give(struct glake__device *device, uint64_t n_bytes)
{
	uint64_t n_given = 0;
	struct glake_elastic *at = use_next(device, NULL);
	for (; at; at = use_next(device, at)) {
		if (n_given < n_bytes) {
			n_given += give_steps(at, 0, at->desc.n_steps, n_bytes - n_given) *
			           step_bytes(at);
		}
	}
	return n_given;
}

/* ---- memory that comes ahead ------------------------------------------------------------------ */

/* The lowest step that is wanted, which is not any more; n_steps: there is none. */
static uint32_t take_wanted(struct glake_elastic *elastic)
{
	uint32_t i = 0;
	if (!atomic_exchange(&elastic->has_wanted, false)) {
		return elastic->desc.n_steps;
	}
	while (i < elastic->desc.n_steps && atomic_exchange(&elastic->wanted[i], 0) == 0) {
		i++;
	}
	/* There may be more; and if one was wanted just now, this is said again. */
	elastic->has_wanted |= i < elastic->desc.n_steps;
	return i;
}

static void want_nothing(struct glake_elastic *elastic)
{
	uint32_t i;
	while ((i = take_wanted(elastic)) < elastic->desc.n_steps) {
	}
}

/* Would a fill wait? A sleeping session waits for its wake, a device without its promise for memory. */
static bool would_wait(const struct glake_elastic *elastic)
{
	const struct glake__device *device = elastic->device;
	return elastic->session->asleep || (device->promise_bytes > 0 && !device->is_promised);
}

/* Without memory, or without a glaked, there is nothing ahead until somebody asks once more. */
static void make_ahead(struct glake_elastic *elastic, uint32_t step)
{
	if (would_wait(elastic) || !glake__rpc_knows_spare(elastic->session)) {
		want_nothing(elastic);
		return;
	}
	if (claim_holes(elastic, step, 1) == 0) {
		return;
	}
	int r = fill(elastic, step, 1, true);
	settle(elastic, step, 1, r, GLAKE_ELASTIC_LENT);
	if (r < 0) {
		want_nothing(elastic);
	}
}

/* On the session's thread for that. */
static bool make_one_ahead(struct glake_session *session)
{
	bool has_made = false;
	for (uint32_t i = 0; !has_made && i < session->n_devices; i++) {
		struct glake_elastic *at = use_next(&session->devices[i], NULL);
		while (at) {
			uint32_t step = has_made ? at->desc.n_steps : take_wanted(at);
			if (step < at->desc.n_steps) {
				make_ahead(at, step);
				has_made = true;
			}
			at = use_next(&session->devices[i], at);
		}
	}
	return has_made;
}

int glake_elastic_ahead(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	if (!has_steps(elastic, first, n)) {
		return refuse_steps(elastic, first, n);
	}
	bool is_any = false;
	int r = glake__session_check(elastic->session);
	for (uint32_t i = first; r == 0 && i < first + n; i++) {
		if (elastic->states[i] == GLAKE_ELASTIC_HOLE) {
			elastic->wanted[i] = 1;
			is_any = true;
		}
	}
	if (is_any) {
		cleanup_cancel int cancel = cancel_disable();
		elastic->has_wanted = true;
		r = glake__ahead_ask(elastic->session, make_one_ahead);
	}
	return r;
}

/* ---- the beginning and the end ---------------------------------------------------------------- */

static void elastic_free(struct glake_elastic *elastic)
{
	glake__marks_deinit(&elastic->marks, &elastic->session->drv, elastic->session->is_forked);
	free(elastic->origins);
	free(elastic->n_shown);
	free(elastic->sealed);
	free(elastic->wanted);
	free(elastic->states);
	free(elastic);
}

/* In a forked child, where the driver must not be called, free only. */
static void drop_range(struct glake_elastic *elastic)
{
	const bool is_forked = elastic->session->is_forked;
	elastic->range->guard = NULL;
	glake__grant_drop(elastic->session, elastic->range);
	if (elastic->guard && is_forked) {
		free(elastic->guard);
	} else if (elastic->guard) {
		glake__chunk_put(elastic->guard);
	}
}

static void end_all(struct glake_session *session)
{
	while (session->books.elastics) {
		struct glake_elastic *elastic = session->books.elastics;
		session->books.elastics = elastic->next;
		drop_range(elastic);
		elastic_free(elastic);
	}
}

/* All threads have ended when this returns, so none has a step in hand. */
static void stop(struct glake_session *session)
{
	struct glake_elastic *at = session->books.elastics;
	for (; at; at = at->next) {
		glake__attendants_end(&at->attendants, session->is_forked);
	}
	glake__ahead_stop(session);
	glake__serve_stop(session);
}

static const struct glake__elastic_calls calls = {
	.lent_bytes_locked = lent_bytes_locked,
	.give = give,
	.stop = stop,
	.end = end_all,
};

static int refuse_desc(const char *why)
{
	return glake__fail(-EINVAL, "an elastic range: %s", why);
}

static int check_desc(const struct glake_elastic_desc *desc)
{
	uint64_t lane_bytes;
	uint64_t all_bytes;
	if (desc->n_lanes < 1 || desc->n_lanes > MAX_LANES || desc->n_steps < 1) {
		return refuse_desc("1 to 4096 lanes, and 1 step or more");
	}
	if (desc->chunk_bytes == 0 || desc->chunk_bytes % GLAKE_CHUNK_GRANULARITY != 0 ||
	    desc->lane_stride % GLAKE_CHUNK_GRANULARITY != 0) {
		return refuse_desc("chunks and strides are multiples of 2 MiB");
	}
	if (__builtin_mul_overflow(desc->chunk_bytes, (uint64_t)desc->n_steps, &lane_bytes) ||
	    desc->lane_stride < lane_bytes ||
	    __builtin_mul_overflow(desc->lane_stride, (uint64_t)desc->n_lanes, &all_bytes) ||
	    all_bytes > UINT64_MAX - desc->chunk_bytes) {
		return refuse_desc(
			"a lane has room for all steps, and the addresses for all lanes");
	}
	if (desc->floor_steps > desc->n_steps) {
		return refuse_desc("the floor has more steps than it");
	}
	if (desc->n_key > GLAKE_ELASTIC_KEY_BYTES || (desc->n_key > 0 && !desc->key)) {
		return refuse_desc("a key has 64 bytes at most");
	}
	if (desc->flags &
	    ~(uint32_t)(GLAKE_ELASTIC_SERVE | GLAKE_ELASTIC_GUARD | GLAKE_ELASTIC_SHARED)) {
		return refuse_desc("an unknown flag");
	}
	return 0;
}

static int elastic_new(struct glake__device *device, const struct glake_elastic_desc *desc,
                       struct glake_elastic **elastic_out)
{
	struct glake_elastic *elastic = calloc(1, sizeof(*elastic));
	if (!elastic) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	elastic->session = device->session;
	glake__marks_init(&elastic->marks);
	elastic->device = device;
	elastic->desc = *desc;
	elastic->desc.key = elastic->key;
	if (desc->n_key > 0) {
		memcpy(elastic->key, desc->key, desc->n_key);
	}
	elastic->states = calloc(desc->n_steps, sizeof(*elastic->states));
	elastic->wanted = calloc(desc->n_steps, sizeof(*elastic->wanted));
	elastic->sealed = calloc(desc->n_steps, sizeof(*elastic->sealed));
	elastic->n_shown = calloc(desc->n_steps, sizeof(*elastic->n_shown));
	elastic->origins = calloc(desc->n_steps, sizeof(*elastic->origins));
	if (!elastic->states || !elastic->wanted || !elastic->sealed || !elastic->n_shown ||
	    !elastic->origins) {
		elastic_free(elastic);
		return glake__fail(-ENOMEM, "out of memory");
	}
	const bool has_guard = desc->flags & GLAKE_ELASTIC_GUARD;
	int r = glake__range_reserve(has_guard ? &glake__use_elastic_guarded : &glake__use_elastic,
	                             elastic, device->handle,
	                             desc->lane_stride * desc->n_lanes +
	                                     (has_guard ? desc->chunk_bytes : 0),
	                             0, 0, &elastic->range);
	if (r < 0) {
		elastic_free(elastic);
		return r;
	}
	*elastic_out = elastic;
	return 0;
}

/* The guard in each step of each lane but the floor, and once behind the last lane: so it always has a place. */
static int set_guard(struct glake_elastic *elastic)
{
	const struct glake_elastic_desc *desc = &elastic->desc;
	struct glake__wait wait = {0};
	int r;
	do {
		r = glake__grant_chunk(elastic->device, desc->chunk_bytes, &wait, &elastic->guard);
	} while (r < 0 && glake__supply_make_room(elastic->device, r, &wait));
	if (r < 0) {
		return r;
	}
	glake__lock();
	glake__books_add_live(&elastic->session->books, desc->chunk_bytes);
	elastic->range->guard = elastic->guard;
	glake__unlock();
	for (uint32_t i = 0; r == 0 && i < desc->n_lanes; i++) {
		r = glake__guard_fill(elastic->range,
		                      i * desc->lane_stride +
		                              step_offset(elastic, desc->floor_steps),
		                      desc->n_steps - desc->floor_steps);
	}
	return r < 0 ? r : glake__guard_fill(elastic->range, desc->n_lanes * desc->lane_stride, 1);
}

/* Other threads find @elastic from now on. */
static void list(struct glake_elastic *elastic)
{
	struct glake_session *session = elastic->session;
	glake__lock();
	elastic->next = session->books.elastics;
	session->books.elastics = elastic;
	session->elastic_calls = &calls;
	glake__unlock();
}

/* Nobody of the library works on it any more. */
static void unlist(struct glake_elastic *elastic)
{
	glake__lock();
	struct glake_elastic **at = &elastic->session->books.elastics;
	while (*at != elastic) {
		at = &(*at)->next;
	}
	*at = elastic->next;
	while (elastic->n_users > 0) {
		glake__unlock();
		glake__busy_pause();
		glake__lock();
	}
	glake__unlock();
}

int glake_elastic_open(struct glake_session *session, const struct glake_elastic_desc *desc,
                       struct glake_elastic **elastic_out, glake_ptr *base_out)
{
	struct glake_elastic_desc full;
	struct glake_elastic *elastic = NULL;
	struct glake__device *device = NULL;
	cleanup_cancel int cancel = cancel_disable();
	int r = glake__session_awake(session);
	if (r == 0) {
		r = elastic_out && base_out && desc ? glake__sized_in(desc, &full, sizeof(full))
		                                    : refuse_desc("an argument is NULL");
	}
	r = r < 0 ? r : check_desc(&full);
	r = r < 0 ? r : glake__session_mappable(session, full.device, &device);
	r = r < 0 ? r : elastic_new(device, &full, &elastic);
	if (r < 0) {
		return r;
	}
	list(elastic);
	if (full.flags & GLAKE_ELASTIC_SERVE) {
		r = glake__serve_start(session);
	}
	if (r == 0 && full.flags & GLAKE_ELASTIC_GUARD) {
		r = set_guard(elastic);
	}
	if (r == 0) {
		r = glake_elastic_commit(elastic, 0, full.floor_steps, NULL);
	}
	if (r < 0) {
		char *text = glake__error_save();
		glake_elastic_close(elastic);
		glake__error_restore(text);
		return r;
	}
	*base_out = elastic->range->ptr;
	*elastic_out = elastic;
	return 0;
}

int glake_elastic_close(struct glake_elastic *elastic)
{
	if (!elastic) {
		return 0;
	}
	struct glake_session *session = elastic->session;
	int r = glake__session_awake(session);
	r = r < 0 ? r : glake__elastic_end_origins(elastic);
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	glake__attendants_end(&elastic->attendants, false);
	unlist(elastic);
	struct glake__chunk *dead = NULL;
	uint32_t n_steps = elastic->n_held + elastic->n_lent;
	glake__lock();
	elastic->range->user = NULL;
	elastic->range->guard = NULL;
	glake__unlock();
	r = glake__range_end(elastic->range, &dead);
	if (elastic->guard) {
		glake__lock();
		session->books.live_bytes -= elastic->desc.chunk_bytes;
		glake__chunk_put_locked(elastic->guard, &dead);
		glake__unlock();
	}
	settle_dead(elastic, n_steps, dead);
	elastic_free(elastic);
	return glake__leave(session, r);
}

/* ---- looking ---------------------------------------------------------------------------------- */

const uint32_t *glake_elastic_states(const struct glake_elastic *elastic)
{
	return (const uint32_t *)elastic->states;
}

int glake_elastic_stats(const struct glake_elastic *elastic, struct glake_elastic_stats *stats)
{
	if (!elastic) {
		return refuse_steps(elastic, 0, 0);
	}
	struct glake_elastic_stats full = {
		.n_held = elastic->n_held,
		.n_lent = elastic->n_lent,
		.step_bytes = step_bytes(elastic),
		.n_commits = elastic->n_commits,
		.n_takes = elastic->n_takes,
		.n_returns = elastic->n_returns,
		.n_ahead = elastic->n_ahead,
		.n_read = elastic->n_read,
	};
	return glake__sized_out(stats, &full, sizeof(full));
}

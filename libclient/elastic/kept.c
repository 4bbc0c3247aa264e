/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that outlive their process, see glake_elastic.h: a will for their chunks with glaked, and those that others left.
 *
 * `sealed` of a step is set before glaked is asked for a will, and cleared when its answer says that there is none. So
 * what has no mark has no will, and unsealing it costs nothing. Memory that goes takes its will with it: a mark that is
 * left of that costs one request.
 */
#include <errno.h>

#include "libclient/elastic/elastic.h"
#include "libclient/elastic/named.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/space/grant.h"
#include "libclient/space/look.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

_Static_assert(GLAKE_ELASTIC_KEY_BYTES == GLAKE_MAX_WILL_KEY_BYTES &&
                       GLAKE_ELASTIC_RECORD_BYTES == GLAKE_MAX_RECORD_BYTES,
               "as glaked has it");

int glake__elastic_check_keeps(const struct glake_elastic *elastic)
{
	if (elastic->desc.n_key == 0) {
		return glake__fail(-EINVAL, "the range was opened without a key");
	}
	if (elastic->desc.n_lanes > GLAKE_MAX_PACKET_FDS) {
		return glake__fail(-EINVAL, "a step that is kept has %u lanes at most",
		                   GLAKE_MAX_PACKET_FDS);
	}
	return 0;
}

/* The chunks of the step in all lanes. Returns how many of the lanes have one; *is_pinned_out: others may write to some. */
static uint32_t find_chunks(const struct glake_elastic *elastic, uint32_t step,
                            uint64_t ids_out[GLAKE_MAX_PACKET_FDS], bool *is_pinned_out)
{
	const struct glake__lanes lanes = glake__elastic_lanes(elastic, step, 1);
	uint32_t n = 0;
	*is_pinned_out = false;
	glake__lock();
	for (uint32_t i = 0; i < lanes.n; i++) {
		const struct glake__piece *piece = glake__range_piece_locked(
			elastic->range, lanes.offset + i * lanes.stride);
		if (piece->chunk && piece->chunk != elastic->range->guard) {
			ids_out[n++] = piece->chunk->id;
			*is_pinned_out |= glake__chunk_pin_locked(piece->chunk) != GLAKE__PIN_NONE;
		}
	}
	glake__unlock();
	return n;
}

static int unseal(struct glake_elastic *elastic, uint32_t step)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	bool is_pinned;
	uint32_t n = find_chunks(elastic, step, ids, &is_pinned);
	int r = n > 0 ? glake__rpc_chunk_unkeep(elastic->session, ids, n) : 0;
	if (r == 0) {
		elastic->sealed[step] = 0;
	}
	return r;
}

/* Whoever pins memory meanwhile sees the mark, and takes back a will that may not have been made yet. */
static int check_still_ours(struct glake_elastic *elastic, uint32_t step)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	bool is_pinned;
	find_chunks(elastic, step, ids, &is_pinned);
	int r = is_pinned ? unseal(elastic, step) : 0;
	return is_pinned && r == 0 ? glake__fail(-EBUSY, "others may write to step %u", step) : r;
}

static int seal(struct glake_elastic *elastic, uint32_t step, const void *record, size_t n_record)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	bool is_pinned;
	uint32_t n = find_chunks(elastic, step, ids, &is_pinned);
	const uint32_t state = elastic->states[step];
	if ((state != GLAKE_ELASTIC_HELD && state != GLAKE_ELASTIC_SHOWN) ||
	    n != elastic->desc.n_lanes) {
		return glake__fail(-EINVAL, "step %u is not held", step);
	}
	if (is_pinned) {
		return glake__fail(-EBUSY, "others may write to step %u", step);
	}
	elastic->sealed[step] = 1;
	int r = glake__rpc_chunk_keep(elastic->session, ids, n, elastic->key, elastic->desc.n_key,
	                              record, n_record, elastic->desc.flags & GLAKE_ELASTIC_SHARED);
	return r < 0 ? r : check_still_ours(elastic, step);
}

int glake_elastic_seal(struct glake_elastic *elastic, uint32_t step, const void *record,
                       size_t n_record)
{
	int r = glake__elastic_check(elastic, step, 1);
	r = r < 0 ? r : glake__elastic_check_keeps(elastic);
	if (r == 0 && (n_record > GLAKE_ELASTIC_RECORD_BYTES || (n_record > 0 && !record))) {
		r = glake__fail(-EINVAL, "a record of %zu bytes: %u at most", n_record,
		                GLAKE_ELASTIC_RECORD_BYTES);
	}
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(elastic->session);
	r = r < 0 ? r : seal(elastic, step, record, n_record);
	return r == GLAKE_E_FORKED ? r : glake__leave(elastic->session, r);
}

int glake_elastic_unseal(struct glake_elastic *elastic, uint32_t first, uint32_t n)
{
	int r = glake__elastic_check(elastic, first, n);
	r = r < 0 ? r : glake__elastic_check_shown(elastic, first, n);
	uint32_t i = first;
	while (r == 0 && i < first + n && !elastic->sealed[i]) {
		i++;
	}
	if (r < 0 || i == first + n) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(elastic->session);
	for (; r == 0 && i < first + n; i++) {
		r = elastic->sealed[i] ? unseal(elastic, i) : 0;
	}
	return r == GLAKE_E_FORKED ? r : glake__leave(elastic->session, r);
}

/* ---- memory that others get -------------------------------------------------------------------- */

/* The range and the sealed step that *@at_inout is in, to be used without the lock; NULL: none. Moves behind it, to @end at most. */
static struct glake_elastic *use_sealed(glake_ptr *at_inout, glake_ptr end, uint32_t *step_out)
{
	struct glake_elastic *elastic = NULL;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(*at_inout);
	*at_inout = piece ? piece->range->ptr + piece->offset + piece->n_bytes
	                  : glake__next_place_locked(*at_inout, end);
	if (piece && (piece->range->use == &glake__use_elastic ||
	              piece->range->use == &glake__use_elastic_guarded)) {
		elastic = piece->range->user;
	}
	if (elastic) {
		*step_out = (uint32_t)(piece->offset % elastic->desc.lane_stride /
		                       elastic->desc.chunk_bytes);
		bool is_sealed = *step_out < elastic->desc.n_steps && elastic->sealed[*step_out];
		elastic->n_users += is_sealed;
		elastic = is_sealed ? elastic : NULL;
	}
	glake__unlock();
	return elastic;
}

int glake__elastic_named(glake_ptr address, uint64_t n_bytes)
{
	const glake_ptr end = address + n_bytes;
	int r = 0;
	while (r == 0 && address < end) {
		uint32_t step;
		struct glake_elastic *elastic = use_sealed(&address, end, &step);
		if (elastic) {
			r = unseal(elastic, step);
			glake__lock();
			elastic->n_users--;
			glake__unlock();
		}
	}
	return r;
}

/* ---- heirs ------------------------------------------------------------------------------------- */

static int adopt(struct glake_elastic *elastic, uint32_t step, struct glake__adopted *adopted)
{
	const struct glake__lanes lanes = glake__elastic_lanes(elastic, step, 1);
	if (!glake__elastic_claim(elastic, step)) {
		return glake__fail(-EBUSY, "step %u is no hole", step);
	}
	elastic->sealed[step] = 1;
	int r = glake__grant_adopt_lanes(elastic->device, elastic->range, &lanes, adopted);
	glake__elastic_settle(elastic, step, r);
	return r;
}

int glake_elastic_adopt(struct glake_elastic *elastic, uint32_t step, void *record,
                        size_t *n_record_out, uint32_t *n_living_out)
{
	int r = glake__elastic_check(elastic, step, 1);
	r = r < 0 ? r : glake__elastic_check_keeps(elastic);
	if (r == 0 && (!record || !n_record_out)) {
		r = glake__fail(-EINVAL, "an argument is NULL");
	}
	if (r < 0) {
		return r;
	}
	struct glake__adopted adopted = {
		.key = elastic->key, .n_key = elastic->desc.n_key, .record = record};
	cleanup_cancel int cancel = cancel_disable();
	r = glake__session_awake(elastic->session);
	r = r < 0 ? r : adopt(elastic, step, &adopted);
	*n_record_out = adopted.n_record;
	if (n_living_out) {
		*n_living_out = adopted.n_living;
	}
	return r == GLAKE_E_FORKED ? r : glake__leave(elastic->session, r);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts become blocks, in three steps: flip, publish, collapse (seal.c).
 *
 * Parts are flipped and collapsed many at a time, since each time waits for the work that is queued. While
 * glaked works on those that were flipped last, the ones before are collapsed and the next are flipped.
 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/space/errand.h"
#include "libclient/space/reback.h"
#include "proto/cleanup.h"

/* At most this many parts at a time: three milliseconds of driver calls while the program is held back. */
#define BATCH 48u
/* And fewer if nothing is held back: glaked has work sooner, and goes on meanwhile. */
#define FREE_BATCH 8u

/* The next would fail in the same way. */
static void stop(struct glake__seal *seal, int r)
{
	glake__seal_note(seal, r);
	seal->is_stopped |= r < 0;
}

/* ---- flipping --------------------------------------------------------------------------------- */

/* The chunk of a part that is held. */
static struct glake__chunk *chunk_of_locked(const struct glake__seal_part *part)
{
	return glake__range_piece_locked(part->hold.range, part->hold.offset)->chunk;
}

/* Called before its access is taken, so that calls behind the gate find the new kind. */
static void mark(const struct glake__seal_part *part, enum glake__page_kind kind)
{
	glake__lock();
	glake__chunk_set_kind_locked(chunk_of_locked(part), kind);
	glake__unlock();
}

/* Has the part a tail to clear? A part that is sealed already has only zeros there, and is not written to. */
static bool has_tail(const struct glake__seal_part *part)
{
	return !part->is_again && part->ptr + part->n_bytes > part->held->end;
}

/* The bytes behind the allocation belong to nobody. Zeroed, they are equal in all processes. */
static int zero_tail(const struct glake__seal_part *part)
{
	const glake_ptr end = part->held->end;
	const uint64_t n_kept = end > part->ptr ? end - part->ptr : 0;
	return glake__errand_zero(part->device, part->ptr, part->n_bytes, n_kept);
}

/* Once what is queued has ended: the GPU may be full of it, for ever. */
static int zero_tails(struct glake__seal *seal, const struct glake__seal_part *parts, size_t n)
{
	uint64_t readers = 0;
	size_t n_tails = 0;
	int r = 0;
	for (size_t i = 0; i < n; i++) {
		if (has_tail(&parts[i])) {
			readers |= glake__look_at(parts[i].held, parts[i].ptr,
			                          &seal->spans.sessions)
			                   .readers;
			n_tails++;
		}
	}
	if (n_tails > 0) {
		r = glake__errands_wait(readers);
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = has_tail(&parts[i]) ? zero_tail(&parts[i]) : 0;
	}
	return r;
}

static void let_part(struct glake__seal_part *part)
{
	glake__hold_end(&part->hold);
	part->hold.range = NULL;
}

/* Another call may have sealed it. */
static bool is_as_planned(const struct glake__seal_part *part)
{
	glake__lock();
	const struct glake__chunk *chunk = chunk_of_locked(part);
	bool is_planned = part->is_again ? chunk->is_unfinished : chunk->kind == GLAKE__PAGE_CHUNK;
	glake__unlock();
	return is_planned;
}

/* Nobody can pin the part from here on. What is pinned already, or is not what was planned, is let. */
static void check_held(struct glake__seal *seal, struct glake__seal_part *part)
{
	if (!glake__look_is_still(&part->hold, part->ptr, part->n_bytes, seal->last, &part->pin) ||
	    !is_as_planned(part)) {
		part->state = GLAKE__PART_GONE;
	}
	if (part->hold.range && (part->state == GLAKE__PART_GONE || part->pin)) {
		let_part(part);
	}
	if (part->pin) {
		seal->sum.pinned_bytes += part->n_bytes;
		seal->sum.pinned_why = glake__pin_text(part->pin);
	}
}

/* False: another thread works on some of it, and without @waits nothing is held. */
static bool hold_all(struct glake__seal *seal, struct glake__seal_part *parts, size_t n, bool waits)
{
	struct glake__holding list[BATCH];
	for (size_t i = 0; i < n; i++) {
		list[i] = (struct glake__holding){
			.hold = &parts[i].hold,
			.ptr = parts[i].ptr,
			.n_bytes = parts[i].n_bytes,
		};
	}
	if (glake__holds_begin(list, n, waits) < 0) {
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		if (list[i].result < 0) {
			parts[i].hold.range = NULL;
		}
		check_held(seal, &parts[i]);
	}
	return true;
}

static int flip(struct glake__seal_part *part)
{
	if (part->is_again) {
		part->state = GLAKE__PART_FLIPPED;
		return 0;
	}
	mark(part, GLAKE__PAGE_BLOCK);
	int r = glake__hold_access(&part->hold, GLAKE__ACCESS_READ);
	if (r == 0) {
		part->state = GLAKE__PART_FLIPPED;
	} else {
		mark(part, GLAKE__PAGE_CHUNK);
	}
	return r;
}

/*
 * Private again. What was read-only before stays so, and what the driver leaves read-only is not called private: as
 * a block, it gets a copy when the program's calls write to it, and the next sealing goes on with it.
 */
static void unflip(struct glake__seal *seal, struct glake__seal_part *part)
{
	struct glake_session *session = part->device->session;
	if (part->is_again) {
		return;
	}
	char *text = glake__error_save();
	int r = glake__hold_access(&part->hold, GLAKE__ACCESS_WRITE);
	glake__seal_note(seal, r);
	if (r == 0) {
		mark(part, GLAKE__PAGE_CHUNK);
	} else {
		glake__lock();
		glake__grant_unfinish_locked(session, chunk_of_locked(part));
		glake__unlock();
	}
	part->state = GLAKE__PART_PLANNED;
	glake__error_restore(text);
}

/* The devices that have access to the memory of all parts. */
static uint64_t readers_of(const struct glake__seal_part *parts, size_t n)
{
	uint64_t readers = 0;
	for (size_t i = 0; i < n; i++) {
		readers |= parts[i].hold.range ? glake__hold_readers(&parts[i].hold) : 0;
	}
	return readers;
}

static void flip_all(struct glake__seal *seal, struct glake__seal_part *parts, size_t n)
{
	if (seal->is_stopped) {
		return;
	}
	const uint64_t readers = readers_of(parts, n);
	int r = glake__gate_close_soon(readers);
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (parts[i].hold.range) {
			stop(seal, flip(&parts[i]));
		}
		r = i + 1 < n ? glake__gate_pause(readers) : 0;
	}
	if (r == 0) {
		glake__gate_open();
	}
	stop(seal, r);
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* glaked has answered for @part. */
static int take_answer(struct glake__seal *seal, struct glake__seal_part *part,
                       const struct glake__publication *publication)
{
	struct glake_session *session = part->device->session;
	int r = publication->result;
	if (r < 0 && !glake__may_be_block(r)) {
		unflip(seal, part);
		return r;
	}
	glake__lock();
	struct glake__chunk *chunk = chunk_of_locked(part);
	if (!part->is_again) {
		glake__grant_seal_locked(session, chunk,
		                         r < 0 ? publication->chunk : publication->answer.block);
	}
	chunk->is_unfinished = r < 0 || publication->answer.was_known;
	glake__unlock();
	if (r == 0) {
		part->answer = publication->answer;
		part->state = GLAKE__PART_PUBLISHED;
	}
	return r;
}

/* Publish the parts that are flipped, unless one could not be. */
static void publish_all(struct glake__seal *seal, struct glake__publisher *publisher,
                        struct glake__seal_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct glake__seal_part *part = &parts[i];
		bool is_flipped = part->state == GLAKE__PART_FLIPPED;
		if (is_flipped && seal->is_stopped) {
			unflip(seal, part);
		} else if (is_flipped) {
			part->publication = &publisher->list[publisher->n++];
			glake__lock();
			*part->publication = (struct glake__publication){
				.chunk = chunk_of_locked(part)->id,
				.chunk_bytes = part->n_bytes,
				.is_alone = seal->is_alone,
				.content_bytes = part->content_bytes ? part->content_bytes
			                                             : part->n_bytes,
			};
			glake__unlock();
		}
	}
	glake__publisher_go_on(publisher);
}

/* Wait for the answers. Those that are not asked for yet will not be if there was an error. */
static void take_all(struct glake__seal *seal, struct glake__publisher *publisher,
                     struct glake__seal_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct glake__seal_part *part = &parts[i];
		if (!part->publication) {
			continue;
		}
		if (seal->is_stopped) {
			glake__publisher_stop(publisher);
		}
		glake__publisher_wait(publisher, (size_t)(part->publication - publisher->list) + 1);
		if (!part->publication->is_started) {
			unflip(seal, part);
			continue;
		}
		if (part->publication->result < 0) {
			glake__error_restore(ptr_steal(part->publication->text));
		}
		stop(seal, take_answer(seal, part, part->publication));
		if (part->state == GLAKE__PART_PUBLISHED) {
			seal->sum.sealed_bytes += part->n_bytes;
		}
	}
}

/* ---- collapsing ------------------------------------------------------------------------------- */

static bool is_known(const struct glake__seal_part *part)
{
	return part->state == GLAKE__PART_PUBLISHED && part->answer.was_known &&
	       part->answer.fd >= 0;
}

/* *old_out is what is there, with a use more. */
static int plan_collapse(const struct glake__seal_part *part, struct glake__part *block_out,
                         struct glake__rebacking *rebacking, struct glake__chunk **old_out)
{
	struct glake__chunk *chunk = glake__chunk_new(part->answer.block, part->n_bytes,
	                                              part->device->handle, GLAKE__PAGE_BLOCK);
	*block_out = (struct glake__part){.chunk = chunk,
	                                  .n_bytes = part->n_bytes,
	                                  .access = GLAKE__ACCESS_READ,
	                                  .fd = part->answer.fd};
	*rebacking = (struct glake__rebacking){
		.hold = &part->hold,
		.result = -ENOMEM, /* until it is tried */
		.parts = block_out,
		.n_parts = 1,
	};
	if (!chunk) {
		return -ENOMEM;
	}
	glake__lock();
	*old_out = chunk_of_locked(part);
	(*old_out)->n_uses++;
	glake__unlock();
	return 0;
}

static void go_on(void *publisher)
{
	char *text = glake__error_save();
	glake__publisher_go_on(publisher);
	glake__error_restore(text);
}

/* Blocks are mapped where these were. */
static void confirm(struct glake_session *session, const uint64_t *ids, size_t n)
{
	char *text = glake__error_save();
	if (n > 0) {
		glake__rpc_chunk_free(session, ids, n);
	}
	glake__error_restore(text);
}

/*
 * The id is the block's, and so is the owner. Others may have a use of what it has replaced, until they look again:
 * then nothing is left to be given back. What is lost goes to @rebacking->dead.
 */
static void end_use(struct glake__chunk *old, struct glake__rebacking *rebacking)
{
	glake__lock();
	if (rebacking->result == 0) {
		old->id = 0;
		glake__chunk_set_kind_locked(old, GLAKE__PAGE_CHUNK);
	}
	glake__chunk_put_locked(old, &rebacking->dead);
	glake__unlock();
}

static void collapse_all(struct glake__seal *seal, struct glake__publisher *publisher,
                         const struct glake__seal_part *parts, size_t n)
{
	struct glake__rebacking list[BATCH];
	struct glake__part blocks[BATCH];
	const struct glake__rebacking_way way = {.meanwhile = go_on, .user = publisher};
	struct glake__chunk *olds[BATCH];
	bool is_kept[BATCH];
	uint64_t gone[BATCH];
	size_t n_known = 0;
	size_t n_gone = 0;
	for (size_t i = 0; i < n; i++) {
		if (is_known(&parts[i])) {
			int r = plan_collapse(&parts[i], &blocks[n_known], &list[n_known],
			                      &olds[n_known]);
			is_kept[n_known] = parts[i].answer.is_kept;
			glake__seal_note(seal, r);
			n_known += r == 0;
		}
	}
	if (n_known > 0) {
		glake__seal_note(seal, glake__hold_reback_all(list, n_known, &way));
	}
	for (size_t i = 0; i < n_known; i++) {
		if (list[i].result == 0) {
			seal->sum.shared_bytes += blocks[i].n_bytes;
			gone[n_gone] = blocks[i].chunk->id;
			n_gone += is_kept[i];
		}
		end_use(olds[i], &list[i]);
		/* With an error, the driver has mapped neither the block nor what was there: it is lost. */
		glake__grant_return(publisher->session, list[i].dead);
		glake__chunk_put(blocks[i].chunk);
	}
	confirm(publisher->session, gone, n_gone);
}

/* ---- all of it -------------------------------------------------------------------------------- */

/*
 * False: another thread works on some of it. Who holds something does not wait for it, but ends what it holds
 * first: that thread may wait for this one.
 */
static bool begin_batch(struct glake__seal *seal, struct glake__publisher *publisher,
                        struct glake__seal_part *parts, size_t n, bool holds_nothing)
{
	stop(seal, zero_tails(seal, parts, n));
	if (!hold_all(seal, parts, n, holds_nothing)) {
		return false;
	}
	/* Without glaked nothing needs to be held back. */
	stop(seal, glake__rpc_ping(publisher->session));
	flip_all(seal, parts, n);
	publish_all(seal, publisher, parts, n);
	return true;
}

static void end_batch(struct glake__seal *seal, struct glake__publisher *publisher,
                      struct glake__seal_part *parts, size_t n)
{
	take_all(seal, publisher, parts, n);
	collapse_all(seal, publisher, parts, n);
	for (size_t i = 0; i < n; i++) {
		fd_close(&parts[i].answer.fd);
		if (parts[i].hold.range) {
			let_part(&parts[i]);
		}
	}
}

static size_t batch_of(size_t n_parts, size_t begin)
{
	const size_t n = glake__gate_holds() ? BATCH : FREE_BATCH;
	return n_parts - begin < n ? n_parts - begin : n;
}

/*
 * Parts of one session. Those that were not flipped, or are refused, stay private, and so does all that
 * follows.
 */
static int seal_parts(struct glake__seal *seal, struct glake__seal_part *parts, size_t n)
{
	cleanup_free struct glake__publisher *publisher = calloc(1, sizeof(*publisher));
	cleanup_free struct glake__publication *list = calloc(n, sizeof(*list));
	if (!publisher || !list) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	publisher->session = parts[0].device->session;
	publisher->list = list;
	size_t n_begun = 0;
	size_t n_ended = 0;
	while (n_ended < n_begun || (n_begun < n && !seal->is_stopped)) {
		bool is_begun = n_begun < n && !seal->is_stopped;
		if (is_begun) {
			size_t n_batch = batch_of(n, n_begun);
			is_begun = begin_batch(seal, publisher, &parts[n_begun], n_batch,
			                       n_begun == n_ended);
			n_begun += is_begun ? n_batch : 0;
		}
		/* The first alone gives glaked nothing to work on meanwhile. */
		if (n_begun > n_ended + batch_of(n, n_ended) || n_begun == n || !is_begun) {
			size_t n_batch = batch_of(n_begun, n_ended);
			end_batch(seal, publisher, &parts[n_ended], n_batch);
			n_ended += n_batch;
		}
	}
	return 0;
}

int glake__seal_publish_one(struct glake__seal *seal)
{
	cleanup_free struct glake__publisher *publisher = calloc(1, sizeof(*publisher));
	struct glake__publication publication;
	struct glake__seal_part *part = seal->parts;
	if (!publisher) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	publisher->session = part->device->session;
	publisher->list = &publication;
	if (!hold_all(seal, part, 1, false)) {
		return glake__fail(-EBUSY, "another thread works on the memory at 0x%llx",
		                   (unsigned long long)part->ptr);
	}
	flip_all(seal, part, 1);
	publish_all(seal, publisher, part, 1);
	end_batch(seal, publisher, part, 1);
	if (seal->error) {
		glake__error_restore(ptr_steal(seal->text));
	}
	return seal->error;
}

static int by_session(const void *a, const void *b)
{
	const struct glake__seal_part *left = a;
	const struct glake__seal_part *right = b;
	uintptr_t sessions[] = {(uintptr_t)left->device->session,
	                        (uintptr_t)right->device->session};
	return sessions[0] != sessions[1]
	               ? (sessions[0] > sessions[1]) - (sessions[0] < sessions[1])
	               : (left->ptr > right->ptr) - (left->ptr < right->ptr);
}

/* A program may have memory of several sessions. */
int glake__seal_publish(struct glake__seal *seal)
{
	int r = 0;
	if (seal->n_parts == 0) {
		return 0;
	}
	qsort(seal->parts, seal->n_parts, sizeof(*seal->parts), by_session);
	for (size_t i = 0; r == 0 && i < seal->n_parts && !seal->is_stopped;) {
		struct glake__seal_part *first = &seal->parts[i];
		size_t n = 1;
		while (i + n < seal->n_parts &&
		       first[n].device->session == first->device->session) {
			n++;
		}
		r = seal_parts(seal, first, n);
		i += n;
	}
	return r;
}

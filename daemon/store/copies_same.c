/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk needs no copy if its bytes are zero, or if a copy of the same bytes exists. Another program may make other bytes of
 * the same digest, and what is damaged in host memory would spread: so a copy is shared only after the mover has compared all
 * bytes. The mover also looks at all bytes before it says that they are zero.
 *
 * One digest is trusted without a comparison: that of the copy which the chunk itself had when it slept last. Then the chunk
 * has not changed: nobody else has written either, and its program can harm only itself by another content of the same digest.
 * The copy was read back with the last wake.
 *
 * Most chunks have bytes of their own, and must not wait for this. So a chunk is copied at once, and its copy goes if it was
 * not needed. But where one was not needed, the next often is not: that is digested before, which takes no room.
 */
#include "daemon/store/copies_parts.h"

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* Ends the making if nobody waits for it. Returns whether it has ended. */
static bool end_if_unwanted(struct copy_making *making)
{
	bool is_unwanted = making->is_ordered && list_is_empty(&making->waiting);
	if (is_unwanted) {
		making_gone(making);
	}
	return is_unwanted;
}

void making_is_zero(struct copy_making *making)
{
	struct copy *copy = making->copy;
	if (copy->state == COPY_TAKING) {
		copies_set_state(copy, COPY_WRITING);
	}
	copies_empty(making->copies, copy);
	making->copies->expects_same = true;
	making_succeed(making);
}

/* ---- look ------------------------------------------------------------------------------------- */

static void on_looked(struct digest_job *job, const struct digest *digest)
{
	struct copy_making *making = container_of(job, struct copy_making, job);
	making->digest = *digest;
	if (end_if_unwanted(making)) {
		return;
	}
	if (job->is_zero) {
		making_is_zero(making);
	} else {
		making_meet(making);
	}
}

static void on_not_looked(struct mover_job *job, enum status status, const char *error)
{
	making_lose(container_of(job, struct copy_making, job.job), job, status, error);
}

static void on_looker_gone(struct mover_job *job)
{
	making_gone(container_of(job, struct copy_making, job.job));
}

void making_look(struct copy_making *making)
{
	struct copies *copies = making->copies;
	making_hand_over(making, MAKING_LOOKING);
	making->has_looked = true;
	making->job.job.on_failed = on_not_looked;
	making->job.job.on_gone = on_looker_gone;
	making->job.on_digested = on_looked;
	if (mover_digest(copies->mover, &making->job, making->device, making->fd, -1,
	                 making->copy->bytes, making->copy->content_bytes) < 0) {
		making_is_new(making);
	}
}

/* ---- compare ---------------------------------------------------------------------------------- */

static void on_compared(struct compare_job *job, bool equal)
{
	struct copy_making *making = container_of(job, struct copy_making, compare);
	struct copies *copies = making->copies;
	if (end_if_unwanted(making)) {
		return;
	}
	struct copy *same = ptr_steal(making->same);
	if (!equal) {
		copies_let(copies, same);
		making_is_new(making);
		return;
	}
	if (making->block && !same->is_of_block) {
		same->is_of_block = true;
		copies_note(copies, same);
	}
	if (!making->block) {
		copies->expects_same = true;
	}
	making_end(making, same);
}

/* A comparison that failed counts as different bytes, unless the mover may have the memory still. */
static void on_not_compared(struct mover_job *job, enum status status, const char *error)
{
	struct copy_making *making = container_of(job, struct copy_making, compare.job);
	if (job->id != 0) {
		making_lose(making, job, status, error);
		return;
	}
	log_debug("comparing with host memory: %s", error);
	if (!end_if_unwanted(making)) {
		copies_let(making->copies, ptr_steal(making->same));
		making_is_new(making);
	}
}

static void on_comparer_gone(struct mover_job *job)
{
	making_gone(container_of(job, struct copy_making, compare.job));
}

/* False: the comparison cannot begin now. */
static bool compare(struct copy_making *making, struct copy *same)
{
	struct copies *copies = making->copies;
	const struct mover_host host = copies_place(same, extent_source(same->extent));
	making->compare.job.is_aside = !making->is_ordered;
	making->compare.job.on_failed = on_not_compared;
	making->compare.job.on_gone = on_comparer_gone;
	making->compare.on_compared = on_compared;
	if (mover_compare(copies->mover, &making->compare, making->device, making->fd, same->bytes,
	                  &host) < 0) {
		return false;
	}
	copies_hold(copies, same);
	making->same = same;
	making_hand_over(making, MAKING_COMPARING);
	return true;
}

/* ---- meet ------------------------------------------------------------------------------------- */

static struct copy *find_other(const struct copy_making *making)
{
	return copies_find_any(making->copies, making->copy->realm, &making->digest);
}

/*
 * Whether the chunk has its past copy's bytes. False: its program has written to it, or it had no copy; or others have one with
 * that digest: all are to share that.
 */
static bool is_as_it_was(const struct copy_making *making)
{
	const struct copy *past = making->past;
	return past && past->is_found && past->bytes == making->copy->bytes &&
	       digest_equal(&past->key.digest, &making->digest);
}

void making_meet(struct copy_making *making)
{
	struct copies *copies = making->copies;
	bool is_as_before = is_as_it_was(making);
	if (making->past) {
		copies->expects_new = !is_as_before;
	}
	if (is_as_before) {
		making_end(making, ptr_steal(making->past));
		return;
	}
	struct copy *other = copies->is_closing ? NULL : find_other(making);
	if (other && other->state != COPY_THERE) {
		making_hand_over(making, MAKING_BEHIND);
	} else if (!other || other->bytes != making->copy->bytes || !compare(making, other)) {
		making_is_new(making);
	}
}

static struct copy_making *find_behind(const struct copies *copies)
{
	struct copy_making *making;
	list_for_each (making, &copies->writing, link) {
		const struct copy *other = making->state == MAKING_BEHIND ? find_other(making)
		                                                          : NULL;
		if (making->state == MAKING_BEHIND && (!other || other->state == COPY_THERE)) {
			return making;
		}
	}
	return NULL;
}

void makings_meet(struct copies *copies)
{
	struct copy_making *making;
	while ((making = find_behind(copies))) {
		making_meet(making);
	}
}

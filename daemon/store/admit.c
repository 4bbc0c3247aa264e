/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An admission must never share bytes that differ, nor release a chunk that the mover still has. A block is shared only when
 * the mover has found all bytes equal. Another content of the same digest becomes a block that nobody finds. A block that was
 * found damaged during the comparison is not used, and a guess counts only if it is the block that the digest finds.
 *
 * The chunk, its charge and the compared block stay with the admission until worker and mover are done with the chunk, also
 * when the caller has cancelled or the mover has died (decisions/018).
 */
#include "daemon/store/admit.h"

#include <assert.h>
#include <errno.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* The fds of a chunk that is digested or compared, and of the block that it may equal. */
#define PROBE_FDS 2

#define BIT(state) (1u << (state))

static void admit_set_state(struct admit *admit, enum admit_state state)
{
	static const unsigned legal[ADMIT_N_STATES] = {
		[ADMIT_NEW] = BIT(ADMIT_EXPORTING) | BIT(ADMIT_DIGESTING) | BIT(ADMIT_COMPARING) |
	                      BIT(ADMIT_ENDED),
		[ADMIT_EXPORTING] = BIT(ADMIT_DIGESTING) | BIT(ADMIT_COMPARING) |
	                            BIT(ADMIT_LEAVING) | BIT(ADMIT_ENDED),
		[ADMIT_DIGESTING] = BIT(ADMIT_COMPARING) | BIT(ADMIT_LEAVING) | BIT(ADMIT_ENDED),
		[ADMIT_COMPARING] = BIT(ADMIT_COMPARING) | BIT(ADMIT_LEAVING) | BIT(ADMIT_ENDED),
		[ADMIT_LEAVING] = BIT(ADMIT_ENDED),
	};
	assert(legal[admit->state] & BIT(state));
	admit->state = state;
}

/* ---- how it ends ------------------------------------------------------------------------------ */

/* Whether a program has the chunk mapped, and keeps it if it does not become a block. */
static bool is_programs(const struct admit *admit)
{
	return admit->chunk.use == CHUNK_PRIVATE;
}

/* Frees @admit, perhaps. */
static void go(struct admit *admit)
{
	if (!is_programs(admit)) {
		chunk_release(&admit->chunk);
	}
	if (admit->candidate) {
		store_end_compare(admit->context->store, admit->candidate);
	}
	user_refund_all(&admit->probe);
	user_unref(admit->maker);
	admit->ops->gone(admit);
}

static void end(struct admit *admit, const struct admit_result *result)
{
	admit_set_state(admit, ADMIT_ENDED);
	admit->ops->done(admit, result);
	go(admit);
}

static void fail(struct admit *admit, enum status status, const char *error)
{
	end(admit, &(struct admit_result){.status = status, .error = error});
}

/* Ends an admission that was left. Returns whether it was. */
static bool has_left(struct admit *admit)
{
	bool is_leaving = admit->state == ADMIT_LEAVING;
	if (is_leaving) {
		admit_set_state(admit, ADMIT_ENDED);
		go(admit);
	}
	return is_leaving;
}

/* The mover did not accept the order. */
static void fail_order(struct admit *admit, int error)
{
	fail(admit, error == -EBUSY ? STATUS_BUSY : STATUS_MOVER_FAILED,
	     error == -EBUSY ? "glake-mover has too much to do" : "cannot ask glake-mover");
}

static void on_job_failed(struct admit *admit, const struct mover_job *job, enum status status,
                          const char *error)
{
	bool is_held = job->id != 0;
	if (is_held && admit->state != ADMIT_LEAVING) {
		admit_set_state(admit, ADMIT_LEAVING);
		admit->ops->done(admit, &(struct admit_result){.status = status, .error = error});
	} else if (!is_held && !has_left(admit)) {
		fail(admit, status, error);
	}
}

/* The chunk itself becomes the block. */
static void seal(struct admit *admit, bool is_collision)
{
	struct block *block = store_seal(admit->context->store, admit->realm, admit->maker,
	                                 &admit->digest, admit->content_bytes, &admit->chunk,
	                                 is_collision);
	if (block) {
		end(admit, &(struct admit_result){.block = block});
	} else {
		fail(admit, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
	}
}

/* Another content has the digest. Any client can cause this, so its tenant's log limit counts. */
static void seal_collision(struct admit *admit)
{
	char text[DIGEST_TEXT_BYTES];
	digest_to_text(&admit->digest, text);
	log_limited(&admit->chunk.charge.tenant->log_limit, LOG_LEVEL_ERROR,
	            "two different contents have the digest %s; the second is not shared", text);
	seal(admit, true);
}

/* ---- comparing -------------------------------------------------------------------------------- */

static void meet(struct admit *admit);

/* All bytes are equal: share @block. */
static void share(struct admit *admit, struct block *block)
{
	struct store *store = admit->context->store;
	store->stats->blocks_collapsed++;
	if (admit->number) {
		guess_right(&store->guess, admit->number, block);
	}
	store_use_compared(store, block, &admit->chunk.charge);
	if (!is_programs(admit)) {
		chunk_release(&admit->chunk);
	}
	admit_set_state(admit, ADMIT_ENDED);
	admit->ops->done(admit, &(struct admit_result){.block = block, .was_known = true});
	chunk_release(&admit->chunk);
	go(admit);
}

static void on_compared(struct compare_job *job, bool equal)
{
	struct admit *admit = container_of(job, struct admit, compare_job);
	struct store *store = admit->context->store;
	if (has_left(admit)) {
		return;
	}
	struct block *candidate = admit->candidate;
	admit->candidate = NULL;
	if (candidate->state == BLOCK_DAMAGED) {
		store_end_compare(store, candidate);
		meet(admit);
		return;
	}
	if (!equal) {
		candidate->is_suspect = true;
		store_end_compare(store, candidate);
		seal_collision(admit);
		return;
	}
	share(admit, candidate);
}

static void on_compare_failed(struct mover_job *job, enum status status, const char *error)
{
	on_job_failed(container_of(job, struct admit, compare_job.job), job, status, error);
}

static void on_compare_gone(struct mover_job *job)
{
	has_left(container_of(job, struct admit, compare_job.job));
}

static void start_compare(struct admit *admit, struct block *candidate)
{
	const struct chunk *chunk = &admit->chunk;
	admit->compare_job = (struct compare_job){.job.on_failed = on_compare_failed,
	                                          .job.on_gone = on_compare_gone,
	                                          .on_compared = on_compared};
	const struct mover_host other = {.fd = candidate->chunk.fd};
	int r = mover_compare(admit->context->mover, &admit->compare_job,
	                      location_device(chunk->at), chunk->fd, chunk->bytes, &other);
	if (r < 0) {
		fail_order(admit, r);
		return;
	}
	admit->candidate = candidate;
	store_begin_compare(candidate);
	admit_set_state(admit, ADMIT_COMPARING);
}

static struct block *find_block(const struct admit *admit)
{
	return store_find_block(admit->context->store, admit->realm, admit->chunk.at,
	                        &admit->digest);
}

/* The digest is known: look for a block of the realm with the same digest. */
static void meet(struct admit *admit)
{
	struct block *candidate = find_block(admit);
	if (!candidate) {
		seal(admit, false);
	} else if (candidate->chunk.bytes != admit->chunk.bytes) {
		seal_collision(admit);
	} else {
		start_compare(admit, candidate);
	}
}

/* ---- digesting -------------------------------------------------------------------------------- */

static void on_digested(struct digest_job *job, const struct digest *digest)
{
	struct admit *admit = container_of(job, struct admit, digest_job);
	struct store *store = admit->context->store;
	struct block *guess = admit->candidate;
	if (has_left(admit)) {
		return;
	}
	admit->digest = *digest;
	admit->has_digest = true;
	admit->candidate = NULL;
	if (guess && job->is_equal && find_block(admit) == guess) {
		share(admit, guess);
		return;
	}
	if (guess) {
		guess_wrong(&store->guess);
		store_end_compare(store, guess);
	}
	meet(admit);
}

static void on_digest_failed(struct mover_job *job, enum status status, const char *error)
{
	on_job_failed(container_of(job, struct admit, digest_job.job), job, status, error);
}

static void on_digest_gone(struct mover_job *job)
{
	has_left(container_of(job, struct admit, digest_job.job));
}

static void start_digest(struct admit *admit)
{
	const struct chunk *chunk = &admit->chunk;
	struct store *store = admit->context->store;
	struct block *guess;
	admit->digest_job = (struct digest_job){.job.on_failed = on_digest_failed,
	                                        .job.on_gone = on_digest_gone,
	                                        .on_digested = on_digested};
	admit->number = guess_block(&store->guess, &store->block_list, admit->realm, chunk, &guess);
	int r = mover_digest(admit->context->mover, &admit->digest_job, location_device(chunk->at),
	                     chunk->fd, guess ? guess->chunk.fd : -1, chunk->bytes,
	                     admit->content_bytes);
	if (r < 0) {
		fail_order(admit, r);
		return;
	}
	if (guess) {
		admit->candidate = guess;
		store_begin_compare(guess);
	}
	admit_set_state(admit, ADMIT_DIGESTING);
}

/* The chunk has an fd. */
static void look_at(struct admit *admit)
{
	if (admit->has_digest) {
		meet(admit);
	} else {
		start_digest(admit);
	}
}

/* ---- exporting -------------------------------------------------------------------------------- */

static void on_exported(struct chunk_export *export, enum status status)
{
	struct admit *admit = container_of(export, struct admit, export);
	if (has_left(admit)) {
		return;
	}
	if (status == STATUS_OK) {
		look_at(admit);
	} else {
		fail(admit, STATUS_INTERNAL, "the driver cannot export the chunk");
	}
}

static void start_export(struct admit *admit)
{
	if (chunk_export_start(&admit->export, &admit->context->allocator->pressure, &admit->chunk,
	                       on_exported) != STATUS_OK) {
		fail(admit, STATUS_NO_FDS, "no fds left for the block");
		return;
	}
	admit_set_state(admit, ADMIT_EXPORTING);
}

/* ---- from above ------------------------------------------------------------------------------- */

void admit_start(struct admit *admit, const struct admit_context *context, struct realm *realm,
                 struct user *maker, struct chunk *chunk, uint64_t content_bytes,
                 const struct digest *digest, const struct admit_ops *ops)
{
	assert(chunk->charge.tenant);
	*admit = (struct admit){.context = context,
	                        .realm = realm,
	                        .maker = user_ref(maker),
	                        .content_bytes = content_bytes,
	                        .has_digest = digest != NULL,
	                        .ops = ops};
	if (digest) {
		admit->digest = *digest;
	}
	chunk_move(&admit->chunk, chunk);
	if (is_programs(admit) &&
	    !user_charge(&admit->probe, &context->mover->probes, maker, PROBE_FDS)) {
		fail(admit, STATUS_BUSY, "this user has too much under way in glake-mover");
		return;
	}
	if (admit->chunk.fd < 0) {
		start_export(admit);
	} else {
		look_at(admit);
	}
}

void admit_cancel(struct admit *admit)
{
	enum admit_state state = admit->state;
	if (is_programs(admit)) {
		chunk_set_use(&admit->chunk, CHUNK_LOADING);
	}
	if (state == ADMIT_LEAVING) {
		return;
	}
	admit_set_state(admit, ADMIT_LEAVING);
	if (state == ADMIT_DIGESTING) {
		mover_cancel(admit->context->mover, &admit->digest_job.job);
	} else if (state == ADMIT_COMPARING) {
		mover_cancel(admit->context->mover, &admit->compare_job.job);
	}
}

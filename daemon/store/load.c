/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/load.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/store/load_room.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

/* Chunks asked of the allocator at a time: few enough that the mover can begin soon. */
#define BATCH_BLOCKS 16

enum place_state {
	PLACE_PLANNED,
	PLACE_GRANTED,
	PLACE_LOADED, /* and nothing decided; the mover has dropped the chunk */
	PLACE_COMPARING,
	PLACE_DONE,
};

/* One block of the plan on its way into the store. */
struct place {
	struct compare_job compare; /* while COMPARING */
	struct load *load;
	enum place_state state;
	struct chunk chunk;      /* GRANTED, LOADED, COMPARING */
	struct block *candidate; /* COMPARING: used by us; else NULL */
	struct digest digest;
};

struct load {
	const struct load_context *context;
	struct model *model; /* NULL: it is over, and waits for the mover to have done with it */
	struct load_job job;
	bool is_planned;
	bool is_done; /* the mover has nothing more to say */
	bool is_granting;
	struct list waiters;
	struct place *places; /* owned, one per block */
	size_t n_granted;     /* blocks granted so far: a prefix of the plan */
	size_t n_done;
	size_t n_comparing;
	uint64_t window_used_bytes; /* granted and not yet loaded */
	uint64_t done_bytes;
	uint64_t deduplicated_bytes;
	uint64_t read_bytes;
	uint64_t direct_bytes;
	uint64_t started_ns;
	uint64_t ended_ns;
	struct alloc *alloc; /* under way, or NULL */
};

static struct load *load_of(struct load_job *job)
{
	return container_of(job, struct load, job);
}

/* There is one while it goes on: it is cancelled with the last waiter. */
struct tenant *load_payer(const struct load *load)
{
	return list_first(&load->waiters, struct load_waiter, link)->tenant;
}

static int32_t priority_of(const struct load *load)
{
	return list_is_empty(&load->waiters) ? 0 : load_payer(load)->priority;
}

static void load_free(struct load *load)
{
	free(load->places);
	free(load);
}

/* ---- the end of a load without a model ------------------------------------------------------- */

/* The mover has nothing of it any more. */
static void drop_place(struct load *load, struct place *place)
{
	if (place->candidate) {
		store_unuse_block(load->context->store, place->candidate, 0);
		place->candidate = NULL;
	}
	chunk_release(&place->chunk);
	place->state = PLACE_DONE;
}

/* Of a load that is over. */
static void free_if_gone(struct load *load)
{
	if (!load->job.job.id && load->n_comparing == 0) {
		load_free(load);
	}
}

/* Drop what the mover does not have, of a load that is over. The load may be gone afterwards. */
static void drop_places(struct load *load)
{
	for (size_t i = 0; i < load->n_granted; i++) {
		struct place *place = &load->places[i];
		bool is_in_mover = place->state == PLACE_GRANTED ? load->job.job.id != 0
		                                                 : place->compare.job.id != 0;
		if (!is_in_mover) {
			drop_place(load, place);
		}
	}
	free_if_gone(load);
}

/* At the cost of whoever waits for it: a client may try for ever. */
static void log_failure(const struct load *load, const char *error)
{
	const struct model *model = load->model;
	if (list_is_empty(&load->waiters)) {
		log_debug("loading '%s' for realm %s: %s", model->name, model->realm->name, error);
		return;
	}
	log_limited(&load_payer(load)->log_limit, LOG_LEVEL_WARNING,
	            "loading '%s' for realm %s failed: %s", model->name, model->realm->name, error);
}

static void log_success(const struct load *load)
{
	struct model *model = load->model;
	double seconds = (double)(load->ended_ns - load->started_ns) / 1e9;
	model->is_in_log = log_limited(
		&load_payer(load)->loads_limit, LOG_LEVEL_INFO,
		"loaded '%s' for realm %s on device %u: %" PRIu64 " bytes in %.3f s (%.1f GB/s), "
		"%" PRIu64 " already in the store%s%s",
		model->name, model->realm->name, model->device->index, model->content_bytes,
		seconds, seconds > 0 ? (double)model->content_bytes / seconds / 1e9 : 0.0,
		load->deduplicated_bytes,
		model->reload_reason ? "; each open loads it again: " : "",
		model->reload_reason ? model->reload_reason : "");
}

/* No model comes of it. The load may be gone afterwards. */
static void fail(struct load *load, enum status status, const char *error)
{
	struct model *model = load->model;
	struct list waiters;
	list_init(&waiters);

	log_failure(load, error);
	load->context->stats->models_failed++;
	if (load->alloc) {
		alloc_cancel(load->alloc);
		load->alloc = NULL;
	}
	mover_cancel(load->context->mover, &load->job.job);
	load->model = NULL;
	model->load = NULL;
	store_drop_model(load->context->store, model);
	/* From here on the waiters only see their own link: one's answer may make another leave. */
	while (!list_is_empty(&load->waiters)) {
		struct load_waiter *waiter = list_first(&load->waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->load = NULL;
		list_insert(&waiters, &waiter->link);
	}
	drop_places(load);
	while (!list_is_empty(&waiters)) {
		struct load_waiter *waiter = list_first(&waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->done(waiter, status, error);
	}
}

static void succeed(struct load *load)
{
	struct model *model = load->model;
	struct stats *stats = load->context->stats;
	int32_t priority = priority_of(load);

	load->ended_ns = uv_hrtime();
	stats->models_loaded++;
	stats->bytes_loaded += load->read_bytes;
	stats->bytes_direct += load->direct_bytes;
	stats->bytes_deduplicated += load->deduplicated_bytes;
	log_success(load);
	model->state = MODEL_READY;
	if (model->reload_reason) {
		store_drop_left_over(load->context->store, model);
	}
	while (!list_is_empty(&load->waiters)) {
		struct load_waiter *waiter = list_first(&load->waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->done(waiter, STATUS_OK, NULL);
	}
	model->load = NULL;
	store_unhold_model(load->context->store, model, priority);
	load_free(load);
}

static void tell_progress(struct load *load)
{
	struct load_waiter *waiter;
	list_for_each (waiter, &load->waiters, link) {
		if (waiter->progress) {
			waiter->progress(waiter, load->done_bytes, load->model->span_bytes);
		}
	}
}

static bool check_end(struct load *load)
{
	if (load->is_done && load->n_done == load->model->n_blocks) {
		succeed(load);
		return true;
	}
	return false;
}

/* ---- granting -------------------------------------------------------------------------------- */

static void grant_more(struct load *load);

static void on_chunks(void *user, int result, struct chunk *chunks, size_t n_chunks)
{
	static const struct {
		enum status status;
		const char *error;
	} failures[] = {
		[ALLOC_E_QUOTA] = {STATUS_OVER_QUOTA, "the model does not fit the tenant's quota"},
		[ALLOC_E_FDS] = {STATUS_NO_FDS, "no fds left for its blocks"},
		[ALLOC_E_FULL] = {STATUS_NO_DEVICE_MEMORY,
	                          "the model does not fit the device's free memory"},
		[ALLOC_E_DRIVER] = {STATUS_INTERNAL, "the driver cannot make its chunks"},
	};
	struct load *load = user;
	int fds[BATCH_BLOCKS];

	load->alloc = NULL;
	if (result != 0) {
		fail(load, failures[result].status, failures[result].error);
		return;
	}
	for (size_t i = 0; i < n_chunks; i++) {
		struct place *place = &load->places[load->n_granted + i];
		place->load = load;
		place->state = PLACE_GRANTED;
		fds[i] = chunks[i].fd;
		chunk_move(&place->chunk, &chunks[i]);
	}
	uint64_t first = load->n_granted;
	load->n_granted += n_chunks;
	mover_grant(load->context->mover, &load->job, first, fds, n_chunks);
	if (!load->is_granting) {
		grant_more(load);
	}
}

/*
 * Keep the window full. The load may be gone afterwards. on_chunks() comes before alloc_start()
 * returns when the pool has it all, and only then; is_granting keeps that from recursing.
 */
static void grant_more(struct load *load)
{
	struct model *model = load->model;
	uint64_t sizes[BATCH_BLOCKS];
	while (!load->alloc) {
		size_t n = 0;
		uint64_t window = load->window_used_bytes;
		while (n < BATCH_BLOCKS && load->n_granted + n < model->n_blocks) {
			uint64_t bytes = model_chunk_bytes(model, load->n_granted + n);
			if (window > 0 && window + bytes > load->context->window_bytes) {
				break;
			}
			window += bytes;
			sizes[n++] = bytes;
		}
		n = mover_reserve(load->context->mover, &load->job, n);
		if (n == 0) {
			return;
		}
		for (size_t i = 0; i < n; i++) {
			load->window_used_bytes += sizes[i];
		}
		const struct alloc_wanted wanted = {
			.device = model->device,
			.tenant = load_payer(load),
			.uid = load->job.uid,
			.use = CHUNK_LOADING,
			.sizes = sizes,
			.n_chunks = n,
		};
		load->is_granting = true;
		int r = alloc_start(load->context->allocator, &wanted, on_chunks, load,
		                    &load->alloc);
		load->is_granting = false;
		if (r != 0) {
			on_chunks(load, r > 0 ? r : ALLOC_E_DRIVER, NULL, 0);
			return;
		}
	}
}

/* ---- news from the mover --------------------------------------------------------------------- */

/* Have what the plan has added to the manifest paid for. The load fails if it cannot be. */
static int charge_manifest(struct load *load)
{
	struct model *model = load->model;
	const struct tenant *payer = model->charge.tenant;
	uint64_t more_bytes = model->manifest_bytes - model->charge.manifest_bytes;
	if (charge_grow_manifest(&model->charge, more_bytes) != 0) {
		char error[256];
		snprintf(error, sizeof(error),
		         "no host memory for so many tensors: tenant %s may have %" PRIu64
		         " bytes for all of its models' manifests",
		         payer->name, payer->quota_manifest_bytes);
		load->context->stats->quota_refusals++;
		fail(load, STATUS_OVER_QUOTA, error);
	}
	return 0;
}

static int on_plan_tensor(struct load_job *job, const char *name, uint32_t dtype,
                          const uint64_t *shape, size_t n_dims, uint64_t offset, uint64_t bytes)
{
	struct load *load = load_of(job);
	if (load->is_planned) {
		return -EPROTO;
	}
	if (!load->model) {
		return 0;
	}
	int r = model_add_tensor(load->model, name, dtype, shape, n_dims, offset, bytes);
	return r < 0 ? r : charge_manifest(load);
}

static int on_plan_block(struct load_job *job, uint64_t content_bytes)
{
	struct load *load = load_of(job);
	if (load->is_planned) {
		return -EPROTO;
	}
	if (!load->model) {
		return 0;
	}
	int r = model_add_block(load->model, content_bytes);
	return r < 0 ? r : charge_manifest(load);
}

/* Why the model's files are not to find it: see settle.h of the mover. NULL: they are. */
static const char *find_reload_reason(const struct load *load, const char *of_mover)
{
	const struct model *model = load->model;
	if (load->context->trust_file_times) {
		return NULL;
	}
	for (size_t i = 0; i < model->n_files; i++) {
		if (!file_id_is_unique(&model->files[i])) {
			return "unique mount ids need Linux 6.8";
		}
	}
	return of_mover[0] ? of_mover : NULL;
}

static int on_plan_end(struct load_job *job, const char *reload_reason)
{
	struct load *load = load_of(job);
	struct model *model = load->model;
	if (load->is_planned || (model && model_check_plan(model) < 0)) {
		return -EPROTO;
	}
	load->is_planned = true;
	if (model) {
		/* Nothing was, if there is no tensor. */
		charge_manifest(load);
	}
	if (!load->model) {
		return 0;
	}
	char error[256];
	enum status status = load_check_room(load->context->store, load->context->allocator, model,
	                                     load_payer(load), error, sizeof(error));
	if (status != STATUS_OK) {
		if (status == STATUS_NO_DEVICE_MEMORY) {
			load->context->stats->memory_refusals++;
		} else {
			load->context->stats->quota_refusals++;
		}
		fail(load, status, error);
		return 0;
	}
	const char *reason = find_reload_reason(load, reload_reason);
	if (reason && store_hide_model(load->context->store, model, reason) < 0) {
		fail(load, STATUS_NO_HOST_MEMORY, "glaked has no memory for the plan");
		return 0;
	}
	load->places = calloc(model->n_blocks ? model->n_blocks : 1, sizeof(load->places[0]));
	if (!load->places) {
		fail(load, STATUS_NO_HOST_MEMORY, "glaked has no memory for the plan");
		return 0;
	}
	grant_more(load);
	return 0;
}

static void place_block(struct load *load, struct place *place, struct block *block)
{
	size_t i = (size_t)(place - load->places);
	store_place_block(load->context->store, load->model, i, block);
	place->state = PLACE_DONE;
	load->n_done++;
	load->done_bytes += block->chunk.bytes;
	tell_progress(load);
}

/* Returns whether the load goes on. */
static bool seal(struct load *load, struct place *place, bool is_twin)
{
	size_t i = (size_t)(place - load->places);
	struct block *block = store_seal(load->context->store, load->model->realm, &place->digest,
	                                 load->model->blocks[i].content_bytes, &place->chunk,
	                                 is_twin);
	if (!block) {
		fail(load, STATUS_NO_HOST_MEMORY, "glaked has no memory for a block");
		return false;
	}
	place_block(load, place, block);
	return true;
}

static void on_compared(struct compare_job *job, bool equal)
{
	struct place *place = container_of(job, struct place, compare);
	struct load *load = place->load;
	load->n_comparing--;
	if (!load->model) {
		drop_place(load, place);
		free_if_gone(load);
		return;
	}
	struct block *candidate = place->candidate;
	place->candidate = NULL;
	if (equal) {
		load->context->stats->blocks_collapsed++;
		load->deduplicated_bytes += place->chunk.bytes;
		chunk_release(&place->chunk);
		place_block(load, place, candidate);
	} else {
		char text[DIGEST_TEXT_BYTES];
		digest_to_text(&place->digest, text);
		log_error("two different contents have the digest %s; the second is not shared",
		          text);
		store_unuse_block(load->context->store, candidate, 0);
		if (!seal(load, place, true)) {
			return;
		}
	}
	if (!check_end(load)) {
		grant_more(load);
	}
}

static void on_compare_failed(struct mover_job *job, enum status status, const char *error)
{
	struct place *place = container_of(job, struct place, compare.job);
	struct load *load = place->load;
	if (!job->id) {
		load->n_comparing--;
		drop_place(load, place);
	}
	if (load->model) {
		fail(load, status, error);
	} else {
		free_if_gone(load);
	}
}

/* The load is over. */
static void on_compare_gone(struct mover_job *job)
{
	struct place *place = container_of(job, struct place, compare.job);
	struct load *load = place->load;
	load->n_comparing--;
	drop_place(load, place);
	free_if_gone(load);
}

/* An equal digest: have the bytes compared before the two become one. */
static bool start_compare(struct load *load, struct place *place, struct block *candidate)
{
	struct tenant *payer = load_payer(load);
	if (store_use_block(candidate, payer) != 0) {
		load->context->stats->quota_refusals++;
		fail(load, STATUS_OVER_QUOTA, "the model does not fit the tenant's quota");
		return false;
	}
	place->candidate = candidate;
	place->state = PLACE_COMPARING;
	place->compare = (struct compare_job){.job.on_failed = on_compare_failed,
	                                      .job.on_gone = on_compare_gone,
	                                      .on_compared = on_compared};
	int r = mover_compare(load->context->mover, &place->compare, load->model->device,
	                      place->chunk.fd, candidate->chunk.fd, place->chunk.bytes);
	if (r < 0) {
		fail(load, r == -EBUSY ? STATUS_BUSY : STATUS_MOVER_FAILED,
		     "cannot ask glake-mover to compare");
		return false;
	}
	load->n_comparing++;
	return true;
}

static int on_block_loaded(struct load_job *job, uint64_t i, const struct digest *digest)
{
	struct load *load = load_of(job);
	if (i >= load->n_granted || load->places[i].state != PLACE_GRANTED) {
		return -EPROTO;
	}
	struct place *place = &load->places[i];
	if (!load->model) {
		drop_place(load, place);
		return 0;
	}
	place->state = PLACE_LOADED;
	place->digest = *digest;
	load->window_used_bytes -= place->chunk.bytes;
	struct block *candidate = store_find_block(load->context->store, load->model->realm,
	                                           load->model->device, digest);
	bool goes_on = candidate && candidate->chunk.bytes == place->chunk.bytes
	                       ? start_compare(load, place, candidate)
	                       : seal(load, place, candidate != NULL);
	if (goes_on) {
		grant_more(load);
	}
	return 0;
}

static void on_done(struct load_job *job, uint64_t read_bytes, uint64_t direct_bytes)
{
	struct load *load = load_of(job);
	if (!load->model) {
		drop_places(load);
		return;
	}
	load->read_bytes = read_bytes;
	load->direct_bytes = direct_bytes;
	load->is_done = true;
	if (!load->is_planned || load->n_granted < load->model->n_blocks) {
		fail(load, STATUS_INTERNAL, "glake-mover ended the load too early");
		return;
	}
	for (size_t i = 0; i < load->model->n_blocks; i++) {
		if (load->places[i].state == PLACE_GRANTED) {
			fail(load, STATUS_INTERNAL, "glake-mover left blocks out");
			return;
		}
	}
	check_end(load);
}

static void on_failed(struct mover_job *job, enum status status, const char *error)
{
	struct load *load = container_of(job, struct load, job.job);
	if (load->model) {
		fail(load, status, error);
	} else {
		drop_places(load);
	}
}

static void on_gone(struct mover_job *job)
{
	drop_places(container_of(job, struct load, job.job));
}

static const struct load_job_ops load_ops = {
	.on_plan_tensor = on_plan_tensor,
	.on_plan_block = on_plan_block,
	.on_plan_end = on_plan_end,
	.on_block_loaded = on_block_loaded,
	.on_done = on_done,
};

/* ---- from above ------------------------------------------------------------------------------ */

int load_start(const struct load_context *context, struct model *model, const char *const *names,
               const char *index, const int *fds, size_t n_fds, bool may_direct,
               struct load_waiter *waiter)
{
	struct load *load = calloc(1, sizeof(*load));
	int r = -ENOMEM;
	if (load) {
		load->context = context;
		load->model = model;
		load->job.ops = &load_ops;
		load->job.job.on_failed = on_failed;
		load->job.job.on_gone = on_gone;
		load->job.uid = waiter->uid;
		load->started_ns = uv_hrtime();
		list_init(&load->waiters);
		r = mover_load(context->mover, &load->job, model->device, names, index, fds, n_fds,
		               may_direct);
	}
	if (r < 0) {
		free(load);
		store_drop_model(context->store, model);
		return r;
	}
	model->load = load;
	load_join(load, waiter);
	return 0;
}

void load_join(struct load *load, struct load_waiter *waiter)
{
	waiter->load = load;
	list_insert(&load->waiters, &waiter->link);
}

void load_leave(struct load_waiter *waiter)
{
	struct load *load = waiter->load;
	list_remove(&waiter->link);
	if (!load) {
		return;
	}
	waiter->load = NULL;
	if (load->model->state == MODEL_LOADING && list_is_empty(&load->waiters)) {
		fail(load, STATUS_BUSY, "everybody who waited for it has gone");
	}
}

struct load_result load_result(const struct load *load)
{
	return (struct load_result){.deduplicated_bytes = load->deduplicated_bytes,
	                            .ns = load->ended_ns - load->started_ns};
}

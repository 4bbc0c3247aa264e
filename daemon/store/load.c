/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/load.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/store/copies.h"
#include "daemon/store/load_room.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* Chunks asked of the allocator at a time: few enough that the mover can begin soon. */
#define BATCH_BLOCKS 16
/* Copies from host memory that the mover has at a time: its queue (PROBER_MAX_QUEUED) has room for those of all loads. */
#define MAX_COPYING 12
/* Tensors noted at a time. */
#define BATCH_TENSORS 256

enum transfer_state {
	TRANSFER_PLANNED,
	TRANSFER_GRANTED,
	TRANSFER_ADMITTING,
	TRANSFER_DONE,
};

/* One block of the plan on its way into the store. */
struct transfer {
	struct load *load;
	enum transfer_state state;
	struct chunk chunk;     /* while GRANTED */
	struct admit admit;     /* while ADMITTING */
	struct digest_job copy; /* while GRANTED, if it comes from host memory */
};

enum load_state {
	LOAD_PLANNING,
	LOAD_FILLING,
	LOAD_SETTLING,
	LOAD_READY,
	LOAD_FAILED,
	LOAD_N_STATES,
};

struct load {
	const struct load_context *context;
	enum load_state state;
	struct model *model; /* NULL when FAILED */
	struct load_job job; /* known to the mover, unless: */
	bool is_from_host;
	bool is_granting; /* in grant_more(), which on_chunks() need not call then */
	struct list waiters;
	struct transfer *transfers; /* owned, one per block */
	size_t n_granted;           /* blocks granted so far: a prefix of the plan */
	size_t n_done;
	size_t n_admitting;
	size_t n_copying; /* copies from host memory that the mover has */
	size_t n_copied;
	bool is_damaged;            /* one of them was */
	size_t n_stays;             /* functions under way that use it */
	uint64_t window_used_bytes; /* granted and not yet loaded */
	uint64_t done_bytes;
	uint64_t deduplicated_bytes;
	uint64_t read_bytes;
	uint64_t direct_bytes;
	uint64_t started_ns;
	uint64_t ended_ns;
	struct parking_wait parking; /* SETTLING: until all blocks are parked */
	struct alloc *alloc;         /* under way, or NULL */
	uint64_t waited_ms;          /* by all allocs */
	struct refusal refusal;      /* the bound that ended it; none: none did */
};

#define BIT(state) (1u << (state))

static void load_set_state(struct load *load, enum load_state state)
{
	static const unsigned legal[LOAD_N_STATES] = {
		[LOAD_PLANNING] = BIT(LOAD_FILLING) | BIT(LOAD_FAILED),
		[LOAD_FILLING] = BIT(LOAD_SETTLING) | BIT(LOAD_FAILED),
		[LOAD_SETTLING] = BIT(LOAD_READY) | BIT(LOAD_FAILED),
	};
	assert(legal[load->state] & BIT(state));
	load->state = state;
}

static struct load *load_of(struct load_job *job)
{
	return container_of(job, struct load, job);
}

/*
 * The tenant that pays: the first waiter's. There is one while it goes on: it is cancelled with the last
 * waiter.
 */
static struct tenant *load_payer(const struct load *load)
{
	return list_first(&load->waiters, struct load_waiter, link)->tenant;
}

static int32_t priority_of(const struct load *load)
{
	return list_is_empty(&load->waiters) ? 0 : load_payer(load)->priority;
}

static void load_free(struct load *load)
{
	free(load->transfers);
	free(load);
}

/* ---- the end of a load without a model ------------------------------------------------------- */

/* The mover has nothing of it any more. */
static void drop_transfer(struct transfer *transfer)
{
	chunk_release(&transfer->chunk);
	transfer->state = TRANSFER_DONE;
}

/* Free a load that has failed, once nobody has it. */
static void free_if_gone(struct load *load)
{
	if (!load->job.job.id && load->n_admitting == 0 && load->n_copying == 0 &&
	    load->n_stays == 0) {
		load_free(load);
	}
}

/* The load is not freed before let(), should it fail meanwhile. */
static void keep(struct load *load)
{
	load->n_stays++;
}

/* The load may be gone afterwards. */
static void let(struct load *load)
{
	load->n_stays--;
	if (load->state == LOAD_FAILED) {
		free_if_gone(load);
	}
}

/*
 * The mover has nothing of a load that has failed, but for what is compared. The load may be gone
 * afterwards.
 */
static void drop_transfers(struct load *load)
{
	for (size_t i = 0; i < load->n_granted; i++) {
		struct transfer *transfer = &load->transfers[i];
		if (transfer->state == TRANSFER_GRANTED && !transfer->copy.job.id) {
			drop_transfer(transfer);
		}
	}
	free_if_gone(load);
}

static void cancel_transfers(struct load *load)
{
	for (size_t i = 0; i < load->n_granted; i++) {
		struct transfer *transfer = &load->transfers[i];
		if (transfer->state == TRANSFER_ADMITTING) {
			admit_cancel(&transfer->admit);
		} else if (transfer->state == TRANSFER_GRANTED) {
			mover_cancel(load->context->admit->mover, &transfer->copy.job);
		}
	}
}

/* Log the failure at the cost of whoever waits for the load: a client may try for ever. */
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
		"loaded '%s' for realm %s on device %u%s: %" PRIu64
		" bytes in %.3f s (%.1f GB/s), %" PRIu64 " already in the store%s%s",
		model->name, model->realm->name, model->device->index,
		load->is_from_host ? " from host memory" : "", model->content_bytes, seconds,
		seconds > 0 ? (double)model->content_bytes / seconds / 1e9 : 0.0,
		load->deduplicated_bytes,
		model->reload_reason ? "; each open loads it again: " : "",
		model->reload_reason ? model->reload_reason : "");
}

/* No model comes of it. The load may be gone afterwards. */
static void fail(struct load *load, enum status status, const char *error)
{
	const struct refusal refusal = load->refusal;
	struct model *model = load->model;
	struct list waiters;
	list_init(&waiters);

	log_failure(load, error);
	load->context->stats->models_failed++;
	if (load->alloc) {
		alloc_cancel(load->alloc);
		load->alloc = NULL;
	}
	list_remove(&load->parking.link);
	load_set_state(load, LOAD_FAILED);
	cancel_transfers(load);
	mover_cancel(load->context->admit->mover, &load->job.job);
	load->model = NULL;
	model->load = NULL;
	if (load->is_from_host) {
		user_refund_all(&load->job.place);
	}
	/* ASIDE: a block that it shares was found damaged, and its files do not find it any more. */
	if (load->is_from_host && !load->is_damaged && model->state == MODEL_LOADING) {
		store_cancel_promotion(load->context->admit->store, model);
	} else {
		store_drop_model(load->context->admit->store, model);
	}
	/* From here on the waiters only see their own link: one's answer may make another leave. */
	while (!list_is_empty(&load->waiters)) {
		struct load_waiter *waiter = list_first(&load->waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->load = NULL;
		list_insert(&waiters, &waiter->link);
	}
	if (load->job.job.id == 0) {
		drop_transfers(load);
	}
	while (!list_is_empty(&waiters)) {
		struct load_waiter *waiter = list_first(&waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->refusal = refusal;
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
	histogram_add(&stats->load_time, load_result(load).ns);
	stats->bytes_loaded += load->read_bytes;
	stats->bytes_direct += load->direct_bytes;
	stats->bytes_deduplicated += load->deduplicated_bytes;
	log_success(load);
	load_set_state(load, LOAD_READY);
	if (load->is_from_host) {
		user_refund_all(&load->job.place);
		store_end_promotion(load->context->admit->store, model);
	}
	store_ready(load->context->admit->store, model);
	if (model->state == MODEL_HIDDEN) {
		store_drop_left_over(load->context->admit->store, model);
	}
	while (!list_is_empty(&load->waiters)) {
		struct load_waiter *waiter = list_first(&load->waiters, struct load_waiter, link);
		list_remove(&waiter->link);
		waiter->done(waiter, STATUS_OK, NULL);
	}
	model->load = NULL;
	store_unhold_model(load->context->admit->store, model, priority);
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

static void check_end(struct load *load);

static void on_parked(struct parking_wait *wait)
{
	check_end(container_of(wait, struct load, parking));
}

/* The load may be gone afterwards. */
static void check_end(struct load *load)
{
	if (load->state != LOAD_SETTLING || load->n_done < load->model->n_blocks ||
	    !list_is_empty(&load->parking.link)) {
		return;
	}
	uint64_t unparked = store_unparked(load->model);
	if (unparked) {
		parking_await(load->context->admit->store->parking, &load->parking, unparked,
		              on_parked);
		return;
	}
	if (store_has_damaged(load->model)) {
		fail(load, STATUS_BUSY,
		     "a block that the model shares was found damaged: open it again");
		return;
	}
	succeed(load);
}

/* ---- from host memory ------------------------------------------------------------------------ */

static void grant_more(struct load *load);
static void on_filled(struct load *load, struct transfer *transfer, const struct digest *digest);

static void fail_damaged(struct load *load, struct copy *copy)
{
	log_error("a copy of '%s' in host memory is damaged", load->model->name);
	copies_drop(load->context->copies, copy);
	load->is_damaged = true;
	fail(load, STATUS_BUSY, "the model's copy in host memory was damaged: open it again");
}

/* The load may be gone afterwards. */
static void take_copied(struct load *load, struct transfer *transfer, const struct digest *digest)
{
	struct copy *copy = load->model->blocks[transfer - load->transfers].copy;
	if (!digest_equal(digest, &copy->key.digest)) {
		fail_damaged(load, copy);
		return;
	}
	load->n_copied++;
	keep(load);
	on_filled(load, transfer, digest);
	if (load->state == LOAD_FILLING && load->n_copied == load->model->n_blocks) {
		load_set_state(load, LOAD_SETTLING);
	}
	bool is_settling = load->state == LOAD_SETTLING;
	let(load);
	if (is_settling) {
		check_end(load);
	}
}

static void on_copied(struct digest_job *job, const struct digest *digest)
{
	struct transfer *transfer = container_of(job, struct transfer, copy);
	struct load *load = transfer->load;
	load->n_copying--;
	if (load->state == LOAD_FAILED) {
		drop_transfer(transfer);
		free_if_gone(load);
	} else {
		take_copied(load, transfer, digest);
	}
}

static void on_not_copied(struct mover_job *job, enum status status, const char *error)
{
	struct transfer *transfer = container_of(job, struct transfer, copy.job);
	struct load *load = transfer->load;
	load->n_copying -= job->id == 0;
	keep(load);
	if (load->state != LOAD_FAILED) {
		fail(load, status, error);
	} else if (job->id == 0) {
		drop_transfer(transfer);
	}
	let(load);
}

static void on_copy_gone(struct mover_job *job)
{
	struct transfer *transfer = container_of(job, struct transfer, copy.job);
	struct load *load = transfer->load;
	load->n_copying--;
	drop_transfer(transfer);
	free_if_gone(load);
}

/* The load may be gone afterwards. */
static void copy_transfers(struct load *load, size_t first, size_t n)
{
	for (size_t i = first; i < first + n && load->state == LOAD_FILLING; i++) {
		struct transfer *transfer = &load->transfers[i];
		transfer->copy.job.on_failed = on_not_copied;
		transfer->copy.job.on_gone = on_copy_gone;
		transfer->copy.on_digested = on_copied;
		int r = copies_read(load->context->copies, load->model->blocks[i].copy,
		                    &transfer->copy, load->model->device, transfer->chunk.fd);
		load->n_copying += r == 0;
		if (r < 0) {
			fail(load, r == -EBUSY ? STATUS_BUSY : STATUS_MOVER_FAILED,
			     "glake-mover cannot copy the model from host memory now");
			return;
		}
	}
}

/* ---- granting -------------------------------------------------------------------------------- */

static void on_chunks(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct load *load = user;
	int fds[BATCH_BLOCKS];

	load->alloc = NULL;
	if (status != STATUS_OK) {
		char why[REFUSAL_TEXT_BYTES];
		char error[320];
		alloc_explain(status, &load->refusal, why);
		snprintf(error, sizeof(error), "the model does not fit the %s: %s",
		         status == STATUS_OVER_QUOTA ? "tenant's quota" : "device's memory", why);
		fail(load, status,
		     status == STATUS_OVER_QUOTA || status == STATUS_NO_DEVICE_MEMORY ? error
		                                                                      : why);
		return;
	}
	for (size_t i = 0; i < n_chunks; i++) {
		struct transfer *transfer = &load->transfers[load->n_granted + i];
		transfer->load = load;
		transfer->state = TRANSFER_GRANTED;
		fds[i] = chunks[i].fd;
		chunk_move(&transfer->chunk, &chunks[i]);
	}
	uint64_t first = load->n_granted;
	load->n_granted += n_chunks;
	keep(load);
	if (load->is_from_host) {
		copy_transfers(load, first, n_chunks);
	} else {
		mover_grant(load->context->admit->mover, &load->job, first, fds, n_chunks);
	}
	if (!load->is_granting && load->state == LOAD_FILLING) {
		grant_more(load);
	}
	let(load);
}

/*
 * Keep the window full. The load may be gone afterwards. on_chunks() comes before alloc_start()
 * returns when the stock has it all, and only then; is_granting keeps that from recursing.
 */
static void grant_more(struct load *load)
{
	struct model *model = load->model;
	uint64_t sizes[BATCH_BLOCKS];
	keep(load);
	while (load->state == LOAD_FILLING && !load->alloc) {
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
		if (load->is_from_host) {
			size_t n_left = MAX_COPYING - load->n_copying;
			n = n < n_left ? n : n_left;
		} else {
			n = mover_reserve(load->context->admit->mover, &load->job, n);
		}
		if (n == 0) {
			break;
		}
		for (size_t i = 0; i < n; i++) {
			load->window_used_bytes += sizes[i];
		}
		const struct alloc_wanted wanted = {
			.at = &model->device->at,
			.tenant = load_payer(load),
			.uid = load->job.uid,
			.use = CHUNK_LOADING,
			.sizes = sizes,
			.n_chunks = n,
			.waited_ms = &load->waited_ms,
			.refusal = &load->refusal,
		};
		load->is_granting = true;
		enum status status = alloc_start(load->context->admit->allocator, &wanted,
		                                 on_chunks, load, &load->alloc);
		load->is_granting = false;
		if (status != STATUS_OK) {
			on_chunks(load, status, NULL, 0);
		}
	}
	let(load);
}

/* ---- news from the mover --------------------------------------------------------------------- */

/* Have what the plan has added to the manifest paid for. The load fails if it cannot be. */
static int charge_manifest(struct load *load)
{
	struct model *model = load->model;
	const struct payer payer = {model->charge.tenant, model->charge.user};
	uint64_t more_bytes = model->manifest_bytes - model->charge.manifest_bytes;
	if (charge_grow_manifest(&model->charge, more_bytes) != 0) {
		char why[REFUSAL_TEXT_BYTES];
		char error[320];
		load->refusal = refusal_of_manifest(payer, &model->device->at, more_bytes);
		refusal_count(&load->refusal, load->context->stats);
		refusal_text(&load->refusal, why);
		snprintf(error, sizeof(error), "the manifest is too large: %s", why);
		fail(load, STATUS_OVER_QUOTA, error);
	}
	return 0;
}

/* Write the tensors that have come into the books. The load may be over afterwards, as with charge_manifest(). */
static void note_tensors(struct load *load)
{
	struct store *store = load->context->admit->store;
	if (store_has_room(store)) {
		store_note_tensors(store, load->model);
	} else {
		fail(load, STATUS_NO_HOST_MEMORY, STORE_NO_ROOM);
	}
}

/* A failed load has it no more; any other has its plan already. */
static int late_plan(const struct load *load)
{
	return load->state == LOAD_FAILED ? 0 : -EPROTO;
}

static int on_plan_tensor(struct load_job *job, const char *name, uint32_t dtype,
                          const uint64_t *shape, size_t n_dims, uint64_t offset, uint64_t bytes)
{
	struct load *load = load_of(job);
	if (load->state != LOAD_PLANNING) {
		return late_plan(load);
	}
	int r = model_add_tensor(load->model, name, dtype, shape, NULL, n_dims, offset, bytes);
	if (r == 0) {
		r = charge_manifest(load);
	}
	if (r == 0 && load->model && load->model->n_tensors % BATCH_TENSORS == 0) {
		note_tensors(load);
	}
	return r;
}

static int on_plan_block(struct load_job *job, uint64_t content_bytes)
{
	struct load *load = load_of(job);
	if (load->state != LOAD_PLANNING) {
		return late_plan(load);
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

/*
 * Whether there is room for all of the load: one that does not fit takes nothing from others. If not, the load has failed, and
 * may be gone.
 */
static bool has_room(struct load *load)
{
	const struct load_context *context = load->context;
	char error[320];
	enum status status = load_check_room(context->admit->store, context->admit->allocator,
	                                     load->model, load_payer(load), &load->refusal, error,
	                                     sizeof(error));
	if (status == STATUS_OK) {
		return true;
	}
	refusal_count(&load->refusal, context->stats);
	fail(load, status, error);
	return false;
}

static int on_plan_end(struct load_job *job, const char *reload_reason)
{
	struct load *load = load_of(job);
	struct model *model = load->model;
	if (load->state != LOAD_PLANNING) {
		return late_plan(load);
	}
	if (model_check_plan(model) < 0) {
		return -EPROTO;
	}
	/* The manifest was not charged yet if there is no tensor. */
	charge_manifest(load);
	if (load->state == LOAD_FAILED) {
		return 0;
	}
	if (!has_room(load)) {
		return 0;
	}
	const char *reason = find_reload_reason(load, reload_reason);
	if (reason && store_hide_model(load->context->admit->store, model, reason) < 0) {
		fail(load, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return 0;
	}
	load->transfers = calloc(model->n_blocks ? model->n_blocks : 1, sizeof(load->transfers[0]));
	if (!load->transfers) {
		fail(load, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return 0;
	}
	load_set_state(load, LOAD_FILLING);
	grant_more(load);
	return 0;
}

static void place_block(struct load *load, struct transfer *transfer, struct block *block)
{
	size_t i = (size_t)(transfer - load->transfers);
	store_place_block(load->context->admit->store, load->model, i, block);
	load->n_done++;
	load->done_bytes += block->chunk.bytes;
	tell_progress(load);
}

static void on_admitted(struct admit *admit, const struct admit_result *result)
{
	struct transfer *transfer = container_of(admit, struct transfer, admit);
	struct load *load = transfer->load;
	transfer->state = TRANSFER_DONE;
	if (!result->block) {
		fail(load, result->status, result->error);
		return;
	}
	if (result->was_known) {
		load->deduplicated_bytes += result->block->chunk.bytes;
	}
	place_block(load, transfer, result->block);
}

/* The load may be gone afterwards. */
static void on_admit_gone(struct admit *admit)
{
	struct transfer *transfer = container_of(admit, struct transfer, admit);
	struct load *load = transfer->load;
	load->n_admitting--;
	if (load->state == LOAD_FAILED) {
		free_if_gone(load);
	} else {
		check_end(load);
	}
}

static const struct admit_ops admit_ops = {.done = on_admitted, .gone = on_admit_gone};

/* The mover has filled it. */
static void on_filled(struct load *load, struct transfer *transfer, const struct digest *digest)
{
	const struct model_block *of = &load->model->blocks[transfer - load->transfers];
	/* A published model says of each block that all of it is content. */
	uint64_t content_bytes = of->copy ? of->copy->content_bytes : of->content_bytes;
	load->window_used_bytes -= transfer->chunk.bytes;
	transfer->state = TRANSFER_ADMITTING;
	load->n_admitting++;
	/* The load stays: the mover has a job of it, or the caller keeps it. */
	admit_start(&transfer->admit, load->context->admit, load->model->realm, load->job.user,
	            &transfer->chunk, content_bytes, digest, &admit_ops);
	if (load->state == LOAD_FILLING) {
		grant_more(load);
	}
}

static int on_block_loaded(struct load_job *job, uint64_t i, const struct digest *digest)
{
	struct load *load = load_of(job);
	if (i >= load->n_granted || load->transfers[i].state != TRANSFER_GRANTED) {
		return -EPROTO;
	}
	struct transfer *transfer = &load->transfers[i];
	if (load->state == LOAD_FAILED) {
		drop_transfer(transfer);
		return 0;
	}
	on_filled(load, transfer, digest);
	return 0;
}

static void on_done(struct load_job *job, uint64_t read_bytes, uint64_t direct_bytes)
{
	struct load *load = load_of(job);
	if (load->state == LOAD_FAILED) {
		drop_transfers(load);
		return;
	}
	load->read_bytes = read_bytes;
	load->direct_bytes = direct_bytes;
	if (load->state == LOAD_PLANNING || load->n_granted < load->model->n_blocks) {
		fail(load, STATUS_INTERNAL, "glake-mover ended the load too early");
		return;
	}
	for (size_t i = 0; i < load->model->n_blocks; i++) {
		if (load->transfers[i].state == TRANSFER_GRANTED) {
			fail(load, STATUS_INTERNAL, "glake-mover left blocks out");
			return;
		}
	}
	load_set_state(load, LOAD_SETTLING);
	check_end(load);
}

static void on_failed(struct mover_job *job, enum status status, const char *error)
{
	struct load *load = container_of(job, struct load, job.job);
	if (load->state == LOAD_FAILED) {
		drop_transfers(load);
	} else {
		fail(load, status, error);
	}
}

static void on_gone(struct mover_job *job)
{
	drop_transfers(container_of(job, struct load, job.job));
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
		list_init(&load->parking.link);
		r = mover_load(context->admit->mover, &load->job, model->device, names, index, fds,
		               n_fds, may_direct);
	}
	if (r < 0) {
		free(load);
		store_drop_model(context->admit->store, model);
		return r;
	}
	model->load = load;
	load_join(load, waiter);
	return 0;
}

/* Make the load of a promotion. NULL: no memory. */
static struct load *new_promotion(const struct load_context *context, struct model *model,
                                  const struct load_waiter *waiter)
{
	struct load *load = calloc(1, sizeof(*load));
	if (!load) {
		return NULL;
	}
	load->context = context;
	load->model = model;
	load->is_from_host = true;
	load->job.uid = waiter->uid;
	load->job.user = user_get(waiter->uid);
	load->started_ns = uv_hrtime();
	list_init(&load->waiters);
	list_init(&load->parking.link);
	load->transfers = calloc(model->n_blocks, sizeof(load->transfers[0]));
	if (!load->job.user || !load->transfers) {
		load_free(load);
		return NULL;
	}
	load_set_state(load, LOAD_FILLING);
	return load;
}

void load_promote(const struct load_context *context, struct model *model, struct payer payer,
                  struct load_waiter *waiter)
{
	struct load *load = new_promotion(context, model, waiter);
	if (!load) {
		waiter->done(waiter, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return;
	}
	if (!user_charge(&load->job.place, &context->admit->mover->loads, load->job.user, 1)) {
		load_free(load);
		waiter->done(waiter, STATUS_BUSY, "this user has too many loads under way");
		return;
	}
	if (store_begin_promotion(context->admit->store, model, payer) != 0) {
		user_refund_all(&load->job.place);
		char why[REFUSAL_TEXT_BYTES];
		char error[320];
		load_free(load);
		waiter->refusal = refusal_of_manifest(payer, &model->device->at,
		                                      model->manifest_bytes);
		refusal_count(&waiter->refusal, context->stats);
		refusal_text(&waiter->refusal, why);
		snprintf(error, sizeof(error), "the manifest is too large: %s", why);
		waiter->done(waiter, STATUS_OVER_QUOTA, error);
		return;
	}
	model->load = load;
	load_join(load, waiter);
	if (has_room(load)) {
		grant_more(load);
	}
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
	if (load->state != LOAD_READY && list_is_empty(&load->waiters)) {
		fail(load, STATUS_BUSY, "all clients that waited for it have left");
	}
}

struct pressure_wait load_wait_of(const struct load_waiter *waiter)
{
	return alloc_wait_of(waiter->load ? waiter->load->alloc : NULL);
}

struct load_result load_result(const struct load *load)
{
	return (struct load_result){.deduplicated_bytes = load->deduplicated_bytes,
	                            .ns = load->ended_ns - load->started_ns};
}

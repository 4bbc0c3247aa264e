/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wake gives a program all its memory with the bytes that it had, or leaves it asleep. Nothing is the holder's before the
 * commit; if a step fails, the memory that came goes, and the copies stay. A copy may be damaged in host memory, so the mover
 * digests the bytes that came, and another digest fails the wake. Wakes that hold memory while they wait for more could wait
 * for each other: all reserve in the order of slots, so there is no circle (alloc_several.h). The mover may have a chunk for
 * longer than the wake lasts: struct sleep_wake stays until it has none. The steps:
 *
 *   find       use blocks that the store has again
 *   reserve    the bytes that the process was promised, and memory for all the rest, location by location in the order of slots
 *   copy       each chunk from host memory, behind the wakes that had their memory before
 *   admit      blocks to the store, as everything that comes there
 *   park       wait until the service manager has these blocks
 *   commit     all at once: the holder has chunks, blocks and models again. The copies stay until its process has them, too
 */
#include "daemon/holders/sleeper.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/memory/promise_request.h"
#include "proto/cleanup.h"

/* The most copies that the mover has at a time; and it gets the next wake's when only this many are left. */
#define MAX_COPYING 16u
#define LAST_COPYING 2u
/* An operator learns of a program that could not wake for this long. */
#define LONG_REFUSED_MS 60000u

enum transfer_state {
	TRANSFER_LACKING, /* memory */
	TRANSFER_GRANTED,
	TRANSFER_COPYING,
	TRANSFER_ADMITTING,
	TRANSFER_READY,
};

struct transfer {
	struct sleep_wake *wake;
	struct slept *slept; /* borrowed; NULL: its holder has given it up */
	struct copy
		*copy; /* borrowed, with slept: of a model, those of one transfer after the other */
	enum transfer_state state;
	struct chunk chunk;
	struct block *block; /* READY: used */
	struct model *model; /* held, and all blocks with it: at the first transfer of a model */
	struct digest digest;
	uint64_t content_bytes;
	struct digest_job job;
	struct admit admit;
};

struct sleep_wake {
	struct sleeper *sleeper; /* borrowed; NULL: it is over */
	const struct sleep_context *context;
	struct sleep_wake **self; /* the caller's pointer, cleared at the end */
	sleep_done_fn done;
	void *user;
	bool keeps_copies;
	uint64_t patience_ms;        /* for room */
	struct parking_wait parking; /* for blocks that are being parked */
	struct alloc *alloc;         /* under way, or NULL; and so the next */
	struct promise_request *promise;
	struct refusal refusal; /* of what was asked for last */
	uint32_t step; /* of it, or of the next: for each slot one for chunks, and one for blocks */
	uint64_t waited_ms;
	uint64_t since_ms; /* when alloc began */
	struct list
		turn;   /* link: holders.reading, from the reservation until others may copy, too */
	uint64_t links; /* a bit for each GPU that it copies to */
	uint64_t asked_ms;   /* when the wake was asked for */
	uint64_t held_up_ms; /* until it began to copy: for room, and until others had copied */
	uint64_t began_ns;   /* to copy; 0: not yet */
	size_t n_ready;
	size_t n_out;   /* copies and admissions under way */
	size_t n_stays; /* functions under way that use it */
	size_t next;    /* to be copied */
	size_t n_transfers;
	struct transfer transfers[];
};

/* ---- the end ---------------------------------------------------------------------------------- */

static void keep(struct sleep_wake *wake)
{
	wake->n_stays++;
}

static void let(struct sleep_wake *wake)
{
	if (--wake->n_stays == 0 && wake->n_out == 0 && !wake->sleeper) {
		free(wake);
	}
}

static void drop_transfer(struct sleep_wake *wake, struct transfer *transfer)
{
	struct store *store = wake->context->admit->store;
	struct block *block = ptr_steal(transfer->block);
	struct model *model = ptr_steal(transfer->model);
	if (transfer->state != TRANSFER_COPYING && transfer->state != TRANSFER_ADMITTING) {
		chunk_release(&transfer->chunk);
	}
	if (block) {
		store_unuse_block(store, block, 0);
	}
	if (model) {
		store_unhold_model(store, model, 0);
	}
}

static void cancel_transfer(struct sleep_wake *wake, struct transfer *transfer)
{
	if (transfer->state == TRANSFER_COPYING) {
		mover_cancel(wake->context->admit->mover, &transfer->job.job);
	} else if (transfer->state == TRANSFER_ADMITTING) {
		admit_cancel(&transfer->admit);
	}
}

static void pass_turn(struct sleep_wake *wake, const struct holders *all);

/* The wake is over: memory that came goes, and the holder sleeps on, or has all. */
static void leave(struct sleep_wake *wake, bool is_awake)
{
	struct sleeper *sleeper = wake->sleeper;
	const struct holders *all = sleeper->holder->all;
	wake->sleeper = NULL;
	sleeper->wake = NULL;
	list_remove(&wake->parking.link);
	if (is_awake) {
		sleeper_wake_up(sleeper);
	} else {
		sleeper_set_state(sleeper, SLEEPER_ASLEEP);
	}
	if (wake->self) {
		*wake->self = NULL;
	}
	if (wake->alloc) {
		alloc_cancel(wake->alloc);
	}
	promise_request_cancel(wake->promise);
	for (uint32_t i = 0; !is_awake && i < all->n_locations; i++) {
		promise_lend(sleeper->holder->at[i].promise);
	}
	for (size_t i = 0; i < wake->n_transfers; i++) {
		cancel_transfer(wake, &wake->transfers[i]);
		drop_transfer(wake, &wake->transfers[i]);
	}
	sleeper_free_if_over(sleeper);
	pass_turn(wake, all);
}

static void fail(struct sleep_wake *wake, enum status status, const char *error)
{
	char text[SLEEP_ERROR_BYTES];
	snprintf(text, sizeof(text), "%s", error);
	wake->context->allocator->stats->wakes_failed++;
	keep(wake);
	leave(wake, false);
	wake->done(wake->user, status, text);
	let(wake);
}

void sleep_wake_cancel(struct sleep_wake *wake)
{
	if (wake) {
		keep(wake);
		leave(wake, false);
		let(wake);
	}
}

/* The transfers of a model have become those of the model. */
static void commit_transfer(struct sleep_wake *wake, struct transfer *transfer)
{
	struct holder *holder = wake->sleeper->holder;
	struct held *held = transfer->slept->held;
	if (transfer->model) {
		holder_wake_model(holder, held, ptr_steal(transfer->model));
	} else if (transfer->block) {
		holder_wake_block(holder, held, ptr_steal(transfer->block));
	} else if (transfer->slept->kind == HELD_CHUNK) {
		holder_wake_chunk(holder, held, &transfer->chunk);
	}
}

static void commit(struct sleep_wake *wake)
{
	const struct sleeper *sleeper = wake->sleeper;
	struct holder *holder = sleeper->holder;
	struct stats *stats = wake->context->allocator->stats;
	keep(wake);
	stats->wakes++;
	stats->woken_bytes += sleeper->private_bytes + sleeper->shared_bytes;
	for (size_t i = 0; i < wake->n_transfers; i++) {
		if (wake->transfers[i].slept) {
			commit_transfer(wake, &wake->transfers[i]);
		}
	}
	holder->sleep.woke_ns = uv_hrtime() - wake->began_ns;
	holder->sleep.woke_waited_ms = wake->held_up_ms;
	histogram_add(&stats->wake_time, holder->sleep.woke_ns);
	histogram_add(&stats->wake_wait_time, wake->held_up_ms * 1000000);
	holder->sleep.awake_since_ms = uv_now(holder->all->loop);
	holder->sleep.refused_since_ms = 0;
	holder->sleep.is_told = false;
	holder->sleep.wants_room = false;
	leave(wake, true);
	if (!wake->keeps_copies) {
		sleeper_leave(holder);
	}
	wake->done(wake->user, STATUS_OK, "");
	let(wake);
}

static void succeed(struct sleep_wake *wake);

static void on_parked(struct parking_wait *wait)
{
	succeed(container_of(wait, struct sleep_wake, parking));
}

/* The last number of the blocks that are being parked; 0: there are none. */
static uint64_t unparked(const struct sleep_wake *wake)
{
	uint64_t last = 0;
	for (size_t i = 0; i < wake->n_transfers; i++) {
		const struct block *block = wake->transfers[i].block;
		uint64_t number = block ? store_unparked_block(block) : 0;
		last = number > last ? number : last;
	}
	return last;
}

/* @first is the first transfer of a model. Returns what store_return_model() does. */
static int return_model(struct sleep_wake *wake, struct transfer *first)
{
	const struct slept *slept = first->slept;
	const struct returning returning = {.model = slept->model,
	                                    .name = slept->name,
	                                    .device = location_device(slept->at),
	                                    .n_blocks = slept->n_copies};
	cleanup_free struct block **blocks = calloc(slept->n_copies, sizeof(blocks[0]));
	for (size_t i = 0; blocks && i < slept->n_copies; i++) {
		blocks[i] = first[i].block;
	}
	int r = blocks ? store_return_model(wake->context->admit->store, &returning, blocks,
	                                    holder_payer(wake->sleeper->holder), &first->model)
	               : -ENOMEM;
	for (size_t i = 0; r == 0 && i < slept->n_copies; i++) {
		first[i].block = NULL;
	}
	return r;
}

/* Return all models at once; no time passes before they are the holder's. */
static void return_models(struct sleep_wake *wake)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < wake->n_transfers; i++) {
		struct transfer *transfer = &wake->transfers[i];
		if (transfer->slept && transfer->slept->kind == HELD_MODEL &&
		    transfer->copy == transfer->slept->copies[0] && transfer->block) {
			r = return_model(wake, transfer);
		}
	}
	if (r == 0) {
		commit(wake);
	} else if (r == -ENOMEM) {
		fail(wake, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
	} else {
		fail(wake, r == TENANT_E_FDS ? STATUS_NO_FDS : STATUS_OVER_QUOTA,
		     "the tenant's limits do not allow the models of the sleeper any more");
	}
}

static void succeed(struct sleep_wake *wake)
{
	uint64_t number = unparked(wake);
	if (!number) {
		return_models(wake);
	} else if (list_is_empty(&wake->parking.link)) {
		parking_await(wake->context->admit->store->parking, &wake->parking, number,
		              on_parked);
	}
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static void copy_more(struct sleep_wake *wake);

static void set_ready(struct transfer *transfer)
{
	transfer->state = TRANSFER_READY;
	transfer->wake->n_ready++;
}

static void on_admitted(struct admit *admit, const struct admit_result *result)
{
	struct transfer *transfer = container_of(admit, struct transfer, admit);
	struct sleep_wake *wake = transfer->wake;
	transfer->state = TRANSFER_GRANTED;
	if (!result->block) {
		fail(wake, result->status, result->error);
		return;
	}
	transfer->block = result->block;
	/* A block of a model is cache as long as its model is. */
	bool is_alone = transfer->slept && transfer->slept->kind == HELD_BLOCK;
	if (is_alone && transfer->block->state == BLOCK_SHARED) {
		store_set_published(wake->context->admit->store, transfer->block, true);
	}
	set_ready(transfer);
}

static void on_admit_gone(struct admit *admit)
{
	struct transfer *transfer = container_of(admit, struct transfer, admit);
	struct sleep_wake *wake = transfer->wake;
	keep(wake);
	wake->n_out--;
	copy_more(wake);
	let(wake);
}

static const struct admit_ops admit_ops = {.done = on_admitted, .gone = on_admit_gone};

/* ---- copies ----------------------------------------------------------------------------------- */

static struct event_subject subject_of(const struct holder *holder)
{
	struct event_subject subject = holder_subject(holder);
	subject.limit = &holder->tenant->log_limit;
	return subject;
}

/* The program may try to wake again and again: an operator learns of it once. */
static void fail_damaged(struct sleep_wake *wake, struct transfer *transfer)
{
	struct holder *holder = wake->sleeper->holder;
	const struct event_subject subject = subject_of(holder);
	if (wake->context->events && !holder->sleep.is_damaged) {
		holder->sleep.is_damaged = events_add(
			wake->context->events, EVENT_COPY_DAMAGED, &subject,
			"memory of session %llu (pid %d) is damaged in host memory: it cannot wake",
			(unsigned long long)holder->id, (int)holder->peer.pid);
	}
	copies_drop(wake->context->copies, transfer->copy);
	fail(wake, STATUS_MOVER_FAILED, "what was copied to host memory was damaged there");
}

static void on_copied(struct digest_job *job, const struct digest *digest)
{
	struct transfer *transfer = container_of(job, struct transfer, job);
	struct sleep_wake *wake = transfer->wake;
	keep(wake);
	wake->n_out--;
	transfer->state = TRANSFER_GRANTED;
	if (!wake->sleeper || !transfer->slept) {
		chunk_release(&transfer->chunk);
		set_ready(transfer);
	} else if (!digest_equal(digest, &transfer->digest)) {
		fail_damaged(wake, transfer);
	} else if (transfer->slept->kind != HELD_CHUNK) {
		transfer->state = TRANSFER_ADMITTING;
		wake->n_out++;
		admit_start(&transfer->admit, wake->context->admit, wake->sleeper->holder->realm,
		            wake->sleeper->holder->user, &transfer->chunk, transfer->content_bytes,
		            digest, &admit_ops);
	} else {
		set_ready(transfer);
	}
	copy_more(wake);
	let(wake);
}

/* The mover has the chunk no more, and nobody wants it. */
static void end_copy(struct transfer *transfer)
{
	transfer->wake->n_out--;
	transfer->state = TRANSFER_GRANTED;
	chunk_release(&transfer->chunk);
}

static void on_not_copied(struct mover_job *job, enum status status, const char *error)
{
	struct transfer *transfer = container_of(job, struct transfer, job.job);
	struct sleep_wake *wake = transfer->wake;
	keep(wake);
	if (job->id == 0) {
		end_copy(transfer);
	}
	if (wake->sleeper) {
		fail(wake, status, error);
	}
	let(wake);
}

static void on_copy_gone(struct mover_job *job)
{
	struct transfer *transfer = container_of(job, struct transfer, job.job);
	struct sleep_wake *wake = transfer->wake;
	keep(wake);
	end_copy(transfer);
	let(wake);
}

/* Returns what copies_read() does. */
static int copy(struct sleep_wake *wake, struct transfer *transfer)
{
	transfer->job.job.on_failed = on_not_copied;
	transfer->job.job.on_gone = on_copy_gone;
	transfer->job.on_digested = on_copied;
	int r = copies_read(wake->context->copies, transfer->copy, &transfer->job,
	                    location_device(transfer->chunk.at), transfer->chunk.fd);
	if (r == 0) {
		transfer->state = TRANSFER_COPYING;
		wake->n_out++;
	}
	return r;
}

/* ---- turns ------------------------------------------------------------------------------------ */

/*
 * A link belongs to one wake at a time: then the first is awake in half of the time that two would take side by side, and the
 * second not later than otherwise. Wakes of other GPUs have other links.
 */

/* A bit for each GPU that the wake copies to, by slot; some may share one. */
static uint64_t links_of(const struct sleep_wake *wake)
{
	uint64_t links = 0;
	for (size_t i = 0; i < wake->n_transfers; i++) {
		const struct transfer *transfer = &wake->transfers[i];
		if (transfer->state == TRANSFER_GRANTED && transfer->slept) {
			links |= 1ull << transfer->slept->at->slot % 64;
		}
	}
	return links;
}

/* The first wake that may begin to copy; NULL: there is none. */
static struct sleep_wake *find_next(const struct holders *all)
{
	uint64_t taken = 0;
	struct sleep_wake *wake;
	list_for_each (wake, &all->reading, turn) {
		if (wake->began_ns == 0 && (wake->links & taken) == 0) {
			return wake;
		}
		taken |= wake->links;
	}
	return NULL;
}

/* The time until now that the program was held up; earlier wakes that were refused count. */
static uint64_t held_up_ms(const struct sleep_wake *wake)
{
	const struct holder *holder = wake->sleeper->holder;
	uint64_t refused_ms = holder->sleep.refused_since_ms;
	return uv_now(holder->all->loop) - (refused_ms ? refused_ms : wake->asked_ms);
}

static void begin_next(const struct holders *all)
{
	struct sleep_wake *wake;
	while ((wake = find_next(all))) {
		wake->began_ns = uv_hrtime();
		wake->held_up_ms = held_up_ms(wake);
		keep(wake);
		copy_more(wake);
		let(wake);
	}
}

static void pass_turn(struct sleep_wake *wake, const struct holders *all)
{
	if (!list_is_empty(&wake->turn)) {
		list_remove(&wake->turn);
		begin_next(all);
	}
}

/* All memory is there. The wake may be over afterwards; the caller keeps it. */
static void copy_more(struct sleep_wake *wake)
{
	int r = 0;
	while (r == 0 && wake->sleeper && wake->n_out < MAX_COPYING &&
	       wake->next < wake->n_transfers) {
		struct transfer *transfer = &wake->transfers[wake->next];
		if (transfer->state == TRANSFER_GRANTED && transfer->slept) {
			r = copy(wake, transfer);
		} else if (transfer->state == TRANSFER_GRANTED) {
			set_ready(transfer);
		}
		wake->next += r == 0;
	}
	/* The mover has too many fds for now: one that comes back makes room. */
	if (r < 0 && (r != -EBUSY || wake->n_out == 0)) {
		fail(wake, r == -EBUSY ? STATUS_BUSY : STATUS_MOVER_FAILED,
		     "glake-mover cannot copy from host memory now");
		return;
	}
	if (wake->sleeper && wake->next == wake->n_transfers && wake->n_out <= LAST_COPYING) {
		pass_turn(wake, wake->sleeper->holder->all);
	}
	if (wake->sleeper && wake->n_out == 0 && wake->n_ready == wake->n_transfers) {
		succeed(wake);
	}
}

/* ---- memory ----------------------------------------------------------------------------------- */

static void reserve(struct sleep_wake *wake);

static struct location *at_of(const struct sleep_wake *wake)
{
	return wake->sleeper->holder->all->locations[wake->step / 2];
}

static bool lacks_there(const struct sleep_wake *wake, const struct transfer *transfer)
{
	return transfer->state == TRANSFER_LACKING && transfer->slept &&
	       transfer->slept->at == at_of(wake) &&
	       (transfer->slept->kind != HELD_CHUNK) == (wake->step % 2 == 1);
}

/* The program asks again and again; an operator learns of it once. */
static void note_refusal(struct sleep_wake *wake, const char *why)
{
	const struct sleep_context *context = wake->context;
	struct holder *holder = wake->sleeper->holder;
	struct holder_sleep *sleep = &holder->sleep;
	const struct event_subject subject = subject_of(holder);
	uint64_t now_ms = uv_now(holder->all->loop);
	context->allocator->stats->wakes_refused++;
	sleep->refused_since_ms = sleep->refused_since_ms ? sleep->refused_since_ms
	                                                  : now_ms - wake->waited_ms;
	if (context->events && !sleep->is_told &&
	    now_ms - sleep->refused_since_ms >= LONG_REFUSED_MS) {
		sleep->is_told = events_add(context->events, EVENT_WAKE_REFUSED, &subject,
		                            "session %llu (pid %d) sleeps and cannot wake: %s",
		                            (unsigned long long)holder->id, (int)holder->peer.pid,
		                            why);
	}
}

static void refuse(struct sleep_wake *wake, enum status status)
{
	char text[REFUSAL_TEXT_BYTES];
	alloc_explain(status, &wake->refusal, text);
	note_refusal(wake, text);
	fail(wake, status, text);
}

/*
 * The chunks come in the order of the transfers. These may be fewer by now: their holder has given some up. Chunks that none
 * takes are released.
 */
static void on_chunks(void *user, enum status status, struct chunk *chunks, size_t n_chunks)
{
	struct sleep_wake *wake = user;
	size_t k = 0;
	wake->alloc = NULL;
	if (status != STATUS_OK) {
		refuse(wake, status);
		return;
	}
	for (size_t i = 0; i < wake->n_transfers; i++) {
		struct transfer *transfer = &wake->transfers[i];
		if (!lacks_there(wake, transfer)) {
			continue;
		}
		while (k < n_chunks && chunks[k].bytes != transfer->copy->bytes) {
			k++;
		}
		assert(k < n_chunks);
		chunk_move(&transfer->chunk, &chunks[k++]);
		transfer->state = TRANSFER_GRANTED;
	}
	wake->step++;
	keep(wake);
	reserve(wake);
	let(wake);
}

static struct promise *promise_of(const struct sleep_wake *wake)
{
	return wake->sleeper->holder->at[at_of(wake)->slot].promise;
}

static void on_promise(void *user, enum status status)
{
	struct sleep_wake *wake = user;
	if (status != STATUS_OK) {
		refuse(wake, status);
		return;
	}
	struct promise *promise = promise_of(wake);
	promise->is_lent = false;
	promise_settle(promise);
	keep(wake);
	reserve(wake);
	let(wake);
}

/* Reserve all that the process was promised before any of it is used. Returns the status of promise_request_start(). */
static enum status ask_promise(struct sleep_wake *wake, bool *is_asked_out)
{
	struct holder *holder = wake->sleeper->holder;
	struct promise *promise = promise_of(wake);
	if (!promise || !promise->is_lent) {
		return STATUS_OK;
	}
	const struct promise_wanted wanted = {.promise = promise,
	                                      .tenant = holder->tenant,
	                                      .bytes = promise_lent_bytes(promise),
	                                      .waited_ms = wake->waited_ms,
	                                      .patience_ms = wake->patience_ms,
	                                      .refusal = &wake->refusal};
	if (wanted.bytes == 0) {
		promise->is_lent = false;
		return STATUS_OK;
	}
	*is_asked_out = true;
	wake->since_ms = uv_now(holder->all->loop);
	return promise_request_start(wake->context->allocator, &wanted, on_promise, wake,
	                             &wake->promise);
}

/* Returns the status of alloc_start(); STATUS_OK too if nothing is lacking there. */
static enum status ask(struct sleep_wake *wake, bool *is_asked_out)
{
	struct holder *holder = wake->sleeper->holder;
	size_t n = 0;
	*is_asked_out = false;
	cleanup_free uint64_t *sizes = calloc(wake->n_transfers + 1, sizeof(sizes[0]));
	if (!sizes) {
		return STATUS_NO_HOST_MEMORY;
	}
	enum status promised = ask_promise(wake, is_asked_out);
	if (*is_asked_out || promised != STATUS_OK) {
		return promised;
	}
	for (size_t i = 0; i < wake->n_transfers; i++) {
		if (lacks_there(wake, &wake->transfers[i])) {
			sizes[n++] = wake->transfers[i].copy->bytes;
		}
	}
	if (n == 0) {
		return STATUS_OK;
	}
	*is_asked_out = true;
	const struct alloc_wanted wanted = {
		.at = at_of(wake),
		.tenant = holder->tenant,
		.uid = holder->peer.owner,
		.use = wake->step % 2 == 1 ? CHUNK_LOADING : CHUNK_PRIVATE,
		.sizes = sizes,
		.n_chunks = n,
		.waited_ms = &wake->waited_ms,
		.patience_ms = wake->patience_ms,
		.refusal = &wake->refusal,
		.promise = wake->step % 2 == 0 ? promise_of(wake) : NULL,
		.keeps_place = true};
	wake->since_ms = uv_now(holder->all->loop);
	return alloc_start(wake->context->allocator, &wanted, on_chunks, wake, &wake->alloc);
}

/* Reserve from wake->step on. on_chunks() may come before ask() returns, and goes on itself then. */
static void reserve(struct sleep_wake *wake)
{
	bool is_asked = false;
	enum status status = STATUS_OK;
	while (wake->sleeper && !is_asked && status == STATUS_OK &&
	       wake->step < 2 * wake->sleeper->holder->all->n_locations) {
		status = ask(wake, &is_asked);
		wake->step += !is_asked && status == STATUS_OK;
	}
	if (status != STATUS_OK) {
		refuse(wake, status);
	} else if (!is_asked && wake->sleeper) {
		wake->links = links_of(wake);
		list_insert(&wake->sleeper->holder->all->reading, &wake->turn);
		begin_next(wake->sleeper->holder->all);
	}
}

bool sleep_wake_is_waiting(const struct sleep_wake *wake)
{
	return wake->alloc != NULL || wake->promise != NULL;
}

uint64_t sleep_wake_waited_ms(const struct sleep_wake *wake)
{
	uint64_t now_ms = uv_now(wake->sleeper->holder->all->loop);
	return wake->waited_ms + (sleep_wake_is_waiting(wake) ? now_ms - wake->since_ms : 0);
}

uint32_t sleep_wake_place(const struct sleep_wake *wake)
{
	const struct holders *all = wake->sleeper->holder->all;
	uint64_t waited_ms = sleep_wake_waited_ms(wake);
	uint32_t transfer = 1;
	const struct sleeper *other;
	list_for_each (other, &all->sleepers, link) {
		transfer += other->wake && other->wake != wake &&
		            sleep_wake_waited_ms(other->wake) > waited_ms;
	}
	return transfer;
}

uint64_t sleep_wake_done_bytes(const struct sleep_wake *wake)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < wake->n_transfers; i++) {
		const struct transfer *transfer = &wake->transfers[i];
		bytes += transfer->state == TRANSFER_READY && transfer->slept
		                 ? transfer->copy->bytes
		                 : 0;
	}
	return bytes;
}

/* ---- the beginning ---------------------------------------------------------------------------- */

/* Use the block of the store with the content of @transfer, if there is one. Returns 0, or TENANT_E_*. */
static int find_block(struct sleep_wake *wake, struct transfer *transfer)
{
	struct store *store = wake->context->admit->store;
	const struct holder *holder = wake->sleeper->holder;
	struct block *block = store_find_block(store, holder->realm, transfer->slept->at,
	                                       &transfer->digest);
	if (!block || block->chunk.fd < 0 || block->chunk.bytes != transfer->copy->bytes) {
		return 0;
	}
	int r = store_use_block(store, block, holder->tenant);
	if (r == 0) {
		transfer->block = block;
		set_ready(transfer);
	}
	return r;
}

/* Returns what find_block() does. */
static int add_place(struct sleep_wake *wake, struct slept *slept, struct copy *copy)
{
	struct transfer *transfer = &wake->transfers[wake->n_transfers++];
	transfer->wake = wake;
	transfer->slept = slept;
	transfer->copy = copy;
	transfer->digest = copy->key.digest;
	transfer->content_bytes = copy->content_bytes;
	return slept->kind != HELD_CHUNK ? find_block(wake, transfer) : 0;
}

static void begin(struct sleep_wake *wake)
{
	struct slept *slept;
	int r = 0;
	keep(wake);
	list_for_each (slept, &wake->sleeper->slept, link) {
		for (size_t i = 0; r == 0 && i < slept->n_copies; i++) {
			r = add_place(wake, slept, slept->copies[i]);
		}
	}
	if (r != 0) {
		fail(wake, r == TENANT_E_BYTES ? STATUS_OVER_QUOTA : STATUS_NO_FDS,
		     "the tenant's limit does not allow the blocks of the sleeper any more");
	} else {
		reserve(wake);
	}
	let(wake);
}

void sleep_wake_forget(struct sleep_wake *wake, const struct slept *slept)
{
	for (size_t i = 0; i < wake->n_transfers; i++) {
		struct transfer *transfer = &wake->transfers[i];
		if (transfer->slept == slept) {
			transfer->slept = NULL;
			transfer->copy = NULL;
			if (transfer->state == TRANSFER_LACKING) {
				set_ready(transfer);
			}
		}
	}
}

void sleeper_wake(struct sleeper *sleeper, bool keeps_copies, uint64_t patience_ms,
                  sleep_done_fn done, void *user, struct sleep_wake **wake_out)
{
	const uint64_t longest_ms = sleeper->context->wake_wait_ms;
	size_t n = 0;
	struct slept *slept;
	list_for_each (slept, &sleeper->slept, link) {
		n += slept->n_copies;
	}
	struct sleep_wake *wake = calloc(1, sizeof(*wake) + n * sizeof(wake->transfers[0]));
	if (!wake) {
		done(user, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return;
	}
	sleeper_set_state(sleeper, SLEEPER_WAKING);
	sleeper->wake = wake;
	wake->sleeper = sleeper;
	wake->context = sleeper->context;
	wake->self = wake_out;
	wake->keeps_copies = keeps_copies;
	wake->patience_ms = patience_ms && patience_ms < longest_ms ? patience_ms : longest_ms;
	wake->asked_ms = uv_now(sleeper->holder->all->loop);
	list_init(&wake->parking.link);
	list_init(&wake->turn);
	wake->done = done;
	wake->user = user;
	*wake_out = wake;
	begin(wake);
}

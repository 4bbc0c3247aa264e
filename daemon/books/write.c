/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/books/write.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/holders/kept_step.h"
#include "daemon/holders/sleeper.h"
#include "proto/limits.h"
#include "proto/state.pb-c.h"

static uint8_t buffer[JOURNAL_MAX_BODY];

/* A record has this many copies of a model that sleeps. With its name there is room for them. */
#define COPIES_IN_PIECE 4096u
_Static_assert(COPIES_IN_PIECE * 10 + 2 * GLAKE_MAX_NAME_BYTES < JOURNAL_MAX_BODY, "a piece");

/*
 * Lengths are bounded where the parts came from, far below this, but for the groups of a process in a container of
 * its own: there are 65,536 at most. Such a session does not survive a restart.
 */
static size_t pack(const ProtobufCMessage *message)
{
	static struct log_limit limit;
	size_t n_bytes = protobuf_c_message_get_packed_size(message);
	if (n_bytes > sizeof(buffer)) {
		log_limited(&limit, LOG_LEVEL_ERROR, "%s: a record of %zu bytes",
		            message->descriptor->name, n_bytes);
		return 0;
	}
	return protobuf_c_message_pack(message, buffer);
}

static void put(struct journal *journal, enum books_kind kind, uint64_t id,
                const ProtobufCMessage *message)
{
	size_t n_bytes = pack(message);
	if (n_bytes > 0) {
		journal_put(journal, kind, id, buffer, n_bytes);
	}
}

/* ---- the store ------------------------------------------------------------------------------- */

static void write_block(void *user, const struct block *block)
{
	Glake__State__Block body = GLAKE__STATE__BLOCK__INIT;
	uint8_t digest[DIGEST_BYTES];
	digest_to_bytes(&block->key.digest, digest);
	body.realm = block->realm->name;
	body.device = block->chunk.at->number;
	body.digest.data = digest;
	body.digest.len = sizeof(digest);
	body.bytes = block->chunk.bytes;
	body.content_bytes = block->content_bytes;
	body.payer = block->chunk.charge.tenant->name;
	body.has_maker = block->maker != NULL;
	body.maker = block->maker ? block->maker->uid : 0;
	body.is_published = block->is_published;
	body.is_collision = block->state == BLOCK_APART;
	body.is_suspect = block->is_suspect;
	body.is_damaged = block->state == BLOCK_DAMAGED;
	body.priority = block->idle.priority;
	body.since_ms = block->idle.since_ms;
	put(user, BOOKS_BLOCK, block->id, &body.base);
}

static void delete_block(void *user, const struct block *block)
{
	journal_delete(user, BOOKS_BLOCK, block->id);
}

/* Rows of a manifest, as many as fit into a record. */
struct pages {
	struct journal *journal;
	uint64_t id;
	size_t n_bytes;
	uint8_t bytes[JOURNAL_MAX_BODY];
};

static void flush(struct pages *pages)
{
	if (pages->n_bytes > 0) {
		journal_more(pages->journal, BOOKS_MANIFEST, pages->id, pages->bytes,
		             pages->n_bytes);
		pages->n_bytes = 0;
	}
}

/* @manifest has one row. Messages behind each other are one message. */
static void add_row(struct pages *pages, const Glake__State__Manifest *manifest)
{
	size_t n_bytes = pack(&manifest->base);
	if (n_bytes > sizeof(pages->bytes) - pages->n_bytes) {
		flush(pages);
	}
	memcpy(pages->bytes + pages->n_bytes, buffer, n_bytes);
	pages->n_bytes += n_bytes;
}

static struct pages *begin_pages(struct journal *journal, const struct model *model)
{
	static struct pages pages;
	pages.journal = journal;
	pages.id = model->manifest;
	pages.n_bytes = 0;
	return &pages;
}

static void write_tensors(void *user, const struct model *model, size_t first)
{
	struct pages *pages = begin_pages(user, model);
	for (size_t i = first; i < model->n_tensors; i++) {
		const struct tensor *tensor = model->tensors[i];
		Glake__State__Manifest manifest = GLAKE__STATE__MANIFEST__INIT;
		Glake__State__Tensor row = GLAKE__STATE__TENSOR__INIT;
		Glake__State__Tensor *rows = &row;
		row.name = tensor->name;
		row.dtype = tensor->dtype;
		row.shape = (uint64_t *)tensor->shape;
		row.n_shape = tensor->n_dims;
		row.strides = tensor->strides;
		row.n_strides = tensor->strides ? tensor->n_dims : 0;
		row.offset = tensor->offset;
		row.bytes = tensor->bytes;
		manifest.tensors = &rows;
		manifest.n_tensors = 1;
		add_row(pages, &manifest);
	}
	flush(pages);
}

static void write_places(struct pages *pages, const struct model *model)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		Glake__State__Manifest manifest = GLAKE__STATE__MANIFEST__INIT;
		Glake__State__Place row = GLAKE__STATE__PLACE__INIT;
		Glake__State__Place *rows = &row;
		row.block = model->blocks[i].block->id;
		row.content_bytes = model->blocks[i].content_bytes;
		manifest.places = &rows;
		manifest.n_places = 1;
		add_row(pages, &manifest);
	}
}

static void write_files(struct pages *pages, const struct model *model)
{
	for (size_t i = 0; i < model->n_files; i++) {
		Glake__State__Manifest manifest = GLAKE__STATE__MANIFEST__INIT;
		ProtobufCBinaryData file = {.data = (uint8_t *)&model->files[i],
		                            .len = sizeof(model->files[i])};
		manifest.files = &file;
		manifest.n_files = 1;
		add_row(pages, &manifest);
	}
}

static void write_model(void *user, const struct model *model, bool is_new)
{
	Glake__State__Model body = GLAKE__STATE__MODEL__INIT;
	if (is_new) {
		struct pages *pages = begin_pages(user, model);
		write_places(pages, model);
		write_files(pages, model);
		flush(pages);
	}
	body.realm = model->realm->name;
	body.device = model->device->index;
	body.name = model->name;
	body.payer = model->charge.tenant->name;
	body.has_user = model->charge.of_user.n > 0;
	body.user = body.has_user ? model->charge.user->uid : 0;
	body.is_pinned = model->is_pinned;
	body.is_published = model->key.is_published;
	body.is_hidden = !model_is_found(model);
	body.is_in_log = model->is_in_log;
	body.has_reload_reason = model->reload_reason != NULL;
	if (model->reload_reason) {
		body.reload_reason = model->reload_reason;
	}
	body.content_bytes = model->content_bytes;
	body.n_tensors = model->n_tensors;
	body.n_blocks = model->n_blocks;
	body.manifest = model->manifest;
	body.priority = model->idle.priority;
	body.since_ms = model->idle.since_ms;
	put(user, BOOKS_MODEL, model->id, &body.base);
}

static void delete_model(void *user, const struct model *model)
{
	if (model_is_complete(model)) {
		journal_delete(user, BOOKS_MODEL, model->id);
	}
	journal_delete(user, BOOKS_MANIFEST, model->manifest);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void write_host_chunk(void *user, const struct extent_parking *parking,
                             const struct chunk *chunk)
{
	Glake__State__HostChunk body = GLAKE__STATE__HOST_CHUNK__INIT;
	body.node = chunk->at->number + 1;
	body.bytes = chunk->bytes;
	body.has_user = parking->user != NULL;
	body.user = parking->user ? parking->user->uid : 0;
	put(user, BOOKS_HOST_CHUNK, parking->id, &body.base);
}

static void delete_host_chunk(void *user, uint64_t id)
{
	journal_delete(user, BOOKS_HOST_CHUNK, id);
}

static void write_copy(void *user, const struct copy *copy)
{
	Glake__State__Copy body = GLAKE__STATE__COPY__INIT;
	uint8_t digest[DIGEST_BYTES];
	digest_to_bytes(&copy->key.digest, digest);
	body.realm = copy->realm->name;
	body.digest.data = digest;
	body.digest.len = sizeof(digest);
	body.content_bytes = copy->content_bytes;
	body.bytes = copy->bytes;
	body.is_found = copy->is_found;
	body.is_private = !copy->is_of_block;
	body.is_zero = copy->is_zero;
	if (copy->extent) {
		body.chunk = extent_chunk_parking(copy->extent)->id;
		body.offset = copy->extent->offset;
		body.payer = copy->extent->charge.tenant->name;
	}
	put(user, BOOKS_COPY, copy->id, &body.base);
}

static void delete_copy(void *user, const struct copy *copy)
{
	journal_delete(user, BOOKS_COPY, copy->id);
}

static bool has_room(void *user)
{
	return journal_has_room(user);
}

const struct store_watch write_store_watch = {
	.has_room = has_room,
	.block = write_block,
	.block_gone = delete_block,
	.tensors = write_tensors,
	.model = write_model,
	.model_gone = delete_model,
	.host_chunk = write_host_chunk,
	.host_chunk_gone = delete_host_chunk,
	.copy = write_copy,
	.copy_gone = delete_copy,
};

/* ---- the holders ----------------------------------------------------------------------------- */

/* Promises are of GPUs, of which there are no more, and those have the first slots. */
#define WRITE_MAX_PROMISES 64u

static void write_holder(void *user, const struct holder *holder)
{
	const struct peer *peer = &holder->peer;
	Glake__State__Holder body = GLAKE__STATE__HOLDER__INIT;
	body.key.data = (uint8_t *)holder->key;
	body.key.len = sizeof(holder->key);
	body.image = holder->image;
	body.pid = peer->pid;
	body.started = holder->started;
	body.uid = peer->uid;
	body.owner = peer->owner;
	body.gids = peer->gids;
	body.n_gids = peer->n_gids;
	body.has_cgroup = peer->cgroup != NULL;
	if (peer->cgroup) {
		body.cgroup = peer->cgroup;
	}
	body.realm = holder->realm->name;
	body.tenant = holder->tenant->name;
	body.follows_seals = holder->follows_seals;
	body.follows_sleeps = holder->follows_sleeps;
	body.only_looks = holder->only_looks;
	body.has_program = holder->labels.program != NULL;
	body.program = holder->labels.program ? holder->labels.program : body.program;
	body.name = holder->labels.name ? holder->labels.name : body.name;
	body.script = holder->labels.script ? holder->labels.script : body.script;
	body.executable = holder->labels.executable ? holder->labels.executable : body.executable;
	body.since_ms = holder->since_ms;
	Glake__State__Promise rows[WRITE_MAX_PROMISES];
	Glake__State__Promise *list[WRITE_MAX_PROMISES];
	for (uint32_t i = 0; i < holder->all->n_locations && i < WRITE_MAX_PROMISES; i++) {
		if (holder->at[i].promise) {
			glake__state__promise__init(&rows[body.n_promises]);
			rows[body.n_promises].device = i;
			rows[body.n_promises].bytes = holder->at[i].promise->bytes;
			list[body.n_promises] = &rows[body.n_promises];
			body.n_promises++;
		}
	}
	body.promises = list;
	put(user, BOOKS_HOLDER, holder->id, &body.base);
}

static void delete_holder(void *user, const struct holder *holder)
{
	journal_delete(user, BOOKS_HOLDER, holder->id);
}

/* An earlier glaked does not know nodes. It takes what is at one for something on a device that is gone. */
static void put_location(const struct location *at, uint32_t *device_out, uint32_t *node_out)
{
	bool is_host = at && at->kind == LOCATION_HOST;
	*device_out = is_host ? UINT32_MAX : at ? at->number : 0;
	*node_out = is_host ? at->number + 1 : 0;
}

static void write_held(void *user, const struct holder *holder, const struct held *held)
{
	Glake__State__Held body = GLAKE__STATE__HELD__INIT;
	body.holder = holder->id;
	body.request = held->request;
	body.ticket = held->ticket;
	body.was_chunk = held->was_chunk;
	body.was_known = held->was_known;
	body.was_alone = held->was_alone;
	if (held->kind == HELD_MODEL) {
		body.kind = GLAKE__STATE__HELD_KIND__MODEL;
		body.thing = held->model->id;
	} else if (held->kind == HELD_BLOCK && (held->block->is_noted || !held->was_chunk)) {
		body.kind = GLAKE__STATE__HELD_KIND__BLOCK;
		body.thing = held->block->id;
	} else {
		/* A block that is being parked is not in the books yet. */
		const struct chunk *chunk = held->kind == HELD_READ    ? &held->source->chunk
		                            : held->kind == HELD_BLOCK ? &held->block->chunk
		                            : held->admit              ? &held->admit->chunk
		                                                       : &held->chunk;
		body.kind = GLAKE__STATE__HELD_KIND__CHUNK;
		if (held->kind == HELD_READ) {
			body.kind = GLAKE__STATE__HELD_KIND__READ;
			body.thing = held->source->id;
			body.of = held->source->owner->id;
		}
		put_location(chunk->at, &body.device, &body.node);
		body.bytes = chunk->bytes;
	}
	put(user, BOOKS_HELD, held->id, &body.base);
}

static void delete_held(void *user, const struct held *held)
{
	journal_delete(user, BOOKS_HELD, held->id);
}

/* ---- sleepers -------------------------------------------------------------------------------- */

static void write_slept_thing(struct journal *journal, const struct slept *slept)
{
	Glake__State__Slept body = GLAKE__STATE__SLEPT__INIT;
	uint32_t node;
	body.holder = slept->sleeper->holder->id;
	body.request = slept->held->request;
	body.copy = slept->copies[0]->id;
	put_location(slept->at, &body.device, &node);
	body.bytes = slept->bytes;
	body.is_block = slept->kind == HELD_BLOCK;
	body.was_chunk = slept->held->was_chunk;
	body.was_known = slept->held->was_known;
	body.was_alone = slept->held->was_alone;
	put(journal, BOOKS_SLEPT, slept->held->id, &body.base);
}

static void write_slept_model(struct journal *journal, const struct slept *slept)
{
	uint64_t ids[COPIES_IN_PIECE];
	uint32_t node;
	for (size_t i = 0; i < slept->n_copies;) {
		Glake__State__SleptModel body = GLAKE__STATE__SLEPT_MODEL__INIT;
		body.holder = slept->sleeper->holder->id;
		body.request = slept->held->request;
		put_location(slept->at, &body.device, &node);
		body.model = slept->model;
		body.name = slept->name;
		body.total = slept->n_copies;
		body.copies = ids;
		while (i < slept->n_copies && body.n_copies < COPIES_IN_PIECE) {
			ids[body.n_copies++] = slept->copies[i++]->id;
		}
		size_t n_bytes = pack(&body.base);
		if (n_bytes > 0) {
			journal_more(journal, BOOKS_SLEPT_MODEL, slept->held->id, buffer, n_bytes);
		}
	}
}

/* All copies have an id, or none has: nobody keeps fds, or not any more. */
static void write_slept(void *user, const struct slept *slept)
{
	if (!slept->copies[0]->id) {
		return;
	}
	if (slept->kind == HELD_MODEL) {
		write_slept_model(user, slept);
	} else {
		write_slept_thing(user, slept);
	}
}

static void delete_slept(void *user, const struct slept *slept)
{
	journal_delete(user, slept->kind == HELD_MODEL ? BOOKS_SLEPT_MODEL : BOOKS_SLEPT,
	               slept->held->id);
}

static void write_sleeper(void *user, const struct sleeper *sleeper)
{
	Glake__State__Sleeper body = GLAKE__STATE__SLEEPER__INIT;
	Glake__State__Stay rows[GLAKE_MAX_STAYS];
	Glake__State__Stay *list[GLAKE_MAX_STAYS];
	body.why = sleeper->why;
	body.since_ms = sleeper->since_ms;
	for (uint32_t i = 0; i < sleeper->n_stays; i++) {
		glake__state__stay__init(&rows[i]);
		rows[i].why = (char *)sleeper->stays[i].why;
		rows[i].bytes = sleeper->stays[i].bytes;
		list[i] = &rows[i];
	}
	body.stays = list;
	body.n_stays = sleeper->n_stays;
	body.n_sleeps = sleeper->holder->sleep.n_sleeps;
	body.slept_ns = sleeper->holder->sleep.slept_ns;
	put(user, BOOKS_SLEEPER, sleeper->holder->id, &body.base);
}

static void delete_sleeper(void *user, const struct sleeper *sleeper)
{
	journal_delete(user, BOOKS_SLEEPER, sleeper->holder->id);
}

static void write_mistake(void *user, const struct mistake *mistake)
{
	Glake__State__Mistake body = GLAKE__STATE__MISTAKE__INIT;
	body.uid = mistake->uid;
	body.program = (char *)mistake->program;
	body.script = (char *)mistake->script;
	body.executable = (char *)mistake->executable;
	body.time_ms = mistake->time_ms;
	body.n_faults = mistake->n_faults;
	body.words = (uint64_t *)mistake->words;
	body.n_words = mistake->n_words;
	body.kernels = (char *)mistake->kernels;
	put(user, BOOKS_MISTAKE, mistake->id, &body.base);
}

static void delete_mistake(void *user, const struct mistake *mistake)
{
	journal_delete(user, BOOKS_MISTAKE, mistake->id);
}

/* ---- what outlived its process ----------------------------------------------------------------- */

_Static_assert(GLAKE_MAX_RECORD_BYTES + GLAKE_MAX_WILL_KEY_BYTES + 1024 < JOURNAL_MAX_BODY,
               "a step");

static void write_kept(void *user, const struct kept_step *step)
{
	Glake__State__KeptStep body = GLAKE__STATE__KEPT_STEP__INIT;
	const struct will *will = step->will;
	body.realm = step->realm->name;
	body.user = step->user->uid;
	body.device = step->chunks[0].at->number;
	body.bytes = step->chunks[0].bytes;
	body.n_chunks = (uint32_t)will->n_chunks;
	body.key.data = (uint8_t *)will->key;
	body.key.len = will->n_key;
	body.record.data = will->record;
	body.record.len = will->n_record;
	body.payer = will->cost.tenant->name;
	body.since_ms = step->since_ms;
	body.may_be_read = will->may_be_read;
	put(user, BOOKS_KEPT_STEP, step->id, &body.base);
}

static void delete_kept(void *user, const struct kept_step *step)
{
	journal_delete(user, BOOKS_KEPT_STEP, step->id);
}

const struct holder_watch write_holder_watch = {
	.holder = write_holder,
	.holder_gone = delete_holder,
	.held = write_held,
	.held_gone = delete_held,
	.slept = write_slept,
	.slept_gone = delete_slept,
	.sleeper = write_sleeper,
	.sleeper_gone = delete_sleeper,
	.mistake = write_mistake,
	.mistake_gone = delete_mistake,
	.kept = write_kept,
	.kept_gone = delete_kept,
};

/* ---- devices and limits ---------------------------------------------------------------------- */

void write_device(struct journal *journal, const struct device *device)
{
	Glake__State__Device body = GLAKE__STATE__DEVICE__INIT;
	body.uuid.data = (uint8_t *)device->uuid;
	body.uuid.len = sizeof(device->uuid);
	put(journal, BOOKS_DEVICE, device->index + 1, &body.base);
}

static uint64_t limit_id(const struct tenant *tenant, enum books_limit limit,
                         const struct location *at)
{
	char text[CONFIG_NAME_BYTES + 32];
	bool is_host = at && at->kind == LOCATION_HOST;
	int n = snprintf(text, sizeof(text), "%d %s%u %s", (int)limit, is_host ? "node " : "",
	                 at ? at->number : 0, tenant->name);
	/* The id is not 0, which is none. */
	return digest_of(text, (uint64_t)n).low | 1;
}

void write_limit(struct journal *journal, const struct tenant *tenant, enum books_limit limit,
                 const struct location *at, uint64_t value)
{
	Glake__State__Quota body = GLAKE__STATE__QUOTA__INIT;
	body.tenant = (char *)tenant->name;
	body.limit = (Glake__State__Limit)limit;
	put_location(at, &body.device, &body.node);
	body.value = value;
	put(journal, BOOKS_QUOTA, limit_id(tenant, limit, at), &body.base);
}

void write_no_limit(struct journal *journal, const struct tenant *tenant, enum books_limit limit,
                    const struct location *at)
{
	journal_delete(journal, BOOKS_QUOTA, limit_id(tenant, limit, at));
}

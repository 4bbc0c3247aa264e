/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/books/adopt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/books/kinds.h"
#include "daemon/holders/kept_step.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/state.pb-c.h"

#define MAX_DEVICES 1024u

struct adoption {
	const struct books_parts *parts;
	struct journal_image *image;
	struct adopt_report *report;
	struct device *devices[MAX_DEVICES]; /* by the earlier glaked's numbers; NULL: gone */
};

/* The user of entries that are adopted without being a thing. */
static char is_adopted;

static void count(struct adopt_count *count, uint64_t bytes)
{
	count->n++;
	count->bytes += bytes;
}

/* ---- records --------------------------------------------------------------------------------- */

/* The message of a record that has one piece. NULL: it is none. */
static void *unpack(const ProtobufCMessageDescriptor *type, const struct journal_entry *entry)
{
	return entry->n_pieces == 1
	               ? protobuf_c_message_unpack(type, NULL, entry->pieces[0].n_bytes,
	                                           entry->pieces[0].body)
	               : NULL;
}

static void free_message_at(void *at)
{
	ProtobufCMessage *message = *(void **)at;
	if (message) {
		protobuf_c_message_free_unpacked(message, NULL);
	}
}

#define cleanup_message __attribute__((cleanup(free_message_at)))

static void *find(const struct adoption *adoption, enum books_kind kind, uint64_t id)
{
	const struct journal_entry *entry = journal_find(adoption->image, kind, id);
	return entry ? entry->user : NULL;
}

typedef void (*adopt_fn)(struct adoption *adoption, struct journal_entry *entry);

static void adopt_kind(struct adoption *adoption, enum books_kind kind, adopt_fn fn)
{
	for (struct journal_entry *entry = adoption->image->entries; entry;
	     entry = entry->hh.next) {
		if (entry->key.kind == kind) {
			fn(adoption, entry);
		}
	}
}

/* ---- whose and where ------------------------------------------------------------------------- */

static void adopt_device(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Device *body = unpack(&glake__state__device__descriptor,
	                                                    entry);
	if (!body || entry->key.id > MAX_DEVICES || entry->key.id == 0) {
		return;
	}
	for (uint32_t i = 0; i < adoption->parts->n_devices; i++) {
		struct device *device = &adoption->parts->devices[i];
		if (body->uuid.len == sizeof(device->uuid) &&
		    memcmp(body->uuid.data, device->uuid, sizeof(device->uuid)) == 0) {
			adoption->devices[entry->key.id - 1] = device;
			adoption->report->is_renumbered |= device->index + 1 != entry->key.id;
			entry->user = device;
		}
	}
}

static struct device *device_of(const struct adoption *adoption, uint32_t number)
{
	return number < MAX_DEVICES ? adoption->devices[number] : NULL;
}

/* @node: a NUMA node's number + 1; 0: it is on @device, an earlier glaked's number. NULL: gone. */
static struct location *location_of(const struct adoption *adoption, uint32_t device, uint32_t node)
{
	struct device *gpu = node ? NULL : device_of(adoption, device);
	for (uint32_t i = 0; node && i < adoption->parts->n_locations; i++) {
		struct location *at = adoption->parts->locations[i];
		if (at->kind == LOCATION_HOST && at->number == node - 1) {
			return at;
		}
	}
	return gpu ? &gpu->at : NULL;
}

/* A tenant that the configuration does not name any more is the default one. */
static struct tenant *tenant_of(const struct adoption *adoption, const char *name)
{
	struct tenant *tenant = tenant_find(adoption->parts->tenants, name);
	return tenant ? tenant : tenant_find(adoption->parts->tenants, CONFIG_DEFAULT_TENANT);
}

/* A reference; NULL: there is none. */
static struct realm *realm_of(const struct adoption *adoption, const char *name)
{
	return name[0] && strlen(name) < CONFIG_NAME_BYTES
	               ? realm_get(&adoption->parts->holders->realms, name)
	               : NULL;
}

static bool is_chunk_size(uint64_t bytes)
{
	return bytes > 0 && bytes % GLAKE_CHUNK_GRANULARITY == 0 && bytes <= GLAKE_MAX_CHUNK_BYTES;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void adopt_limit(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Quota *body = unpack(&glake__state__quota__descriptor, entry);
	struct tenant *tenant = body ? tenant_find(adoption->parts->tenants, body->tenant) : NULL;
	const struct location *at = body ? location_of(adoption, body->device, body->node) : NULL;
	if (!tenant || !at) {
		return;
	}
	if (body->limit == GLAKE__STATE__LIMIT__SESSIONS) {
		tenant_set_max_sessions(tenant, (uint32_t)body->value);
	} else if (body->limit == GLAKE__STATE__LIMIT__MANIFESTS) {
		tenant_set_manifest_quota(tenant, body->value);
	} else {
		tenant_set_quota(tenant, at->slot, body->value);
	}
	entry->user = &is_adopted;
}

/* Nobody has it, though it is kept, if it is, under @name. */
static void release_adopted(const struct books_parts *parts, struct chunk *chunk, const char *name)
{
	if (!chunk->is_unparked) {
		chunk->removed = parking_remove(parts->chunk_books->parking, name);
	}
	chunk_release(chunk);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static enum block_state state_of_block(const Glake__State__Block *body)
{
	return body->is_damaged ? BLOCK_DAMAGED : body->is_collision ? BLOCK_APART : BLOCK_SHARED;
}

/* Adopt the block; NULL: it cannot be. */
static struct block *make_block(struct adoption *adoption, uint64_t id,
                                const Glake__State__Block *body)
{
	char name[24];
	struct chunk chunk;
	const struct books_parts *parts = adoption->parts;
	struct device *device = device_of(adoption, body->device);
	if (!device || body->digest.len != DIGEST_BYTES || !is_chunk_size(body->bytes) ||
	    body->content_bytes > body->bytes) {
		return NULL;
	}
	snprintf(name, sizeof(name), "b%" PRIu64, id);
	struct digest digest = digest_from_bytes(body->digest.data);
	struct realm *realm = realm_of(adoption, body->realm);
	if (!realm) {
		return NULL;
	}
	int fd = fdstore_take(parts->fdstore, name);
	struct charge charge = tenant_charge_adopted(payer_alone(tenant_of(adoption, body->payer)),
	                                             device->index, body->bytes, fd >= 0, 0);
	chunk_adopt(&chunk, &device->at, parts->chunk_books, body->bytes, fd, CHUNK_BLOCK, &charge);
	struct block *block = store_adopt_block(parts->store, id, realm, &digest,
	                                        body->content_bytes, &chunk, state_of_block(body));
	realm_unref(realm);
	if (!block) {
		chunk.removed = fd < 0 ? 0 : parking_remove(parts->chunk_books->parking, name);
		chunk_release(&chunk);
	}
	return block;
}

static void adopt_block(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Block *body = unpack(&glake__state__block__descriptor, entry);
	struct block *block = body ? make_block(adoption, entry->key.id, body) : NULL;
	if (!block) {
		count(&adoption->report->lost_blocks, body ? body->bytes : 0);
		return;
	}
	block->is_published = body->is_published;
	block->is_suspect = body->is_suspect;
	block->idle.priority = body->priority;
	block->idle.since_ms = body->since_ms;
	store_set_adopted_maker(adoption->parts->store, block,
	                        body->has_maker ? user_get(body->maker) : NULL);
	entry->user = block;
	count(block->state == BLOCK_LOST ? &adoption->report->lost_blocks
	                                 : &adoption->report->blocks,
	      body->bytes);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Adopt the chunk of host memory; NULL: it cannot be. */
static struct extent_chunk *make_host_chunk(struct adoption *adoption, uint64_t id,
                                            const Glake__State__HostChunk *body)
{
	char name[COPIES_PARKED_BYTES];
	struct chunk chunk;
	const struct books_parts *parts = adoption->parts;
	struct location *at = body->node ? location_of(adoption, 0, body->node) : NULL;
	struct extents *extents = at ? copies_at(parts->sleep->copies, at) : NULL;
	if (!extents || !is_chunk_size(body->bytes) || location_start(at, parts->loop) < 0) {
		return NULL;
	}
	copies_parked_name(id, name);
	int fd = fdstore_take(parts->fdstore, name);
	if (fd < 0) {
		return NULL;
	}
	struct extent_parking parking = {.id = id};
	parking.user = body->has_user ? user_ref(user_get(body->user)) : NULL;
	user_charge_anyway(&parking.place, &parts->store->places, parking.user, 1);
	struct charge charge = tenant_charge_adopted(payer_alone(parts->store->cache), at->slot,
	                                             body->bytes, 1, 0);
	chunk_adopt(&chunk, at, parts->chunk_books, body->bytes, fd, CHUNK_COPIES, &charge);
	struct extent_chunk *in = extents_adopt_chunk(extents, &chunk, &parking);
	if (!in) {
		user_refund_all(&parking.place);
		user_unref(parking.user);
		release_adopted(parts, &chunk, name);
	}
	return in;
}

static void adopt_host_chunk(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__HostChunk *body = unpack(
		&glake__state__host_chunk__descriptor, entry);
	entry->user = body ? make_host_chunk(adoption, entry->key.id, body) : NULL;
}

static void drop_if_empty(struct adoption *adoption, struct journal_entry *entry)
{
	char name[COPIES_PARKED_BYTES];
	struct extent_chunk *in = entry->user;
	if (in && extents_is_empty(in)) {
		copies_parked_name(entry->key.id, name);
		extents_drop_adopted(in,
		                     parking_remove(adoption->parts->chunk_books->parking, name));
		entry->user = NULL;
	}
}

static struct copy *make_copy(struct adoption *adoption, uint64_t id,
                              const Glake__State__Copy *body)
{
	struct copies *copies = adoption->parts->sleep->copies;
	struct copy_adopted as = {.tenant = tenant_of(adoption, body->payer),
	                          .content_bytes = body->content_bytes,
	                          .bytes = body->bytes,
	                          .is_found = body->is_found,
	                          .is_of_block = !body->is_private,
	                          .is_zero = body->is_zero,
	                          .chunk = find(adoption, BOOKS_HOST_CHUNK, body->chunk),
	                          .offset = body->offset};
	if ((!as.chunk && !body->is_zero) || !is_chunk_size(body->bytes) ||
	    body->digest.len != DIGEST_BYTES) {
		return NULL;
	}
	as.digest = digest_from_bytes(body->digest.data);
	as.in = as.is_zero ? NULL : copies_at(copies, extents_location(as.chunk));
	as.realm = realm_of(adoption, body->realm);
	struct copy *copy = as.realm ? copies_adopt(copies, id, &as) : NULL;
	realm_unref(as.realm);
	return copy;
}

static void adopt_copy(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Copy *body = unpack(&glake__state__copy__descriptor, entry);
	entry->user = body ? make_copy(adoption, entry->key.id, body) : NULL;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* A model on its way. */
struct arrival {
	struct adoption *adoption;
	struct model *model;
	struct block **blocks; /* owned */
	size_t n_blocks;       /* that there will be */
};

static bool add_place(struct arrival *arrival, const Glake__State__Place *place)
{
	struct model *model = arrival->model;
	struct block *block = find(arrival->adoption, BOOKS_BLOCK, place->block);
	if (!block || block->chunk.at != &model->device->at || block->realm != model->realm ||
	    model->n_blocks >= arrival->n_blocks ||
	    model_add_block(model, place->content_bytes) < 0 ||
	    model_chunk_bytes(model, model->n_blocks - 1) != block->chunk.bytes) {
		return false;
	}
	arrival->blocks[model->n_blocks - 1] = block;
	return true;
}

static bool add_tensor(struct model *model, const Glake__State__Tensor *tensor)
{
	return (tensor->n_strides == 0 || tensor->n_strides == tensor->n_shape) &&
	       model_add_tensor(model, tensor->name, tensor->dtype, tensor->shape,
	                        tensor->n_strides ? tensor->strides : NULL, tensor->n_shape,
	                        tensor->offset, tensor->bytes) == 0;
}

static bool add_file(struct model *model, const ProtobufCBinaryData *file)
{
	if (file->len != sizeof(model->files[0])) {
		return false;
	}
	struct file_id *files = reallocarray(model->files, model->n_files + 1, sizeof(files[0]));
	if (!files) {
		return false;
	}
	memcpy(&files[model->n_files++], file->data, sizeof(files[0]));
	model->files = files;
	model->manifest_bytes += sizeof(files[0]);
	return true;
}

static bool add_piece(struct arrival *arrival, const struct journal_piece *piece)
{
	cleanup_message Glake__State__Manifest *rows = glake__state__manifest__unpack(
		NULL, piece->n_bytes, piece->body);
	bool is_good = rows != NULL;
	for (size_t i = 0; is_good && i < rows->n_tensors; i++) {
		is_good = add_tensor(arrival->model, rows->tensors[i]);
	}
	for (size_t i = 0; is_good && i < rows->n_places; i++) {
		is_good = add_place(arrival, rows->places[i]);
	}
	for (size_t i = 0; is_good && i < rows->n_files; i++) {
		is_good = add_file(arrival->model, &rows->files[i]);
	}
	return is_good;
}

static enum model_state state_of_model(const Glake__State__Model *body)
{
	return body->has_reload_reason ? MODEL_HIDDEN
	       : body->is_hidden       ? MODEL_REPLACED
	                               : MODEL_READY;
}

static bool add_manifest(struct arrival *arrival, const Glake__State__Model *body,
                         const struct journal_entry *entry)
{
	struct model *model = arrival->model;
	bool is_good = true;
	for (size_t i = 0; is_good && entry && i < entry->n_pieces; i++) {
		is_good = add_piece(arrival, &entry->pieces[i]);
	}
	return is_good && model->n_tensors == body->n_tensors &&
	       model->n_blocks == body->n_blocks && model_check_plan(model) == 0 &&
	       (body->is_published || model->n_files > 0) &&
	       (body->is_published || state_of_model(body) != MODEL_REPLACED);
}

static bool set_flags(struct model *model, const Glake__State__Model *body)
{
	model->is_pinned = body->is_pinned;
	model->key.is_published = body->is_published;
	model->is_in_log = body->is_in_log;
	model->content_bytes = body->content_bytes;
	model->manifest = body->manifest;
	model->idle.priority = body->priority;
	model->idle.since_ms = body->since_ms;
	if (body->has_reload_reason) {
		model->reload_reason = strdup(body->reload_reason);
	}
	return !body->has_reload_reason || model->reload_reason;
}

/* Adopt the model; NULL: it cannot be. */
static struct model *make_model(struct adoption *adoption, uint64_t id,
                                const Glake__State__Model *body,
                                const struct journal_entry *manifest)
{
	struct store *store = adoption->parts->store;
	struct device *device = device_of(adoption, body->device);
	struct realm *realm = device && body->n_blocks <= GLAKE_MAX_BLOCKS
	                              ? realm_of(adoption, body->realm)
	                              : NULL;
	struct arrival arrival = {.adoption = adoption, .n_blocks = body->n_blocks};
	if (!realm) {
		return NULL;
	}
	arrival.model = store_adopt_model(store, id, realm, device, body->name);
	arrival.blocks = calloc(body->n_blocks + 1, sizeof(arrival.blocks[0]));
	realm_unref(realm);
	if (arrival.model && (!arrival.blocks || !add_manifest(&arrival, body, manifest) ||
	                      !set_flags(arrival.model, body))) {
		store_drop_adopted(store, arrival.model);
		arrival.model = NULL;
	}
	const struct payer payer = {tenant_of(adoption, body->payer),
	                            body->has_user ? user_get(body->user) : NULL};
	if (arrival.model && store_finish_adopted(store, arrival.model, arrival.blocks, payer,
	                                          state_of_model(body)) < 0) {
		arrival.model = NULL;
	}
	free(arrival.blocks);
	return arrival.model;
}

static void adopt_model(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Model *body = unpack(&glake__state__model__descriptor, entry);
	struct journal_entry *manifest = body ? journal_find(adoption->image, BOOKS_MANIFEST,
	                                                     body->manifest)
	                                      : NULL;
	struct model *model = body ? make_model(adoption, entry->key.id, body, manifest) : NULL;
	if (!model) {
		adoption->report->n_lost_models++;
		return;
	}
	entry->user = model;
	if (manifest) {
		manifest->user = &is_adopted;
	}
	if (store_has_unparked(model)) {
		adoption->report->n_lost_models++;
	} else {
		adoption->report->n_models++;
	}
}

/* ---- holders --------------------------------------------------------------------------------- */

static int make_peer(const Glake__State__Holder *body, struct peer *peer_out)
{
	struct peer peer = {
		.pid = body->pid, .uid = body->uid, .owner = body->owner, .n_gids = body->n_gids};
	peer.gids = calloc(body->n_gids + 1, sizeof(peer.gids[0]));
	peer.cgroup = body->has_cgroup ? strdup(body->cgroup) : NULL;
	if (!peer.gids || (body->has_cgroup && !peer.cgroup)) {
		peer_deinit(&peer);
		return -ENOMEM;
	}
	for (size_t i = 0; i < body->n_gids; i++) {
		peer.gids[i] = body->gids[i];
	}
	*peer_out = peer;
	return 0;
}

/* The peer keeps its tenant, as when the configuration is read again, if there still is one of that name. */
static struct tenant *tenant_of_peer(const struct adoption *adoption, const char *name,
                                     const struct peer *peer)
{
	struct tenant *tenant = tenant_find(adoption->parts->tenants, name);
	return tenant ? tenant
	              : tenant_find(adoption->parts->tenants,
	                            config_tenant_of(adoption->parts->config, peer)->name);
}

/* Adopt the holder; NULL: its process has ended. */
static struct holder *make_holder(struct adoption *adoption, uint64_t id,
                                  const Glake__State__Holder *body)
{
	struct peer peer;
	const struct config *config = adoption->parts->config;
	if (body->key.len != GLAKE_KEY_BYTES || body->pid <= 0 || body->started == 0) {
		return NULL;
	}
	cleanup_fd int pidfd = peer_open_started(body->pid, body->started);
	struct realm *realm = pidfd >= 0 ? realm_of(adoption, body->realm) : NULL;
	if (!realm || make_peer(body, &peer) < 0) {
		realm_unref(realm);
		return NULL;
	}
	bool is_admin = config_is_admin(config, peer.uid, peer.gids, peer.n_gids);
	struct tenant *tenant = tenant_of_peer(adoption, body->tenant, &peer);
	struct holder *holder = holder_adopt(adoption->parts->holders, id, &peer, pidfd, realm,
	                                     tenant);
	realm_unref(realm);
	if (!holder) {
		return NULL;
	}
	fd_steal(&pidfd);
	memcpy(holder->key, body->key.data, sizeof(holder->key));
	holder->image = body->image;
	holder->started = body->started;
	holder->is_admin = is_admin;
	holder->follows_seals = body->follows_seals;
	holder->follows_sleeps = body->follows_sleeps;
	holder->only_looks = body->only_looks;
	holder->labels = (struct holder_labels){
		.program = body->has_program ? strdup(body->program) : NULL,
		.name = strdup(body->name),
		.script = strdup(body->script),
		.executable = strdup(body->executable),
		.cgroup = holder->peer.cgroup ? text_clean_copy(holder->peer.cgroup) : NULL,
	};
	holder->since_ms = body->since_ms;
	return holder;
}

/* Adopt the promises. If there is no memory for one, the process keeps its memory, and no more is reserved. */
static void adopt_promises(struct adoption *adoption, struct holder *holder,
                           const Glake__State__Holder *body)
{
	struct promises *promises = adoption->parts->promises;
	for (size_t i = 0; i < body->n_promises; i++) {
		struct location *at = location_of(adoption, body->promises[i]->device, 0);
		struct promise *promise = at ? holder_find_promise(holder, at->slot) : NULL;
		struct promise *fresh = at && !promise ? promise_new(promises, at, holder->tenant)
		                                       : NULL;
		if (promise || fresh) {
			holder_set_promise(holder, promise ? promise : fresh,
			                   body->promises[i]->bytes);
		}
		promise_unref(fresh);
	}
}

static void adopt_holder(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Holder *body = unpack(&glake__state__holder__descriptor,
	                                                    entry);
	struct holder *holder = body ? make_holder(adoption, entry->key.id, body) : NULL;
	if (!holder) {
		adoption->report->n_ended++;
		return;
	}
	entry->user = holder;
	adopt_promises(adoption, holder, body);
	adoption->report->n_holders++;
}

/* The chunk's fd is kept if others may open it. Else there is none to pay for. */
static int hold_chunk(struct adoption *adoption, struct holder *holder, const struct held *as,
                      const Glake__State__Held *body)
{
	const struct books_parts *parts = adoption->parts;
	struct location *at = location_of(adoption, body->device, body->node);
	struct chunk chunk;
	char name[HOLDER_PARKED_BYTES];
	if (!at || !is_chunk_size(body->bytes)) {
		return -EINVAL;
	}
	int started = location_start(at, parts->loop);
	if (started < 0) {
		return started;
	}
	holder_parked_name(as->id, name);
	int fd = fdstore_take(parts->fdstore, name);
	struct charge charge = tenant_charge_adopted(holder_payer(holder), at->slot, body->bytes,
	                                             fd >= 0, 0);
	chunk_adopt(&chunk, at, parts->chunk_books, body->bytes, fd, CHUNK_PRIVATE, &charge);
	int r = holder_adopt_chunk(holder, as, &chunk);
	if (r < 0) {
		release_adopted(parts, &chunk, name);
		return r;
	}
	count(&adoption->report->chunks, body->bytes);
	return 0;
}

/* Adopt a chunk for reading. If its holder has ended meanwhile, the first that read it has it. */
static int hold_reading(struct adoption *adoption, struct holder *holder, const struct held *as,
                        const Glake__State__Held *body)
{
	struct holder *owner = find(adoption, BOOKS_HOLDER, body->of);
	struct held *source = owner ? holder_find(owner, HELD_CHUNK, body->thing) : NULL;
	source = source ? source : holders_find_origin(holder->all, body->thing, &owner);
	if (!source) {
		struct held first = *as;
		first.origin = body->thing;
		return hold_chunk(adoption, holder, &first, body);
	}
	return owner != holder && owner->realm == holder->realm
	               ? holder_adopt_reading(holder, as, owner, source)
	               : -EINVAL;
}

static int hold_model(struct adoption *adoption, struct holder *holder, const struct held *as,
                      uint64_t id)
{
	struct model *model = find(adoption, BOOKS_MODEL, id);
	return model && model->realm == holder->realm ? holder_adopt_model(holder, as, model)
	                                              : -ENOENT;
}

static int hold_block(struct adoption *adoption, struct holder *holder, const struct held *as,
                      uint64_t id)
{
	struct block *block = find(adoption, BOOKS_BLOCK, id);
	return block && block->realm == holder->realm ? holder_adopt_block(holder, as, block)
	                                              : -ENOENT;
}

static void adopt_held(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Held *body = unpack(&glake__state__held__descriptor, entry);
	struct holder *holder = body ? find(adoption, BOOKS_HOLDER, body->holder) : NULL;
	if (body && !holder && body->kind == GLAKE__STATE__HELD_KIND__CHUNK) {
		count(&adoption->report->ended_chunks, body->bytes);
	}
	if (!holder) {
		return;
	}
	const struct held as = {.id = entry->key.id,
	                        .request = body->request,
	                        .ticket = body->ticket,
	                        .was_chunk = body->was_chunk,
	                        .was_known = body->was_known,
	                        .was_alone = body->was_alone};
	int r = body->kind == GLAKE__STATE__HELD_KIND__CHUNK
	                ? hold_chunk(adoption, holder, &as, body)
	        : body->kind == GLAKE__STATE__HELD_KIND__READ
	                ? hold_reading(adoption, holder, &as, body)
	        : body->kind == GLAKE__STATE__HELD_KIND__MODEL
	                ? hold_model(adoption, holder, &as, body->thing)
	                : hold_block(adoption, holder, &as, body->thing);
	if (r == 0) {
		entry->user = &is_adopted;
	} else if (body->kind == GLAKE__STATE__HELD_KIND__CHUNK) {
		count(&adoption->report->lost_chunks, body->bytes);
	}
}

/* ---- sleepers -------------------------------------------------------------------------------- */

static int hold_slept(struct adoption *adoption, struct holder *holder, uint64_t id,
                      const Glake__State__Slept *body)
{
	const struct held held = {.id = id,
	                          .request = body->request,
	                          .was_chunk = body->was_chunk,
	                          .was_known = body->was_known,
	                          .was_alone = body->was_alone};
	struct device *device = device_of(adoption, body->device);
	struct copy *copy = find(adoption, BOOKS_COPY, body->copy);
	const struct slept_adopted as = {
		.held = &held,
		.from = {.kind = body->is_block ? HELD_BLOCK : HELD_CHUNK,
	                 .at = device ? &device->at : NULL,
	                 .copies = &copy,
	                 .n_copies = 1},
	};
	return copy && device && copy->realm == holder->realm && copy->bytes == body->bytes
	               ? sleeper_adopt(holder, adoption->parts->sleep, &as)
	               : -ENOENT;
}

/* Adopt a thing with copies. One that is on the GPU as well loses nothing with its copy. */
static void adopt_slept(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Slept *body = unpack(&glake__state__slept__descriptor, entry);
	struct holder *holder = body ? find(adoption, BOOKS_HOLDER, body->holder) : NULL;
	if (!holder) {
		return;
	}
	if (hold_slept(adoption, holder, entry->key.id, body) == 0) {
		entry->user = &is_adopted;
		count(&adoption->report->slept, body->bytes);
	} else if (!holder_find_any(holder, entry->key.id)) {
		count(&adoption->report->lost_slept, body->bytes);
	}
}

/* A model whose record is being read. */
struct slept_model {
	const struct journal_entry *entry;
	struct holder *holder;
	struct device *device;
	uint64_t request;
	uint64_t model;
	char name[GLAKE_MAX_NAME_BYTES + 1];
	struct copy **copies; /* owned */
	size_t n_copies;
	size_t total;
	uint64_t bytes; /* of those that there are */
};

/* Begin a model that sleeps. False: it cannot be. */
static bool begin_slept_model(struct adoption *adoption, struct slept_model *model,
                              const Glake__State__SleptModel *body)
{
	int n = snprintf(model->name, sizeof(model->name), "%s", body->name);
	model->holder = find(adoption, BOOKS_HOLDER, body->holder);
	model->device = device_of(adoption, body->device);
	model->request = body->request;
	model->model = body->model;
	model->total = body->total;
	model->copies = model->holder && body->total > 0 && body->total <= GLAKE_MAX_BLOCKS
	                        ? calloc(body->total, sizeof(model->copies[0]))
	                        : NULL;
	return model->copies && n >= 0 && (size_t)n < sizeof(model->name);
}

/* Add the copies of a model that sleeps. False: a copy is missing, or of somebody else. */
static bool add_slept_copies(struct adoption *adoption, struct slept_model *model,
                             const Glake__State__SleptModel *body)
{
	bool is_good = body->n_copies <= model->total - model->n_copies;
	for (size_t i = 0; is_good && i < body->n_copies; i++) {
		struct copy *copy = find(adoption, BOOKS_COPY, body->copies[i]);
		is_good = copy && copy->realm == model->holder->realm;
		if (is_good) {
			model->copies[model->n_copies++] = copy;
			model->bytes += copy->bytes;
		}
	}
	return is_good;
}

static bool read_slept_model(struct adoption *adoption, struct slept_model *model)
{
	const struct journal_entry *entry = model->entry;
	bool is_good = entry->n_pieces > 0;
	for (size_t i = 0; is_good && i < entry->n_pieces; i++) {
		Glake__State__SleptModel *body = glake__state__slept_model__unpack(
			NULL, entry->pieces[i].n_bytes, entry->pieces[i].body);
		is_good = body && (i > 0 || begin_slept_model(adoption, model, body)) &&
		          add_slept_copies(adoption, model, body);
		if (body) {
			glake__state__slept_model__free_unpacked(body, NULL);
		}
	}
	return is_good && model->n_copies == model->total && model->device;
}

static int hold_slept_model(struct adoption *adoption, const struct slept_model *model)
{
	const struct held held = {.id = model->entry->key.id, .request = model->request};
	struct slept_adopted as = {
		.held = &held,
		.from = {.kind = HELD_MODEL,
	                 .at = &model->device->at,
	                 .model = model->model,
	                 .name = model->name,
	                 .record = tenant_charge_adopted(holder_payer(model->holder), 0, 0, 0,
	                                                 model->n_copies * HOLDER_RECORD_BYTES),
	                 .copies = model->copies,
	                 .n_copies = model->n_copies},
	};
	int r = sleeper_adopt(model->holder, adoption->parts->sleep, &as);
	if (r < 0) {
		charge_refund(&as.from.record);
	}
	return r;
}

static void adopt_slept_model(struct adoption *adoption, struct journal_entry *entry)
{
	struct slept_model model = {.entry = entry};
	bool is_good = read_slept_model(adoption, &model);
	if (is_good && hold_slept_model(adoption, &model) == 0) {
		entry->user = &is_adopted;
		count(&adoption->report->slept, model.bytes);
	} else if (model.holder && !holder_find_any(model.holder, entry->key.id)) {
		count(&adoption->report->lost_slept, model.bytes);
	}
	free(model.copies);
}

static void set_stays(struct sleeper *sleeper, const Glake__State__Sleeper *body)
{
	for (size_t i = 0; i < body->n_stays && i < GLAKE_MAX_STAYS; i++) {
		struct sleep_stay *stay = &sleeper->stays[sleeper->n_stays++];
		snprintf(stay->why, sizeof(stay->why), "%s", body->stays[i]->why);
		stay->bytes = body->stays[i]->bytes;
	}
}

static void adopt_sleeper(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Sleeper *body = unpack(&glake__state__sleeper__descriptor,
	                                                     entry);
	struct holder *holder = body ? find(adoption, BOOKS_HOLDER, entry->key.id) : NULL;
	struct sleeper *sleeper = holder ? holder->sleeper : NULL;
	if (sleeper) {
		sleeper->has_entered = true;
		sleeper->why = body->why < N_SLEEP_WHYS ? (enum sleep_why)body->why : SLEEP_SELF;
		sleeper->since_ms = body->since_ms;
		set_stays(sleeper, body);
		holder->sleep.n_sleeps = body->n_sleeps;
		holder->sleep.slept_ns = body->slept_ns;
		entry->user = sleeper;
	}
}

/* ---- what outlived its process ----------------------------------------------------------------- */

/* A step whose record is being read. */
struct found_step {
	uint64_t id;
	struct location *at;
	struct chunk chunks[GLAKE_MAX_PACKET_FDS];
	size_t n_chunks; /* of them that are there */
};

static void release_step(const struct books_parts *parts, struct found_step *step, size_t n_all)
{
	char name[HOLDER_PARKED_BYTES];
	for (size_t i = 0; i < step->n_chunks; i++) {
		holder_parked_name(step->id - n_all + 1 + i, name);
		release_adopted(parts, &step->chunks[i], name);
	}
}

/* Find the chunks of a step. False: one of them was not kept. */
static bool find_step_chunks(const struct books_parts *parts, struct found_step *step,
                             const Glake__State__KeptStep *body)
{
	char name[HOLDER_PARKED_BYTES];
	while (step->n_chunks < body->n_chunks) {
		holder_parked_name(step->id - body->n_chunks + 1 + step->n_chunks, name);
		int fd = fdstore_take(parts->fdstore, name);
		if (fd < 0) {
			return false;
		}
		struct charge charge = tenant_charge_adopted(payer_alone(parts->store->cache),
		                                             step->at->slot, body->bytes, 1, 0);
		chunk_adopt(&step->chunks[step->n_chunks++], step->at, parts->chunk_books,
		            body->bytes, fd, CHUNK_KEPT, &charge);
	}
	return true;
}

static int restore_step(struct adoption *adoption, struct found_step *step,
                        const Glake__State__KeptStep *body)
{
	const struct will_words words = {.key = body->key.data,
	                                 .n_key = body->key.len,
	                                 .record = body->record.data,
	                                 .n_record = body->record.len,
	                                 .may_be_read = body->may_be_read};
	struct kept_adopted as = {.id = step->id,
	                          .user = user_ref(user_get(body->user)),
	                          .realm = realm_of(adoption, body->realm),
	                          .since_ms = body->since_ms};
	struct will *will = as.user && as.realm ? will_new(body->n_chunks, &words) : NULL;
	int r = will ? 0 : -ENOMEM;
	if (will) {
		const struct payer payer = {.tenant = tenant_of(adoption, body->payer),
		                            .user = as.user};
		will->cost = tenant_charge_adopted(payer, 0, 0, 0, will_bytes(will));
		r = kept_steps_restore(adoption->parts->holders->kept, &as, will, step->chunks);
	}
	if (will && r < 0) {
		will_free(will);
	}
	realm_unref(as.realm);
	user_unref(as.user);
	return r;
}

static bool is_step(const struct adoption *adoption, uint64_t id,
                    const Glake__State__KeptStep *body)
{
	return adoption->parts->holders->kept && body->n_chunks > 0 &&
	       body->n_chunks <= GLAKE_MAX_PACKET_FDS && body->n_chunks <= id &&
	       is_chunk_size(body->bytes) && body->key.len > 0 &&
	       body->key.len <= GLAKE_MAX_WILL_KEY_BYTES &&
	       body->record.len <= GLAKE_MAX_RECORD_BYTES;
}

static void adopt_kept_step(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__KeptStep *body = unpack(&glake__state__kept_step__descriptor,
	                                                      entry);
	const struct books_parts *parts = adoption->parts;
	struct found_step step = {.id = entry->key.id};
	step.at = body ? location_of(adoption, body->device, 0) : NULL;
	if (!step.at || !is_step(adoption, entry->key.id, body)) {
		return;
	}
	if (find_step_chunks(parts, &step, body) && restore_step(adoption, &step, body) == 0) {
		entry->user = &is_adopted;
		count(&adoption->report->kept, body->bytes * body->n_chunks);
	} else {
		release_step(parts, &step, body->n_chunks);
	}
}

/* ---- all ------------------------------------------------------------------------------------- */

static uint64_t max_id(const struct journal_image *image, uint64_t last, enum books_kind kind)
{
	return image->max_ids[kind] > last ? image->max_ids[kind] : last;
}

/* No id is used again, whatever the clock says. */
static void adopt_ids(const struct books_parts *parts, const struct journal_image *image)
{
	struct store *store = parts->store;
	struct holders *holders = parts->holders;
	holders->last_id = max_id(image, holders->last_id, BOOKS_HOLDER);
	holders->last_id = max_id(image, holders->last_id, BOOKS_HELD);
	holders->last_id = max_id(image, holders->last_id, BOOKS_SLEPT);
	holders->last_id = max_id(image, holders->last_id, BOOKS_SLEPT_MODEL);
	holders->mistakes.last_id = max_id(image, holders->mistakes.last_id, BOOKS_MISTAKE);
	holders->last_id = max_id(image, holders->last_id, BOOKS_KEPT_STEP);
	store->last_id = max_id(image, store->last_id, BOOKS_BLOCK);
	store->last_id = max_id(image, store->last_id, BOOKS_MODEL);
	store->last_id = max_id(image, store->last_id, BOOKS_MANIFEST);
	store->last_id = max_id(image, store->last_id, BOOKS_HOST_CHUNK);
	store->last_id = max_id(image, store->last_id, BOOKS_COPY);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void adopt_mistake(struct adoption *adoption, struct journal_entry *entry)
{
	cleanup_message Glake__State__Mistake *body = unpack(&glake__state__mistake__descriptor,
	                                                     entry);
	struct mistakes *mistakes = &adoption->parts->holders->mistakes;
	if (!body || mistakes->n >= MISTAKES_MAX || entry->key.id == 0) {
		return;
	}
	const struct mistake_key key = {body->uid, body->program, body->script, body->executable};
	struct mistake *mistake = mistakes_find(mistakes, &key)
	                                  ? NULL
	                                  : mistakes_add(mistakes, &key, entry->key.id);
	if (mistake) {
		mistake_note(mistakes, mistake, body->words, body->n_words, body->kernels);
		mistake->time_ms = body->time_ms;
		mistake->n_faults = body->n_faults;
		entry->user = &is_adopted;
	}
}

void adopt_all(const struct books_parts *parts, struct journal_image *image,
               struct adopt_report *report_out)
{
	static struct adoption adoption;
	*report_out = (struct adopt_report){0};
	adoption = (struct adoption){.parts = parts, .image = image, .report = report_out};
	journal_sort(image);
	adopt_ids(parts, image);
	adopt_kind(&adoption, BOOKS_DEVICE, adopt_device);
	adopt_kind(&adoption, BOOKS_QUOTA, adopt_limit);
	adopt_kind(&adoption, BOOKS_MISTAKE, adopt_mistake);
	if (parts->sleep) {
		adopt_kind(&adoption, BOOKS_HOST_CHUNK, adopt_host_chunk);
		adopt_kind(&adoption, BOOKS_COPY, adopt_copy);
		adopt_kind(&adoption, BOOKS_HOST_CHUNK, drop_if_empty);
	}
	adopt_kind(&adoption, BOOKS_BLOCK, adopt_block);
	adopt_kind(&adoption, BOOKS_MODEL, adopt_model);
	adopt_kind(&adoption, BOOKS_HOLDER, adopt_holder);
	adopt_kind(&adoption, BOOKS_HELD, adopt_held);
	adopt_kind(&adoption, BOOKS_KEPT_STEP, adopt_kept_step);
	if (parts->sleep) {
		adopt_kind(&adoption, BOOKS_SLEPT, adopt_slept);
		adopt_kind(&adoption, BOOKS_SLEPT_MODEL, adopt_slept_model);
		adopt_kind(&adoption, BOOKS_SLEEPER, adopt_sleeper);
	}
}

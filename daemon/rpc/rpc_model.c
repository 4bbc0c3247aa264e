/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for models: open or attach, page through the manifest, close. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/files.h"
#include "daemon/rpc/rpc_handlers.h"
#include "daemon/base/text.h"
#include "proto/cleanup.h"

/* Progress is reported when it has grown by 1/100 of the whole. */
#define PROGRESS_STEPS 100

/* A ModelOpen that waits for a load. */
struct model_request {
	struct pending pending;
	struct load_waiter waiter;
	struct model *model;
	bool pin;
	uint64_t told_steps;
};

/* ---- opening --------------------------------------------------------------------------------- */

void rpc_refuse_model(struct session *session, uint64_t id, const struct model *model, int error)
{
	if (error == -ENOMEM) {
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return;
	}
	const struct location *at = &model->device->at;
	struct tenant *tenant = session->holder->tenant;
	struct refusal refusal = error == TENANT_E_MANIFESTS
	                                 ? refusal_of_manifest(holder_payer(session->holder), at,
	                                                       model->manifest_bytes)
	                         : error == TENANT_E_FDS
	                                 ? refusal_of_tenant(BOUND_TENANT_FDS, tenant, at,
	                                                     model->n_blocks)
	                                 : refusal_of_tenant(BOUND_QUOTA, tenant, at,
	                                                     model->span_bytes);
	char why[REFUSAL_TEXT_BYTES];
	refusal_count(&refusal, rpc_of(session)->stats);
	holder_note_refusal(session->holder, &refusal);
	refusal_text(&refusal, why);
	rpc_refuse(session, id, refusal_status(&refusal), "'%s' does not fit: %s", model->name,
	           why);
}

static void answer_open(struct session *session, uint64_t id, struct model *model, bool was_loaded,
                        struct load_result result)
{
	Glake__Wire__ModelOpenAnswer body = GLAKE__WIRE__MODEL_OPEN_ANSWER__INIT;
	body.model = holder_add_model(session->holder, id, model);
	if (!body.model) {
		store_unhold_model(rpc_of(session)->store, model,
		                   session->holder->tenant->priority);
		rpc_refuse_open(session, id);
		return;
	}
	body.span_bytes = model->span_bytes;
	body.content_bytes = model->content_bytes;
	body.n_tensors = model->n_tensors;
	body.n_blocks = model->n_blocks;
	body.was_loaded = was_loaded;
	body.deduplicated_bytes = result.deduplicated_bytes;
	body.load_ns = result.ns;
	body.name = model->name;
	rpc_answer(session, id, ANSWER_OF(MODEL_OPEN, model_open, &body), NULL, 0);
}

static void open_ready(struct session *session, uint64_t id, struct model *model, bool pin,
                       bool was_loaded, struct load_result result)
{
	struct store *store = rpc_of(session)->store;
	int r = store_hold_model(store, model, holder_payer(session->holder));
	if (r == 0 && pin) {
		r = store_pin_model(store, model, holder_payer(session->holder));
		if (r != 0) {
			store_unhold_model(store, model, session->holder->tenant->priority);
		}
	}
	if (r != 0) {
		rpc_refuse_model(session, id, model, r);
		return;
	}
	answer_open(session, id, model, was_loaded, result);
}

static void on_loaded(struct load_waiter *waiter, enum status status, const char *error)
{
	struct model_request *operation = container_of(waiter, struct model_request, waiter);
	struct session *session = operation->pending.session;
	uint64_t id = operation->pending.request;
	session_end(&operation->pending);
	if (status != STATUS_OK) {
		holder_note_refusal(session->holder, &waiter->refusal);
		rpc_refuse(session, id, status, "%s", error);
	} else {
		open_ready(session, id, operation->model, operation->pin, false,
		           load_result(waiter->load));
	}
	free(operation);
}

static void on_progress(struct load_waiter *waiter, uint64_t done_bytes, uint64_t total_bytes)
{
	struct model_request *operation = container_of(waiter, struct model_request, waiter);
	uint64_t steps = total_bytes ? done_bytes / (total_bytes / PROGRESS_STEPS + 1) : 0;
	if (steps == operation->told_steps) {
		return;
	}
	operation->told_steps = steps;
	Glake__Wire__LoadProgress body = GLAKE__WIRE__LOAD_PROGRESS__INIT;
	body.request = operation->pending.request;
	body.done_bytes = done_bytes;
	body.total_bytes = total_bytes;
	rpc_notify(operation->pending.session, ANSWER_OF(PROGRESS, progress, &body));
}

static void cancel_model_request(struct pending *pending)
{
	struct model_request *operation = container_of(pending, struct model_request, pending);
	load_leave(&operation->waiter);
	free(operation);
}

struct pressure_wait rpc_model_wait(const struct pending *pending)
{
	const struct model_request *operation = container_of(pending, const struct model_request,
	                                                     pending);
	return pending->cancel == cancel_model_request
	               ? load_wait_of(&operation->waiter)
	               : (struct pressure_wait){.bound = BOUND_NONE};
}

/* The files of a request, checked. */
struct file_set {
	size_t n_files;                /* the index, if any, is the last */
	int fds[GLAKE_MAX_PACKET_FDS]; /* borrowed from the packet */
	struct file_id ids[GLAKE_MAX_PACKET_FDS];
};

/* Returns false after a refusal. */
static bool check_names(struct session *session, const request_t *request, const struct fdlist *fds)
{
	const Glake__Wire__ModelOpen *body = request->model_open;
	size_t n_files = body->n_files + (body->index[0] ? 1 : 0);
	if (body->n_files == 0 || fds->n_fds != n_files) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "%zu files are named and %zu fds came", n_files, fds->n_fds);
		return false;
	}
	bool fits = strlen(body->name) <= GLAKE_MAX_NAME_BYTES &&
	            strlen(body->index) <= GLAKE_MAX_NAME_BYTES;
	for (size_t i = 0; i < body->n_files; i++) {
		fits = fits && body->files[i][0] && strlen(body->files[i]) <= GLAKE_MAX_NAME_BYTES;
	}
	if (!fits) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "a file's name is empty or too long");
	}
	return fits;
}

static bool check_files(struct session *session, const request_t *request, const struct fdlist *fds,
                        struct file_set *files)
{
	const Glake__Wire__ModelOpen *body = request->model_open;
	files->n_files = fds->n_fds;
	for (size_t i = 0; i < fds->n_fds; i++) {
		const char *name = i < body->n_files ? body->files[i] : body->index;
		int r = file_identify(rpc_of(session)->superblocks, fds->fds[i],
		                      i > 0 ? &files->ids[i - 1] : NULL, &files->ids[i]);
		if (r < 0) {
			rpc_refuse(session, request->id, STATUS_BAD_FILE, "%s: %s", name,
			           r == -EISDIR   ? "is a directory"
			           : r == -EINVAL ? "is not a regular file"
			           : r == -EBADF  ? "is not opened for reading"
			                          : strerror(-r));
			return false;
		}
		files->fds[i] = fds->fds[i];
	}
	return true;
}

/* Returns false after a refusal. */
static bool check_loads(struct session *session, uint64_t id)
{
	const struct mover_link *mover = rpc_of(session)->mover;
	size_t n_own;
	if (mover_may_load(mover, session->holder->peer.owner, &n_own)) {
		return true;
	}
	rpc_refuse(session, id, STATUS_BUSY,
	           "this user has %zu loads under way, of %" PRIu64 " of all users", n_own,
	           mover->loads.used);
	return false;
}

static struct model *start_load(struct session *session, const request_t *request,
                                struct device *device, const struct file_set *files,
                                struct load_waiter *waiter)
{
	const Glake__Wire__ModelOpen *body = request->model_open;
	struct rpc_context *rpc = rpc_of(session);
	if (!check_loads(session, request->id)) {
		return NULL;
	}
	cleanup_free char *name = text_clean_copy(body->name[0] ? body->name : body->files[0]);
	struct model *model = name ? store_add_model(rpc->store, session->holder->realm, device,
	                                             holder_payer(session->holder), name,
	                                             files->ids, files->n_files)
	                           : NULL;
	if (!model) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY,
		           "glaked is out of host memory");
		return NULL;
	}
	int r = load_start(rpc->load_context, model, (const char *const *)body->files,
	                   body->index[0] ? body->index : NULL, files->fds, files->n_files,
	                   body->may_direct, waiter);
	if (r < 0) {
		rpc_refuse(session, request->id,
		           r == -EMSGSIZE ? STATUS_BAD_REQUEST
		           : r == -EBUSY  ? STATUS_BUSY
		           : r == -EMFILE ? STATUS_NO_FDS
		                          : STATUS_MOVER_FAILED,
		           "cannot start loading: %s",
		           r == -EMSGSIZE ? "the names are too long"
		           : r == -EBUSY  ? "glake-mover has too many files already"
		           : r == -EMFILE ? "more files than glake-mover may have open"
		                          : strerror(-r));
		return NULL;
	}
	return model;
}

/* Begin to wait for a model; NULL after a refusal. */
static struct model_request *begin_wait(struct session *session, uint64_t id, bool pin,
                                        load_progress_fn progress)
{
	struct model_request *operation = calloc(1, sizeof(*operation));
	if (!operation) {
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return NULL;
	}
	if (!session_begin(session, &operation->pending, id, cancel_model_request)) {
		free(operation);
		rpc_refuse(session, id, STATUS_BUSY, "too many requests under way");
		return NULL;
	}
	operation->pin = pin;
	operation->waiter = (struct load_waiter){
		.tenant = session->holder->tenant,
		.uid = session->holder->peer.owner,
		.done = on_loaded,
		.progress = progress,
	};
	list_init(&operation->waiter.link);
	return operation;
}

/* Wait for @model, LOADING or DEMOTED. The request may be answered, and the operation be freed, at once. */
static void wait_for_model(struct session *session, struct model_request *operation,
                           struct model *model)
{
	operation->model = model;
	if (model->state == MODEL_DEMOTED) {
		load_promote(rpc_of(session)->load_context, model, holder_payer(session->holder),
		             &operation->waiter);
	} else {
		load_join(model->load, &operation->waiter);
	}
}

/* Load it, or wait for the running load. */
static void wait_for_load(struct session *session, const request_t *request, struct device *device,
                          const struct file_set *files, struct model *model)
{
	struct model_request *operation = begin_wait(session, request->id, request->model_open->pin,
	                                             request->model_open->progress ? on_progress
	                                                                           : NULL);
	if (!operation) {
		return;
	}
	if (model) {
		wait_for_model(session, operation, model);
		return;
	}
	model = start_load(session, request, device, files, &operation->waiter);
	if (model) {
		operation->model = model;
	} else if (session->state != SESSION_CLOSING) {
		/* Answered. If that closed the session, the operation is freed already. */
		session_end(&operation->pending);
		free(operation);
	}
}

void rpc_model_open(struct session *session, const request_t *request, struct fdlist *fds)
{
	/* The set is not on the stack: it has some 11 KiB. One request at a time uses it. */
	static struct file_set files;
	struct device *device = rpc_device(session, request->id, request->model_open->device);
	if (!device || !check_names(session, request, fds) ||
	    !check_files(session, request, fds, &files)) {
		return;
	}
	struct model *model = store_find_model(rpc_of(session)->store, session->holder->realm,
	                                       device, files.ids, files.n_files);
	if (model && model->state == MODEL_READY) {
		rpc_of(session)->stats->models_hit++;
		open_ready(session, request->id, model, request->model_open->pin, true,
		           (struct load_result){0});
		return;
	}
	wait_for_load(session, request, device, &files, model);
}

void rpc_weights_attach(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__WeightsAttach *body = request->weights_attach;
	struct device *device = rpc_device(session, request->id, body->device);
	if (!device) {
		return;
	}
	struct model *model = store_find_published(rpc_of(session)->store, session->holder->realm,
	                                           device, body->key);
	if (!model) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "realm %s has no weights '%.255s' on device %u",
		           session->holder->realm->name, body->key, device->index);
		return;
	}
	if (model->state == MODEL_READY) {
		rpc_of(session)->stats->models_hit++;
		open_ready(session, request->id, model, body->pin, true, (struct load_result){0});
		return;
	}
	struct model_request *operation = begin_wait(session, request->id, body->pin, NULL);
	if (operation) {
		wait_for_model(session, operation, model);
	}
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static struct held *find_open(struct session *session, uint64_t request, uint64_t id)
{
	struct held *open;
	open = holder_find(session->holder, HELD_MODEL, id);
	if (!open) {
		rpc_refuse(session, request, STATUS_BAD_REQUEST, "there is no open model %" PRIu64,
		           id);
	}
	return open;
}

void rpc_model_tensors(struct session *session, const request_t *request, struct fdlist *fds)
{
	enum { PAGE = 512 };
	RPC_PAGE(Glake__Wire__Tensor, PAGE);
	struct held *open = find_open(session, request->id, request->model_tensors->model);
	if (!open) {
		return;
	}
	Glake__Wire__ModelTensorsAnswer body = GLAKE__WIRE__MODEL_TENSORS_ANSWER__INIT;
	const struct model *model = open->model;
	uint64_t next = request->model_tensors->first;
	for (; next < model->n_tensors; next++) {
		struct tensor *tensor = model->tensors[next];
		Glake__Wire__Tensor row = GLAKE__WIRE__TENSOR__INIT;
		row.name = tensor->name;
		row.dtype = tensor->dtype;
		row.shape = tensor->shape;
		row.n_shape = tensor->n_dims;
		row.strides = tensor->strides;
		row.n_strides = tensor->strides ? tensor->n_dims : 0;
		row.offset = tensor->offset;
		row.bytes = tensor->bytes;
		if (!rpc_page_add(&page, next, &row.base)) {
			break;
		}
	}
	body.tensors = page.list;
	body.n_tensors = page.n_rows;
	body.next = next < model->n_tensors ? next : 0;
	rpc_answer(session, request->id, ANSWER_OF(MODEL_TENSORS, model_tensors, &body), NULL, 0);
}

void rpc_model_blocks(struct session *session, const request_t *request, struct fdlist *fds)
{
	uint64_t chunk_bytes[GLAKE_PAGE_FDS];
	int chunk_fds[GLAKE_PAGE_FDS];
	uint64_t id = request->model_blocks->model;
	if (holder_find(session->holder, HELD_SLEPT, id)) {
		rpc_refuse(session, request->id, STATUS_BUSY, "model %" PRIu64 " is asleep", id);
		return;
	}
	struct held *open = find_open(session, request->id, id);
	if (!open) {
		return;
	}
	Glake__Wire__ModelBlocksAnswer body = GLAKE__WIRE__MODEL_BLOCKS_ANSWER__INIT;
	const struct model *model = open->model;
	if (store_has_unparked(model)) {
		rpc_refuse_unparked(session, request->id, "model", open->id);
		return;
	}
	uint64_t next = request->model_blocks->first;
	for (; next < model->n_blocks && body.n_chunk_bytes < GLAKE_PAGE_FDS; next++) {
		const struct block *block = model->blocks[next].block;
		chunk_bytes[body.n_chunk_bytes] = block->chunk.bytes;
		chunk_fds[body.n_chunk_bytes++] = block->chunk.fd;
	}
	body.chunk_bytes = chunk_bytes;
	body.next = next < model->n_blocks ? next : 0;
	rpc_answer(session, request->id, ANSWER_OF(MODEL_BLOCKS, model_blocks, &body), chunk_fds,
	           body.n_chunk_bytes);
}

void rpc_model_close(struct session *session, const request_t *request, struct fdlist *fds)
{
	uint64_t id = request->model_close->model;
	struct held *other = holder_find(session->holder, HELD_DRAFT, id);
	other = other ? other : holder_find(session->holder, HELD_SLEPT, id);
	struct held *open = other ? other : find_open(session, request->id, id);
	if (open) {
		holder_release(session->holder, open);
		rpc_answer_ok(session, request->id);
	}
}

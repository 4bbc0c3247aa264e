/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WeightsPublish: a model of a program's blocks. Its manifest comes in pages, which make a draft of the
 * holder's. Attaching reads and maps what the manifest says, so each number of it is checked here.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

/* Nobody can map more: the client's window is as large. Also, sums do not overflow. */
#define MAX_SPANS_PER_DEVICE 16u

static const char no_memory[] = "glaked is out of host memory";

/* ---- the first request ------------------------------------------------------------------------ */

/* Whether @key can be a key: listings show it unchanged as a name, and digits alone are ids. */
static bool is_key(const char *key)
{
	cleanup_free char *clean = text_clean_copy(key);
	return clean && key[0] && strlen(key) <= GLAKE_MAX_KEY_BYTES && strcmp(clean, key) == 0 &&
	       key[strspn(key, "0123456789")] != '\0';
}

/* Begin a draft; NULL after a refusal. */
static struct held *begin(struct session *session, const request_t *request)
{
	const Glake__Wire__WeightsPublish *body = request->weights_publish;
	struct holder *holder = session->holder;
	struct device *device = rpc_device(session, request->id, body->device);
	if (!device) {
		return NULL;
	}
	if (!is_key(body->key)) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "a key has 1 to %u bytes of UTF-8, no control characters, and not "
		           "only digits",
		           GLAKE_MAX_KEY_BYTES);
		return NULL;
	}
	if (holder->n_held[HELD_DRAFT] == HOLDER_MAX_DRAFTS) {
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "the session has %u drafts of weights already", HOLDER_MAX_DRAFTS);
		return NULL;
	}
	struct model *draft = store_new_draft(rpc_of(session)->store, holder->realm, device,
	                                      holder_payer(holder), body->key);
	struct held *held = draft ? holder_add_draft(holder, request->id, draft) : NULL;
	if (!held) {
		if (draft) {
			store_drop_model(rpc_of(session)->store, draft);
		}
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY, "%s", no_memory);
	}
	return held;
}

/* ---- a page ----------------------------------------------------------------------------------- */

/* The first fault of a page. */
struct fault {
	enum status status; /* OK: none */
	char text[200];
};

__attribute__((format(printf, 3, 4))) static bool fail(struct fault *fault, enum status status,
                                                       const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fault->status = status;
	vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	return false;
}

static bool add_block(struct session *session, struct model *draft, struct block *block,
                      struct fault *fault)
{
	uint64_t max_bytes = MAX_SPANS_PER_DEVICE * draft->device->at.total_bytes;
	if (block->chunk.at != &draft->device->at || block->realm != draft->realm) {
		return fail(fault, STATUS_BAD_REQUEST,
		            "a block is of another device than the weights");
	}
	if (block->state == BLOCK_LOST) {
		return fail(fault, STATUS_BAD_REQUEST,
		            "a block has no fd since glaked was restarted");
	}
	if (block->chunk.bytes > max_bytes - draft->span_bytes) {
		return fail(fault, STATUS_BAD_REQUEST,
		            "the weights have more than %" PRIu64 " bytes", max_bytes);
	}
	int r = store_add_used_block(rpc_of(session)->store, draft, block);
	return r == 0 || fail(fault, r == -ENOMEM ? STATUS_NO_HOST_MEMORY : STATUS_BAD_REQUEST,
	                      "%s", r == -ENOMEM ? no_memory : "the weights have too many blocks");
}

/* The holder of the blocks of @run; NULL after a fault. */
static const struct holder *owner_of(const struct session *session,
                                     const Glake__Wire__WeightsBlocks *run, struct fault *fault)
{
	const struct holder *owner = session->holder;
	if (run->session_key.len == GLAKE_KEY_BYTES) {
		owner = holder_by_key(owner->all, &owner->peer, run->session_key.data);
	} else if (run->session_key.len > 0) {
		owner = NULL;
	}
	if (!owner || owner->state == HOLDER_ENDED || owner->realm != session->holder->realm) {
		fail(fault, STATUS_BAD_REQUEST, "this process has no such session");
		return NULL;
	}
	return owner;
}

/* Blocks of a model that the owner has open. */
static bool add_part(struct session *session, struct model *draft, const struct holder *owner,
                     const Glake__Wire__WeightsBlocks *run, struct fault *fault)
{
	const struct held *open = holder_find(owner, HELD_MODEL, run->model);
	if (!open || run->count > open->model->n_blocks ||
	    run->first > open->model->n_blocks - run->count) {
		return fail(fault, STATUS_BAD_REQUEST,
		            "the session has no open model %" PRIu64 " with these blocks",
		            run->model);
	}
	bool is_good = true;
	for (uint64_t i = 0; is_good && i < run->count; i++) {
		is_good = add_block(session, draft, open->model->blocks[run->first + i].block,
		                    fault);
	}
	return is_good;
}

static bool add_run(struct session *session, struct model *draft,
                    const Glake__Wire__WeightsBlocks *run, struct fault *fault)
{
	const struct holder *owner = owner_of(session, run, fault);
	if (!owner) {
		return false;
	}
	for (size_t i = 0; i < run->n_blocks; i++) {
		const struct held *held = holder_find(owner, HELD_BLOCK, run->blocks[i]);
		if (!held) {
			return fail(fault, STATUS_BAD_REQUEST,
			            "the session does not have block %" PRIu64, run->blocks[i]);
		}
		if (!add_block(session, draft, held->block, fault)) {
			return false;
		}
	}
	return run->model == 0 || add_part(session, draft, owner, run, fault);
}

/* Names come in order, so each is there once, which readers rely on. */
static const char *why_no_tensor(const struct model *draft, const Glake__Wire__Tensor *tensor)
{
	const uint64_t *strides = tensor->n_strides ? tensor->strides : NULL;
	const char *last = draft->n_tensors ? draft->tensors[draft->n_tensors - 1]->name : "";
	uint64_t bytes;
	if (!tensor->name[0] || strlen(tensor->name) > GLAKE_MAX_NAME_BYTES) {
		return "its name is empty or too long";
	}
	if (draft->n_tensors > 0 && strcmp(last, tensor->name) >= 0) {
		return "it is not behind the one before it in the order of names";
	}
	if (tensor->n_shape > GLAKE_MAX_DIMS || (strides && tensor->n_strides != tensor->n_shape)) {
		return "it has too many dimensions, or not as many strides";
	}
	if (!dtype_extent(tensor->dtype, tensor->shape, strides, tensor->n_shape, &bytes) ||
	    bytes != tensor->bytes) {
		return "its dtype, shape and strides do not make its bytes";
	}
	return NULL;
}

static bool add_tensor(struct model *draft, const Glake__Wire__Tensor *tensor, struct fault *fault)
{
	const char *why = why_no_tensor(draft, tensor);
	int r = 0;
	if (!why) {
		r = model_add_tensor(draft, tensor->name, tensor->dtype, tensor->shape,
		                     tensor->n_strides ? tensor->strides : NULL, tensor->n_shape,
		                     tensor->offset, tensor->bytes);
	}
	if (r == -ENOMEM) {
		return fail(fault, STATUS_NO_HOST_MEMORY, "%s", no_memory);
	}
	if (r < 0) {
		why = "it is one too many, or its end does not fit 64 bits";
	}
	return !why || fail(fault, STATUS_BAD_REQUEST, "tensor %zu: %s", draft->n_tensors, why);
}

static bool charge(struct session *session, struct model *draft, struct fault *fault)
{
	uint64_t more_bytes = draft->manifest_bytes - draft->charge.manifest_bytes;
	if (charge_grow_manifest(&draft->charge, more_bytes) == 0) {
		return true;
	}
	const struct payer payer = {draft->charge.tenant, draft->charge.user};
	const struct refusal refusal = refusal_of_manifest(payer, &draft->device->at, more_bytes);
	char why[REFUSAL_TEXT_BYTES];
	refusal_count(&refusal, rpc_of(session)->stats);
	holder_note_refusal(session->holder, &refusal);
	refusal_text(&refusal, why);
	return fail(fault, STATUS_OVER_QUOTA, "the manifest is too large: %s", why);
}

/* Whether @page names too many blocks: few bytes name a million blocks of an open model. */
static bool has_too_many_blocks(const Glake__Wire__WeightsPublish *page)
{
	uint64_t n = 0;
	for (size_t i = 0; i < page->n_blocks && n <= GLAKE_PAGE_BLOCKS; i++) {
		const Glake__Wire__WeightsBlocks *run = page->blocks[i];
		n += run->count <= GLAKE_PAGE_BLOCKS ? run->count : GLAKE_PAGE_BLOCKS + 1;
		n += run->n_blocks;
	}
	return n > GLAKE_PAGE_BLOCKS;
}

static bool add_page(struct session *session, struct model *draft,
                     const Glake__Wire__WeightsPublish *page, struct fault *fault)
{
	struct store *store = rpc_of(session)->store;
	bool is_good = true;
	if (has_too_many_blocks(page)) {
		return fail(fault, STATUS_BAD_REQUEST, "more than %u blocks in a request",
		            GLAKE_PAGE_BLOCKS);
	}
	for (size_t i = 0; is_good && i < page->n_blocks; i++) {
		is_good = add_run(session, draft, page->blocks[i], fault);
	}
	for (size_t i = 0; is_good && i < page->n_tensors; i++) {
		is_good = add_tensor(draft, page->tensors[i], fault);
	}
	if (is_good && !store_has_room(store)) {
		is_good = fail(fault, STATUS_NO_HOST_MEMORY, "%s", STORE_NO_ROOM);
	}
	is_good = is_good && charge(session, draft, fault);
	if (is_good) {
		store_note_tensors(store, draft);
	}
	return is_good;
}

/* ---- the last request ------------------------------------------------------------------------- */

static void log_published(struct session *session, struct model *model)
{
	model->is_in_log = log_limited(&session->holder->tenant->loads_limit, LOG_LEVEL_INFO,
	                               "published '%s' in realm %s on device %u: %" PRIu64
	                               " bytes, %zu tensors",
	                               model->name, model->realm->name, model->device->index,
	                               model->content_bytes, model->n_tensors);
}

static void answer(struct session *session, uint64_t id, uint64_t draft, bool was_published)
{
	Glake__Wire__WeightsPublishAnswer body = GLAKE__WIRE__WEIGHTS_PUBLISH_ANSWER__INIT;
	body.draft = draft;
	body.was_published = was_published;
	rpc_answer(session, id, ANSWER_OF(WEIGHTS_PUBLISH, weights_publish, &body), NULL, 0);
}

/* The draft is gone afterwards, in one way or another. */
static void commit(struct session *session, const request_t *request, struct held *held)
{
	struct store *store = rpc_of(session)->store;
	struct payer payer = holder_payer(session->holder);
	struct model *draft = held->model;
	bool pin = request->weights_publish->pin;
	int r = 0;
	if (model_check_plan(draft) < 0) {
		holder_release(session->holder, held);
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "a tensor ends behind the blocks");
		return;
	}
	if (store_has_damaged(draft)) {
		holder_release(session->holder, held);
		rpc_refuse(session, request->id, STATUS_INTERNAL,
		           "a block of the weights was found damaged");
		return;
	}
	if (store_unparked(draft)) {
		holder_release(session->holder, held);
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "a block of the weights is being published");
		return;
	}
	struct model *earlier = store_find_published(store, draft->realm, draft->device,
	                                             draft->name);
	bool was_published = earlier && earlier->state == MODEL_READY &&
	                     model_is_equal(earlier, draft);
	if (was_published) {
		r = pin ? store_pin_model(store, earlier, payer) : 0;
	} else {
		r = store_publish(store, draft, payer, pin);
	}
	if (r != 0) {
		rpc_refuse_model(session, request->id, draft, r);
		/* The draft is gone already if that closed the session. */
		if (session->state != SESSION_CLOSING) {
			holder_release(session->holder, held);
		}
		return;
	}
	if (was_published) {
		holder_release(session->holder, held);
	} else {
		log_published(session, draft);
		holder_forget_draft(session->holder, held);
	}
	answer(session, request->id, 0, was_published);
}

void rpc_weights_publish(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__WeightsPublish *body = request->weights_publish;
	struct fault fault = {.status = STATUS_OK};
	struct held *held = body->draft == 0
	                            ? begin(session, request)
	                            : holder_find(session->holder, HELD_DRAFT, body->draft);
	if (!held) {
		if (body->draft != 0) {
			rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
			           "there is no draft %" PRIu64, body->draft);
		}
		return;
	}
	/* The client begins anew if this answer is lost. */
	held->request = request->id;
	if (!add_page(session, held->model, body, &fault)) {
		holder_release(session->holder, held);
		rpc_refuse(session, request->id, fault.status, "%s", fault.text);
	} else if (body->commit) {
		commit(session, request, held);
	} else {
		answer(session, request->id, held->id, false);
	}
}

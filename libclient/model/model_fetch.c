/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both lists come in pages, and the next page is asked for before the last one is worked on: the
 * daemon sends fds while the driver maps others. So the round trips of a model of many hundred
 * blocks cost no time of their own.
 */
#include "libclient/model/model_fetch.h"

#include <errno.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/call.h"

static int protocol_error(struct glake_model *model, const char *why)
{
	return glake__link_kill(&model->session->link, GLAKE_E_PROTOCOL, why);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static int take_opened(struct glake_model *model, const Glake__Wire__ModelOpenAnswer *answer)
{
	if (answer->n_tensors > GLAKE_MAX_TENSORS || answer->n_blocks > GLAKE_MAX_BLOCKS ||
	    answer->span_bytes % GLAKE_CHUNK_GRANULARITY != 0) {
		return protocol_error(model, "the daemon's answer about a model is invalid");
	}
	model->id = answer->model;
	model->n_tensors = answer->n_tensors;
	model->n_blocks = answer->n_blocks;
	model->content_bytes = answer->content_bytes;
	model->span_bytes = answer->span_bytes;
	model->was_loaded = answer->was_loaded;
	model->deduplicated_bytes = answer->deduplicated_bytes;
	model->load_ns = answer->load_ns;
	model->name = strdup(answer->name ? answer->name : "");
	return model->name ? 0 : glake__fail(-ENOMEM, "out of memory");
}

int glake__model_attach(struct glake_model *model, const char *key, bool pin)
{
	Glake__Wire__Request *request = REQUEST(WEIGHTS_ATTACH, WeightsAttach, weights_attach,
	                                        .device = model->device->public.index,
	                                        .key = (char *)key, .pin = pin);
	struct glake__call call;
	int r = glake__call(&model->session->link, &call, request,
	                    GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN, NULL, 0);
	if (r == 0) {
		r = take_opened(model, call.answer->model_open);
		glake__call_end(&model->session->link, &call);
	}
	return r;
}

/* @call is to be ended in any case. */
static int request_once(struct glake_model *model, struct glake__call *call,
                        Glake__Wire__Request *request, const int *fds, size_t n_fds,
                        const struct glake_model_options *options)
{
	struct glake__link *link = &model->session->link;
	int r = glake__call_start(link, call, request, GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN, fds,
	                          n_fds);
	return r < 0 ? r : glake__call_wait(link, call, options->progress, options->progress_user);
}

int glake__model_request(struct glake_model *model, const struct glake__model_files *files,
                         const struct glake_model_options *options)
{
	Glake__Wire__Request *request = REQUEST(
		MODEL_OPEN, ModelOpen, model_open, .device = model->device->public.index,
		.files = (char **)files->names, .n_files = files->n_files,
		.progress = options->progress != NULL, .may_direct = files->is_ours,
		.pin = options->pin != 0,
		.name = (char *)(options->name ? options->name : files->name),
		.index = files->index_name);
	cleanup_cancel int cancel = cancel_disable();
	struct glake__call call;
	size_t n_fds = files->n_files + (files->index_name ? 1 : 0);
	int r = request_once(model, &call, request, files->fds, n_fds, options);
	if (r == GLAKE_E_GONE) {
		/* The chunks that the lost connection granted go back; glaked goes on loading the model. */
		glake__call_end(&model->session->link, &call);
		r = request_once(model, &call, request, files->fds, n_fds, options);
	}
	if (r == 0) {
		r = take_opened(model, call.answer->model_open);
	}
	glake__call_end(&model->session->link, &call);
	return r;
}

/* ---- pages ------------------------------------------------------------------------------------ */

/* One of the two lists: the request under way, if any. */
struct pager {
	struct glake_model *model;
	Glake__Wire__Answer__BodyCase kind; /* MODEL_TENSORS or MODEL_BLOCKS */
	bool is_asked;                      /* call is under way, or has its answer */
	uint64_t first;                     /* of the page asked for */
	struct glake__call call;
};

static int ask(struct pager *pager, uint64_t first)
{
	const uint64_t model = pager->model->id;
	Glake__Wire__Request *request = pager->kind == GLAKE__WIRE__ANSWER__BODY_MODEL_TENSORS
	                                        ? REQUEST(MODEL_TENSORS, ModelTensors,
	                                                  model_tensors, .model = model,
	                                                  .first = first)
	                                        : REQUEST(MODEL_BLOCKS, ModelBlocks, model_blocks,
	                                                  .model = model, .first = first);
	int r = glake__call_start(&pager->model->session->link, &pager->call, request, pager->kind,
	                          NULL, 0);
	pager->is_asked = r == 0;
	pager->first = first;
	return r;
}

static int take_tensor(struct glake_model *model, const Glake__Wire__Tensor *wire)
{
	struct glake__tensor tensor = {
		.name = wire->name,
		.shape = wire->shape,
		.strides = wire->n_strides ? wire->strides : NULL,
		.n_dims = (uint32_t)wire->n_shape,
		.dtype = wire->dtype,
		.offset = wire->offset,
		.n_bytes = wire->bytes,
	};
	if (wire->n_shape > GLAKE_MAX_DIMS ||
	    (tensor.strides && wire->n_strides != wire->n_shape) ||
	    tensor.n_bytes > model->span_bytes ||
	    tensor.offset > model->span_bytes - tensor.n_bytes ||
	    model->tensors.n_tensors == model->n_tensors) {
		return protocol_error(model, "the daemon's list of tensors is invalid");
	}
	int r = glake__tensor_table_add(&model->tensors, &tensor);
	return r < 0 ? glake__fail(r, "out of memory") : 0;
}

static int take_tensors(struct glake_model *model, const Glake__Wire__ModelTensorsAnswer *page)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < page->n_tensors; i++) {
		r = take_tensor(model, page->tensors[i]);
	}
	return r;
}

static int take_blocks(struct glake_model *model, const Glake__Wire__ModelBlocksAnswer *page,
                       struct fdlist *fds)
{
	if (fds->is_cut) {
		return glake__call_cut();
	}
	if (fds->n_fds != page->n_chunk_bytes) {
		return protocol_error(model, "the daemon's list of blocks lacks fds");
	}
	return glake__model_map_blocks(model, page->chunk_bytes, fds->fds, page->n_chunk_bytes);
}

/* Wait for the page asked for, ask for the one behind it, and only then work on the first. */
static int turn_page(struct pager *pager)
{
	struct glake_model *model = pager->model;
	int r = glake__call_wait(&model->session->link, &pager->call, NULL, NULL);
	if (r == GLAKE_E_GONE) {
		glake__call_end(&model->session->link, &pager->call);
		r = ask(pager, pager->first);
		r = r < 0 ? r : glake__call_wait(&model->session->link, &pager->call, NULL, NULL);
	}
	if (r < 0) {
		return r;
	}
	Glake__Wire__Answer *answer = pager->call.answer;
	cleanup_fdlist struct fdlist fds = pager->call.fds;
	pager->call.answer = NULL;
	fdlist_init(&pager->call.fds);
	glake__call_end(&model->session->link, &pager->call);
	pager->is_asked = false;

	bool is_tensors = pager->kind == GLAKE__WIRE__ANSWER__BODY_MODEL_TENSORS;
	uint64_t next = is_tensors ? answer->model_tensors->next : answer->model_blocks->next;
	size_t n_rows = is_tensors ? answer->model_tensors->n_tensors
	                           : answer->model_blocks->n_chunk_bytes;
	if (next != 0 && n_rows == 0) {
		r = protocol_error(model, "the daemon sent an empty page");
	} else if (next != 0) {
		r = ask(pager, next);
	}
	if (r == 0) {
		r = is_tensors ? take_tensors(model, answer->model_tensors)
		               : take_blocks(model, answer->model_blocks, &fds);
	}
	glake__wire__answer__free_unpacked(answer, NULL);
	return r;
}

static int check_complete(struct glake_model *model)
{
	if (model->tensors.n_tensors != model->n_tensors) {
		return protocol_error(model, "the daemon's list of tensors is not complete");
	}
	if (!model->no_map &&
	    (model->n_mapped != model->n_blocks || model->mapped_bytes != model->span_bytes)) {
		return protocol_error(model, "the daemon's list of blocks is not complete");
	}
	if (glake__tensor_table_sort(&model->tensors) < 0) {
		return protocol_error(model, "the daemon's list has two tensors of one name");
	}
	return 0;
}

int glake__model_fetch(struct glake_model *model)
{
	cleanup_cancel int cancel = cancel_disable();
	struct pager blocks = {.model = model, .kind = GLAKE__WIRE__ANSWER__BODY_MODEL_BLOCKS};
	struct pager tensors = {.model = model, .kind = GLAKE__WIRE__ANSWER__BODY_MODEL_TENSORS};
	int r = 0;
	if (!model->no_map && model->n_blocks > 0) {
		r = ask(&blocks, 0);
	}
	if (r == 0 && model->n_tensors > 0) {
		r = ask(&tensors, 0);
	}
	while (r == 0 && (blocks.is_asked || tensors.is_asked)) {
		r = blocks.is_asked ? turn_page(&blocks) : 0;
		if (r == 0 && tensors.is_asked) {
			r = turn_page(&tensors);
		}
	}
	glake__call_end(&model->session->link, &blocks.call);
	glake__call_end(&model->session->link, &tensors.call);
	return r < 0 ? r : check_complete(model);
}

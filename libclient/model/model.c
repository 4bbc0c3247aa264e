/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/model.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/fork.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/space/context.h"
#include "libclient/space/reback.h"

/* ---- mapping ---------------------------------------------------------------------------------- */

static int check_blocks(struct glake_model *model, const uint64_t *n_bytes, size_t n_blocks)
{
	uint64_t n_left = model->span_bytes - model->mapped_bytes;
	bool is_sane = n_blocks <= model->n_blocks - model->n_mapped;
	for (size_t i = 0; is_sane && i < n_blocks; i++) {
		is_sane = n_bytes[i] > 0 && n_bytes[i] % GLAKE_CHUNK_GRANULARITY == 0 &&
		          n_bytes[i] <= n_left;
		n_left -= is_sane ? n_bytes[i] : 0;
	}
	return is_sane ? 0
	               : glake__link_kill(&model->session->link, GLAKE_E_PROTOCOL,
	                                  "the daemon's list of blocks is invalid");
}

/* Without access: all of the model gets it in one call, at the end. */
static int map_parts(struct glake_model *model, struct glake__part *parts, const uint64_t *n_bytes,
                     const int *fds, size_t n_parts)
{
	uint64_t total = 0;
	size_t n_made = 0;
	int r = 0;
	for (; r == 0 && n_made < n_parts; n_made += r == 0) {
		parts[n_made] = (struct glake__part){
			.chunk = glake__chunk_new(0, n_bytes[n_made], model->device->handle,
		                                  GLAKE__PAGE_BLOCK),
			.n_bytes = n_bytes[n_made],
			.fd = fds[n_made],
		};
		r = parts[n_made].chunk ? 0 : -ENOMEM;
		total += n_bytes[n_made];
	}
	if (r == 0) {
		r = glake__range_fill(model->range, model->mapped_bytes, parts, n_parts);
	}
	for (size_t i = 0; i < n_made; i++) {
		glake__chunk_put(parts[i].chunk);
	}
	if (r == 0) {
		model->n_mapped += n_parts;
		model->mapped_bytes += total;
	}
	return r;
}

int glake__model_map_blocks(struct glake_model *model, const uint64_t *n_bytes, const int *fds,
                            size_t n_blocks)
{
	int r = check_blocks(model, n_bytes, n_blocks);
	if (r < 0 || n_blocks == 0) {
		return r;
	}
	cleanup_free struct glake__part *parts = calloc(n_blocks, sizeof(*parts));
	return parts ? map_parts(model, parts, n_bytes, fds, n_blocks)
	             : glake__fail(-ENOMEM, "out of memory");
}

void glake__model_unmap(struct glake_model *model)
{
	if (model->range) {
		glake__range_end(model->range, NULL);
	}
	model->range = NULL;
}

void glake__model_free(struct glake_model *model)
{
	glake__tensor_table_deinit(&model->tensors);
	free(model->name);
	free(model);
}

/* ---- closing ---------------------------------------------------------------------------------- */

void glake__model_ref(struct glake_model *model)
{
	model->n_refs++;
}

/* With the last reference gone, in the process that opened it. */
static void finish(struct glake_model *model)
{
	struct glake_session *session = model->session;
	if (model->is_exported) {
		glake__context_quiesce(session, model->device);
	}
	glake__model_unmap(model);
	glake__lock();
	session->books.shared_bytes -= model->mapped_bytes;
	glake__unlock();
	if (!session->is_closing) {
		glake__rpc_model_close(session, model->id);
	}
}

static bool is_of_this_process(const struct glake_model *model)
{
	return model->session->link.fork_generation == glake__fork_generation();
}

static void end(struct glake_model *model)
{
	struct glake_session *session = model->session;
	bool is_exported = model->is_exported;
	if (is_of_this_process(model)) {
		char *text = glake__error_save();
		finish(model);
		glake__error_restore(text);
	} else if (model->range) {
		glake__range_forget(model->range);
	}
	glake__model_free(model);
	if (is_exported) {
		glake__session_unref(session);
	}
}

/* Whether the model sleeps, and so ends when it has woken. If not, no sleep takes it any more. */
static bool is_late(struct glake_model *model)
{
	struct glake__books *books = &model->session->books;
	glake__lock();
	bool is_asleep = model->range && model->range->is_asleep;
	if (is_asleep) {
		model->next = books->late;
		books->late = model;
	} else {
		model->is_whole = false;
	}
	glake__unlock();
	return is_asleep;
}

void glake__model_unref(struct glake_model *model)
{
	if (--model->n_refs == 0 && !(is_of_this_process(model) && is_late(model))) {
		end(model);
	}
}

void glake__models_end_late(struct glake_session *session)
{
	struct glake__books *books = &session->books;
	if (!session->is_forked) {
		glake__lock();
	}
	struct glake_model *model = books->late;
	books->late = NULL;
	if (!session->is_forked) {
		glake__unlock();
	}
	while (model) {
		struct glake_model *next = model->next;
		end(model);
		model = next;
	}
}

void glake_model_close(struct glake_model *model)
{
	if (!model || glake__session_check(model->session) < 0) {
		return;
	}
	struct glake_session *session = model->session;
	struct glake__books *books = &session->books;
	glake__lock();
	struct glake_model **at = &books->models;
	while (*at != model) {
		at = &(*at)->next;
	}
	*at = model->next;
	glake__unlock();
	glake__model_unref(model);
	glake__leave(session, 0);
}

/* ---- looking ---------------------------------------------------------------------------------- */

int glake_model_info(const struct glake_model *model, struct glake_model_info *info)
{
	if (!model) {
		return glake__fail(-EINVAL, "the model is NULL");
	}
	struct glake_model_info full = {
		.name = model->name,
		.device = model->device->public.index,
		.n_tensors = model->n_tensors,
		.n_blocks = model->n_blocks,
		.content_bytes = model->content_bytes,
		.mapped_bytes = model->mapped_bytes,
		.base = model->base,
		.was_loaded = model->was_loaded,
		.deduplicated_bytes = model->deduplicated_bytes,
		.load_ns = model->load_ns,
		.map_ns = model->map_ns,
	};
	return glake__sized_out(info, &full, sizeof(full));
}

static int show_tensor(const struct glake_model *model, const struct glake__tensor *tensor,
                       struct glake_tensor *tensor_out)
{
	struct glake_tensor full = {
		.name = tensor->name,
		.dtype = (enum glake_dtype)tensor->dtype,
		.n_dims = tensor->n_dims,
		.shape = tensor->shape,
		.strides = tensor->strides,
		.bytes = tensor->n_bytes,
		.ptr = model->base && tensor->n_bytes ? model->base + tensor->offset : 0,
	};
	return glake__sized_out(tensor_out, &full, sizeof(full));
}

int glake_model_tensor_at(const struct glake_model *model, uint64_t position,
                          struct glake_tensor *tensor_out)
{
	if (!model) {
		return glake__fail(-EINVAL, "the model is NULL");
	}
	if (position >= model->tensors.n_tensors) {
		return glake__fail(-ENOENT, "the model has %llu tensors",
		                   (unsigned long long)model->tensors.n_tensors);
	}
	return show_tensor(model, &model->tensors.tensors[position], tensor_out);
}

int glake_model_tensor(const struct glake_model *model, const char *name,
                       struct glake_tensor *tensor_out)
{
	if (!model || !name) {
		return glake__fail(-EINVAL, "the model, or the name, is NULL");
	}
	const struct glake__tensor *tensor = glake__tensor_table_find(&model->tensors, name);
	if (!tensor) {
		return glake__fail(-ENOENT, "%s has no tensor named %s", model->name, name);
	}
	return show_tensor(model, tensor, tensor_out);
}

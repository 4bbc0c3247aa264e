/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/clock.h"
#include "proto/limits.h"
#include "libclient/memory/context.h"
#include "libclient/link/fork.h"
#include "libclient/memory/map.h"
#include "libclient/model/model_fetch.h"
#include "libclient/model/model_files.h"
#include "libclient/link/notice.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"

/* ---- mapping ---------------------------------------------------------------------------------- */

static int reserve(struct glake_model *model)
{
	if (model->no_map || model->span_bytes == 0) {
		return 0;
	}
	model->block_bytes = calloc(model->n_blocks, sizeof(*model->block_bytes));
	if (!model->block_bytes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	return glake__map_reserve(model->session, model->span_bytes, 0, &model->base);
}

int glake__model_map_block(struct glake_model *model, uint64_t n_bytes, int fd)
{
	if (n_bytes == 0 || n_bytes % GLAKE_CHUNK_GRANULARITY != 0 ||
	    n_bytes > model->span_bytes - model->mapped_bytes ||
	    model->n_mapped == model->n_blocks) {
		return glake__link_kill(model->session, GLAKE_E_PROTOCOL,
		                        "the daemon's list of blocks makes no sense");
	}
	int r = glake__map_fd(model->session, model->base + model->mapped_bytes, n_bytes, fd);
	if (r == 0) {
		model->block_bytes[model->n_mapped++] = n_bytes;
		model->mapped_bytes += n_bytes;
	}
	return r;
}

/* Whatever of it is there. Addresses that the driver does not unmap stay reserved. */
static void unmap(struct glake_model *model)
{
	uint64_t offset = 0;
	int error = 0;
	for (uint64_t i = 0; i < model->n_mapped; i++) {
		int r = glake__map_unmap(model->session, model->base + offset,
		                         model->block_bytes[i]);
		error = error ? error : r;
		offset += model->block_bytes[i];
	}
	if (model->base != 0 && error == 0) {
		glake__map_unreserve(model->session, model->base, model->span_bytes);
	}
}

static void model_free(struct glake_model *model)
{
	glake__tensor_table_deinit(&model->tensors);
	free(model->block_bytes);
	free(model->name);
	free(model);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static int bring_in(struct glake_model *model)
{
	uint64_t start_ns = clock_now_ns();
	int r = reserve(model);
	if (r == 0) {
		r = glake__model_fetch(model);
	}
	if (r == 0 && model->n_mapped > 0) {
		r = glake__map_access(model->session, model->device, model->base,
		                      model->mapped_bytes, false);
	}
	model->map_ns = model->no_map ? 0 : clock_now_ns() - start_ns;
	return r;
}

static void enter(struct glake_model *model)
{
	struct glake__books *books = &model->session->books;
	pthread_mutex_lock(&books->lock);
	model->next = books->models;
	books->models = model;
	books->shared_bytes += model->mapped_bytes;
	pthread_mutex_unlock(&books->lock);
}

static int open_model(struct glake_session *session, const struct glake__model_files *files,
                      const struct glake_model_options *options, struct glake__device *device,
                      struct glake_model **model_out)
{
	struct glake_model *model = calloc(1, sizeof(*model));
	if (!model) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	model->session = session;
	model->n_refs = 1;
	model->device = device;
	model->no_map = options->no_map != 0;
	int r = glake__model_request(model, files, options);
	if (r == 0) {
		r = bring_in(model);
	}
	if (r < 0) {
		char *text = glake__error_save();
		unmap(model);
		if (model->id != 0) {
			glake__rpc_model_close(session, model->id);
		}
		model_free(model);
		glake__error_restore(text);
		return r;
	}
	enter(model);
	*model_out = model;
	return 0;
}

/* What the three doors have in common before they open files. */
static int check_options(struct glake_session *session, const struct glake_model_options *options,
                         struct glake_model_options *full_out, struct glake__device **device_out)
{
	int r = glake__session_check(session);
	if (r == 0) {
		r = glake__sized_in(options, full_out, sizeof(*full_out));
	}
	if (r < 0) {
		return r;
	}
	if (full_out->no_map) {
		*device_out = glake__session_device(session, full_out->device);
		return *device_out ? 0 : -ENODEV;
	}
	*device_out = glake__session_mappable(session, full_out->device, &r);
	return r;
}

int glake_model_open(struct glake_session *session, const char *path,
                     const struct glake_model_options *options, struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	int r = check_options(session, options, &full, &device);
	if (r < 0) {
		return r;
	}
	struct glake__model_files files;
	r = glake__model_files_open(&files, path);
	if (r == 0) {
		r = open_model(session, &files, &full, device, model_out);
	}
	glake__model_files_deinit(&files);
	return glake__leave(session, r);
}

int glake_model_open_shards(struct glake_session *session, const char *const *paths, size_t n_paths,
                            const struct glake_model_options *options,
                            struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	int r = check_options(session, options, &full, &device);
	if (r < 0) {
		return r;
	}
	struct glake__model_files files;
	r = glake__model_files_open_shards(&files, paths, n_paths);
	if (r == 0) {
		r = open_model(session, &files, &full, device, model_out);
	}
	glake__model_files_deinit(&files);
	return glake__leave(session, r);
}

int glake_model_open_fds(struct glake_session *session, const int *fds, const char *const *names,
                         size_t n_fds, const struct glake_model_options *options,
                         struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	int r = check_options(session, options, &full, &device);
	if (r < 0) {
		return r;
	}
	struct glake__model_files files;
	r = glake__model_files_borrow(&files, fds, names, n_fds);
	if (r == 0) {
		r = open_model(session, &files, &full, device, model_out);
	}
	glake__model_files_deinit(&files);
	return glake__leave(session, r);
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
	unmap(model);
	pthread_mutex_lock(&session->books.lock);
	session->books.shared_bytes -= model->mapped_bytes;
	pthread_mutex_unlock(&session->books.lock);
	if (!session->is_closing) {
		glake__rpc_model_close(session, model->id);
	}
}

void glake__model_unref(struct glake_model *model)
{
	if (--model->n_refs > 0) {
		return;
	}
	struct glake_session *session = model->session;
	bool is_exported = model->is_exported;
	if (session->fork_generation == glake__fork_generation()) {
		char *text = glake__error_save();
		finish(model);
		glake__error_restore(text);
	}
	model_free(model);
	if (is_exported) {
		glake__session_unref(session);
	}
}

void glake_model_close(struct glake_model *model)
{
	if (!model || glake__session_check(model->session) < 0) {
		return;
	}
	struct glake_session *session = model->session;
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	struct glake_model **at = &books->models;
	while (*at != model) {
		at = &(*at)->next;
	}
	*at = model->next;
	pthread_mutex_unlock(&books->lock);
	glake__model_unref(model);
	glake__leave(session, 0);
}

void glake__models_deinit(struct glake_session *session)
{
	while (session->books.models) {
		struct glake_model *model = session->books.models;
		session->books.models = model->next;
		glake__model_unref(model);
	}
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

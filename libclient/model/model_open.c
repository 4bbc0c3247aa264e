/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "proto/clock.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/memory/reback.h"
#include "libclient/model/model.h"
#include "libclient/model/model_fetch.h"
#include "libclient/model/model_files.h"

static int reserve(struct glake_model *model)
{
	if (model->no_map || model->span_bytes == 0) {
		return 0;
	}
	int r = glake__range_reserve(GLAKE__RANGE_MODEL, model, model->device->handle,
	                             model->span_bytes, 0, 0, &model->range);
	model->base = r == 0 ? model->range->ptr : 0;
	return r;
}

static int bring_in(struct glake_model *model)
{
	uint64_t start_ns = clock_now_ns();
	int r = reserve(model);
	if (r == 0) {
		r = glake__model_fetch(model);
	}
	if (r == 0 && model->n_mapped > 0) {
		r = glake__range_access(model->range, 0, model->mapped_bytes, GLAKE__ACCESS_READ);
	}
	model->map_ns = model->no_map ? 0 : clock_now_ns() - start_ns;
	return r;
}

/* Drop all models: the session ends. */
static void end_models(struct glake_session *session)
{
	while (session->books.models) {
		struct glake_model *model = session->books.models;
		session->books.models = model->next;
		glake__model_unref(model);
	}
}

static void enter(struct glake_model *model)
{
	struct glake__books *books = &model->session->books;
	glake__lock();
	model->session->end_models = end_models;
	model->next = books->models;
	books->models = model;
	books->shared_bytes += model->mapped_bytes;
	glake__unlock();
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
		glake__model_unmap(model);
		if (model->id != 0) {
			glake__rpc_model_close(session, model->id);
		}
		glake__model_free(model);
		glake__error_restore(text);
		return r;
	}
	enter(model);
	*model_out = model;
	return 0;
}

/* ---- the public calls ------------------------------------------------------------------------- */

/* Before files are opened. */
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

/* Ends @files. @opened: 0, or why they could not be opened. */
static int open_files(struct glake_session *session, struct glake__model_files *files, int opened,
                      const struct glake_model_options *options, struct glake__device *device,
                      struct glake_model **model_out)
{
	int r = opened < 0 ? opened : open_model(session, files, options, device, model_out);
	glake__model_files_deinit(files);
	return glake__leave(session, r);
}

int glake_model_open(struct glake_session *session, const char *path,
                     const struct glake_model_options *options, struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	struct glake__model_files files;
	int r = check_options(session, options, &full, &device);
	return r < 0 ? r
	             : open_files(session, &files, glake__model_files_open(&files, path), &full,
	                          device, model_out);
}

int glake_model_open_shards(struct glake_session *session, const char *const *paths, size_t n_paths,
                            const struct glake_model_options *options,
                            struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	struct glake__model_files files;
	int r = check_options(session, options, &full, &device);
	return r < 0 ? r
	             : open_files(session, &files,
	                          glake__model_files_open_shards(&files, paths, n_paths), &full,
	                          device, model_out);
}

int glake_model_open_fds(struct glake_session *session, const int *fds, const char *const *names,
                         size_t n_fds, const struct glake_model_options *options,
                         struct glake_model **model_out)
{
	struct glake_model_options full;
	struct glake__device *device;
	struct glake__model_files files;
	int r = check_options(session, options, &full, &device);
	return r < 0 ? r
	             : open_files(session, &files,
	                          glake__model_files_borrow(&files, fds, names, n_fds), &full,
	                          device, model_out);
}

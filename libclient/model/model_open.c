/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "proto/clock.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/space/reback.h"
#include "libclient/model/model.h"
#include "libclient/model/model_fetch.h"
#include "libclient/model/model_files.h"

static struct glake_session *session_of(const struct glake__range *range)
{
	const struct glake_model *model = range->user;
	return model->is_whole ? model->session : NULL;
}

static uint64_t id_of(const struct glake__range *range)
{
	const struct glake_model *model = range->user;
	return model->id;
}

const struct glake__use glake__use_model = {
	.name = "model",
	.kind = GLAKE__OWN,
	.session = session_of,
	.whole = id_of,
};

static int reserve(struct glake_model *model)
{
	if (model->no_map || model->span_bytes == 0) {
		return 0;
	}
	int r = glake__range_reserve(&glake__use_model, model, model->device->handle,
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
	model->session->end_late_models = glake__models_end_late;
	model->is_whole = true;
	model->next = books->models;
	books->models = model;
	books->shared_bytes += model->mapped_bytes;
	glake__unlock();
}

int glake__model_make(struct glake_session *session, struct glake__device *device, bool no_map,
                      glake__model_ask_fn ask, const void *how, struct glake_model **model_out)
{
	struct glake_model *model = calloc(1, sizeof(*model));
	if (!model) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	model->session = session;
	model->n_refs = 1;
	model->device = device;
	model->no_map = no_map;
	int r = ask(model, how);
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

/* ---- files ------------------------------------------------------------------------------------ */

struct opening {
	struct glake_session *session;
	struct glake_model_options options;
	struct glake__device *device;
	struct glake__model_files files;
};

static int ask(struct glake_model *model, const void *how)
{
	const struct opening *opening = how;
	return glake__model_request(model, &opening->files, &opening->options);
}

/* ---- the public calls ------------------------------------------------------------------------- */

/* All but the files. */
static int begin(struct opening *opening, struct glake_session *session,
                 const struct glake_model_options *options)
{
	opening->session = session;
	int r = glake__session_check(session);
	if (r == 0) {
		r = glake__sized_in(options, &opening->options, sizeof(opening->options));
	}
	if (r < 0) {
		return r;
	}
	if (!opening->options.no_map) {
		return glake__session_mappable(session, opening->options.device, &opening->device);
	}
	opening->device = glake__session_device(session, opening->options.device);
	return opening->device ? 0 : -ENODEV;
}

/* @r: 0, or why the files could not be opened. */
static int finish(struct opening *opening, int r, struct glake_model **model_out)
{
	if (r == 0) {
		r = glake__model_make(opening->session, opening->device,
		                      opening->options.no_map != 0, ask, opening, model_out);
	}
	glake__model_files_deinit(&opening->files);
	return glake__leave(opening->session, r);
}

int glake_model_open(struct glake_session *session, const char *path,
                     const struct glake_model_options *options, struct glake_model **model_out)
{
	struct opening opening;
	int r = begin(&opening, session, options);
	return r < 0 ? r
	             : finish(&opening, glake__model_files_open(&opening.files, path), model_out);
}

int glake_model_open_shards(struct glake_session *session, const char *const *paths, size_t n_paths,
                            const struct glake_model_options *options,
                            struct glake_model **model_out)
{
	struct opening opening;
	int r = begin(&opening, session, options);
	return r < 0 ? r
	             : finish(&opening,
	                      glake__model_files_open_shards(&opening.files, paths, n_paths),
	                      model_out);
}

int glake_model_open_fds(struct glake_session *session, const int *fds, const char *const *names,
                         size_t n_fds, const struct glake_model_options *options,
                         struct glake_model **model_out)
{
	struct opening opening;
	int r = begin(&opening, session, options);
	return r < 0 ? r
	             : finish(&opening,
	                      glake__model_files_borrow(&opening.files, fds, names, n_fds),
	                      model_out);
}

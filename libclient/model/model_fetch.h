/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests that open a model and bring in its tensors and blocks.
 *
 * Threads: any; one model belongs to one thread until it is open.
 */
#ifndef GLAKE_LIBCLIENT_MODEL_FETCH_H
#define GLAKE_LIBCLIENT_MODEL_FETCH_H

#include "libclient/model/model.h"
#include "libclient/model/model_files.h"

/* Have the daemon open it, which may mean to load it. On success @model has its numbers and id. */
int glake__model_request(struct glake_model *model, const struct glake__model_files *files,
                         const struct glake_model_options *options);

/*
 * Fetch all tensors and, unless no_map, all blocks, mapping each as it comes. On failure what was
 * mapped so far stays for the caller to undo.
 */
int glake__model_fetch(struct glake_model *model);

#endif

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

/*
 * Ask the daemon to open it, and to load it if it must. On success @model has its numbers and id.
 */
int glake__model_request(struct glake_model *model, const struct glake__model_files *files,
                         const struct glake_model_options *options);

/* Opens a published model. */
int glake__model_attach(struct glake_model *model, const char *key, bool pin);

/*
 * Fetch all tensors and, unless no_map, all blocks, mapping each as it comes. On failure the caller
 * unmaps the blocks that are mapped so far.
 */
int glake__model_fetch(struct glake_model *model);

#endif

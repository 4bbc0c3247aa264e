/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.safetensors.index.json: which shard holds which tensor.
 *
 * Owner: the parsed index, from glake__model_index_open() to glake__model_index_close().
 * Threads: none of its own.
 */
#ifndef GLAKE_LIBCLIENT_MODEL_INDEX_H
#define GLAKE_LIBCLIENT_MODEL_INDEX_H

#include <stddef.h>

struct glake__model_index {
	const char *name; /* borrowed: the index file's, for texts */
	void *json;       /* owned */
	size_t n_shards;
	const char **shards; /* owned array, sorted, each once; strings of json */
};

/*
 * Read and check the index behind @fd, which stays the caller's. Shard names are plain names of the
 * index's own folder. Returns 0, -errno, or GLAKE_E_BAD_FILE.
 */
int glake__model_index_open(struct glake__model_index *index, const char *name, int fd);
void glake__model_index_close(struct glake__model_index *index);

/* The first tensor that is said to be in @shard, for texts. "?" if there is none. */
const char *glake__model_index_tensor_in(const struct glake__model_index *index, const char *shard);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/model_index.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/error.h"

static int read_all(const char *name, int fd, char **bytes_out, size_t *n_bytes_out)
{
	struct stat status;
	if (fstat(fd, &status) < 0) {
		return glake__fail(-errno, "%s: %s", name, strerrordesc_np(errno));
	}
	if (status.st_size > (off_t)GLAKE_MAX_SAFETENSORS_HEADER_BYTES) {
		return glake__fail(GLAKE_E_BAD_FILE, "%s: %lld bytes are too many for an index",
		                   name, (long long)status.st_size);
	}
	size_t n_bytes = (size_t)status.st_size;
	cleanup_free char *bytes = malloc(n_bytes + 1);
	if (!bytes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	size_t n_read = 0;
	while (n_read < n_bytes) {
		ssize_t n = pread(fd, bytes + n_read, n_bytes - n_read, (off_t)n_read);
		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			return glake__fail(GLAKE_E_READ, "%s: %s", name, strerrordesc_np(errno));
		}
		if (n == 0) {
			return glake__fail(GLAKE_E_FILE_CHANGED, "%s: became shorter", name);
		}
		n_read += (size_t)n;
	}
	*bytes_out = ptr_steal(bytes);
	*n_bytes_out = n_bytes;
	return 0;
}

static bool is_plain_name(const char *name)
{
	return *name && strlen(name) <= 255 && !strchr(name, '/') && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The sorted shard names, each once. */
static int collect_shards(struct glake__model_index *index, json_t *map)
{
	size_t n_tensors = json_object_size(map);
	index->shards = calloc(n_tensors + 1, sizeof(*index->shards));
	if (!index->shards) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	size_t n_names = 0;
	const char *tensor;
	json_t *value;
	json_object_foreach(map, tensor, value)
	{
		const char *shard = json_string_value(value);
		if (!shard || !is_plain_name(shard)) {
			return glake__fail(
				GLAKE_E_BAD_FILE,
				"%s: tensor %.200s: %s is not the name of a file beside the "
				"index",
				index->name, tensor, shard ? shard : "its value");
		}
		/* Neighbours are usually in one shard: most repetitions end here, before the sort. */
		if (n_names == 0 || strcmp(index->shards[n_names - 1], shard) != 0) {
			index->shards[n_names++] = shard;
		}
	}
	qsort(index->shards, n_names, sizeof(*index->shards), compare_names);
	for (size_t i = 0; i < n_names; i++) {
		if (i == 0 || strcmp(index->shards[index->n_shards - 1], index->shards[i]) != 0) {
			index->shards[index->n_shards++] = index->shards[i];
		}
	}
	return 0;
}

static json_t *weight_map(const struct glake__model_index *index)
{
	return json_object_get(index->json, "weight_map");
}

int glake__model_index_open(struct glake__model_index *index, const char *name, int fd)
{
	*index = (struct glake__model_index){.name = name};
	cleanup_free char *bytes = NULL;
	size_t n_bytes = 0;
	int r = read_all(name, fd, &bytes, &n_bytes);
	if (r < 0) {
		return r;
	}
	json_error_t error;
	index->json = json_loadb(bytes, n_bytes, 0, &error);
	if (!index->json) {
		return glake__fail(GLAKE_E_BAD_FILE, "%s: line %d: %s", name, error.line,
		                   error.text);
	}
	json_t *map = weight_map(index);
	if (!json_is_object(map) || json_object_size(map) == 0) {
		r = glake__fail(GLAKE_E_BAD_FILE, "%s: no weight_map in it", name);
	} else {
		r = collect_shards(index, map);
	}
	if (r < 0) {
		glake__model_index_close(index);
	}
	return r;
}

void glake__model_index_close(struct glake__model_index *index)
{
	free(index->shards);
	json_decref(index->json);
	index->shards = NULL;
	index->json = NULL;
}

const char *glake__model_index_tensor_in(const struct glake__model_index *index, const char *shard)
{
	const char *tensor;
	json_t *value;
	json_object_foreach(weight_map(index), tensor, value)
	{
		const char *in = json_string_value(value);
		if (in && strcmp(in, shard) == 0) {
			return tensor;
		}
	}
	return "?";
}

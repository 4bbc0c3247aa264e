/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/model_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/cleanup.h"
#include "libclient/link/error.h"
#include "libclient/model/model_index.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* A FIFO or a device must neither be waited for nor read: opened without blocking, then looked at. */
static int open_at(int folder, const char *path, int *fd_out, mode_t *mode_out)
{
	cleanup_fd int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		return glake__fail(-errno, "%s: %s", path, strerrordesc_np(errno));
	}
	struct stat status;
	if (fstat(fd, &status) < 0) {
		return glake__fail(-errno, "%s: %s", path, strerrordesc_np(errno));
	}
	*mode_out = status.st_mode;
	*fd_out = fd_steal(&fd);
	return 0;
}

static int open_regular(int folder, const char *path, int *fd_out)
{
	cleanup_fd int fd = -1;
	mode_t mode = 0;
	int r = open_at(folder, path, &fd, &mode);
	if (r < 0) {
		return r;
	}
	if (!S_ISREG(mode)) {
		return glake__fail(GLAKE_E_BAD_FILE, "%s: not a regular file", path);
	}
	*fd_out = fd_steal(&fd);
	return 0;
}

/* Takes @fd over, on success only. */
static int add(struct glake__model_files *files, int fd, const char *name)
{
	if (files->n_files == MODEL_MAX_FILES) {
		return glake__fail(-E2BIG, "more than %u files", MODEL_MAX_FILES);
	}
	char *copy = strdup(name);
	if (!copy) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	files->names[files->n_files] = copy;
	files->fds[files->n_files++] = fd;
	return 0;
}

static int open_and_add(struct glake__model_files *files, int folder, const char *path)
{
	cleanup_fd int fd = -1;
	int r = open_regular(folder, path, &fd);
	if (r == 0) {
		r = add(files, fd, base_name(path));
	}
	if (r == 0) {
		fd_steal(&fd);
	}
	return r;
}

/* The path as others would write it. A very long one loses its head. */
static int set_name(struct glake__model_files *files, const char *path)
{
	cleanup_free char *real = realpath(path, NULL);
	const char *name = real ? real : path;
	size_t n_bytes = strlen(name);
	files->name = strdup(name +
	                     (n_bytes > GLAKE_MAX_NAME_BYTES ? n_bytes - GLAKE_MAX_NAME_BYTES : 0));
	return files->name ? 0 : glake__fail(-ENOMEM, "out of memory");
}

/* ---- an index and its shards ------------------------------------------------------------------ */

static int open_shards_of(struct glake__model_files *files, int folder,
                          const struct glake__model_index *index)
{
	int r = 0;
	if (index->n_shards > MODEL_MAX_FILES) {
		return glake__fail(GLAKE_E_BAD_FILE, "%s: %zu shards, at most %u are possible",
		                   index->name, index->n_shards, MODEL_MAX_FILES);
	}
	for (size_t i = 0; r == 0 && i < index->n_shards; i++) {
		r = open_and_add(files, folder, index->shards[i]);
		if (r == -ENOENT) {
			r = glake__fail(GLAKE_E_BAD_FILE, "%s: tensor %.200s: no file %s",
			                index->name,
			                glake__model_index_tensor_in(index, index->shards[i]),
			                index->shards[i]);
		}
	}
	return r;
}

/* Takes @index_fd over, on success only. @folder is where the shards are. */
static int open_index(struct glake__model_files *files, int folder, int index_fd, const char *name)
{
	files->index_name = strdup(name);
	if (!files->index_name) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	struct glake__model_index index;
	int r = glake__model_index_open(&index, files->index_name, index_fd);
	if (r < 0) {
		return r;
	}
	r = open_shards_of(files, folder, &index);
	glake__model_index_close(&index);
	if (r == 0) {
		files->fds[files->n_files] = index_fd;
		files->has_index_fd = true;
	}
	return r;
}

static int open_folder(struct glake__model_files *files, int folder, const char *path)
{
	cleanup_fd int index_fd = -1;
	int r = open_regular(folder, INDEX_NAME, &index_fd);
	if (r == 0) {
		r = open_index(files, folder, index_fd, INDEX_NAME);
		if (r == 0) {
			fd_steal(&index_fd);
		}
		return r;
	}
	if (r != -ENOENT) {
		return r;
	}
	r = open_and_add(files, folder, SINGLE_NAME);
	if (r == -ENOENT) {
		return glake__fail(-ENOENT,
		                   "%s: neither " INDEX_NAME " nor " SINGLE_NAME " in this folder",
		                   path);
	}
	return r;
}

/* The folder that @path, a file, is in. */
static int open_parent(const char *path, int *fd_out)
{
	cleanup_free char *parent = strdup(path);
	if (!parent) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	char *slash = strrchr(parent, '/');
	if (slash) {
		slash[1] = '\0';
	}
	int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		return glake__fail(-errno, "%s: %s", parent, strerrordesc_np(errno));
	}
	*fd_out = fd;
	return 0;
}

static bool is_index(const char *path)
{
	size_t n_bytes = strlen(path);
	size_t n_suffix = strlen(INDEX_SUFFIX);
	return n_bytes > n_suffix && strcmp(path + n_bytes - n_suffix, INDEX_SUFFIX) == 0;
}

/* Takes *fd over, on success only. */
static int open_file(struct glake__model_files *files, int *fd, const char *path)
{
	cleanup_fd int folder = -1;
	int r = is_index(path) ? open_parent(path, &folder) : 0;
	if (r == 0) {
		r = is_index(path) ? open_index(files, folder, *fd, base_name(path))
		                   : add(files, *fd, base_name(path));
	}
	if (r == 0) {
		fd_steal(fd);
	}
	return r;
}

/* ---- the three doors -------------------------------------------------------------------------- */

static void init(struct glake__model_files *files, bool is_ours)
{
	*files = (struct glake__model_files){.is_ours = is_ours};
}

int glake__model_files_open(struct glake__model_files *files, const char *path)
{
	init(files, true);
	if (!path) {
		return glake__fail(-EINVAL, "the path is NULL");
	}
	cleanup_fd int fd = -1;
	mode_t mode = 0;
	int r = open_at(AT_FDCWD, path, &fd, &mode);
	if (r < 0) {
		return r;
	}
	if (S_ISDIR(mode)) {
		r = open_folder(files, fd, path);
	} else if (S_ISREG(mode)) {
		r = open_file(files, &fd, path);
	} else {
		r = glake__fail(GLAKE_E_BAD_FILE, "%s: neither a regular file nor a folder", path);
	}
	return r < 0 ? r : set_name(files, path);
}

int glake__model_files_open_shards(struct glake__model_files *files, const char *const *paths,
                                   size_t n_paths)
{
	init(files, true);
	if (n_paths == 0 || n_paths > MODEL_MAX_FILES || !paths) {
		return glake__fail(-EINVAL, "%zu files: 1 to %u are possible", n_paths,
		                   MODEL_MAX_FILES);
	}
	for (size_t i = 0; i < n_paths; i++) {
		int r = open_and_add(files, AT_FDCWD, paths[i]);
		if (r < 0) {
			return r;
		}
	}
	return set_name(files, paths[0]);
}

int glake__model_files_borrow(struct glake__model_files *files, const int *fds,
                              const char *const *names, size_t n_fds)
{
	init(files, false);
	if (n_fds == 0 || n_fds > MODEL_MAX_FILES || !fds) {
		return glake__fail(-EINVAL, "%zu files: 1 to %u are possible", n_fds,
		                   MODEL_MAX_FILES);
	}
	for (size_t i = 0; i < n_fds; i++) {
		const char *name = names && names[i] ? base_name(names[i]) : "(unnamed file)";
		struct stat status;
		if (fstat(fds[i], &status) < 0) {
			return glake__fail(-errno, "%s: %s", name, strerrordesc_np(errno));
		}
		if (!S_ISREG(status.st_mode)) {
			return glake__fail(GLAKE_E_BAD_FILE, "%s: not a regular file", name);
		}
		int r = add(files, fds[i], name);
		if (r < 0) {
			return r;
		}
	}
	files->name = strdup(files->names[0]);
	return files->name ? 0 : glake__fail(-ENOMEM, "out of memory");
}

void glake__model_files_deinit(struct glake__model_files *files)
{
	size_t n_fds = files->n_files + (files->has_index_fd ? 1 : 0);
	for (size_t i = 0; i < n_fds; i++) {
		if (files->is_ours) {
			fd_close(&files->fds[i]);
		}
	}
	for (size_t i = 0; i < files->n_files; i++) {
		free(files->names[i]);
	}
	free(files->index_name);
	free(files->name);
	*files = (struct glake__model_files){.n_files = 0};
}

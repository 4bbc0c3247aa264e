/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/owned.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

static int refuse(int error, const char *why, const char **why_out)
{
	*why_out = why ? why : strerrordesc_np(-error);
	return error;
}

static bool is_owned(const struct stat *what, uid_t owner)
{
	return (what->st_uid == 0 || what->st_uid == owner) &&
	       (what->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int owned_open_folder(const char *path, uid_t owner, const char **why_out)
{
	struct stat facts;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (fd < 0) {
		return refuse(-errno, NULL, why_out);
	}
	if (fstat(fd, &facts) < 0 || !is_owned(&facts, owner)) {
		close(fd);
		return refuse(-EPERM, "others may write to its folder", why_out);
	}
	return fd;
}

static int check_folder(const char *path, uid_t owner, const char **why_out)
{
	struct stat facts;
	if (stat(path, &facts) < 0) {
		return refuse(-errno, NULL, why_out);
	}
	if ((facts.st_uid == 0 && (facts.st_mode & S_ISVTX)) || is_owned(&facts, owner)) {
		return 0;
	}
	return refuse(-EPERM, "others may write to a folder above it", why_out);
}

int owned_check_path(const char *path, uid_t owner, const char **why_out)
{
	cleanup_free char *at = realpath(path, NULL);
	int r = at ? check_folder(at, owner, why_out) : refuse(-errno, NULL, why_out);
	while (r == 0 && at[1]) {
		char *slash = strrchr(at, '/');
		/* The parent of "/x" is "/". */
		slash[slash == at] = '\0';
		r = check_folder(at, owner, why_out);
	}
	return r;
}

static bool is_called(const char *name, const char *suffix)
{
	size_t n = strlen(name);
	size_t n_suffix = strlen(suffix);
	return n > n_suffix && name[0] != '.' && strcmp(name + n - n_suffix, suffix) == 0;
}

int owned_list(int folder, const char *suffix, struct dirent ***entries_out)
{
	struct dirent **entries = NULL;
	int n_all = scandirat(folder, ".", &entries, NULL, alphasort);
	int n = 0;
	if (n_all < 0) {
		return -errno;
	}
	for (int i = 0; i < n_all; i++) {
		if (is_called(entries[i]->d_name, suffix)) {
			entries[n++] = entries[i];
		} else {
			free(entries[i]);
		}
	}
	*entries_out = entries;
	return n;
}

void owned_free_list(struct dirent **entries, int n)
{
	for (int i = 0; i < n; i++) {
		free(entries[i]);
	}
	free(entries);
}

int owned_read_text(int fd, char *text, size_t n_bytes)
{
	size_t at = 0;
	while (at < n_bytes) {
		ssize_t n = pread(fd, text + at, n_bytes - at, (off_t)at);
		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return n < 0 ? -errno : -EIO;
		}
		at += (size_t)n;
	}
	return 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

int owned_read(int folder, const char *name, uid_t owner, size_t max_bytes, char **text_out,
               size_t *n_bytes_out, const char **why_out)
{
	struct stat before;
	struct stat after;
	/* O_NONBLOCK, because opening a pipe without a writer would block. */
	cleanup_fd int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &before) < 0) {
		return refuse(-errno, NULL, why_out);
	}
	if (!S_ISREG(before.st_mode)) {
		return refuse(-EINVAL, "it is not a file", why_out);
	}
	if (!is_owned(&before, owner)) {
		return refuse(-EPERM, "others may write to it", why_out);
	}
	if ((uint64_t)before.st_size > max_bytes) {
		return refuse(-EFBIG, "it is too large", why_out);
	}
	const size_t n_bytes = (size_t)before.st_size;
	cleanup_free char *text = malloc(n_bytes + 1);
	if (!text) {
		return refuse(-ENOMEM, NULL, why_out);
	}
	int r = owned_read_text(fd, text, n_bytes);
	if (r < 0 || fstat(fd, &after) < 0) {
		return refuse(r < 0 ? r : -errno, NULL, why_out);
	}
	if (!is_same(&before, &after)) {
		return refuse(-EBUSY, "it was changed while it was read", why_out);
	}
	if (n_bytes > 0 && text[n_bytes - 1] != '\n') {
		return refuse(-EINVAL, "its last line has no end", why_out);
	}
	text[n_bytes] = '\0';
	*text_out = text;
	*n_bytes_out = n_bytes;
	text = NULL;
	return 0;
}

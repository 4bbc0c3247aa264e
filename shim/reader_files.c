/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/reader_files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define ADMINS_FOLDER "/etc/glake/readers.d"
#define SUFFIX ".readers"
#define MAX_FILES 256u

/* ---- one file --------------------------------------------------------------------------------- */

static int refuse(struct readers_error *error, int code, const char *why)
{
	*error = (struct readers_error){.line = 0};
	snprintf(error->text, sizeof(error->text), "%s", why);
	return code;
}

static bool is_roots(const struct stat *what)
{
	return what->st_uid == 0 && (what->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static int read_text(int fd, char *text, size_t n_bytes)
{
	size_t at = 0;
	while (at < n_bytes) {
		ssize_t n = read(fd, text + at, n_bytes - at);
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

/* By its name in the folder, which was looked at before. */
static int read_at(int folder, const char *name, struct readers **readers_out,
                   struct readers_error *error_out)
{
	struct stat facts;
	cleanup_fd int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &facts) < 0) {
		return refuse(error_out, -errno, strerror(errno));
	}
	if (!S_ISREG(facts.st_mode)) {
		return refuse(error_out, -EINVAL, "it is not a file");
	}
	if (!is_roots(&facts)) {
		return refuse(error_out, -EPERM,
		              "it counts only if root owns it and nobody else may write to it");
	}
	if (facts.st_size > READERS_MAX_TEXT_BYTES) {
		return refuse(error_out, -EINVAL, "it is larger than 16 MiB");
	}
	cleanup_free char *text = malloc((size_t)facts.st_size + 1);
	if (!text) {
		return refuse(error_out, -ENOMEM, "out of memory");
	}
	int r = read_text(fd, text, (size_t)facts.st_size);
	if (r < 0) {
		return refuse(error_out, r, strerror(-r));
	}
	r = readers_parse(text, (size_t)facts.st_size, readers_out, error_out);
	return r == -ENOMEM ? refuse(error_out, r, "out of memory") : r;
}

static int open_folder(const char *path, struct readers_error *error_out)
{
	struct stat facts;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (fd < 0) {
		return refuse(error_out, -errno, strerror(errno));
	}
	if (fstat(fd, &facts) < 0 || !is_roots(&facts)) {
		close(fd);
		return refuse(error_out, -EPERM,
		              "its folder counts only if root owns it and nobody else may write to "
		              "it");
	}
	return fd;
}

int reader_files_read(const char *path, struct readers **readers_out,
                      struct readers_error *error_out)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX] = ".";
	if (slash && slash - path >= (ptrdiff_t)sizeof(folder)) {
		return refuse(error_out, -ENAMETOOLONG, strerror(ENAMETOOLONG));
	}
	if (slash) {
		snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path + 1), path);
	}
	cleanup_fd int fd = open_folder(folder, error_out);
	return fd < 0 ? fd : read_at(fd, slash ? slash + 1 : path, readers_out, error_out);
}

/* ---- all of them ------------------------------------------------------------------------------ */

static struct readers *tables[MAX_FILES];
static size_t n_tables;

static int is_table(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);
	size_t n_suffix = strlen(SUFFIX);
	return n > n_suffix && entry->d_name[0] != '.' &&
	       strcmp(entry->d_name + n - n_suffix, SUFFIX) == 0;
}

static void read_folder(const char *path)
{
	struct readers_error error;
	struct dirent **entries = NULL;
	cleanup_fd int fd = open_folder(path, &error);
	int n = fd < 0 ? -1 : scandirat(fd, ".", &entries, is_table, alphasort);
	for (int i = 0; i < n; i++) {
		struct readers *table;
		if (n_tables < MAX_FILES && read_at(fd, entries[i]->d_name, &table, &error) == 0) {
			tables[n_tables++] = table;
		}
		free(entries[i]);
	}
	free(entries);
}

/* "": the library's path is not known. */
static void find_packaged(char folder_out[PATH_MAX])
{
	Dl_info info;
	const char *slash = dladdr((void *)reader_files_find, &info) && info.dli_fname
	                            ? strrchr(info.dli_fname, '/')
	                            : NULL;
	folder_out[0] = '\0';
	if (slash && slash - info.dli_fname < PATH_MAX - 16) {
		snprintf(folder_out, PATH_MAX, "%.*s/readers.d", (int)(slash - info.dli_fname),
		         info.dli_fname);
	}
}

static void read_all(void)
{
	const char *folder = secure_getenv("GLAKE_READERS");
	char packaged[PATH_MAX];
	if (folder) {
		read_folder(folder);
		return;
	}
	read_folder(ADMINS_FOLDER);
	find_packaged(packaged);
	read_folder(packaged);
}

const struct reader_function *reader_files_find(const struct image_id *image, const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct reader_function *found = NULL;
	pthread_once(&once, read_all);
	for (size_t i = 0; !found && i < n_tables; i++) {
		found = readers_find(tables[i], image, name);
	}
	return found;
}

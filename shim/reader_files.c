/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/reader_files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/owned.h"

#define ADMINS_FOLDER "/etc/glake/readers.d"

/* ---- one file --------------------------------------------------------------------------------- */

static int refuse(struct readers_error *error, int code, const char *why)
{
	*error = (struct readers_error){.line = 0};
	snprintf(error->text, sizeof(error->text), "%s", why);
	return code;
}

/* Files and folders must be root's alone, because they are for programs of all users. */
static int explain(struct readers_error *error, int code, const char *why, bool is_folder)
{
	if (code == -EFBIG) {
		return refuse(error, -EINVAL, "it is larger than 16 MiB");
	}
	if (code != -EPERM) {
		return refuse(error, code, why);
	}
	return refuse(error, code,
	              is_folder
	                      ? "its folder counts only if root owns it and nobody else may write "
	                        "to it"
	                      : "it counts only if root owns it and nobody else may write to it");
}

/* Read a file of @folder, which was checked before. */
static int read_at(int folder, const char *name, uid_t owner, struct readers **readers_out,
                   struct readers_error *error_out)
{
	const char *why;
	size_t n_bytes;
	cleanup_free char *text = NULL;
	int r = owned_read(folder, name, owner, GLAKE_MAX_READERS_FILE_BYTES, &text, &n_bytes,
	                   &why);
	if (r < 0) {
		return explain(error_out, r, why, false);
	}
	r = readers_parse(text, n_bytes, readers_out, error_out);
	return r == -ENOMEM ? refuse(error_out, r, "out of memory") : r;
}

static int open_folder(const char *path, uid_t owner, struct readers_error *error_out)
{
	const char *why;
	int fd = owned_open_folder(path, owner, &why);
	return fd < 0 ? explain(error_out, fd, why, true) : fd;
}

int reader_files_read(const char *path, uid_t owner, struct readers **readers_out,
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
	cleanup_fd int fd = open_folder(folder, owner, error_out);
	return fd < 0 ? fd : read_at(fd, slash ? slash + 1 : path, owner, readers_out, error_out);
}

/* ---- all of them ------------------------------------------------------------------------------ */

static struct readers *tables[GLAKE_MAX_READERS_FILES];
static size_t n_tables;

static void read_folder(const char *path)
{
	struct readers_error error;
	struct dirent **entries = NULL;
	cleanup_fd int fd = open_folder(path, 0, &error);
	int n = fd < 0 ? -1 : owned_list(fd, GLAKE_READERS_SUFFIX, &entries);
	for (int i = 0; i < n; i++) {
		struct readers *table;
		if (n_tables < GLAKE_MAX_READERS_FILES &&
		    read_at(fd, entries[i]->d_name, 0, &table, &error) == 0) {
			tables[n_tables++] = table;
		}
	}
	owned_free_list(entries, n);
}

/* The package's folder; "": the library's path is not known. */
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

/* ---- glaked's --------------------------------------------------------------------------------- */

static struct readers *given[GLAKE_MAX_READERS_FILES];
static atomic_size_t n_given; /* tables below this index are written, and stay */

bool reader_files_wants(void)
{
	return secure_getenv("GLAKE_READERS") == NULL &&
	       atomic_load_explicit(&n_given, memory_order_relaxed) == 0;
}

bool reader_files_take(const char *text, size_t n_bytes)
{
	struct readers_error error;
	size_t n = 0;
	if (!reader_files_wants()) {
		return false;
	}
	for (size_t at = 0; at < n_bytes && n < GLAKE_MAX_READERS_FILES;) {
		size_t n_text = strnlen(text + at, n_bytes - at);
		n += readers_parse(text + at, n_text, &given[n], &error) == 0;
		at += n_text + 1;
	}
	atomic_store_explicit(&n_given, n, memory_order_release);
	return n > 0;
}

const struct reader_function *reader_files_find(const struct image_id *image, const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct reader_function *found = NULL;
	const size_t n = atomic_load_explicit(&n_given, memory_order_acquire);
	pthread_once(&once, read_all);
	for (size_t i = 0; !found && i < n; i++) {
		found = readers_find(given[i], image, name);
	}
	for (size_t i = 0; !found && i < n_tables; i++) {
		found = readers_find(tables[i], image, name);
	}
	return found;
}

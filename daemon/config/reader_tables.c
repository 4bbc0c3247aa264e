/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reader_tables.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/owned.h"

static int write_all(int fd, const char *bytes, size_t n_bytes)
{
	while (n_bytes > 0) {
		ssize_t n = write(fd, bytes, n_bytes);
		if (n < 0 && errno != EINTR) {
			return -errno;
		}
		bytes += n > 0 ? n : 0;
		n_bytes -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* Why the table is left out; NULL: it is not. An error is glaked's own. */
static const char *add(struct reader_tables *tables, int folder, const char *name, int *error_out)
{
	const char *why = NULL;
	cleanup_free char *text = NULL;
	size_t n_bytes = 0;
	int r = owned_read(folder, name, geteuid(), GLAKE_MAX_READERS_FILE_BYTES, &text, &n_bytes,
	                   &why);
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE) {
		*error_out = r;
	}
	if (r < 0) {
		return why;
	}
	if (memchr(text, '\0', n_bytes)) {
		return "it is no text";
	}
	if (tables->n_bytes + n_bytes + 1 > GLAKE_MAX_READERS_BYTES) {
		return "all tables together are too large";
	}
	r = write_all(tables->fd, text, n_bytes + 1);
	if (r < 0) {
		*error_out = r;
		return strerrordesc_np(-r);
	}
	tables->n_bytes += n_bytes + 1;
	return NULL;
}

/* The number of tables, or -errno. */
static int add_all(struct reader_tables *tables, const char *path, int folder,
                   struct dirent *const *entries, unsigned n_entries)
{
	int n = 0;
	int error = 0;
	for (unsigned i = 0; i < n_entries && error == 0; i++) {
		const char *why = i < GLAKE_MAX_READERS_FILES
		                          ? add(tables, folder, entries[i]->d_name, &error)
		                          : "there are too many";
		n += why == NULL;
		if (why) {
			log_warning("a table of readers does not count: %s/%s: %s", path,
			            entries[i]->d_name, why);
		}
	}
	return error < 0 ? error : n;
}

static int read_folder(struct reader_tables *tables, const char *path, int folder)
{
	struct dirent **entries = NULL;
	int n_entries = owned_list(folder, GLAKE_READERS_SUFFIX, &entries);
	if (n_entries < 0) {
		return n_entries;
	}
	int n = add_all(tables, path, folder, entries, (unsigned)n_entries);
	owned_free_list(entries, n_entries);
	return n;
}

/* Nobody changes it from here on, or gives it other properties. */
static int seal(int fd)
{
	const int seals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
	return fchmod(fd, 0444) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int reader_tables_load(const char *path, struct reader_tables *tables_out)
{
	const char *why = NULL;
	*tables_out = (struct reader_tables){.fd = -1};
	cleanup_fd int folder = owned_open_folder(path, geteuid(), &why);
	if (folder < 0 || owned_check_path(path, geteuid(), &why) < 0) {
		log_warning("no table of readers counts: %s: %s", path, why);
		return 0;
	}
	tables_out->fd = memfd_create("glake-readers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = tables_out->fd < 0 ? -errno : read_folder(tables_out, path, folder);
	const int n = r;
	r = r >= 0 ? seal(tables_out->fd) : r;
	if (r < 0) {
		log_error("cannot read tables of readers: %s: %s", path, strerrordesc_np(-r));
	}
	if (r < 0 || n == 0) {
		reader_tables_close(tables_out);
		return r;
	}
	log_info("tables of readers: %d, %llu bytes, of %s", n,
	         (unsigned long long)tables_out->n_bytes, path);
	return 0;
}

void reader_tables_close(struct reader_tables *tables)
{
	fd_close(&tables->fd);
	tables->n_bytes = 0;
}

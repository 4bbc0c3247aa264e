/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/notify_socket.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define NAME "glake-keeper."
#define SOCKET "/s"
/* A younger one may be another keeper's that is about to listen. */
#define OLD_SECONDS 10

/* ---- those of others --------------------------------------------------------------------------- */

/* Ours alone, so that nobody else has put there what it has. */
static bool is_ours(const char *folder)
{
	struct stat status;
	return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) &&
	       status.st_uid == geteuid() && (status.st_mode & 0777) == 0700;
}

/* Has its keeper died? */
static bool is_left(const struct sockaddr_un *address)
{
	struct stat status;
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return fd >= 0 && lstat(address->sun_path, &status) == 0 && S_ISSOCK(status.st_mode) &&
	       time(NULL) - status.st_mtime >= OLD_SECONDS &&
	       connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 &&
	       errno == ECONNREFUSED;
}

static void remove_those_left(const char *parent)
{
	DIR *all = opendir(parent);
	const struct dirent *entry;
	while (all && (entry = readdir(all))) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		size_t n_most = sizeof(address.sun_path) - strlen(SOCKET);
		int n = snprintf(address.sun_path, n_most, "%s/%s", parent, entry->d_name);
		if (strncmp(entry->d_name, NAME, strlen(NAME)) != 0 || n < 0 ||
		    (size_t)n >= n_most || !is_ours(address.sun_path)) {
			continue;
		}
		strcat(address.sun_path, SOCKET);
		if (is_left(&address)) {
			notify_socket_remove(&address);
		}
	}
	if (all) {
		closedir(all);
	}
}

/* ---- its own ----------------------------------------------------------------------------------- */

void notify_socket_remove(const struct sockaddr_un *address)
{
	char folder[sizeof(address->sun_path)];
	size_t n = strlen(address->sun_path);
	if (n > strlen(SOCKET)) {
		unlink(address->sun_path);
		memcpy(folder, address->sun_path, n - strlen(SOCKET));
		folder[n - strlen(SOCKET)] = '\0';
		rmdir(folder);
	}
}

/* Make a folder whose @path has room for the socket's name. */
static bool make_folder(const char *parent, char *path, size_t n_path)
{
	int n = snprintf(path, n_path, "%s/" NAME "XXXXXX", parent);
	return n > 0 && (size_t)n + sizeof(SOCKET) <= n_path && mkdtemp(path);
}

int notify_socket_open(struct sockaddr_un *address_out)
{
	static const int on = 1;
	const char *parents[] = {getenv("RUNTIME_DIRECTORY"), getenv("TMPDIR"), "/run", "/tmp"};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return -errno;
	}
	bool is_made = false;
	for (size_t i = 0; !is_made && i < n_elements(parents); i++) {
		if (parents[i]) {
			remove_those_left(parents[i]);
			is_made = make_folder(parents[i], address.sun_path,
			                      sizeof(address.sun_path));
		}
	}
	if (!is_made) {
		return -EACCES;
	}
	strcat(address.sun_path, SOCKET);
	*address_out = address;
	if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0) {
		return -errno;
	}
	return fd_steal(&fd);
}

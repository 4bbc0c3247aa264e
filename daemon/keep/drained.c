/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/drained.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "proto/cleanup.h"

/* Reason, uid and time. */
#define FILE_BYTES (GLAKE_MAX_REASON_BYTES + 128u)

static bool is_ours(const struct stat *status)
{
	return S_ISREG(status->st_mode) && (status->st_uid == geteuid() || status->st_uid == 0) &&
	       (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static void read_line(struct drained *drained, const char *line)
{
	if (strncmp(line, "reason ", 7) == 0) {
		snprintf(drained->reason, sizeof(drained->reason), "%s", line + 7);
		text_clean(drained->reason);
	} else if (strncmp(line, "uid ", 4) == 0) {
		drained->uid = (uint32_t)strtoul(line + 4, NULL, 10);
	} else if (strncmp(line, "since ", 6) == 0) {
		drained->since_ms = strtoull(line + 6, NULL, 10);
	}
}

void drained_read(const char *path, struct drained *drained_out)
{
	struct stat status;
	char text[FILE_BYTES];
	char *rest = text;
	char *line;
	*drained_out = (struct drained){.is_on = false};
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT) {
		return;
	}
	if (fd < 0 || fstat(fd, &status) < 0) {
		/* Whoever could not open it could not have made it, either. */
		log_warning("cannot read whether glaked is drained, so it is not: %s: %s", path,
		            strerror(errno));
		return;
	}
	if (!is_ours(&status)) {
		log_warning("%s is not glaked's: others may write to it, so glaked is not drained",
		            path);
		return;
	}
	drained_out->is_on = true;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	while ((line = strsep(&rest, "\n"))) {
		read_line(drained_out, line);
	}
}

static int write_to(int fd, const struct drained *drained)
{
	char text[FILE_BYTES];
	int n = snprintf(text, sizeof(text), "uid %" PRIu32 "\nsince %" PRIu64 "\nreason %s\n",
	                 drained->uid, drained->since_ms, drained->reason);
	ssize_t written = write(fd, text, (size_t)n);
	if (written >= 0 && written < n) {
		return -ENOSPC;
	}
	return written < 0 || fsync(fd) < 0 ? -errno : 0;
}

int drained_write(const char *path, const struct drained *drained)
{
	char fresh[PATH_MAX];
	if (!drained->is_on) {
		return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
	}
	if (snprintf(fresh, sizeof(fresh), "%s.new", path) >= (int)sizeof(fresh)) {
		return -ENAMETOOLONG;
	}
	/* A glaked that was killed while it wrote has left this file. */
	unlink(fresh);
	cleanup_fd int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		return -errno;
	}
	int r = write_to(fd, drained);
	if (r == 0 && rename(fresh, path) < 0) {
		r = -errno;
	}
	if (r < 0) {
		unlink(fresh);
	}
	return r;
}

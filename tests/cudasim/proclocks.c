/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct inodes {
	uint64_t *list;
	size_t n;
	size_t room;
};

static int inodes_add(struct inodes *inodes, uint64_t inode)
{
	if (inodes->n == inodes->room) {
		size_t room = inodes->room ? inodes->room * 2 : 1024;
		uint64_t *list = realloc(inodes->list, room * sizeof(*list));
		if (!list) {
			return -ENOMEM;
		}
		inodes->list = list;
		inodes->room = room;
	}
	inodes->list[inodes->n++] = inode;
	return 0;
}

/* Parse a line like "7: OFDLCK ADVISORY  READ -1 00:01:1025 0 EOF"; false for other kinds of lock. */
static bool parse_line(const char *line, uint64_t *inode_out)
{
	const char *at = strstr(line, "OFDLCK");
	unsigned file_system;
	unsigned long long inode;

	at = at ? strchr(at, ':') : NULL;
	if (!at || sscanf(at, ":%x:%llu", &file_system, &inode) != 2) {
		return false;
	}
	*inode_out = chunkfd_inode(file_system, inode);
	return true;
}

/* Takes whole lines from text; returns how many bytes they were. */
static ssize_t parse_lines(struct inodes *inodes, char *text)
{
	char *line = text;

	for (char *end = strchr(line, '\n'); end; end = strchr(line, '\n')) {
		uint64_t inode;
		*end = '\0';
		if (parse_line(line, &inode) && inodes_add(inodes, inode) != 0) {
			return -ENOMEM;
		}
		line = end + 1;
	}
	return line - text;
}

static int read_all(int fd, struct inodes *inodes)
{
	char text[65536];
	size_t n_kept = 0;

	for (;;) {
		ssize_t n = read(fd, text + n_kept, sizeof(text) - 1 - n_kept);
		if (n <= 0) {
			return n == 0 ? 0 : -errno;
		}
		n_kept += (size_t)n;
		text[n_kept] = '\0';
		ssize_t n_taken = parse_lines(inodes, text);
		if (n_taken < 0) {
			return (int)n_taken;
		}
		n_kept -= (size_t)n_taken;
		memmove(text, text + n_taken, n_kept);
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int proclocks_read(uint64_t **inodes_out, size_t *n_out)
{
	struct inodes inodes = {0};
	int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return -errno;
	}
	int err = read_all(fd, &inodes);
	close(fd);
	if (err != 0) {
		free(inodes.list);
		return err;
	}
	if (inodes.n > 0) {
		qsort(inodes.list, inodes.n, sizeof(inodes.list[0]), compare);
	}
	*inodes_out = inodes.list;
	*n_out = inodes.n;
	return 0;
}

bool proclocks_has(const uint64_t *inodes, size_t n, uint64_t inode)
{
	return n > 0 && bsearch(&inode, inodes, n, sizeof(inodes[0]), compare) != NULL;
}

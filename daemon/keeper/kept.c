/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/keeper/closer.h"
#include "daemon/keeper/report.h"
#include "proto/array.h"
#include "proto/cleanup.h"

#define FIRST_FD 3
#define MAX_NAME_BYTES 255u

struct kept {
	char *name; /* owned */
	int fd;     /* owned */
};

static struct kept *table;
static size_t n_kept;
static size_t n_places;
static size_t max_kept;
static bool is_full; /* no fd has room, and stderr says so */

void kept_set_max(size_t max)
{
	max_kept = max;
}

size_t kept_n(void)
{
	return n_kept;
}

void kept_put(const char *name, int fd)
{
	/* systemd replaces a bad name by this one, too. */
	const char *key = *name && strlen(name) <= MAX_NAME_BYTES && !strchr(name, ':') ? name
	                                                                                : "stored";
	char *copy = n_kept < max_kept && array_grow(table, n_kept, n_places, 256) == 0
	                     ? strdup(key)
	                     : NULL;
	if (!copy) {
		if (!is_full) {
			report("no room for more than %zu fds: %s is lost", n_kept, key);
		}
		is_full = true;
		closer_close(fd);
		return;
	}
	table[n_kept++] = (struct kept){copy, fd};
}

void kept_remove(const char *name)
{
	size_t n_left = 0;
	for (size_t i = 0; i < n_kept; i++) {
		if (strcmp(table[i].name, name) == 0) {
			closer_close(table[i].fd);
			free(table[i].name);
			is_full = false;
		} else {
			table[n_left++] = table[i];
		}
	}
	n_kept = n_left;
}

void kept_take_passed(void)
{
	const char *pid = getenv("LISTEN_PID");
	const char *n = getenv("LISTEN_FDS");
	const char *names = getenv("LISTEN_FDNAMES");
	if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid()) {
		return;
	}
	int end = FIRST_FD + (int)strtol(n, NULL, 10);
	cleanup_free char *copy = names ? strdup(names) : NULL;
	char *rest = copy;
	for (int fd = FIRST_FD; fd < end && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0; fd++) {
		char *name = rest ? strsep(&rest, ":") : NULL;
		kept_put(name ? name : "unknown", fd);
	}
}

/* ---- for the next one ------------------------------------------------------------------------ */

static char *join_names(void)
{
	size_t n_bytes = 1;
	for (size_t i = 0; i < n_kept; i++) {
		n_bytes += strlen(table[i].name) + 1;
	}
	char *names = malloc(n_bytes);
	char *end = names;
	for (size_t i = 0; names && i < n_kept; i++) {
		end = stpcpy(end, i == 0 ? "" : ":");
		end = stpcpy(end, table[i].name);
	}
	return names;
}

/* For each number below @n_numbers: the index of the kept fd that has it, or -1. */
static int *find_owners(int *n_numbers_out)
{
	int n_numbers = 0;
	for (size_t i = 0; i < n_kept; i++) {
		n_numbers = table[i].fd < n_numbers ? n_numbers : table[i].fd + 1;
	}
	int *owners = malloc((size_t)n_numbers * sizeof(*owners));
	if (owners) {
		memset(owners, 0xff, (size_t)n_numbers * sizeof(*owners));
		for (size_t i = 0; i < n_kept; i++) {
			owners[table[i].fd] = (int)i;
		}
	}
	*n_numbers_out = n_numbers;
	return owners;
}

/*
 * The child's copy of the table says where each fd is now. A kept fd that is in the way goes to a number
 * that nobody wants. So there is never more than one fd more than before.
 */
static int move(void)
{
	int end = FIRST_FD + (int)n_kept;
	int n_numbers;
	cleanup_free int *owners = find_owners(&n_numbers);
	if (!owners) {
		return -ENOMEM;
	}
	for (int i = 0; i < (int)n_kept; i++) {
		int fd = table[i].fd;
		int place = FIRST_FD + i;
		if (fd == place) {
			if (fcntl(fd, F_SETFD, 0) < 0) {
				return -errno;
			}
			continue;
		}
		int in_the_way = place < n_numbers ? owners[place] : -1;
		if (in_the_way > i) {
			table[in_the_way].fd = fcntl(place, F_DUPFD_CLOEXEC, end);
			if (table[in_the_way].fd < 0) {
				return -errno;
			}
		}
		if (dup2(fd, place) < 0) {
			return -errno;
		}
		close(fd);
	}
	return 0;
}

int kept_pass(void)
{
	char n[24];
	char pid[24];
	if (n_kept == 0) {
		return 0;
	}
	cleanup_free char *names = join_names();
	snprintf(n, sizeof(n), "%zu", n_kept);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (!names || setenv("LISTEN_FDNAMES", names, 1) < 0 || setenv("LISTEN_FDS", n, 1) < 0 ||
	    setenv("LISTEN_PID", pid, 1) < 0) {
		return -ENOMEM;
	}
	return move();
}

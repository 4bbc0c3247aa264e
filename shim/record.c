/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define EVENT_BYTES 80u /* at most: a letter, an address, two numbers of 20 digits */

struct tape {
	char text[32 * 1024];
	size_t n_bytes;
	int64_t n_events;
	bool has_file; /* this process has written to it */
};

bool record_is_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tape tapes[SHIM_MAX_DEVICES];
/* The path is a copy, because programs write over their environment. */
static char base_path[PATH_MAX - 32];

__attribute__((constructor)) static void begin(void)
{
	const char *path = secure_getenv("GLAKE_SHIM_RECORD");
	if (path && *path && strlen(path) < sizeof(base_path)) {
		strcpy(base_path, path);
		record_is_on = true;
	}
}

/* ---- text ------------------------------------------------------------------------------------- */

static char *add_text(char *at, const char *text)
{
	return stpcpy(at, text);
}

static char *add_number(char *at, uint64_t number, unsigned base)
{
	char digits[20];
	size_t n = 0;
	do {
		digits[n++] = "0123456789abcdef"[number % base];
		number /= base;
	} while (number > 0);
	while (n > 0) {
		*at++ = digits[--n];
	}
	*at = '\0';
	return at;
}

/* ---- files ------------------------------------------------------------------------------------ */

static bool write_all(int fd, const char *text, size_t n_bytes)
{
	while (n_bytes > 0) {
		ssize_t n = write(fd, text, n_bytes);
		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return false;
		}
		text += n;
		n_bytes -= (size_t)n;
	}
	return true;
}

/* False: in a folder for all users, another one may have made a link, a pipe, or a file that it can read. */
static bool is_ours(int fd)
{
	struct stat status;
	return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	       status.st_nlink == 1;
}

/* Open the file, empty, or with @has_file as this process has left it. Returns -1 if that fails. */
static int open_file(const char *path, bool has_file)
{
	const int how = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	int fd = has_file ? -1 : open(path, how | O_CREAT | O_EXCL, 0644);
	if (fd >= 0) {
		return fd;
	}
	fd = open(path, how | O_APPEND);
	if (fd >= 0 && is_ours(fd) && (has_file || ftruncate(fd, 0) == 0)) {
		return fd;
	}
	fd_close(&fd);
	return -1;
}

/* Opens the file each time, because a program may close all files that it does not know, and reuse their numbers. */
static void write_tape(struct tape *tape, size_t device)
{
	char path[PATH_MAX];
	char *at = add_text(path, base_path);
	at = add_number(add_text(at, "."), (uint64_t)getpid(), 10);
	if (device > 0) {
		add_number(add_text(at, "."), device, 10);
	}
	cleanup_fd int fd = open_file(path, tape->has_file);
	if (fd < 0 || !write_all(fd, tape->text, tape->n_bytes)) {
		shim_count_add(SHIM_COUNT_unrecorded, tape->n_events);
	}
	tape->has_file |= fd >= 0;
	tape->n_bytes = 0;
	tape->n_events = 0;
}

static void flush_locked(size_t device)
{
	int error = errno;
	if (tapes[device].n_bytes > 0) {
		write_tape(&tapes[device], device);
	}
	errno = error;
}

void record_flush(void)
{
	cleanup_cancel int cancel = cancel_disable();
	if (!record_is_on || shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < SHIM_MAX_DEVICES; i++) {
		flush_locked(i);
	}
	pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void end(void)
{
	record_flush();
	record_is_on = false;
}

/* ---- events ----------------------------------------------------------------------------------- */

/* @n_bytes: 0 for a free. */
static void add(CUdevice device, CUdeviceptr address, uint64_t n_bytes, uint64_t stream)
{
	cleanup_cancel int cancel = cancel_disable();
	struct tape *tape = &tapes[device];
	if (shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	if (tape->n_bytes > sizeof(tape->text) - EVENT_BYTES) {
		flush_locked((size_t)device);
	}
	char *begin = tape->text + tape->n_bytes;
	char *at = add_number(add_text(begin, n_bytes ? "a 0x" : "f 0x"), address, 16);
	if (n_bytes) {
		at = add_number(add_text(at, " "), n_bytes, 10);
	}
	at = add_text(add_number(add_text(at, " "), stream, 10), "\n");
	tape->n_bytes += (size_t)(at - begin);
	tape->n_events++;
	pthread_mutex_unlock(&lock);
}

void record_add_alloc(CUdevice device, CUdeviceptr address, uint64_t n_bytes, uint64_t stream)
{
	add(device, address, n_bytes, stream);
}

void record_add_free(CUdevice device, CUdeviceptr address, uint64_t stream)
{
	add(device, address, 0, stream);
}

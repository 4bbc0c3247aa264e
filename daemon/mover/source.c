/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/mover/settle.h"
#include "proto/cleanup.h"

#define N_SAMPLES 64
/* A client that keeps setting O_DIRECT on its description only fails its own load. */
#define MAX_REFUSALS 16

int source_open(struct source *source, int fd, const char *name, struct fault *fault)
{
	*source = (struct source){.name = name, .fd = fd};
	if (fstat(fd, &source->before) < 0) {
		return fault_set(fault, FAULT_READ, "%s: cannot be examined: %s", quote(name).text,
		                 strerror(errno));
	}
	if (!S_ISREG(source->before.st_mode)) {
		return fault_set(fault, FAULT_BAD_REQUEST, "%s: is %s, not a regular file",
		                 quote(name).text,
		                 S_ISDIR(source->before.st_mode)    ? "a directory"
		                 : S_ISFIFO(source->before.st_mode) ? "a FIFO"
		                 : S_ISSOCK(source->before.st_mode) ? "a socket"
		                                                    : "a device");
	}
	source->flags = fcntl(fd, F_GETFL);
	if (source->flags < 0 || source->flags & O_PATH ||
	    (source->flags & O_ACCMODE) == O_WRONLY) {
		return fault_set(fault, FAULT_BAD_REQUEST, "%s: is not open for reading",
		                 quote(name).text);
	}
	source->unsettled = settle(fd, &source->before);
	atomic_init(&source->is_direct, source->flags & O_DIRECT);
	return 0;
}

void source_close(struct source *source)
{
	if (source->fd >= 0 && atomic_load(&source->is_direct) && !(source->flags & O_DIRECT)) {
		fcntl(source->fd, F_SETFL, source->flags);
	}
	fd_close(&source->fd);
}

/* Is the byte in the page cache? Asks for it without waiting, which reads nothing from a disk. */
static bool is_cached(int fd, off_t offset)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	ssize_t n = preadv2(fd, &iov, 1, offset, RWF_NOWAIT);
	/* A file system that cannot tell is often one that lives in memory. */
	return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

void source_choose(struct source *source, bool may_direct)
{
	unsigned n_cached = 0;
	if (source->flags & O_DIRECT) {
		return;
	}
	for (unsigned i = 0; i < N_SAMPLES; i++) {
		off_t step = source->before.st_size / N_SAMPLES;
		n_cached += is_cached(source->fd, step * i + step / 2);
	}
	source->is_cold = n_cached < N_SAMPLES / 2;
	if (!source->is_cold) {
		return;
	}
	if (may_direct && fcntl(source->fd, F_SETFL, source->flags | O_DIRECT) == 0) {
		atomic_store(&source->is_direct, true);
		return;
	}
	posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
}

/*
 * The file or its device cannot do it after all, or somebody else set the flag: the description is
 * shared. Reads under way are not hurt by the change.
 */
static void stop_direct(struct source *source)
{
	int flags = fcntl(source->fd, F_GETFL);
	if (flags >= 0 && flags & O_DIRECT) {
		fcntl(source->fd, F_SETFL, flags & ~O_DIRECT);
	}
	atomic_store(&source->is_direct, false);
}

/* Read up to @most bytes, @least at least. */
static int read_some(struct source *source, uint64_t offset, uint64_t least, uint64_t most,
                     void *to)
{
	uint64_t done = 0;
	unsigned n_refusals = 0;
	while (done < least) {
		ssize_t n = pread(source->fd, (char *)to + done, most - done,
		                  (off_t)(offset + done));
		if (n > 0) {
			done += (uint64_t)n;
		} else if (n == 0) {
			return SOURCE_E_SHORT;
		} else if (errno == EINVAL && n_refusals++ < MAX_REFUSALS) {
			/* The read is repeated also where the flag is gone already: another reader was faster. */
			stop_direct(source);
		} else if (errno != EINTR) {
			return -errno;
		}
	}
	return 0;
}

int source_read(struct source *source, uint64_t offset, uint64_t n_bytes, void *to)
{
	return read_some(source, offset, n_bytes, n_bytes, to);
}

int source_read_span(struct source *source, uint64_t offset, uint64_t n_bytes, void *buffer,
                     void **content_out, bool *direct_out)
{
	if (!atomic_load(&source->is_direct)) {
		if (source->is_cold) {
			posix_fadvise(source->fd, (off_t)offset, (off_t)n_bytes,
			              POSIX_FADV_WILLNEED);
		}
		*content_out = buffer;
		*direct_out = false;
		return source_read(source, offset, n_bytes, buffer);
	}
	uint64_t before = offset % SOURCE_ALIGN_BYTES;
	uint64_t least = before + n_bytes;
	uint64_t most = (least + SOURCE_ALIGN_BYTES - 1) / SOURCE_ALIGN_BYTES * SOURCE_ALIGN_BYTES;
	int error = read_some(source, offset - before, least, most, buffer);
	*content_out = (char *)buffer + before;
	*direct_out = atomic_load(&source->is_direct);
	return error;
}

static bool is_same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int source_check(const struct source *source, struct fault *fault)
{
	const struct stat *before = &source->before;
	struct stat now;
	if (fstat(source->fd, &now) < 0) {
		return fault_set(fault, FAULT_READ, "%s: cannot be examined: %s",
		                 quote(source->name).text, strerror(errno));
	}
	if (now.st_dev == before->st_dev && now.st_ino == before->st_ino &&
	    now.st_size == before->st_size && is_same_time(now.st_mtim, before->st_mtim) &&
	    is_same_time(now.st_ctim, before->st_ctim)) {
		return 0;
	}
	return fault_set(fault, FAULT_FILE_CHANGED, "%s: changed while it was loaded",
	                 quote(source->name).text);
}

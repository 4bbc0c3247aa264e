/* SPDX-License-Identifier: Apache-2.0 */
/* The memfd behind a chunk. Its name carries what an importer must know about it. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lock that /proc/locks shows as long as the open file description exists. */
static int put_lock(int fd)
{
	struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 0 : -errno;
}

static int prepare(int fd, uint64_t bytes, uint64_t *inode_out)
{
	struct stat st;

	if (ftruncate(fd, (off_t)bytes) != 0 || fstat(fd, &st) != 0) {
		return -errno;
	}
	*inode_out = st.st_ino;
	return put_lock(fd);
}

int chunkfd_new(const struct chunk_label *label, uint64_t bytes, uint64_t *inode_out)
{
	char name[128];

	snprintf(name, sizeof(name), "cudasim:%" PRIx64 ":%u:%u:%u:%d:%x:%u", registry_id(),
	         label->on_host, label->device, label->location_type, label->location_id,
	         label->handle_types, label->rdma);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	int err = prepare(fd, bytes, inode_out);
	if (err != 0) {
		close(fd);
		return err;
	}
	return fd;
}

bool chunkfd_read(int fd, struct chunk_label *label_out, uint64_t *bytes_out)
{
	char path[64];
	char target[256];
	struct stat st;
	struct chunk_label label;
	uint64_t id;
	unsigned on_host;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, target, sizeof(target) - 1);
	if (n <= 0 || fstat(fd, &st) != 0) {
		return false;
	}
	target[n] = '\0';
	if (sscanf(target, "/memfd:cudasim:%" SCNx64 ":%u:%u:%u:%d:%x:%u", &id, &on_host,
	           &label.device, &label.location_type, &label.location_id, &label.handle_types,
	           &label.rdma) != 7) {
		return false;
	}
	label.on_host = on_host != 0;
	*label_out = label;
	*bytes_out = (uint64_t)st.st_size;
	return id == registry_id();
}

int chunkfd_reopen(int pid, int fd, uint64_t inode)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	int own = open(path, O_RDWR | O_CLOEXEC);
	if (own < 0) {
		return -errno;
	}
	/* A second open file description of the same chunk: it needs a lock of its own. */
	if (fstat(own, &st) != 0 || st.st_ino != inode || put_lock(own) != 0) {
		close(own);
		return -ENOENT;
	}
	return own;
}

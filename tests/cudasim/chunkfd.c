/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file behind a chunk. Its name carries what an importer must know about it.
 *
 * The file is a memfd, or one in $CUDASIM_CHUNKS, whose name is removed at once. Nothing but time depends on which: each 4 KiB
 * of a memfd cost a fault, a tmpfs may have huge pages.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

uint64_t chunkfd_inode(unsigned file_system, uint64_t inode)
{
	return (uint64_t)file_system << 44 ^ inode;
}

static uint64_t inode_of(const struct stat *st)
{
	return chunkfd_inode(minor(st->st_dev), st->st_ino);
}

uint64_t chunkfd_inode_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? inode_of(&st) : 0;
}

/* The lock that /proc/locks shows as long as the open file description exists. */
static int put_lock(int fd)
{
	struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 0 : -errno;
}

static char *folder; /* owned; NULL: none. Written by cuInit only */

void chunkfd_begin(void)
{
	const char *path = getenv("CUDASIM_CHUNKS");

	if (!folder && path && *path) {
		folder = strdup(path);
	}
}

/* The name is made unique, as two may make a chunk at once. As open to all as a memfd is. -1 if there is no folder. */
static int open_in_folder(const char *name)
{
	static atomic_uint last;
	char path[PATH_MAX];

	if (!folder) {
		return -1;
	}
	snprintf(path, sizeof(path), "%s/%s:%d.%u", folder, name, (int)getpid(),
	         atomic_fetch_add(&last, 1));
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0777);
	if (fd >= 0) {
		unlink(path);
		fchmod(fd, 0777);
	}
	return fd;
}

union any_handle {
	struct file_handle head;
	char bytes[sizeof(struct file_handle) + sizeof(((struct chunk_file *)0)->handle)];
};

/* A memfd has no folder by which it could be opened. */
static void get_handle(int fd, struct chunk_file *file)
{
	union any_handle handle = {.head.handle_bytes = sizeof(file->handle)};
	int mount;

	if (!folder || name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH) != 0) {
		return;
	}
	file->handle_type = handle.head.handle_type;
	file->n_bytes = handle.head.handle_bytes;
	memcpy(file->handle, handle.head.f_handle, handle.head.handle_bytes);
}

int chunkfd_open_folder(void)
{
	return folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

int chunkfd_exists(int folder_fd, const struct chunk_file *file)
{
	union any_handle handle = {.head = {file->n_bytes, file->handle_type}};

	if (file->n_bytes == 0) {
		return -ENOENT;
	}
	memcpy(handle.head.f_handle, file->handle, file->n_bytes);
	int fd = open_by_handle_at(folder_fd, &handle.head, O_PATH | O_CLOEXEC);
	if (fd < 0) {
		return errno == ESTALE ? 0 : -errno;
	}
	close(fd);
	return 1;
}

static int prepare(int fd, uint64_t bytes, struct chunk_file *file_out)
{
	struct stat st;

	if (ftruncate(fd, (off_t)bytes) != 0 || fstat(fd, &st) != 0) {
		return -errno;
	}
	*file_out = (struct chunk_file){.inode = inode_of(&st)};
	get_handle(fd, file_out);
	return put_lock(fd);
}

int chunkfd_new(const struct chunk_label *label, uint64_t bytes, struct chunk_file *file_out)
{
	char name[128];

	snprintf(name, sizeof(name), "cudasim:%" PRIx64 ":%u:%u:%u:%d:%x:%u", registry_id(),
	         label->on_host, label->device, label->location_type, label->location_id,
	         label->handle_types, label->rdma);
	int fd = open_in_folder(name);
	if (fd < 0) {
		fd = memfd_create(name, MFD_CLOEXEC);
	}
	if (fd < 0) {
		return -errno;
	}
	int err = prepare(fd, bytes, file_out);
	if (err != 0) {
		close(fd);
		return err;
	}
	return fd;
}

bool chunkfd_read(int fd, struct chunk_label *label_out, uint64_t *bytes_out)
{
	char path[64];
	char target[PATH_MAX];
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
	/* Behind "/memfd:" or the folder. */
	const char *name = strrchr(target, '/');
	name = name ? strstr(name, "cudasim:") : NULL;
	if (!name || sscanf(name, "cudasim:%" SCNx64 ":%u:%u:%u:%d:%x:%u", &id, &on_host,
	                    &label.device, &label.location_type, &label.location_id,
	                    &label.handle_types, &label.rdma) != 7) {
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
	if (fstat(own, &st) != 0 || inode_of(&st) != inode || put_lock(own) != 0) {
		close(own);
		return -ENOENT;
	}
	return own;
}

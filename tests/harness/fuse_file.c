/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fuse_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define FILE_NODE 2
#define MAX_READ_BYTES (128u * 1024)
#define HELD_WAIT_MS 30000

struct served {
	int device;  /* the FUSE device */
	int content; /* the file whose content is served */
	struct stat stat;
	struct fuse_file_faults faults;
	atomic_uint *n_held;
};

static void answer(const struct served *served, const struct fuse_in_header *request, int error,
                   const void *body, size_t n_bytes)
{
	struct fuse_out_header header = {
		.len = (uint32_t)(sizeof(header) + n_bytes),
		.error = error,
		.unique = request->unique,
	};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)body, n_bytes}};
	/* ENOENT: the request was interrupted, and nobody wants the answer. */
	if (writev(served->device, parts, 2) < 0 && errno != ENOENT) {
		_exit(1);
	}
}

static struct fuse_attr attributes(const struct served *served, uint64_t node)
{
	struct fuse_attr attr = {.ino = node, .nlink = 1, .mode = S_IFDIR | 0755};
	if (node == FILE_NODE) {
		attr.mode = S_IFREG | 0644;
		attr.size = (uint64_t)served->stat.st_size;
		attr.mtime = (uint64_t)served->stat.st_mtime;
		attr.ctime = attr.mtime;
	}
	return attr;
}

static void serve_read(const struct served *served, const struct fuse_in_header *request,
                       const struct fuse_read_in *read)
{
	static uint8_t bytes[MAX_READ_BYTES];
	size_t n = read->size < sizeof(bytes) ? read->size : sizeof(bytes);
	if (served->faults.endless_from && read->offset + n > served->faults.endless_from) {
		atomic_fetch_add(served->n_held, 1);
		return;
	}
	if (served->faults.bad_from && read->offset + n > served->faults.bad_from) {
		answer(served, request, -EIO, NULL, 0);
		return;
	}
	ssize_t got = pread(served->content, bytes, n, (off_t)read->offset);
	answer(served, request, got < 0 ? -errno : 0, bytes, got > 0 ? (size_t)got : 0);
}

static void serve_init(const struct served *served, const struct fuse_in_header *request)
{
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = MAX_READ_BYTES,
		.max_write = 4096,
	};
	answer(served, request, 0, &out, sizeof(out));
}

static void serve_one(const struct served *served, const struct fuse_in_header *request,
                      const void *body)
{
	struct fuse_entry_out entry = {.nodeid = FILE_NODE, .entry_valid = 60, .attr_valid = 60};
	struct fuse_attr_out attr = {.attr_valid = 60};
	struct fuse_open_out open = {.fh = 1};
	switch (request->opcode) {
	case FUSE_INIT:
		serve_init(served, request);
		return;
	case FUSE_LOOKUP:
		entry.attr = attributes(served, FILE_NODE);
		answer(served, request, 0, &entry, sizeof(entry));
		return;
	case FUSE_GETATTR:
		attr.attr = attributes(served, request->nodeid);
		answer(served, request, 0, &attr, sizeof(attr));
		return;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		answer(served, request, 0, &open, sizeof(open));
		return;
	case FUSE_READ:
		serve_read(served, request, body);
		return;
	case FUSE_FLUSH:
		if (served->faults.is_flush_endless) {
			atomic_fetch_add(served->n_held, 1);
		} else {
			answer(served, request, 0, NULL, 0);
		}
		return;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		answer(served, request, 0, NULL, 0);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		answer(served, request, -ENOSYS, NULL, 0);
	}
}

static void serve(const struct served *served)
{
	static uint8_t bytes[FUSE_MIN_READ_BUFFER + MAX_READ_BYTES];
	for (;;) {
		ssize_t n = read(served->device, bytes, sizeof(bytes));
		if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
			continue;
		}
		if (n < (ssize_t)sizeof(struct fuse_in_header)) {
			_exit(0);
		}
		serve_one(served, (struct fuse_in_header *)(void *)bytes,
		          bytes + sizeof(struct fuse_in_header));
	}
}

static bool skip(const char *what)
{
	printf("SKIP: %s: %s\n", what, strerror(errno));
	return false;
}

static bool mount_at(const char *folder, int device)
{
	char options[128];
	snprintf(options, sizeof(options),
	         "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%u", device,
	         MAX_READ_BYTES);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		return skip("no mount namespace");
	}
	ck_assert_int_eq(mkdir(folder, 0755), 0);
	return mount("glake-test", folder, "fuse", MS_NOSUID | MS_NODEV, options) == 0 ||
	       skip("cannot mount FUSE");
}

bool fuse_file_start(struct fuse_file *file, const char *folder, const char *content,
                     const struct fuse_file_faults *faults)
{
	*file = (struct fuse_file){.pid = 0};
	file->n_held = mmap(NULL, sizeof(*file->n_held), PROT_READ | PROT_WRITE,
	                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(file->n_held, MAP_FAILED);
	struct served served = {.faults = *faults, .n_held = file->n_held};
	served.device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (served.device < 0) {
		return skip("/dev/fuse");
	}
	served.content = open(content, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(served.content, 0);
	ck_assert_int_eq(fstat(served.content, &served.stat), 0);
	snprintf(file->folder, sizeof(file->folder), "%s", folder);
	snprintf(file->path, sizeof(file->path), "%s/model.safetensors", file->folder);
	bool is_mounted = mount_at(folder, served.device);
	if (is_mounted) {
		fflush(NULL);
		file->pid = fork();
		ck_assert_int_ge(file->pid, 0);
		if (file->pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve(&served);
		}
	}
	close(served.device);
	close(served.content);
	return is_mounted;
}

void fuse_file_await_held(const struct fuse_file *file)
{
	for (unsigned i = 0; atomic_load(file->n_held) == 0; i++) {
		ck_assert_msg(i < HELD_WAIT_MS, "nobody waits for the file system");
		usleep(1000);
	}
}

void fuse_file_stop(struct fuse_file *file)
{
	ck_assert_int_eq(kill(file->pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(file->pid, NULL, 0), file->pid);
	ck_assert_int_eq(umount2(file->folder, MNT_DETACH), 0);
	munmap(file->n_held, sizeof(*file->n_held));
	file->pid = 0;
}

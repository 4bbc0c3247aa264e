/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry counts the memory of each device, and of each host node with a limit, over all processes that share a state
 * file.
 *
 * Each chunk carries a read lock that belongs to its open file description (F_OFD_SETLK). Every
 * dup of the fd, every copy in flight in a socket and every mapping share that description, so
 * the kernel lists the lock in /proc/locks exactly as long as the memory exists, no matter who
 * holds it and how they died. That list has the locks of the whole machine, so who may opens the file by
 * its handle instead, which fails once nobody has it. The registry is a table of {file, device, bytes} in
 * shared memory; a sweep takes out the rows whose lock or file is gone. Rows of chunks that never left their maker are
 * taken out by the maker, so that a sweep is only needed to find room and to answer questions.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6d697361647563ULL
#define MAX_SLOTS (1U << 20)
#define NO_SLOT UINT32_MAX

struct slot {
	struct chunk_file file; /* .inode 0: free */
	uint64_t bytes;
	uint32_t device;
	uint32_t next_free;
};

/*
 * used_bytes[d] == sum of bytes of the slots with inode != 0 and device d. Slots from n_touched on
 * were never used, and their pages do not exist.
 */
struct registry {
	uint64_t magic; /* written last when the file is made */
	uint64_t id;
	pthread_mutex_t lock; /* robust, shared */
	uint64_t used_bytes[SIM_MAX_PLACES];
	uint32_t n_touched;
	uint32_t first_free;
	struct slot slots[MAX_SLOTS];
};

static struct registry *registry; /* mapped by registry_open, for good */

/* Locked. After a process died with the lock held, only the slots themselves are trusted. */
static void recount(void)
{
	uint32_t first_free = NO_SLOT;

	for (unsigned i = 0; i < SIM_MAX_PLACES; i++) {
		registry->used_bytes[i] = 0;
	}
	for (uint32_t i = registry->n_touched; i-- > 0;) {
		struct slot *slot = &registry->slots[i];
		if (slot->file.inode != 0) {
			registry->used_bytes[slot->device] += slot->bytes;
		} else {
			slot->next_free = first_free;
			first_free = i;
		}
	}
	registry->first_free = first_free;
}

static void lock(void)
{
	int err = pthread_mutex_lock(&registry->lock);

	if (err == EOWNERDEAD) {
		pthread_mutex_consistent(&registry->lock);
		recount();
	} else if (err != 0) {
		fprintf(stderr, "cudasim: the books cannot be locked: error %d\n", err);
		abort();
	}
}

static void unlock(void)
{
	pthread_mutex_unlock(&registry->lock);
}

/* The slot becomes valid with its inode, which is therefore written last. */
static void slot_take(uint32_t index, unsigned device, const struct chunk_file *file,
                      uint64_t bytes)
{
	struct slot *slot = &registry->slots[index];

	slot->device = device;
	slot->bytes = bytes;
	slot->file.handle_type = file->handle_type;
	slot->file.n_bytes = file->n_bytes;
	memcpy(slot->file.handle, file->handle, sizeof(slot->file.handle));
	atomic_signal_fence(memory_order_seq_cst);
	slot->file.inode = file->inode;
	registry->used_bytes[device] += bytes;
}

static void slot_give(uint32_t index)
{
	struct slot *slot = &registry->slots[index];

	slot->file.inode = 0;
	registry->used_bytes[slot->device] -= slot->bytes;
	slot->next_free = registry->first_free;
	registry->first_free = index;
}

static uint32_t slot_find_free(void)
{
	uint32_t index = registry->first_free;

	if (index != NO_SLOT) {
		registry->first_free = registry->slots[index].next_free;
	} else if (registry->n_touched < MAX_SLOTS) {
		index = registry->n_touched++;
	}
	return index;
}

/* Leave of the @n slots those whose lock is not listed. Returns how many. */
static uint32_t keep_missing(uint32_t *slots, uint32_t n)
{
	uint64_t *inodes = NULL;
	size_t n_inodes = 0;
	uint32_t n_missing = 0;

	if (proclocks_read(&inodes, &n_inodes) != 0) {
		return 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (!proclocks_has(inodes, n_inodes, registry->slots[slots[i]].file.inode)) {
			slots[n_missing++] = slots[i];
		}
	}
	free(inodes);
	return n_missing;
}

/* The same by the files themselves. Returns whether that is allowed. */
static bool keep_gone(uint32_t *slots, uint32_t *n)
{
	uint32_t n_gone = 0;
	int folder = chunkfd_open_folder();
	bool is_allowed = folder >= 0 && *n > 0 &&
	                  chunkfd_exists(folder, &registry->slots[slots[0]].file) >= 0;

	for (uint32_t i = 0; is_allowed && i < *n; i++) {
		if (chunkfd_exists(folder, &registry->slots[slots[i]].file) == 0) {
			slots[n_gone++] = slots[i];
		}
	}
	if (folder >= 0) {
		close(folder);
	}
	*n = is_allowed ? n_gone : *n;
	return is_allowed;
}

/*
 * The kernel lists locks page by page and not as one snapshot: while others close files, an entry
 * can slip from a page not yet read to one already read. With many who come and go, one in ten
 * does. So a lock counts as gone only after it was missing each time.
 */
static void sweep(void)
{
	enum { N_LOOKS = 8 };
	uint32_t *slots = malloc(registry->n_touched * sizeof(*slots));
	uint32_t n = 0;

	if (!slots) {
		return;
	}
	for (uint32_t i = 0; i < registry->n_touched; i++) {
		if (registry->slots[i].file.inode != 0) {
			slots[n++] = i;
		}
	}
	if (!keep_gone(slots, &n)) {
		for (int i = 0; i < N_LOOKS && n > 0; i++) {
			n = keep_missing(slots, n);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		slot_give(slots[i]);
	}
	free(slots);
}

static bool has_room(unsigned physical, uint64_t bytes)
{
	uint64_t used = registry->used_bytes[physical];
	uint64_t total = physical < SIM_MAX_DEVICES ? device_physical_bytes(physical)
	                                            : hostnode_bytes(physical - SIM_MAX_DEVICES);

	return used <= total && bytes <= total - used;
}

CUresult registry_charge(unsigned physical, const struct chunk_file *file, uint64_t bytes,
                         struct registry_slot *slot_out)
{
	lock();
	if (!has_room(physical, bytes)) {
		sweep();
	}
	uint32_t index = NO_SLOT;
	if (has_room(physical, bytes)) {
		index = slot_find_free();
		if (index == NO_SLOT) {
			sweep();
			index = slot_find_free();
		}
	}
	if (index != NO_SLOT) {
		slot_take(index, physical, file, bytes);
		*slot_out = (struct registry_slot){.index = index, .inode = file->inode};
	}
	unlock();
	return index != NO_SLOT ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void registry_refund(const struct registry_slot *slot)
{
	lock();
	if (registry->slots[slot->index].file.inode == slot->inode) {
		slot_give(slot->index);
	}
	unlock();
}

uint64_t registry_used_bytes(unsigned physical)
{
	lock();
	sweep();
	uint64_t used = registry->used_bytes[physical];
	unlock();
	return used;
}

uint64_t registry_id(void)
{
	return registry->id;
}

/* The file is ours alone while this runs (flock). */
static int format(int fd, struct registry *r)
{
	pthread_mutexattr_t attr;
	struct stat st;

	if (fstat(fd, &st) != 0) {
		return -errno;
	}
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	int err = pthread_mutex_init(&r->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	r->id = (uint64_t)st.st_ino << 20 ^ (uint64_t)st.st_mtim.tv_nsec;
	r->first_free = NO_SLOT;
	r->magic = MAGIC;
	return -err;
}

static int open_file(const char *path)
{
	/* Not O_CREAT at first: in a sticky directory it may not open somebody else's file. */
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd >= 0) {
			fchmod(fd, 0666);
		}
	}
	return fd;
}

static int map_file(int fd)
{
	struct stat st;

	if (flock(fd, LOCK_EX) != 0 || fstat(fd, &st) != 0) {
		return -errno;
	}
	if (st.st_size == 0 && ftruncate(fd, sizeof(struct registry)) != 0) {
		return -errno;
	}
	if (st.st_size != 0 && st.st_size != sizeof(struct registry)) {
		return -EINVAL;
	}
	struct registry *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (r == MAP_FAILED) {
		return -errno;
	}
	int err = r->magic == MAGIC ? 0 : format(fd, r);
	if (err != 0) {
		munmap(r, sizeof(*r));
		return err;
	}
	registry = r;
	return 0;
}

CUresult registry_open(void)
{
	const char *path = getenv("CUDASIM_STATE");
	char by_default[600];

	if (registry) {
		return CUDA_SUCCESS;
	}
	if (!path || !*path) {
		snprintf(by_default, sizeof(by_default), "/dev/shm/cudasim-%u-%s-%s",
		         (unsigned)getuid(), device_spec(), hostnode_spec());
		path = by_default;
	}
	int fd = open_file(path);
	int err = fd >= 0 ? map_file(fd) : -errno;
	if (fd >= 0) {
		/* The mapping keeps the open file, and so its lock, alive: close() is not enough. */
		flock(fd, LOCK_UN);
		close(fd);
	}
	if (err != 0) {
		fprintf(stderr, "cudasim: %s: %s\n", path,
		        err == -EINVAL ? "not a state file" : "cannot be used");
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

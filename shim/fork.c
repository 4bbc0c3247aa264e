/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() whose parent had not called cuInit() starts afresh: nothing was begun, so there
 * is nothing to forget. Any other child can do nothing with CUDA but exec(); it lets go of the
 * parent's connection, which would otherwise outlive the parent.
 *
 * The handler runs in the child of a process that may have had any number of threads in any state:
 * it takes no lock and calls only what is async-signal-safe.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/fork.h"
#include "shim/shim.h"

static atomic_bool is_initialised;
static atomic_bool is_forked;

static struct {
	atomic_int fd;
	_Atomic uint64_t inode;
} watched = {.fd = -1};

static bool inode_of(int fd, uint64_t *inode_out)
{
	struct stat status;
	if (fd < 0 || fstat(fd, &status) < 0) {
		return false;
	}
	*inode_out = status.st_ino;
	return true;
}

static void in_child(void)
{
	if (!is_initialised) {
		return;
	}
	is_forked = true;
	int fd = watched.fd;
	uint64_t inode;
	/* The program may have closed all fds, and opened others, without asking whose they are. */
	if (inode_of(fd, &inode) && inode == watched.inode) {
		close(fd);
	}
	watched.fd = -1;
}

void shim_fork_init(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

void shim_note_init(void)
{
	is_initialised = true;
}

bool shim_is_forked(void)
{
	return atomic_load_explicit(&is_forked, memory_order_relaxed);
}

void shim_fork_watch(int fd)
{
	uint64_t inode;
	if (inode_of(fd, &inode)) {
		watched.inode = inode;
		watched.fd = fd;
	} else {
		watched.fd = -1;
	}
}

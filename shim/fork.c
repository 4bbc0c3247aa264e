/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() whose parent had not called cuInit() starts afresh, because the parent had
 * started nothing. Any other child cannot use CUDA, only exec(). It closes its copy of the parent's
 * socket; otherwise glaked would not see the parent's end.
 *
 * The handler runs in the child while the parent may have had threads in any state. So it takes no
 * lock and calls only async-signal-safe functions.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "glake_shim.h"
#include "shim/fork.h"
#include "shim/gate.h"
#include "shim/shim.h"

static atomic_bool is_initialised;
static atomic_bool is_forked;

/*
 * Usually there is one socket. More are open while memory of dead connections is in use. A fork may
 * come at any time, so a slot is filled in steps that never show a child a wrong pair.
 */
#define MAX_WATCHED 16
enum { SLOT_TAKEN = -1, SLOT_FREE = 0 };

static struct {
	atomic_int fd_plus_1;
	_Atomic uint64_t inode;
} watched[MAX_WATCHED];

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
	gate_forked();
	/* The child has none of the parent's GPU memory, and must not take its locks, which may be held for ever. */
	glake__sealed.n = 0;
	if (!is_initialised) {
		return;
	}
	is_forked = true;
	for (int i = 0; i < MAX_WATCHED; i++) {
		int fd = watched[i].fd_plus_1 - 1;
		uint64_t inode;
		/* The program may have closed our socket and opened a file with its number. */
		if (inode_of(fd, &inode) && inode == watched[i].inode) {
			close(fd);
		}
		watched[i].fd_plus_1 = SLOT_FREE;
	}
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

int shim_fork_watch(struct glake_session *session)
{
	uint64_t inode;
	int fd = glake__session_socket(session, &inode);
	if (fd < 0) {
		return -1;
	}
	for (int i = 0; i < MAX_WATCHED; i++) {
		int expected = SLOT_FREE;
		if (atomic_compare_exchange_strong(&watched[i].fd_plus_1, &expected, SLOT_TAKEN)) {
			watched[i].inode = inode;
			watched[i].fd_plus_1 = fd + 1;
			return i;
		}
	}
	return -1;
}

void shim_fork_watch_again(int watch, struct glake_session *session)
{
	uint64_t inode;
	int fd = glake__session_socket(session, &inode);
	if (watch >= 0 && fd >= 0 && inode != watched[watch].inode) {
		watched[watch].fd_plus_1 = SLOT_TAKEN;
		watched[watch].inode = inode;
		watched[watch].fd_plus_1 = fd + 1;
	}
}

void shim_fork_forget(int watch)
{
	if (watch >= 0) {
		watched[watch].fd_plus_1 = SLOT_FREE;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cleanup attributes for locals, and the two macros every C project needs.
 *
 * Owner: the enclosing scope. A value that leaves the scope is stolen: fd_steal(), ptr_steal().
 *
 * A thread must not be cancelled while it holds a lock or a turn that others wait for: it begins
 * with `cleanup_cancel int cancel = cancel_disable();`.
 */
#ifndef GLAKE_PROTO_CLEANUP_H
#define GLAKE_PROTO_CLEANUP_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define n_elements(array) (sizeof(array) / sizeof((array)[0]))

/* Close *fd, keep errno, leave -1. */
static inline void fd_close(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;
		close(*fd);
		errno = saved;
		*fd = -1;
	}
}

static inline int fd_steal(int *fd)
{
	int stolen = *fd;
	*fd = -1;
	return stolen;
}

static inline void *ptr_steal_(void **ptr)
{
	void *stolen = *ptr;
	*ptr = NULL;
	return stolen;
}

static inline void free_cleanup_(void *ptr)
{
	free(*(void **)ptr);
}

static inline int cancel_disable(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_restore_(const int *before)
{
	int disabled;
	pthread_setcancelstate(*before, &disabled);
}

#define ptr_steal(ptr) ((__typeof__(ptr))ptr_steal_((void **)&(ptr)))
#define cleanup_fd __attribute__((cleanup(fd_close)))
#define cleanup_free __attribute__((cleanup(free_cleanup_)))
#define cleanup_cancel __attribute__((cleanup(cancel_restore_), unused))

#endif

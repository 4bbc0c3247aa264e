/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service manager that keeps fds, as far as glaked needs one: a process that reads the notifications of
 * glaked, keeps the fds that come with FDSTORE=1, closes them with FDSTOREREMOVE=1, and answers BARRIER=1. The
 * harness starts glaked; this process only has what glaked leaves behind.
 *
 * Owner: the harness. Lifetime: begin to end; it dies with the test. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_FDKEEPER_H
#define GLAKE_TESTS_HARNESS_FDKEEPER_H

#include <stddef.h>
#include <sys/types.h>

#define FDKEEPER_MAX 4096u

struct fdkeeper {
	pid_t pid;   /* 0: there is none */
	int control; /* notifications that it does not handle come from here */
	int orders;
};

/* @notify_fd: the bound datagram socket of the notifications, taken over. */
void fdkeeper_begin(struct fdkeeper *keeper, int notify_fd);
/* End the process, which closes all kept fds. Harmless if there is none. */
void fdkeeper_end(struct fdkeeper *keeper);

/*
 * Called in the process that becomes glaked: put duplicates of all kept fds at 3 and behind, and their names into the
 * environment. @listen_fd, if not -1, is one of them.
 */
void fdkeeper_pass(const struct fdkeeper *keeper, int listen_fd);

/* The number of kept fds; and close kept fds whose name begins with @prefix. */
size_t fdkeeper_n_kept(const struct fdkeeper *keeper);
void fdkeeper_forget(const struct fdkeeper *keeper, const char *prefix);
/* Answer no barriers from now on, until this is called again. */
void fdkeeper_stall(const struct fdkeeper *keeper);

#endif

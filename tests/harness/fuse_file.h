/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file on a file system that is a program (FUSE) and misbehaves: it fails to read from some byte
 * on, or never answers the flush that every close() waits for.
 *
 * The mount lives in a mount namespace of the test's process and what it starts, so nothing of it
 * can stay behind.
 *
 * Owner: the test. Lifetime: start to stop, or the end of the test's process. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_FUSE_FILE_H
#define GLAKE_TESTS_HARNESS_FUSE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fuse_file {
	pid_t pid; /* the serving program's */
	char folder[256];
	char path[300];      /* the file's */
	atomic_uint *n_held; /* unanswered requests; shared with the program */
};

struct fuse_file_faults {
	uint64_t bad_from;     /* EIO when a read reaches this byte; 0 = never */
	uint64_t endless_from; /* no read that reaches this byte is answered; 0 = all are */
	bool is_flush_endless; /* close() waits until the file system is gone */
};

/*
 * Mount a copy of the file @content on @folder, which is made. Returns false, having said "SKIP",
 * where mounting is not possible.
 */
bool fuse_file_start(struct fuse_file *file, const char *folder, const char *content,
                     const struct fuse_file_faults *faults);

/* Wait until a request is held. */
void fuse_file_await_held(const struct fuse_file *file);

/* End the program, which ends all held requests, and unmount. */
void fuse_file_stop(struct fuse_file *file);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is being loaded: an fd that a client opened, and the state the file had at first.
 *
 * A file that is mostly not in the page cache is read past it (O_DIRECT), if the request allows it
 * and the file system can. Such reads have a multiple of SOURCE_ALIGN_BYTES, and the memory has
 * that alignment; source_read_span() reads a little more at both ends for this. The flag belongs to
 * the open file description, which the client shares, so it is restored at the end.
 *
 * Owner: the load. Lifetime: source_open() to source_close().
 * Threads: source_read*() from any number; the others from one.
 */
#ifndef GLAKE_MOVER_SOURCE_H
#define GLAKE_MOVER_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "daemon/mover/fault.h"

#define SOURCE_ALIGN_BYTES 4096u

enum {
	SOURCE_E_SHORT = 1, /* the file ends before the wanted bytes do */
};

struct source {
	const char *name; /* borrowed; for texts */
	int fd;           /* owned; -1 = none */
	int flags;        /* of F_GETFL, at first */
	bool is_cold;     /* mostly not in the page cache */
	atomic_bool is_direct;
	struct stat before;
	const char *unsettled; /* static; NULL: a later change will show, see settle.h */
};

/* A value that source_close() accepts. */
#define SOURCE_NULL ((struct source){.fd = -1})

/* Takes @fd, also on failure. Refuses what is not a regular, readable file. */
int source_open(struct source *source, int fd, const char *name, struct fault *fault);
/* Accepts SOURCE_NULL. */
void source_close(struct source *source);

/* See how much of the file is cached, and choose how it will be read. */
void source_choose(struct source *source, bool may_direct);

/* Read exactly @n_bytes at @offset. Returns 0, SOURCE_E_SHORT or -errno. */
int source_read(struct source *source, uint64_t offset, uint64_t n_bytes, void *to);

/*
 * Read like source_read() into a @buffer that is aligned to SOURCE_ALIGN_BYTES and has room for @n_bytes and twice that; the
 * bytes begin at *content_out. *direct_out says if they came past the page cache.
 */
int source_read_span(struct source *source, uint64_t offset, uint64_t n_bytes, void *buffer,
                     void **content_out, bool *direct_out);

/* Check that the file is the one that was opened, unchanged. FAULT_FILE_CHANGED if not. */
int source_check(const struct source *source, struct fault *fault);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a job fails: a kind, which becomes the status of the Failed report, and one line.
 *
 * Whoever decides that a job fails sets its fault and returns MOVER_E_FAULT; callers pass that on.
 * The line is printable ASCII whatever the names in it hold, since it ends up in logs and terminals.
 *
 * Owner: the job; a plain value.
 * Threads: none of its own.
 */
#ifndef GLAKE_MOVER_FAULT_H
#define GLAKE_MOVER_FAULT_H

#include <stddef.h>

enum {
	MOVER_E_FAULT = 1, /* the fault has the cause */
};

enum fault_kind {
	FAULT_NONE,
	FAULT_BAD_REQUEST,
	FAULT_BAD_FILE,
	FAULT_FILE_CHANGED,
	FAULT_READ,
	FAULT_NO_DEVICE_MEMORY,
	FAULT_NO_HOST_MEMORY,
	FAULT_NO_FDS,
	FAULT_BUSY,
	FAULT_CANCELLED,
	FAULT_MISCOPIED, /* memory does not have what was written to it, or somebody else wrote */
	FAULT_INTERNAL,
	FAULT_DEVICE_LOST, /* no context of this process works any more: it must end */
};

#define FAULT_TEXT_BYTES 640

struct fault {
	enum fault_kind kind;
	char text[FAULT_TEXT_BYTES];
};

/* Always returns MOVER_E_FAULT. */
int fault_set(struct fault *fault, enum fault_kind kind, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* "out of host memory"; always returns MOVER_E_FAULT. */
int fault_no_memory(struct fault *fault);

/* A name from a file as it may appear in a line: escaped, cut, never empty-looking. */
struct quoted {
	char text[160];
};

struct quoted quote(const char *name);

/* Write one line to stderr. At most a few per second get through, the rest is counted. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

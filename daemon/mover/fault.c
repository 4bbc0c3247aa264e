/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/fault.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int fault_set(struct fault *fault, enum fault_kind kind, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	fault->kind = kind;
	return MOVER_E_FAULT;
}

int fault_no_memory(struct fault *fault)
{
	return fault_set(fault, FAULT_NO_HOST_MEMORY, "out of host memory");
}

struct quoted quote(const char *name)
{
	struct quoted out;
	size_t at = 0;
	out.text[at++] = '\'';
	for (; *name; name++) {
		unsigned char byte = (unsigned char)*name;
		/* Room for this one, escaped, and for what ends a cut name. */
		if (at + 4 + sizeof("...'") > sizeof(out.text)) {
			memcpy(out.text + at, "...", 3);
			at += 3;
			break;
		}
		if (byte >= 0x20 && byte < 0x7f && byte != '\\' && byte != '\'') {
			out.text[at++] = (char)byte;
		} else {
			at += (size_t)snprintf(out.text + at, 5, "\\x%02x", byte);
		}
	}
	out.text[at++] = '\'';
	out.text[at] = '\0';
	return out;
}

#define LINES_PER_SECOND 20

/* Returns whether a line may be written now, and how many were kept back before it. */
static int admit(unsigned *n_dropped_out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static time_t second;
	static unsigned n_lines;
	static unsigned n_dropped;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	pthread_mutex_lock(&lock);
	if (now.tv_sec != second) {
		second = now.tv_sec;
		n_lines = 0;
	}
	int admitted = n_lines < LINES_PER_SECOND;
	if (admitted) {
		n_lines++;
		*n_dropped_out = n_dropped;
		n_dropped = 0;
	} else {
		n_dropped++;
	}
	pthread_mutex_unlock(&lock);
	return admitted;
}

void say(const char *format, ...)
{
	int saved = errno;
	unsigned n_dropped;
	if (admit(&n_dropped)) {
		char line[FAULT_TEXT_BYTES + 128];
		size_t at = (size_t)snprintf(line, sizeof(line), "glake-mover: ");
		if (n_dropped > 0) {
			at += (size_t)snprintf(line + at, sizeof(line) - at,
			                       "(%u lines were suppressed) ", n_dropped);
		}
		va_list arguments;
		va_start(arguments, format);
		int n = vsnprintf(line + at, sizeof(line) - at - 1, format, arguments);
		va_end(arguments);
		at += n < 0 ? 0 : (size_t)n;
		if (at > sizeof(line) - 2) {
			at = sizeof(line) - 2;
		}
		line[at++] = '\n';
		/* One write, so that lines of several processes do not mix. */
		ssize_t written = write(STDERR_FILENO, line, at);
		(void)written;
	}
	errno = saved;
}

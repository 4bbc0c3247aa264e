/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/report.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 10

void report(const char *format, ...)
{
	/* A pipe that is ready has room for as much. */
	char text[512] = "glake-keeper: ";
	size_t n_bytes = strlen(text);
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text + n_bytes, sizeof(text) - 1 - n_bytes, format, arguments);
	va_end(arguments);
	strcat(text, "\n");
	if (poll(&ready, 1, WAIT_MS) == 1 && write(STDERR_FILENO, text, strlen(text)) < 0) {
		return; /* nobody can be told */
	}
}

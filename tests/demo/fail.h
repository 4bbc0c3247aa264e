/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a program of the demo, with a line on stderr. */
#ifndef GLAKE_TESTS_DEMO_FAIL_H
#define GLAKE_TESTS_DEMO_FAIL_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static inline void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("demo: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

#endif

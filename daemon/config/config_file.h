/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libconfig file, read and parsed, with errors that name the line.
 *
 * libconfig alone silently accepts some mistakes: it wraps whole numbers of more than 32 bits
 * (25769803776 bytes become 0), stops at an unclosed comment, and ends the process for an @include
 * of a folder. So this file checks the text first: it range-checks numbers and rewrites them as
 * 64-bit ones, requires closed comments and texts, and refuses @include.
 *
 * Owner: the loading function. Lifetime: init to deinit; settings point into it.
 * Threads: none of its own.
 */
#ifndef GLAKE_DAEMON_CONFIG_FILE_H
#define GLAKE_DAEMON_CONFIG_FILE_H

#include <libconfig.h>
#include <stddef.h>

/* Larger files are refused. */
#define CONFIG_FILE_MAX_BYTES (1024u * 1024u)

struct config_file {
	const char *path; /* borrowed; how errors name it */
	config_t parsed;
	char *error_out; /* borrowed */
	size_t error_bytes;
};

void config_file_init(struct config_file *file, const char *path, char *error_out,
                      size_t error_bytes);
void config_file_deinit(struct config_file *file);

/* Read the file, once. Returns 0, -EINVAL (the content), -errno of reading, or -ENOMEM; each with an error text. */
int config_file_read(struct config_file *file);

/* Parse a text in memory like a file. */
int config_file_parse(struct config_file *file, const char *text, size_t n_bytes);

/* Writes "FILE:LINE: text" (no line when @line is 0) to the error text. Always -EINVAL. */
__attribute__((format(printf, 3, 4))) int
config_file_wrong_line(struct config_file *file, unsigned line, const char *format, ...);

/* Call config_file_wrong_line() with the line of @at. */
#define config_file_wrong(file, at, ...) \
	config_file_wrong_line(file, config_setting_source_line(at), __VA_ARGS__)

#endif

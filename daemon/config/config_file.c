/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

/* A scan makes the text that libconfig gets from the file's text. */
struct scan {
	struct config_file *file;
	const char *at;
	const char *end;
	char *out; /* room for twice the text: a number grows by its L at most */
	unsigned line;
	unsigned last_line; /* the last line so far that has more than space and comments */
};

void config_file_init(struct config_file *file, const char *path, char *error_out,
                      size_t error_bytes)
{
	file->path = path;
	file->error_out = error_out;
	file->error_bytes = error_bytes;
	config_init(&file->parsed);
}

void config_file_deinit(struct config_file *file)
{
	config_destroy(&file->parsed);
}

int config_file_wrong_line(struct config_file *file, unsigned line, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (line) {
		snprintf(file->error_out, file->error_bytes, "%s:%u: %s", file->path, line, text);
	} else {
		snprintf(file->error_out, file->error_bytes, "%s: %s", file->path, text);
	}
	return -EINVAL;
}

/* ---- the check before libconfig ---- */

static void scan_copy(struct scan *scan, size_t n_bytes)
{
	for (; n_bytes > 0; n_bytes--) {
		scan->line += *scan->at == '\n';
		*scan->out++ = *scan->at++;
	}
}

static bool scan_sees(const struct scan *scan, const char *token)
{
	size_t n_bytes = strlen(token);
	return (size_t)(scan->end - scan->at) >= n_bytes && memcmp(scan->at, token, n_bytes) == 0;
}

static int scan_text(struct scan *scan)
{
	unsigned line = scan->line;
	scan_copy(scan, 1);
	while (scan->at < scan->end && *scan->at != '"') {
		bool escapes = *scan->at == '\\' && scan->at + 1 < scan->end;
		scan_copy(scan, escapes ? 2 : 1);
	}
	if (scan->at == scan->end) {
		return config_file_wrong_line(scan->file, line, "a text in quotes is never closed");
	}
	scan_copy(scan, 1);
	return 0;
}

static int scan_block_comment(struct scan *scan)
{
	unsigned line = scan->line;
	while (scan->at < scan->end && !scan_sees(scan, "*/")) {
		scan_copy(scan, 1);
	}
	if (scan->at == scan->end) {
		return config_file_wrong_line(scan->file, line, "a comment is never closed");
	}
	scan_copy(scan, 2);
	return 0;
}

static bool starts_comment(const struct scan *scan)
{
	return *scan->at == '#' || scan_sees(scan, "//") || scan_sees(scan, "/*");
}

static void scan_line_comment(struct scan *scan)
{
	while (scan->at < scan->end && *scan->at != '\n') {
		scan_copy(scan, 1);
	}
}

/* The characters libconfig has in names. */
static bool in_name(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '*';
}

static void scan_name(struct scan *scan)
{
	while (scan->at < scan->end && in_name(*scan->at)) {
		scan_copy(scan, 1);
	}
}

static size_t number_bytes(const struct scan *scan)
{
	const char *p = scan->at + 1;
	while (p < scan->end && (isalnum((unsigned char)*p) || *p == '.' || *p == '_' ||
	                         ((*p == '+' || *p == '-') && (p[-1] == 'e' || p[-1] == 'E')))) {
		p++;
	}
	return (size_t)(p - scan->at);
}

/* Fractions stay as they are: no key takes one, and the key's own message is the better one. */
static int scan_number(struct scan *scan)
{
	char token[64] = {0};
	size_t n_bytes = number_bytes(scan);
	memcpy(token, scan->at, n_bytes < sizeof(token) ? n_bytes : sizeof(token) - 1);
	bool is_hex = token[0] == '0' && (token[1] == 'x' || token[1] == 'X');
	if (!is_hex && strchr(token, '.')) {
		scan_copy(scan, n_bytes);
		return 0;
	}
	char *end;
	errno = 0;
	long long number = strtoll(token, &end, is_hex ? 16 : 10);
	bool is_whole = end != token && (!*end || !strcmp(end, "L") || !strcmp(end, "LL"));
	if (!is_whole || n_bytes >= sizeof(token)) {
		return config_file_wrong_line(scan->file, scan->line,
		                              "%s is not a number; a text needs quotes", token);
	}
	if (errno == ERANGE) {
		return config_file_wrong_line(scan->file, scan->line, "%s does not fit 64 bits",
		                              token);
	}
	scan->out += sprintf(scan->out, "%lldL", number);
	scan->at += n_bytes;
	return 0;
}

static bool starts_number(const struct scan *scan)
{
	char c = *scan->at;
	return isdigit((unsigned char)c) || c == '+' || c == '-' || c == '.';
}

static int scan_token(struct scan *scan)
{
	if (*scan->at == '"') {
		return scan_text(scan);
	}
	if (scan_sees(scan, "/*")) {
		return scan_block_comment(scan);
	}
	if (*scan->at == '@') {
		return config_file_wrong_line(scan->file, scan->line, "@include is not supported");
	}
	if (*scan->at == '\0') {
		return config_file_wrong_line(scan->file, scan->line, "a NUL byte");
	}
	if (starts_number(scan)) {
		return scan_number(scan);
	}
	if (starts_comment(scan)) {
		scan_line_comment(scan);
	} else if (in_name(*scan->at)) {
		scan_name(scan);
	} else {
		scan_copy(scan, 1);
	}
	return 0;
}

/* ---- reading ---- */

/* libconfig is a line or two behind at the end of the file. */
static int parse_checked(struct config_file *file, const char *text, unsigned last_line)
{
	if (config_read_string(&file->parsed, text)) {
		return 0;
	}
	unsigned line = (unsigned)config_error_line(&file->parsed);
	if (line > last_line) {
		return config_file_wrong_line(file, last_line, "the file ends within an entry");
	}
	return config_file_wrong_line(file, line, "%s", config_error_text(&file->parsed));
}

int config_file_parse(struct config_file *file, const char *text, size_t n_bytes)
{
	cleanup_free char *checked = malloc(2 * n_bytes + 2);
	if (!checked) {
		snprintf(file->error_out, file->error_bytes, "out of memory");
		return -ENOMEM;
	}
	struct scan scan = {
		.file = file, .at = text, .end = text + n_bytes, .out = checked, .line = 1};
	while (scan.at < scan.end) {
		bool is_entry = !isspace((unsigned char)*scan.at) && !starts_comment(&scan);
		int result = scan_token(&scan);
		if (result < 0) {
			return result;
		}
		scan.last_line = is_entry ? scan.line : scan.last_line;
	}
	/* libconfig wants a line end behind a comment, even behind the last one. */
	memcpy(scan.out, "\n", 2);
	return parse_checked(file, checked, scan.last_line);
}

static int read_whole(int fd, char *buffer, size_t capacity, size_t *n_bytes_out)
{
	size_t n_bytes = 0;
	while (n_bytes < capacity) {
		ssize_t more = read(fd, buffer + n_bytes, capacity - n_bytes);
		if (more < 0 && errno != EINTR) {
			return -errno;
		}
		if (more == 0) {
			*n_bytes_out = n_bytes;
			return 0;
		}
		n_bytes += more > 0 ? (size_t)more : 0;
	}
	return -EFBIG;
}

int config_file_read(struct config_file *file)
{
	cleanup_free char *text = malloc(CONFIG_FILE_MAX_BYTES + 1);
	cleanup_fd int fd = text ? open(file->path, O_RDONLY | O_CLOEXEC) : -1;
	size_t n_bytes = 0;
	int result = !text ? -ENOMEM : fd < 0 ? -errno : 0;
	if (result == 0) {
		result = read_whole(fd, text, CONFIG_FILE_MAX_BYTES + 1, &n_bytes);
	}
	if (result < 0) {
		config_file_wrong_line(file, 0, "%s", strerror(-result));
		return result;
	}
	return config_file_parse(file, text, n_bytes);
}

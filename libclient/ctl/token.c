/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Shorter ones can be guessed. */
#define MIN_BYTES 16u

__attribute__((format(printf, 2, 3))) static int fail(char *error_out, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(error_out, TOKEN_ERROR_BYTES, format, arguments);
	va_end(arguments);
	return -1;
}

/* Returns 0, or -1 with the reason. */
static int check_file(const char *path, const struct stat *file, char *error_out)
{
	if (!S_ISREG(file->st_mode)) {
		return fail(error_out, "%s: not a regular file", path);
	}
	if (file->st_uid != 0 && file->st_uid != geteuid()) {
		return fail(error_out,
		            "%s: it belongs to uid %u, who could change the token: give it to root",
		            path, (unsigned)file->st_uid);
	}
	if (file->st_mode & 0007) {
		return fail(error_out, "%s: everybody may read or write it (mode %04o): chmod 640",
		            path, (unsigned)file->st_mode & 07777);
	}
	if (file->st_mode & 0020) {
		return fail(error_out, "%s: its group may write it (mode %04o): chmod 640", path,
		            (unsigned)file->st_mode & 07777);
	}
	return 0;
}

/* The first line of @text, without blanks behind it. Returns 0, or -1 with the reason. */
static int take_line(const char *path, char *text, unsigned char *bytes_out, char *error_out)
{
	size_t n = strcspn(text, "\r\n");
	while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) {
		n--;
	}
	if (n < MIN_BYTES || n > TOKEN_MAX_BYTES) {
		return fail(error_out,
		            "%s: its first line has %zu characters, and a token has %u to %u: "
		            "openssl rand -hex 32",
		            path, n, MIN_BYTES, TOKEN_MAX_BYTES);
	}
	for (size_t i = 0; i < n; i++) {
		if (text[i] <= ' ' || text[i] > '~') {
			return fail(error_out,
			            "%s: its first line has a character that no header may have",
			            path);
		}
	}
	memset(bytes_out, 0, TOKEN_MAX_BYTES);
	memcpy(bytes_out, text, n);
	return 0;
}

/* Returns 0, or -1 with the reason. @file_out is written when the file was found. */
static int read_file(const char *path, struct stat *file_out, unsigned char *bytes_out,
                     char *error_out)
{
	char text[TOKEN_MAX_BYTES + 64];
	/* Not to wait for the writer of a pipe. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, file_out) < 0) {
		fail(error_out, "%s: %s", path, strerror(errno));
		if (fd >= 0) {
			close(fd);
		}
		return -1;
	}
	int err = check_file(path, file_out, error_out);
	ssize_t n = err ? 0 : read(fd, text, sizeof(text) - 1);
	if (n < 0) {
		err = fail(error_out, "%s: %s", path, strerror(errno));
	}
	close(fd);
	text[n < 0 ? 0 : n] = '\0';
	err = err ? err : take_line(path, text, bytes_out, error_out);
	explicit_bzero(text, sizeof(text));
	return err;
}

int token_init(struct token *token, const char *path, char error_out[TOKEN_ERROR_BYTES])
{
	*token = (struct token){.path = path};
	if (read_file(path, &token->file, token->bytes, error_out) < 0) {
		return -1;
	}
	pthread_mutex_init(&token->lock, NULL);
	return 0;
}

void token_deinit(struct token *token)
{
	pthread_mutex_destroy(&token->lock);
	explicit_bzero(token->bytes, sizeof(token->bytes));
}

static bool is_same_file(const struct stat *left, const struct stat *right)
{
	return left->st_dev == right->st_dev && left->st_ino == right->st_ino &&
	       left->st_mode == right->st_mode && left->st_uid == right->st_uid &&
	       left->st_size == right->st_size && left->st_mtim.tv_sec == right->st_mtim.tv_sec &&
	       left->st_mtim.tv_nsec == right->st_mtim.tv_nsec &&
	       left->st_ctim.tv_sec == right->st_ctim.tv_sec &&
	       left->st_ctim.tv_nsec == right->st_ctim.tv_nsec;
}

int token_refresh(struct token *token, char error_out[TOKEN_ERROR_BYTES])
{
	unsigned char bytes[TOKEN_MAX_BYTES];
	struct stat now = {.st_dev = 0};
	bool is_there = stat(token->path, &now) == 0;
	if (is_same_file(&now, &token->file)) {
		return 0;
	}
	token->file = now;
	if (!is_there) {
		return fail(error_out, "%s: %s", token->path, strerror(errno));
	}
	/* The file may have changed once more since: then the next look reads it again. */
	struct stat found;
	int err = read_file(token->path, &found, bytes, error_out);
	if (err == 0) {
		pthread_mutex_lock(&token->lock);
		memcpy(token->bytes, bytes, sizeof(token->bytes));
		pthread_mutex_unlock(&token->lock);
	}
	explicit_bzero(bytes, sizeof(bytes));
	return err;
}

/* All bytes are looked at, whatever the first ones are. */
static bool is_equal(const unsigned char *left, const unsigned char *right)
{
	const volatile unsigned char *a = left;
	const volatile unsigned char *b = right;
	unsigned differs = 0;
	for (size_t i = 0; i < TOKEN_MAX_BYTES; i++) {
		differs |= (unsigned)(a[i] ^ b[i]);
	}
	return differs == 0;
}

bool token_is_in(struct token *token, const char *authorization)
{
	static const char scheme[] = "Bearer";
	unsigned char given[TOKEN_MAX_BYTES] = {0};
	size_t n_scheme = sizeof(scheme) - 1;
	if (!authorization || strncasecmp(authorization, scheme, n_scheme) != 0 ||
	    authorization[n_scheme] != ' ') {
		return false;
	}
	const char *text = authorization + n_scheme;
	text += strspn(text, " ");
	size_t n = strlen(text);
	if (n > sizeof(given)) {
		return false;
	}
	memcpy(given, text, n);
	pthread_mutex_lock(&token->lock);
	bool is = is_equal(given, token->bytes);
	pthread_mutex_unlock(&token->lock);
	return is;
}

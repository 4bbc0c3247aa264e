/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: no forged ones, none too long, none that block, not too many from one client. */
#include "daemon/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define CAPTURE_BYTES (256u * 1024u)
/* The length of "2026-01-02T03:04:05.678Z ". */
#define TIME_BYTES 25u

static char captured[CAPTURE_BYTES];
static int capture_fd = -1;

/* From here on stderr is a pipe; each test is a process of its own, so nothing is put back. */
static void capture(void)
{
	int ends[2];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
	close(ends[1]);
	ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
	capture_fd = ends[0];
}

/* Returns what was logged since the last call. */
static const char *logged(void)
{
	size_t n_bytes = 0;
	ssize_t more;
	while ((more = read(capture_fd, captured + n_bytes, sizeof(captured) - 1 - n_bytes)) > 0) {
		n_bytes += (size_t)more;
	}
	captured[n_bytes] = '\0';
	return captured;
}

/* The one line logged since the last call, without its time. */
static const char *logged_line(void)
{
	const char *text = logged();
	ck_assert_msg(strlen(text) > TIME_BYTES, "nothing logged");
	ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
	ck_assert_int_eq(text[TIME_BYTES - 2], 'Z');
	captured[strlen(text) - 1] = '\0';
	return text + TIME_BYTES;
}

START_TEST(line_has_time_level_and_text)
{
	capture();
	log_error("chunk %d of %s", 7, "alice");
	ck_assert_str_eq(logged_line(), "error   chunk 7 of alice");
	log_warning("w");
	ck_assert_str_eq(logged_line(), "warning w");
	log_info("i");
	ck_assert_str_eq(logged_line(), "info    i");
}
END_TEST

START_TEST(level_decides)
{
	capture();
	log_debug("hidden");
	ck_assert_str_eq(logged(), "");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("seen");
	ck_assert_str_eq(logged_line(), "debug   seen");
	log_set_level(LOG_LEVEL_ERROR);
	log_warning("hidden");
	ck_assert_str_eq(logged(), "");
	log_error("seen");
	ck_assert_str_eq(logged_line(), "error   seen");
}
END_TEST

START_TEST(level_names)
{
	enum log_level level = LOG_LEVEL_ERROR;
	ck_assert_int_eq(log_level_from_name("debug", &level), 0);
	ck_assert_int_eq(level, LOG_LEVEL_DEBUG);
	ck_assert_int_eq(log_level_from_name("Debug", &level), -EINVAL);
	ck_assert_int_eq(log_level_from_name("", &level), -EINVAL);
	ck_assert_int_eq(level, LOG_LEVEL_DEBUG);
}
END_TEST

START_TEST(text_cannot_forge_a_line)
{
	static const struct {
		const char *text;
		const char *line;
	} cases[] = {
		{"a\n<3>b", "a\\x0a<3>b"},
		{"a\rb\tc\x1b[31m", "a\\x0db\\x09c\\x1b[31m"},
		{"\x7f", "\\x7f"},
		{"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", /* is printed as it is */
	         "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
		{"\xc2\x9b"
	         "31m",
	         "\\xc2\\x9b"
	         "31m"}, /* a control character of 8 bits */
		{"\x9b"
	         "31m",
	         "\\x9b"
	         "31m"},                                      /* the same, raw */
		{"\xc0\x8a", "\\xc0\\x8a"},                   /* newline, overlong */
		{"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},          /* and more so */
		{"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* a surrogate */
		{"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* above the last character */
		{"\xff\xfe", "\\xff\\xfe"},
		{"\xe2\x82", "\\xe2\\x82"}, /* cut */
		{"\xe2\x82\n", "\\xe2\\x82\\x0a"},
	};
	capture();
	for (size_t i = 0; i < n_elements(cases); i++) {
		char line[128];
		snprintf(line, sizeof(line), "info    %s", cases[i].line);
		log_info("%s", cases[i].text);
		ck_assert_str_eq(logged_line(), line);
	}
}
END_TEST

START_TEST(long_line_is_cut_and_marked)
{
	static char text[3 * LOG_LINE_BYTES];
	capture();
	memset(text, 'x', sizeof(text) - 1);
	log_info("%s", text);
	const char *line = logged();
	ck_assert_uint_eq(strlen(line), LOG_LINE_BYTES);
	ck_assert_str_eq(line + strlen(line) - 5, "x...\n");

	/* Escapes are not cut in two. */
	memset(text, '\n', sizeof(text) - 1);
	log_info("%s", text);
	line = logged();
	ck_assert_uint_le(strlen(line), LOG_LINE_BYTES);
	ck_assert_str_eq(line + strlen(line) - 8, "\\x0a...\n");

	/* The longest that fits is not marked. */
	size_t room = LOG_LINE_BYTES - TIME_BYTES - strlen("info    ...\n");
	memset(text, 'y', sizeof(text) - 1);
	log_info("%.*s", (int)room, text);
	line = logged();
	ck_assert_str_eq(line + strlen(line) - 2, "y\n");
}
END_TEST

START_TEST(errno_is_kept)
{
	struct log_limit limit = {0};
	close(STDERR_FILENO);
	errno = ENOTTY;
	log_error("into the void");
	ck_assert_int_eq(errno, ENOTTY);
	log_limited(&limit, LOG_LEVEL_ERROR, "into the void");
	ck_assert_int_eq(errno, ENOTTY);
}
END_TEST

START_TEST(journal_gets_a_priority)
{
	int ends[2];
	char stream[64];
	struct stat status;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
	ck_assert_int_eq(fstat(STDERR_FILENO, &status), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)status.st_dev,
	         (unsigned long long)status.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	capture_fd = ends[0];
	ck_assert_int_eq(fcntl(capture_fd, F_SETFL, O_NONBLOCK), 0);
	log_error("boom");
	ck_assert_str_eq(logged(), "<3>boom\n");
	log_info("fine");
	ck_assert_str_eq(logged(), "<6>fine\n");
}
END_TEST

START_TEST(journal_of_somebody_else_is_not_ours)
{
	setenv("JOURNAL_STREAM", "1:2", 1);
	capture();
	log_error("boom");
	ck_assert_str_eq(logged_line(), "error   boom");
}
END_TEST

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

START_TEST(full_pipe_does_not_block)
{
	capture();
	uint64_t start_ms = now_ms();
	/* A pipe holds 64 KiB: most of these find it full, and only the first of those waits. */
	for (unsigned i = 0; i < 20000; i++) {
		log_info("line %u", i);
	}
	ck_assert_uint_lt(now_ms() - start_ms, 5000);
	const char *text = logged();
	ck_assert_ptr_nonnull(strstr(text, "info    line 0\n"));
	ck_assert_ptr_null(strstr(text, "line 19999\n"));
	unsigned n_lines = 0;
	for (const char *p = text; *p; p++) {
		n_lines += *p == '\n';
	}
	char want[128];
	snprintf(want, sizeof(want), "warning stderr was full, log lines dropped: %u\n",
	         20000 - n_lines);
	log_info("again");
	text = logged();
	ck_assert_msg(strstr(text, want), "%s", text);
	ck_assert_ptr_nonnull(strstr(text, "info    again\n"));
	log_info("once");
	ck_assert_str_eq(logged_line(), "info    once");
}
END_TEST

START_TEST(bucket_refills_one_by_one)
{
	struct log_limit limit = {0};
	uint64_t n_swallowed = 99;
	uint64_t now = 1000000;
	for (unsigned i = 0; i < LOG_LIMIT_BURST; i++) {
		ck_assert(log_limit_take(&limit, now, &n_swallowed));
		ck_assert_uint_eq(n_swallowed, 0);
	}
	for (unsigned i = 0; i < 3; i++) {
		ck_assert(!log_limit_take(&limit, now + i, &n_swallowed));
	}
	now += LOG_LIMIT_REFILL_MS - 1;
	ck_assert(!log_limit_take(&limit, now, &n_swallowed));
	now += 1;
	ck_assert(log_limit_take(&limit, now, &n_swallowed));
	ck_assert_uint_eq(n_swallowed, 4);
	ck_assert(!log_limit_take(&limit, now, &n_swallowed));
	/* A long rest fills the bucket and not more. */
	now += 1000 * LOG_LIMIT_REFILL_MS;
	for (unsigned i = 0; i < LOG_LIMIT_BURST; i++) {
		ck_assert(log_limit_take(&limit, now, &n_swallowed));
		ck_assert_uint_eq(n_swallowed, i == 0 ? 1 : 0);
	}
	ck_assert(!log_limit_take(&limit, now, &n_swallowed));
}
END_TEST

START_TEST(limited_lines_are_swallowed_and_counted)
{
	struct log_limit limit = {0};
	capture();
	for (unsigned i = 0; i < 100; i++) {
		log_limited(&limit, LOG_LEVEL_WARNING, "bad packet");
	}
	const char *text = logged();
	unsigned n_lines = 0;
	for (const char *p = text; *p; p++) {
		n_lines += *p == '\n';
	}
	ck_assert_uint_eq(n_lines, LOG_LIMIT_BURST);
	limit.refilled_ms -= LOG_LIMIT_REFILL_MS;
	log_limited(&limit, LOG_LEVEL_DEBUG, "not even counted");
	log_limited(&limit, LOG_LEVEL_WARNING, "bad packet");
	ck_assert_str_eq(logged_line(), "warning (after 95 suppressed lines) bad packet");
}
END_TEST

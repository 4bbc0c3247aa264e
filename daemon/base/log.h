/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines to stderr.
 *
 * One call is one line of at most LOG_LINE_BYTES and one write(2). When stderr is the journal (its
 * device and inode are those in $JOURNAL_STREAM) a line begins with "<3>", as sd-daemon(3) has it,
 * else with a UTC time. Text may come from a client: control characters and bytes that are not
 * UTF-8 are written as \xHH, so that no client can forge a line or steer a terminal.
 *
 * If stderr is a full pipe, a line waits at most LOG_WAIT_MS and is then dropped; the next line
 * that gets through says how many were dropped. When the pipe's reader is gone lines are lost,
 * provided that the program ignores SIGPIPE. errno is kept by every function.
 *
 * Threads: any. A log_limit belongs to one thread at a time.
 */
#ifndef GLAKE_DAEMON_LOG_H
#define GLAKE_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE_BYTES 1024u
#define LOG_WAIT_MS 10

/* The numbers are syslog's. */
enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7,
};

/* Lines above @level are not written. At the start: LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);

/* "error", "warning", "info", "debug". Returns 0, or -EINVAL for another name. */
int log_level_from_name(const char *name, enum log_level *level_out);

__attribute__((format(printf, 2, 3))) void log_write(enum log_level level, const char *format, ...);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#define LOG_LIMIT_BURST 5u
#define LOG_LIMIT_REFILL_MS 10000u

/*
 * A token bucket for the lines that one client can cause: LOG_LIMIT_BURST at once, then one per
 * LOG_LIMIT_REFILL_MS. Embedded in the client's object; zeroed memory is a full bucket.
 */
struct log_limit {
	uint64_t refilled_ms; /* monotonic; when the last token came back */
	uint64_t n_swallowed; /* lines since the last one written */
	uint32_t n_spent;     /* tokens; 0 .. n_burst */
	uint32_t n_burst;     /* 0 = LOG_LIMIT_BURST */
};

/*
 * Like log_write(), but suppressed when the bucket is empty. The next written line begins with the
 * number of suppressed ones. A line above the log level takes no token. Returns false if the line
 * was suppressed.
 */
__attribute__((format(printf, 3, 4))) bool
log_limited(struct log_limit *limit, enum log_level level, const char *format, ...);

/*
 * The bucket alone: take a token at @now_ms. Returns true, and in @n_swallowed_out the number of
 * lines suppressed before this one; or false, and this line counts as suppressed.
 */
bool log_limit_take(struct log_limit *limit, uint64_t now_ms, uint64_t *n_swallowed_out);

#endif

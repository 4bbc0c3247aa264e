/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

enum sink { SINK_UNKNOWN, SINK_PLAIN, SINK_JOURNAL };

#define PREFIX_BYTES 48u
#define CUT_MARK "..."

static const struct {
	enum log_level level;
	const char *name;
} levels[] = {
	{LOG_LEVEL_ERROR, "error"},
	{LOG_LEVEL_WARNING, "warning"},
	{LOG_LEVEL_INFO, "info"},
	{LOG_LEVEL_DEBUG, "debug"},
};

static atomic_int max_level = LOG_LEVEL_INFO;
static atomic_int current_sink = SINK_UNKNOWN;
static atomic_uint_least64_t n_dropped; /* lines that stderr did not take, not told of yet */

struct line {
	size_t n_bytes;
	char bytes[LOG_LINE_BYTES];
};

void log_set_level(enum log_level level)
{
	atomic_store(&max_level, (int)level);
}

int log_level_from_name(const char *name, enum log_level *level_out)
{
	for (size_t i = 0; i < n_elements(levels); i++) {
		if (strcmp(name, levels[i].name) == 0) {
			*level_out = levels[i].level;
			return 0;
		}
	}
	return -EINVAL;
}

static const char *level_name(enum log_level level)
{
	for (size_t i = 0; i < n_elements(levels); i++) {
		if (levels[i].level == level) {
			return levels[i].name;
		}
	}
	return "?";
}

/* The variable alone says only that the manager gave us the journal, not that we still have it. */
static enum sink find_sink(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat status;
	if (stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	    fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device &&
	    status.st_ino == inode) {
		return SINK_JOURNAL;
	}
	return SINK_PLAIN;
}

static enum sink sink(void)
{
	int known = atomic_load(&current_sink);
	if (known == SINK_UNKNOWN) {
		known = (int)find_sink();
		atomic_store(&current_sink, known);
	}
	return (enum sink)known;
}

/* Bytes of the UTF-8 character at @text that may be printed as it is, or 0: escape one byte. */
static size_t printable_bytes(const unsigned char *text, size_t n_bytes)
{
	if (text[0] < 0x80) {
		return text[0] >= 0x20 && text[0] != 0x7f;
	}
	size_t length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
	if (text[0] < 0xc2 || text[0] > 0xf4 || length > n_bytes) {
		return 0;
	}
	uint32_t point = text[0] & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80) {
			return 0;
		}
		point = point << 6 | (text[i] & 0x3fu);
	}
	/* Below 0xa0 are control characters again; the rest is what UTF-8 must not spell. */
	const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000};
	if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
		return 0;
	}
	return length;
}

/* Room is left for the cut mark and the newline. */
static bool line_append(struct line *line, const char *bytes, size_t n_bytes)
{
	if (line->n_bytes + n_bytes > sizeof(line->bytes) - sizeof(CUT_MARK)) {
		return false;
	}
	memcpy(line->bytes + line->n_bytes, bytes, n_bytes);
	line->n_bytes += n_bytes;
	return true;
}

static void line_prefix(struct line *line, enum log_level level)
{
	char prefix[PREFIX_BYTES];
	if (sink() == SINK_JOURNAL) {
		snprintf(prefix, sizeof(prefix), "<%d>", (int)level);
	} else {
		struct timespec now;
		struct tm utc;
		clock_gettime(CLOCK_REALTIME, &now);
		gmtime_r(&now.tv_sec, &utc);
		size_t n_bytes = strftime(prefix, sizeof(prefix), "%Y-%m-%dT%H:%M:%S", &utc);
		snprintf(prefix + n_bytes, sizeof(prefix) - n_bytes, ".%03ldZ %-7s ",
		         now.tv_nsec / 1000000, level_name(level));
	}
	line_append(line, prefix, strlen(prefix));
}

static void line_text(struct line *line, const char *text, size_t n_bytes)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < n_bytes;) {
		unsigned char byte = (unsigned char)text[i];
		size_t length = printable_bytes((const unsigned char *)text + i, n_bytes - i);
		char escaped[] = {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
		bool fits = length ? line_append(line, text + i, length)
		                   : line_append(line, escaped, sizeof(escaped));
		if (!fits) {
			memcpy(line->bytes + line->n_bytes, CUT_MARK, sizeof(CUT_MARK) - 1);
			line->n_bytes += sizeof(CUT_MARK) - 1;
			return;
		}
		i += length ? length : 1;
	}
}

/* A pipe or socket that polls writable takes a line of this size whole: write() does not block. */
static bool line_write(struct line *line, int wait_ms)
{
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	line->bytes[line->n_bytes++] = '\n';
	if (poll(&ready, 1, wait_ms) != 1) {
		return false;
	}
	return write(STDERR_FILENO, line->bytes, line->n_bytes) >= 0;
}

static bool write_text(enum log_level level, const char *text, int wait_ms)
{
	struct line line = {0};
	line_prefix(&line, level);
	line_text(&line, text, strlen(text));
	return line_write(&line, wait_ms);
}

/* Nothing is waited for while lines are being dropped: the reader had its chance. */
static bool confess_dropped(void)
{
	uint64_t n_lost = atomic_exchange(&n_dropped, 0);
	if (n_lost == 0) {
		return true;
	}
	char text[64];
	snprintf(text, sizeof(text), "stderr was full, log lines dropped: %" PRIu64, n_lost);
	if (write_text(LOG_LEVEL_WARNING, text, 0)) {
		return true;
	}
	atomic_fetch_add(&n_dropped, n_lost);
	return false;
}

static void write_formatted(enum log_level level, uint64_t n_swallowed, const char *format,
                            va_list arguments)
{
	/* Text that does not fit here does not fit the line either, and the line marks the cut. */
	char text[LOG_LINE_BYTES];
	int n_bytes = 0;
	if (n_swallowed > 0) {
		n_bytes = snprintf(text, sizeof(text), "(after %" PRIu64 " suppressed lines) ",
		                   n_swallowed);
	}
	if (vsnprintf(text + n_bytes, sizeof(text) - (size_t)n_bytes, format, arguments) < 0) {
		return;
	}
	if (!confess_dropped() || !write_text(level, text, LOG_WAIT_MS)) {
		atomic_fetch_add(&n_dropped, 1);
	}
}

void log_write(enum log_level level, const char *format, ...)
{
	if ((int)level > atomic_load(&max_level)) {
		return;
	}
	int saved = errno;
	va_list arguments;
	va_start(arguments, format);
	write_formatted(level, 0, format, arguments);
	va_end(arguments);
	errno = saved;
}

bool log_limit_take(struct log_limit *limit, uint64_t now_ms, uint64_t *n_swallowed_out)
{
	if (limit->n_spent == 0) {
		limit->refilled_ms = now_ms;
	}
	uint64_t n_back = (now_ms - limit->refilled_ms) / LOG_LIMIT_REFILL_MS;
	limit->refilled_ms += n_back * LOG_LIMIT_REFILL_MS;
	limit->n_spent -= n_back < limit->n_spent ? (uint32_t)n_back : limit->n_spent;
	if (limit->n_spent == (limit->n_burst ? limit->n_burst : LOG_LIMIT_BURST)) {
		limit->n_swallowed++;
		return false;
	}
	limit->n_spent++;
	*n_swallowed_out = limit->n_swallowed;
	limit->n_swallowed = 0;
	return true;
}

bool log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
{
	if ((int)level > atomic_load(&max_level)) {
		return true;
	}
	int saved = errno;
	uint64_t n_swallowed;
	bool is_written = log_limit_take(limit, clock_now_ns() / 1000000, &n_swallowed);
	if (is_written) {
		va_list arguments;
		va_start(arguments, format);
		write_formatted(level, n_swallowed, format, arguments);
		va_end(arguments);
	}
	errno = saved;
	return is_written;
}

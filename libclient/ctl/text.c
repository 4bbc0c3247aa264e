/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
#define N_UNITS (sizeof(units) / sizeof(units[0]))

void text_size(uint64_t bytes, char text_out[TEXT_NUMBER_BYTES])
{
	if (bytes == 0) {
		snprintf(text_out, TEXT_NUMBER_BYTES, "0");
		return;
	}
	double value = (double)bytes;
	size_t unit = 0;
	/* A number that would round to 1024.0 is 1.0 of the next unit. */
	while (value >= 1023.95 && unit + 1 < N_UNITS) {
		value /= 1024;
		unit++;
	}
	snprintf(text_out, TEXT_NUMBER_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value,
	         units[unit]);
}

void text_duration(uint64_t ms, char text_out[TEXT_NUMBER_BYTES])
{
	uint64_t seconds = ms / 1000;
	if (ms < 1000) {
		snprintf(text_out, TEXT_NUMBER_BYTES, "%" PRIu64 " ms", ms);
	} else if (seconds < 60) {
		snprintf(text_out, TEXT_NUMBER_BYTES, "%" PRIu64 ".%" PRIu64 " s", seconds,
		         ms % 1000 / 100);
	} else if (seconds < 3600) {
		snprintf(text_out, TEXT_NUMBER_BYTES, "%" PRIu64 "m %02" PRIu64 "s", seconds / 60,
		         seconds % 60);
	} else if (seconds < 24 * 3600) {
		snprintf(text_out, TEXT_NUMBER_BYTES, "%" PRIu64 "h %02" PRIu64 "m", seconds / 3600,
		         seconds / 60 % 60);
	} else {
		snprintf(text_out, TEXT_NUMBER_BYTES, "%" PRIu64 "d %" PRIu64 "h", seconds / 86400,
		         seconds / 3600 % 24);
	}
}

void text_time(uint64_t ms, char text_out[TEXT_NUMBER_BYTES])
{
	time_t seconds = (time_t)(ms / 1000);
	struct tm local;
	if (!localtime_r(&seconds, &local) ||
	    strftime(text_out, TEXT_NUMBER_BYTES, "%F %T", &local) == 0) {
		strcpy(text_out, "?");
	}
}

/* The factor of a unit, 0 for none that we know: the same ones as in glaked's configuration. */
static double unit_factor(const char *unit)
{
	static const char *const decimal[] = {"", "kB", "MB", "GB", "TB"};
	static const char *const letters[] = {"", "K", "M", "G", "T"};
	double binary_factor = 1;
	double decimal_factor = 1;
	for (size_t i = 0; i < sizeof(decimal) / sizeof(decimal[0]); i++) {
		if (strcmp(unit, units[i]) == 0 || strcmp(unit, letters[i]) == 0) {
			return binary_factor;
		}
		if (strcmp(unit, decimal[i]) == 0) {
			return decimal_factor;
		}
		binary_factor *= 1024;
		decimal_factor *= 1000;
	}
	return 0;
}

int text_parse_size(const char *text, uint64_t *bytes_out)
{
	if (strcmp(text, "none") == 0) {
		*bytes_out = 0;
		return 0;
	}
	/* strtod() also takes signs, "inf", "nan" and hexadecimal: none of them is a size. */
	size_t n_digits = strspn(text, "0123456789.");
	if (!isdigit((unsigned char)text[0])) {
		return -EINVAL;
	}
	char *end;
	double value = strtod(text, &end);
	if (end != text + n_digits) {
		return -EINVAL;
	}
	end += strspn(end, " ");
	value *= unit_factor(end);
	/* 2^63: far above any device, and exact as a double. */
	if (value < 1 || value >= 9223372036854775808.0) {
		return -EINVAL;
	}
	*bytes_out = (uint64_t)value;
	return 0;
}

int text_parse_count(const char *text, uint64_t max, uint64_t *count_out)
{
	size_t n_digits = strspn(text, "0123456789");
	if (n_digits == 0 || text[n_digits] != '\0') {
		return -EINVAL;
	}
	errno = 0;
	uint64_t count = strtoull(text, NULL, 10);
	if (errno != 0 || count > max) {
		return -EINVAL;
	}
	*count_out = count;
	return 0;
}

/* Bytes of the character at @text, its number in *code_out; 0 when that is not UTF-8. */
static size_t utf8_next(const unsigned char *text, uint32_t *code_out)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n_bytes = text[0] < 0x80           ? 1
	                 : (text[0] >> 5) == 0x06 ? 2
	                 : (text[0] >> 4) == 0x0e ? 3
	                 : (text[0] >> 3) == 0x1e ? 4
	                                          : 0;
	uint32_t code = n_bytes < 2 ? text[0] : text[0] & (0x7fu >> n_bytes);
	for (size_t i = 1; i < n_bytes; i++) {
		if ((text[i] & 0xc0) != 0x80) {
			return 0;
		}
		code = code << 6 | (text[i] & 0x3f);
	}
	if (n_bytes == 0 || code < smallest[n_bytes] || code > 0x10ffff ||
	    (code >= 0xd800 && code <= 0xdfff)) {
		return 0;
	}
	*code_out = code;
	return n_bytes;
}

static int is_unsafe(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == '\\' ||
	       (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
	       (code >= 0x2060 && code <= 0x2069) || code == 0xfeff;
}

char *text_escape(const char *text)
{
	const unsigned char *from = (const unsigned char *)text;
	char *escaped = malloc(strlen(text) * 4 + 1);
	if (!escaped) {
		return NULL;
	}
	char *to = escaped;
	while (*from) {
		uint32_t code = 0;
		size_t n_bytes = utf8_next(from, &code);
		if (n_bytes > 0 && !is_unsafe(code)) {
			memcpy(to, from, n_bytes);
			to += n_bytes;
			from += n_bytes;
			continue;
		}
		for (size_t i = 0; i < (n_bytes ? n_bytes : 1); i++) {
			to += sprintf(to, "\\x%02x", *from++);
		}
	}
	*to = '\0';
	return escaped;
}

/* Take a locale that knows UTF-8: names are shown as UTF-8 whatever the locale is. */
void text_set_locale(void)
{
	if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
		setlocale(LC_CTYPE, "C.UTF-8");
	}
}

/* Bytes of the character at @text, and its columns. */
static size_t next_width(const char *text, size_t *width_out)
{
	uint32_t code = 0;
	size_t n_bytes = utf8_next((const unsigned char *)text, &code);
	int columns = n_bytes > 0 ? wcwidth((wchar_t)code) : 1;
	/* -1: a locale that does not know it. */
	*width_out = columns < 0 ? 1 : (size_t)columns;
	return n_bytes > 0 ? n_bytes : 1;
}

size_t text_width(const char *text)
{
	size_t width = 0;
	while (*text) {
		size_t of_one;
		text += next_width(text, &of_one);
		width += of_one;
	}
	return width;
}

size_t text_fitting(const char *text, size_t columns)
{
	size_t width = 0;
	const char *at = text;
	while (*at) {
		size_t of_one;
		size_t n_bytes = next_width(at, &of_one);
		if (width + of_one > columns) {
			break;
		}
		width += of_one;
		at += n_bytes;
	}
	return (size_t)(at - text);
}

static size_t n_points(const char *text)
{
	size_t n = 0;
	for (; *text; text++) {
		n += ((unsigned char)*text & 0xc0) != 0x80;
	}
	return n;
}

/* The begin of the code point at @column. */
static char *text_at(char *text, size_t column)
{
	for (; *text; text++) {
		if (((unsigned char)*text & 0xc0) != 0x80 && column-- == 0) {
			break;
		}
	}
	return text;
}

void text_shorten(char *text, size_t columns)
{
	static const char gap[] = {'.', '.', '.'};
	size_t width = n_points(text);
	if (width <= columns) {
		return;
	}
	size_t n_last = (columns - sizeof(gap)) / 2;
	const char *last = text_at(text, width - n_last);
	char *at = text_at(text, columns - sizeof(gap) - n_last);
	/* The text left out has at least one column more than the gap, so the gap never reaches the end. */
	memmove(at + sizeof(gap), last, strlen(last) + 1);
	memcpy(at, gap, sizeof(gap));
}

int text_is_utf8(const char *text)
{
	const unsigned char *from = (const unsigned char *)text;
	while (*from) {
		uint32_t code;
		size_t n_bytes = utf8_next(from, &code);
		if (n_bytes == 0) {
			return 0;
		}
		from += n_bytes;
	}
	return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"

static const struct {
	const char *name;
	uint64_t bytes;
} units[] = {
	{"", 1},
	{"B", 1},
	{"K", 1ull << 10},
	{"KiB", 1ull << 10},
	{"M", 1ull << 20},
	{"MiB", 1ull << 20},
	{"G", 1ull << 30},
	{"GiB", 1ull << 30},
	{"T", 1ull << 40},
	{"TiB", 1ull << 40},
	{"kB", 1000ull},
	{"MB", 1000ull * 1000},
	{"GB", 1000ull * 1000 * 1000},
	{"TB", 1000ull * 1000 * 1000 * 1000},
};

static uint64_t unit_bytes(const char *name)
{
	for (size_t i = 0; i < n_elements(units); i++) {
		if (strcmp(name, units[i].name) == 0) {
			return units[i].bytes;
		}
	}
	return 0;
}

int size_parse(const char *text, uint64_t *bytes_out)
{
	uint64_t number = 0;
	int overflow = 0;
	const char *p = text;
	for (; *p >= '0' && *p <= '9'; p++) {
		overflow |= __builtin_mul_overflow(number, 10u, &number);
		overflow |= __builtin_add_overflow(number, (uint64_t)(*p - '0'), &number);
	}
	if (p == text) {
		return -EINVAL;
	}
	if (p[0] == ' ' && p[1] != '\0') {
		p++;
	}
	uint64_t unit = unit_bytes(p);
	if (unit == 0) {
		return -EINVAL;
	}
	overflow |= __builtin_mul_overflow(number, unit, &number);
	if (overflow) {
		return -ERANGE;
	}
	*bytes_out = number;
	return 0;
}

const char *size_text(uint64_t bytes, char text[SIZE_TEXT_BYTES])
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	size_t unit = 0;
	/* A number that would round to 1024.0 is 1.0 of the next unit. */
	while (value >= 1023.95 && unit + 1 < n_elements(names)) {
		value /= 1024;
		unit++;
	}
	snprintf(text, SIZE_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, names[unit]);
	if (bytes == 0) {
		snprintf(text, SIZE_TEXT_BYTES, "0");
	}
	return text;
}

const char *size_text_of(uint64_t used, uint64_t limit, char text[SIZE_TEXT_BYTES])
{
	char first[SIZE_TEXT_BYTES];
	char second[SIZE_TEXT_BYTES];
	size_text(used, first);
	size_text(limit, second);
	char *unit = strchr(first, ' ');
	const char *other = strchr(second, ' ');
	if (unit && other && strcmp(unit, other) == 0) {
		*unit = '\0';
	}
	snprintf(text, SIZE_TEXT_BYTES, "%.20s of %.20s", first, second);
	return text;
}

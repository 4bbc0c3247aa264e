/* SPDX-License-Identifier: Apache-2.0 */
/* Byte counts as text: units, limits, and what is no size. */
#include "proto/size.h"

#include <errno.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

START_TEST(sizes_are_read)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} cases[] = {
		{"0", 0},
		{"1", 1},
		{"17B", 17},
		{"2KiB", 2048},
		{"512MiB", 512ull << 20},
		{"24GiB", 24ull << 30},
		{"24 GiB", 24ull << 30},
		{"3TiB", 3ull << 40},
		{"2K", 2048},
		{"512M", 512ull << 20},
		{"24 G", 24ull << 30},
		{"3T", 3ull << 40},
		{"2kB", 2000},
		{"2MB", 2000000},
		{"2GB", 2000000000},
		{"2TB", 2000000000000},
		{"007MiB", 7ull << 20},
		{"18446744073709551615", UINT64_MAX},
		{"16777215TiB", 16777215ull << 40},
		{"0TiB", 0},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		uint64_t bytes = 77;
		ck_assert_msg(size_parse(cases[i].text, &bytes) == 0, "%s", cases[i].text);
		ck_assert_msg(bytes == cases[i].bytes, "%s", cases[i].text);
	}
}
END_TEST

START_TEST(other_texts_are_refused)
{
	static const char *const cases[] = {
		"",   " ",      "GiB",   "-1",   "+1",  "1.5GiB", "1gib",   "1k",     "1 ",
		" 1", "1  GiB", "1GiB ", "0x10", "1e3", "1GiBs",  "1\tGiB", "1 2GiB", "1GiB\n",
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		uint64_t bytes = 77;
		ck_assert_msg(size_parse(cases[i], &bytes) == -EINVAL, "\"%s\"", cases[i]);
		ck_assert_uint_eq(bytes, 77);
	}
}
END_TEST

START_TEST(overflow_is_told)
{
	static const char *const cases[] = {
		"18446744073709551616",    "99999999999999999999999", "16777216TiB",
		"18446744073709551615KiB", "18446744073709551616B",
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		uint64_t bytes = 77;
		ck_assert_msg(size_parse(cases[i], &bytes) == -ERANGE, "%s", cases[i]);
		ck_assert_uint_eq(bytes, 77);
	}
	uint64_t bytes;
	ck_assert_int_eq(size_parse("99999999999999999999999Gi", &bytes), -EINVAL);
}
END_TEST

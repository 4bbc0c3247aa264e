/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages the host has filled, as the calls of a program are counted. */
#include "libclient/space/fill.h"

#include <stdlib.h>

#include "libclient/space/page.h"
#include "tests/check_glake.h"

#define KIB 1024ull
#define PAGE GLAKE__PAGE_BYTES
#define BASE (1ull << 40)

static void begin(void)
{
	glake__pages.base = BASE;
	glake__pages.n_bytes = 64 * PAGE;
	glake__fill_start();
}

BEGIN_EACH(begin)

START_TEST(a_page_is_filled_by_any_copies)
{
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	ck_assert(glake__fill_is_open(BASE, 1));
	/* Three pages, from the middle of one to the middle of another. */
	glake__fill_copied(BASE + PAGE / 2, 2 * PAGE);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_PARTLY);
	glake__fill_copied(BASE, PAGE / 2);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
	glake__fill_copied(BASE, 1);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
	glake__fill_reset(BASE, 3 * PAGE);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(glake__fill_at(BASE + i * PAGE, PAGE), GLAKE__FILL_PARTLY);
	}
}
END_TEST

START_TEST(only_gaps_that_nobody_is_given_count_as_filled)
{
	/* Tensors of sizes that an allocator has rounded up, and such as leave room for one more. */
	for (uint64_t at = 0; at < PAGE; at += 64 * KIB) {
		glake__fill_copied(BASE + at, 64 * KIB - 511);
		glake__fill_copied(BASE + PAGE + at, 64 * KIB - 512);
	}
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_PARTLY);
	/* One free part. */
	glake__fill_copied(BASE + 2 * PAGE, PAGE - 128 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_PARTLY);
	/* The end of an allocation, of which nobody has the rest. */
	glake__fill_copied(BASE + 3 * PAGE, 100 * KIB - 3);
	ck_assert_int_eq(glake__fill_at(BASE + 3 * PAGE, 100 * KIB), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(glake__fill_at(BASE + 3 * PAGE, PAGE), GLAKE__FILL_PARTLY);
}
END_TEST

/* In parts that touch anywhere, by any thread first. */
START_TEST(a_tensor_that_comes_in_parts_counts_once)
{
	const uint64_t n_bytes = 77777;
	for (uint64_t at = 0; at < PAGE; at += n_bytes) {
		glake__fill_copied(BASE + at, at + n_bytes < PAGE ? n_bytes : PAGE - at);
	}
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
	for (uint64_t end = PAGE; end > 0; end -= end < n_bytes ? end : n_bytes) {
		uint64_t at = end < n_bytes ? 0 : end - n_bytes;
		glake__fill_copied(BASE + PAGE + at, end - at);
	}
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_WHOLE);
	/* A part without the one before it: what is ahead of a copy is nobody's gap. */
	glake__fill_copied(BASE + 2 * PAGE + 1, PAGE - 1);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_PARTLY);
	glake__fill_copied(BASE + 2 * PAGE, 1);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_WHOLE);
}
END_TEST

START_TEST(what_is_copied_twice_fills_no_other_part)
{
	/* As many bytes as the page has, and 32 KiB of it are free. */
	glake__fill_copied(BASE, PAGE - 64 * KIB);
	glake__fill_copied(BASE + PAGE - 64 * KIB, 32 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	glake__fill_copied(BASE + PAGE - 64 * KIB, 32 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
	/* A whole page and a part of it, in either order. */
	glake__fill_copied(BASE + PAGE, 512);
	glake__fill_copied(BASE + PAGE, PAGE);
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_REWRITTEN);
	glake__fill_copied(BASE + 2 * PAGE, PAGE);
	glake__fill_copied(BASE + 3 * PAGE - 508, 4);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_REWRITTEN);
	/* Allocated anew, it is new. */
	glake__fill_reset(BASE, 3 * PAGE);
	glake__fill_copied(BASE, 32 * KIB);
	glake__fill_copied(BASE + 32 * KIB, PAGE - 32 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
}
END_TEST

START_TEST(a_buffer_that_is_copied_to_each_step_fills_nothing)
{
	glake__fill_copied(BASE + 8 * KIB, 4 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	glake__fill_copied(BASE + 8 * KIB, 4 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
	ck_assert(!glake__fill_is_open(BASE, PAGE));
	ck_assert(glake__fill_is_open(BASE, PAGE + 1));
	/* The page never looks new again by itself. */
	glake__fill_copied(BASE, PAGE);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
}
END_TEST

START_TEST(large_copies_are_told_apart)
{
	/* From the middle of the first page to that of the sixth. */
	glake__fill_copied(BASE + PAGE / 2, 5 * PAGE);
	for (uint64_t i = 0; i < 10; i++) {
		ck_assert_int_eq(glake__fill_is_bound(BASE + i * PAGE), i == 1 || i == 5);
	}
	/* One that was bounded before it is set and filled looks like any other. */
	glake__fill_copied(BASE + 10 * PAGE, 4 * PAGE);
	glake__fill_set(BASE + 14 * PAGE, PAGE);
	glake__fill_copied(BASE + 14 * PAGE, PAGE);
	ck_assert_int_eq(glake__fill_at(BASE + 14 * PAGE, PAGE), GLAKE__FILL_WHOLE);
	ck_assert(glake__fill_is_bound(BASE + 14 * PAGE));
	ck_assert(!glake__fill_is_bound(BASE + 15 * PAGE));
	glake__fill_reset(BASE, 16 * PAGE);
	ck_assert(!glake__fill_is_bound(BASE + 14 * PAGE));
	/* The last page of the window. */
	glake__fill_copied(BASE + 60 * PAGE, 4 * PAGE);
	ck_assert(glake__fill_is_bound(BASE + 60 * PAGE));
}
END_TEST

START_TEST(what_comes_before_a_fill_may_set)
{
	glake__fill_set(BASE, 2 * PAGE);
	glake__fill_copied(BASE, 2 * PAGE);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
	glake__fill_set(BASE + 5, 1);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_WHOLE);
	/* But nothing else. */
	glake__fill_written(BASE + 2 * PAGE, 1);
	glake__fill_copied(BASE + 2 * PAGE, PAGE);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_REWRITTEN);
}
END_TEST

START_TEST(addresses_elsewhere_are_nobodys)
{
	glake__fill_copied(8, 1 << 20);
	glake__fill_copied(UINT64_MAX - 8, 1 << 20);
	glake__fill_copied(BASE - PAGE, 2 * PAGE);
	glake__fill_set(0, UINT64_MAX);
	glake__fill_written(BASE + 63 * PAGE, UINT64_MAX - BASE);
	ck_assert(!glake__fill_is_open(8, 8));
	ck_assert_int_eq(glake__fill_at(8, PAGE), GLAKE__FILL_PARTLY);
	ck_assert_int_eq(glake__fill_at(BASE + 63 * PAGE, PAGE), GLAKE__FILL_REWRITTEN);
	ck_assert_int_eq(glake__fill_at(BASE + 62 * PAGE, PAGE), GLAKE__FILL_PARTLY);
}
END_TEST

/* The environment of the process; begin() has started to count already. */
START_TEST(the_environment_wins)
{
	glake__fill_forget();
	setenv("GLAKE_DEDUP", "off", 1);
	glake__fill_start();
	glake__fill_copied(BASE, PAGE);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	ck_assert(!glake__fill_is_open(BASE, PAGE));
}
END_TEST

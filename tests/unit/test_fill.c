/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages the host has filled, as the calls of a program are counted. */
#include "libclient/memory/fill.h"

#include <stdlib.h>

#include "libclient/memory/page.h"
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

START_TEST(gaps_are_small_or_the_page_is_not_filled)
{
	for (uint64_t at = 0; at < PAGE; at += 64 * KIB) {
		glake__fill_copied(BASE + at, 60 * KIB);
		glake__fill_copied(BASE + PAGE + at, 60 * KIB - 1);
	}
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(glake__fill_at(BASE + PAGE, PAGE), GLAKE__FILL_PARTLY);
	/* One hole as large as all of them. */
	glake__fill_copied(BASE + 2 * PAGE, PAGE - 128 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE + 2 * PAGE, PAGE), GLAKE__FILL_PARTLY);
	/* The end of an allocation, of which nobody has the rest. */
	glake__fill_copied(BASE + 3 * PAGE, 100 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE + 3 * PAGE, 100 * KIB), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(glake__fill_at(BASE + 3 * PAGE, PAGE), GLAKE__FILL_PARTLY);
}
END_TEST

START_TEST(a_buffer_that_is_copied_to_each_step_fills_nothing)
{
	for (unsigned i = 0; i < 512; i++) {
		glake__fill_copied(BASE + 8 * KIB, 4 * KIB);
		ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_PARTLY);
	}
	glake__fill_copied(BASE + 8 * KIB, 4 * KIB);
	ck_assert_int_eq(glake__fill_at(BASE, PAGE), GLAKE__FILL_REWRITTEN);
	ck_assert(!glake__fill_is_open(BASE, PAGE));
	ck_assert(glake__fill_is_open(BASE, PAGE + 1));
	/* It never looks new again by itself. */
	for (unsigned i = 0; i < 1u << 20; i++) {
		glake__fill_copied(BASE, PAGE);
	}
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

/* Of the process; the others have counted already. */
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

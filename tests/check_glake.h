/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program needs of Check: one test case per test, so that one that hangs ends
 * alone, and a main() that ends with Check's closing line.
 *
 *     START_TEST(a_thing_holds) { ... } END_TEST
 *     int main(void)
 *     {
 *             Suite *suite = suite_create("thing");
 *             suite_add(suite, a_thing_holds);
 *             return suite_run(suite);
 *     }
 */
#ifndef GLAKE_TESTS_CHECK_GLAKE_H
#define GLAKE_TESTS_CHECK_GLAKE_H

#include <check.h>
#include <stdlib.h>

/* Sanitizers keep what was freed and map memory of their own: then what a process has resident, or
 * how many mappings, says nothing about leaks. (They have their own means for that.) */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

#define TEST_TIMEOUT_S 30

/* Behind each test that has a world: tests/harness/world.h. */
void world_end(void) __attribute__((weak));

/* What each test of this program begins with; set it before they are added. NULL: nothing. */
static void (*suite_begin)(void);

static inline TCase *suite_case(Suite *suite, const TTest *test, double timeout_s)
{
	TCase *tcase = tcase_create(test->name);
	tcase_set_timeout(tcase, timeout_s);
	tcase_add_checked_fixture(tcase, suite_begin, world_end);
	suite_add_tcase(suite, tcase);
	return tcase;
}

static inline void suite_add_timed(Suite *suite, const TTest *test, double timeout_s)
{
	tcase_add_test(suite_case(suite, test, timeout_s), test);
}

static inline void suite_add(Suite *suite, const TTest *test)
{
	suite_add_timed(suite, test, TEST_TIMEOUT_S);
}

/* @n times, as _i says. */
static inline void suite_add_loop(Suite *suite, const TTest *test, int n)
{
	tcase_add_loop_test(suite_case(suite, test, TEST_TIMEOUT_S), test, 0, n);
}

/* The test must die of @signal: for asserts. */
static inline void suite_add_fatal(Suite *suite, const TTest *test, int signal)
{
	TCase *tcase = tcase_create(test->name);
	tcase_add_test_raise_signal(tcase, test, signal);
	suite_add_tcase(suite, tcase);
}

/* Runs and frees @suite. Returns what main() returns. */
static inline int suite_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif

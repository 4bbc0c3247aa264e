/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <time.h>

#include "tests/check_glake.h"

/* Called after each test that has a world (tests/harness/world.h). */
void world_end(void) __attribute__((weak));

static struct test_entry *first;
static struct test_entry **last = &first;
static void (*begin_each)(void);
static void (*end_each)(void);

void test_add(struct test_entry *entry)
{
	*last = entry;
	last = &entry->next;
}

void test_set_begin(void (*begin)(void))
{
	begin_each = begin;
}

void test_set_end(void (*end)(void))
{
	end_each = end;
}

void test_mark(const char *file, int line)
{
	static _Thread_local long last_ns = -1;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_nsec != last_ns) {
		last_ns = now.tv_nsec;
		(_mark_point)(file, line);
	}
}

static void add(Suite *suite, const struct test_entry *entry)
{
	TCase *tcase = tcase_create(entry->test->name);
	tcase_set_timeout(tcase, entry->timeout_s > 0 ? entry->timeout_s : TEST_TIMEOUT_S);
	tcase_add_checked_fixture(tcase, entry->begin ? entry->begin : begin_each, world_end);
	tcase_add_checked_fixture(tcase, NULL, end_each);
	if (entry->signal) {
		tcase_add_test_raise_signal(tcase, entry->test, entry->signal);
	} else {
		tcase_add_loop_test(tcase, entry->test, 0, entry->n ? entry->n : 1);
	}
	suite_add_tcase(suite, tcase);
}

int tests_run(void)
{
	Suite *suite = suite_create(program_invocation_short_name);
	for (const struct test_entry *entry = first; entry; entry = entry->next) {
		add(suite, entry);
	}
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

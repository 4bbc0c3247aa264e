/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program needs of Check. A test is written down once: it adds itself, is a case of
 * its own, so that one that hangs ends alone, and runs in the order of the file. main() is in
 * tests/harness/suite.c, unless a program has one that calls tests_run().
 *
 *     START_TEST(a_thing_holds) { ... } END_TEST
 *     START_TEST_WITH(each_thing_holds, .n = n_elements(things)) { ... things[_i] ... } END_TEST
 *
 *     BEGIN_EACH(begin)
 *     END_EACH(end)
 */
#ifndef GLAKE_TESTS_CHECK_GLAKE_H
#define GLAKE_TESTS_CHECK_GLAKE_H

#include <check.h>
#include <stdlib.h>

#include "tests/bytes.h"

/* Sanitizers keep what was freed and map memory of their own: then what a process has resident, or
 * how many mappings, says nothing about leaks. (They have their own means for that.) */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

/* Under ThreadSanitizer a test takes one in so many equal steps of one thread: it makes them twenty times
 * slower, and has nothing to find in them. */
#ifdef __SANITIZE_THREAD__
#define TEST_ONE_IN 10
#else
#define TEST_ONE_IN 1
#endif

/*
 * Check writes down each assertion that holds, so that it can say where a test hung: a write(), which in loops of millions takes
 * most of a test's time. Ours does so once in each tick of a coarse clock, four milliseconds.
 */
void test_mark(const char *file, int line);
#define _mark_point(file, line) test_mark(file, line)

#define TEST_TIMEOUT_S 60

struct test_entry {
	const TTest *test;
	struct test_entry *next;
	int n;               /* times, with _i from 0; 0 = once */
	int signal;          /* that it must die of, for asserts; 0 = none */
	double timeout_s;    /* 0 = TEST_TIMEOUT_S */
	void (*begin)(void); /* NULL: that of all */
};

/* @entry is static. */
void test_add(struct test_entry *entry);

/* The functions that each test of the program begins and ends with. */
void test_set_begin(void (*begin)(void));
void test_set_end(void (*end)(void));

/* Runs what was added. Returns what main() returns. */
int tests_run(void);

#undef START_TEST
#define START_TEST(name) START_TEST_WITH(name, )
/* With members of struct test_entry. */
#define START_TEST_WITH(name, ...) \
	static void name(int _i); \
	__attribute__((constructor)) static void add_##name(void) \
	{ \
		static const TTest test = {#name, name, __FILE__, __LINE__}; \
		static struct test_entry entry = {.test = &test, __VA_ARGS__}; \
		test_add(&entry); \
	} \
	static void name(int _i __attribute__((unused)))

#define BEGIN_EACH(function) \
	__attribute__((constructor)) static void set_begin_##function(void) \
	{ \
		test_set_begin(function); \
	}
#define END_EACH(function) \
	__attribute__((constructor)) static void set_end_##function(void) \
	{ \
		test_set_end(function); \
	}

#endif

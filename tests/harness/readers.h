/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of readers for tests/shim/auto.c: the folder readers.d of the world, which programs look into.
 *
 * Owner: one Check test. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_READERS_H
#define GLAKE_TESTS_HARNESS_READERS_H

/* Write test.readers, a true table, and let programs be quiet after 300 ms. Called after world_begin(). */
void readers_begin(void);

/* Write @name.readers: test.readers with @to in place of @from. The file whose name comes first counts. */
void readers_change(const char *name, const char *from, const char *to);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of readers for tests/shim/auto.c: the folder readers.d of the world, which programs look into.
 *
 * Owner: one Check test. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_READERS_H
#define GLAKE_TESTS_HARNESS_READERS_H

/* There is test.readers, which is true, and programs are quiet after 300 ms. After world_begin(). */
void readers_begin(void);

/* One more file @name.readers: test.readers with @to in place of @from. That with the first name counts. */
void readers_change(const char *name, const char *from, const char *to);

#endif

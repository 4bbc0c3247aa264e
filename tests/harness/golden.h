/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that a command has to print is in a file of tests/golden. Another text fails the test, with the difference.
 * With GOLDEN=write in the environment the file is written instead: look at what git says then.
 */
#ifndef GLAKE_TESTS_HARNESS_GOLDEN_H
#define GLAKE_TESTS_HARNESS_GOLDEN_H

/* @text must be that of tests/golden/@name.txt. */
void golden_expect(const char *name, const char *text);

#endif

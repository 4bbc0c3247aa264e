/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake learn: run a program again and again, and make a table of readers of what its kernels were seen to do
 * (shim/learn.h). Meant for machines where a program may fail: it ends by a fault whenever a kernel writes to what it was
 * taken to read.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_LEARN_H
#define GLAKE_SHIM_RUN_LEARN_H

struct learn_options {
	const char *out;   /* the table; NULL: standard output */
	const char *state; /* what was learned before, and is from now on; NULL: nothing */
	const char *what;  /* the table is true for; NULL: the programs */
	const char *runs;  /* numbers, as text; NULL: the default */
	const char *seconds;
	const char *least;
};

/*
 * @start runs in a child and executes the program, or returns an exit status. Without a program (*@arguments is NULL) the
 * table is of the state alone. Returns an exit status.
 */
int learn_main(const struct learn_options *options, char **arguments, int (*start)(void *user),
               void *user);

#endif

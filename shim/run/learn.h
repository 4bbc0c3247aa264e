/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake learn: run a program again and again, watch its kernels (shim/learn.h), and make a table of readers. Meant for
 * machines where a program may fail, because it faults whenever a kernel writes to memory that it was expected to read.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_LEARN_H
#define GLAKE_SHIM_RUN_LEARN_H

struct learn_options {
	const char *out;   /* the table; NULL: standard output */
	const char *state; /* the state file, which is read and updated; NULL: none */
	const char *what;  /* says what the table is true for; NULL: the programs */
	const char *runs;  /* how often to run, as text; NULL: the default */
	const char *seconds;
	const char *least;
};

/*
 * @start runs in a child and executes the program, or returns an exit status. Without a program (*@arguments is NULL) the
 * table is made from the state alone. Returns an exit status.
 */
int learn_main(const struct learn_options *options, char **arguments, int (*start)(void *user),
               void *user);

#endif

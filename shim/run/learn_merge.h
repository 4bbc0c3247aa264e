/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run has found becomes part of what is known, and what is known a table.
 *
 * A fault says which words of the launch pointed to candidates, and through which of them it could write. Of those through
 * which it could not, the ones that were never seen to read come first: one of them alone is given access in the next run,
 * and the next in the one after that; if none helps, all of them count as writing. Then the same with words that were
 * seen to read. A function that faults when it may write through all its words touches what it does not name.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_LEARN_MERGE_H
#define GLAKE_SHIM_RUN_LEARN_MERGE_H

#include <stdio.h>

#include "shim/learned.h"

/* Of one run. */
struct learn_found {
	unsigned n_processes; /* that had something to learn from */
	unsigned n_faults;
	char fault[160]; /* the last, for people; "" */
};

/* @facts is written to. 0 or -ENOMEM; lines that make no sense are passed over: the program may have died in one. */
int learn_merge(struct learned *learned, char *facts, struct learn_found *found_out);

/* What a table would have, and would not. */
struct learn_sum {
	size_t n_functions;
	size_t n_words; /* that read */
	size_t n_open;
	size_t n_writing; /* words */
	size_t n_rare; /* functions that were not launched often enough beside memory that they did not name */
	size_t n_nameless;
};
struct learn_sum learn_sum(const struct learned *learned, uint64_t least);

/* @least launches make a function known. @what may be NULL. */
void learn_write_table(const struct learned *learned, const char *what, uint64_t least, FILE *file);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges the findings of a run into the state, and writes a table from the state.
 *
 * A fault says which words of the launch pointed to candidates, and through which of them it could write. The other words are
 * suspects. Suspects that were never seen to read are tried first: each alone is given write access, in one run after the
 * other; if none helps, all of them count as writing. Then suspects that were seen to read are tried in the same way.
 * A function that faults although it may write through all its words touches memory that it does not name.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_LEARN_MERGE_H
#define GLAKE_SHIM_RUN_LEARN_MERGE_H

#include <stdio.h>

#include "shim/learned.h"

/* The findings of one run. */
struct learn_found {
	unsigned n_processes; /* processes with findings */
	unsigned n_faults;
	char fault[160]; /* the last fault, for people; "": none */
};

/* Changes @facts. Returns 0 or -ENOMEM. Lines that make no sense are skipped, because the program may have died in one. */
int learn_merge(struct learned *learned, char *facts, struct learn_found *found_out);

/* The functions and words that a table would have, and would not have. */
struct learn_sum {
	size_t n_functions;
	size_t n_words; /* words that read */
	size_t n_open;
	size_t n_writing; /* words that write */
	size_t n_rare;    /* functions with too few launches beside memory that they did not name */
	size_t n_nameless;
};
struct learn_sum learn_sum(const struct learned *learned, uint64_t least);

/* @least launches make a function known. @what may be NULL. */
void learn_write_table(const struct learned *learned, const char *what, uint64_t least, FILE *file);

#endif

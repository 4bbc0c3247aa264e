/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that are learned (learn.h). New findings are written to $GLAKE_LEARN_FACTS; $GLAKE_LEARN_STATE has earlier
 * ones (learned.h).
 *
 * A function is known by its image and name. A function whose name cannot stand in a table gets an unknown image.
 *
 * Lifetime: functions stay. Threads: any, but only one at a time for words.
 */
#ifndef GLAKE_SHIM_LEARN_FUNCTIONS_H
#define GLAKE_SHIM_LEARN_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim/kernels.h"
#include "shim/policy.h"
#include "shim/readers.h"

struct learn_word {
	uint16_t at;      /* byte of the parameters */
	bool may_write;   /* it was found to write, or this run tries whether it does */
	bool has_written; /* a launch that could write through it was told */
	uint64_t n_read;
};

struct learn_function {
	struct image_id image;
	char *name; /* owned */
	unsigned number;
	bool is_open; /* the function may touch anything */
	uint64_t n_alone;
	size_t n_words;
	struct learn_word *words;    /* owned */
	struct learn_function *next; /* link: buckets */
};

static inline bool learn_is_wanted(void)
{
	return shim_policy()->dedup == SHIM_DEDUP_LEARN;
}

/* Open the files, the first time. False: nothing is learned. */
bool learn_functions_begin(void);

/* Write a line with a finding. It is in the file when this returns, since the program may end at any time. */
void learn_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* NULL: no memory, or nothing is learned. */
struct learn_function *learn_function_of(const struct kernel *kernel);

/* NULL: nothing is known of the word, or (get) no memory. The word is valid until the next get. */
struct learn_word *learn_find_word(struct learn_function *function, uint16_t at);
struct learn_word *learn_get_word(struct learn_function *function, uint16_t at);

/* Count one more. True: the count has doubled, and is to be told. */
bool learn_counts_up(uint64_t *n);

/* Has a graph faulted, so that graphs are not looked at? */
bool learn_graphs_are_open(void);

#endif

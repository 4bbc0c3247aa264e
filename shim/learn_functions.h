/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of functions while they are learned (learn.h), and the file that is told what is new:
 * $GLAKE_LEARN_FACTS. $GLAKE_LEARN_STATE has what was known before (learned.h).
 *
 * A function is known by its image and name. What cannot stand in a table is of an image that is not known.
 *
 * Lifetime: functions stay. Threads: any, but for words: of one at a time.
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
	bool may_write;   /* through it, as was found before, or to find it out */
	bool has_written; /* it could, and that was told */
	uint64_t n_read;
};

struct learn_function {
	struct image_id image;
	char *name; /* owned */
	unsigned number;
	bool is_open; /* it may touch anything */
	uint64_t n_alone;
	size_t n_words;
	struct learn_word *words;    /* owned */
	struct learn_function *next; /* link: buckets */
};

static inline bool learn_is_wanted(void)
{
	return shim_policy()->dedup == SHIM_DEDUP_LEARN;
}

/* Is there anybody to tell? */
bool learn_functions_begin(void);

/* What was found, a line: it is written before this returns, since the program may end at any time. */
void learn_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* NULL: no memory, or nothing is learned. */
struct learn_function *learn_function_of(const struct kernel *kernel);

/* NULL: nothing is known of it, or (get) no memory. Until the next one is got. */
struct learn_word *learn_find_word(struct learn_function *function, uint16_t at);
struct learn_word *learn_get_word(struct learn_function *function, uint16_t at);

/* One more. True: it has doubled, and is to be told. */
bool learn_counts_up(uint64_t *n);

/* Graphs are not to be looked at: one has faulted. */
bool learn_graphs_are_open(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `glake learn` knows so far: its state file. The shim reads in it what kernels may write to while more is learned
 * (learn.h); `glake learn` adds what a run has found, and makes a table of readers of it.
 *
 *     glake-learned 1
 *     ran COUNT TEXT              a program, and how often
 *     on COUNT TEXT               a GPU and its driver, and how often
 *     graphs open                 a graph faulted: graphs are not looked at
 *     image build-id HEX offset 0xHEX, or: image digest HEX bytes N, or: image unknown
 *     function NAME
 *       alone COUNT               launches in which it touched nothing that it did not name
 *       read OFFSET COUNT         launches in which it wrote nothing through this word
 *       wrote OFFSET              it writes through this word
 *       tried OFFSET              that it could write through this word alone did not help
 *       trying OFFSET             the next run finds out whether that helps
 *       open WHY                  it touches what it does not name
 *
 * Owner: the caller. Lifetime: init to deinit. Threads: one.
 */
#ifndef GLAKE_SHIM_LEARNED_H
#define GLAKE_SHIM_LEARNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shim/readers.h"

enum learned_writing { LEARNED_NOT, LEARNED_TRIED, LEARNED_TRYING, LEARNED_WROTE };

struct learned_word {
	uint16_t at;
	enum learned_writing writing;
	uint64_t n_read;
};

struct learned_function {
	struct image_id image;
	char *name; /* owned */
	char *open; /* owned: why; NULL: it is not */
	uint64_t n_alone;
	size_t n_words;
	struct learned_word *words; /* owned; by offset */
};

/* Lines for people. */
struct learned_line {
	char *text; /* owned */
	uint64_t n;
};
struct learned_lines {
	struct learned_line *list; /* owned; in the order that they came */
	size_t n;
};

struct learned {
	struct learned_function **functions; /* owned; sorted */
	size_t n_functions;
	size_t capacity;
	bool are_graphs_open;
	struct learned_lines ran;
	struct learned_lines on;
};

/* What can stand in a table: a function's name, and a word's offset. */
bool learned_is_name(const char *name);
bool learned_is_offset(uint64_t at);

void learned_deinit(struct learned *learned);

/*
 * Add what the text says. 0; -EINVAL: *error_out says what is wrong; -ENOMEM.
 */
int learned_parse(struct learned *learned, char *text, struct readers_error *error_out);

/* The same of a file. -errno, with *error_out; a file that is not there has nothing. */
int learned_read(struct learned *learned, const char *path, struct readers_error *error_out);

void learned_write(const struct learned *learned, FILE *file);

/* NULL: there is none, or (get) no memory. */
struct learned_function *learned_find(const struct learned *learned, const struct image_id *image,
                                      const char *name);
struct learned_function *learned_get(struct learned *learned, const struct image_id *image,
                                     const char *name);
struct learned_word *learned_word(struct learned_function *function, uint16_t at);
struct learned_word *learned_get_word(struct learned_function *function, uint16_t at);

/* Count @text among the lines @n times more. False: no memory. */
bool learned_count(struct learned_lines *lines, const char *text, uint64_t n);

#endif

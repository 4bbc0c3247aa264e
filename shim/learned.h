/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state file of `glake learn`: all that it has found so far. The shim reads there which words kernels may write through
 * while more is learned (learn.h); `glake learn` adds the findings of each run, and makes a table of readers.
 *
 *     glake-learned 1
 *     ran COUNT TEXT              a program, and how often
 *     on COUNT TEXT               a GPU and its driver, and how often
 *     graphs open                 a graph faulted: graphs are not looked at
 *     image build-id HEX offset 0xHEX, or: image digest HEX bytes N, or: image unknown
 *     function NAME
 *       alone COUNT               launches in which it touched nothing but named memory
 *       read OFFSET COUNT         launches in which it wrote nothing through this word
 *       wrote OFFSET              it writes through this word
 *       tried OFFSET              write access through this word alone did not prevent the fault
 *       trying OFFSET             the next run tries whether that prevents it
 *       open WHY                  it touches memory that it does not name
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
	char *open; /* owned: why the function is open; NULL: it is not */
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

/* Can this name of a function, or this offset of a word, stand in a table? */
bool learned_is_name(const char *name);
bool learned_is_offset(uint64_t at);

void learned_deinit(struct learned *learned);

/*
 * Add the content of the text. 0; -EINVAL: *error_out says what is wrong; -ENOMEM.
 */
int learned_parse(struct learned *learned, char *text, struct readers_error *error_out);

/* Like learned_parse(), for a file; also -errno, with *error_out. A missing file counts as empty. */
int learned_read(struct learned *learned, const char *path, struct readers_error *error_out);

void learned_write(const struct learned *learned, FILE *file);

/* NULL: the function is not known, or (get) no memory. */
struct learned_function *learned_find(const struct learned *learned, const struct image_id *image,
                                      const char *name);
struct learned_function *learned_get(struct learned *learned, const struct image_id *image,
                                     const char *name);
struct learned_word *learned_word(struct learned_function *function, uint16_t at);
struct learned_word *learned_get_word(struct learned_function *function, uint16_t at);

/* Count @text among the lines @n times more. False: no memory. */
bool learned_count(struct learned_lines *lines, const char *text, uint64_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of readers: facts about kernels, by which a launch is judged before it is submitted. The format is that of
 * glake-readers(5):
 *
 *     glake-readers 1
 *     for "what it is true for"
 *     image build-id HEX offset 0xHEX       or: image digest HEX bytes N
 *     function NAME
 *       reads OFFSET [if u32 OFFSET = VALUE [and ...]]
 *       writes OFFSET                         in place of what it reads: all other words
 *     opaque NAME
 *
 * A function that is listed is closed: it launches nothing, and each byte that it touches lies in an allocation that one of
 * its own parameters points into, by a word of 8 bytes at a multiple of 8. Through words that it `reads` it writes nothing,
 * as long as the conditions hold. Through all others it may write; if a `writes` names some, through these alone, whatever else is
 * said of them. An opaque function may write anywhere.
 *
 * Owner: the caller. Lifetime: parse to free. Threads: any read.
 */
#ifndef GLAKE_SHIM_READERS_H
#define GLAKE_SHIM_READERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READERS_MAX_CONDITIONS 4u
/* The most bytes of a kernel's parameters: 32 KiB less 4 bytes, since CUDA 12.1. */
#define READERS_MAX_PARAM_BYTES 32764u
#define READERS_MAX_ID_BYTES 32u

/* The identity of code. Unused bytes are 0, so that two can be compared as bytes. */
enum image_kind {
	IMAGE_UNKNOWN,
	IMAGE_IN_FILE,   /* in a loaded file: the file's build-id and the offset */
	IMAGE_IN_MEMORY, /* in memory: digest and length */
};

struct image_id {
	uint32_t kind; /* enum image_kind */
	uint32_t n_bytes;
	uint64_t at; /* offset, or length */
	uint8_t bytes[READERS_MAX_ID_BYTES];
};

/* The longest text of an image, as in a table: "build-id HEX offset 0xHEX". */
#define IMAGE_TEXT_BYTES 128u
void image_to_text(const struct image_id *image, char text_out[IMAGE_TEXT_BYTES]);

bool image_from_text(const char *text, struct image_id *image_out);

struct reader_condition {
	uint16_t at; /* byte of the parameters, as `reads` is */
	uint16_t n_bytes;
	uint64_t value;
};

struct reader_word {
	uint16_t at;     /* byte of the parameters */
	bool is_written; /* then there are no conditions */
	uint16_t n_conditions;
	struct reader_condition conditions[READERS_MAX_CONDITIONS];
};

struct reader_function {
	struct image_id image;
	char *name; /* owned */
	bool is_opaque;
	bool names_written; /* it reads through each word that is not is_written */
	uint32_t line;
	size_t n_words;
	struct reader_word *words; /* owned; in the order of the file */
};

struct readers {
	size_t n_functions;
	struct reader_function *functions; /* owned; sorted */
	char *what_for;                    /* owned; "" */
};

struct readers_error {
	unsigned line; /* 0: the whole file */
	char text[160];
};

/* Returns 0; -EINVAL: *error_out says what is wrong; -ENOMEM. */
int readers_parse(const char *text, size_t n_bytes, struct readers **readers_out,
                  struct readers_error *error_out);
void readers_free(struct readers *readers);

/* NULL: the function is not in the table. */
const struct reader_function *readers_find(const struct readers *readers,
                                           const struct image_id *image, const char *name);

#endif

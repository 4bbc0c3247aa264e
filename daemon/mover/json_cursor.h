/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walk through a large JSON text piece by piece, so that a hostile one cannot take more memory than
 * its own size: jansson, which builds trees many times larger than their text, only ever sees one
 * key or one bounded value.
 *
 * Owner: the caller, who keeps the text alive.
 * Threads: none of its own.
 */
#ifndef GLAKE_MOVER_JSON_CURSOR_H
#define GLAKE_MOVER_JSON_CURSOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum {
	JSON_CURSOR_E_BAD = 1, /* not JSON, or longer than allowed: cause says it */
};

struct json_cursor {
	const char *text;
	size_t n_bytes;
	size_t at;
	char cause[200]; /* of the last JSON_CURSOR_E_BAD; printable ASCII */
};

void json_cursor_init(struct json_cursor *cursor, const char *text, size_t n_bytes);

/* The next byte that is no white space, or '\0' at the end. */
char json_cursor_peek(struct json_cursor *cursor);

/* Parse one value of at most @max_bytes of text. *value_out is the caller's: json_decref(). */
int json_cursor_value(struct json_cursor *cursor, size_t max_bytes, json_t **value_out);

/* Parse like json_cursor_value(); the value must be a string. */
int json_cursor_string(struct json_cursor *cursor, size_t max_bytes, json_t **string_out);

/*
 * Go through an object: called once before each key. Parses the separators.
 * Returns 0 and the key, 0 and NULL after the last, or JSON_CURSOR_E_BAD. Start with *n_keys = 0.
 */
int json_cursor_key(struct json_cursor *cursor, size_t *n_keys, json_t **key_out);

#endif

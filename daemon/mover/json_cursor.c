/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/json_cursor.h"

#include <stdio.h>
#include <string.h>

#include "daemon/mover/fault.h"

/* A key is a tensor's name, each byte of which may be written as \u00xx. */
#define MAX_KEY_BYTES (64u * 1024)

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK)

void json_cursor_init(struct json_cursor *cursor, const char *text, size_t n_bytes)
{
	*cursor = (struct json_cursor){.text = text, .n_bytes = n_bytes};
}

char json_cursor_peek(struct json_cursor *cursor)
{
	while (cursor->at < cursor->n_bytes) {
		char byte = cursor->text[cursor->at];
		if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r') {
			return byte;
		}
		cursor->at++;
	}
	return '\0';
}

/* Step over @byte if it is next. */
static bool take(struct json_cursor *cursor, char byte)
{
	if (json_cursor_peek(cursor) != byte || cursor->at == cursor->n_bytes) {
		return false;
	}
	cursor->at++;
	return true;
}

static int bad(struct json_cursor *cursor, const char *cause)
{
	snprintf(cursor->cause, sizeof(cursor->cause), "%s at byte %zu of the JSON text", cause,
	         cursor->at);
	return JSON_CURSOR_E_BAD;
}

int json_cursor_value(struct json_cursor *cursor, size_t max_bytes, json_t **value_out)
{
	json_cursor_peek(cursor);
	size_t rest = cursor->n_bytes - cursor->at;
	size_t n_bytes = rest < max_bytes ? rest : max_bytes;
	json_error_t error;
	json_t *value = json_loadb(cursor->text + cursor->at, n_bytes, FLAGS, &error);
	if (!value) {
		if (rest > max_bytes &&
		    json_error_code(&error) == json_error_premature_end_of_input) {
			return bad(cursor, "a value is too long");
		}
		/* jansson quotes the text it stumbled over. */
		struct quoted cause = quote(error.text);
		return bad(cursor, cause.text);
	}
	cursor->at += (size_t)error.position;
	*value_out = value;
	return 0;
}

int json_cursor_string(struct json_cursor *cursor, size_t max_bytes, json_t **string_out)
{
	if (json_cursor_peek(cursor) != '"') {
		return bad(cursor, "expected a string");
	}
	return json_cursor_value(cursor, max_bytes, string_out);
}

int json_cursor_key(struct json_cursor *cursor, size_t *n_keys, json_t **key_out)
{
	if (*n_keys == 0 && !take(cursor, '{')) {
		return bad(cursor, "expected an object");
	}
	if (take(cursor, '}')) {
		*key_out = NULL;
		return 0;
	}
	if (*n_keys > 0 && !take(cursor, ',')) {
		return bad(cursor, json_cursor_peek(cursor) ? "expected ',' or '}'"
		                                            : "the text ends within an object");
	}
	json_t *key;
	int error = json_cursor_string(cursor, MAX_KEY_BYTES, &key);
	if (error) {
		return error;
	}
	if (!take(cursor, ':')) {
		json_decref(key);
		return bad(cursor, "expected ':'");
	}
	(*n_keys)++;
	*key_out = key;
	return 0;
}

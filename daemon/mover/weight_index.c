/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/weight_index.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/mover/json_cursor.h"

/* The content beside the weight map is small: a total size, at times a list of names. */
#define MAX_OTHER_BYTES (1024u * 1024)
#define MAX_FILE_NAME_BYTES 8192u

struct checker {
	const char *name;              /* borrowed, of the index */
	const struct catalog *catalog; /* borrowed */
	const char *const *files;      /* borrowed */
	size_t n_files;
	struct fault *fault; /* borrowed */
	struct json_cursor cursor;
};

static void json_cleanup(json_t **value)
{
	json_decref(*value);
}

#define cleanup_json __attribute__((cleanup(json_cleanup)))

static int bad_json(const struct checker *checker)
{
	return fault_set(checker->fault, FAULT_BAD_FILE, "%s: not valid: %s",
	                 quote(checker->name).text, checker->cursor.cause);
}

static int check_entry(const struct checker *checker, const char *name, const char *shard)
{
	size_t file = 0;
	while (file < checker->n_files && strcmp(checker->files[file], shard) != 0) {
		file++;
	}
	if (file == checker->n_files) {
		return fault_set(checker->fault, FAULT_BAD_FILE,
		                 "%s: tensor %s: its file %s was not given",
		                 quote(checker->name).text, quote(name).text, quote(shard).text);
	}
	const struct tensor *tensor = catalog_find(checker->catalog, name);
	if (!tensor || tensor->file != file) {
		return fault_set(checker->fault, FAULT_BAD_FILE,
		                 "%s: tensor %s: named by the index %s but not there",
		                 quote(shard).text, quote(name).text, quote(checker->name).text);
	}
	return 0;
}

static int check_map(struct checker *checker)
{
	size_t n_keys = 0;
	if (json_cursor_peek(&checker->cursor) != '{') {
		return fault_set(checker->fault, FAULT_BAD_FILE, "%s: weight_map is not an object",
		                 quote(checker->name).text);
	}
	for (;;) {
		cleanup_json json_t *key = NULL;
		cleanup_json json_t *shard = NULL;
		if (json_cursor_key(&checker->cursor, &n_keys, &key)) {
			return bad_json(checker);
		}
		if (!key) {
			return 0;
		}
		if (json_cursor_string(&checker->cursor, MAX_FILE_NAME_BYTES, &shard)) {
			return bad_json(checker);
		}
		int error = check_entry(checker, json_string_value(key), json_string_value(shard));
		if (error) {
			return error;
		}
	}
}

static int check_text(struct checker *checker)
{
	size_t n_keys = 0;
	bool has_map = false;
	for (;;) {
		cleanup_json json_t *key = NULL;
		cleanup_json json_t *value = NULL;
		if (json_cursor_key(&checker->cursor, &n_keys, &key)) {
			return bad_json(checker);
		}
		if (!key) {
			break;
		}
		if (strcmp(json_string_value(key), "weight_map") != 0) {
			if (json_cursor_value(&checker->cursor, MAX_OTHER_BYTES, &value)) {
				return bad_json(checker);
			}
			continue;
		}
		if (has_map) {
			return fault_set(checker->fault, FAULT_BAD_FILE,
			                 "%s: weight_map is there twice",
			                 quote(checker->name).text);
		}
		has_map = true;
		int error = check_map(checker);
		if (error) {
			return error;
		}
	}
	if (!has_map) {
		return fault_set(checker->fault, FAULT_BAD_FILE, "%s: has no weight_map",
		                 quote(checker->name).text);
	}
	return 0;
}

int weight_index_check(const char *name, const char *text, size_t n_bytes,
                       const struct catalog *catalog, const char *const *files, size_t n_files,
                       struct fault *fault)
{
	struct checker checker = {
		.name = name,
		.catalog = catalog,
		.files = files,
		.n_files = n_files,
		.fault = fault,
	};
	json_cursor_init(&checker.cursor, text, n_bytes);
	int error = check_text(&checker);
	if (error) {
		return error;
	}
	json_cursor_peek(&checker.cursor);
	if (checker.cursor.at != n_bytes) {
		return fault_set(fault, FAULT_BAD_FILE,
		                 "%s: not valid: more text behind the object", quote(name).text);
	}
	return 0;
}

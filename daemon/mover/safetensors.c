/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/mover/json_cursor.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/limits.h"

/* A tensor's entry: 32 dimensions and two offsets are about 800 bytes; the rest is white space. */
#define MAX_ENTRY_BYTES (64u * 1024)
/* Training configurations travel in one string of the metadata. */
#define MAX_METADATA_BYTES (64u * 1024 * 1024)

struct parser {
	const struct safetensors_file *file; /* borrowed */
	struct catalog *catalog;             /* borrowed */
	struct fault *fault;                 /* borrowed */
	struct json_cursor cursor;
	uint64_t data_begin; /* in the file */
	uint64_t data_bytes;
};

static void json_cleanup(json_t **value)
{
	json_decref(*value);
}

#define cleanup_json __attribute__((cleanup(json_cleanup)))

__attribute__((format(printf, 2, 3))) static int bad_file(const struct parser *parser,
                                                          const char *format, ...)
{
	char cause[400];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(cause, sizeof(cause), format, arguments);
	va_end(arguments);
	return fault_set(parser->fault, FAULT_BAD_FILE, "%s: %s", quote(parser->file->name).text,
	                 cause);
}

__attribute__((format(printf, 3, 4))) static int
bad_tensor(const struct parser *parser, const char *name, const char *format, ...)
{
	char cause[250];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(cause, sizeof(cause), format, arguments);
	va_end(arguments);
	return bad_file(parser, "tensor %s: %s", quote(name).text, cause);
}

static int bad_json(const struct parser *parser)
{
	return bad_file(parser, "the header is not valid: %s", parser->cursor.cause);
}

int safetensors_header_bytes(const struct safetensors_file *file, const uint8_t *prefix,
                             size_t n_prefix_bytes, uint64_t *header_bytes_out, struct fault *fault)
{
	struct parser parser = {.file = file, .fault = fault};
	if (n_prefix_bytes < SAFETENSORS_PREFIX_BYTES) {
		return bad_file(&parser, "not a safetensors file: only %zu bytes long",
		                n_prefix_bytes);
	}
	uint64_t length;
	memcpy(&length, prefix, sizeof(length));
	length = le64toh(length);
	if (length > GLAKE_MAX_SAFETENSORS_HEADER_BYTES && length > file->bytes) {
		return bad_file(&parser, "not a safetensors file: such a file begins with the "
		                         "length of its header");
	}
	if (length > GLAKE_MAX_SAFETENSORS_HEADER_BYTES) {
		return bad_file(&parser,
		                "a header of %" PRIu64
		                " bytes is too large, at most %llu are allowed",
		                length, GLAKE_MAX_SAFETENSORS_HEADER_BYTES);
	}
	if (length > file->bytes - SAFETENSORS_PREFIX_BYTES) {
		return bad_file(&parser,
		                "the header is cut off: it has %" PRIu64
		                " bytes, the file only %" PRIu64,
		                length, file->bytes);
	}
	*header_bytes_out = length;
	return 0;
}

static int check_fields(const struct parser *parser, const char *name, json_t *entry)
{
	static const char *const fields[] = {"dtype", "shape", "data_offsets"};
	for (size_t i = 0; i < n_elements(fields); i++) {
		if (!json_object_get(entry, fields[i])) {
			return bad_tensor(parser, name, "has no %s", fields[i]);
		}
	}
	const char *key;
	json_t *value;
	json_object_foreach(entry, key, value)
	{
		size_t i = 0;
		while (i < n_elements(fields) && strcmp(key, fields[i]) != 0) {
			i++;
		}
		if (i == n_elements(fields)) {
			return bad_tensor(parser, name, "unknown field %s", quote(key).text);
		}
	}
	return 0;
}

static int parse_dtype(const struct parser *parser, json_t *value, struct tensor *tensor)
{
	if (!json_is_string(value)) {
		return bad_tensor(parser, tensor->name, "dtype is not a string");
	}
	tensor->dtype = dtype_from_name(json_string_value(value));
	if (tensor->dtype == DTYPE_NONE) {
		return bad_tensor(parser, tensor->name, "unknown dtype %s",
		                  quote(json_string_value(value)).text);
	}
	return 0;
}

static int parse_number(json_t *value, uint64_t *number_out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0) {
		return -EINVAL;
	}
	*number_out = (uint64_t)json_integer_value(value);
	return 0;
}

/* Parse the shape, and compute the tensor's bytes. */
static int parse_shape(const struct parser *parser, json_t *value, struct tensor *tensor)
{
	if (!json_is_array(value)) {
		return bad_tensor(parser, tensor->name, "shape is not an array");
	}
	size_t n_dims = json_array_size(value);
	if (n_dims > GLAKE_MAX_DIMS) {
		return bad_tensor(parser, tensor->name, "%zu dimensions, at most %u are allowed",
		                  n_dims, GLAKE_MAX_DIMS);
	}
	uint64_t *shape = NULL;
	if (n_dims > 0) {
		shape = catalog_alloc(parser->catalog, n_dims * sizeof(*shape));
		if (!shape) {
			return fault_no_memory(parser->fault);
		}
	}
	uint64_t bits = dtype_bits(tensor->dtype);
	bool overflow = false;
	bool empty = false;
	for (size_t i = 0; i < n_dims; i++) {
		if (parse_number(json_array_get(value, i), &shape[i])) {
			return bad_tensor(parser, tensor->name,
			                  "shape is not an array of non-negative integers");
		}
		empty |= shape[i] == 0;
		overflow |= __builtin_mul_overflow(bits, shape[i], &bits);
	}
	if (overflow && !empty) {
		return bad_tensor(parser, tensor->name, "the shape is too large");
	}
	bits = empty ? 0 : bits;
	if (bits % 8 != 0) {
		return bad_tensor(parser, tensor->name,
		                  "%" PRIu64 " bits are not a whole number of bytes", bits);
	}
	tensor->shape = shape;
	tensor->n_dims = (uint32_t)n_dims;
	tensor->bytes = bits / 8;
	return 0;
}

static int parse_offsets(const struct parser *parser, json_t *value, struct tensor *tensor)
{
	uint64_t begin;
	uint64_t end;
	if (!json_is_array(value) || json_array_size(value) != 2 ||
	    parse_number(json_array_get(value, 0), &begin) ||
	    parse_number(json_array_get(value, 1), &end)) {
		return bad_tensor(parser, tensor->name,
		                  "data_offsets is not a pair of non-negative integers");
	}
	if (begin > end) {
		return bad_tensor(parser, tensor->name,
		                  "data_offsets end before they begin (%" PRIu64 ", %" PRIu64 ")",
		                  begin, end);
	}
	if (end > parser->data_bytes) {
		return bad_tensor(parser, tensor->name,
		                  "ends at byte %" PRIu64 " of the data, which has only %" PRIu64,
		                  end, parser->data_bytes);
	}
	if (end - begin != tensor->bytes) {
		return bad_tensor(parser, tensor->name,
		                  "shape and dtype make %" PRIu64 " bytes, data_offsets %" PRIu64,
		                  tensor->bytes, end - begin);
	}
	tensor->begin = parser->data_begin + begin;
	return 0;
}

static int copy_name(const struct parser *parser, json_t *key, const char **name_out)
{
	size_t n_bytes = json_string_length(key);
	if (n_bytes > GLAKE_MAX_NAME_BYTES) {
		return bad_tensor(parser, json_string_value(key),
		                  "a name of %zu bytes is too long, at most %u are allowed",
		                  n_bytes, GLAKE_MAX_NAME_BYTES);
	}
	char *name = catalog_alloc(parser->catalog, n_bytes + 1);
	if (!name) {
		return fault_no_memory(parser->fault);
	}
	memcpy(name, json_string_value(key), n_bytes + 1);
	*name_out = name;
	return 0;
}

static int parse_tensor(struct parser *parser, json_t *key)
{
	struct tensor tensor = {.file = parser->file->number};
	int error = copy_name(parser, key, &tensor.name);
	if (error) {
		return error;
	}
	cleanup_json json_t *entry = NULL;
	if (json_cursor_value(&parser->cursor, MAX_ENTRY_BYTES, &entry)) {
		return bad_tensor(parser, tensor.name, "the header is not valid: %s",
		                  parser->cursor.cause);
	}
	if (!json_is_object(entry)) {
		return bad_tensor(parser, tensor.name, "is not described by an object");
	}
	if ((error = check_fields(parser, tensor.name, entry)) ||
	    (error = parse_dtype(parser, json_object_get(entry, "dtype"), &tensor)) ||
	    (error = parse_shape(parser, json_object_get(entry, "shape"), &tensor)) ||
	    (error = parse_offsets(parser, json_object_get(entry, "data_offsets"), &tensor))) {
		return error;
	}
	error = catalog_add(parser->catalog, &tensor);
	if (error == -E2BIG) {
		return bad_file(parser, "more than %u tensors", GLAKE_MAX_TENSORS);
	}
	return error ? fault_no_memory(parser->fault) : 0;
}

/* Nobody needs the metadata here, but it must be what the format says: strings. */
static int parse_metadata(struct parser *parser)
{
	size_t n_keys = 0;
	if (json_cursor_peek(&parser->cursor) != '{') {
		return bad_file(parser, "__metadata__ is not an object");
	}
	for (;;) {
		cleanup_json json_t *key = NULL;
		cleanup_json json_t *value = NULL;
		if (json_cursor_key(&parser->cursor, &n_keys, &key)) {
			return bad_json(parser);
		}
		if (!key) {
			return 0;
		}
		if (json_cursor_peek(&parser->cursor) != '"') {
			return bad_file(parser, "__metadata__: %s is not a string",
			                quote(json_string_value(key)).text);
		}
		if (json_cursor_value(&parser->cursor, MAX_METADATA_BYTES, &value)) {
			return bad_json(parser);
		}
	}
}

static int parse_entries(struct parser *parser)
{
	size_t n_keys = 0;
	bool has_metadata = false;
	for (;;) {
		cleanup_json json_t *key = NULL;
		if (json_cursor_key(&parser->cursor, &n_keys, &key)) {
			return bad_json(parser);
		}
		if (!key) {
			break;
		}
		int error;
		if (strcmp(json_string_value(key), "__metadata__") != 0) {
			error = parse_tensor(parser, key);
		} else if (has_metadata) {
			error = bad_file(parser, "__metadata__ is there twice");
		} else {
			has_metadata = true;
			error = parse_metadata(parser);
		}
		if (error) {
			return error;
		}
	}
	if (json_cursor_peek(&parser->cursor) != '\0' ||
	    parser->cursor.at != parser->cursor.n_bytes) {
		return bad_file(parser, "the header is not valid: more text behind the object");
	}
	return 0;
}

static int compare_places(const void *left, const void *right)
{
	const struct tensor *a = left;
	const struct tensor *b = right;
	if (a->begin != b->begin) {
		return a->begin < b->begin ? -1 : 1;
	}
	return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* The file's tensors, those from @first on, must fill the data exactly. They get sorted by place. */
static int check_places(const struct parser *parser, size_t first)
{
	const size_t n_tensors = parser->catalog->n_tensors - first;
	struct tensor *tensors = n_tensors > 0 ? parser->catalog->tensors + first : NULL;
	const char *before = NULL;
	uint64_t expected = parser->data_begin;
	uint64_t end = parser->data_begin + parser->data_bytes;
	if (n_tensors > 0) {
		qsort(tensors, n_tensors, sizeof(*tensors), compare_places);
	}
	for (size_t i = 0; i < n_tensors; i++) {
		const struct tensor *tensor = &tensors[i];
		if (tensor->begin < expected) {
			return bad_tensor(parser, tensor->name, "overlaps tensor %s",
			                  quote(before).text);
		}
		if (tensor->begin > expected) {
			return bad_tensor(parser, tensor->name,
			                  "%" PRIu64 " bytes in front of it belong to no tensor",
			                  tensor->begin - expected);
		}
		expected += tensor->bytes;
		before = tensor->name;
	}
	if (expected != end) {
		return bad_file(parser, "the last %" PRIu64 " bytes belong to no tensor",
		                end - expected);
	}
	return 0;
}

int safetensors_parse(const struct safetensors_file *file, const char *header, size_t header_bytes,
                      struct catalog *catalog, struct fault *fault)
{
	struct parser parser = {
		.file = file,
		.catalog = catalog,
		.fault = fault,
		.data_begin = SAFETENSORS_PREFIX_BYTES + header_bytes,
		.data_bytes = file->bytes - SAFETENSORS_PREFIX_BYTES - header_bytes,
	};
	size_t first = catalog->n_tensors;
	/* The format has no white space in front, so that the first bytes tell the file's type. */
	if (header_bytes == 0 || header[0] != '{') {
		return bad_file(&parser,
		                "not a safetensors file: the header does not begin with '{'");
	}
	json_cursor_init(&parser.cursor, header, header_bytes);
	int error = parse_entries(&parser);
	if (error) {
		return error;
	}
	return check_places(&parser, first);
}

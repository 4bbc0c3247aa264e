/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/field.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/text.h"
#include "glake.h"

/* Long enough for a UUID and a digest; names have no bound and are not formatted here. */
#define CELL_BYTES 64u

#define NAME_COLUMNS 40u

static const void *member(const struct field *field, const void *row)
{
	return (const char *)row + field->offset;
}

static uint64_t number(const struct field *field, const void *row)
{
	if (field->type == FIELD_U32) {
		return *(const uint32_t *)member(field, row);
	}
	return *(const uint64_t *)member(field, row);
}

static bool is_none(const struct field *field, const void *row)
{
	return field->type == FIELD_MAYBE && number(field, row) == FIELD_NONE;
}

static const char *text_of(const struct field *field, const void *row)
{
	const void *at = member(field, row);
	const char *text = field->type == FIELD_CHARS ? at : *(const char *const *)at;
	return text ? text : "";
}

/* The form of nvidia-smi. */
static void format_uuid(const uint8_t uuid[16], char *text_out)
{
	char *to = text_out + sprintf(text_out, "GPU-");
	for (int i = 0; i < 16; i++) {
		to += sprintf(to, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
		              uuid[i]);
	}
}

/* Write the digest as the logs do: a 128-bit number, highest digit first; the bytes have the lowest first. */
static void format_digest(const struct glake_digest *digest, char *text_out)
{
	for (int i = 15; i >= 0; i--) {
		text_out += sprintf(text_out, "%02x", digest->bytes[i]);
	}
}

void field_bytes(uint64_t bytes, bool exact, char *text_out, size_t text_bytes)
{
	if (exact) {
		snprintf(text_out, text_bytes, "%" PRIu64, bytes);
		return;
	}
	char text[TEXT_NUMBER_BYTES];
	text_size(bytes, text);
	snprintf(text_out, text_bytes, "%s", text);
}

static void format_number(uint64_t value, enum field_style style, bool exact, char *text_out)
{
	switch (style) {
	case FIELD_LIMIT:
	case FIELD_BYTES_LIMIT:
		if (value == 0) {
			snprintf(text_out, CELL_BYTES, "none");
			return;
		}
		break;
	case FIELD_BYTES_KNOWN:
		if (value == 0) {
			snprintf(text_out, CELL_BYTES, "?");
			return;
		}
		break;
	case FIELD_MS:
		text_duration(value, text_out);
		return;
	case FIELD_TIME:
		text_time(value, text_out);
		return;
	case FIELD_PLAIN:
	case FIELD_BYTES:
	case FIELD_PERCENT:
	case FIELD_NAME:
		break;
	}
	bool is_plain = style == FIELD_PLAIN || style == FIELD_LIMIT;
	field_bytes(value, exact || is_plain, text_out, CELL_BYTES);
}

static void format_ratio(double ratio, enum field_style style, char *text_out)
{
	if (ratio < 0) {
		snprintf(text_out, CELL_BYTES, "-");
	} else if (style == FIELD_PERCENT) {
		snprintf(text_out, CELL_BYTES, "%.1f %%", ratio * 100);
	} else {
		snprintf(text_out, CELL_BYTES, "%.2f", ratio);
	}
}

static void format(const struct field *field, const void *row, bool exact, char *text_out)
{
	if (is_none(field, row)) {
		snprintf(text_out, CELL_BYTES, "-");
		return;
	}
	switch (field->type) {
	case FIELD_U32:
	case FIELD_U64:
	case FIELD_MAYBE:
		format_number(number(field, row), field->style, exact, text_out);
		break;
	case FIELD_I32:
		snprintf(text_out, CELL_BYTES, "%" PRId32, *(const int32_t *)member(field, row));
		break;
	case FIELD_BOOL:
		snprintf(text_out, CELL_BYTES, *(const int *)member(field, row) ? "yes" : "no");
		break;
	case FIELD_RATIO:
		format_ratio(*(const double *)member(field, row), field->style, text_out);
		break;
	case FIELD_UUID:
		format_uuid(member(field, row), text_out);
		break;
	case FIELD_DIGEST:
		format_digest(member(field, row), text_out);
		break;
	case FIELD_TEXT:
	case FIELD_CHARS:
		break;
	}
}

void field_columns(struct table *table, const struct field *fields, size_t n_fields)
{
	for (size_t i = 0; i < n_fields; i++) {
		if (fields[i].title) {
			enum field_type type = fields[i].type;
			table_column(table, fields[i].title,
			             type == FIELD_U32 || type == FIELD_U64 ||
			                     type == FIELD_MAYBE || type == FIELD_I32 ||
			                     type == FIELD_RATIO);
		}
	}
}

static void text_cell(struct table *table, const char *text, enum field_style style)
{
	char *escaped = text_escape(text);
	if (escaped && style == FIELD_NAME) {
		text_shorten(escaped, NAME_COLUMNS);
	}
	table->is_lost |= !escaped;
	table_cell(table, escaped ? escaped : "");
	free(escaped);
}

void field_cells(struct table *table, const struct field *fields, size_t n_fields, const void *row,
                 bool exact)
{
	for (size_t i = 0; i < n_fields; i++) {
		if (!fields[i].title) {
			continue;
		}
		if (fields[i].type == FIELD_TEXT || fields[i].type == FIELD_CHARS) {
			text_cell(table, text_of(&fields[i], row), fields[i].style);
			continue;
		}
		char cell[CELL_BYTES] = "";
		format(&fields[i], row, exact, cell);
		table_cell(table, cell);
	}
}

json_t *field_string(const char *text)
{
	if (text_is_utf8(text)) {
		return json_string(text);
	}
	char *escaped = text_escape(text);
	json_t *string = escaped ? json_string(escaped) : NULL;
	free(escaped);
	return string;
}

/* JSON integers are signed here; nothing glake counts comes near 2^63. */
static json_t *json_number(uint64_t value)
{
	return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *field_value(const struct field *field, const void *row)
{
	char cell[CELL_BYTES] = "";
	switch (field->type) {
	case FIELD_MAYBE:
		if (is_none(field, row)) {
			return json_null();
		}
		/* fallthrough */
	case FIELD_U32:
	case FIELD_U64:
		return json_number(number(field, row));
	case FIELD_I32:
		return json_integer(*(const int32_t *)member(field, row));
	case FIELD_BOOL:
		return json_boolean(*(const int *)member(field, row));
	case FIELD_TEXT:
	case FIELD_CHARS:
		return field_string(text_of(field, row));
	case FIELD_RATIO: {
		double ratio = *(const double *)member(field, row);
		return ratio < 0 ? json_null() : json_real(ratio);
	}
	case FIELD_UUID:
	case FIELD_DIGEST:
		format(field, row, true, cell);
		return json_string(cell);
	}
	return NULL;
}

json_t *field_object(const struct field *fields, size_t n_fields, const void *row)
{
	json_t *object = json_object();
	for (size_t i = 0; i < n_fields; i++) {
		if (fields[i].key &&
		    json_object_set_new(object, fields[i].key, field_value(&fields[i], row)) < 0) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

json_t *field_list(const struct field *fields, size_t n_fields, const void *rows, size_t n,
                   size_t row_bytes)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++) {
		const char *row = (const char *)rows + i * row_bytes;
		json_array_append_new(list, field_object(fields, n_fields, row));
	}
	return list;
}

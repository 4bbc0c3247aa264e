/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One description per struct member, two outputs: a JSON key of the member's own name and a table
 * cell. So the names in --json are those of glake_admin.h, and neither output can miss a member
 * that the other has, unless the description says so (no title: JSON only).
 *
 * Threads: any; descriptions are constant.
 */
#ifndef GLAKE_CTL_FIELD_H
#define GLAKE_CTL_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ctl/table.h"

enum field_type {
	FIELD_U32,
	FIELD_U64,
	FIELD_MAYBE, /* uint64_t; FIELD_NONE: there is none ("-", null) */
	FIELD_I32,
	FIELD_BOOL,   /* int: nonzero is true */
	FIELD_TEXT,   /* const char *; NULL is "" */
	FIELD_CHARS,  /* char[]: a text in the row itself */
	FIELD_RATIO,  /* double; below 0: not defined ("-", null) */
	FIELD_UUID,   /* uint8_t[16] */
	FIELD_DIGEST, /* struct glake_digest */
};

enum field_style {
	FIELD_PLAIN,
	FIELD_BYTES,
	FIELD_LIMIT,       /* a count, 0 = "none" */
	FIELD_BYTES_LIMIT, /* bytes, 0 = "none" */
	FIELD_BYTES_KNOWN, /* bytes, 0 = "?" */
	FIELD_MS,
	FIELD_TIME,    /* milliseconds since 1970 */
	FIELD_PERCENT, /* of a ratio */
	FIELD_NAME,    /* of a text: a long one ends in the middle */
};

#define FIELD_NONE UINT64_MAX

struct field {
	const char *key; /* NULL: only in tables */
	size_t offset;
	enum field_type type;
	enum field_style style;
	const char *title; /* NULL: not in tables */
};

#define FIELD(row, member, type_, style_, title_) \
	{ \
		.key = #member, .offset = offsetof(row, member), .type = FIELD_##type_, \
		.style = FIELD_##style_, .title = title_ \
	}
/* A field of a struct that is the member @part of the row. */
#define FIELD_IN(row, part, member, type_, style_, title_) \
	{ \
		.key = #member, .offset = offsetof(row, part.member), .type = FIELD_##type_, \
		.style = FIELD_##style_, .title = title_ \
	}

#define FIELDS(fields) fields, sizeof(fields) / sizeof((fields)[0])

/* @exact: bytes as plain numbers. */
void field_columns(struct table *table, const struct field *fields, size_t n_fields);
void field_cells(struct table *table, const struct field *fields, size_t n_fields, const void *row,
                 bool exact);
/* A new object, the caller's. NULL: no memory. */
json_t *field_object(const struct field *fields, size_t n_fields, const void *row);

/* A new list of the objects of @n rows, each of @row_bytes, the caller's. */
json_t *field_list(const struct field *fields, size_t n_fields, const void *rows, size_t n,
                   size_t row_bytes);

/* The text of one number of bytes, as cells have it. */
void field_bytes(uint64_t bytes, bool exact, char *text_out, size_t text_bytes);

/* A JSON string of @text; what is not UTF-8 is escaped, since JSON cannot hold it. */
json_t *field_string(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that are gathered first, and shown when all are known: in tables, or in lists of a JSON document.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; rows_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_ROWS_H
#define GLAKE_CTL_ROWS_H

#include <jansson.h>
#include <stddef.h>

#include "ctl/ctl.h"
#include "ctl/field.h"

struct rows {
	char *list; /* owned */
	size_t n;
	size_t n_room;
	size_t row_bytes;
};

void rows_deinit(struct rows *rows);

/* A zeroed row more, which stays where it is until the next is added; NULL: no memory. All are of @row_bytes. */
void *rows_add(struct rows *rows, size_t row_bytes);
/* Add a copy of @row. Returns 0 or -ENOMEM. */
int rows_append(struct rows *rows, const void *row, size_t row_bytes);
void *rows_at(const struct rows *rows, size_t i);

void rows_sort(struct rows *rows, int (*compare)(const void *, const void *));
/* A row that equals the row @key, of rows in this order; NULL: none. */
void *rows_find(const struct rows *rows, const void *key,
                int (*compare)(const void *, const void *));

/* A new list, the caller's. */
json_t *rows_json(const struct rows *rows, const struct field *fields, size_t n_fields);

/* Print a table, with the rows of @more, which may be NULL, behind those of @rows. Returns 0 or CTL_E_OUTPUT. */
int rows_show(const struct ctl *ctl, const struct rows *rows, const struct rows *more,
              const struct field *fields, size_t n_fields);
/* Show rows as rows_show() does, behind an empty line, if there are any. */
int rows_show_next(const struct ctl *ctl, const struct rows *rows, const struct field *fields,
                   size_t n_fields);

#endif

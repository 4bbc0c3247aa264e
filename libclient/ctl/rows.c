/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void rows_deinit(struct rows *rows)
{
	free(rows->list);
	*rows = (struct rows){0};
}

void *rows_at(const struct rows *rows, size_t i)
{
	return rows->list + i * rows->row_bytes;
}

void *rows_add(struct rows *rows, size_t row_bytes)
{
	if (rows->n == rows->n_room) {
		size_t n_room = rows->n_room > 0 ? rows->n_room * 2 : 8;
		char *list = reallocarray(rows->list, n_room, row_bytes);
		if (!list) {
			return NULL;
		}
		rows->list = list;
		rows->n_room = n_room;
		rows->row_bytes = row_bytes;
	}
	return memset(rows->list + rows->n++ * row_bytes, 0, row_bytes);
}

int rows_append(struct rows *rows, const void *row, size_t row_bytes)
{
	void *copy = rows_add(rows, row_bytes);
	if (!copy) {
		return -ENOMEM;
	}
	memcpy(copy, row, row_bytes);
	return 0;
}

void rows_sort(struct rows *rows, int (*compare)(const void *, const void *))
{
	if (rows->n > 1) {
		qsort(rows->list, rows->n, rows->row_bytes, compare);
	}
}

void *rows_find(const struct rows *rows, const void *key,
                int (*compare)(const void *, const void *))
{
	return rows->n > 0 ? bsearch(key, rows->list, rows->n, rows->row_bytes, compare) : NULL;
}

json_t *rows_json(const struct rows *rows, const struct field *fields, size_t n_fields)
{
	return field_list(fields, n_fields, rows->list, rows->n, rows->row_bytes);
}

static void fill(const struct ctl *ctl, struct table *table, const struct rows *rows,
                 const struct field *fields, size_t n_fields)
{
	for (size_t i = 0; rows && i < rows->n; i++) {
		field_cells(table, fields, n_fields, rows_at(rows, i), ctl->exact);
	}
}

int rows_show(const struct ctl *ctl, const struct rows *rows, const struct rows *more,
              const struct field *fields, size_t n_fields)
{
	struct table table;
	table_init(&table);
	field_columns(&table, fields, n_fields);
	fill(ctl, &table, rows, fields, n_fields);
	fill(ctl, &table, more, fields, n_fields);
	int err = table_print(&table, ctl->out) < 0 ? CTL_E_OUTPUT : 0;
	table_deinit(&table);
	return err;
}

int rows_show_next(const struct ctl *ctl, const struct rows *rows, const struct field *fields,
                   size_t n_fields)
{
	if (rows->n == 0) {
		return 0;
	}
	fputc('\n', ctl->out);
	return rows_show(ctl, rows, NULL, fields, n_fields);
}

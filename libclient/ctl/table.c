/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/screen.h"
#include "ctl/text.h"

void table_init(struct table *table)
{
	*table = (struct table){0};
}

void table_deinit(struct table *table)
{
	for (size_t i = 0; i < table->n_cells; i++) {
		free(table->cells[i]);
	}
	free(table->cells);
	free(table->right);
	table_init(table);
}

void table_cell(struct table *table, const char *text)
{
	if (table->n_cells == table->n_room) {
		size_t n_room = table->n_room ? table->n_room * 2 : 64;
		char **cells = reallocarray(table->cells, n_room, sizeof(*cells));
		if (!cells) {
			table->is_lost = true;
			return;
		}
		table->cells = cells;
		table->n_room = n_room;
	}
	char *copy = strdup(text);
	if (!copy) {
		table->is_lost = true;
		return;
	}
	table->cells[table->n_cells++] = copy;
}

void table_column(struct table *table, const char *title, bool right)
{
	bool *grown = reallocarray(table->right, table->n_columns + 1, sizeof(*grown));
	if (!grown) {
		table->is_lost = true;
		return;
	}
	table->right = grown;
	table->right[table->n_columns++] = right;
	table_cell(table, title);
}

static void measure(const struct table *table, size_t *widths)
{
	for (size_t i = 0; i < table->n_cells; i++) {
		size_t width = text_width(table->cells[i]);
		size_t *column = &widths[i % table->n_columns];
		*column = width > *column ? width : *column;
	}
}

static void print_cell(const char *text, size_t width, bool right, bool is_last, FILE *out)
{
	int padding = (int)(width - text_width(text));
	if (right) {
		fprintf(out, "%*s%s", padding, "", text);
	} else {
		/* No blanks at the end of a line. */
		fprintf(out, "%s%*s", text, is_last ? 0 : padding, "");
	}
	fputs(is_last ? "\n" : "  ", out);
}

/* Where the columns end that fit into @width behind the first, from @begin on; one at least. */
static size_t fitting(const struct table *table, const size_t *widths, size_t begin, size_t width)
{
	size_t used = widths[0];
	size_t i = begin;
	while (i < table->n_columns && (i == begin || used + 2 + widths[i] <= width)) {
		used += 2 + widths[i++];
	}
	/* A text at the end of the line may go on in the next. */
	bool is_text = i + 1 == table->n_columns && !table->right[i];
	return is_text && used + 2 + text_width(table->cells[i]) <= width ? i + 1 : i;
}

static void print_columns(const struct table *table, const size_t *widths, size_t begin, size_t end,
                          FILE *out)
{
	for (size_t row = 0; row < table->n_cells; row += table->n_columns) {
		print_cell(table->cells[row], widths[0], table->right[0], begin == end, out);
		for (size_t i = begin; i < end; i++) {
			print_cell(table->cells[row + i], widths[i], table->right[i], i + 1 == end,
			           out);
		}
	}
}

int table_print_width(struct table *table, FILE *out, size_t width)
{
	while (!table->is_lost && table->n_columns && table->n_cells % table->n_columns) {
		table_cell(table, "");
	}
	size_t *widths = calloc(table->n_columns + 1, sizeof(*widths));
	if (!widths || table->is_lost) {
		free(widths);
		return -ENOMEM;
	}
	measure(table, widths);
	size_t begin = 1;
	while (table->n_columns > 0) {
		size_t end = width > 0 ? fitting(table, widths, begin, width) : table->n_columns;
		print_columns(table, widths, begin, end, out);
		if (end >= table->n_columns) {
			break;
		}
		fputc('\n', out);
		begin = end;
	}
	free(widths);
	return 0;
}

int table_print(struct table *table, FILE *out)
{
	return table_print_width(table, out, screen_width(out));
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/table.h"

#include <errno.h>
#include <libsmartcols/libsmartcols.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

size_t *table_widths(const struct table *table)
{
	size_t *widths = table->is_lost ? NULL : calloc(table->n_columns + 1, sizeof(*widths));
	for (size_t i = 0; widths && i < table->n_cells; i++) {
		size_t width = text_width(table->cells[i]);
		size_t *column = &widths[i % table->n_columns];
		*column = width > *column ? width : *column;
	}
	return widths;
}

/* The end of the columns from @begin on that fit into @width behind the first; one at least. */
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

/* A column of the library's table, and whether there was memory for it. */
static bool add_column(struct libscols_table *part, bool right)
{
	return scols_table_new_column(part, NULL, 0, right ? SCOLS_FL_RIGHT : 0) != NULL;
}

static bool set_cell(struct libscols_line *line, size_t column, const char *text)
{
	return scols_line_set_data(line, column, text) == 0;
}

/* The titles are a line like others, since a table without lines is not printed at all. */
static bool fill_part(const struct table *table, struct libscols_table *part, size_t begin,
                      size_t end)
{
	bool is_filled = add_column(part, table->right[0]);
	for (size_t i = begin; i < end; i++) {
		is_filled = is_filled && add_column(part, table->right[i]);
	}
	for (size_t row = 0; is_filled && row < table->n_cells; row += table->n_columns) {
		struct libscols_line *line = scols_table_new_line(part, NULL);
		is_filled = line && set_cell(line, 0, table->cells[row]);
		for (size_t i = begin; is_filled && i < end; i++) {
			is_filled = set_cell(line, 1 + i - begin, table->cells[row + i]);
		}
	}
	return is_filled;
}

/* The first column, and those from @begin up to @end. Returns 0 or -ENOMEM. */
static int print_part(const struct table *table, size_t begin, size_t end, FILE *out)
{
	struct libscols_table *part = scols_new_table();
	bool is_printed = part && scols_table_set_column_separator(part, "  ") == 0 &&
	                  scols_table_enable_noheadings(part, 1) == 0 &&
	                  /* Cells are safe already: what looks like an escape is one of ours. */
	                  scols_table_enable_noencoding(part, 1) == 0 &&
	                  /* We have chosen columns that fit. */
	                  scols_table_set_termforce(part, SCOLS_TERMFORCE_NEVER) == 0 &&
	                  scols_table_set_stream(part, out) == 0 &&
	                  fill_part(table, part, begin, end) && scols_print_table(part) == 0;
	scols_unref_table(part);
	return is_printed ? 0 : -ENOMEM;
}

int table_print_width(struct table *table, FILE *out, size_t width)
{
	while (!table->is_lost && table->n_columns && table->n_cells % table->n_columns) {
		table_cell(table, "");
	}
	size_t *widths = table_widths(table);
	if (!widths) {
		return -ENOMEM;
	}
	size_t begin = 1;
	int r = 0;
	while (r == 0 && table->n_columns > 0) {
		size_t end = width > 0 ? fitting(table, widths, begin, width) : table->n_columns;
		r = print_part(table, begin, end, out);
		if (end >= table->n_columns) {
			break;
		}
		fputc('\n', out);
		begin = end;
	}
	free(widths);
	return r;
}

unsigned table_room(FILE *out)
{
	struct winsize size;
	int fd = fileno(out);
	return fd >= 0 && isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int table_print(struct table *table, FILE *out)
{
	return table_print_width(table, out, table_room(out));
}

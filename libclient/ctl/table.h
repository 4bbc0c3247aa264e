/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of text: cells are added row by row, then it is printed with aligned columns.
 *
 * Owner: the caller of table_init(); the table copies every cell.
 * Lifetime: to table_deinit(). A cell for which there is no memory is noted and makes
 *           table_print() fail, so that filling a table needs no checks.
 * Threads: one.
 */
#ifndef GLAKE_CTL_TABLE_H
#define GLAKE_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct table {
	size_t n_columns;
	size_t n_cells; /* the row of titles included */
	size_t n_room;
	char **cells; /* owned, each */
	bool *right;  /* owned: per column, aligned to the right */
	bool is_lost; /* a cell could not be stored */
};

void table_init(struct table *table);
void table_deinit(struct table *table);

/* All columns come before the first cell. */
void table_column(struct table *table, const char *title, bool right);
/* @text comes as it is: names of foreign origin go through text_escape() first. */
void table_cell(struct table *table, const char *text);

/* The width of each column, the caller's. NULL: no memory, now or for a cell. */
size_t *table_widths(const struct table *table);

/* Columns of the terminal that @out is; 0: it is none. */
unsigned table_room(FILE *out);
/*
 * Returns 0 or -ENOMEM. Unfinished rows are filled up. If @out is a terminal on which the columns do not fit side by
 * side, they come in several tables that begin with the first column. A last column of text may run over.
 */
int table_print(struct table *table, FILE *out);
/* table_print() for @width columns; 0: for any number. */
int table_print_width(struct table *table, FILE *out, size_t width);

#endif

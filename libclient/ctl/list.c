/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists: the rows of one of glake_admin.h's lists become one table or one JSON document.
 */
#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/table.h"

struct ctl_list {
	const struct ctl *ctl;
	const struct field *fields;
	size_t n_fields;
	struct table table;
	json_t *rows; /* owned until printed; NULL without --json */
};

int ctl_print_json(struct ctl *ctl, json_t *document)
{
	if (!document) {
		return CTL_E_OUTPUT;
	}
	int err = json_dumpf(document, ctl->out,
	                     JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
	json_decref(document);
	return err < 0 || fputc('\n', ctl->out) == EOF ? CTL_E_OUTPUT : 0;
}

int ctl_list_add_object(struct ctl_list *list, json_t *object)
{
	return json_array_append_new(list->rows, object) < 0 ? CTL_E_OUTPUT : 0;
}

int ctl_list_add(void *user, const void *row)
{
	struct ctl_list *list = user;
	if (list->rows) {
		json_t *object = field_object(list->fields, list->n_fields, row);
		return json_array_append_new(list->rows, object) < 0 ? CTL_E_OUTPUT : 0;
	}
	field_cells(&list->table, list->fields, list->n_fields, row, list->ctl->exact);
	return 0;
}

int ctl_list_add_more(void *user, const void *row, const char *key, json_t *more)
{
	struct ctl_list *list = user;
	int err = ctl_list_add(list, row);
	if (err || !list->rows) {
		json_decref(more);
		return err;
	}
	json_t *object = json_array_get(list->rows, json_array_size(list->rows) - 1);
	return json_object_set_new(object, key, more) < 0 ? CTL_E_OUTPUT : 0;
}

static int print(struct ctl *ctl, const char *key, struct ctl_list *list)
{
	if (!ctl->json) {
		return table_print(&list->table, ctl->out) < 0 ? CTL_E_OUTPUT : 0;
	}
	json_t *rows = list->rows;
	list->rows = NULL;
	return ctl_print_json(ctl, json_pack("{s:o}", key, rows));
}

int ctl_print_list(struct ctl *ctl, const char *key, const struct field *fields, size_t n_fields,
                   int (*fill)(struct ctl *ctl, struct ctl_list *list))
{
	struct ctl_list list = {.ctl = ctl, .fields = fields, .n_fields = n_fields};
	table_init(&list.table);
	field_columns(&list.table, fields, n_fields);
	list.rows = ctl->json ? json_array() : NULL;
	int err = ctl->json && !list.rows ? CTL_E_OUTPUT : fill(ctl, &list);
	if (err == 0) {
		err = print(ctl, key, &list);
	}
	json_decref(list.rows);
	table_deinit(&list.table);
	return err;
}

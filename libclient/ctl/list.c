/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists: the rows of one of glake_admin.h's lists become one table or one JSON document.
 */
#include "ctl/ctl.h"
#include "ctl/field.h"

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
		return ctl_list_add_object(list, field_object(list->fields, list->n_fields, row));
	}
	field_cells(&list->table, list->fields, list->n_fields, row, list->ctl->exact);
	return 0;
}

void ctl_list_begin(struct ctl_list *list, struct ctl *ctl, const struct field *fields,
                    size_t n_fields)
{
	*list = (struct ctl_list){.ctl = ctl, .fields = fields, .n_fields = n_fields};
	table_init(&list->table);
	field_columns(&list->table, fields, n_fields);
	list->rows = ctl->json ? json_array() : NULL;
}

int ctl_list_end(struct ctl_list *list, const char *key, int err)
{
	struct ctl *ctl = list->ctl;
	if (err == 0 && ctl->json) {
		err = ctl_print_json(ctl, json_pack("{s:O}", key, list->rows));
	} else if (err == 0) {
		err = table_print(&list->table, ctl->out) < 0 ? CTL_E_OUTPUT : 0;
	}
	json_decref(list->rows);
	table_deinit(&list->table);
	return err;
}

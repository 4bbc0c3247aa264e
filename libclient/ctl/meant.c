/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/meant.h"

#include <string.h>

#include "glake_admin.h"

int meant_add(struct meant *meant, const struct glake_session_row *row)
{
	const struct meant_session found = {.session = row->session, .pid = row->pid};
	return rows_append(&meant->found, &found, sizeof(found));
}

int meant_find(void *user, const struct glake_session_row *row)
{
	struct meant *meant = user;
	bool is_meant = meant->tenant ? strcmp(row->tenant, meant->tenant) == 0
	                              : row->session == meant->number || row->pid == meant->number;
	return is_meant ? meant_add(meant, row) : 0;
}

void meant_deinit(struct meant *meant)
{
	rows_deinit(&meant->found);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sessions that an operand means: a number is a pid or a session, as ids of sessions are far above any pid; or those of a
 * tenant.
 *
 * Owner: whoever has the struct; begins with one of the first two set. Threads: one.
 */
#ifndef GLAKE_CTL_MEANT_H
#define GLAKE_CTL_MEANT_H

#include <stdint.h>

#include "ctl/rows.h"

struct meant_session {
	uint64_t session;
	uint32_t pid;
};

struct meant {
	const char *tenant; /* borrowed; NULL: the number */
	uint64_t number;
	struct rows found; /* struct meant_session */
};

/* Returns 0 or -ENOMEM. */
int meant_add(struct meant *meant, const struct glake_session_row *row);
/* A callback of glake_list_sessions(): add the row if @meant, a struct meant, means it. */
int meant_find(void *meant, const struct glake_session_row *row);
void meant_deinit(struct meant *meant);

#endif

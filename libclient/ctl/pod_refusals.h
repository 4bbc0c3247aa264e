/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often programs of each pod were refused memory: the events of glaked, added up while somebody follows them. A program that is
 * refused ends a moment later, so its session cannot say it.
 *
 * Rows are of pod, container and tenant; of POD_REFUSALS_MAX of them the one goes that was refused longest ago.
 *
 * Owner: a looker's thread. Lifetime: {0} is empty; pod_refusals_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_POD_REFUSALS_H
#define GLAKE_CTL_POD_REFUSALS_H

#include "ctl/ctl.h"
#include "ctl/rows.h"

#define POD_REFUSALS_MAX 1000u

struct pod_refusal {
	char pod_uid[64];
	char container_id[80];
	char tenant[80];
	uint64_t n;
	uint64_t last; /* number of the event that was last added, over all */
};

struct pod_refusals {
	struct rows rows;
	uint64_t glaked;   /* pid of the one that the next is of; 0: none was followed yet */
	uint64_t after;    /* id of the last event */
	uint64_t n_events; /* added */
};

/*
 * Add what is new in the events of the glaked with this pid, to which @ctl is connected. Of the first one, what was before is not
 * counted: an earlier run of this process has. Returns 0 or a code of glake.h.
 */
int pod_refusals_follow(struct pod_refusals *refusals, struct ctl *ctl, uint64_t pid);
void pod_refusals_deinit(struct pod_refusals *refusals);

#endif

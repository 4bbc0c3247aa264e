/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The changes that a reload of the configuration makes, for the operator: a line of the log for each key, with its value before
 * and after, and one event for all.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_CHANGES_H
#define GLAKE_DAEMON_CHANGES_H

#include "daemon/base/events.h"
#include "daemon/config/config.h"
#include "daemon/memory/tenant.h"

/* Also that nothing has changed. */
void changes_say(struct events *events, const struct config *before, const struct config *after);

/* Before the tenants get the limits of the next configuration: whose are not those of @before. */
void changes_say_reset(struct tenant_table *table, uint32_t n_locations,
                       const struct config *before);

#endif

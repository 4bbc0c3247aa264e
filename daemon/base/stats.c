/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/stats.h"

void stats_for_each(const struct stats *stats, stats_fn fn, void *user)
{
#define STATS_CALL(name, help) fn(user, #name, stats->name, help);
	STATS_LIST(STATS_CALL)
#undef STATS_CALL
}

void stats_for_each_time(const struct stats *stats, stats_time_fn fn, void *user)
{
#define STATS_CALL(name, help) fn(user, #name, &stats->name##_time, help);
	STATS_TIMES(STATS_CALL)
#undef STATS_CALL
}

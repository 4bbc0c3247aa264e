/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log_limits.h"

struct log_limit *log_limits_of(struct log_limits *limits, uint64_t key)
{
	unsigned oldest = 0;
	unsigned i = 0;
	while (i < LOG_LIMITS_KEPT && !(limits->list[i].used && limits->list[i].key == key)) {
		oldest = limits->list[i].used < limits->list[oldest].used ? i : oldest;
		i++;
	}
	if (i == LOG_LIMITS_KEPT) {
		i = oldest;
		limits->list[i].limit = (struct log_limit){0};
		limits->list[i].key = key;
	}
	limits->list[i].used = ++limits->n;
	return &limits->list[i].limit;
}

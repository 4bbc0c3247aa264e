/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/histogram.h"

#define US 1000ull
#define MS (1000 * US)
#define S (1000 * MS)

const uint64_t histogram_bounds_ns[HISTOGRAM_N_BOUNDS] = {
	10 * US,  30 * US,  100 * US, 300 * US, MS,     3 * MS, 10 * MS, 30 * MS,
	100 * MS, 300 * MS, S,        3 * S,    10 * S, 30 * S, 100 * S, 300 * S,
};

void histogram_add(struct histogram *histogram, uint64_t ns)
{
	unsigned i = 0;
	while (i < HISTOGRAM_N_BOUNDS && ns > histogram_bounds_ns[i]) {
		i++;
	}
	histogram->counts[i]++;
	histogram->sum_ns += ns;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <string.h>

#include "glake_shim.h"
#include "shim/shim.h"

static _Atomic int64_t counts[SHIM_N_COUNTS];

static const char *const names[] = {
#define COUNT(name) #name,
#include "shim/counts.def"
};

void shim_count_add(enum shim_count count, int64_t n)
{
	atomic_fetch_add_explicit(&counts[count], n, memory_order_relaxed);
}

void shim_count(enum shim_count count)
{
	shim_count_add(count, 1);
}

uint64_t shim_count_of(enum shim_count count)
{
	return (uint64_t)atomic_load_explicit(&counts[count], memory_order_relaxed);
}

__attribute__((visibility("default"))) uint64_t glake_shim_count(const char *name)
{
	for (size_t i = 0; i < SHIM_N_COUNTS; i++) {
		if (strcmp(names[i], name) == 0) {
			return shim_count_of((enum shim_count)i);
		}
	}
	return 0;
}

__attribute__((visibility("default"))) const char *glake_shim_pin(uint64_t address)
{
	return glake__pin_text(glake__pin_at(address));
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/layout.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "proto/cleanup.h"

static int by_value(const void *a, const void *b)
{
	const uint64_t left = *(const uint64_t *)a;
	const uint64_t right = *(const uint64_t *)b;
	return left < right ? -1 : left > right;
}

/* Each once, and the smallest of them. */
static void tidy(struct layout *layout)
{
	size_t n = 0;
	qsort(layout->prints, layout->n, sizeof(layout->prints[0]), by_value);
	for (size_t i = 0; i < layout->n; i++) {
		if (i == 0 || layout->prints[i] != layout->prints[i - 1]) {
			layout->prints[n++] = layout->prints[i];
		}
	}
	layout->n = n;
	if (n > GLAKE_MAX_PRINTS) {
		layout->below = layout->prints[GLAKE_MAX_PRINTS];
		layout->n = GLAKE_MAX_PRINTS;
	}
}

static void add_print(struct layout *layout, uint64_t print)
{
	if (layout->below && print >= layout->below) {
		return;
	}
	if (layout->n == n_elements(layout->prints)) {
		tidy(layout);
	}
	layout->prints[layout->n++] = print;
}

static bool is_constant(const uint8_t *window)
{
	return memcmp(window, window + 8, LAYOUT_WINDOW_BYTES - 8) == 0;
}

void layout_add(struct layout *layout, const uint8_t *bytes, size_t n_bytes, size_t n_there)
{
	for (size_t at = 0; at < n_bytes && at + LAYOUT_WINDOW_BYTES <= n_there;
	     at += LAYOUT_STEP) {
		if (is_constant(bytes + at)) {
			continue;
		}
		layout->varied_bytes += LAYOUT_STEP;
		if (XXH3_64bits(bytes + at, LAYOUT_WINDOW_BYTES) % LAYOUT_RATE == 0 &&
		    at + LAYOUT_PRINT_BYTES <= n_there) {
			add_print(layout, XXH3_64bits(bytes + at, LAYOUT_PRINT_BYTES));
		}
	}
}

void layout_finish(struct layout *layout)
{
	tidy(layout);
}

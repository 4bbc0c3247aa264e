/* SPDX-License-Identifier: Apache-2.0 */
/* The counters: one list makes struct, names and help, and docs/monitoring.md has them all. */
#include "daemon/base/stats.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/check_glake.h"

#define MAX_COUNTERS 256u

struct seen {
	const char *names[MAX_COUNTERS];
	uint64_t values[MAX_COUNTERS];
	size_t n;
};

static void note(void *user, const char *name, uint64_t value, const char *help)
{
	struct seen *seen = user;
	ck_assert(seen->n < MAX_COUNTERS);
	ck_assert(strlen(name) > 0);
	ck_assert(strlen(help) > 0);
	for (size_t i = 0; i < seen->n; i++) {
		ck_assert_str_ne(seen->names[i], name);
	}
	seen->names[seen->n] = name;
	seen->values[seen->n++] = value;
}

START_TEST(every_field_is_seen_once)
{
	struct stats stats;
	struct seen seen = {0};
	uint64_t *fields = (uint64_t *)&stats;
	/* The histograms come behind them. */
	size_t n_fields = offsetof(struct stats, request_time) / sizeof(fields[0]);
	for (size_t i = 0; i < n_fields; i++) {
		fields[i] = 1000 + i;
	}
	stats_for_each(&stats, note, &seen);
	ck_assert_uint_eq(seen.n, n_fields);
	for (size_t i = 0; i < seen.n; i++) {
		ck_assert_uint_eq(seen.values[i], 1000 + i);
	}
}
END_TEST

START_TEST(name_is_the_fields)
{
	struct stats stats = {.models_failed = 7};
	struct seen seen = {0};
	stats_for_each(&stats, note, &seen);
	for (size_t i = 0; i < seen.n; i++) {
		ck_assert_uint_eq(seen.values[i], strcmp(seen.names[i], "models_failed") ? 0 : 7);
	}
}
END_TEST

static void find_in_docs(void *user, const char *name, uint64_t value, const char *help)
{
	char row[512];
	snprintf(row, sizeof(row), "| `%s` | %s |", name, help);
	ck_assert_msg(strstr(user, row), "docs/monitoring.md lacks the row\n%s", row);
}

static void find_time_in_docs(void *user, const char *name, const struct histogram *histogram,
                              const char *help)
{
	find_in_docs(user, name, 0, help);
	ck_assert_uint_eq(histogram->sum_ns, 0);
}

START_TEST(a_duration_counts_in_one_bucket)
{
	struct histogram histogram = {.sum_ns = 0};
	for (unsigned i = 0; i < HISTOGRAM_N_BOUNDS; i++) {
		histogram_add(&histogram, histogram_bounds_ns[i]);
		ck_assert_uint_eq(histogram.counts[i], i > 0 ? 2 : 1);
		histogram_add(&histogram, histogram_bounds_ns[i] + 1);
		ck_assert_uint_eq(histogram.counts[i + 1], 1);
		ck_assert(i == 0 || histogram_bounds_ns[i] > histogram_bounds_ns[i - 1]);
	}
	struct histogram two = {.sum_ns = 0};
	histogram_add(&two, 0);
	histogram_add(&two, 7);
	ck_assert_uint_eq(two.counts[0], 2);
	ck_assert_uint_eq(two.sum_ns, 7);
}
END_TEST

START_TEST(docs_have_every_counter)
{
	static char docs[256 * 1024];
	FILE *file = fopen("docs/monitoring.md", "r");
	ck_assert_msg(file, "run from the top of the tree");
	size_t n_bytes = fread(docs, 1, sizeof(docs) - 1, file);
	fclose(file);
	ck_assert_uint_lt(n_bytes, sizeof(docs) - 1);
	struct stats stats = {0};
	stats_for_each(&stats, find_in_docs, docs);
	stats_for_each_time(&stats, find_time_in_docs, docs);
}
END_TEST

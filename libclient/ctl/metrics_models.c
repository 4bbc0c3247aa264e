/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/metrics_models.h"

#include <string.h>

#include "ctl/exposition.h"

/* At most this many models have samples of their own: a monitoring system keeps every series that there ever was, and programs name models. */
#define MAX_SHOWN 200u

enum { SPAN, PART, UNIQUE, COPIED, N_KINDS };

static const char *const kinds[N_KINDS] = {"span", "part", "unique", "copied"};

/* A longer name is shown by its beginning; models of which that is the same are one. */
#define MAX_NAME_BYTES 200u

struct model_sum {
	char name[MAX_NAME_BYTES + 1]; /* "": of the others */
	const struct glake_device_status *device;
	uint64_t bytes[N_KINDS];
	uint64_t n_open;
	uint64_t n_pinned;
};

static int by_name(const void *a, const void *b)
{
	const struct model_sum *left = a;
	const struct model_sum *right = b;
	int order = strcmp(left->name, right->name);
	return order != 0                                   ? order
	       : left->device->index > right->device->index ? 1
	       : left->device->index < right->device->index ? -1
	                                                    : 0;
}

static int by_span(const void *a, const void *b)
{
	const struct model_sum *left = a;
	const struct model_sum *right = b;
	return left->bytes[SPAN] < right->bytes[SPAN]   ? 1
	       : left->bytes[SPAN] > right->bytes[SPAN] ? -1
	                                                : by_name(a, b);
}

static void add(struct model_sum *to, const struct model_sum *from)
{
	for (size_t i = 0; i < N_KINDS; i++) {
		to->bytes[i] += from->bytes[i];
	}
	to->n_open += from->n_open;
	to->n_pinned += from->n_pinned;
}

/* Returns whether there was memory. */
static bool gather(const struct snapshot *snapshot, struct rows *sums)
{
	for (size_t i = 0; i < snapshot->models.n; i++) {
		const struct glake_model_row *model = rows_at(&snapshot->models, i);
		const struct glake_device_status *device = snapshot_device(snapshot, model->device);
		if (!device) {
			continue;
		}
		struct model_sum sum = {
			.device = device,
			.bytes = {model->span_bytes, model->part_bytes, model->unique_bytes,
		                  model->copied_bytes},
			.n_open = model->n_open,
			.n_pinned = model->pinned != 0,
		};
		strncpy(sum.name, model->name, MAX_NAME_BYTES);
		if (rows_append(sums, &sum, sizeof(sum)) < 0) {
			return false;
		}
	}
	return true;
}

/* Rows that are of one name and device become one. */
static void merge(struct rows *sums)
{
	size_t n = 0;
	rows_sort(sums, by_name);
	for (size_t i = 0; i < sums->n; i++) {
		struct model_sum *sum = rows_at(sums, i);
		struct model_sum *last = n > 0 ? rows_at(sums, n - 1) : NULL;
		if (last && by_name(last, sum) == 0) {
			add(last, sum);
		} else {
			memmove(rows_at(sums, n++), sum, sums->row_bytes);
		}
	}
	sums->n = n;
}

/* The models without samples of their own become one row for each device. */
static bool cut(const struct snapshot *snapshot, struct rows *sums)
{
	size_t n_all = sums->n;
	if (n_all <= MAX_SHOWN) {
		return true;
	}
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *device = rows_at(&snapshot->devices, i);
		struct model_sum rest = {.device = device};
		for (size_t j = MAX_SHOWN; j < n_all; j++) {
			const struct model_sum *sum = rows_at(sums, j);
			if (sum->device == device) {
				add(&rest, sum);
			}
		}
		if (rows_append(sums, &rest, sizeof(rest)) < 0) {
			return false;
		}
	}
	memmove(rows_at(sums, MAX_SHOWN), rows_at(sums, n_all),
	        (sums->n - n_all) * sums->row_bytes);
	sums->n -= n_all - MAX_SHOWN;
	return true;
}

static void open_sample(FILE *out, const char *name, const struct model_sum *sum)
{
	exposition_gpu(out, name, sum->device);
	if (*sum->name) {
		exposition_label(out, "model", sum->name);
	}
}

static void write_sums(const struct rows *sums, FILE *out)
{
	exposition_begin(
		out, "glake_model_bytes", "gauge",
		"Blocks of a model; its part of them, which adds up over models; those that "
		"only it has; those that host memory has a copy of");
	for (size_t i = 0; i < sums->n; i++) {
		const struct model_sum *sum = rows_at(sums, i);
		for (size_t kind = 0; kind < N_KINDS; kind++) {
			open_sample(out, "glake_model_bytes", sum);
			exposition_label(out, "kind", kinds[kind]);
			exposition_value(out, sum->bytes[kind]);
		}
	}
	exposition_begin(out, "glake_model_open", "gauge", "Sessions that have the model open");
	for (size_t i = 0; i < sums->n; i++) {
		const struct model_sum *sum = rows_at(sums, i);
		open_sample(out, "glake_model_open", sum);
		exposition_value(out, sum->n_open);
	}
	exposition_begin(out, "glake_model_pinned", "gauge", "Models of this name that are pinned");
	for (size_t i = 0; i < sums->n; i++) {
		const struct model_sum *sum = rows_at(sums, i);
		open_sample(out, "glake_model_pinned", sum);
		exposition_value(out, sum->n_pinned);
	}
}

void metrics_write_models(const struct snapshot *snapshot, FILE *out)
{
	struct rows sums = {.n = 0};
	if (gather(snapshot, &sums)) {
		merge(&sums);
		rows_sort(&sums, by_span);
		if (cut(snapshot, &sums)) {
			write_sums(&sums, out);
		}
	}
	rows_deinit(&sums);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The client library's data structures: no daemon, no driver. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/glake.h"
#include "libclient/space/ptr_table.h"
#include "libclient/heap/slab.h"
#include "libclient/link/error.h"
#include "libclient/link/sized.h"
#include "libclient/model/tensor_table.h"
#include "libclient/heap/warm.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/glake.pb-c.h"
#include "tests/harness/churn.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)

/* ---- addresses -------------------------------------------------------------------------------- */

#define N_KEYS 3000

START_TEST(a_table_keeps_what_a_plain_array_keeps)
{
	static void *model[N_KEYS];
	static char values[N_KEYS];
	struct glake__ptr_table table = {0};
	unsigned seed = 7;
	size_t n_used = 0;
	ck_assert_ptr_null(glake__ptr_table_get(&table, 2 * MIB));
	ck_assert_ptr_null(glake__ptr_table_remove(&table, 2 * MIB));
	for (int step = 0; step < 200000 / TEST_ONE_IN; step++) {
		size_t i = (size_t)rand_r(&seed) % N_KEYS;
		uint64_t key = 0x7f0000000000 + (i + 1) * 2 * MIB;
		if (model[i]) {
			ck_assert_ptr_eq(glake__ptr_table_get(&table, key), model[i]);
			ck_assert_ptr_eq(glake__ptr_table_remove(&table, key), model[i]);
			model[i] = NULL;
			n_used--;
		} else {
			ck_assert_ptr_null(glake__ptr_table_get(&table, key));
			model[i] = &values[i];
			ck_assert_int_eq(glake__ptr_table_add(&table, key, model[i]), 0);
			n_used++;
		}
		ck_assert_uint_eq(table.n_used, n_used);
	}
	ck_assert_ptr_null(glake__ptr_table_get(&table, 0));
	glake__ptr_table_deinit(&table);
}
END_TEST

/* ---- warm memory ------------------------------------------------------------------------------ */

static struct glake__backing *give(struct glake__warm *warm, uint64_t n_mib)
{
	struct glake__backing *backing = calloc(1, sizeof(*backing));
	ck_assert_ptr_nonnull(backing);
	backing->n_bytes = n_mib * MIB;
	ck_assert_int_eq(glake__warm_give(warm, backing), 0);
	return backing;
}

static void free_list(struct glake__backing *list)
{
	while (list) {
		struct glake__backing *next = list->next;
		glake__backing_free(list);
		list = next;
	}
}

START_TEST(the_exact_size_is_taken_first)
{
	struct glake__warm warm = {0};
	struct glake__backing *large = give(&warm, 34);
	struct glake__backing *exact = give(&warm, 32);
	struct glake__backing *newer = give(&warm, 32);
	ck_assert_uint_eq(warm.n_bytes, 98 * MIB);
	ck_assert_ptr_eq(glake__warm_take(&warm, 32 * MIB), newer);
	ck_assert_ptr_eq(glake__warm_take(&warm, 32 * MIB), exact);
	ck_assert_ptr_eq(glake__warm_take(&warm, 32 * MIB), large);
	ck_assert_ptr_null(glake__warm_take(&warm, 32 * MIB));
	ck_assert_uint_eq(warm.n_bytes, 0);
	glake__backing_free(large);
	glake__backing_free(exact);
	glake__backing_free(newer);
	glake__warm_deinit(&warm);
}
END_TEST

START_TEST(at_most_an_eighth_is_wasted)
{
	struct glake__warm warm = {0};
	struct glake__backing *backing = give(&warm, 36);
	ck_assert_ptr_null(glake__warm_take(&warm, 30 * MIB));
	ck_assert_ptr_null(glake__warm_take(&warm, 38 * MIB));
	ck_assert_ptr_eq(glake__warm_take(&warm, 32 * MIB), backing);
	glake__backing_free(backing);
	glake__warm_deinit(&warm);
}
END_TEST

START_TEST(the_oldest_goes_first)
{
	struct glake__warm warm = {0};
	give(&warm, 2);
	give(&warm, 8);
	struct glake__backing *newest = give(&warm, 2);
	free_list(glake__warm_evict(&warm, 11 * MIB));
	ck_assert_uint_eq(warm.n_bytes, 10 * MIB);
	free_list(glake__warm_evict(&warm, 2 * MIB));
	ck_assert_uint_eq(warm.n_bytes, 2 * MIB);
	ck_assert_ptr_eq(warm.oldest, newest);
	ck_assert_ptr_eq(warm.newest, newest);
	ck_assert_ptr_null(glake__warm_evict(&warm, 2 * MIB));
	free_list(glake__warm_evict(&warm, 0));
	ck_assert_uint_eq(warm.n_bins, 0);
	ck_assert_ptr_null(warm.oldest);
	ck_assert_ptr_null(warm.newest);
	glake__warm_deinit(&warm);
}
END_TEST

/* Checks what warm.h promises, over the whole structure. */
static void check_warm(const struct glake__warm *warm)
{
	uint64_t n_bytes = 0;
	size_t n_listed = 0;
	size_t n_aged = 0;
	for (size_t i = 0; i < warm->n_bins; i++) {
		ck_assert(i == 0 || warm->bins[i - 1].n_bytes < warm->bins[i].n_bytes);
		ck_assert_ptr_nonnull(warm->bins[i].first);
		const struct glake__backing *previous = NULL;
		for (const struct glake__backing *at = warm->bins[i].first; at; at = at->next) {
			ck_assert_uint_eq(at->n_bytes, warm->bins[i].n_bytes);
			ck_assert_ptr_eq(at->previous, previous);
			previous = at;
			n_bytes += at->n_bytes;
			n_listed++;
		}
	}
	for (const struct glake__backing *at = warm->oldest; at; at = at->newer) {
		ck_assert_ptr_eq(at->newer ? at->newer->older : warm->newest, at);
		n_aged++;
	}
	ck_assert_uint_eq(n_bytes, warm->n_bytes);
	ck_assert_uint_eq(n_listed, n_aged);
}

START_TEST(warm_memory_stays_consistent)
{
	struct glake__warm warm = {0};
	unsigned seed = 11;
	for (int step = 0; step < 5000; step++) {
		uint64_t n_mib = 2 * (1 + (uint64_t)rand_r(&seed) % 60);
		switch (rand_r(&seed) % 5) {
		case 0:
		case 1:
			give(&warm, n_mib);
			break;
		case 2:
		case 3: {
			struct glake__backing *taken = glake__warm_take(&warm, n_mib * MIB);
			if (taken) {
				ck_assert_uint_ge(taken->n_bytes, n_mib * MIB);
				ck_assert_uint_le(taken->n_bytes * 8, n_mib * MIB * 9);
			}
			glake__backing_free(taken);
			break;
		}
		default:
			free_list(glake__warm_evict(&warm, 2000 * MIB));
			ck_assert_uint_le(warm.n_bytes, 2000 * MIB);
		}
		check_warm(&warm);
	}
	free_list(glake__warm_evict(&warm, 0));
	glake__warm_deinit(&warm);
}
END_TEST

/* ---- tensors ---------------------------------------------------------------------------------- */

START_TEST(tensors_are_found_by_name)
{
	struct glake__tensor_table table = {0};
	ck_assert_ptr_null(glake__tensor_table_find(&table, "t1"));
	for (uint64_t i = 0; i < 5000; i++) {
		char name[32];
		uint64_t shape[3] = {i, i + 1, i + 2};
		/* In no order. */
		sprintf(name, "t%llu", (unsigned long long)(i * 2467 % 5000));
		struct glake__tensor tensor = {.name = name, .shape = shape, .n_dims = i % 4 % 3};
		tensor.offset = i * 2467 % 5000;
		ck_assert_int_eq(glake__tensor_table_add(&table, &tensor), 0);
	}
	ck_assert_int_eq(glake__tensor_table_sort(&table), 0);
	for (uint64_t i = 0; i < 5000; i++) {
		char name[32];
		sprintf(name, "t%llu", (unsigned long long)i);
		const struct glake__tensor *found = glake__tensor_table_find(&table, name);
		ck_assert_ptr_nonnull(found);
		ck_assert_str_eq(found->name, name);
		ck_assert_uint_eq(found->offset, i);
		for (uint32_t j = 1; j < found->n_dims; j++) {
			ck_assert_uint_eq(found->shape[j], found->shape[0] + j);
		}
	}
	ck_assert_ptr_null(glake__tensor_table_find(&table, "t5000"));
	struct glake__tensor twin = {.name = "t17"};
	ck_assert_int_eq(glake__tensor_table_add(&table, &twin), 0);
	ck_assert_int_eq(glake__tensor_table_sort(&table), -EEXIST);
	glake__tensor_table_deinit(&table);
}
END_TEST

/* ---- structs with a size ---------------------------------------------------------------------- */

struct version_2 {
	size_t size;
	uint64_t old;
	uint64_t newer;
};

START_TEST(older_and_newer_programs_get_what_both_know)
{
	struct version_2 full = {.old = 1, .newer = 2};
	struct {
		size_t size;
		uint64_t old;
		uint64_t guard;
	} older = {.size = 16, .guard = 77};
	ck_assert_int_eq(glake__sized_out(&older, &full, sizeof(full)), 0);
	ck_assert_uint_eq(older.size, 16);
	ck_assert_uint_eq(older.old, 1);
	ck_assert_uint_eq(older.guard, 77);
	struct {
		size_t size;
		uint64_t fields[3];
	} newer = {.size = sizeof(newer), .fields = {9, 9, 9}};
	ck_assert_int_eq(glake__sized_out(&newer, &full, sizeof(full)), 0);
	ck_assert_uint_eq(newer.size, sizeof(full));
	ck_assert_uint_eq(newer.fields[1], 2);
	ck_assert_uint_eq(newer.fields[2], 0);
	older.size = 0;
	ck_assert_int_eq(glake__sized_out(&older, &full, sizeof(full)), -EINVAL);
	ck_assert_int_eq(glake__sized_out(NULL, &full, sizeof(full)), -EINVAL);
}
END_TEST

START_TEST(unknown_options_are_refused_only_when_set)
{
	struct version_2 full;
	struct {
		size_t size;
		uint64_t fields[3];
	} newer = {.size = sizeof(newer), .fields = {5, 6, 0}};
	ck_assert_int_eq(glake__sized_in(&newer, &full, sizeof(full)), 0);
	ck_assert_uint_eq(full.newer, 6);
	newer.fields[2] = 1;
	ck_assert_int_eq(glake__sized_in(&newer, &full, sizeof(full)), -EINVAL);
	newer.size = 16;
	ck_assert_int_eq(glake__sized_in(&newer, &full, sizeof(full)), 0);
	ck_assert_uint_eq(full.old, 5);
	ck_assert_uint_eq(full.newer, 0);
	ck_assert_int_eq(glake__sized_in(NULL, &full, sizeof(full)), 0);
	ck_assert_uint_eq(full.old, 0);
	newer.size = 1 << 20;
	ck_assert_int_eq(glake__sized_in(&newer, &full, sizeof(full)), -EINVAL);
}
END_TEST

/* ---- words ------------------------------------------------------------------------------------ */

START_TEST(every_code_has_a_text)
{
	for (int code = GLAKE_E_DRAINED; code <= GLAKE_E_GONE; code++) {
		ck_assert_str_ne(glake_strerror(code), "unknown error");
	}
	ck_assert_str_eq(glake_strerror(GLAKE_E_DRAINED - 1), "unknown error");
	ck_assert_str_eq(glake_strerror(-ENOENT), strerror(ENOENT));
	ck_assert_str_eq(glake_strerror(0), "success");
	ck_assert_ptr_nonnull(glake_strerror(-3999));
	ck_assert_str_eq(glake_dtype_name(GLAKE_BF16), "BF16");
	ck_assert_str_eq(glake_dtype_name((enum glake_dtype)999), "?");
	ck_assert_uint_eq(glake_dtype_bits(GLAKE_F4), 4);
}
END_TEST

/* A status without a row in errors.def would be told as an internal error. */
START_TEST(every_status_has_a_code)
{
	const ProtobufCEnumDescriptor *all = &glake__wire__status__descriptor;
	for (unsigned i = 0; i < all->n_values; i++) {
		int value = all->values[i].value;
		int code = glake__code_of_status((uint32_t)value);
		ck_assert_int_eq(code == 0, value == GLAKE__WIRE__STATUS__OK);
		ck_assert_int_eq(code == GLAKE_E_INTERNAL, value == GLAKE__WIRE__STATUS__INTERNAL);
	}
	ck_assert_int_eq(glake__code_of_status(4711), GLAKE_E_INTERNAL);
}
END_TEST

START_TEST(extents_of_tensors)
{
	const uint64_t max = UINT64_MAX;
	const struct {
		uint32_t dtype;
		size_t n_dims;
		uint64_t shape[3];
		const uint64_t *strides;
		uint64_t bytes; /* max: it has none */
	} cases[] = {
		{GLAKE_F32, 0, {0}, NULL, 4},
		{GLAKE_F32, 2, {3, 5}, NULL, 60},
		{GLAKE_F32, 2, {3, 5}, (const uint64_t[]){1, 3}, 60},
		{GLAKE_F32, 2, {3, 5}, (const uint64_t[]){8, 1}, (2 * 8 + 4 + 1) * 4},
		{GLAKE_F32, 2, {3, 5}, (const uint64_t[]){0, 0}, 4},
		{GLAKE_F32, 2, {1, 5}, (const uint64_t[]){max, 1}, 20},
		{GLAKE_F32, 3, {max, max, 0}, (const uint64_t[]){max, max, max}, 0},
		{GLAKE_F32, 3, {0, max, max}, NULL, 0},
		{GLAKE_F4, 1, {3}, NULL, 2},
		{GLAKE_F6_E2M3, 1, {4}, NULL, 3},
		{GLAKE_U8, 1, {max / 8}, NULL, max / 8},
		{GLAKE_U8, 1, {max / 8 + 1}, NULL, max},
		{GLAKE_U8, 2, {1ull << 40, 1ull << 40}, NULL, max},
		{GLAKE_U8, 1, {2}, &max, max},
		{GLAKE_U8, 1, {3}, (const uint64_t[]){1ull << 63}, max},
		{GLAKE_U8, 2, {2, 2}, (const uint64_t[]){1ull << 63, 1ull << 63}, max},
		{0, 1, {1}, NULL, max},
		{99, 1, {0}, NULL, max},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		uint64_t bytes = max;
		bool has_one = dtype_extent(cases[i].dtype, cases[i].shape, cases[i].strides,
		                            cases[i].n_dims, &bytes);
		ck_assert_msg(has_one == (cases[i].bytes != max) &&
		                      (!has_one || bytes == cases[i].bytes),
		              "case %zu: %lu", i, bytes);
	}
}
END_TEST

/* ---- slabs ------------------------------------------------------------------------------------ */

START_TEST(a_slab_is_cut_and_healed)
{
	struct glake__slab_bins bins = {0};
	struct glake__slab *slab = glake__slab_new(&bins, 0x200000);
	ck_assert_ptr_nonnull(slab);
	struct glake__slab_block *a = glake__slab_take(&bins, 1);
	struct glake__slab_block *b = glake__slab_take(&bins, 513);
	struct glake__slab_block *c = glake__slab_take(&bins, 1 << 20);
	ck_assert_uint_eq(glake__slab_block_address(a), 0x200000);
	ck_assert_uint_eq(glake__slab_block_address(b), 0x200200);
	ck_assert_uint_eq(glake__slab_block_address(c), 0x200600);
	ck_assert_ptr_null(glake__slab_take(&bins, 1 << 20));
	ck_assert(glake__slab_is_valid(slab));
	ck_assert_ptr_eq(glake__slab_find(slab, 0x2005ff), b);
	ck_assert_ptr_eq(glake__slab_find(slab, 0x200600), c);
	ck_assert_ptr_eq(glake__slab_find(slab, 0x200600 + (1 << 20) - 1), c);
	glake__slab_give(&bins, b);
	ck_assert(glake__slab_is_valid(slab));
	glake__slab_give(&bins, a);
	ck_assert(glake__slab_is_valid(slab));
	glake__slab_give(&bins, c);
	ck_assert(glake__slab_is_valid(slab));
	ck_assert_uint_eq(slab->n_used, 0);
	/* All of it in one piece again. */
	c = glake__slab_take(&bins, SLAB_BYTES);
	ck_assert_ptr_nonnull(c);
	ck_assert_ptr_eq(glake__slab_find(slab, 0x200000 + SLAB_BYTES - 1), c);
	glake__slab_free(&bins, slab);
	ck_assert_uint_eq(bins.filled, 0);
}
END_TEST

START_TEST(slabs_hold_under_churn)
{
	enum { N_SLABS = 3, N_LIVE = 400 };
	struct glake__slab_bins bins = {0};
	struct glake__slab *slabs[N_SLABS];
	struct glake__slab_block *live[N_LIVE] = {0};
	unsigned seed = 1;
	for (int i = 0; i < N_SLABS; i++) {
		slabs[i] = glake__slab_new(&bins, (uint64_t)(i + 1) * 0x10000000);
	}
	for (int round = 0; round < 20000; round++) {
		struct glake__slab_block **at = &live[churn_pick(&seed, N_LIVE)];
		if (*at) {
			glake__slab_give(&bins, *at);
			*at = NULL;
		} else {
			uint64_t n_bytes = 1 + churn_pick(&seed, 1u << churn_pick(&seed, 20));
			*at = glake__slab_take(&bins, n_bytes);
			ck_assert(!*at || (uint64_t)(*at)->n_units * SLAB_UNIT_BYTES >= n_bytes);
		}
		if (round % 100 == 0) {
			for (int i = 0; i < N_SLABS; i++) {
				ck_assert(glake__slab_is_valid(slabs[i]));
			}
		}
	}
	for (int i = 0; i < N_LIVE; i++) {
		if (live[i]) {
			glake__slab_give(&bins, live[i]);
		}
	}
	for (int i = 0; i < N_SLABS; i++) {
		ck_assert(glake__slab_is_valid(slabs[i]));
		ck_assert_uint_eq(slabs[i]->n_used, 0);
		glake__slab_free(&bins, slabs[i]);
	}
	ck_assert_uint_eq(bins.filled, 0);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors go: the layout's rules, and that files make no difference to it. */
#include <stdio.h>
#include <string.h>

#include "daemon/mover/catalog.h"
#include "daemon/mover/plan.h"
#include "proto/dtype.h"
#include "proto/limits.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)

static struct catalog catalog;
static struct plan plan;
static struct fault fault;
static const char *const files[] = {"a", "b"};

static void add(const char *name, uint32_t file, uint64_t begin, uint64_t bytes)
{
	char *copy = catalog_alloc(&catalog, strlen(name) + 1);
	ck_assert_ptr_nonnull(copy);
	strcpy(copy, name);
	struct tensor tensor = {
		.name = copy, .dtype = DTYPE_U8, .file = file, .begin = begin, .bytes = bytes};
	ck_assert_int_eq(catalog_add(&catalog, &tensor), 0);
}

static void make(void)
{
	ck_assert_int_eq(catalog_finish(&catalog, files, &fault), 0);
	ck_assert_int_eq(plan_make(&plan, &catalog, &fault), 0);
	ck_assert(plan_is_valid(&plan));
}

static void drop(void)
{
	plan_deinit(&plan);
	catalog_deinit(&catalog);
}

END_EACH(drop)

static uint64_t offset_of(const char *name)
{
	const struct tensor *tensor = catalog_find(&catalog, name);
	ck_assert_ptr_nonnull(tensor);
	return plan.offsets[tensor - catalog.tensors];
}

START_TEST(nothing_needs_nothing)
{
	make();
	ck_assert_uint_eq(plan.n_blocks, 0);
	ck_assert_uint_eq(plan.span_bytes, 0);
	drop();
	add("empty", 0, 100, 0);
	make();
	ck_assert_uint_eq(plan.n_blocks, 0);
	ck_assert_uint_eq(offset_of("empty"), 0);
}
END_TEST

START_TEST(large_tensors_have_their_own_blocks)
{
	add("b", 0, 100, 2 * MIB);
	add("a", 0, 100 + 2 * MIB, 3 * MIB + 5);
	make();
	ck_assert_uint_eq(plan.n_blocks, 2);
	ck_assert_uint_eq(plan.blocks[0].content_bytes, 3 * MIB + 5);
	ck_assert_uint_eq(plan.blocks[1].content_bytes, 2 * MIB);
	ck_assert_uint_eq(offset_of("a"), 0);
	ck_assert_uint_eq(offset_of("b"), 4 * MIB);
	ck_assert_uint_eq(plan.span_bytes, 6 * MIB);
}
END_TEST

START_TEST(huge_tensors_are_cut)
{
	add("w", 0, 100, 2 * GLAKE_MAX_BLOCK_BYTES + 1);
	add("x", 0, 100 + 2 * GLAKE_MAX_BLOCK_BYTES + 1, GLAKE_MAX_BLOCK_BYTES);
	make();
	ck_assert_uint_eq(plan.n_blocks, 4);
	ck_assert_uint_eq(plan.blocks[0].content_bytes, GLAKE_MAX_BLOCK_BYTES);
	ck_assert_uint_eq(plan.blocks[1].content_bytes, GLAKE_MAX_BLOCK_BYTES);
	ck_assert_uint_eq(plan.blocks[2].content_bytes, 1);
	ck_assert_uint_eq(plan.blocks[3].content_bytes, GLAKE_MAX_BLOCK_BYTES);
	ck_assert_uint_eq(offset_of("x"), 2 * GLAKE_MAX_BLOCK_BYTES + 2 * MIB);
}
END_TEST

START_TEST(small_tensors_are_packed)
{
	add("c", 0, 1, 100);
	add("a", 0, 101, 1);
	add("b", 0, 102, 256);
	add("d", 0, 358, 2 * MIB - 1);
	make();
	ck_assert_uint_eq(plan.n_blocks, 1);
	ck_assert_uint_eq(offset_of("a"), 0);
	ck_assert_uint_eq(offset_of("b"), 256);
	ck_assert_uint_eq(offset_of("c"), 512);
	ck_assert_uint_eq(offset_of("d"), 768);
	ck_assert_uint_eq(plan.blocks[0].content_bytes, 768 + 2 * MIB - 1);
	ck_assert_uint_eq(plan.span_bytes, 4 * MIB);
}
END_TEST

START_TEST(packed_tensors_stay_whole)
{
	uint64_t begin = 8;
	for (unsigned i = 0; i < 100; i++) {
		char name[16];
		snprintf(name, sizeof(name), "t%03u", i);
		add(name, 0, begin, 2 * MIB - 1);
		begin += 2 * MIB - 1;
	}
	add("large", 0, begin, 5 * MIB);
	make();
	/* 64 of them and no byte more fit into 128 MiB. */
	ck_assert_uint_eq(plan.n_blocks, 1 + 2);
	ck_assert_uint_eq(offset_of("large"), 0);
	ck_assert_uint_eq(offset_of("t000"), 6 * MIB);
	ck_assert_uint_eq(offset_of("t063"), 6 * MIB + 63 * 2 * MIB);
	ck_assert_uint_eq(offset_of("t064"), 6 * MIB + 128 * MIB);
}
END_TEST

START_TEST(neighbours_are_read_together)
{
	add("a", 0, 1000, 512);
	add("b", 0, 1512, 256);
	add("c", 0, 1768, 100);
	add("d", 0, 1868, 100);
	add("e", 1, 1968, 100);
	make();
	ck_assert_uint_eq(plan.n_pieces, 3);
	ck_assert_uint_eq(plan.pieces[0].bytes, 868);
}
END_TEST

START_TEST(files_make_no_difference)
{
	uint64_t offsets[200];
	for (unsigned pass = 0; pass < 2; pass++) {
		uint64_t begins[2] = {8, 8};
		for (unsigned i = 0; i < 200; i++) {
			unsigned k = pass ? 199 - i : i;
			unsigned file = pass ? k % 2 : 0;
			uint64_t bytes = k * 104729ull % (3 * MIB);
			char name[16];
			snprintf(name, sizeof(name), "t%03u", k);
			add(name, file, begins[file], bytes);
			begins[file] += bytes;
		}
		make();
		for (unsigned i = 0; i < 200; i++) {
			ck_assert(pass == 0 || offsets[i] == plan.offsets[i]);
			offsets[i] = plan.offsets[i];
		}
		drop();
	}
}
END_TEST

START_TEST(too_many_blocks_are_refused)
{
	add("w", 0, 8, 1ull << 62);
	ck_assert_int_eq(catalog_finish(&catalog, files, &fault), 0);
	ck_assert_int_eq(plan_make(&plan, &catalog, &fault), MOVER_E_FAULT);
	ck_assert_str_eq(fault.text, "the model needs more than 1000000 blocks");
}
END_TEST

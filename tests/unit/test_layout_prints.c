/* SPDX-License-Identifier: Apache-2.0 */
/* Prints of content, and the table of those of all blocks: how much of it is elsewhere, and how much of it there may be. */
#include <stdlib.h>
#include <string.h>

#include "daemon/mover/layout.h"
#include "daemon/store/prints.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)
#define N_BYTES (8 * MIB)

static void fill(uint8_t *to, size_t n_bytes, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i < n_bytes; i += sizeof(state)) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memcpy(to + i, &state, sizeof(state));
	}
}

/* In pieces, as glake-mover reads it. */
static struct layout *look(const uint8_t *bytes, size_t n_bytes, size_t n_piece)
{
	struct layout *layout = calloc(1, sizeof(*layout));
	ck_assert_ptr_nonnull(layout);
	for (size_t at = 0; at < n_bytes; at += n_piece) {
		size_t n_left = n_bytes - at;
		size_t n_there = n_left < n_piece + LAYOUT_PRINT_BYTES
		                         ? n_left
		                         : n_piece + LAYOUT_PRINT_BYTES;
		layout_add(layout, bytes + at, n_there < n_piece ? n_there : n_piece, n_there);
	}
	layout_finish(layout);
	return layout;
}

static size_t n_common(const struct layout *a, const struct layout *b)
{
	size_t n = 0;
	for (size_t i = 0; i < a->n; i++) {
		for (size_t j = 0; j < b->n; j++) {
			n += a->prints[i] == b->prints[j];
		}
	}
	return n;
}

START_TEST(prints_go_with_the_content)
{
	cleanup_free uint8_t *bytes = malloc(N_BYTES + 512);
	fill(bytes, N_BYTES + 512, 1);
	cleanup_free struct layout *whole = look(bytes, N_BYTES, N_BYTES);
	cleanup_free struct layout *pieces = look(bytes, N_BYTES, MIB);
	/* One for each 512 KiB. */
	ck_assert_uint_gt(whole->n, 6);
	ck_assert_uint_lt(whole->n, 32);
	ck_assert_uint_eq(whole->varied_bytes, N_BYTES);
	ck_assert_uint_eq(pieces->n, whole->n);
	ck_assert_mem_eq(pieces->prints, whole->prints, whole->n * sizeof(whole->prints[0]));
	cleanup_free struct layout *further = look(bytes + 512, N_BYTES, N_BYTES);
	ck_assert_uint_ge(n_common(whole, further) + 1, whole->n);
	fill(bytes, N_BYTES, 2);
	cleanup_free struct layout *other = look(bytes, N_BYTES, N_BYTES);
	ck_assert_uint_eq(n_common(whole, other), 0);
}
END_TEST

START_TEST(constants_have_none)
{
	cleanup_free uint8_t *bytes = calloc(1, N_BYTES);
	cleanup_free struct layout *zeros = look(bytes, N_BYTES, MIB);
	ck_assert_uint_eq(zeros->n, 0);
	ck_assert_uint_eq(zeros->varied_bytes, 0);
	/* Constants of two bytes each. */
	for (size_t i = 0; i < N_BYTES; i += 2) {
		memcpy(bytes + i, "\x80\x3f", 2);
	}
	cleanup_free struct layout *ones = look(bytes, N_BYTES, MIB);
	ck_assert_uint_eq(ones->n, 0);
}
END_TEST

/* Content that was made for it: each place is an anchor. */
START_TEST(there_are_never_more_than_fit)
{
	uint8_t window[LAYOUT_WINDOW_BYTES];
	const size_t n_bytes = 4 * GLAKE_MAX_PRINTS * (size_t)LAYOUT_STEP;
	cleanup_free uint8_t *bytes = malloc(n_bytes);
	cleanup_free struct layout *found = NULL;
	for (uint64_t seed = 0; !found || found->n == 0; seed++) {
		free(found);
		fill(window, sizeof(window), seed);
		memset(bytes, 0, LAYOUT_PRINT_BYTES);
		memcpy(bytes, window, sizeof(window));
		found = look(bytes, LAYOUT_PRINT_BYTES, LAYOUT_PRINT_BYTES);
	}
	fill(bytes, n_bytes, 3);
	for (size_t at = 0; at < n_bytes; at += LAYOUT_STEP) {
		memcpy(bytes + at, window, sizeof(window));
	}
	cleanup_free struct layout *many = look(bytes, n_bytes, n_bytes);
	ck_assert_uint_eq(many->n, GLAKE_MAX_PRINTS);
	for (size_t i = 1; i < many->n; i++) {
		ck_assert_uint_lt(many->prints[i - 1], many->prints[i]);
	}
	/* The prints are the same, whatever comes first. */
	cleanup_free struct layout *further = look(bytes + LAYOUT_STEP, n_bytes - LAYOUT_STEP, MIB);
	ck_assert_uint_ge(n_common(many, further) + 1, GLAKE_MAX_PRINTS);
}
END_TEST

/* ---- the table ---- */

static struct prints prints;
static struct realm realms[2] = {{.id = 1}, {.id = 2}};

static struct block *new_block(struct realm *realm, uint64_t slot, uint64_t first, size_t n)
{
	struct block *block = calloc(1, sizeof(*block));
	uint64_t *values = malloc((n + 1) * sizeof(*values));
	block->realm = realm;
	block->key = (struct block_key){.realm_id = realm->id, .slot = slot};
	block->content_bytes = n * 512 * 1024;
	block->n_users = 1;
	for (size_t i = 0; i < n; i++) {
		values[i] = first + i;
	}
	ck_assert_int_eq(prints_add(&prints, block, values, n, block->content_bytes), 0);
	free(values);
	return block;
}

static void drop(struct block *block)
{
	prints_drop(&prints, block);
	free(block);
}

static uint32_t n_elsewhere(const struct block *block)
{
	return prints_count(&prints, block, prints_mark(&prints), false);
}

START_TEST(what_is_elsewhere_is_counted)
{
	struct block *one = new_block(&realms[0], 0, 100, 50);
	struct block *two = new_block(&realms[0], 0, 120, 50);
	struct block *other_realm = new_block(&realms[1], 0, 100, 50);
	struct block *other_device = new_block(&realms[0], 1, 100, 50);
	ck_assert_uint_eq(n_elsewhere(one), 30);
	ck_assert_uint_eq(n_elsewhere(two), 30);
	ck_assert_uint_eq(n_elsewhere(other_realm), 0);
	ck_assert_uint_eq(n_elsewhere(other_device), 0);
	uint64_t mark = prints_mark(&prints);
	two->layout.mark = mark;
	ck_assert_uint_eq(prints_count(&prints, one, mark, true), 30);
	ck_assert_uint_eq(prints_count(&prints, one, mark, false), 0);
	/* Nobody has it any more. */
	two->n_users = 0;
	ck_assert_uint_eq(n_elsewhere(one), 0);
	two->n_users = 1;
	drop(two);
	ck_assert_uint_eq(n_elsewhere(one), 0);
	drop(one);
	drop(other_realm);
	drop(other_device);
	ck_assert_uint_eq(prints.n, 0);
	ck_assert_uint_eq(realms[0].n_prints + realms[1].n_prints, 0);
	prints_deinit(&prints);
}
END_TEST

/* However many have the same: each finds another one, and none waits for a long chain. */
START_TEST(what_all_have_is_found_by_all)
{
	struct block *blocks[4 * PRINTS_SAME];
	for (unsigned i = 0; i < n_elements(blocks); i++) {
		blocks[i] = new_block(&realms[0], 0, 7, 3);
	}
	for (unsigned i = 0; i < n_elements(blocks); i++) {
		ck_assert_uint_eq(n_elsewhere(blocks[i]), 3);
	}
	for (unsigned i = 0; i < n_elements(blocks); i++) {
		drop(blocks[i]);
	}
	ck_assert_uint_eq(prints.n, 0);
	prints_deinit(&prints);
}
END_TEST

START_TEST(a_realm_has_its_share)
{
	struct block *first = new_block(&realms[0], 0, 1, PRINTS_MAX);
	ck_assert_uint_eq(first->layout.n_prints, PRINTS_MAX / 2);
	struct block *more = new_block(&realms[0], 0, 1ull << 40, 10);
	ck_assert_uint_eq(more->layout.n_prints, 0);
	ck_assert_int_eq(more->layout.state, LAYOUT_LEFT_OUT);
	ck_assert_int_eq(first->layout.state, LAYOUT_SEEN);
	struct block *other = new_block(&realms[1], 0, 1, PRINTS_MAX);
	ck_assert_uint_eq(other->layout.n_prints, PRINTS_MAX / 4);
	ck_assert_uint_eq(prints.n, PRINTS_MAX / 4 * 3);
	drop(first);
	drop(more);
	drop(other);
	ck_assert_uint_eq(prints.n, 0);
	prints_deinit(&prints);
}
END_TEST

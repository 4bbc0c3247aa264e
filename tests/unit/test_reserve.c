/* SPDX-License-Identifier: Apache-2.0 */
/* The reserve for unsealing: how much it is, of what, and that it never takes what others could have had. */
#include "daemon/memory/reserve.h"

#include <stdlib.h>

#include "tests/unit/made_store.h"

END_EACH(store_end)

#define BLOCK GLAKE_MAX_BLOCK_BYTES

static struct location *at;

static void begin(uint64_t usable_bytes, double part)
{
	store_begin();
	at = &devices[0].at;
	at->usable_bytes = usable_bytes;
	reserve_set_part(at, part);
}

START_TEST(it_is_a_part_but_one_block_at_least)
{
	begin(UINT64_MAX, 0.25);
	const struct {
		uint64_t saved, wanted;
	} rows[] = {
		{0, 0},
		{BLOCK / 2, BLOCK / 2},
		{BLOCK, BLOCK},
		{3 * BLOCK, BLOCK},
		{8 * BLOCK, 2 * BLOCK},
		{8 * BLOCK + 6 * MIB, 2 * BLOCK}, /* whole pages of 2 MiB */
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		reserve_note_saved(at, at->saved_alone_bytes, rows[i].saved);
		ck_assert_uint_eq(reserve_wanted_bytes(at), rows[i].wanted);
	}
	reserve_set_part(at, 0);
	ck_assert_uint_eq(reserve_wanted_bytes(at), 0);
	ck_assert_uint_eq(at->unsealing_bytes, 0);
	reserve_set_part(at, 1);
	ck_assert_uint_eq(reserve_wanted_bytes(at), at->saved_alone_bytes);
	reserve_note_saved(at, at->saved_alone_bytes, 0);
}
END_TEST

/* By what is set free; not by what is free already, and not by more than it wants. */
START_TEST(it_grows_by_what_is_set_free)
{
	begin(10 * BLOCK, 1);
	reserve_note_saved(at, 0, 4 * BLOCK);
	ck_assert_uint_eq(at->unsealing_bytes, 0);
	reserve_keep(at, BLOCK);
	ck_assert_uint_eq(at->unsealing_bytes, BLOCK);
	ck_assert_uint_eq(location_room_bytes(at), 9 * BLOCK);
	reserve_keep(at, 9 * BLOCK);
	ck_assert_uint_eq(at->unsealing_bytes, 4 * BLOCK);
	ck_assert_uint_eq(reserve_take(at, BLOCK), BLOCK);
	ck_assert_uint_eq(reserve_take(at, 9 * BLOCK), 3 * BLOCK);
	at->coming_bytes = 8 * BLOCK;
	reserve_keep(at, 4 * BLOCK);
	ck_assert_uint_eq(at->unsealing_bytes, 2 * BLOCK);
	ck_assert_uint_eq(location_room_bytes(at), 0);
	at->coming_bytes = 0;
	reserve_note_saved(at, 4 * BLOCK, BLOCK);
	ck_assert_uint_eq(at->unsealing_bytes, BLOCK);
	reserve_note_saved(at, BLOCK, 0);
}
END_TEST

/* A user of a block: who found it by himself, or another. */
struct use {
	struct block *block;
	bool is_alone;
};

/* The bytes that unsealing all would take: a copy for each who was alone, less a block that all leave. */
static uint64_t needed_bytes(const struct use *uses, unsigned n, struct block *const *blocks,
                             unsigned n_blocks)
{
	uint64_t bytes = 0;
	for (unsigned b = 0; b < n_blocks; b++) {
		unsigned n_alone = 0;
		unsigned n_users = 0;
		for (unsigned i = 0; i < n; i++) {
			n_users += uses[i].block == blocks[b];
			n_alone += uses[i].block == blocks[b] && uses[i].is_alone;
		}
		bytes += (n_alone - (n_alone > 0 && n_alone == n_users)) * 2 * MIB;
	}
	return bytes;
}

/* Users come and go at random, in any order; what is saved is what it would take. */
START_TEST(what_is_saved_is_what_unsealing_would_take)
{
	enum { N_BLOCKS = 4, N_USES = 64 };
	struct block *blocks[N_BLOCKS];
	struct use uses[N_USES] = {{0}};
	begin(UINT64_MAX, 1);
	for (unsigned i = 0; i < N_BLOCKS; i++) {
		blocks[i] = add_block(0, i + 1);
		uses[i].block = blocks[i];
	}
	srand(1);
	for (unsigned step = 0; step < 20000; step++) {
		struct use *use = &uses[rand() % N_USES];
		if (use->block) {
			if (use->is_alone) {
				store_remove_alone(use->block);
			}
			store_unuse_block(&store, use->block, 0);
			*use = (struct use){.block = NULL};
		} else {
			*use = (struct use){blocks[rand() % N_BLOCKS], rand() % 2};
			ck_assert_int_eq(store_use_block(&store, use->block, payer), 0);
			if (use->is_alone) {
				store_add_alone(use->block);
				reserve_keep(at, 2 * MIB);
			}
		}
		ck_assert_uint_eq(at->saved_alone_bytes,
		                  needed_bytes(uses, N_USES, blocks, N_BLOCKS));
		ck_assert_uint_le(at->unsealing_bytes, at->saved_alone_bytes);
	}
	for (unsigned i = 0; i < N_USES; i++) {
		if (uses[i].is_alone) {
			store_remove_alone(uses[i].block);
		}
		if (uses[i].block) {
			store_unuse_block(&store, uses[i].block, 0);
		}
	}
	ck_assert_uint_eq(at->saved_alone_bytes, 0);
}
END_TEST

/* Who leaves last with a copy leaves no cache behind, but what others keep stays. */
START_TEST(the_last_one_takes_the_block_with_him)
{
	begin(UINT64_MAX, 1);
	struct block *block = add_block(0, 1);
	ck_assert_int_eq(store_use_block(&store, block, payer), 0);
	ck_assert_uint_eq(store_leave_block(&store, block, 0), 0);
	store_begin_compare(block);
	ck_assert_uint_eq(store_leave_block(&store, block, 0), 0);
	ck_assert_uint_eq(store.n_blocks, 1);
	store_end_compare(&store, block);
	ck_assert_uint_eq(store.n_blocks, 1); /* as cache */
	ck_assert_int_eq(store_use_block(&store, block, payer), 0);
	ck_assert_uint_eq(store_leave_block(&store, block, 0), 2 * MIB);
	ck_assert_uint_eq(store.n_blocks, 0);
	block = add_block(0, 1);
	block->is_published = false;
	ck_assert_uint_eq(store_leave_block(&store, block, 0), 2 * MIB);
	ck_assert_uint_eq(store.n_blocks, 0);
}
END_TEST

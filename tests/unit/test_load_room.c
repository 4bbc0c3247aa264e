/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a planned model can fit, with what others have and what it may share. */
#include "daemon/store/load_room.h"

#include <string.h>

#include "tests/unit/made_store.h"

/* All chunks of a device, at most; the first chunk of a device is glaked's own. */
#define MOST_BYTES (100 * MIB)

static struct allocator allocator;

static void begin(void)
{
	store_begin();
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i].at.usable_bytes = MOST_BYTES + GLAKE_CHUNK_GRANULARITY;
		devices[i].at.use_bytes[CHUNK_STOCK] = GLAKE_CHUNK_GRANULARITY;
		devices[i].at.anchor_bytes = GLAKE_CHUNK_GRANULARITY;
	}
	ck_assert_int_eq(
		allocator_init(&allocator, &loop, locations, N_DEVICES, 1000, store.cache, &stats),
		0);
	/* The store's chunks are counted in books of their own. */
	allocator.books.n_fds = 500;
}

static void end(void)
{
	allocator_deinit(&allocator);
	store_end();
}

BEGIN_EACH(begin)
END_EACH(end)

/* A model of @n_blocks on the first device, planned and asked for; then it goes. */
static enum status ask(unsigned n_blocks, uint64_t block_bytes)
{
	char error[256] = "";
	struct file_id file = {.inode = 1};
	struct model *model = store_add_model(&store, realm, &devices[0], payer_alone(payer), "m",
	                                      &file, 1);
	ck_assert_ptr_nonnull(model);
	for (unsigned i = 0; i < n_blocks; i++) {
		ck_assert_int_eq(model_add_block(model, block_bytes), 0);
	}
	struct refusal refusal = {.bound = BOUND_NONE};
	enum status status = load_check_room(&store, &allocator, model, payer, &refusal, error,
	                                     sizeof(error));
	ck_assert_int_eq(status == STATUS_OK, error[0] == 0);
	ck_assert_int_eq(status == STATUS_OK, refusal.bound == BOUND_NONE);
	store_drop_model(&store, model);
	return status;
}

START_TEST(what_others_may_give_back_counts_as_room)
{
	ck_assert_int_eq(ask(10, 10 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(11, 10 * MIB), STATUS_NO_DEVICE_MEMORY);
	cache_block(0, 1, 0);
	devices[0].at.use_bytes[CHUNK_PRIVATE] = 50 * MIB;
	ck_assert_int_eq(ask(10, 10 * MIB), STATUS_OK);
	devices[0].at.use_bytes[CHUNK_PRIVATE] = 0;
	struct block *used = add_block(0, 2);
	ck_assert_int_eq(ask(10, 10 * MIB), STATUS_NO_DEVICE_MEMORY);
	ck_assert_int_eq(ask(9, 10 * MIB), STATUS_OK);
	store_unuse_block(&store, used, 0);
}
END_TEST

/* Blocks of a size that is in use may be those; each once. */
START_TEST(what_may_be_shared_needs_no_room)
{
	enum { N = 5 };
	struct block *used[N];
	for (unsigned i = 0; i < N; i++) {
		used[i] = add_sized_block(realm, 0, i + 1, 10 * MIB);
	}
	ck_assert_int_eq(ask(10, 10 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(6, 12 * MIB), STATUS_NO_DEVICE_MEMORY);
	tenant_set_quota(payer, 0, 60 * MIB);
	ck_assert_int_eq(ask(6, 10 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(7, 10 * MIB), STATUS_OVER_QUOTA);
	tenant_set_quota(payer, 0, 0);
	payer->max_fds = N + 1;
	ck_assert_int_eq(ask(6, 10 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(7, 10 * MIB), STATUS_NO_FDS);
	payer->max_fds = 0;
	allocator.books.n_fds = 1000;
	ck_assert_int_eq(ask(5, 10 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(6, 10 * MIB), STATUS_NO_FDS);
	for (unsigned i = 0; i < N; i++) {
		store_unuse_block(&store, used[i], 0);
	}
}
END_TEST

START_TEST(blocks_of_other_realms_and_devices_are_not_shared)
{
	struct realm *other = realm_get(&realms, "other");
	struct block *foreign = add_sized_block(other, 0, 1, 50 * MIB);
	struct block *elsewhere = add_sized_block(realm, 1, 2, 50 * MIB);
	ck_assert_int_eq(ask(2, 50 * MIB), STATUS_NO_DEVICE_MEMORY);
	ck_assert_int_eq(ask(1, 50 * MIB), STATUS_OK);
	store_unuse_block(&store, foreign, 0);
	store_unuse_block(&store, elsewhere, 0);
	store_evict_all(&store, NULL, NULL);
	realm_unref(other);
}
END_TEST

/* Who has blocks open may go meanwhile, where requests wait for that. */
START_TEST(who_can_wait_is_refused_only_what_never_fits)
{
	struct block *used = add_sized_block(realm, 0, 1, 50 * MIB);
	ck_assert_int_eq(ask(5, 20 * MIB), STATUS_NO_DEVICE_MEMORY);
	allocator.pressure.wait_ms = 1;
	ck_assert_int_eq(ask(5, 20 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(6, 20 * MIB), STATUS_NO_DEVICE_MEMORY);
	tenant_set_quota(payer, 0, 80 * MIB);
	ck_assert_int_eq(ask(4, 20 * MIB), STATUS_OK);
	ck_assert_int_eq(ask(5, 20 * MIB), STATUS_OVER_QUOTA);
	store_unuse_block(&store, used, 0);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that somebody waits for: of blocks and private chunks, at each stage, on good days and bad. */
#include "daemon/store/store_parts.h"
#include "tests/unit/made_copies.h"

#define N_ORDERS 64u

static struct wait {
	struct copy_order order;
	unsigned n_done;
	unsigned n_gone;
	enum status status;
	struct copy *copy; /* held */
	char error[256];
	int fd;
	struct wait *cancels; /* when it is done */
	bool is_under_way;    /* not gone */
} waits[N_ORDERS];

static void note_done(struct copy_order *order, struct copy *copy, enum status status,
                      const char *error)
{
	struct wait *wait = container_of(order, struct wait, order);
	ck_assert_uint_eq(wait->n_done, 0);
	ck_assert_uint_eq(wait->n_gone, 0);
	ck_assert((copy != NULL) == (status == STATUS_OK));
	ck_assert((error == NULL) == (status == STATUS_OK));
	wait->n_done++;
	wait->status = status;
	wait->copy = copy;
	snprintf(wait->error, sizeof(wait->error), "%s", error ? error : "");
	if (copy) {
		ck_assert_int_eq(copy->state, COPY_THERE);
		ck_assert_uint_gt(copy->n_held, 0);
	}
	if (wait->cancels) {
		copies_cancel(&copies, &wait->cancels->order);
	}
}

static void note_gone(struct copy_order *order)
{
	struct wait *wait = container_of(order, struct wait, order);
	wait->n_gone++;
	wait->is_under_way = false;
	fd_close(&wait->fd);
}

static void wait_init(struct wait *wait)
{
	*wait = (struct wait){.order = {.tenant = payer, .done = note_done, .gone = note_gone},
	                      .fd = -1,
	                      .status = STATUS_COUNT,
	                      .is_under_way = true};
}

static void order_block(struct wait *wait, struct block *block)
{
	wait_init(wait);
	wait->order.block = block;
	copies_order(&copies, &wait->order);
}

static void order_chunk(struct wait *wait, uint64_t bytes)
{
	wait_init(wait);
	wait->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	wait->order.chunk.device = &devices[0];
	wait->order.chunk.fd = wait->fd;
	wait->order.chunk.bytes = bytes;
	wait->order.chunk.realm = realm;
	copies_order(&copies, &wait->order);
}

static void let(struct wait *wait)
{
	struct copy *copy = wait->copy;
	ck_assert_ptr_nonnull(copy);
	wait->copy = NULL;
	copies_let(&copies, copy);
}

/* The oldest job of a mover that lives ends well. */
static void finish(unsigned name)
{
	run_workers();
	struct mover_job *job = find_job(JOB_DIGEST);
	ck_assert_ptr_nonnull(job);
	fake_mover_digested(job, digest(name));
}

static void expect(const struct wait *wait, enum status status, const char *error)
{
	ck_assert_uint_eq(wait->n_done, 1);
	ck_assert_msg(wait->status == status && strstr(wait->error, error), "%d: %s", wait->status,
	              wait->error);
}

static void expect_ok(const struct wait *wait)
{
	expect(wait, STATUS_OK, "");
	ck_assert_uint_eq(wait->n_gone, 1);
}

static uint64_t paid(const struct tenant *tenant)
{
	return tenant->at[1].used_bytes;
}

/* Of background copies; or none. */
static void orders_begin(uint64_t host_bytes, bool is_on)
{
	copies_begin(host_bytes);
	copies_set(&copies, is_on);
}

/* ---- good days --------------------------------------------------------------------------------- */

START_TEST(a_private_chunk_is_copied_for_who_ordered_it)
{
	orders_begin(256 * MIB, false);
	order_chunk(&waits[0], 6 * MIB);
	run_workers();
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert_uint_eq(waits[0].n_done, 0);
	finish(7);
	expect_ok(&waits[0]);
	struct copy *copy = waits[0].copy;
	struct digest want = digest(7);
	ck_assert(digest_equal(&copy->key.digest, &want));
	ck_assert_uint_eq(copy->bytes, 6 * MIB);
	ck_assert_uint_eq(copy->content_bytes, 6 * MIB);
	ck_assert(!has_copy(7));
	/* Nothing takes it. */
	copies_make_way(&copies, host, 256 * MIB);
	copies_evict(&copies, NULL);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	let(&waits[0]);
	ck_assert_uint_eq(paid(payer), 0);
	ck_assert_uint_eq(copies.bytes, 0);
	copies_end();
}
END_TEST

START_TEST(a_blocks_copy_serves_all_who_want_it)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	order_block(&waits[0], block);
	order_block(&waits[1], block);
	finish(1);
	expect_ok(&waits[0]);
	expect_ok(&waits[1]);
	ck_assert_ptr_eq(waits[0].copy, waits[1].copy);
	order_block(&waits[2], block);
	expect_ok(&waits[2]);
	ck_assert_uint_eq(waits[0].copy->n_held, 3);
	ck_assert_uint_eq(paid(payer), 2 * MIB);
	let(&waits[0]);
	let(&waits[1]);
	copies_make_way(&copies, host, 256 * MIB);
	ck_assert(has_copy(1));
	ck_assert_uint_eq(paid(payer), 2 * MIB);
	/* Then it is cache. */
	let(&waits[2]);
	ck_assert_uint_eq(paid(payer), 0);
	ck_assert(has_copy(1));
	order_block(&waits[3], block);
	expect_ok(&waits[3]);
	let(&waits[3]);
	copies_make_way(&copies, host, 256 * MIB);
	ck_assert(!has_copy(1));
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

START_TEST_WITH(an_order_waits_for_a_copy_that_is_under_way, .n = 3)
{
	orders_begin(256 * MIB, true);
	struct block *block = have_block(1);
	copies_want(&copies, block);
	if (_i > 0) {
		run_workers();
	}
	order_block(&waits[0], block);
	run_workers();
	ck_assert_uint_eq(n_jobs(JOB_DIGEST), 1);
	if (_i == 2) {
		copies_cancel(&copies, &waits[0].order);
		ck_assert_uint_eq(waits[0].n_gone, 1);
		finish(1);
		ck_assert(has_copy(1));
	} else {
		finish(1);
		expect_ok(&waits[0]);
		let(&waits[0]);
	}
	ck_assert_uint_eq(payer->at[1].peak_bytes, 0);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

START_TEST(orders_go_first_and_several_at_a_time)
{
	struct block *blocks[4];
	unsigned n_most = 0;
	orders_begin(256 * MIB, true);
	for (unsigned i = 0; i < 4; i++) {
		blocks[i] = have_block(100 + i);
		copies_want(&copies, blocks[i]);
	}
	for (unsigned i = 0; i < 40; i++) {
		order_chunk(&waits[i], 2 * MIB);
	}
	run_workers();
	/* The one of the background that had begun. */
	finish(100);
	for (unsigned i = 0; i < 40; i++) {
		run_workers();
		n_most = n_jobs(JOB_DIGEST) > n_most ? n_jobs(JOB_DIGEST) : n_most;
		ck_assert_uint_eq(HASH_COUNT(copies.table), 1);
		finish(i + 1);
		expect_ok(&waits[i]);
	}
	ck_assert_uint_ge(n_most, 8);
	ck_assert_uint_le(n_most, 12);
	settle();
	ck_assert_uint_eq(HASH_COUNT(copies.table), 4);
	/* Side by side, in two chunks. */
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 128 * MIB);
	for (unsigned i = 0; i < 40; i++) {
		let(&waits[i]);
	}
	for (unsigned i = 0; i < 4; i++) {
		store_unuse_block(&store, blocks[i], 0);
	}
	copies_end();
}
END_TEST

/* Another content has its digest, or its own has changed: it is a program's all the same. */
START_TEST_WITH(a_block_that_nobody_finds_has_a_copy_that_nobody_finds, .n = 2)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	if (_i == 0) {
		store_take_out_block(&store, block);
	} else {
		store_unuse_block(&store, block, 0);
		struct chunk chunk = new_chunk();
		struct digest of_name = digest(1);
		block = store_seal(&store, realm, NULL, &of_name, CHUNK_BYTES, &chunk, true);
		ck_assert_int_eq(block->state, BLOCK_APART);
	}
	order_block(&waits[0], block);
	finish(_i == 0 ? 2 : 1);
	expect_ok(&waits[0]);
	ck_assert(!has_copy(1));
	struct digest want = digest(_i == 0 ? 2 : 1);
	ck_assert(digest_equal(&waits[0].copy->key.digest, &want));
	let(&waits[0]);
	ck_assert_uint_eq(copies.bytes, 0);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* ---- room ------------------------------------------------------------------------------------- */

START_TEST(without_host_memory_there_are_no_copies)
{
	orders_begin(256 * MIB, false);
	copies.n_nodes = 0;
	order_chunk(&waits[0], 2 * MIB);
	expect(&waits[0], STATUS_NO_HOST_MEMORY, "no host memory");
	copies.n_nodes = 1;
	order_chunk(&waits[1], 66 * MIB);
	expect(&waits[1], STATUS_NO_HOST_MEMORY, "at most");
	ck_assert_uint_eq(waits[1].n_gone, 1);
	copies_end();
}
END_TEST

START_TEST(a_tenant_pays_within_his_quota)
{
	orders_begin(256 * MIB, false);
	ck_assert_int_eq(tenant_set_quota(payer, 1, 8 * MIB), 0);
	order_chunk(&waits[0], 4 * MIB);
	order_chunk(&waits[1], 6 * MIB);
	order_chunk(&waits[2], 4 * MIB);
	run_workers();
	expect(&waits[1], STATUS_OVER_QUOTA, "of 8388608");
	finish(1);
	finish(2);
	expect_ok(&waits[0]);
	expect_ok(&waits[2]);
	let(&waits[0]);
	let(&waits[2]);
	copies_end();
}
END_TEST

/* Cache goes for them. What is held stays, and what was made stays when the next does not fit. */
START_TEST(host_memory_becomes_full_in_the_middle)
{
	orders_begin(64 * MIB, true);
	for (unsigned i = 0; i < 20; i++) {
		struct block *block = have_block(100 + i);
		copies_want(&copies, block);
		settle();
		store_unuse_block(&store, block, 0);
	}
	ck_assert_uint_eq(copies.bytes, 40 * MIB);
	for (unsigned i = 0; i < 10; i++) {
		order_chunk(&waits[i], 8 * MIB);
	}
	for (unsigned i = 0; i < 8; i++) {
		finish(i + 1);
		expect_ok(&waits[i]);
	}
	run_workers();
	expect(&waits[8], STATUS_NO_HOST_MEMORY, "nothing can be evicted");
	expect(&waits[9], STATUS_NO_HOST_MEMORY, "nothing can be evicted");
	ck_assert_uint_eq(copies.bytes, 64 * MIB);
	ck_assert_uint_eq(paid(payer), 64 * MIB);
	for (unsigned i = 0; i < 8; i++) {
		let(&waits[i]);
	}
	copies_end();
}
END_TEST

/* Nothing is taken for what would not fit then. */
START_TEST(what_never_fits_takes_nobodys_place)
{
	orders_begin(64 * MIB, true);
	order_chunk(&waits[0], 48 * MIB);
	finish(1);
	struct block *block = have_block(100);
	copies_want(&copies, block);
	settle();
	order_chunk(&waits[1], 32 * MIB);
	run_workers();
	expect(&waits[1], STATUS_NO_HOST_MEMORY, "");
	ck_assert(has_copy(100));
	let(&waits[0]);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* Before copies do, and also what becomes free by them. */
START_TEST(programs_get_what_is_kept_ready)
{
	uint64_t ready = 128 * MIB;
	const struct config_sizes sizes = {.bytes = &ready, .n = 1};
	orders_begin(256 * MIB, true);
	copies_keep_ready(&copies, &sizes);
	copies_tick(&copies);
	run_workers();
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 128 * MIB);
	struct block *block = have_block(1);
	copies_want(&copies, block);
	settle();
	copies_tick(&copies);
	settle();
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 128 * MIB);
	copies_make_way(&copies, host, 60 * MIB);
	settle();
	ck_assert(has_copy(1));
	ck_assert_uint_eq(location_room_bytes(host), 192 * MIB);
	copies_make_way(&copies, host, 256 * MIB);
	settle();
	ck_assert(!has_copy(1));
	ck_assert_uint_eq(location_room_bytes(host), 256 * MIB);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* ---- bad days ---------------------------------------------------------------------------------- */

START_TEST(a_copy_that_is_wrong_is_no_copy)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	order_block(&waits[0], block);
	order_chunk(&waits[1], 2 * MIB);
	finish(100);
	expect(&waits[0], STATUS_MOVER_FAILED, "not what was copied");
	ck_assert(block->is_suspect);
	fake_mover_failed(find_job(JOB_DIGEST), STATUS_MOVER_FAILED);
	expect(&waits[1], STATUS_MOVER_FAILED, "the fake mover");
	ck_assert_uint_eq(waits[1].n_gone, 1);
	ck_assert_uint_eq(paid(payer), 0);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* A block twice, and two chunks; more wait. */
static struct block *order_some(void)
{
	struct block *block = have_block(1);
	for (unsigned i = 0; i < 20; i++) {
		if (i % 8 == 3) {
			order_block(&waits[i], block);
		} else {
			order_chunk(&waits[i], 2 * MIB);
		}
	}
	run_workers();
	ck_assert_uint_ge(n_jobs(JOB_DIGEST), 8);
	return block;
}

START_TEST(a_mover_dies_with_several)
{
	orders_begin(256 * MIB, false);
	struct block *block = order_some();
	do {
		fake_mover_die();
		run_workers();
	} while (has_job(JOB_DIGEST));
	for (unsigned i = 0; i < 20; i++) {
		expect(&waits[i], STATUS_MOVER_FAILED, "");
		ck_assert_uint_eq(waits[i].n_gone, 1);
	}
	ck_assert_uint_eq(paid(payer), 0);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* What a dead mover may still write to is nobody else's, and the chunks are not free. */
START_TEST(a_mover_that_cannot_end_keeps_the_chunks)
{
	orders_begin(256 * MIB, false);
	struct block *block = order_some();
	unsigned n_had = n_jobs(JOB_DIGEST);
	fake_mover_die_slowly();
	run_workers();
	unsigned n_failed = 0;
	for (unsigned i = 0; i < 20; i++) {
		n_failed += waits[i].n_done;
		ck_assert_uint_eq(waits[i].n_gone, waits[i].n_done && i % 8 == 3);
		copies_cancel(&copies, &waits[i].order);
	}
	ck_assert_uint_ge(n_failed, n_had);
	ck_assert_uint_eq(waits[0].n_gone, 0);
	/* The next mover makes that of the block meanwhile. */
	order_block(&waits[20], block);
	finish(1);
	while (has_job(JOB_DIGEST)) {
		finish(1);
	}
	expect_ok(&waits[20]);
	ck_assert_uint_eq(copies.bytes, 2 * MIB);
	end_dead_movers();
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_uint_eq(waits[i].n_gone, 1);
	}
	let(&waits[20]);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

START_TEST(a_mover_that_has_too_much_to_do_is_said)
{
	orders_begin(256 * MIB, false);
	order_chunk(&waits[0], 2 * MIB);
	fake_mover.refusal = -EBUSY;
	run_workers();
	expect(&waits[0], STATUS_BUSY, "");
	fake_mover.refusal = -ENOENT;
	order_chunk(&waits[1], 2 * MIB);
	expect(&waits[1], STATUS_MOVER_FAILED, "");
	ck_assert_uint_eq(waits[1].n_gone, 1);
	copies_end();
}
END_TEST

enum { QUEUED, TAKING, FORGETTING, WRITING, DIED, N_STAGES };

/* At each stage, of a chunk and of a block. */
START_TEST_WITH(an_order_is_cancelled, .n = 2 * N_STAGES)
{
	int stage = _i / 2;
	bool is_chunk = _i % 2;
	unsigned n_ahead = stage == QUEUED ? 20 : 0;
	orders_begin(stage == FORGETTING ? 4 * MIB : 64 * MIB, stage == FORGETTING);
	struct block *block = have_block(1);
	struct block *other = have_block(2);
	if (stage == FORGETTING) {
		copies_want(&copies, other);
		settle();
	}
	for (unsigned i = 0; i < n_ahead; i++) {
		order_chunk(&waits[1 + i], 2 * MIB);
	}
	run_workers();
	if (is_chunk) {
		order_chunk(&waits[0], stage == FORGETTING ? 4 * MIB : 2 * MIB);
	} else {
		order_block(&waits[0], block);
	}
	if (stage >= FORGETTING) {
		run_workers();
	}
	ck_assert(stage != FORGETTING || !is_chunk || has_job(JOB_FORGET));
	if (stage == DIED) {
		fake_mover_die_slowly();
	}
	copies_cancel(&copies, &waits[0].order);
	ck_assert_uint_eq(waits[0].n_done, stage == DIED);
	ck_assert_uint_eq(waits[0].n_gone, stage < WRITING || !is_chunk);
	end_dead_movers();
	while (find_job(JOB_DIGEST)) {
		struct mover_job *job = find_job(JOB_DIGEST);
		ck_assert_int_eq(job->is_cancelled, is_chunk && stage == WRITING);
		finish(1);
		run_workers();
	}
	settle();
	ck_assert_uint_eq(waits[0].n_done, stage == DIED);
	ck_assert_uint_eq(waits[0].n_gone, 1);
	for (unsigned i = 0; i < n_ahead; i++) {
		let(&waits[1 + i]);
	}
	ck_assert_uint_eq(paid(payer), 0);
	store_unuse_block(&store, block, 0);
	store_unuse_block(&store, other, 0);
	copies_end();
}
END_TEST

/* Who ordered it first goes, before and after the mover has it; the other pays, or nobody if that is too much. */
START_TEST_WITH(the_next_one_pays, .n = 4)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	order_block(&waits[0], block);
	if (_i >= 2) {
		run_workers();
	}
	wait_init(&waits[1]);
	waits[1].order.block = block;
	waits[1].order.tenant = other_payer;
	copies_order(&copies, &waits[1].order);
	if (_i % 2) {
		ck_assert_int_eq(tenant_set_quota(other_payer, 1, 1), 0);
	}
	copies_cancel(&copies, &waits[0].order);
	finish(1);
	expect_ok(&waits[1]);
	ck_assert_uint_eq(paid(payer), 0);
	ck_assert_uint_eq(paid(other_payer), _i % 2 ? 0 : 2 * MIB);
	let(&waits[1]);
	ck_assert_uint_eq(paid(other_payer), 0);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* From within done(): one that waits for the same, and one that waits for its turn. */
START_TEST_WITH(an_order_cancels_another_when_it_is_done, .n = 4)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	order_block(&waits[0], block);
	if (_i % 2) {
		order_block(&waits[1], block);
	} else {
		order_chunk(&waits[1], 2 * MIB);
	}
	waits[0].cancels = &waits[1];
	if (_i < 2) {
		finish(1);
		let(&waits[0]);
	} else {
		finish(100);
	}
	ck_assert_uint_eq(waits[1].n_done, 0);
	while (has_job(JOB_DIGEST)) {
		finish(1);
	}
	ck_assert_uint_eq(waits[1].n_gone, 1);
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

START_TEST(what_comes_back_wrong_is_given_to_nobody)
{
	orders_begin(256 * MIB, false);
	struct block *block = have_block(1);
	order_block(&waits[0], block);
	finish(1);
	copies_drop(&copies, waits[0].copy);
	ck_assert(!has_copy(1));
	ck_assert_uint_eq(copies.bytes, 2 * MIB);
	/* A new one can be made beside it. */
	order_block(&waits[1], block);
	finish(1);
	expect_ok(&waits[1]);
	let(&waits[0]);
	ck_assert_uint_eq(copies.bytes, 2 * MIB);
	let(&waits[1]);
	ck_assert(has_copy(1));
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

START_TEST(glaked_ends_while_orders_are_under_way)
{
	orders_begin(256 * MIB, true);
	struct block *block = order_some();
	copies_close(&copies);
	while (has_job(JOB_DIGEST)) {
		fake_mover_failed(find_job(JOB_DIGEST), STATUS_BUSY);
	}
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_uint_eq(waits[i].n_done, 1);
		ck_assert_uint_eq(waits[i].n_gone, 1);
	}
	order_block(&waits[20], block);
	expect(&waits[20], STATUS_SHUTTING_DOWN, "");
	store_unuse_block(&store, block, 0);
	copies_end();
}
END_TEST

/* Cancelled, failed, held and let; nothing is left in the end. */
START_TEST_WITH(orders_at_random, .n = 8)
{
	struct block *blocks[6];
	orders_begin(64 * MIB, _i % 2);
	srandom((unsigned)_i + 1);
	memset(waits, 0, sizeof(waits));
	for (unsigned i = 0; i < 6; i++) {
		blocks[i] = have_block(i + 1);
	}
	for (unsigned step = 0; step < 4000; step++) {
		struct wait *wait = &waits[random() % N_ORDERS];
		struct mover_job *job = find_job(JOB_DIGEST);
		unsigned what = (unsigned)random() % 16;
		if (what < 6 && !wait->is_under_way && !wait->copy) {
			if (random() % 2) {
				order_chunk(wait, (uint64_t)(1 + random() % 4) * 2 * MIB);
			} else {
				order_block(wait, blocks[random() % 6]);
			}
		} else if (what < 8 && wait->is_under_way) {
			copies_cancel(&copies, &wait->order);
		} else if (what < 12 && job) {
			struct copy_making *making;
			uint64_t name = 1000;
			for (unsigned i = 0; i < 6; i++) {
				struct digest of_name = digest(i + 1);
				struct copy *copy = NULL;
				struct copy_key key = {.realm_id = realm->id, .digest = of_name};
				HASH_FIND(hh, copies.table, &key, sizeof(key), copy);
				making = copy ? copy->making : NULL;
				/* The job is its first member. */
				name = making && (void *)making == (void *)job ? i + 1 : name;
			}
			fake_mover_digested(job, digest((unsigned)name));
		} else if (what == 12 && job) {
			fake_mover_failed(job, STATUS_INTERNAL);
		} else if (what == 13 && random() % 16 == 0) {
			random() % 2 ? fake_mover_die_slowly() : fake_mover_die();
		} else if (what == 14) {
			end_dead_movers();
			forget();
		} else if (wait->copy) {
			let(wait);
		}
		if (random() % 2) {
			run_workers();
		}
		if (random() % 4 == 0) {
			copies_want(&copies, blocks[random() % 6]);
		}
	}
	for (unsigned i = 0; i < N_ORDERS; i++) {
		copies_cancel(&copies, &waits[i].order);
	}
	end_dead_movers();
	while (fake_mover_n_jobs() > 0) {
		fake_mover_die();
		run_workers();
	}
	for (unsigned i = 0; i < N_ORDERS; i++) {
		ck_assert(!waits[i].is_under_way);
		if (waits[i].copy) {
			let(&waits[i]);
		}
	}
	ck_assert_uint_eq(paid(payer), 0);
	for (unsigned i = 0; i < 6; i++) {
		store_unuse_block(&store, blocks[i], 0);
	}
	copies_end();
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that somebody waits for: of blocks and private chunks, at each stage, on good days and bad. */
#include "daemon/store/copies_parts.h"
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
	unsigned content;
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

static void order_chunk_of(struct wait *wait, uint64_t bytes, struct realm *of,
                           struct tenant *tenant)
{
	wait_init(wait);
	wait->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	wait->order.tenant = tenant;
	wait->order.chunk.device = &devices[0];
	wait->order.chunk.fd = wait->fd;
	wait->order.chunk.bytes = bytes;
	wait->order.chunk.realm = of;
	copies_order(&copies, &wait->order);
}

static void order_chunk(struct wait *wait, uint64_t bytes)
{
	order_chunk_of(wait, bytes, realm, payer);
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

static void order_digested(struct wait *wait, uint64_t bytes, unsigned name)
{
	order_chunk(wait, bytes);
	finish(name);
}

/* As finish(), but the bytes are zero. */
static void finish_zero(unsigned name)
{
	run_workers();
	struct mover_job *job = find_job(JOB_DIGEST);
	ck_assert_ptr_nonnull(job);
	container_of(job, struct digest_job, job)->is_zero = true;
	fake_mover_digested(job, digest(name));
}

static void finish_compare(bool equal)
{
	struct mover_job *job = find_job(JOB_COMPARE);
	ck_assert_ptr_nonnull(job);
	fake_mover_compared(job, equal);
}

static unsigned n_blocks_copies(void)
{
	unsigned n = 0;
	for (const struct copy *copy = copies.table; copy; copy = copy->hh.next) {
		n += copy->is_of_block;
	}
	return n;
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

/* No blocks are copied in the background. */
static void orders_begin(void)
{
	copies_begin(256 * MIB);
	copies_set(&copies, false);
}

BEGIN_EACH(orders_begin)
END_EACH(copies_end)

/* ---- good days --------------------------------------------------------------------------------- */

START_TEST(a_private_chunk_is_copied_for_who_ordered_it)
{
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
}
END_TEST

/* The chunk that @wait has copied wakes, and is ordered again. */
static void order_again(struct wait *wait, struct copy_past *past)
{
	copies_remember(&copies, wait->copy, past);
	let(wait);
	ck_assert_uint_eq(paid(payer), 0);
	wait_init(wait);
	copies_remember(&copies, past->copy, &wait->order.chunk.past);
	wait->order.chunk.device = &devices[0];
	wait->order.chunk.bytes = past->copy->bytes;
	wait->order.chunk.realm = realm;
	copies_order(&copies, &wait->order);
}

START_TEST_WITH(a_chunk_that_sleeps_again_is_digested, .n = 2)
{
	struct copy_past past;
	order_digested(&waits[0], 6 * MIB, 7);
	const struct copy *copy = waits[0].copy;
	order_again(&waits[0], &past);
	ck_assert_uint_eq(copies.bytes, 6 * MIB);
	finish(_i == 0 ? 7 : 8);
	if (_i == 1) {
		/* The chunk has changed. */
		ck_assert_uint_eq(waits[0].n_done, 0);
		finish(8);
	}
	expect(&waits[0], STATUS_OK, "");
	ck_assert_int_eq(waits[0].copy == copy, _i == 0);
	copies_forget(&waits[0].order.chunk.past);
	copies_forget(&past);
	ck_assert_uint_eq(copies.bytes, 6 * MIB);
	let(&waits[0]);
	ck_assert_uint_eq(copies.bytes, 0);
}
END_TEST

/* Making it takes longer than to copy once more what is cache. */
START_TEST(copies_of_who_is_awake_go_before_host_memory_is_made)
{
	struct copy_past past;
	order_digested(&waits[0], copies.nodes[0].large_bytes, 7);
	copies_remember(&copies, waits[0].copy, &past);
	let(&waits[0]);
	uint64_t n_bytes = host->use_bytes[CHUNK_COPIES];
	ck_assert_ptr_nonnull(past.copy);
	order_chunk(&waits[1], copies.nodes[0].large_bytes);
	ck_assert_ptr_null(past.copy);
	finish(8);
	expect_ok(&waits[1]);
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], n_bytes);
	/* Behind that, so that the next one finds room beside what is cache. */
	copies_tick(&copies);
	run_workers();
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], n_bytes + copies.nodes[0].large_bytes);
	let(&waits[1]);
}
END_TEST

START_TEST(a_blocks_copy_serves_all_who_want_it)
{
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
}
END_TEST

START_TEST_WITH(an_order_waits_for_a_copy_that_is_under_way, .n = 3)
{
	copies_set(&copies, true);
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
}
END_TEST

START_TEST(orders_go_first_and_several_at_a_time)
{
	struct block *blocks[4];
	unsigned n_most = 0;
	copies_set(&copies, true);
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
		ck_assert_uint_eq(n_blocks_copies(), 1);
		finish(i + 1);
		expect_ok(&waits[i]);
	}
	ck_assert_uint_ge(n_most, 8);
	ck_assert_uint_le(n_most, 12);
	settle();
	ck_assert_uint_eq(n_blocks_copies(), 4);
	/* Side by side, in two chunks. */
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 128 * MIB);
	for (unsigned i = 0; i < 40; i++) {
		let(&waits[i]);
	}
	for (unsigned i = 0; i < 4; i++) {
		store_unuse_block(&store, blocks[i], 0);
	}
}
END_TEST

/* Another content has its digest, or its own has changed: it is a program's all the same. */
START_TEST_WITH(a_block_that_nobody_finds_has_a_copy_that_nobody_finds, .n = 2)
{
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
}
END_TEST

/* ---- equal bytes ------------------------------------------------------------------------------ */

/* One has a copy; the others are copied, compared with it, and need theirs no more. */
START_TEST(equal_private_chunks_have_one_copy)
{
	for (unsigned i = 0; i < 4; i++) {
		order_chunk(&waits[i], 6 * MIB);
	}
	run_workers();
	ck_assert_uint_eq(n_jobs(JOB_DIGEST), 4);
	finish(7);
	expect_ok(&waits[0]);
	for (unsigned i = 1; i < 4; i++) {
		finish(7);
		ck_assert_uint_eq(waits[i].n_done, 0);
		finish_compare(true);
		expect_ok(&waits[i]);
		ck_assert_ptr_eq(waits[i].copy, waits[0].copy);
	}
	ck_assert_uint_eq(copies.bytes, 6 * MIB);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert(!has_copy(7));
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_eq(copies.bytes, 6 * MIB);
		let(&waits[i]);
	}
	/* The copy was nobody's cache. */
	ck_assert_uint_eq(copies.bytes, 0);
	ck_assert_uint_eq(HASH_COUNT(copies.table), 0);
}
END_TEST

/* Who ordered it first pays, whoever has it then. */
START_TEST(who_finds_a_copy_pays_nothing)
{
	order_digested(&waits[0], 6 * MIB, 7);
	order_chunk_of(&waits[1], 6 * MIB, realm, other_payer);
	finish(7);
	finish_compare(true);
	expect_ok(&waits[1]);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert_uint_eq(paid(other_payer), 0);
	let(&waits[0]);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	let(&waits[1]);
	ck_assert_uint_eq(paid(payer), 0);
}
END_TEST

/* One digest, other bytes; or the mover cannot say. The one that was there is found. */
START_TEST_WITH(what_is_not_known_to_be_equal_has_a_copy_of_its_own, .n = 3)
{
	order_digested(&waits[0], 6 * MIB, 7);
	order_chunk(&waits[1], 6 * MIB);
	run_workers();
	if (_i == 2) {
		fake_mover.refusal = -EBUSY;
	}
	finish(7);
	if (_i == 0) {
		finish_compare(false);
	} else if (_i == 1) {
		fake_mover_die();
	}
	expect_ok(&waits[1]);
	ck_assert_ptr_ne(waits[0].copy, waits[1].copy);
	ck_assert(waits[0].copy->is_found);
	ck_assert(!waits[1].copy->is_found);
	ck_assert_uint_eq(paid(payer), 12 * MIB);
	let(&waits[0]);
	let(&waits[1]);
	ck_assert_uint_eq(copies.bytes, 0);
}
END_TEST

START_TEST(other_realms_have_copies_of_their_own)
{
	order_digested(&waits[0], 6 * MIB, 7);
	struct realm *other = realm_get(&realms, "other");
	order_chunk_of(&waits[1], 6 * MIB, other, payer);
	finish(7);
	ck_assert(!has_job(JOB_COMPARE));
	expect_ok(&waits[1]);
	ck_assert_ptr_ne(waits[0].copy, waits[1].copy);
	let(&waits[0]);
	let(&waits[1]);
	realm_unref(other);
}
END_TEST

/* The last holder's end comes between: it is kept for who compares. */
START_TEST(a_copy_is_let_while_another_is_compared_with_it)
{
	order_digested(&waits[0], 6 * MIB, 7);
	order_digested(&waits[1], 6 * MIB, 7);
	let(&waits[0]);
	ck_assert_uint_eq(copies.bytes, 6 * MIB);
	finish_compare(true);
	expect_ok(&waits[1]);
	ck_assert_uint_eq(copies.bytes, 6 * MIB);
	let(&waits[1]);
	ck_assert_uint_eq(copies.bytes, 0);
}
END_TEST

/* A block's, that is there, or on its way: it is cache afterwards, as before. */
START_TEST_WITH(a_private_chunk_shares_a_blocks_copy, .n = 2)
{
	copies_set(&copies, true);
	struct block *block = have_block(7);
	copies_want(&copies, block);
	run_workers();
	struct mover_job *copying = find_job(JOB_DIGEST);
	if (_i == 0) {
		fake_mover_digested(copying, digest(7));
	}
	order_chunk(&waits[0], 2 * MIB);
	run_workers();
	if (_i == 1) {
		/* The younger job ends first. */
		fake_mover_digested(copying->hh.next, digest(7));
		ck_assert(!has_job(JOB_COMPARE));
		fake_mover_digested(copying, digest(7));
	} else {
		finish(7);
	}
	finish_compare(true);
	expect_ok(&waits[0]);
	ck_assert_ptr_eq(waits[0].copy, copies.table);
	ck_assert_uint_eq(copies.bytes, 2 * MIB);
	ck_assert_uint_eq(paid(payer), 0);
	let(&waits[0]);
	ck_assert(has_copy(7));
	store_unuse_block(&store, block, 0);
}
END_TEST

/* The block's copy is on its way, and does not come. */
START_TEST(the_copy_that_another_is_behind_fails)
{
	copies_set(&copies, true);
	struct block *block = have_block(7);
	copies_want(&copies, block);
	run_workers();
	struct mover_job *copying = find_job(JOB_DIGEST);
	order_chunk(&waits[0], 2 * MIB);
	run_workers();
	fake_mover_digested(copying->hh.next, digest(7));
	ck_assert_uint_eq(waits[0].n_done, 0);
	fake_mover_failed(copying, STATUS_INTERNAL);
	expect_ok(&waits[0]);
	ck_assert(waits[0].copy->is_found);
	ck_assert_uint_eq(paid(payer), 2 * MIB);
	let(&waits[0]);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* A private chunk's copy becomes the block's, if its bytes are: then it stays when nobody holds it. */
START_TEST_WITH(a_block_shares_a_private_chunks_copy, .n = 3)
{
	bool is_equal = _i != 1;
	copies_set(&copies, _i == 2);
	order_digested(&waits[0], 2 * MIB, 7);
	struct block *block = have_block(7);
	if (_i == 2) {
		copies_want(&copies, block);
	} else {
		order_block(&waits[1], block);
	}
	ck_assert(!has_job(JOB_DIGEST));
	finish_compare(is_equal);
	if (!is_equal) {
		finish(7);
	}
	ck_assert_int_eq(has_copy(7), is_equal);
	if (_i < 2) {
		expect_ok(&waits[1]);
		ck_assert_int_eq(waits[0].copy == waits[1].copy, is_equal);
		let(&waits[1]);
	}
	let(&waits[0]);
	ck_assert_int_eq(has_copy(7), is_equal);
	ck_assert_uint_eq(paid(payer), 0);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* Nothing is taken for them, once one was not needed. */
START_TEST(what_follows_equal_bytes_is_looked_at_first)
{
	order_digested(&waits[0], 6 * MIB, 7);
	order_digested(&waits[1], 6 * MIB, 7);
	finish_compare(true);
	uint64_t peak = payer->at[1].peak_bytes;
	for (unsigned i = 2; i < 20; i++) {
		order_chunk(&waits[i], 6 * MIB);
	}
	for (unsigned i = 2; i < 20; i++) {
		run_workers();
		ck_assert_uint_eq(paid(payer), 6 * MIB);
		finish(7);
		finish_compare(true);
		expect_ok(&waits[i]);
	}
	ck_assert_uint_eq(payer->at[1].peak_bytes, peak);
	/* This one has other bytes: it is copied after all, and the next one at once. */
	order_digested(&waits[20], 6 * MIB, 8);
	ck_assert_uint_eq(waits[20].n_done, 0);
	finish(8);
	expect_ok(&waits[20]);
	order_digested(&waits[21], 6 * MIB, 9);
	expect_ok(&waits[21]);
	for (unsigned i = 0; i < 22; i++) {
		let(&waits[i]);
	}
	ck_assert_uint_eq(copies.bytes, 0);
}
END_TEST

START_TEST(zeros_take_no_host_memory)
{
	for (unsigned i = 0; i < 3; i++) {
		order_chunk(&waits[i], 6 * MIB);
		run_workers();
		/* The second is not copied at all. */
		ck_assert_uint_eq(paid(payer), i == 0 ? 6 * MIB : 0);
		finish_zero(7);
		expect_ok(&waits[i]);
		ck_assert(waits[i].copy->is_zero);
		ck_assert_uint_eq(waits[i].copy->bytes, 6 * MIB);
		ck_assert_uint_eq(copies.bytes, 0);
		ck_assert_uint_eq(paid(payer), 0);
		ck_assert_uint_eq(copies.nodes[0].used_bytes, 0);
	}
	/* A copy of zeros comes back by a job that needs no large chunk. */
	struct digest_job job = {.job = {.on_failed = NULL}};
	ck_assert_int_eq(copies_read(&copies, waits[0].copy, &job, &devices[0], 0), 0);
	ck_assert_uint_eq(fake_mover.n_zeros, 1);
	fake_mover_forget(&job.job);
	for (unsigned i = 0; i < 3; i++) {
		let(&waits[i]);
	}
}
END_TEST

/* ---- room ------------------------------------------------------------------------------------- */

/* Nothing more has room, but what needs none. */
START_TEST_WITH(full_host_memory_is_not_in_the_way_of_what_is_there, .n = 2)
{
	host->usable_bytes = 64 * MIB;
	order_digested(&waits[0], 60 * MIB, 7);
	if (_i > 0) {
		ck_assert_int_eq(tenant_set_quota(payer, 1, 60 * MIB), 0);
	}
	for (unsigned i = 1; i < 4; i++) {
		order_chunk(&waits[i], 60 * MIB);
		copies.expects_same = false;
	}
	finish(7);
	finish_compare(true);
	expect_ok(&waits[1]);
	finish_zero(8);
	expect_ok(&waits[2]);
	finish(7);
	finish_compare(false);
	expect(&waits[3], _i == 0 ? STATUS_NO_HOST_MEMORY : STATUS_OVER_QUOTA, "");
	ck_assert_uint_eq(waits[3].n_gone, 1);
	ck_assert_uint_eq(paid(payer), 60 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		let(&waits[i]);
	}
}
END_TEST

START_TEST(without_host_memory_there_are_no_copies)
{
	copies.n_nodes = 0;
	order_chunk(&waits[0], 2 * MIB);
	expect(&waits[0], STATUS_NO_HOST_MEMORY, "no host memory");
	ck_assert_uint_eq(waits[0].n_gone, 1);
	copies.n_nodes = 1;
}
END_TEST

/* Memory that is kept ready, and copies that nobody needs, are in the chunk's way only until it comes. */
START_TEST(a_chunk_larger_than_a_large_one_is_copied)
{
	extents_want_ready(&copies.nodes[0], 192 * MIB);
	extents_tick(&copies.nodes[0]);
	run_workers();
	order_chunk(&waits[0], 162 * MIB);
	do {
		run_workers();
	} while (forget());
	finish(7);
	expect_ok(&waits[0]);
	ck_assert_uint_eq(extent_chunk_bytes(waits[0].copy->extent), 162 * MIB);
	order_digested(&waits[1], 10 * MIB, 8);
	expect_ok(&waits[1]);
	ck_assert_uint_lt(extent_chunk_bytes(waits[1].copy->extent), 162 * MIB);
	let(&waits[0]);
	let(&waits[1]);
	ck_assert_uint_eq(copies.bytes, 0);
	extents_want_ready(&copies.nodes[0], 0);
}
END_TEST

/* Its own place is free again, and it comes back there; small ones that are cache do not help it, and stay. */
START_TEST(a_large_chunk_that_has_changed_takes_the_place_of_its_copy)
{
	struct copy_past small;
	struct copy_past past;
	order_digested(&waits[0], 6 * MIB, 7);
	copies_remember(&copies, waits[0].copy, &small);
	let(&waits[0]);
	for (unsigned i = 0; i < 2; i++) {
		order_digested(&waits[1], 130 * MIB, 8 + i);
		expect_ok(&waits[1]);
		ck_assert_ptr_nonnull(small.copy);
		ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 64 * MIB + 130 * MIB);
		if (i == 0) {
			copies_remember(&copies, waits[1].copy, &past);
		}
		let(&waits[1]);
	}
	ck_assert_ptr_null(past.copy);
	copies_forget(&small);
}
END_TEST

START_TEST(a_tenant_pays_within_his_quota)
{
	ck_assert_int_eq(tenant_set_quota(payer, 1, 8 * MIB), 0);
	order_chunk(&waits[0], 4 * MIB);
	order_chunk(&waits[1], 6 * MIB);
	order_chunk(&waits[2], 4 * MIB);
	finish(1);
	finish(3);
	expect(&waits[1], STATUS_OVER_QUOTA, "uses 8.0 of 8.0 MiB");
	finish(2);
	expect_ok(&waits[0]);
	expect_ok(&waits[2]);
	let(&waits[0]);
	let(&waits[2]);
}
END_TEST

/* Cache goes for them. What is held stays, and what was made stays when the next does not fit. */
START_TEST(host_memory_becomes_full_in_the_middle)
{
	host->usable_bytes = 64 * MIB;
	copies_set(&copies, true);
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
	finish(9);
	expect(&waits[8], STATUS_NO_HOST_MEMORY, "nothing can be evicted");
	finish(10);
	expect(&waits[9], STATUS_NO_HOST_MEMORY, "nothing can be evicted");
	ck_assert_uint_eq(copies.bytes, 64 * MIB);
	ck_assert_uint_eq(paid(payer), 64 * MIB);
	for (unsigned i = 0; i < 8; i++) {
		let(&waits[i]);
	}
}
END_TEST

/* Nothing is taken for what would not fit then. */
START_TEST(what_never_fits_takes_nobodys_place)
{
	host->usable_bytes = 64 * MIB;
	copies_set(&copies, true);
	order_digested(&waits[0], 48 * MIB, 1);
	struct block *block = have_block(100);
	copies_want(&copies, block);
	settle();
	order_digested(&waits[1], 32 * MIB, 2);
	expect(&waits[1], STATUS_NO_HOST_MEMORY, "");
	ck_assert(has_copy(100));
	let(&waits[0]);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* Before copies do, and also what becomes free by them. */
START_TEST(programs_get_what_is_kept_ready)
{
	uint64_t ready = 128 * MIB;
	const struct config_sizes sizes = {.bytes = &ready, .n = 1};
	copies_set(&copies, true);
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
}
END_TEST

/* ---- bad days ---------------------------------------------------------------------------------- */

START_TEST(a_copy_that_is_wrong_is_no_copy)
{
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
}
END_TEST

/* Memory that a dead mover may still write to is nobody else's, and the chunks are not free. */
START_TEST(a_mover_that_cannot_end_keeps_the_chunks)
{
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
}
END_TEST

START_TEST(a_mover_that_has_too_much_to_do_is_said)
{
	order_chunk(&waits[0], 2 * MIB);
	fake_mover.refusal = -EBUSY;
	run_workers();
	expect(&waits[0], STATUS_BUSY, "");
	fake_mover.refusal = -ENOENT;
	order_chunk(&waits[1], 2 * MIB);
	expect(&waits[1], STATUS_MOVER_FAILED, "");
	ck_assert_uint_eq(waits[1].n_gone, 1);
}
END_TEST

enum { QUEUED, TAKING, FORGETTING, WRITING, DIED, N_STAGES };

/* At each stage, of a chunk and of a block. */
START_TEST_WITH(an_order_is_cancelled, .n = 2 * N_STAGES)
{
	int stage = _i / 2;
	bool is_chunk = _i % 2;
	unsigned n_ahead = stage == QUEUED ? 20 : 0;
	host->usable_bytes = stage == FORGETTING ? 4 * MIB : 64 * MIB;
	copies_set(&copies, stage == FORGETTING);
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
	for (unsigned name = 3; find_job(JOB_DIGEST); name++) {
		struct mover_job *job = find_job(JOB_DIGEST);
		ck_assert_int_eq(job->is_cancelled, is_chunk && stage == WRITING);
		finish(is_chunk || n_ahead ? name : 1);
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
}
END_TEST

enum { CANCEL, FAIL, DIE, DIE_SLOWLY, CLOSE, N_ENDS };
enum { LOOKING, BEHIND, COMPARING, COMPARING_BLOCK, WANTED, N_SAME_STAGES };

static void bring(int stage, struct block *block)
{
	if (stage == BEHIND) {
		copies_want(&copies, block);
		run_workers();
	} else {
		order_digested(&waits[1], 2 * MIB, 7);
	}
	if (stage == COMPARING_BLOCK) {
		order_block(&waits[0], block);
		return;
	}
	copies.expects_same = stage == LOOKING || stage == WANTED;
	order_chunk(&waits[0], 2 * MIB);
	run_workers();
	if (stage == WANTED) {
		/* Another one has its turn: its room is being made. */
		order_chunk(&waits[2], 64 * MIB);
		copies.expects_same = false;
		order_chunk(&waits[3], 64 * MIB);
	}
	if (stage != LOOKING) {
		struct mover_job *job = find_job(JOB_DIGEST);
		job = stage == BEHIND ? job->hh.next : job;
		fake_mover_digested(job, digest(stage == WANTED ? 8 : 7));
	}
}

static const enum making_state states_of[N_SAME_STAGES] = {
	[LOOKING] = MAKING_LOOKING,     [BEHIND] = MAKING_BEHIND,
	[COMPARING] = MAKING_COMPARING, [COMPARING_BLOCK] = MAKING_COMPARING,
	[WANTED] = MAKING_QUEUED,
};

/* While it is looked at, behind another one, compared, or known to need room: nothing is left of it. */
START_TEST_WITH(a_search_for_equal_bytes_ends, .n = N_SAME_STAGES * N_ENDS)
{
	int stage = _i / N_ENDS;
	int end = _i % N_ENDS;
	memset(waits, 0, sizeof(waits));
	copies_set(&copies, stage == BEHIND);
	struct block *block = have_block(7);
	bring(stage, block);
	const struct copy_making *making = waits[0].order.making;
	ck_assert_ptr_nonnull(making);
	ck_assert_int_eq(making->state, states_of[stage]);
	if (end == CANCEL) {
		copies_cancel(&copies, &waits[0].order);
		ck_assert_uint_eq(waits[0].n_done, 0);
	} else if (end == FAIL && stage == LOOKING) {
		fake_mover_failed(find_job(JOB_DIGEST), STATUS_BUSY);
		expect(&waits[0], STATUS_BUSY, "");
	} else if (end == DIE) {
		fake_mover_die();
	} else if (end == DIE_SLOWLY) {
		fake_mover_die_slowly();
	} else if (end == CLOSE) {
		copies_close(&copies);
	}
	if (end == DIE_SLOWLY && (stage == LOOKING || stage == COMPARING)) {
		/* The mover may have the chunk still. */
		expect(&waits[0], STATUS_MOVER_FAILED, "");
		ck_assert_uint_eq(waits[0].n_gone, 0);
	}
	end_dead_movers();
	run_workers();
	for (unsigned name = 20; has_job(JOB_DIGEST) || has_job(JOB_COMPARE); name++) {
		struct mover_job *job = fake_mover.jobs;
		if (end == CLOSE) {
			fake_mover_failed(job, STATUS_BUSY);
		} else if (job->kind == JOB_COMPARE) {
			fake_mover_compared(job, true);
		} else {
			fake_mover_digested(
				job,
				digest(stage == BEHIND || stage == COMPARING_BLOCK ? 7 : name));
		}
		run_workers();
	}
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_eq(waits[i].n_done,
		                  waits[i].order.tenant && (i > 0 || end != CANCEL));
		ck_assert_uint_eq(waits[i].n_gone, waits[i].order.tenant != NULL);
		if (waits[i].copy) {
			let(&waits[i]);
		}
	}
	ck_assert_uint_eq(paid(payer), 0);
	ck_assert_uint_eq(copies.n_writing, 0);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* Who ordered it first goes, before and after the mover has it; the other pays, or nobody if that is too much. */
START_TEST_WITH(the_next_one_pays, .n = 4)
{
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
}
END_TEST

/* From within done(): one that waits for the same, and one that waits for its turn. */
START_TEST_WITH(an_order_cancels_another_when_it_is_done, .n = 4)
{
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
}
END_TEST

START_TEST(what_comes_back_wrong_is_given_to_nobody)
{
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
}
END_TEST

START_TEST(glaked_ends_while_orders_are_under_way)
{
	copies_set(&copies, true);
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
}
END_TEST

/* The content of each copy there was, until its memory is used again: contents 4 apart have one digest, and 3 reads zero. */
#define N_CONTENTS 12u
#define ZEROS 3u
#define N_KNOWN 8192u

static struct {
	const struct copy *copy;
	unsigned content;
} known[N_KNOWN];

static void know(const struct copy *copy, unsigned content)
{
	unsigned i = 0;
	while (i < N_KNOWN && known[i].copy && known[i].copy != copy) {
		i++;
	}
	ck_assert_uint_lt(i, N_KNOWN);
	known[i].copy = copy;
	known[i].content = content;
}

static unsigned content_of(const struct copy *copy)
{
	unsigned i = 0;
	while (i < N_KNOWN && known[i].copy != copy) {
		i++;
	}
	ck_assert_uint_lt(i, N_KNOWN);
	return known[i].content;
}

static unsigned digest_name(unsigned content)
{
	return content % 4 + 1;
}

/* The content of what is copied; blocks have the first contents. */
static unsigned content_of_making(const struct copy_making *making)
{
	return making->block ? (unsigned)making->block->key.digest.low - 1
	                     : container_of(making->owner, struct wait, order)->content;
}

/* Do what the job asks for, rightly. */
static void work(struct mover_job *job)
{
	if (job->kind == JOB_COMPARE) {
		struct copy_making *making = container_of(job, struct copy_making, compare.job);
		fake_mover_compared(job, content_of_making(making) == content_of(making->same));
		return;
	}
	struct copy_making *making = container_of(job, struct copy_making, job.job);
	unsigned content = content_of_making(making);
	know(making->copy, content);
	making->job.is_zero = content == ZEROS;
	fake_mover_digested(job, digest(digest_name(content)));
}

static void order_at_random(struct wait *wait, struct block *const *blocks)
{
	unsigned content = (unsigned)random() % N_CONTENTS;
	if (random() % 4 == 0) {
		order_block(wait, blocks[content % 3]);
		wait->content = content % 3;
		return;
	}
	/* A part of them has other sizes. */
	order_chunk(wait, random() % 8 == 0 ? 4 * MIB : 2 * MIB);
	wait->content = content;
}

static void check_wait(const struct wait *wait)
{
	ck_assert_uint_eq(content_of(wait->copy), wait->content);
	ck_assert_int_eq(wait->copy->is_zero, !wait->order.block && wait->content == ZEROS);
}

static struct mover_job *any_job(void)
{
	struct mover_job *job = fake_mover.jobs;
	for (unsigned i = (unsigned)random() % 4; job && i > 0 && job->hh.next; i--) {
		job = job->hh.next;
	}
	return job && !job->held_by && job->kind != JOB_FORGET ? job : NULL;
}

/* Cancelled, failed, held and let; whoever has a copy has one of his bytes, and nothing is left in the end. */
START_TEST_WITH(orders_at_random, .n = 16)
{
	struct block *blocks[3];
	host->usable_bytes = _i % 4 < 2 ? 64 * MIB : 24 * MIB;
	copies_set(&copies, _i % 2);
	srandom((unsigned)_i + 1);
	memset(waits, 0, sizeof(waits));
	memset(known, 0, sizeof(known));
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = have_block(i + 1);
	}
	for (unsigned step = 0; step < 6000; step++) {
		struct wait *wait = &waits[random() % N_ORDERS];
		struct mover_job *job = any_job();
		unsigned what = (unsigned)random() % 32;
		if (what < 10 && !wait->is_under_way && !wait->copy) {
			order_at_random(wait, blocks);
		} else if (what < 13 && wait->is_under_way) {
			copies_cancel(&copies, &wait->order);
		} else if (what < 25 && job) {
			work(job);
		} else if (what == 26 && job) {
			fake_mover_failed(job, random() % 2 ? STATUS_INTERNAL : STATUS_BUSY);
		} else if (what == 27 && random() % 16 == 0) {
			random() % 2 ? fake_mover_die_slowly() : fake_mover_die();
		} else if (what == 28) {
			end_dead_movers();
			forget();
		} else if (what == 29) {
			fake_mover.refusal = random() % 4 ? 0 : -EBUSY;
		} else if (wait->copy) {
			check_wait(wait);
			let(wait);
		}
		if (random() % 2) {
			run_workers();
		}
		if (random() % 4 == 0) {
			copies_want(&copies, blocks[random() % 3]);
		}
	}
	fake_mover.refusal = 0;
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
			check_wait(&waits[i]);
			let(&waits[i]);
		}
	}
	ck_assert_uint_eq(paid(payer), 0);
	for (unsigned i = 0; i < 3; i++) {
		store_unuse_block(&store, blocks[i], 0);
	}
}
END_TEST

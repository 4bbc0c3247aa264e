/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admission of chunks by itself: each way through its states, and whatever may happen at each of them.
 * Mover, worker and driver are the test's. At the end of each test all charges are paid back, no chunk is in
 * any book, and no fd is open.
 */
#include "daemon/store/admit.h"

#include <errno.h>
#include <signal.h>

#include "tests/unit/fake_parts.h"

BEGIN_EACH(begin)
END_EACH(end)

struct wish {
	struct admit admit;
	unsigned n_done;
	unsigned n_gone;
	struct chunk kept; /* of a failure */
	struct admit_result result;
};

static void note_done(struct admit *admit, const struct admit_result *result)
{
	struct wish *wish = container_of(admit, struct wish, admit);
	ck_assert_uint_eq(wish->n_gone, 0);
	ck_assert_int_eq(result->block != NULL, result->status == STATUS_OK);
	ck_assert_int_eq(result->block == NULL, result->error != NULL);
	wish->n_done++;
	wish->result = *result;
	if (!result->block && admit->state == ADMIT_ENDED) {
		chunk_move(&wish->kept, &admit->chunk);
	}
}

static void note_gone(struct admit *admit)
{
	struct wish *wish = container_of(admit, struct wish, admit);
	ck_assert_int_eq(admit->state, ADMIT_ENDED);
	if (admit->chunk.at) {
		ck_assert_int_eq(wish->result.block == NULL && wish->n_done == 1, 1);
		chunk_move(&wish->kept, &admit->chunk);
	}
	wish->n_gone++;
}

static const struct admit_ops note_ops = {.done = note_done, .gone = note_gone};

/* @name 0: the digest is not known. */
static void start_with(struct wish *wish, struct chunk chunk, unsigned name)
{
	struct digest of_name = digest(name);
	*wish = (struct wish){0};
	admit_start(&wish->admit, &context, realm, NULL, &chunk, CHUNK_BYTES,
	            name ? &of_name : NULL, &note_ops);
	ck_assert_ptr_null(chunk.at);
}

static void start(struct wish *wish, unsigned name)
{
	start_with(wish, new_chunk(), name);
}

static void assert_waits(const struct wish *wish, enum admit_state state)
{
	ck_assert_int_eq(wish->admit.state, state);
	ck_assert_uint_eq(wish->n_done, 0);
	ck_assert_uint_eq(wish->n_gone, 0);
	/* A chunk that others may have to wait for is paid for. */
	ck_assert_ptr_eq(wish->admit.chunk.charge.tenant, payer);
}

static struct block *assert_block(const struct wish *wish, bool was_known)
{
	ck_assert_uint_eq(wish->n_done, 1);
	ck_assert_uint_eq(wish->n_gone, 1);
	ck_assert_ptr_nonnull(wish->result.block);
	ck_assert_int_eq(wish->result.was_known, was_known);
	return wish->result.block;
}

/* The chunk is what it was, and goes back. */
static void assert_failed(struct wish *wish, enum status status)
{
	ck_assert_uint_eq(wish->n_done, 1);
	ck_assert_int_eq(wish->result.status, status);
	ck_assert_uint_eq(wish->n_gone, 1);
	ck_assert_ptr_eq(wish->kept.charge.tenant, payer);
	ck_assert_int_eq(wish->kept.use, CHUNK_PRIVATE);
	chunk_release(&wish->kept);
}

static void assert_left(const struct wish *wish)
{
	ck_assert_uint_eq(wish->n_done, 0);
	ck_assert_uint_eq(wish->n_gone, 1);
}

/* ---- the ways through ------------------------------------------------------------------------- */

START_TEST(a_new_content_becomes_a_block)
{
	struct wish wish;
	start(&wish, 0);
	assert_waits(&wish, ADMIT_DIGESTING);
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	struct block *block = assert_block(&wish, false);
	struct digest name = digest(1);
	ck_assert_ptr_eq(store_find_block(&store, realm, &devices[0].at, &name), block);
	ck_assert_uint_eq(block->n_users, 1);
	ck_assert_uint_eq(block->content_bytes, CHUNK_BYTES);
	ck_assert_ptr_eq(block->chunk.charge.tenant, payer);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_BLOCK], CHUNK_BYTES);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* The blocks with digests 1, 2, 3, in that order, and a chunk that equals the first. Returns the blocks. */
static void have_row(struct block **blocks, struct wish *wish)
{
	for (unsigned i = 0; i < 3; i++) {
		blocks[i] = have_block(i + 1);
		blocks[i]->is_published = false;
	}
	start(wish, 0);
	ck_assert_uint_eq(fake_mover.n_guesses, 0);
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_ptr_eq(assert_block(wish, true), blocks[0]);
}

static void drop_row(struct block **blocks)
{
	for (unsigned i = 0; i < 3; i++) {
		while (blocks[i]->n_users > 1) {
			store_unuse_block(&store, blocks[i], 0);
		}
		ck_assert_uint_eq(blocks[i]->n_compared, 0);
		store_unuse_block(&store, blocks[i], 0);
	}
}

/* A program that goes on as the one before: the next blocks are compared while the chunks are digested. */
START_TEST(the_next_block_is_guessed)
{
	struct block *blocks[3];
	struct wish wishes[4];
	have_row(blocks, &wishes[0]);
	for (unsigned i = 1; i < 3; i++) {
		start(&wishes[i], 0);
		assert_waits(&wishes[i], ADMIT_DIGESTING);
		ck_assert_ptr_eq(wishes[i].admit.candidate, blocks[i]);
		ck_assert_uint_eq(blocks[i]->n_compared, 1);
	}
	ck_assert_uint_eq(fake_mover.n_guesses, 2);
	/* There is no fourth. */
	start(&wishes[3], 0);
	ck_assert_ptr_null(wishes[3].admit.candidate);
	for (unsigned i = 1; i < 3; i++) {
		fake_mover_guessed(fake_mover_job(JOB_DIGEST), digest(i + 1));
		ck_assert_ptr_eq(assert_block(&wishes[i], true), blocks[i]);
		ck_assert_uint_eq(blocks[i]->n_users, 2);
	}
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(4));
	store_unuse_block(&store, assert_block(&wishes[3], false), 0);
	drop_row(blocks);
}
END_TEST

/* Neither a digest nor a comparison is enough: other bytes, another digest, a block that is damaged meanwhile. */
START_TEST_WITH(a_wrong_guess_shares_nothing, .n = 3)
{
	struct block *blocks[3];
	struct wish wishes[3];
	have_row(blocks, &wishes[0]);
	start(&wishes[1], 0);
	ck_assert_ptr_eq(wishes[1].admit.candidate, blocks[1]);
	if (_i == 0) {
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(3));
	} else if (_i == 1) {
		fake_mover_guessed(fake_mover_job(JOB_DIGEST), digest(3));
	} else {
		withdraw_all(&store, blocks[1]);
		fake_mover_guessed(fake_mover_job(JOB_DIGEST), digest(2));
	}
	ck_assert_uint_eq(blocks[1]->n_compared, 0);
	ck_assert_uint_eq(blocks[1]->n_users, 1);
	if (_i < 2) {
		assert_waits(&wishes[1], ADMIT_COMPARING);
		ck_assert_ptr_eq(wishes[1].admit.candidate, blocks[2]);
		/* Nobody knows better before that has ended. */
		start(&wishes[2], 0);
		ck_assert_ptr_null(wishes[2].admit.candidate);
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(9));
		store_unuse_block(&store, assert_block(&wishes[2], false), 0);
		fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
		ck_assert_ptr_eq(assert_block(&wishes[1], true), blocks[2]);
	} else {
		store_unuse_block(&store, assert_block(&wishes[1], false), 0);
	}
	drop_row(blocks);
}
END_TEST

/* A guessed block stays, cancelled or not, as long as the mover has it; and nobody guesses a block that is gone. */
START_TEST(a_guess_keeps_its_block)
{
	struct block *blocks[3];
	struct wish wishes[3];
	have_row(blocks, &wishes[0]);
	start(&wishes[1], 0);
	store_unuse_block(&store, blocks[1], 0);
	ck_assert_uint_eq(store.n_blocks, 3);
	admit_cancel(&wishes[1].admit);
	ck_assert_uint_eq(store.n_blocks, 3);
	fake_mover_failed(fake_mover_job(JOB_DIGEST), STATUS_BUSY);
	assert_left(&wishes[1]);
	ck_assert_uint_eq(store.n_blocks, 2);
	store_unuse_block(&store, blocks[0], 0);
	store_unuse_block(&store, blocks[0], 0);
	ck_assert_uint_eq(store.n_blocks, 1);
	start(&wishes[2], 0);
	ck_assert_ptr_null(wishes[2].admit.candidate);
	fake_mover_failed(fake_mover_job(JOB_DIGEST), STATUS_BUSY);
	assert_failed(&wishes[2], STATUS_BUSY);
	store_unuse_block(&store, blocks[2], 0);
}
END_TEST

START_TEST(a_digest_that_is_known_needs_no_mover)
{
	struct wish wish;
	start(&wish, 1);
	ck_assert_uint_eq(fake_mover.last_job, 0);
	struct block *block = assert_block(&wish, false);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* The block is in use, cache, or pinned at another's cost. */
START_TEST_WITH(an_equal_content_is_the_block_there_is, .n = 3)
{
	struct wish wish;
	struct block *block = _i == 0 ? have_block(1) : have_idle_block(1);
	if (_i == 2) {
		block->n_pins = 1;
		ck_assert_int_eq(charge_move(&block->chunk.charge, payer_alone(other_payer)), 0);
	}
	uint64_t peak_bytes = used_bytes(payer) + CHUNK_BYTES;
	start(&wish, 0);
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	assert_waits(&wish, ADMIT_COMPARING);
	ck_assert_uint_eq(block->n_compared, 1);
	ck_assert_uint_eq(used_bytes(payer), peak_bytes);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_ptr_eq(assert_block(&wish, true), block);
	ck_assert_uint_eq(block->n_compared, 0);
	ck_assert_uint_eq(block->n_users, _i == 0 ? 2 : 1);
	ck_assert_uint_eq(stats.blocks_collapsed, 1);
	ck_assert_ptr_eq(block->chunk.charge.tenant, _i == 2 ? other_payer : payer);
	ck_assert_uint_eq(used_bytes(payer), _i == 2 ? 0 : CHUNK_BYTES);
	ck_assert_uint_eq(used_bytes(store.cache), 0);
	ck_assert_uint_eq(devices[0].at.used_block_bytes, CHUNK_BYTES);
	block->n_pins = 0;
	if (_i == 0) {
		store_unuse_block(&store, block, 0);
	}
	store_unuse_block(&store, block, 0);
	ck_assert_uint_eq(used_bytes(store.cache), CHUNK_BYTES);
}
END_TEST

/* Neither before the comparison nor after it is anything charged that was not. */
START_TEST(no_quota_refuses_what_is_there_already)
{
	struct wish wish;
	struct block *block = have_idle_block(1);
	ck_assert_int_eq(tenant_set_quota(payer, 0, CHUNK_BYTES), 0);
	payer->max_fds = 1;
	start(&wish, 1);
	assert_waits(&wish, ADMIT_COMPARING);
	/* The quota is set lower meanwhile. */
	ck_assert_int_eq(tenant_set_quota(payer, 0, CHUNK_BYTES / 2), 0);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_ptr_eq(assert_block(&wish, true), block);
	ck_assert_ptr_eq(block->chunk.charge.tenant, payer);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* ---- digest collisions ------------------------------------------------------------------------ */

/* The chunks have the same size, or are told apart by their sizes alone. */
START_TEST_WITH(two_contents_of_one_digest_stay_two, .n = 2)
{
	struct wish wish;
	struct digest name = digest(1);
	struct block *block = have_block(1);
	if (_i == 0) {
		start(&wish, 1);
		fake_mover_compared(fake_mover_job(JOB_COMPARE), false);
	} else {
		start_with(&wish, new_chunk_of(2 * CHUNK_BYTES, CHUNK_PRIVATE, true), 1);
	}
	struct block *second = assert_block(&wish, false);
	ck_assert_ptr_ne(second, block);
	ck_assert_int_eq(second->state, BLOCK_APART);
	ck_assert_uint_eq(block->n_compared, 0);
	ck_assert_uint_eq(block->n_users, 1);
	ck_assert_uint_eq(stats.blocks_collapsed, 0);
	ck_assert_uint_eq(payer->log_limit.n_spent, 1);
	ck_assert_ptr_eq(store_find_block(&store, realm, &devices[0].at, &name), block);
	/* The digest is not handed on either. */
	store_unuse_block(&store, block, 0);
	store_evict_all(&store, NULL, NULL);
	ck_assert_ptr_null(store_find_block(&store, realm, &devices[0].at, &name));
	store_unuse_block(&store, second, 0);
}
END_TEST

/* ---- several at once -------------------------------------------------------------------------- */

START_TEST(of_two_at_once_the_second_compares)
{
	struct wish first;
	struct wish second;
	start(&first, 0);
	start(&second, 0);
	fake_mover_digested(&second.admit.digest_job.job, digest(1));
	struct block *block = assert_block(&second, false);
	fake_mover_digested(&first.admit.digest_job.job, digest(1));
	assert_waits(&first, ADMIT_COMPARING);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_ptr_eq(assert_block(&first, true), block);
	ck_assert_uint_eq(block->n_users, 2);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	store_unuse_block(&store, block, 0);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* The first to have it found goes before the second is compared with it. */
START_TEST(a_block_stays_while_it_is_compared)
{
	struct wish equal;
	struct wish other;
	struct block *block = have_idle_block(1);
	start(&equal, 1);
	start(&other, 1);
	ck_assert_uint_eq(block->n_compared, 2);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), 0);
	fake_mover_compared(&equal.admit.compare_job.job, true);
	ck_assert_ptr_eq(assert_block(&equal, true), block);
	store_unuse_block(&store, block, 0);
	ck_assert_uint_eq(used_bytes(store.cache), CHUNK_BYTES);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), 0);
	fake_mover_compared(&other.admit.compare_job.job, false);
	store_unuse_block(&store, assert_block(&other, false), 0);
	/* Cache again. */
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), CHUNK_BYTES);
}
END_TEST

/* The block is of a model that is evicted, and no program has published it. */
START_TEST_WITH(a_block_that_nobody_keeps_goes_with_its_last_comparison, .n = 2)
{
	struct wish wish;
	struct block *block = have_block(1);
	block->is_published = false;
	start(&wish, 1);
	store_unuse_block(&store, block, 0);
	ck_assert_uint_eq(store.n_blocks, 1);
	ck_assert_ptr_eq(block->chunk.charge.tenant, store.cache);
	if (_i == 0) {
		fake_mover_compared(fake_mover_job(JOB_COMPARE), false);
		ck_assert_uint_eq(store.n_blocks, 1);
	} else {
		fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
		ck_assert_ptr_eq(wish.result.block, block);
	}
	store_unuse_block(&store, wish.result.block, 0);
	ck_assert_uint_eq(store.n_blocks, 0);
}
END_TEST

/* Found by the patrol while it is compared: whatever the comparison says, the chunk is a block of its own. */
START_TEST_WITH(a_block_that_is_found_damaged_is_not_shared, .n = 2)
{
	struct wish wish;
	struct block *damaged = have_block(1);
	start(&wish, 1);
	withdraw_all(&store, damaged);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), _i == 0);
	struct block *block = assert_block(&wish, false);
	struct digest name = digest(1);
	ck_assert_ptr_ne(block, damaged);
	ck_assert_ptr_eq(store_find_block(&store, realm, &devices[0].at, &name), block);
	/* And the next one is compared with that. */
	start(&wish, 1);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_ptr_eq(assert_block(&wish, true), block);
	store_unuse_block(&store, block, 0);
	store_unuse_block(&store, block, 0);
	/* A program had published it, and yet its last user takes it along. */
	ck_assert_uint_eq(store.n_blocks, 1);
	store_unuse_block(&store, damaged, 0);
	ck_assert_uint_eq(store.n_blocks, 0);
}
END_TEST

/* ---- what goes wrong, at each state ----------------------------------------------------------- */

/* Have an admission get to a state in which something is under way. */
static struct block *reach(struct wish *wish, enum admit_state state)
{
	struct block *block = NULL;
	switch (state) {
	case ADMIT_EXPORTING:
		start_with(wish, new_chunk_of(CHUNK_BYTES, CHUNK_PRIVATE, false), 0);
		break;
	case ADMIT_DIGESTING:
		start(wish, 0);
		break;
	default:
		block = have_idle_block(1);
		start(wish, 1);
		break;
	}
	assert_waits(wish, state);
	return block;
}

/* The work that is under way ends, well or not. */
static void come_back(enum admit_state state, bool is_well)
{
	export_result = is_well ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
	if (state == ADMIT_EXPORTING) {
		run_workers();
	} else if (!is_well) {
		fake_mover_failed(fake_mover.jobs, STATUS_BUSY);
	} else if (state == ADMIT_DIGESTING) {
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	} else {
		fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	}
	export_result = CUDA_SUCCESS;
}

static const enum admit_state waits[] = {ADMIT_EXPORTING, ADMIT_DIGESTING, ADMIT_COMPARING};

/*
 * Nobody wants the block any more, and what has the chunk says: done; failed; nothing, for it dies, at
 * once or slowly.
 */
START_TEST_WITH(a_cancelled_chunk_is_paid_for_until_it_is_free, .n = 12)
{
	enum admit_state state = waits[_i / 4];
	struct wish wish;
	struct block *block = reach(&wish, state);
	admit_cancel(&wish.admit);
	/* Once more is no harm. */
	admit_cancel(&wish.admit);
	assert_waits(&wish, ADMIT_LEAVING);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_LOADING], CHUNK_BYTES);
	ck_assert_int_eq(fake_mover.jobs && fake_mover.jobs->is_cancelled,
	                 state != ADMIT_EXPORTING);
	/* The mover has this as well. */
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), 0);
	if (_i % 4 < 2 || state == ADMIT_EXPORTING) {
		come_back(state, _i % 4 == 0);
	} else if (_i % 4 == 2) {
		fake_mover_die();
	} else {
		fake_mover_die_slowly();
		assert_waits(&wish, ADMIT_LEAVING);
		ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
		ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), 0);
		fake_mover_gone();
	}
	assert_left(&wish);
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), block ? CHUNK_BYTES : 0);
}
END_TEST

START_TEST_WITH(a_mover_that_dies_leaves_the_chunk, .n = 4)
{
	struct wish wish;
	struct block *block = reach(&wish, waits[1 + _i % 2]);
	if (_i < 2) {
		fake_mover_die();
	} else {
		fake_mover_die_slowly();
		ck_assert_uint_eq(wish.n_done, 1);
		ck_assert_uint_eq(wish.n_gone, 0);
		/* The mover has it as well as the program. */
		ck_assert_ptr_null(wish.kept.at);
		ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_PRIVATE], CHUNK_BYTES);
		fake_mover_gone();
	}
	assert_failed(&wish, STATUS_MOVER_FAILED);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), block ? CHUNK_BYTES : 0);
}
END_TEST

START_TEST_WITH(a_chunk_that_a_dead_mover_has_is_paid_for_when_its_program_frees_it, .n = 2)
{
	struct wish wish;
	reach(&wish, waits[1 + _i]);
	fake_mover_die_slowly();
	admit_cancel(&wish.admit);
	admit_cancel(&wish.admit);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_LOADING], CHUNK_BYTES);
	fake_mover_gone();
	ck_assert_uint_eq(wish.n_gone, 1);
	ck_assert_ptr_null(wish.kept.at);
	ck_assert_uint_eq(used_bytes(payer), 0);
}
END_TEST

/* Nobody else has it; who waits is told at once. */
START_TEST(what_a_dead_mover_has_of_a_load_is_paid_for)
{
	struct wish wish;
	have_idle_block(1);
	start_with(&wish, new_chunk_of(CHUNK_BYTES, CHUNK_LOADING, true), 1);
	assert_waits(&wish, ADMIT_COMPARING);
	fake_mover_die_slowly();
	ck_assert_uint_eq(wish.n_done, 1);
	ck_assert_uint_eq(wish.n_gone, 0);
	ck_assert_int_eq(wish.result.status, STATUS_MOVER_FAILED);
	ck_assert_int_eq(wish.admit.state, ADMIT_LEAVING);
	admit_cancel(&wish.admit);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), 0);
	fake_mover_gone();
	ck_assert_uint_eq(wish.n_done, 1);
	ck_assert_uint_eq(wish.n_gone, 1);
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), CHUNK_BYTES);
}
END_TEST

/* Behind the digest as well. */
START_TEST_WITH(a_mover_that_takes_no_order_leaves_the_chunk, .n = 6)
{
	static const struct {
		int refusal;
		enum status status;
	} refusals[] = {{-EBUSY, STATUS_BUSY}, {-ENOMEM, STATUS_MOVER_FAILED}};
	struct wish wish;
	have_idle_block(1);
	fake_mover.refusal = refusals[_i % 2].refusal;
	if (_i < 2) {
		start(&wish, 0);
	} else if (_i < 4) {
		start(&wish, 1);
	} else {
		fake_mover.refusal = 0;
		start(&wish, 0);
		fake_mover.refusal = refusals[_i % 2].refusal;
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	}
	assert_failed(&wish, refusals[_i % 2].status);
	ck_assert_uint_eq(store_evict_all(&store, NULL, NULL), CHUNK_BYTES);
}
END_TEST

START_TEST(a_padding_that_is_not_zero_leaves_the_chunk)
{
	struct wish wish;
	start(&wish, 0);
	fake_mover_failed(fake_mover_job(JOB_DIGEST), STATUS_BAD_REQUEST);
	assert_failed(&wish, STATUS_BAD_REQUEST);
	/* The chunk can be tried again. */
	start(&wish, 0);
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	store_unuse_block(&store, assert_block(&wish, false), 0);
}
END_TEST

/* ---- chunks without an fd --------------------------------------------------------------------- */

static void start_by_handle(struct wish *wish, unsigned name)
{
	start_with(wish, new_chunk_of(CHUNK_BYTES, CHUNK_PRIVATE, false), name);
}

START_TEST_WITH(a_chunk_without_fd_gets_one, .n = 2)
{
	struct wish wish;
	start_by_handle(&wish, _i);
	assert_waits(&wish, ADMIT_EXPORTING);
	ck_assert_uint_eq(allocator.books.n_fds, 1);
	run_workers();
	if (_i == 0) {
		assert_waits(&wish, ADMIT_DIGESTING);
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	}
	struct block *block = assert_block(&wish, false);
	ck_assert_int_ge(block->chunk.fd, 0);
	/* Which holds the memory alone. */
	ck_assert_uint_eq(block->chunk.handle, 0);
	ck_assert_uint_eq(n_handles, 0);
	ck_assert_uint_eq(allocator.books.n_fds, 1);
	store_unuse_block(&store, block, 0);
}
END_TEST

START_TEST(a_chunk_that_cannot_be_exported_stays_as_it_was)
{
	struct wish wish;
	start_by_handle(&wish, 0);
	come_back(ADMIT_EXPORTING, false);
	ck_assert_int_eq(wish.kept.fd, -1);
	ck_assert_uint_eq(wish.kept.handle, 17);
	ck_assert_uint_eq(allocator.books.n_fds, 0);
	assert_failed(&wish, STATUS_INTERNAL);
}
END_TEST

static void evict_fds(void *user, uint64_t n_fds)
{
	store_evict_fds(&store, n_fds);
}

/* A block that nobody uses goes for the fd, and no other does. */
START_TEST_WITH(an_fd_is_taken_from_the_cache, .n = 2)
{
	struct wish wish;
	allocator.pressure.sources[PRESSURE_UNUSED].take_fds = evict_fds;
	struct block *block = _i == 0 ? have_idle_block(1) : have_block(1);
	allocator.books.max_fds = 1;
	start_by_handle(&wish, 2);
	if (_i == 0) {
		run_workers();
		store_unuse_block(&store, assert_block(&wish, false), 0);
	} else {
		assert_failed(&wish, STATUS_NO_FDS);
		store_unuse_block(&store, block, 0);
	}
}
END_TEST

/* ---- moves that are none ---------------------------------------------------------------------- */

START_TEST_WITH(what_has_ended_is_not_cancelled, .signal = SIGABRT)
{
	struct wish wish;
	start(&wish, 1);
	admit_cancel(&wish.admit);
}
END_TEST

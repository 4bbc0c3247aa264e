/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load by itself: its states, and at each of them a mover that dies, at once or slowly, and a client that
 * goes. At the end of each test all charges are paid back, no chunk is in any book, and no fd is open.
 */
#include "daemon/store/load.h"

#include "tests/unit/fake_parts.h"

BEGIN_EACH(begin)
END_EACH(end)

#define BLOCK_BYTES (2 * MIB)
#define N_BLOCKS 3u

static struct load_context load_context = {
	.admit = &context, .stats = &stats, .window_bytes = 64 * MIB};

/* How far it has got. */
enum stage {
	PLANNING,
	ALLOCATING, /* its chunks are being made */
	FILLING,    /* all are granted, none is loaded */
	COMPARING,  /* one is being compared, one is a block, one is still in the mover */
	SETTLING,   /* the mover has done, and one is being compared */
	N_STAGES,
};

struct client {
	struct load_waiter waiter;
	unsigned n_done;
	enum status status;
	uint64_t deduplicated_bytes;
};

static struct model *model;
static struct load_job *job;

static void note_done(struct load_waiter *waiter, enum status status, const char *error)
{
	struct client *client = container_of(waiter, struct client, waiter);
	client->n_done++;
	client->status = status;
	ck_assert_int_eq(status == STATUS_OK, error == NULL);
	if (status == STATUS_OK) {
		client->deduplicated_bytes = load_result(waiter->load).deduplicated_bytes;
	}
}

static void start(struct client *client)
{
	static const char *const names[] = {"m"};
	struct file_id file = {.inode = 1, .superblock = 1};
	int fd = 0;
	*client = (struct client){.waiter = {.tenant = payer, .done = note_done}};
	list_init(&client->waiter.link);
	model = store_add_model(&store, realm, &devices[0], payer_alone(payer), "m", &file, 1);
	ck_assert_ptr_nonnull(model);
	ck_assert_int_eq(
		load_start(&load_context, model, names, NULL, &fd, 1, false, &client->waiter), 0);
	job = container_of(fake_mover_job(JOB_LOAD), struct load_job, job);
}

/* Block 0 is one that the cache has. */
static void reach(struct client *client, enum stage stage)
{
	have_idle_block(1);
	start(client);
	if (stage == PLANNING) {
		return;
	}
	for (unsigned i = 0; i < N_BLOCKS; i++) {
		ck_assert_int_eq(job->ops->on_plan_block(job, BLOCK_BYTES), 0);
	}
	ck_assert_int_eq(job->ops->on_plan_end(job, ""), 0);
	ck_assert_uint_eq(fake_mover.n_granted, 0);
	if (stage == ALLOCATING) {
		return;
	}
	run_workers();
	ck_assert_uint_eq(fake_mover.n_granted, N_BLOCKS);
	if (stage == FILLING) {
		return;
	}
	fake_mover_loaded(job, 0, digest(1));
	fake_mover_loaded(job, 1, digest(2));
	ck_assert_uint_eq(fake_mover_n_jobs(), 2);
	if (stage == SETTLING) {
		fake_mover_loaded(job, 2, digest(3));
		fake_mover_load_done(job);
	}
	ck_assert_uint_eq(client->n_done, 0);
}

static void assert_told(const struct client *client, enum status status)
{
	ck_assert_uint_eq(client->n_done, 1);
	ck_assert_int_eq(client->status, status);
	ck_assert_ptr_null(client->waiter.load);
	ck_assert_uint_eq(store.n_models, 0);
}

START_TEST(equal_blocks_are_one)
{
	struct client client;
	reach(&client, SETTLING);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_uint_eq(client.n_done, 1);
	ck_assert_int_eq(client.status, STATUS_OK);
	ck_assert_uint_eq(client.deduplicated_bytes, BLOCK_BYTES);
	ck_assert_int_eq(model->state, MODEL_READY);
	ck_assert_uint_eq(store.n_blocks, N_BLOCKS);
	/* Nobody holds it any more. */
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_uint_eq(used_bytes(store.cache), N_BLOCKS * BLOCK_BYTES);
}
END_TEST

START_TEST(a_digest_collision_is_a_block_of_its_own)
{
	struct client client;
	reach(&client, SETTLING);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), false);
	ck_assert_int_eq(client.status, STATUS_OK);
	ck_assert_uint_eq(client.deduplicated_bytes, 0);
	ck_assert_uint_eq(store.n_blocks, N_BLOCKS + 1);
}
END_TEST

/* Three blocks have the same content: the first is the block, whatever is compared when. */
START_TEST(equal_blocks_of_one_model_are_one)
{
	struct client client;
	reach(&client, FILLING);
	for (unsigned i = 0; i < N_BLOCKS; i++) {
		fake_mover_loaded(job, i, digest(5));
	}
	fake_mover_load_done(job);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_uint_eq(client.n_done, 0);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert_int_eq(client.status, STATUS_OK);
	ck_assert_uint_eq(client.deduplicated_bytes, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(store.n_blocks, 2);
}
END_TEST

/* The block that the model shares is found damaged after it was placed, and before the model is ready. */
START_TEST(a_model_with_a_damaged_block_does_not_get_ready)
{
	struct client client;
	struct digest name = digest(1);
	reach(&client, FILLING);
	struct block *block = store_find_block(&store, realm, &devices[0].at, &name);
	fake_mover_loaded(job, 0, name);
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	ck_assert(store_has_block(model, block));
	store_begin_compare(block);
	withdraw_all(&store, block);
	store_end_compare(&store, block);
	fake_mover_loaded(job, 1, digest(2));
	fake_mover_loaded(job, 2, digest(3));
	fake_mover_load_done(job);
	assert_told(&client, STATUS_BUSY);
	ck_assert_uint_eq(store.n_blocks, 0);
}
END_TEST

START_TEST_WITH(a_mover_that_dies_leaves_nothing, .n = N_STAGES)
{
	struct client client;
	reach(&client, (enum stage)_i);
	fake_mover_die();
	assert_told(&client, STATUS_MOVER_FAILED);
	ck_assert_uint_eq(stats.models_failed, 1);
	run_workers();
	ck_assert_uint_eq(used_bytes(payer), 0);
}
END_TEST

/* Who waits is told; what the mover has stays charged until nothing of it is left. */
START_TEST_WITH(a_mover_that_dies_slowly_is_paid_for, .n = N_STAGES)
{
	static const unsigned n_held[N_STAGES] = {
		[FILLING] = N_BLOCKS, [COMPARING] = 2, [SETTLING] = 1};
	struct client client;
	reach(&client, (enum stage)_i);
	fake_mover_die_slowly();
	assert_told(&client, STATUS_MOVER_FAILED);
	run_workers();
	ck_assert_uint_eq(used_bytes(payer), n_held[_i] * BLOCK_BYTES);
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_LOADING], n_held[_i] * BLOCK_BYTES);
	fake_mover_gone();
	ck_assert_uint_eq(used_bytes(payer), 0);
}
END_TEST

/* Blocks that the mover loads meanwhile are nobody's. */
START_TEST_WITH(a_load_that_nobody_waits_for_ends_with_the_mover, .n = 2 * N_STAGES)
{
	struct client client;
	reach(&client, (enum stage)(_i / 2));
	load_leave(&client.waiter);
	ck_assert_uint_eq(client.n_done, 0);
	ck_assert_uint_eq(store.n_models, 0);
	if (_i / 2 == FILLING || _i / 2 == COMPARING) {
		fake_mover_loaded(job, 2, digest(3));
		ck_assert_uint_eq(fake_mover_n_jobs(), _i / 2 == FILLING ? 1 : 2);
	}
	run_workers();
	while (fake_mover.jobs) {
		struct mover_job *last = fake_mover.jobs;
		ck_assert(last->is_cancelled);
		if (_i % 2) {
			fake_mover_failed(last, STATUS_BUSY);
		} else if (last->kind == JOB_COMPARE) {
			fake_mover_compared(last, true);
		} else {
			fake_mover_load_done(job);
		}
	}
	ck_assert_uint_eq(used_bytes(payer), 0);
}
END_TEST

/* ---- host memory ------------------------------------------------------------------------------ */

/* On a device that is full of cache: its manifest is charged before anything is evicted for it. */
START_TEST(a_manifest_that_is_refused_costs_nobody)
{
	static const uint64_t shape[] = {1};
	struct client client;
	have_idle_block(1);
	devices[0].at.usable_bytes = BLOCK_BYTES;
	start(&client);
	tenant_set_manifest_quota(payer, model->manifest_bytes + 1);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(job->ops->on_plan_block(job, BLOCK_BYTES), 0);
		ck_assert_int_eq(job->ops->on_plan_tensor(job, i ? "b" : "a", 0, shape, 1, 0, 1),
		                 0);
	}
	ck_assert_int_eq(job->ops->on_plan_end(job, ""), 0);
	assert_told(&client, STATUS_OVER_QUOTA);
	fake_mover_failed(fake_mover_job(JOB_LOAD), STATUS_BUSY);
	run_workers();
	ck_assert_uint_eq(used_bytes(store.cache), BLOCK_BYTES);
}
END_TEST

/* ---- patience --------------------------------------------------------------------------------- */

static uint64_t now;

static uint64_t clock_now(void *user)
{
	return now;
}

static void clock_wake(void *user, uint64_t ms)
{
}

static void pass(uint64_t ms)
{
	now += ms;
	pressure_look(&allocator.pressure);
	run_workers();
}

/* The chunks of a model are asked for in several requests, which wait `wait_ms` together. */
START_TEST(a_load_waits_its_time_in_all)
{
	enum { N_REQUEST_BLOCKS = 16 };
	struct client client;
	allocator.pressure.clock = (struct pressure_clock){.now_ms = clock_now, .wake = clock_wake};
	allocator.pressure.wait_ms = 100;
	tenant_set_quota(payer, 0, 2 * N_REQUEST_BLOCKS * BLOCK_BYTES);
	struct chunk first = new_chunk_of(10 * MIB, CHUNK_PRIVATE, true);
	struct chunk second = new_chunk_of(30 * MIB, CHUNK_PRIVATE, true);
	start(&client);
	for (unsigned i = 0; i < 2 * N_REQUEST_BLOCKS; i++) {
		ck_assert_int_eq(job->ops->on_plan_block(job, BLOCK_BYTES), 0);
	}
	ck_assert_int_eq(job->ops->on_plan_end(job, ""), 0);
	pass(60);
	ck_assert_uint_eq(fake_mover.n_granted, 0);
	chunk_release(&first);
	pass(0);
	ck_assert_uint_eq(fake_mover.n_granted, N_REQUEST_BLOCKS);
	pass(30);
	ck_assert_uint_eq(client.n_done, 0);
	pass(20);
	assert_told(&client, STATUS_OVER_QUOTA);
	chunk_release(&second);
	fake_mover_failed(fake_mover_job(JOB_LOAD), STATUS_BUSY);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of models in host memory: what they give way to, and what happens between two steps. Orders are
 * in test_copy_orders.c.
 */
#include "tests/unit/made_copies.h"

END_EACH(copies_end)

static struct load_context load_context = {
	.admit = &context, .copies = &copies, .stats = &stats, .window_bytes = 64 * MIB};

struct client {
	struct load_waiter waiter;
	unsigned n_done;
	enum status status;
};

static void note_done(struct load_waiter *waiter, enum status status, const char *error)
{
	struct client *client = container_of(waiter, struct client, waiter);
	client->n_done++;
	client->status = status;
}

static void client_init(struct client *client)
{
	*client = (struct client){.waiter = {.tenant = payer, .done = note_done}};
	list_init(&client->waiter.link);
}

/* A model of @n blocks of @bytes, with the names from @first on: READY, and idle. */
static struct model *load(struct realm *of, unsigned file, unsigned first, unsigned n,
                          uint64_t bytes)
{
	static const char *const names[] = {"m"};
	struct client client;
	struct file_id id = {.inode = file, .superblock = 1};
	int fd = 0;
	client_init(&client);
	struct model *model = store_add_model(&store, of, &devices[0], payer_alone(payer), "m", &id,
	                                      1);
	ck_assert_ptr_nonnull(model);
	ck_assert_int_eq(
		load_start(&load_context, model, names, NULL, &fd, 1, false, &client.waiter), 0);
	struct load_job *job = container_of(fake_mover_job(JOB_LOAD), struct load_job, job);
	for (unsigned i = 0; i < n; i++) {
		ck_assert_int_eq(job->ops->on_plan_block(job, bytes), 0);
	}
	ck_assert_int_eq(job->ops->on_plan_end(job, ""), 0);
	for (unsigned i = 0; i < n; i++) {
		run_workers();
		fake_mover_loaded(job, i, digest(first + i));
	}
	fake_mover_load_done(job);
	while (has_job(JOB_COMPARE)) {
		fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	}
	ck_assert_uint_eq(client.n_done, 1);
	ck_assert_int_eq(model->state, MODEL_READY);
	return model;
}

static void hold(struct model *model)
{
	ck_assert_int_eq(store_hold_model(&store, model, payer_alone(payer)), 0);
}

static void evict(void)
{
	store_evict(&store, &devices[0].at, UINT64_MAX);
}

static void promote(struct client *client, struct model *model)
{
	client_init(client);
	load_promote(&load_context, model, payer_alone(payer), &client->waiter);
}

static void note_withdrawn(void *user, const struct model *model)
{
}

/* ---- on the way back --------------------------------------------------------------------------- */

/* A block that it shares with another model was found damaged meanwhile: nobody finds it by its files any more. */
START_TEST(a_promotion_whose_block_is_withdrawn_ends)
{
	struct client client;
	size_t n_steps = SIZE_MAX;
	copies_begin(64 * MIB);
	struct model *one = load(realm, 1, 1, 2, 2 * MIB);
	settle();
	hold(one);
	struct model *two = load(realm, 2, 2, 2, 2 * MIB);
	settle();
	evict();
	ck_assert_int_eq(two->state, MODEL_DEMOTED);
	promote(&client, two);
	run_workers();
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(2));
	fake_mover_compared(fake_mover_job(JOB_COMPARE), true);
	struct block *block = two->blocks[0].block;
	ck_assert_ptr_nonnull(block);
	store_begin_compare(block);
	withdraw_begin(&store, block);
	ck_assert(withdraw_step(&store, &n_steps, note_withdrawn, NULL));
	withdraw_end(&store);
	store_end_compare(&store, block);
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(3));
	ck_assert_uint_eq(client.n_done, 1);
	ck_assert_int_eq(client.status, STATUS_BUSY);
	ck_assert_uint_eq(store.n_models, 1);
	store_unhold_model(&store, one, 0);
}
END_TEST

/* The mover's queue is for all. */
START_TEST(few_copies_of_a_promotion_are_in_the_mover_at_a_time)
{
	struct client client;
	enum { N = 60 };
	unsigned n_most = 0;
	copies_begin(256 * MIB);
	load_context.window_bytes = 1024 * MIB;
	struct model *model = load(realm, 1, 1, N, 2 * MIB);
	settle();
	evict();
	ck_assert_int_eq(model->state, MODEL_DEMOTED);
	promote(&client, model);
	for (unsigned i = 1; i <= N; i++) {
		run_workers();
		n_most = n_jobs(JOB_DIGEST) > n_most ? n_jobs(JOB_DIGEST) : n_most;
		fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(i));
	}
	ck_assert_int_eq(client.status, STATUS_OK);
	ck_assert_uint_le(n_most, 12);
}
END_TEST

/* ---- room ------------------------------------------------------------------------------------- */

/* Each copy has a chunk of its own, and a chunk goes only when the mover has forgotten it. */
START_TEST(a_large_block_costs_as_many_copies_as_it_needs)
{
	copies_begin(8 * MIB);
	for (unsigned i = 1; i <= 4; i++) {
		load(realm, i, i, 1, 2 * MIB);
		settle();
	}
	ck_assert_uint_eq(copies.bytes, 8 * MIB);
	load(realm, 5, 5, 1, 4 * MIB);
	settle();
	ck_assert(has_copy(5));
	ck_assert(has_copy(4));
	ck_assert(has_copy(3));
	ck_assert(!has_copy(2));
}
END_TEST

/* Nobody else makes room for a copy, however long it waits. */
START_TEST(a_copy_does_not_wait_as_programs_do)
{
	copies_begin(4 * MIB);
	allocator.pressure.wait_ms = 3600 * 1000;
	for (unsigned i = 1; i <= 3; i++) {
		load(realm, i, i, 1, 2 * MIB);
		settle();
	}
	ck_assert(has_copy(3));
	ck_assert(!has_copy(1));
}
END_TEST

START_TEST(a_model_that_came_back_was_used_lately)
{
	struct client client;
	copies_begin(4 * MIB);
	struct model *one = load(realm, 1, 1, 1, 2 * MIB);
	settle();
	load(realm, 2, 2, 1, 2 * MIB);
	settle();
	evict();
	promote(&client, one);
	run_workers();
	fake_mover_digested(fake_mover_job(JOB_DIGEST), digest(1));
	ck_assert_int_eq(client.status, STATUS_OK);
	hold(one);
	load(realm, 3, 3, 1, 2 * MIB);
	settle();
	ck_assert(has_copy(3));
	ck_assert(has_copy(1));
	ck_assert(!has_copy(2));
	store_unhold_model(&store, one, 0);
}
END_TEST

START_TEST(a_model_larger_than_host_memory_takes_nobodys_place)
{
	copies_begin(8 * MIB);
	struct model *one = load(realm, 1, 1, 1, 2 * MIB);
	settle();
	evict();
	load(realm, 2, 2, 5, 2 * MIB);
	settle();
	ck_assert_uint_eq(store.n_models, 2);
	ck_assert_int_eq(one->state, MODEL_DEMOTED);
	ck_assert(!has_copy(2));
}
END_TEST

/* ---- movers that die --------------------------------------------------------------------------- */

START_TEST(a_mover_that_cannot_end_keeps_one_block_from_being_copied)
{
	copies_begin(64 * MIB);
	load(realm, 1, 1, 2, 2 * MIB);
	run_workers();
	ck_assert(has_job(JOB_DIGEST));
	fake_mover_die_slowly();
	run_workers();
	ck_assert(has_job(JOB_DIGEST));
	fake_mover_digested(find_job(JOB_DIGEST), digest(2));
	ck_assert(has_copy(2));
	ck_assert(!has_copy(1));
	end_dead_movers();
}
END_TEST

/* The next mover has the chunk mapped when the previous one is gone. */
START_TEST(a_chunk_goes_when_all_movers_have_forgotten_it)
{
	copies_begin(64 * MIB);
	load(realm, 1, 1, 1, 2 * MIB);
	settle();
	store_evict_all(&store, NULL, NULL);
	ck_assert(has_job(JOB_FORGET));
	fake_mover_die_slowly();
	load(realm, 2, 2, 1, 2 * MIB);
	run_workers();
	fake_mover_digested(find_job(JOB_DIGEST), digest(2));
	store_evict_all(&store, NULL, NULL);
	end_dead_movers();
	ck_assert(has_job(JOB_FORGET));
	ck_assert_uint_gt(host->use_bytes[CHUNK_COPIES], 0);
	settle();
	run_workers();
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], 0);
}
END_TEST

/* The copy does not wait for a mover that cannot end, nor beyond the end of glaked. */
START_TEST_WITH(a_copy_waits_for_a_chunk_to_be_forgotten, .n = 3)
{
	copies_begin(4 * MIB);
	load(realm, 1, 1, 1, 2 * MIB);
	settle();
	load(realm, 2, 2, 1, 2 * MIB);
	settle();
	load(realm, 3, 3, 1, 4 * MIB);
	run_workers();
	ck_assert(has_job(JOB_FORGET));
	ck_assert(has_copy(2));
	ck_assert_ptr_nonnull(copies.taking);
	if (_i == 0) {
		settle();
		ck_assert(has_copy(3) && !has_copy(2) && !has_copy(1));
	} else if (_i == 1) {
		fake_mover_die_slowly();
		settle();
		ck_assert_ptr_null(copies.taking);
		end_dead_movers();
	} else {
		copies_close(&copies);
		ck_assert_ptr_null(copies.taking);
	}
}
END_TEST

/* Whoever has a block can write to it. */
START_TEST(lines_about_wrong_copies_are_limited)
{
	copies_begin(64 * MIB);
	load(realm, 1, 1, 20, 2 * MIB);
	run_workers();
	while (!list_is_empty(&copies.writing)) {
		fake_mover_digested(find_job(JOB_DIGEST), digest(100));
		run_workers();
	}
	ck_assert_uint_gt(store.cache->log_limit.n_swallowed, 0);
}
END_TEST

START_TEST(models_in_host_memory_cost_their_own_realm_when_manifests_are_many)
{
	enum { N = 70 };
	copies_begin(64 * MIB);
	for (unsigned i = 1; i <= N; i++) {
		struct model *model = load(realm, i, 1, 1, 2 * MIB);
		ck_assert_int_eq(charge_grow_manifest(&model->charge, 2 * MIB), 0);
		model->manifest_bytes += 2 * MIB;
		realm->idle_manifest_bytes += 2 * MIB;
	}
	settle();
	evict();
	struct realm *other = realm_get(&realms, "two");
	struct model *small = load(other, 1, 1, 1, 2 * MIB);
	settle();
	store_trim(&store);
	ck_assert_uint_le(store.cache->manifest_bytes, STORE_IDLE_MANIFEST_BYTES);
	ck_assert_uint_gt(store.n_models, N / 2);
	ck_assert_ptr_eq(list_first(&store.idle, struct model, idle.link), small);
	store_evict_all(&store, NULL, NULL);
	ck_assert_uint_eq(realm->idle_manifest_bytes, 0);
	ck_assert_uint_eq(other->idle_manifest_bytes, 0);
	realm_unref(other);
}
END_TEST

static unsigned n_evictions;

static void note_eviction(void *user, uint64_t n_fds)
{
	n_evictions++;
}

/* An unused model is worth more than its copy. */
START_TEST(a_copy_takes_no_fd_of_what_is_on_the_gpu)
{
	copies_begin(64 * MIB);
	allocator.pressure.sources[PRESSURE_UNUSED].take_fds = note_eviction;
	allocator.books.max_fds = 1;
	load(realm, 1, 1, 1, 2 * MIB);
	settle();
	ck_assert_uint_eq(n_evictions, 0);
	ck_assert(!has_copy(1));
}
END_TEST

/* As for loads from files. */
START_TEST(a_user_has_a_share_of_the_promotions)
{
	enum { N = 50 };
	static struct client clients[N];
	static struct model *models[N];
	unsigned n_refused = 0;
	copies_begin(256 * MIB);
	for (unsigned i = 0; i < N; i++) {
		models[i] = load(realm, i + 1, i + 1, 1, 2 * MIB);
		settle();
	}
	evict();
	for (unsigned i = 0; i < N; i++) {
		promote(&clients[i], models[i]);
		n_refused += clients[i].n_done == 1 && clients[i].status == STATUS_BUSY;
	}
	ck_assert_uint_eq(n_refused, N - GLAKE_MAX_LOADS / 2);
	run_workers();
	fake_mover_die();
	for (unsigned i = 0; i < N; i++) {
		ck_assert_int_eq(models[i]->state, MODEL_DEMOTED);
	}
	promote(&clients[0], models[0]);
	run_workers();
	fake_mover_digested(find_job(JOB_DIGEST), digest(1));
	ck_assert_int_eq(clients[0].status, STATUS_OK);
}
END_TEST

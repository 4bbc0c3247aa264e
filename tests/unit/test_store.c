/* SPDX-License-Identifier: Apache-2.0 */
/* The models that the store evicts, and their order. */
#include <errno.h>

#include "tests/unit/made_store.h"

BEGIN_EACH(store_begin)
END_EACH(store_end)

static bool is_there(uint32_t device, unsigned name)
{
	struct digest of_name = digest(name);
	return store_find_block(&store, realm, &devices[device].at, &of_name) != NULL;
}

START_TEST(the_lowest_priority_goes_first_and_then_the_longest_idle)
{
	static const struct {
		unsigned name;
		int32_t priority;
	} cached[] = {{1, 5}, {2, -1}, {3, 0}, {4, 5}, {5, 0}, {6, -1}, {7, 9}};
	static const unsigned order[] = {2, 6, 3, 5, 1, 4, 7};
	for (size_t i = 0; i < n_elements(cached); i++) {
		cache_block(0, cached[i].name, cached[i].priority);
	}
	for (size_t i = 0; i < n_elements(order); i++) {
		ck_assert(is_there(0, order[i]));
		ck_assert_uint_eq(store_evict(&store, &devices[0].at, 1), 2 * MIB);
		ck_assert(!is_there(0, order[i]));
	}
	ck_assert_uint_eq(store_evict(&store, &devices[0].at, 1), 0);
}
END_TEST

START_TEST(only_as_much_as_is_wanted_goes_and_only_of_the_device)
{
	struct block *used = add_block(0, 1);
	for (unsigned name = 2; name <= 6; name++) {
		cache_block(name % 2, name, 0);
	}
	ck_assert_uint_eq(store_evict(&store, &devices[0].at, 3 * MIB), 4 * MIB);
	ck_assert(!is_there(0, 2) && !is_there(0, 4) && is_there(0, 6));
	ck_assert(is_there(1, 3) && is_there(1, 5));
	ck_assert_uint_eq(store_evict(&store, &devices[0].at, 100 * MIB), 2 * MIB);
	ck_assert(is_there(0, 1));
	ck_assert_uint_eq(stats.blocks_evicted, 3);
	ck_assert_uint_eq(stats.evicted_bytes, 6 * MIB);
	store_unuse_block(&store, used, 0);
}
END_TEST

START_TEST(for_fds_as_many_go_as_are_wanted_of_any_device)
{
	struct block *used = add_block(0, 1);
	for (unsigned name = 2; name <= 6; name++) {
		cache_block(name % 2, name, 0);
	}
	store_evict_fds(&store, 3);
	ck_assert(!is_there(0, 2) && !is_there(1, 3) && !is_there(0, 4));
	ck_assert(is_there(1, 5) && is_there(0, 6));
	ck_assert_uint_eq(books.n_fds, 3);
	store_evict_fds(&store, 3);
	ck_assert_uint_eq(books.n_fds, 1);
	store_unuse_block(&store, used, 0);
}
END_TEST

/* In use or pinned it is paid for by who keeps it, else by the cache. */
START_TEST(a_manifest_is_paid_for_by_who_keeps_the_model)
{
	struct tenant *cache = tenant_table_cache(tenants);
	struct tenant *other = other_payer;
	struct file_id file = {.inode = 1};
	struct model *model = store_add_model(&store, realm, &devices[0], payer_alone(payer), "m",
	                                      &file, 1);
	ck_assert_int_eq(model_add_tensor(model, "t", 0, NULL, NULL, 0, 0, 0), 0);
	ck_assert_int_eq(charge_grow_manifest(&model->charge, model->manifest_bytes), 0);
	uint64_t bytes = model->manifest_bytes;
	ck_assert_uint_eq(payer->manifest_bytes, bytes);
	store_ready(&store, model);
	store_unhold_model(&store, model, 0);
	ck_assert_uint_eq(payer->manifest_bytes, 0);
	ck_assert_uint_eq(cache->manifest_bytes, bytes);
	ck_assert_int_eq(store_hold_model(&store, model, payer_alone(payer)), 0);
	ck_assert_uint_eq(payer->manifest_bytes, bytes);
	other->quota_manifest_bytes = bytes - 1;
	ck_assert_int_eq(store_pin_model(&store, model, payer_alone(other)), TENANT_E_MANIFESTS);
	ck_assert_uint_eq(payer->manifest_bytes, bytes);
	ck_assert_uint_eq(other->n_charges, 0);
	other->quota_manifest_bytes = bytes;
	ck_assert_int_eq(store_pin_model(&store, model, payer_alone(other)), 0);
	ck_assert_uint_eq(payer->manifest_bytes, 0);
	store_unhold_model(&store, model, 0);
	ck_assert_int_eq(store_hold_model(&store, model, payer_alone(payer)), 0);
	ck_assert_uint_eq(other->manifest_bytes, bytes);
	store_unpin_model(&store, model);
	ck_assert_uint_eq(other->manifest_bytes, bytes);
	store_unhold_model(&store, model, 0);
	ck_assert_uint_eq(cache->manifest_bytes, bytes);
	store_evict_model(&store, model);
	ck_assert_uint_eq(cache->manifest_bytes, 0);
}
END_TEST

/* Every load walks through them. */
START_TEST(models_that_have_nothing_are_bounded_too)
{
	enum { N = 9000 };
	payer->quota_manifest_bytes = 0;
	for (uint64_t i = 1; i <= N; i++) {
		struct file_id file = {.inode = i};
		struct model *model = store_add_model(&store, realm, &devices[0],
		                                      payer_alone(payer), "m", &file, 1);
		ck_assert_int_eq(charge_grow_manifest(&model->charge, model->manifest_bytes), 0);
		store_ready(&store, model);
		store_unhold_model(&store, model, 0);
	}
	store_trim(&store);
	ck_assert_uint_gt(store.n_models, 0);
	ck_assert_uint_lt(store.n_models, N);
}
END_TEST

/* A million take tens of milliseconds: not on the loop. */
START_TEST(many_tensors_are_freed_by_a_thread)
{
	static const uint64_t shape[] = {1};
	for (size_t n_tensors = 10; n_tensors <= 100000; n_tensors *= 100) {
		struct file_id file = {.inode = 1};
		struct model *model = store_add_model(&store, realm, &devices[0],
		                                      payer_alone(payer), "m", &file, 1);
		for (size_t i = 0; i < n_tensors; i++) {
			ck_assert_int_eq(model_add_tensor(model, "t", 0, shape, NULL, 1, 0, 0), 0);
		}
		store_drop_model(&store, model);
		ck_assert_uint_eq(payer->manifest_bytes, 0);
		ck_assert_uint_eq(loop.active_reqs.count, n_tensors == 100000);
	}
}
END_TEST

/* Wherever in the plan they stand: it is known only at its end how long the span is. */
START_TEST(tensors_outside_the_span_are_no_plan)
{
	static const struct {
		uint64_t offset;
		uint64_t bytes;
		int added;
		int checked;
	} cases[] = {
		{0, 2 * MIB, 0, 0},          {2 * MIB, 0, 0, 0},
		{2 * MIB, 1, 0, -EINVAL},    {0, 2 * MIB + 1, 0, -EINVAL},
		{UINT64_MAX, 1, -EINVAL, 0}, {1, UINT64_MAX, -EINVAL, 0},
		{UINT64_MAX, 0, 0, -EINVAL},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		struct file_id file = {.inode = 1};
		struct model *model = store_add_model(&store, realm, &devices[0],
		                                      payer_alone(payer), "m", &file, 1);
		ck_assert_int_eq(model_add_tensor(model, "t", 0, NULL, NULL, 0, cases[i].offset,
		                                  cases[i].bytes),
		                 cases[i].added);
		ck_assert_int_eq(model_add_tensor(model, "u", 0, NULL, NULL, 0, 0, 1), 0);
		ck_assert_int_eq(model_add_block(model, 1000), 0);
		ck_assert_int_eq(model_check_plan(model), cases[i].checked);
		store_drop_model(&store, model);
	}
}
END_TEST

/* ---- published models ------------------------------------------------------------------------- */

static struct model *new_draft(struct tenant *tenant, struct block *block)
{
	struct model *draft = store_new_draft(&store, realm, &devices[0], payer_alone(tenant),
	                                      "key");
	ck_assert_int_eq(store_add_used_block(&store, draft, block), 0);
	ck_assert_int_eq(charge_grow_manifest(&draft->charge, draft->manifest_bytes), 0);
	return draft;
}

static struct model *find_key(void)
{
	return store_find_published(&store, realm, &devices[0], "key");
}

START_TEST(a_draft_is_no_model_until_it_is_published)
{
	struct block *block = add_block(0, 1);
	struct model *draft = new_draft(payer, block);
	ck_assert_ptr_null(find_key());
	ck_assert_uint_eq(store.n_models, 0);
	store_drop_model(&store, draft);
	ck_assert_uint_eq(payer->manifest_bytes, 0);
	ck_assert_uint_eq(block->n_users, 1);

	draft = new_draft(payer, block);
	ck_assert_int_eq(store_publish(&store, draft, payer_alone(payer), false), 0);
	ck_assert_ptr_eq(find_key(), draft);
	ck_assert_uint_eq(store.n_models, 1);
	store_unuse_block(&store, block, 0);
	ck_assert_uint_eq(payer->at[0].used_bytes, 0);
	/* The next model of the key takes this one along, and its block. */
	block = add_block(0, 2);
	draft = new_draft(payer, block);
	ck_assert_int_eq(store_publish(&store, draft, payer_alone(payer), false), 0);
	ck_assert_ptr_eq(find_key(), draft);
	ck_assert_uint_eq(store.n_models, 1);
	ck_assert_uint_eq(store.n_blocks, 1);
	store_unuse_block(&store, block, 0);
}
END_TEST

/* The pin is the key's: who cannot pay for it leaves the earlier model there. */
START_TEST(a_refused_pin_publishes_nothing)
{
	struct block *first = add_block(0, 1);
	struct block *second = add_block(0, 2);
	struct model *earlier = new_draft(payer, first);
	ck_assert_int_eq(store_publish(&store, earlier, payer_alone(payer), true), 0);
	struct model *draft = new_draft(other_payer, second);
	tenant_set_quota(other_payer, 0, 1);
	ck_assert_int_ne(store_publish(&store, draft, payer_alone(other_payer), false), 0);
	ck_assert_ptr_eq(find_key(), earlier);
	ck_assert(earlier->is_pinned && !draft->is_pinned);
	ck_assert_uint_eq(second->n_pins, 0);
	ck_assert_int_eq(draft->state, MODEL_DRAFT);
	tenant_set_quota(other_payer, 0, 0);
	ck_assert_int_eq(store_publish(&store, draft, payer_alone(other_payer), false), 0);
	ck_assert(draft->is_pinned);
	ck_assert_uint_eq(store.n_models, 1);
	ck_assert_uint_eq(other_payer->at[0].used_bytes, 2 * MIB);
	store_unuse_block(&store, first, 0);
	store_unuse_block(&store, second, 0);
}
END_TEST

START_TEST(a_model_that_is_evicted_is_counted_with_its_blocks)
{
	struct block *block = add_block(0, 1);
	struct block *used = add_block(0, 2);
	struct model *model = new_draft(payer, block);
	ck_assert_int_eq(store_add_used_block(&store, model, used), 0);
	ck_assert_int_eq(store_publish(&store, model, payer_alone(payer), false), 0);
	store_unuse_block(&store, block, 0);
	ck_assert_uint_eq(store_evict_model(&store, model), 2 * MIB);
	ck_assert_uint_eq(stats.models_evicted, 1);
	ck_assert_uint_eq(stats.blocks_evicted, 1);
	ck_assert_uint_eq(stats.evicted_bytes, 2 * MIB);
	store_unuse_block(&store, used, 0);
}
END_TEST

/* Whoever pays for the manifest or a block already, or has two places of a block, pays once. */
START_TEST(a_pin_charges_each_block_once)
{
	struct block *block = add_block(0, 1);
	struct model *model = new_draft(payer, block);
	ck_assert_int_eq(store_add_used_block(&store, model, block), 0);
	ck_assert_int_eq(charge_grow_manifest(&model->charge, model->manifest_bytes), 0);
	tenant_set_quota(payer, 0, 2 * MIB);
	payer->quota_manifest_bytes = payer->manifest_bytes;
	ck_assert_int_eq(store_publish(&store, model, payer_alone(payer), true), 0);
	ck_assert_uint_eq(block->n_pins, 2);
	ck_assert_uint_eq(payer->at[0].used_bytes, 2 * MIB);
	store_unpin_model(&store, model);
	ck_assert_uint_eq(block->n_pins, 0);
	tenant_set_quota(other_payer, 0, 2 * MIB);
	ck_assert_int_eq(store_pin_model(&store, model, payer_alone(other_payer)), 0);
	ck_assert_uint_eq(payer->at[0].used_bytes, 0);
	ck_assert_uint_eq(other_payer->at[0].used_bytes, 2 * MIB);
	tenant_set_quota(payer, 0, 0);
	store_unuse_block(&store, block, 0);
}
END_TEST

static unsigned n_noted;

static void on_block(void *user, const struct block *block)
{
	n_noted++;
}

static void on_model(void *user, const struct model *model, bool is_new)
{
}

/* The books say who pays. */
START_TEST(who_watches_is_told_who_pays_for_a_pin)
{
	static const struct store_watch watch = {.block = on_block, .model = on_model};
	struct block *block = add_block(0, 1);
	struct model *model = new_draft(payer, block);
	ck_assert_int_eq(store_publish(&store, model, payer_alone(payer), false), 0);
	block->is_noted = true;
	store.watch = &watch;
	n_noted = 0;
	ck_assert_int_eq(store_pin_model(&store, model, payer_alone(other_payer)), 0);
	ck_assert_uint_eq(n_noted, 1);
	store.watch = NULL;
	store_unpin_model(&store, model);
	store_unuse_block(&store, block, 0);
}
END_TEST

START_TEST(however_many_chunks_go_at_once_all_go)
{
	enum { N = 600 };
	struct chunk chunks[N];
	for (unsigned i = 0; i < N; i++) {
		struct charge charge;
		ck_assert_int_eq(tenant_charge(payer, 0, 2 * MIB, 1, &charge), 0);
		chunk_init(&chunks[i], &devices[0].at, &books, 2 * MIB, -1, 0, CHUNK_PRIVATE,
		           &charge);
	}
	chunk_release_all(chunks, N);
	ck_assert_uint_eq(devices[0].at.use_bytes[CHUNK_PRIVATE], 0);
	ck_assert_uint_eq(payer->at[0].used_bytes, 0);
	while (devices[0].at.worker.n_pending > 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	ck_assert_uint_eq(devices[0].at.leaving_bytes, 0);
}
END_TEST

/* After a restart: who had a model that was replaced ended meanwhile, and a program had published its block. */
START_TEST(an_adopted_block_of_a_replaced_model_is_cache_once)
{
	struct block *block = add_block(0, 1);
	struct block *other = add_block(0, 2);
	struct model *replaced = new_draft(payer, block);
	ck_assert_int_eq(store_publish(&store, replaced, payer_alone(payer), false), 0);
	ck_assert_int_eq(store_hold_model(&store, replaced, payer_alone(payer)), 0);
	struct model *model = new_draft(payer, other);
	ck_assert_int_eq(store_publish(&store, model, payer_alone(payer), false), 0);
	ck_assert_int_eq(store_hold_model(&store, model, payer_alone(payer)), 0);
	store_set_published(&store, block, true);
	/* Adopted models and blocks have no users at first. */
	replaced->n_holders = 0;
	block->n_users = 0;
	devices[0].at.used_block_bytes -= block->chunk.bytes;
	store_settle_adopted(&store);
	ck_assert_uint_eq(store.n_models, 1);
	ck_assert_uint_eq(store.n_blocks, 2);
	ck_assert_uint_eq(payer->at[0].used_bytes, 2 * MIB);
	store_unhold_model(&store, model, 0);
	store_unuse_block(&store, other, 0);
}
END_TEST

/* Its users keep it, and nobody else finds it. */
START_TEST(a_damaged_block_hides_published_models)
{
	struct block *block = add_block(0, 1);
	struct model *replaced = new_draft(payer, block);
	ck_assert_int_eq(store_publish(&store, replaced, payer_alone(payer), false), 0);
	ck_assert_int_eq(store_hold_model(&store, replaced, payer_alone(payer)), 0);
	struct block *other = add_block(0, 2);
	struct model *model = new_draft(payer, other);
	ck_assert_int_eq(store_add_used_block(&store, model, block), 0);
	ck_assert_int_eq(store_publish(&store, model, payer_alone(payer), false), 0);
	ck_assert_int_eq(store_hold_model(&store, model, payer_alone(payer)), 0);
	ck_assert_int_eq(replaced->state, MODEL_REPLACED);
	store_begin_compare(block);
	withdraw_all(&store, block);
	store_end_compare(&store, block);
	ck_assert_ptr_null(find_key());
	ck_assert_uint_eq(store.n_models, 2);
	store_unhold_model(&store, replaced, 0);
	store_unhold_model(&store, model, 0);
	ck_assert_uint_eq(store.n_models, 0);
	store_unuse_block(&store, block, 0);
	store_unuse_block(&store, other, 0);
}
END_TEST

/* ---- in steps ----------------------------------------------------------------- */

#define N_PLACES 1000u

/* In use; of many places, of which the last one is @block's. NULL: none is. */
static struct model *publish_wide(const char *key, struct block *filler, struct block *block)
{
	struct model *draft = store_new_draft(&store, realm, &devices[0], payer_alone(payer), key);
	for (unsigned i = 0; i < N_PLACES; i++) {
		bool is_last = block && i == N_PLACES - 1;
		ck_assert_int_eq(store_add_used_block(&store, draft, is_last ? block : filler), 0);
	}
	ck_assert_int_eq(charge_grow_manifest(&draft->charge, draft->manifest_bytes), 0);
	ck_assert_int_eq(store_publish(&store, draft, payer_alone(payer), false), 0);
	ck_assert_int_eq(store_hold_model(&store, draft, payer_alone(payer)), 0);
	return draft;
}

static struct model *find(const char *key)
{
	return store_find_published(&store, realm, &devices[0], key);
}

/* However much there is to look at, a turn of the loop looks at so much of it; and nobody finds the models meanwhile. */
START_TEST(a_block_is_withdrawn_in_steps)
{
	static const char *const keys[] = {"a", "b", "c", "d", "e"};
	struct model *models[n_elements(keys)];
	unsigned n_calls = 1;
	unsigned n_found = 0;
	size_t n_steps = 64;
	struct block *filler = add_block(0, 1);
	struct block *block = add_block(0, 2);
	for (unsigned i = 0; i < n_elements(keys); i++) {
		models[i] = publish_wide(keys[i], filler, i == 1 ? NULL : block);
	}
	store_begin_compare(block);
	withdraw_begin(&store, block);
	ck_assert_ptr_null(store_find_block(&store, realm, &devices[0].at, &block->key.digest));
	while (!withdraw_step(&store, &n_steps, count_model, &n_found)) {
		ck_assert_uint_eq(n_steps, 0);
		n_steps = 64;
		if (n_calls == 3) {
			/* Neither was looked at yet. */
			ck_assert_ptr_null(find("c"));
			ck_assert_ptr_eq(find("b"), models[1]);
			/* This one is being looked at. */
			store_unhold_model(&store, models[0], 0);
			store_evict_model(&store, models[0]);
		} else if (n_calls == 5) {
			/* Idle, it goes with its step. */
			store_unhold_model(&store, models[4], 0);
		}
		n_calls++;
	}
	ck_assert_uint_ge(n_calls, 3 * N_PLACES / 64);
	ck_assert_uint_eq(n_found, 3);
	withdraw_end(&store);
	store_end_compare(&store, block);
	ck_assert_uint_eq(store.n_models, 3);
	ck_assert_ptr_eq(find("b"), models[1]);
	/* And so a listing looks at one. */
	n_steps = 0;
	for (n_calls = 0; !store_look_at_parts(&store, models[1], &n_steps); n_calls++) {
		ck_assert_uint_eq(models[1]->parts.unique_bytes, 0);
		ck_assert_uint_eq(n_steps, 0);
		n_steps = 64;
	}
	ck_assert_uint_eq(n_calls, N_PLACES / 64 + 1);
	/* The filler is everywhere, the last block is not in this one. */
	ck_assert_uint_eq(models[1]->parts.unique_bytes, 0);
	double part = models[1]->parts.part_bytes;
	ck_assert(part > 0.3 * (double)filler->chunk.bytes &&
	          part < 0.4 * (double)filler->chunk.bytes);
	for (unsigned i = 1; i < 4; i++) {
		store_unhold_model(&store, models[i], 0);
	}
	store_unuse_block(&store, block, 0);
	store_unuse_block(&store, filler, 0);
}
END_TEST

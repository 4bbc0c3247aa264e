/* SPDX-License-Identifier: Apache-2.0 */
/* The store by itself, with chunks that have no memory: what is evicted, and in which order. */
#include "daemon/store.h"

#include "proto/limits.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)
#define N_DEVICES 2u

static uv_loop_t loop;
static struct device devices[N_DEVICES];
static struct tenant_table *tenants;
static struct tenant *payer;
static struct list realms = LIST_INIT(realms);
static struct realm *realm;
static struct stats stats;
static struct chunk_books books = {.max_fds = UINT64_MAX, .stats = &stats};
static struct store store;

static void begin(void)
{
	char error[256];
	struct config *config;
	ck_assert_int_eq(config_load(NULL, &config, error, sizeof(error)), 0);
	ck_assert_int_eq(tenant_table_new(config, N_DEVICES, &tenants), 0);
	config_free(config);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i].index = i;
		ck_assert_int_eq(worker_init(&devices[i].worker, &loop), 0);
	}
	payer = tenant_find(tenants, CONFIG_DEFAULT_TENANT);
	realm = realm_get(&realms, "one");
	store_init(&store, &loop, tenant_table_cache(tenants), &stats);
}

static void end(void)
{
	store_deinit(&store);
	tenant_table_free(tenants);
	realm_unref(realm);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		while (devices[i].worker.n_pending > 0) {
			uv_run(&loop, UV_RUN_ONCE);
		}
		worker_deinit(&devices[i].worker);
	}
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static struct digest digest(unsigned name)
{
	return (struct digest){.low = name};
}

/* A block of 2 MiB that a program published; in use. */
static struct block *add_block(uint32_t device, unsigned name)
{
	struct charge charge;
	struct chunk chunk;
	struct digest of_name = digest(name);
	ck_assert_int_eq(tenant_charge(payer, device, 2 * MIB, 1, &charge), 0);
	chunk_init(&chunk, &devices[device], &books, 2 * MIB, -1, 0, CHUNK_BLOCK, &charge);
	struct block *block = store_seal(&store, realm, &of_name, 2 * MIB, &chunk, false);
	ck_assert_ptr_nonnull(block);
	block->is_published = true;
	return block;
}

/* The same, and nobody uses it any more. */
static void cache_block(uint32_t device, unsigned name, int32_t priority)
{
	store_unuse_block(&store, add_block(device, name), priority);
}

static bool is_there(uint32_t device, unsigned name)
{
	struct digest of_name = digest(name);
	return store_find_block(&store, realm, &devices[device], &of_name) != NULL;
}

START_TEST(the_lowest_priority_goes_first_and_then_the_longest_idle)
{
	static const struct {
		unsigned name;
		int32_t priority;
	} cached[] = {{1, 5}, {2, -1}, {3, 0}, {4, 5}, {5, 0}, {6, -1}, {7, 9}};
	static const unsigned order[] = {2, 6, 3, 5, 1, 4, 7};
	begin();
	for (size_t i = 0; i < n_elements(cached); i++) {
		cache_block(0, cached[i].name, cached[i].priority);
	}
	for (size_t i = 0; i < n_elements(order); i++) {
		ck_assert(is_there(0, order[i]));
		ck_assert_uint_eq(store_evict(&store, &devices[0], 1), 2 * MIB);
		ck_assert(!is_there(0, order[i]));
	}
	ck_assert_uint_eq(store_evict(&store, &devices[0], 1), 0);
	end();
}
END_TEST

START_TEST(only_as_much_as_is_wanted_goes_and_only_of_the_device)
{
	begin();
	struct block *used = add_block(0, 1);
	for (unsigned name = 2; name <= 6; name++) {
		cache_block(name % 2, name, 0);
	}
	ck_assert_uint_eq(store_evict(&store, &devices[0], 3 * MIB), 4 * MIB);
	ck_assert(!is_there(0, 2) && !is_there(0, 4) && is_there(0, 6));
	ck_assert(is_there(1, 3) && is_there(1, 5));
	ck_assert_uint_eq(store_evict(&store, &devices[0], 100 * MIB), 2 * MIB);
	ck_assert(is_there(0, 1));
	store_unuse_block(&store, used, 0);
	end();
}
END_TEST

START_TEST(for_fds_as_many_go_as_are_wanted_of_any_device)
{
	begin();
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
	end();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store");
	suite_add(suite, the_lowest_priority_goes_first_and_then_the_longest_idle);
	suite_add(suite, only_as_much_as_is_wanted_goes_and_only_of_the_device);
	suite_add(suite, for_fds_as_many_go_as_are_wanted_of_any_device);
	return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The store by itself, with chunks that have no memory. */
#ifndef GLAKE_TESTS_MADE_STORE_H
#define GLAKE_TESTS_MADE_STORE_H

#include "daemon/store/store.h"
#include "daemon/store/withdraw.h"
#include "proto/limits.h"
#include "tests/check_glake.h"

#define MADE_UNUSED __attribute__((unused))
#define MIB (1024ull * 1024)
#define N_DEVICES 2u

static uv_loop_t loop;
static struct device devices[N_DEVICES];
MADE_UNUSED static struct location *locations[N_DEVICES];
static struct tenant_table *tenants;
static struct tenant *payer;
/* The other payer has a table of his own, since the default configuration has one tenant. */
static struct tenant_table *other_tenants;
static struct tenant *other_payer;
static struct list realms = LIST_INIT(realms);
static struct realm *realm;
static struct stats stats;
static struct chunk_books books = {.max_fds = UINT64_MAX, .stats = &stats};
static struct store store;

MADE_UNUSED static void store_begin(void)
{
	char error[256];
	struct config *config;
	ck_assert_int_eq(config_load(NULL, &config, error, sizeof(error)), 0);
	ck_assert_int_eq(tenant_table_new(config, N_DEVICES, 0, &tenants), 0);
	ck_assert_int_eq(tenant_table_new(config, N_DEVICES, 0, &other_tenants), 0);
	config_free(config);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i].index = devices[i].at.number = devices[i].at.slot = i;
		locations[i] = &devices[i].at;
		ck_assert_int_eq(location_start(&devices[i].at, &loop), 0);
	}
	payer = tenant_find(tenants, CONFIG_DEFAULT_TENANT);
	other_payer = tenant_find(other_tenants, CONFIG_DEFAULT_TENANT);
	realm = realm_get(&realms, "one");
	store_init(&store, &loop, tenant_table_cache(tenants), &stats);
}

MADE_UNUSED static void store_end(void)
{
	store_deinit(&store);
	tenant_table_free(tenants);
	tenant_table_free(other_tenants);
	realm_unref(realm);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		while (devices[i].at.worker.n_pending > 0) {
			uv_run(&loop, UV_RUN_ONCE);
		}
		location_close(&devices[i].at);
	}
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

MADE_UNUSED static struct digest digest(unsigned name)
{
	return (struct digest){.low = name};
}

/* A block that a program published; in use. */
MADE_UNUSED static struct block *add_sized_block(struct realm *owner, uint32_t device,
                                                 unsigned name, uint64_t bytes)
{
	struct charge charge;
	struct chunk chunk;
	struct digest of_name = digest(name);
	ck_assert_int_eq(tenant_charge(payer, device, bytes, 1, &charge), 0);
	chunk_init(&chunk, &devices[device].at, &books, bytes, -1, 0, CHUNK_BLOCK, &charge);
	struct block *block = store_seal(&store, owner, NULL, &of_name, bytes, &chunk, false);
	ck_assert_ptr_nonnull(block);
	block->is_published = true;
	return block;
}

MADE_UNUSED static struct block *add_block(uint32_t device, unsigned name)
{
	return add_sized_block(realm, device, name, 2 * MIB);
}

/* As add_block(), but nobody uses the block any more. */
MADE_UNUSED static void cache_block(uint32_t device, unsigned name, int32_t priority)
{
	store_unuse_block(&store, add_block(device, name), priority);
}

static void count_model(void *user, const struct model *model)
{
	++*(unsigned *)user;
}

/* As damage.c does it, at once. The caller has the block from store_begin_compare(). Returns the number of its models. */
MADE_UNUSED static unsigned withdraw_all(struct store *of, struct block *block)
{
	unsigned n = 0;
	size_t n_steps = SIZE_MAX;
	withdraw_begin(of, block);
	ck_assert(withdraw_step(of, &n_steps, count_model, &n));
	withdraw_end(of);
	return n;
}

#endif

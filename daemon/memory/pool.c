/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/pool.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* A chunk that is being made for the pool. */
struct order {
	struct work work;
	struct pool *pool;
	struct pool_size *size;
	CUresult result;
	int fd;
	struct charge charge;
};

void pool_init(struct pool *pool, struct device *device, struct chunk_books *books,
               struct tenant *payer)
{
	*pool = (struct pool){.device = device, .books = books, .payer = payer};
}

void pool_want(struct pool *pool, uint64_t chunk_bytes, unsigned n_wanted)
{
	assert(pool->n_sizes < CONFIG_MAX_POOL_SIZES && n_wanted <= CONFIG_MAX_POOL_CHUNKS);
	pool->sizes[POOL_FOLLOWED_SIZES + pool->n_sizes++] = (struct pool_size){
		.chunk_bytes = chunk_bytes,
		.n_wanted = n_wanted,
	};
}

static bool is_followed(const struct pool *pool, const struct pool_size *size)
{
	return size - pool->sizes < POOL_FOLLOWED_SIZES;
}

static unsigned n_all(const struct pool *pool)
{
	return POOL_FOLLOWED_SIZES + pool->n_sizes;
}

static struct pool_size *find(struct pool *pool, uint64_t bytes)
{
	for (unsigned i = 0; i < n_all(pool); i++) {
		if (pool->sizes[i].chunk_bytes == bytes) {
			return &pool->sizes[i];
		}
	}
	return NULL;
}

/* ---- making ------------------------------------------------------------------------------------ */

static bool make(struct work *work)
{
	struct order *order = container_of(work, struct order, work);
	order->result = device_make_chunk(order->pool->device, order->size->chunk_bytes, &order->fd,
	                                  NULL);
	return true;
}

static void keep(struct work *work)
{
	struct order *order = container_of(work, struct order, work);
	struct pool *pool = order->pool;
	struct pool_size *size = order->size;
	size->n_coming--;
	pool->n_followed_bytes -= is_followed(pool, size) ? size->chunk_bytes : 0;
	pool->device->coming_bytes -= size->chunk_bytes;
	pool->books->n_fds--;
	if (order->result != CUDA_SUCCESS) {
		/* Not an error: the GPU may be full, and requests work without the pool. */
		pool->is_paused = true;
		charge_refund(&order->charge);
		free(order);
		return;
	}
	struct chunk chunk;
	chunk_init(&chunk, pool->device, pool->books, size->chunk_bytes, order->fd, 0, CHUNK_POOL,
	           &order->charge);
	free(order);
	if (pool->is_paused || size->n_chunks >= size->n_wanted) {
		chunk_release(&chunk);
		return;
	}
	pool->n_followed_bytes += is_followed(pool, size) ? size->chunk_bytes : 0;
	chunk_move(&size->chunks[size->n_chunks++], &chunk);
}

static bool order_one(struct pool *pool, struct pool_size *size)
{
	struct order *order = calloc(1, sizeof(*order));
	if (!order) {
		return false;
	}
	order->pool = pool;
	order->size = size;
	if (tenant_charge(pool->payer, pool->device->index, size->chunk_bytes, 1, &order->charge)) {
		free(order);
		return false;
	}
	size->n_coming++;
	pool->n_followed_bytes += is_followed(pool, size) ? size->chunk_bytes : 0;
	pool->device->coming_bytes += size->chunk_bytes;
	pool->books->n_fds++;
	worker_submit(&pool->device->worker, &order->work, WORKER_NOBODY, make, keep);
	return true;
}

static bool may_order(const struct pool *pool, const struct pool_size *size)
{
	bool is_little = !is_followed(pool, size) ||
	                 pool->n_followed_bytes + size->chunk_bytes <= POOL_FOLLOWED_BYTES;
	return is_little && device_has_room(pool->device, size->chunk_bytes) &&
	       pool->books->n_fds < pool->books->max_fds / 4 * 3;
}

void pool_refill(struct pool *pool)
{
	for (unsigned i = 0; i < n_all(pool) && !pool->is_paused; i++) {
		struct pool_size *size = &pool->sizes[i];
		while (size->n_chunks + size->n_coming < size->n_wanted) {
			if (!may_order(pool, size) || !order_one(pool, size)) {
				break;
			}
		}
	}
}

/* ---- following --------------------------------------------------------------------------------- */

static void give_up(struct pool *pool, struct pool_size *size)
{
	pool->n_followed_bytes -= is_followed(pool, size) ? size->n_chunks * size->chunk_bytes : 0;
	chunk_release_all(size->chunks, size->n_chunks);
	size->n_chunks = 0;
}

/* It is not wanted any more. What is coming is released when it has come. */
static void forget(struct pool *pool, struct pool_size *size)
{
	give_up(pool, size);
	size->n_wanted = 0;
	if (size->n_coming == 0) {
		size->chunk_bytes = 0;
	}
}

void pool_follow(struct pool *pool, uint64_t bytes)
{
	struct pool_size *size = find(pool, bytes);
	if (!size) {
		size = find(pool, 0);
		if (size && pool->n_sizes > 0 && bytes <= POOL_FOLLOWED_BYTES) {
			*size = (struct pool_size){.chunk_bytes = bytes, .was_asked = true};
		}
	} else if (is_followed(pool, size)) {
		size->was_asked = true;
		size->n_wanted += size->n_wanted < POOL_FOLLOWED_CHUNKS;
	}
}

bool pool_take(struct pool *pool, uint64_t bytes, struct chunk *chunk_out)
{
	struct pool_size *size = find(pool, bytes);
	if (!size || size->n_chunks == 0) {
		return false;
	}
	size->was_asked = true;
	pool->n_followed_bytes -= is_followed(pool, size) ? bytes : 0;
	chunk_move(chunk_out, &size->chunks[--size->n_chunks]);
	charge_refund(&chunk_out->charge);
	return true;
}

uint64_t pool_drain(struct pool *pool)
{
	uint64_t freed_bytes = 0;
	pool->is_paused = true;
	for (unsigned i = 0; i < n_all(pool); i++) {
		struct pool_size *size = &pool->sizes[i];
		freed_bytes += size->n_chunks * size->chunk_bytes;
		if (is_followed(pool, size)) {
			forget(pool, size);
		} else {
			give_up(pool, size);
		}
	}
	return freed_bytes;
}

void pool_resume(struct pool *pool)
{
	pool->is_paused = false;
	for (unsigned i = 0; i < POOL_FOLLOWED_SIZES; i++) {
		if (!pool->sizes[i].was_asked) {
			forget(pool, &pool->sizes[i]);
		}
		pool->sizes[i].was_asked = false;
	}
	pool_refill(pool);
}

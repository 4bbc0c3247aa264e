/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/stock.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* A chunk that is being made for the stock. */
struct making {
	struct work work;
	struct stock *stock;
	struct stock_size *size;
	CUresult result;
	int fd;
	struct charge charge;
};

void stock_init(struct stock *stock, struct location *at, struct chunk_books *books,
                struct tenant *payer)
{
	*stock = (struct stock){.at = at, .books = books, .payer = payer};
}

void stock_want(struct stock *stock, uint64_t chunk_bytes, unsigned n_wanted)
{
	assert(stock->n_sizes < CONFIG_MAX_STOCK_SIZES && n_wanted <= CONFIG_MAX_STOCK_CHUNKS);
	stock->sizes[STOCK_FOLLOWED_SIZES + stock->n_sizes++] = (struct stock_size){
		.chunk_bytes = chunk_bytes,
		.n_wanted = n_wanted,
	};
}

static bool is_followed(const struct stock *stock, const struct stock_size *size)
{
	return size - stock->sizes < STOCK_FOLLOWED_SIZES;
}

static unsigned n_all(const struct stock *stock)
{
	return STOCK_FOLLOWED_SIZES + stock->n_sizes;
}

static struct stock_size *find(struct stock *stock, uint64_t bytes)
{
	for (unsigned i = 0; i < n_all(stock); i++) {
		if (stock->sizes[i].chunk_bytes == bytes) {
			return &stock->sizes[i];
		}
	}
	return NULL;
}

/* ---- making ------------------------------------------------------------------------------------ */

static bool make(struct work *work)
{
	struct making *making = container_of(work, struct making, work);
	making->result = location_make_chunk(making->stock->at, making->size->chunk_bytes,
	                                     &making->fd, NULL);
	return true;
}

static void keep(struct work *work)
{
	struct making *making = container_of(work, struct making, work);
	struct stock *stock = making->stock;
	struct stock_size *size = making->size;
	size->n_coming--;
	stock->n_followed_bytes -= is_followed(stock, size) ? size->chunk_bytes : 0;
	stock->at->coming_bytes -= size->chunk_bytes;
	stock->books->n_fds--;
	if (making->result != CUDA_SUCCESS) {
		/* Not an error: the GPU may be full, and requests work without the stock. */
		stock->is_paused = true;
		charge_refund(&making->charge);
		free(making);
		return;
	}
	struct chunk chunk;
	chunk_init(&chunk, stock->at, stock->books, size->chunk_bytes, making->fd, 0, CHUNK_STOCK,
	           &making->charge);
	free(making);
	if (stock->is_paused || size->n_chunks >= size->n_wanted) {
		chunk_release(&chunk);
		return;
	}
	stock->n_followed_bytes += is_followed(stock, size) ? size->chunk_bytes : 0;
	chunk_move(&size->chunks[size->n_chunks++], &chunk);
}

static bool order_one(struct stock *stock, struct stock_size *size)
{
	struct making *making = calloc(1, sizeof(*making));
	if (!making) {
		return false;
	}
	making->stock = stock;
	making->size = size;
	if (tenant_charge(stock->payer, stock->at->slot, size->chunk_bytes, 1, &making->charge)) {
		free(making);
		return false;
	}
	size->n_coming++;
	stock->n_followed_bytes += is_followed(stock, size) ? size->chunk_bytes : 0;
	stock->at->coming_bytes += size->chunk_bytes;
	stock->books->n_fds++;
	worker_submit(&stock->at->worker, &making->work, WORKER_NOBODY, make, keep);
	return true;
}

static bool may_order(const struct stock *stock, const struct stock_size *size)
{
	bool is_little = !is_followed(stock, size) ||
	                 stock->n_followed_bytes + size->chunk_bytes <= STOCK_FOLLOWED_BYTES;
	return is_little && location_has_room(stock->at, size->chunk_bytes) &&
	       stock->books->n_fds < stock->books->max_fds / 4 * 3;
}

void stock_refill(struct stock *stock)
{
	for (unsigned i = 0; i < n_all(stock) && !stock->is_paused; i++) {
		struct stock_size *size = &stock->sizes[i];
		while (size->n_chunks + size->n_coming < size->n_wanted) {
			if (!may_order(stock, size) || !order_one(stock, size)) {
				break;
			}
		}
	}
}

/* ---- following --------------------------------------------------------------------------------- */

static void give_up(struct stock *stock, struct stock_size *size)
{
	stock->n_followed_bytes -= is_followed(stock, size) ? size->n_chunks * size->chunk_bytes
	                                                    : 0;
	chunk_release_all(size->chunks, size->n_chunks);
	size->n_chunks = 0;
}

/* The size is not wanted any more. Chunks that are coming are released when they have come. */
static void forget(struct stock *stock, struct stock_size *size)
{
	give_up(stock, size);
	size->n_wanted = 0;
	if (size->n_coming == 0) {
		size->chunk_bytes = 0;
	}
}

void stock_follow(struct stock *stock, uint64_t bytes)
{
	struct stock_size *size = find(stock, bytes);
	if (!size) {
		size = find(stock, 0);
		if (size && stock->n_sizes > 0 && bytes <= STOCK_FOLLOWED_BYTES) {
			*size = (struct stock_size){.chunk_bytes = bytes, .was_asked = true};
		}
	} else if (is_followed(stock, size)) {
		size->was_asked = true;
		size->n_wanted += size->n_wanted < STOCK_FOLLOWED_CHUNKS;
	}
}

bool stock_take(struct stock *stock, uint64_t bytes, struct chunk *chunk_out)
{
	struct stock_size *size = find(stock, bytes);
	if (!size || size->n_chunks == 0) {
		return false;
	}
	size->was_asked = true;
	stock->n_followed_bytes -= is_followed(stock, size) ? bytes : 0;
	chunk_move(chunk_out, &size->chunks[--size->n_chunks]);
	charge_refund(&chunk_out->charge);
	return true;
}

uint64_t stock_drain(struct stock *stock)
{
	uint64_t freed_bytes = 0;
	stock->is_paused = true;
	for (unsigned i = 0; i < n_all(stock); i++) {
		struct stock_size *size = &stock->sizes[i];
		freed_bytes += size->n_chunks * size->chunk_bytes;
		if (is_followed(stock, size)) {
			forget(stock, size);
		} else {
			give_up(stock, size);
		}
	}
	return freed_bytes;
}

void stock_resume(struct stock *stock)
{
	stock->is_paused = false;
	for (unsigned i = 0; i < STOCK_FOLLOWED_SIZES; i++) {
		if (!stock->sizes[i].was_asked) {
			forget(stock, &stock->sizes[i]);
		}
		stock->sizes[i].was_asked = false;
	}
	stock_refill(stock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels as CPU code: the sim's own, and those of images that tests bring along. Each ignores the shape
 * of its launch and does the whole of its work; each touches memory only through `reach`, so a forbidden
 * access is CUDA_ERROR_ILLEGAL_ADDRESS.
 */
#include "kernel_image.h"
#include "sim.h"

#include <pthread.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* for a state on the stack */
#include <xxhash.h>

#define LEAF_BYTES 8192ULL
#define DIGEST_BYTES 16ULL

/* Looks at one piece of a range; false stops the walk. */
typedef bool (*piece_fn)(uint8_t *host, uint64_t bytes, void *state);

/* Calls fn for each piece of the range, under the lock; false if some byte is out of reach. */
static bool reach(struct ctx *ctx, uint64_t addr, uint64_t bytes, enum space_access want,
                  piece_fn fn, void *state)
{
	while (bytes > 0) {
		uint64_t n = bytes < SIM_PIECE_BYTES ? bytes : SIM_PIECE_BYTES;
		uint8_t *host;

		space_lock_read();
		bool ok = space_resolve(addr, n, want, SPACE_BY_KERNEL, ctx->device, &host, &n);
		bool goes_on = ok && fn(host, n, state);
		space_unlock();
		if (!goes_on) {
			return ok;
		}
		addr += n;
		bytes -= n;
	}
	return true;
}

static bool load_piece(uint8_t *host, uint64_t bytes, void *state)
{
	uint8_t **at = state;

	bytes_move(*at, host, bytes);
	*at += bytes;
	return true;
}

static bool store_piece(uint8_t *host, uint64_t bytes, void *state)
{
	const uint8_t **at = state;

	bytes_move(host, *at, bytes);
	*at += bytes;
	return true;
}

bool kernel_load(struct ctx *ctx, uint64_t addr, void *value_out, uint64_t bytes)
{
	return reach(ctx, addr, bytes, SPACE_READ, load_piece, &value_out);
}

bool kernel_store(struct ctx *ctx, uint64_t addr, const void *value, uint64_t bytes)
{
	return reach(ctx, addr, bytes, SPACE_WRITE, store_piece, &value);
}

static bool hash_piece(uint8_t *host, uint64_t bytes, void *state)
{
	return XXH3_128bits_update(state, host, bytes) == XXH_OK;
}

/* Store the low 64 bits, then the high 64 bits, as the GPU does. */
static bool store_digest(struct ctx *ctx, uint64_t addr, XXH128_hash_t hash)
{
	uint64_t words[2] = {hash.low64, hash.high64};

	return kernel_store(ctx, addr, words, sizeof(words));
}

static CUresult digest_leaves(struct ctx *ctx, const uint64_t *params)
{
	uint64_t base = params[0];
	uint64_t n_leaves = params[1];
	uint64_t leaves_out = params[2];

	for (uint64_t i = 0; i < n_leaves; i++) {
		XXH3_state_t state;
		XXH3_INITSTATE(&state);
		XXH3_128bits_reset(&state);
		if (!reach(ctx, base + i * LEAF_BYTES, LEAF_BYTES, SPACE_READ, hash_piece,
		           &state) ||
		    !store_digest(ctx, leaves_out + i * DIGEST_BYTES,
		                  XXH3_128bits_digest(&state))) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
	}
	return CUDA_SUCCESS;
}

struct root_item {
	uint64_t leaves;
	uint64_t n_leaves;
	uint64_t content_bytes;
	uint64_t root_out;
};

static CUresult digest_roots(struct ctx *ctx, const uint64_t *params)
{
	uint64_t items = params[0];
	uint32_t n_items = (uint32_t)params[1];

	for (uint32_t i = 0; i < n_items; i++) {
		struct root_item item;
		XXH3_state_t state;
		XXH3_INITSTATE(&state);
		XXH3_128bits_reset(&state);
		if (!kernel_load(ctx, items + i * sizeof(item), &item, sizeof(item)) ||
		    !reach(ctx, item.leaves, item.n_leaves * DIGEST_BYTES, SPACE_READ, hash_piece,
		           &state)) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		XXH3_128bits_update(&state, &item.content_bytes, sizeof(item.content_bytes));
		if (!store_digest(ctx, item.root_out, XXH3_128bits_digest(&state))) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
	}
	return CUDA_SUCCESS;
}

/* Both ranges under one lock: false if either is out of reach. */
static bool compare_piece(struct ctx *ctx, uint64_t a, uint64_t b, uint64_t *n, bool *differs)
{
	uint8_t *host_a;
	uint8_t *host_b;

	return space_resolve(a, *n, SPACE_READ, SPACE_BY_KERNEL, ctx->device, &host_a, n) &&
	       space_resolve(b, *n, SPACE_READ, SPACE_BY_KERNEL, ctx->device, &host_b, n) &&
	       ((*differs = !bytes_are_equal(host_a, host_b, *n)), true);
}

static CUresult compare(struct ctx *ctx, const uint64_t *params)
{
	uint64_t a = params[0];
	uint64_t b = params[1];
	uint64_t left = params[2];
	const uint32_t one = 1;
	bool differs = false;

	while (left > 0) {
		uint64_t n = left < SIM_PIECE_BYTES ? left : SIM_PIECE_BYTES;
		bool piece_differs = false;

		space_lock_read();
		bool ok = compare_piece(ctx, a, b, &n, &piece_differs);
		space_unlock();
		if (!ok) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		differs |= piece_differs;
		a += n;
		b += n;
		left -= n;
	}
	if (differs && !kernel_store(ctx, params[3], &one, sizeof(one))) {
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	return CUDA_SUCCESS;
}

static bool fill_piece(uint8_t *host, uint64_t bytes, void *state)
{
	bytes_set(host, *(uint8_t *)state, bytes);
	return true;
}

static CUresult fill(struct ctx *ctx, const uint64_t *params)
{
	uint8_t value = (uint8_t)params[2];

	return reach(ctx, params[0], params[1], SPACE_WRITE, fill_piece, &value)
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static bool sum_piece(uint8_t *host, uint64_t bytes, void *state)
{
	uint64_t *sum = state;

	*sum += bytes_sum(host, bytes);
	return true;
}

static CUresult sum(struct ctx *ctx, const uint64_t *params)
{
	uint64_t total = 0;

	return reach(ctx, params[0], params[1], SPACE_READ, sum_piece, &total) &&
	                       kernel_store(ctx, params[2], &total, sizeof(total))
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static const struct kernel kernels[] = {
	{"glake_digest_leaves", digest_leaves, NULL, NULL, 3, {8, 8, 8}},
	{"glake_digest_roots", digest_roots, NULL, NULL, 2, {8, 4}},
	{"glake_compare", compare, NULL, NULL, 4, {8, 8, 8, 8}},
	{"cudasim_fill", fill, NULL, NULL, 3, {8, 8, 4}},
	{"cudasim_sum", sum, NULL, NULL, 3, {8, 8, 8}},
};

#define N_KERNELS (sizeof(kernels) / sizeof(kernels[0]))

const struct kernel *kernel_find(const char *name)
{
	for (size_t i = 0; i < N_KERNELS; i++) {
		if (strcmp(kernels[i].name, name) == 0) {
			return &kernels[i];
		}
	}
	return NULL;
}

/* ---- those of images ---- */

struct given {
	struct kernel kernel; /* must be first */
	struct given *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct given
	*all_given; /* for good: graphs and queues may know them longer than the module */

struct kernel *kernel_new(const struct cudasim_kernel *given)
{
	struct given *made = given->n_params <= CUDASIM_MAX_PARAMS ? calloc(1, sizeof(*made))
	                                                           : NULL;

	if (!made) {
		return NULL;
	}
	made->kernel.name = given->name;
	made->kernel.given = given;
	made->kernel.n_params = given->n_params;
	memcpy(made->kernel.param_bytes, given->param_bytes, sizeof(given->param_bytes));
	pthread_mutex_lock(&lock);
	made->next = all_given;
	all_given = made;
	pthread_mutex_unlock(&lock);
	return &made->kernel;
}

static const struct kernel *find_given(const void *handle)
{
	const struct kernel *found = NULL;

	pthread_mutex_lock(&lock);
	for (const struct given *given = all_given; !found && given; given = given->next) {
		found = handle == &given->kernel ? &given->kernel : NULL;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

const struct kernel *kernel_from_handle(CUfunction handle)
{
	for (size_t i = 0; i < N_KERNELS; i++) {
		if ((uintptr_t)handle == (uintptr_t)&kernels[i]) {
			return &kernels[i];
		}
	}
	return find_given(handle);
}

/* ---- parameters, packed ---- */

/* The offset of parameter @i, after @end bytes of others. */
static size_t aligned(const struct kernel *kernel, unsigned i, size_t end)
{
	size_t bytes = kernel->param_bytes[i];
	size_t alignment = bytes & -bytes; /* the largest power of two in it */

	alignment = alignment > 16 ? 16 : alignment < 1 ? 1 : alignment;
	return (end + alignment - 1) / alignment * alignment;
}

size_t kernel_param_offset(const struct kernel *kernel, unsigned index)
{
	size_t at = 0;

	for (unsigned i = 0; i < index; i++) {
		at = aligned(kernel, i, at) + kernel->param_bytes[i];
	}
	return index < kernel->n_params ? aligned(kernel, index, at) : at;
}

size_t kernel_params_bytes(const struct kernel *kernel)
{
	return kernel_param_offset(kernel, kernel->n_params);
}

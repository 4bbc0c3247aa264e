/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of glake-mover. Their names and parameters are a contract: the simulator in tests/
 * runs functions of the same names on the CPU.
 *
 * All are one pass over memory with no atomics. Four neighbouring threads are the four lanes of one
 * hash (xxh3_lanes.h), so a warp reads eight leaves at once, 64 whole bytes of each per load
 * instruction, sixteen loads in flight a thread.
 */
#include <stdint.h>

#include "daemon/mover/kernels.h"
#include "daemon/mover/xxh3_lanes.h"

/* Add a share over the four lanes; all of them get the sum. */
static __device__ __forceinline__ lane_share sum_lanes(lane_share share, unsigned mask)
{
	for (int distance = 1; distance < LANE_COUNT; distance *= 2) {
		share.low += __shfl_xor_sync(mask, share.low, distance, LANE_COUNT);
		share.high += __shfl_xor_sync(mask, share.high, distance, LANE_COUNT);
	}
	return share;
}

/* The four threads that share this thread's hash; other groups of the warp may have left. */
static __device__ __forceinline__ unsigned group_mask()
{
	return 0xfu << (threadIdx.x % 32 / LANE_COUNT * LANE_COUNT);
}

static __device__ __forceinline__ uint64_t group_index()
{
	return ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANE_COUNT;
}

static __device__ __forceinline__ uint64_t group_count()
{
	return (uint64_t)gridDim.x * blockDim.x / LANE_COUNT;
}

static __device__ __forceinline__ void store(uint64_t to, lane_share hash)
{
	*(ulonglong2 *)to = make_ulonglong2(hash.low, hash.high);
}

/* leaves_out[i] = hash of the 8 KiB at base + i * 8 KiB. */
extern "C" __global__ void __launch_bounds__(KERNEL_LEAVES_THREADS)
	glake_digest_leaves(uint64_t base, uint64_t n_leaves, uint64_t leaves_out)
{
	unsigned j = threadIdx.x % LANE_COUNT;
	lane_keys keys = lane_keys_of(j);
	for (uint64_t i = group_index(); i < n_leaves; i += group_count()) {
		const lane_words *leaf = (const lane_words *)(base + i * LANE_LEAF_BYTES);
		lane_share sum = sum_lanes(lane_leaf(leaf, &keys, j), group_mask());
		if (j == 0) {
			store(leaves_out + i * 16, lane_finish(sum, LANE_LEAF_BYTES));
		}
	}
}

/* items[i].root_out = hash over its leaves and its length. */
extern "C" __global__ void __launch_bounds__(KERNEL_ROOTS_THREADS)
	glake_digest_roots(uint64_t items, uint32_t n_items)
{
	unsigned j = threadIdx.x % LANE_COUNT;
	lane_keys keys = lane_keys_of(j);
	for (uint64_t i = group_index(); i < n_items; i += group_count()) {
		const kernel_root_item *item = (const kernel_root_item *)items + i;
		lane_share share = lane_root((const lane_words *)item->leaves, item->n_leaves,
		                             item->content_bytes, &keys, j);
		lane_share sum = sum_lanes(share, group_mask());
		if (j == 0) {
			store(item->root_out, lane_finish(sum, LANE_ROOT_BYTES(item->n_leaves)));
		}
	}
}

#define COMPARE_UNROLL 8

static __device__ __forceinline__ bool differs(ulonglong2 a, ulonglong2 b)
{
	return a.x != b.x || a.y != b.y;
}

/*
 * *differs_out = 1 if a byte differs; never cleared. a and b are multiples of 16, n_bytes is any
 * number. All who see a difference store the same word, so no order is needed among them.
 */
extern "C" __global__ void __launch_bounds__(KERNEL_COMPARE_THREADS)
	glake_compare(uint64_t a, uint64_t b, uint64_t n_bytes, uint64_t differs_out)
{
	const ulonglong2 *words_a = (const ulonglong2 *)a;
	const ulonglong2 *words_b = (const ulonglong2 *)b;
	uint64_t n_words = n_bytes / 16;
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	bool found = false;
	for (; i + (COMPARE_UNROLL - 1) * step < n_words; i += COMPARE_UNROLL * step) {
		ulonglong2 x[COMPARE_UNROLL];
		ulonglong2 y[COMPARE_UNROLL];
#pragma unroll
		for (int k = 0; k < COMPARE_UNROLL; k++) {
			x[k] = __ldcs(words_a + i + k * step);
			y[k] = __ldcs(words_b + i + k * step);
		}
#pragma unroll
		for (int k = 0; k < COMPARE_UNROLL; k++) {
			found |= differs(x[k], y[k]);
		}
	}
	for (; i < n_words; i += step) {
		found |= differs(__ldcs(words_a + i), __ldcs(words_b + i));
	}
	if (blockIdx.x == 0 && threadIdx.x < n_bytes % 16) {
		uint64_t at = n_words * 16 + threadIdx.x;
		found |= ((const uint8_t *)a)[at] != ((const uint8_t *)b)[at];
	}
	if (found) {
		*(volatile uint32_t *)differs_out = 1;
	}
}

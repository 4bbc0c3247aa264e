/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3-128 (seed 0, long input) with its eight accumulators spread over four lanes.
 *
 * Lane j owns accumulators 2j and 2j + 1, which never meet another lane's until the very end. So a
 * lane reads its own 16 bytes of every 64-byte stripe, and the lanes' halves of the result are
 * added up by whoever can reach all four: shuffles on a GPU, a loop in the unit test. This file is
 * plain C, so that the arithmetic of the kernels is tested against libxxhash without a GPU.
 *
 * Input is a row of blocks of 16 stripes, each ended by a scramble; then the stripes of the last,
 * unfinished block; then the last 64 bytes of the input once more, with a secret of their own.
 * https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
 */
#ifndef GLAKE_MOVER_XXH3_LANES_H
#define GLAKE_MOVER_XXH3_LANES_H

#include <stdint.h>

#ifdef __CUDACC__
#define LANE_FN static __device__ __forceinline__
#define LANE_DATA __device__ const
#define LANE_UNROLL _Pragma("unroll")
#define LANE_ALIGNED __align__(16)
#else
#define LANE_FN static inline __attribute__((unused))
#define LANE_DATA static const
#define LANE_UNROLL
#define LANE_ALIGNED
#endif

#define LANE_COUNT 4
#define LANE_STRIPE_BYTES 64
#define LANE_STRIPES_PER_BLOCK 16

#define LANE_PRIME32_1 0x9E3779B1ull
#define LANE_PRIME32_2 0x85EBCA77ull
#define LANE_PRIME32_3 0xC2B2AE3Dull
#define LANE_PRIME64_1 0x9E3779B185EBCA87ull
#define LANE_PRIME64_2 0xC2B2AE3D27D4EB4Full
#define LANE_PRIME64_3 0x165667B19E3779F9ull
#define LANE_PRIME64_4 0x85EBCA77C2B2AE63ull
#define LANE_PRIME64_5 0x27D4EB2F165667C5ull
#define LANE_PRIME_MX1 0x165667919E3779F9ull

/* XXH3's default secret as little-endian words: 192 bytes. */
LANE_DATA uint64_t lane_secret[24] = {
	0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
	0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
	0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
	0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
	0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
	0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};

/* The keys are the same for every input: one lane's view of the secret. */
struct lane_keys {
	/* Stripe s of a block uses words[s] and words[s + 1]; the scramble [16] and [17]. */
	uint64_t words[LANE_STRIPES_PER_BLOCK + 2];
};

struct lane {
	uint64_t acc[2];
};

/* One lane's share of a result, still to be added over the lanes. */
struct lane_share {
	uint64_t low;
	uint64_t high;
};

/* The secret's word at any byte offset. */
LANE_FN uint64_t lane_secret_at(unsigned offset)
{
	unsigned shift = offset % 8 * 8;
	uint64_t word = lane_secret[offset / 8] >> shift;
	return shift ? word | lane_secret[offset / 8 + 1] << (64 - shift) : word;
}

LANE_FN struct lane_keys lane_keys_of(unsigned j)
{
	struct lane_keys keys;
	LANE_UNROLL
	for (unsigned i = 0; i < LANE_STRIPES_PER_BLOCK + 2; i++) {
		keys.words[i] = lane_secret[2 * j + i];
	}
	return keys;
}

LANE_FN struct lane lane_start(unsigned j)
{
	struct lane lane;
	lane.acc[0] = j == 0   ? LANE_PRIME32_3
	              : j == 1 ? LANE_PRIME64_2
	              : j == 2 ? LANE_PRIME64_4
	                       : LANE_PRIME64_5;
	lane.acc[1] = j == 0   ? LANE_PRIME64_1
	              : j == 1 ? LANE_PRIME64_3
	              : j == 2 ? LANE_PRIME32_2
	                       : LANE_PRIME32_1;
	return lane;
}

LANE_FN uint64_t lane_mul32(uint64_t value)
{
	return (uint64_t)(uint32_t)value * (uint32_t)(value >> 32);
}

/* One stripe: this lane's two words, each under its key. */
LANE_FN void lane_stripe(struct lane *lane, uint64_t word0, uint64_t word1, uint64_t key0,
                         uint64_t key1)
{
	lane->acc[0] += word1 + lane_mul32(word0 ^ key0);
	lane->acc[1] += word0 + lane_mul32(word1 ^ key1);
}

LANE_FN uint64_t lane_scramble_word(uint64_t acc, uint64_t key)
{
	return (acc ^ acc >> 47 ^ key) * LANE_PRIME32_1;
}

LANE_FN void lane_scramble(struct lane *lane, const struct lane_keys *keys)
{
	lane->acc[0] = lane_scramble_word(lane->acc[0], keys->words[LANE_STRIPES_PER_BLOCK]);
	lane->acc[1] = lane_scramble_word(lane->acc[1], keys->words[LANE_STRIPES_PER_BLOCK + 1]);
}

/* The input's last 64 bytes, which may overlap stripes already taken. */
LANE_FN void lane_last_stripe(struct lane *lane, unsigned j, uint64_t word0, uint64_t word1)
{
	lane_stripe(lane, word0, word1, lane_secret_at(121 + 16 * j),
	            lane_secret_at(121 + 16 * j + 8));
}

LANE_FN uint64_t lane_fold(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
	return a * b ^ __umul64hi(a, b);
#else
	unsigned __int128 product = (unsigned __int128)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
#endif
}

LANE_FN struct lane_share lane_share_of(const struct lane *lane, unsigned j)
{
	struct lane_share share;
	share.low = lane_fold(lane->acc[0] ^ lane_secret_at(11 + 16 * j),
	                      lane->acc[1] ^ lane_secret_at(11 + 16 * j + 8));
	share.high = lane_fold(lane->acc[0] ^ lane_secret_at(117 + 16 * j),
	                       lane->acc[1] ^ lane_secret_at(117 + 16 * j + 8));
	return share;
}

LANE_FN uint64_t lane_avalanche(uint64_t hash)
{
	hash ^= hash >> 37;
	hash *= LANE_PRIME_MX1;
	return hash ^ hash >> 32;
}

/* @sum is over all four lanes, @n_bytes the length of the whole input. */
LANE_FN struct lane_share lane_finish(struct lane_share sum, uint64_t n_bytes)
{
	struct lane_share hash;
	hash.low = lane_avalanche(sum.low + n_bytes * LANE_PRIME64_1);
	hash.high = lane_avalanche(sum.high + ~(n_bytes * LANE_PRIME64_2));
	return hash;
}

/* A lane's 16 bytes of a stripe: one load, of data that is not read again. */
struct LANE_ALIGNED lane_words {
	uint64_t word[2];
};

LANE_FN struct lane_words lane_load(const struct lane_words *from)
{
#ifdef __CUDACC__
	ulonglong2 pair = __ldcs((const ulonglong2 *)from);
	struct lane_words words = {{pair.x, pair.y}};
	return words;
#else
	return *from;
#endif
}

/* Keeps the compiler from sinking loads to their uses: it would leave three of them in flight. */
LANE_FN void lane_loads_end(void)
{
#ifdef __CUDACC__
	__syncwarp(1u << threadIdx.x % 32);
#endif
}

/*
 * One block's worth of stripes (or one fewer: @n_stripes is a constant where this is called), all
 * loaded before the first is used: the loads are what takes time. @input is this lane's part of the
 * first stripe.
 */
LANE_FN void lane_stripes(struct lane *lane, const struct lane_keys *keys,
                          const struct lane_words *input, unsigned n_stripes)
{
	struct lane_words words[LANE_STRIPES_PER_BLOCK];
	LANE_UNROLL
	for (unsigned s = 0; s < n_stripes; s++) {
		words[s] = lane_load(input + s * LANE_COUNT);
	}
	lane_loads_end();
	LANE_UNROLL
	for (unsigned s = 0; s < n_stripes; s++) {
		lane_stripe(lane, words[s].word[0], words[s].word[1], keys->words[s],
		            keys->words[s + 1]);
	}
}

#define LANE_WORDS_PER_BLOCK (LANE_STRIPES_PER_BLOCK * LANE_COUNT)
#define LANE_LEAF_BYTES 8192
#define LANE_LEAF_BLOCKS (LANE_LEAF_BYTES / (LANE_STRIPE_BYTES * LANE_STRIPES_PER_BLOCK))

/*
 * Lane @j's share of one leaf. The leaf ends with a whole block, of which the algorithm takes 15
 * stripes as usual and the 16th as the input's last 64 bytes.
 */
LANE_FN struct lane_share lane_leaf(const struct lane_words *leaf, const struct lane_keys *keys,
                                    unsigned j)
{
	struct lane lane = lane_start(j);
	const struct lane_words *input = leaf + j;
	for (unsigned block = 0; block < LANE_LEAF_BLOCKS - 1; block++) {
		lane_stripes(&lane, keys, input, LANE_STRIPES_PER_BLOCK);
		lane_scramble(&lane, keys);
		input += LANE_WORDS_PER_BLOCK;
	}
	struct lane_words last = lane_load(input + (LANE_STRIPES_PER_BLOCK - 1) * LANE_COUNT);
	lane_stripes(&lane, keys, input, LANE_STRIPES_PER_BLOCK - 1);
	lane_last_stripe(&lane, j, last.word[0], last.word[1]);
	return lane_share_of(&lane, j);
}

/*
 * Lane @j's share of a root over @n_leaves leaves (a multiple of 256, so whole blocks) and the
 * length: the last 64 bytes are three and a half leaves and the length.
 */
LANE_FN struct lane_share lane_root(const struct lane_words *leaves, uint64_t n_leaves,
                                    uint64_t content_bytes, const struct lane_keys *keys,
                                    unsigned j)
{
	struct lane lane = lane_start(j);
	const struct lane_words *input = leaves + j;
	for (uint64_t block = 0; block < n_leaves / LANE_WORDS_PER_BLOCK; block++) {
		lane_stripes(&lane, keys, input, LANE_STRIPES_PER_BLOCK);
		lane_scramble(&lane, keys);
		input += LANE_WORDS_PER_BLOCK;
	}
	const struct lane_words *tail = leaves + n_leaves - LANE_COUNT;
	uint64_t word0 = lane_load(tail + j).word[1];
	uint64_t word1 = j + 1 < LANE_COUNT ? lane_load(tail + j + 1).word[0] : content_bytes;
	lane_last_stripe(&lane, j, word0, word1);
	return lane_share_of(&lane, j);
}

#define LANE_ROOT_BYTES(n_leaves) ((n_leaves)*16 + 8)

#endif

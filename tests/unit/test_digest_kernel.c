/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the digest kernels, lane by lane on the CPU, against libxxhash. */
#include <stdlib.h>

#include "daemon/mover/xxh3_lanes.h"
#include "proto/digest.h"
#include "tests/check_glake.h"

static uint64_t state = 88172645463325252ull;

static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static struct digest finish(struct lane_share sum, uint64_t n_bytes)
{
	struct lane_share hash = lane_finish(sum, n_bytes);
	return (struct digest){.low = hash.low, .high = hash.high};
}

static struct digest leaf_by_lanes(const void *bytes)
{
	struct lane_share sum = {0};
	for (unsigned j = 0; j < LANE_COUNT; j++) {
		struct lane_keys keys = lane_keys_of(j);
		struct lane_share share = lane_leaf(bytes, &keys, j);
		sum.low += share.low;
		sum.high += share.high;
	}
	return finish(sum, LANE_LEAF_BYTES);
}

static struct digest root_by_lanes(const struct digest *leaves, uint64_t n_leaves,
                                   uint64_t content_bytes)
{
	struct lane_share sum = {0};
	for (unsigned j = 0; j < LANE_COUNT; j++) {
		struct lane_keys keys = lane_keys_of(j);
		struct lane_share share = lane_root((const void *)leaves, n_leaves, content_bytes,
		                                    &keys, j);
		sum.low += share.low;
		sum.high += share.high;
	}
	return finish(sum, LANE_ROOT_BYTES(n_leaves));
}

START_TEST(leaves_match)
{
	static uint64_t words[DIGEST_LEAF_BYTES / 8];
	for (unsigned round = 0; round < 200; round++) {
		for (unsigned i = 0; i < DIGEST_LEAF_BYTES / 8; i++) {
			words[i] = round == 0 ? 0 : round == 1 ? ~0ull : random_word();
		}
		struct digest want = digest_leaf(words, sizeof(words));
		struct digest have = leaf_by_lanes(words);
		ck_assert(digest_equal(&want, &have));
	}
}
END_TEST

START_TEST(every_bit_of_a_leaf_counts)
{
	static uint64_t words[DIGEST_LEAF_BYTES / 8];
	struct digest zero = leaf_by_lanes(words);
	for (unsigned i = 0; i < DIGEST_LEAF_BYTES / 8; i++) {
		words[i] = 1ull << i % 64;
		struct digest want = digest_leaf(words, sizeof(words));
		struct digest have = leaf_by_lanes(words);
		ck_assert(digest_equal(&want, &have));
		ck_assert(!digest_equal(&zero, &have));
		words[i] = 0;
	}
}
END_TEST

START_TEST(roots_match)
{
	static const uint64_t counts[] = {256, 512, 768, 8192, 33 * 256};
	for (unsigned k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
		struct digest *leaves = malloc(counts[k] * sizeof(*leaves));
		ck_assert_ptr_nonnull(leaves);
		for (uint64_t i = 0; i < counts[k]; i++) {
			leaves[i] = (struct digest){.low = random_word(), .high = random_word()};
		}
		for (unsigned round = 0; round < 8; round++) {
			uint64_t bytes = counts[k] * DIGEST_LEAF_BYTES - round * 1000;
			struct digest want = digest_root(leaves, counts[k], bytes);
			struct digest have = root_by_lanes(leaves, counts[k], bytes);
			ck_assert(digest_equal(&want, &have));
		}
		free(leaves);
	}
}
END_TEST

START_TEST(whole_content_matches)
{
	uint64_t bytes = 3 * DIGEST_CHUNK_BYTES - 12345;
	uint64_t n_leaves = digest_n_leaves(bytes);
	uint8_t *content = calloc(n_leaves, DIGEST_LEAF_BYTES);
	struct digest *leaves = malloc(n_leaves * sizeof(*leaves));
	ck_assert(content && leaves);
	for (uint64_t i = 0; i < bytes; i++) {
		content[i] = (uint8_t)random_word();
	}
	for (uint64_t i = 0; i < n_leaves; i++) {
		leaves[i] = leaf_by_lanes(content + i * DIGEST_LEAF_BYTES);
	}
	struct digest want = digest_of(content, bytes);
	struct digest have = root_by_lanes(leaves, n_leaves, bytes);
	ck_assert(digest_equal(&want, &have));
	free(leaves);
	free(content);
}
END_TEST

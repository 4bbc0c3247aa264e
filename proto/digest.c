/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/digest.h"

/* The state of a streaming hash lives on the stack here. */
#define XXH_STATIC_LINKING_ONLY
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Leaves are hashed in portions of one chunk: 4 KiB of stack, no allocation at any length. */
#define LEAVES_PER_CHUNK (DIGEST_CHUNK_BYTES / DIGEST_LEAF_BYTES)

static const uint8_t zeros[DIGEST_LEAF_BYTES];

static struct digest from_xxh(XXH128_hash_t hash)
{
	return (struct digest){.low = hash.low64, .high = hash.high64};
}

static void update_leaves(XXH3_state_t *state, const struct digest *leaves, size_t n_leaves)
{
	for (size_t i = 0; i < n_leaves; i++) {
		uint8_t bytes[DIGEST_BYTES];
		digest_to_bytes(&leaves[i], bytes);
		XXH3_128bits_update(state, bytes, sizeof(bytes));
	}
}

static struct digest finish_root(XXH3_state_t *state, uint64_t content_bytes)
{
	uint64_t length = htole64(content_bytes);
	XXH3_128bits_update(state, &length, sizeof(length));
	return from_xxh(XXH3_128bits_digest(state));
}

struct digest digest_leaf(const void *bytes, size_t n_bytes)
{
	if (n_bytes == DIGEST_LEAF_BYTES) {
		return from_xxh(XXH3_128bits(bytes, n_bytes));
	}
	uint8_t padded[DIGEST_LEAF_BYTES];
	if (n_bytes > 0) {
		memcpy(padded, bytes, n_bytes);
	}
	memset(padded + n_bytes, 0, sizeof(padded) - n_bytes);
	return from_xxh(XXH3_128bits(padded, sizeof(padded)));
}

struct digest digest_root(const struct digest *leaves, uint64_t n_leaves, uint64_t content_bytes)
{
	XXH3_state_t state;
	XXH3_128bits_reset(&state);
	update_leaves(&state, leaves, n_leaves);
	return finish_root(&state, content_bytes);
}

struct digest digest_of(const void *content, uint64_t content_bytes)
{
	const uint8_t *bytes = content;
	const struct digest zero_leaf = digest_leaf(zeros, sizeof(zeros));
	uint64_t n_leaves = digest_n_leaves(content_bytes);
	struct digest leaves[LEAVES_PER_CHUNK];
	XXH3_state_t state;

	XXH3_128bits_reset(&state);
	for (uint64_t first = 0; first < n_leaves; first += LEAVES_PER_CHUNK) {
		for (size_t i = 0; i < LEAVES_PER_CHUNK; i++) {
			uint64_t offset = (first + i) * DIGEST_LEAF_BYTES;
			if (offset >= content_bytes) {
				leaves[i] = zero_leaf;
				continue;
			}
			uint64_t rest = content_bytes - offset;
			leaves[i] = digest_leaf(bytes + offset, rest < DIGEST_LEAF_BYTES
			                                                ? (size_t)rest
			                                                : DIGEST_LEAF_BYTES);
		}
		update_leaves(&state, leaves, LEAVES_PER_CHUNK);
	}
	return finish_root(&state, content_bytes);
}

void digest_to_bytes(const struct digest *digest, uint8_t bytes_out[DIGEST_BYTES])
{
	uint64_t words[2] = {htole64(digest->low), htole64(digest->high)};
	memcpy(bytes_out, words, DIGEST_BYTES);
}

struct digest digest_from_bytes(const uint8_t bytes[DIGEST_BYTES])
{
	uint64_t words[2];
	memcpy(words, bytes, DIGEST_BYTES);
	return (struct digest){.low = le64toh(words[0]), .high = le64toh(words[1])};
}

void digest_to_text(const struct digest *digest, char text_out[DIGEST_TEXT_BYTES])
{
	snprintf(text_out, DIGEST_TEXT_BYTES, "%016" PRIx64 "%016" PRIx64, digest->high,
	         digest->low);
}

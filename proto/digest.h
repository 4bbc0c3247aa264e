/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a block: XXH3-128 as a two-level tree, so that a GPU can compute it in one pass.
 *
 *   chunk   the content, then zeros up to a multiple of DIGEST_CHUNK_BYTES (2 MiB)
 *   leaf    XXH3-128 (seed 0) of each DIGEST_LEAF_BYTES (8 KiB) of the chunk
 *   root    XXH3-128 (seed 0) over the leaves in order, each as two little-endian 64-bit words,
 *           low word first, and then the content's length in bytes as one little-endian word
 *
 * The padding costs nothing, because new chunks are zero and a multiple of 2 MiB. It makes the
 * number of leaves a multiple of 256, so both levels always take XXH3's long-input path, the only
 * one that the GPU needs. The length at the end distinguishes contents that differ only by trailing
 * zeros.
 *
 * This file is the definition. The kernels of glake-mover and these functions must give the same
 * 128 bits; tests compare them. XXH3: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
 *
 * Threads: any; a digest_state belongs to one.
 */
#ifndef GLAKE_PROTO_DIGEST_H
#define GLAKE_PROTO_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIGEST_LEAF_BYTES 8192u
#define DIGEST_CHUNK_BYTES (2u * 1024u * 1024u)
#define DIGEST_BYTES 16u
/* 32 hexadecimal digits, high word first, and the NUL. */
#define DIGEST_TEXT_BYTES 33u

struct digest {
	uint64_t low;
	uint64_t high;
};

static inline bool digest_equal(const struct digest *a, const struct digest *b)
{
	return a->low == b->low && a->high == b->high;
}

/* Leaves of a content of @content_bytes, the zero padding included. At least 256. */
static inline uint64_t digest_n_leaves(uint64_t content_bytes)
{
	uint64_t n_chunks = (content_bytes + DIGEST_CHUNK_BYTES - 1) / DIGEST_CHUNK_BYTES;
	return (n_chunks ? n_chunks : 1) * (DIGEST_CHUNK_BYTES / DIGEST_LEAF_BYTES);
}

/* The digest of @content_bytes bytes at @content; the padding is not read but implied. */
struct digest digest_of(const void *content, uint64_t content_bytes);

/* The leaf of @n_bytes (<= DIGEST_LEAF_BYTES) bytes, zeros implied behind them. */
struct digest digest_leaf(const void *bytes, size_t n_bytes);

/* The root over leaves already computed, padding leaves included. */
struct digest digest_root(const struct digest *leaves, uint64_t n_leaves, uint64_t content_bytes);

/* The wire form: low word, then high word, little endian. */
void digest_to_bytes(const struct digest *digest, uint8_t bytes_out[DIGEST_BYTES]);
struct digest digest_from_bytes(const uint8_t bytes[DIGEST_BYTES]);

void digest_to_text(const struct digest *digest, char text_out[DIGEST_TEXT_BYTES]);

#endif

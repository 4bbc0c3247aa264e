/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops over bytes that no other thread uses. ThreadSanitizer is not shown them: to write down each access, and each byte that
 * memcmp() reads, took most of the time of some tests.
 */
#ifndef GLAKE_TESTS_BYTES_H
#define GLAKE_TESTS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TEST_BYTE_LOOP __attribute__((no_sanitize("thread")))

TEST_BYTE_LOOP static inline bool same_bytes(const void *a, const void *b, size_t n_bytes)
{
	const uint8_t *x = a;
	const uint8_t *y = b;
	uint64_t differs = 0;
	size_t i = 0;
	for (; i + 8 <= n_bytes; i += 8) {
		uint64_t words[2];
		memcpy(&words[0], x + i, 8);
		memcpy(&words[1], y + i, 8);
		differs |= words[0] ^ words[1];
	}
	for (; i < n_bytes; i++) {
		differs |= x[i] ^ y[i];
	}
	return differs == 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/words.h"

#include <stdlib.h>

void words_use_device(int ordinal)
{
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

void words_open_driver(void)
{
	world_open_driver();
	words_use_device(0);
}

/* All at once, a large one would take more time for fresh pages than for the copy. */
#define PIECE_WORDS (1024u * 1024)

static uint64_t piece_of(uint64_t n, uint64_t begin)
{
	return n - begin < PIECE_WORDS ? n - begin : PIECE_WORDS;
}

TEST_BYTE_LOOP void words_write(glake_ptr ptr, uint64_t n_bytes, uint64_t content)
{
	uint64_t n = n_bytes / sizeof(uint64_t);
	uint64_t *words = malloc(piece_of(n, 0) * sizeof(words[0]));
	for (uint64_t begin = 0; begin < n; begin += PIECE_WORDS) {
		uint64_t n_words = piece_of(n, begin);
		for (uint64_t i = 0; i < n_words; i++) {
			words[i] = content << 48 | (begin + i);
		}
		ck_assert_int_eq(drv.cuMemcpyHtoD(ptr + begin * sizeof(words[0]), words,
		                                  n_words * sizeof(words[0])),
		                 CUDA_SUCCESS);
	}
	free(words);
}

/* Returns the index of the first wrong word; n_bytes / 8: none is wrong. */
TEST_BYTE_LOOP static uint64_t find_wrong(glake_ptr ptr, uint64_t n_bytes, uint64_t content,
                                          uint64_t *word_out)
{
	uint64_t n = n_bytes / sizeof(uint64_t);
	uint64_t *words = malloc(piece_of(n, 0) * sizeof(words[0]));
	uint64_t at = 0;
	*word_out = 0;
	while (at < n) {
		uint64_t n_words = piece_of(n, at);
		ck_assert_int_eq(drv.cuMemcpyDtoH(words, ptr + at * sizeof(words[0]),
		                                  n_words * sizeof(words[0])),
		                 CUDA_SUCCESS);
		uint64_t i = 0;
		while (i < n_words && words[i] == (content << 48 | (at + i))) {
			i++;
		}
		at += i;
		if (i < n_words) {
			*word_out = words[i];
			break;
		}
	}
	free(words);
	return at;
}

bool words_are(glake_ptr ptr, uint64_t n_bytes, uint64_t content)
{
	uint64_t word;
	return find_wrong(ptr, n_bytes, content, &word) == n_bytes / sizeof(word);
}

void words_check(glake_ptr ptr, uint64_t n_bytes, uint64_t content)
{
	uint64_t word;
	uint64_t i = find_wrong(ptr, n_bytes, content, &word);
	ck_assert_msg(i == n_bytes / sizeof(word), "word %lu of 0x%lx is %lx, not of content %lu",
	              i, ptr, word, content);
}

glake_ptr words_alloc(struct glake_session *session, uint64_t n_bytes, uint64_t content)
{
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, n_bytes, 0, &ptr));
	words_write(ptr, n_bytes, content);
	return ptr;
}

bool words_can_write(glake_ptr ptr)
{
	uint64_t word = 0;
	return drv.cuMemcpyHtoD(ptr, &word, sizeof(word)) == CUDA_SUCCESS;
}

struct glake_sealed words_seal(glake_ptr ptr, uint64_t n_bytes)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	struct glake_span span = {.ptr = ptr, .bytes = n_bytes};
	assert_ok(glake_seal(&span, 1, &sealed));
	return sealed;
}

struct glake_slept words_fall_asleep(struct glake_session *session)
{
	struct glake_slept slept = {.size = sizeof(slept)};
	assert_ok(glake_sleep(session, 1000, &slept));
	ck_assert(glake_is_asleep(session));
	return slept;
}

uint64_t words_device_bytes(void)
{
	struct books books = world_books();
	return books.private_bytes + books.block_bytes;
}

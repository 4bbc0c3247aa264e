/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal: as it is, and once more with the sums of all its records put right, so that their content is
 * looked at. What is read lies in the file, and reading it never fails.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "daemon/keep/journal.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

#define HEADER_BYTES 80u
#define SUM_AT 64u
#define END_AT 72u
#define RECORD_BYTES 24u

static void read_all(const uint8_t *bytes, size_t n_bytes)
{
	struct journal_image image;
	must(journal_read(bytes, n_bytes, NULL, &image) == 0);
	must(image.end <= n_bytes);
	must(image.state == JOURNAL_GOOD || !image.entries);
	for (const struct journal_entry *entry = image.entries; entry; entry = entry->hh.next) {
		must(entry->n_pieces > 0 && entry->key.kind < JOURNAL_MAX_KINDS);
		must(entry->key.id <= image.max_ids[entry->key.kind]);
		for (size_t i = 0; i < entry->n_pieces; i++) {
			const struct journal_piece *piece = &entry->pieces[i];
			must(piece->body >= bytes && piece->n_bytes <= JOURNAL_MAX_BODY &&
			     piece->body + piece->n_bytes <= bytes + image.end);
		}
	}
	journal_image_free(&image);
}

/* journal.c has the layout. */
static void put_right(uint8_t *bytes, size_t n_bytes)
{
	static const uint8_t magic[8] = "glake\r\n\1";
	const uint32_t version = JOURNAL_VERSION;
	const uint32_t n_header = HEADER_BYTES;
	size_t at = HEADER_BYTES;
	if (n_bytes < HEADER_BYTES) {
		return;
	}
	memcpy(bytes, magic, sizeof(magic));
	memcpy(bytes + 8, &version, sizeof(version));
	memcpy(bytes + 12, &n_header, sizeof(n_header));
	uint64_t sum = XXH3_64bits(bytes, SUM_AT);
	memcpy(bytes + SUM_AT, &sum, sizeof(sum));
	memset(bytes + END_AT, 0, sizeof(uint64_t));
	while (n_bytes - at >= RECORD_BYTES) {
		uint64_t words[2];
		uint32_t n_body;
		uint16_t kind, verb;
		memcpy(&n_body, bytes + at, sizeof(n_body));
		memcpy(&kind, bytes + at + 4, sizeof(kind));
		memcpy(&verb, bytes + at + 6, sizeof(verb));
		words[0] = (uint64_t)verb << 48 | (uint64_t)kind << 32 | n_body;
		memcpy(&words[1], bytes + at + 8, sizeof(words[1]));
		if (n_body > n_bytes - at - RECORD_BYTES) {
			return;
		}
		sum = XXH3_64bits_withSeed(bytes + at + RECORD_BYTES, n_body,
		                           XXH3_64bits(words, sizeof(words)));
		memcpy(bytes + at + 16, &sum, sizeof(sum));
		at += RECORD_BYTES + ((n_body + 7) & ~(size_t)7);
		if (at > n_bytes) {
			return;
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	uint8_t *copy = malloc(n_bytes + 1);
	must(copy != NULL);
	if (n_bytes > 0) {
		memcpy(copy, bytes, n_bytes);
	}
	read_all(copy, n_bytes);
	put_right(copy, n_bytes);
	read_all(copy, n_bytes);
	free(copy);
	return 0;
}

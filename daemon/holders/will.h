/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A will: if its process ends, these private chunks of a GPU are kept together, for the next process that asks for the key.
 * glaked knows no more of them than that: the record, which says what they have, is the client's.
 *
 * While its process lives the chunks are what they were. A chunk is in one will at most, and the will is void as soon as one of
 * them is freed, published, named for others or put to sleep.
 *
 * Owner: the holder, and behind its end the kept step that comes of it (kept_step.h).
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_WILL_H
#define GLAKE_DAEMON_WILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/base/status.h"
#include "daemon/memory/tenant.h"
#include "proto/limits.h"

struct held;
struct holder;

/* Borrowed. */
struct will_words {
	const uint8_t *key;
	size_t n_key; /* 1 .. GLAKE_MAX_WILL_KEY_BYTES */
	const uint8_t *record;
	size_t n_record; /* up to GLAKE_MAX_RECORD_BYTES */
	bool may_be_read;
};

struct will {
	struct list link; /* link: holder.wills, in the order of making */
	uint8_t key[GLAKE_MAX_WILL_KEY_BYTES];
	size_t n_key;
	uint8_t *record; /* owned */
	size_t n_record;
	bool may_be_read;   /* by others, as long as the holder has the chunks */
	uint64_t number;    /* of all of glaked, in the order of making */
	struct charge cost; /* for glaked's memory */
	size_t n_chunks;
	struct held *chunks[]; /* borrowed: the holder's */
};

/* Whether others may have the chunk behind the end of its process. STATUS_OK, or why not: for an answer. */
enum status will_check(const struct held *held, const char **why_out);

/*
 * Put these chunks of the holder, which will_check() allows, in a will of these words and in no other. Returns 0, -ENOMEM or
 * TENANT_E_MANIFESTS: nothing has changed.
 */
int will_set(struct holder *holder, struct held *const *chunks, size_t n_chunks,
             const struct will_words *words);
/* The chunk is in no will. */
void will_void(struct will *will);
/* Void the will of a chunk, if it has one. */
void will_void_of(const struct held *held);

/* Memory that somebody asks for by a key: at that location, chunks of that size and number. */
struct will_wanted {
	const struct location *at;
	const uint8_t *key;
	size_t n_key;
	uint64_t chunk_bytes;
	size_t n_chunks;
	const uint8_t *name; /* the record begins with it */
	size_t n_name;       /* 0: with anything */
};
bool will_has_key(const struct will *will, const struct will_wanted *wanted);
bool will_is_for(const struct will *will, const struct will_wanted *wanted);

/* Whether all of its chunks can be read by others, and outlive their process. */
bool will_stands(const struct will *will);
/* Whom all of its chunks are read by; NULL: nobody, or not all of them. */
struct holder *will_reader(const struct will *will);

/* With a copy of the words, of nobody's chunks yet, and nobody pays. NULL: no memory. */
struct will *will_new(size_t n_chunks, const struct will_words *words);
/* The cost of the will, with what it will be when it is kept. */
uint64_t will_bytes(const struct will *will);
/* Move the will to the holder @to, with these chunks. For the kept step alone. */
void will_move(struct will *will, struct holder *to, struct held *const *chunks);
/* The will has no chunks any more. */
void will_free(struct will *will);

#endif

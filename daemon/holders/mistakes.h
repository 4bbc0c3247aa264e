/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of mistakes: programs that lost their context to an illegal access while memory was sealed that nobody had asked
 * to seal. A table of readers may be wrong, or the program hides pointers. They are not sealed by themselves again, and
 * the words that they used last are no readers for anybody of their user, until somebody forgives it.
 *
 * A mistake is what a client says, and concerns its user alone: who lies is not shared. A user has MISTAKES_OF_USER; all
 * have MISTAKES_MAX, and then who has most loses the oldest.
 *
 * Owner: holders. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MISTAKES_H
#define GLAKE_DAEMON_MISTAKES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"
#include "proto/limits.h"

#define MISTAKES_OF_USER 32u
#define MISTAKES_MAX 1024u
#define MISTAKE_KERNELS_BYTES 512u

/* A program is known by the name that its client gives, its script, and its file. */
struct mistake_key {
	uid_t uid; /* of its user */
	const char *program;
	const char *script;
	const char *executable;
};

struct mistake {
	struct list link; /* link: mistakes.list */
	uint64_t id;      /* from 1 on */
	uid_t uid;
	char program[GLAKE_MAX_LABEL_BYTES];
	char script[GLAKE_MAX_LABEL_BYTES];
	char executable[GLAKE_MAX_LABEL_BYTES];
	uint64_t time_ms; /* of the last fault, since 1970 */
	uint64_t n_faults;
	uint32_t n_words;
	uint64_t words[GLAKE_MAX_SUSPECTS];  /* as clients number them; of the last fault first */
	char kernels[MISTAKE_KERNELS_BYTES]; /* the kernels' names, as people are told them */
};

struct mistakes {
	struct list list; /* the oldest fault first */
	unsigned n;
	uint64_t last_id;
};

void mistakes_init(struct mistakes *mistakes);
void mistakes_deinit(struct mistakes *mistakes);

/* Find the mistake of a program; NULL: there is none. */
struct mistake *mistakes_find(const struct mistakes *mistakes, const struct mistake_key *key);
/* The one with the smallest id above @after; NULL at the end. */
struct mistake *mistakes_next(const struct mistakes *mistakes, uint64_t after);

/* Add a program without a fault yet. NULL: no memory. @id: one that was written down, or 0. */
struct mistake *mistakes_add(struct mistakes *mistakes, const struct mistake_key *key, uint64_t id);
/* Note one more fault, of a moment ago. */
void mistake_note(struct mistakes *mistakes, struct mistake *mistake, const uint64_t *words,
                  size_t n_words, const char *kernels);
void mistake_free(struct mistakes *mistakes, struct mistake *mistake);

/* A mistake over a bound, or NULL: to be freed by the caller, who may have it written down. */
struct mistake *mistakes_too_many(const struct mistakes *mistakes);

/* The words of all that the user has. At most MISTAKES_OF_USER * GLAKE_MAX_SUSPECTS. */
size_t mistakes_words_of(const struct mistakes *mistakes, uid_t uid, uint64_t *words_out);

#endif

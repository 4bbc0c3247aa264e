/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/mistakes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void mistakes_init(struct mistakes *mistakes)
{
	*mistakes = (struct mistakes){.n = 0};
	list_init(&mistakes->list);
}

void mistakes_deinit(struct mistakes *mistakes)
{
	while (!list_is_empty(&mistakes->list)) {
		mistake_free(mistakes, container_of(mistakes->list.next, struct mistake, link));
	}
}

/* Longer names are cut, here and when they are compared. */
static bool is_same(const char *has, const char *text)
{
	return strncmp(has, text, GLAKE_MAX_LABEL_BYTES - 1) == 0;
}

struct mistake *mistakes_find(const struct mistakes *mistakes, const struct mistake_key *key)
{
	struct mistake *mistake;
	list_for_each (mistake, &mistakes->list, link) {
		if (mistake->uid == key->uid && is_same(mistake->program, key->program) &&
		    is_same(mistake->script, key->script) &&
		    is_same(mistake->executable, key->executable)) {
			return mistake;
		}
	}
	return NULL;
}

struct mistake *mistakes_next(const struct mistakes *mistakes, uint64_t after)
{
	struct mistake *next = NULL;
	struct mistake *mistake;
	list_for_each (mistake, &mistakes->list, link) {
		if (mistake->id > after && (!next || mistake->id < next->id)) {
			next = mistake;
		}
	}
	return next;
}

struct mistake *mistakes_add(struct mistakes *mistakes, const struct mistake_key *key, uint64_t id)
{
	struct mistake *mistake = calloc(1, sizeof(*mistake));
	if (!mistake) {
		return NULL;
	}
	mistake->id = id ? id : mistakes->last_id + 1;
	mistakes->last_id = mistake->id > mistakes->last_id ? mistake->id : mistakes->last_id;
	mistake->uid = key->uid;
	snprintf(mistake->program, sizeof(mistake->program), "%s", key->program);
	snprintf(mistake->script, sizeof(mistake->script), "%s", key->script);
	snprintf(mistake->executable, sizeof(mistake->executable), "%s", key->executable);
	list_insert(&mistakes->list, &mistake->link);
	mistakes->n++;
	return mistake;
}

static bool has_word(const uint64_t *words, uint32_t n, uint64_t word)
{
	uint32_t i = 0;
	while (i < n && words[i] != word) {
		i++;
	}
	return i < n;
}

/* The new ones, and of the old ones as many as there is room for. */
static void take_words(struct mistake *mistake, const uint64_t *words, size_t n_words)
{
	const struct mistake before = *mistake;
	mistake->n_words = 0;
	for (size_t i = 0; i < n_words + before.n_words; i++) {
		uint64_t word = i < n_words ? words[i] : before.words[i - n_words];
		if (word != 0 && mistake->n_words < GLAKE_MAX_SUSPECTS &&
		    !has_word(mistake->words, mistake->n_words, word)) {
			mistake->words[mistake->n_words++] = word;
		}
	}
}

void mistake_note(struct mistakes *mistakes, struct mistake *mistake, const uint64_t *words,
                  size_t n_words, const char *kernels)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	mistake->time_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	mistake->n_faults++;
	take_words(mistake, words, n_words);
	snprintf(mistake->kernels, sizeof(mistake->kernels), "%s", kernels);
	list_remove(&mistake->link);
	list_insert(&mistakes->list, &mistake->link);
}

void mistake_free(struct mistakes *mistakes, struct mistake *mistake)
{
	list_remove(&mistake->link);
	mistakes->n--;
	free(mistake);
}

static unsigned count_of(const struct mistakes *mistakes, uid_t uid)
{
	const struct mistake *mistake;
	unsigned n = 0;
	list_for_each (mistake, &mistakes->list, link) {
		n += mistake->uid == uid;
	}
	return n;
}

struct mistake *mistakes_too_many(const struct mistakes *mistakes)
{
	struct mistake *found = NULL;
	unsigned most = mistakes->n > MISTAKES_MAX ? 0 : MISTAKES_OF_USER;
	struct mistake *mistake;
	if (mistakes->n <= MISTAKES_OF_USER) {
		return NULL;
	}
	/* The oldest of each user comes first. */
	list_for_each (mistake, &mistakes->list, link) {
		unsigned n = count_of(mistakes, mistake->uid);
		if (n > most) {
			most = n;
			found = mistake;
		}
	}
	return found;
}

size_t mistakes_words_of(const struct mistakes *mistakes, uid_t uid, uint64_t *words_out)
{
	const struct mistake *mistake;
	size_t n = 0;
	list_for_each (mistake, &mistakes->list, link) {
		if (mistake->uid == uid &&
		    n + mistake->n_words <= (size_t)MISTAKES_OF_USER * GLAKE_MAX_SUSPECTS) {
			memcpy(words_out + n, mistake->words,
			       mistake->n_words * sizeof(words_out[0]));
			n += mistake->n_words;
		}
	}
	return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/doubts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "glake_shim.h"
#include "proto/digest.h"

/* A few times as many as glaked tells a session, because a process may have several sessions, one after the other. */
#define MAX_WORDS 1024u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held by writers; readers need none */
static uint64_t words[MAX_WORDS];
static atomic_size_t n_words; /* words below this index are written */
static char why[GLAKE__DOUBT_BYTES];
static atomic_bool is_doubted; /* why is written, and stays */

static void doubt(const char *text)
{
	pthread_mutex_lock(&lock);
	if (!is_doubted && text[0]) {
		strncpy(why, text, sizeof(why) - 1);
		is_doubted = true;
	}
	pthread_mutex_unlock(&lock);
}

static void on_doubt(void *user, const char *text)
{
	(void)user;
	doubt(text);
}

static bool has(uint64_t word)
{
	const size_t n = atomic_load_explicit(&n_words, memory_order_acquire);
	size_t i = 0;
	while (i < n && words[i] != word) {
		i++;
	}
	return i < n;
}

static void add_words(const uint64_t *from, size_t n)
{
	bool fits = true;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++) {
		size_t at = n_words;
		if (has(from[i])) {
			continue;
		}
		fits = at < MAX_WORDS;
		if (fits) {
			words[at] = from[i];
			atomic_store_explicit(&n_words, at + 1, memory_order_release);
		}
	}
	pthread_mutex_unlock(&lock);
	if (!fits) {
		doubt("too many words of tables are doubted");
	}
}

void doubts_begin(struct glake_session *session)
{
	const struct glake__doubts told = glake__session_doubts(session);
	add_words(told.words, told.n_words);
	doubt(told.why);
	glake__doubt_follow(session, on_doubt, NULL);
}

const char *doubts_why(void)
{
	return is_doubted ? why : NULL;
}

uint64_t doubts_word(const struct kernel *kernel, size_t number)
{
	const struct kernel_known *known = kernel->known;
	if (!known) {
		return 0;
	}
	/* The hash stays the same as long as these fields do. */
	struct {
		struct image_id image;
		struct digest name;
		uint64_t at;
	} word;
	memset(&word, 0, sizeof(word));
	word.image = kernel->image;
	word.name = digest_of(known->function->name, strlen(known->function->name));
	word.at = 8 * number;
	/* 0 means that no table knows the kernel. */
	return digest_of(&word, sizeof(word)).low | 1;
}

bool doubts_has(const struct kernel *kernel, size_t number)
{
	return atomic_load_explicit(&n_words, memory_order_relaxed) > 0 &&
	       has(doubts_word(kernel, number));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Unknown words are ignored, because the shim must not print. `glake run` checks them. */
#include "shim/policy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct shim_policy policy;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int told = SHIM_DEDUP_UNTOLD; /* enum shim_dedup: the tenant's choice */

static bool is_set_to(const char *name, const char *value)
{
	const char *found = secure_getenv(name);
	return found && strcmp(found, value) == 0;
}

/* The program's choice. An unknown word counts as off. */
static enum shim_dedup read_dedup(void)
{
	static const struct {
		const char *word;
		enum shim_dedup dedup;
	} words[] = {
		{"auto", SHIM_DEDUP_AUTO},
		{"observed", SHIM_DEDUP_OBSERVED},
		{"learn", SHIM_DEDUP_LEARN},
	};
	const char *said = secure_getenv("GLAKE_DEDUP");
	if (!said || !*said) {
		return SHIM_DEDUP_UNTOLD;
	}
	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(said, words[i].word) == 0) {
			return words[i].dedup;
		}
	}
	return SHIM_DEDUP_ASKED;
}

/* Is @word in the comma-separated @list? */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);
	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0')) {
			return true;
		}
	}
	return false;
}

static void read_environment(void)
{
	const char *owned = secure_getenv("GLAKE_SHIM_OWN");
	policy = (struct shim_policy){
		.is_off = is_set_to("GLAKE_SHIM", "off") || is_set_to("GLAKE_SHIM", "0"),
		.refuses_absent = is_set_to("GLAKE_SHIM_ABSENT", "refuse"),
		.owns_alloc = !owned || has_word(owned, "alloc"),
		.owns_async = !owned || has_word(owned, "async"),
		.owns_vmm = !owned || has_word(owned, "vmm"),
		.dedup = read_dedup(),
		.stitches = is_set_to("GLAKE_ALLOC", "stitch"),
		.says_refused = is_set_to("GLAKE_SHIM_SAY", "refused"),
	};
}

const struct shim_policy *shim_policy(void)
{
	pthread_once(&once, read_environment);
	return &policy;
}

enum shim_dedup shim_dedup(void)
{
	const enum shim_dedup said = shim_policy()->dedup;
	return said == SHIM_DEDUP_UNTOLD
	               ? (enum shim_dedup)atomic_load_explicit(&told, memory_order_relaxed)
	               : said;
}

void shim_dedup_tell(enum shim_dedup of_tenant)
{
	int untold = SHIM_DEDUP_UNTOLD;
	atomic_compare_exchange_strong(&told, &untold, (int)of_tenant);
}

bool shim_policy_owns_any(void)
{
	const struct shim_policy *now = shim_policy();
	return !now->is_off && (now->owns_alloc || now->owns_async || now->owns_vmm);
}

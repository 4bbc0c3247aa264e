/* SPDX-License-Identifier: Apache-2.0 */
/* Unknown words are ignored, because the shim must not print. `glake run` checks them. */
#include "shim/policy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct shim_policy policy;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_set_to(const char *name, const char *value)
{
	const char *found = secure_getenv(name);
	return found && strcmp(found, value) == 0;
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
		.dedup = is_set_to("GLAKE_DEDUP", "auto")       ? SHIM_DEDUP_AUTO
	                 : is_set_to("GLAKE_DEDUP", "observed") ? SHIM_DEDUP_OBSERVED
	                 : is_set_to("GLAKE_DEDUP", "learn")    ? SHIM_DEDUP_LEARN
	                                                        : SHIM_DEDUP_ASKED,
		.stitches = is_set_to("GLAKE_ALLOC", "stitch"),
		.says_refused = is_set_to("GLAKE_SHIM_SAY", "refused"),
	};
}

const struct shim_policy *shim_policy(void)
{
	pthread_once(&once, read_environment);
	return &policy;
}

bool shim_policy_owns_any(void)
{
	const struct shim_policy *now = shim_policy();
	return !now->is_off && (now->owns_alloc || now->owns_async || now->owns_vmm);
}

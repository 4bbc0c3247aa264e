/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/torch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

#define BACKEND "cudaMallocAsync"

static const char *skip_space(const char *at)
{
	return at + strspn(at, " \t\n\v\f\r");
}

/* Does @text begin with @word, as a whole? PyTorch ignores space between words. */
static const char *after_word(const char *text, const char *word)
{
	size_t n = strlen(word);
	text = skip_space(text);
	return strncmp(text, word, n) == 0 ? skip_space(text + n) : NULL;
}

/* The value of @key in @settings, "key:value,key:[value,value]"; NULL: it is not there. */
static const char *value_of(const char *settings, const char *key)
{
	for (const char *at = settings; at; at = strchr(at, ',')) {
		at += *at == ',';
		const char *colon = after_word(at, key);
		if (colon && *colon == ':') {
			return colon + 1;
		}
	}
	return NULL;
}

static bool is(const char *value, const char *word)
{
	const char *end = value ? after_word(value, word) : NULL;
	return end && (*end == '\0' || *end == ',');
}

/* The variable that PyTorch takes its settings from. */
static const char *variable(void)
{
	const char *newer = "PYTORCH_ALLOC_CONF";
	const char *every = "PYTORCH_CUDA_ALLOC_CONF";
	return !getenv(every) && getenv(newer) ? newer : every;
}

int torch_use_async(void)
{
	const char *name = variable();
	const char *settings = getenv(name);
	cleanup_free char *added = NULL;
	settings = settings ? skip_space(settings) : "";
	const char *backend = value_of(settings, "backend");
	if (backend) {
		if (!is(backend, BACKEND)) {
			fprintf(stderr,
			        "glake: %s names a backend, which stays; --alloc=stitch is for "
			        "backend:" BACKEND "\n",
			        name);
		}
		return 0;
	}
	if (is(value_of(settings, "expandable_segments"), "True")) {
		fprintf(stderr,
		        "glake: %s: expandable_segments has no effect with --alloc=stitch\n", name);
	}
	if (asprintf(&added, "%s%sbackend:" BACKEND, settings, *settings ? "," : "") < 0) {
		added = NULL;
		return -ENOMEM;
	}
	return setenv(name, added, 1) < 0 ? -errno : 0;
}

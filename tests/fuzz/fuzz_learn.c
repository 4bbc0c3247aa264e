/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `glake learn` reads: a state, and behind a zero what a program was seen to do. What is accepted can be written down
 * again and is the same then; and whatever it is, a table that counts is made of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/run/learn_merge.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Returns the text, which the caller frees. */
static char *write_down(const struct learned *learned)
{
	char *text = NULL;
	size_t n_bytes;
	FILE *out = open_memstream(&text, &n_bytes);
	must(out != NULL);
	learned_write(learned, out);
	must(fclose(out) == 0);
	return text;
}

static void check_state(const struct learned *learned)
{
	struct learned other = {.n_functions = 0};
	struct readers_error error;
	char *text = write_down(learned);
	char *copy = strdup(text);
	must(copy && learned_parse(&other, copy, &error) == 0);
	char *again = write_down(&other);
	must(strcmp(text, again) == 0);
	learned_deinit(&other);
	free(again);
	free(copy);
	free(text);
}

static void check_table(const struct learned *learned)
{
	struct readers *readers;
	struct readers_error error;
	char *text = NULL;
	size_t n_bytes;
	FILE *out = open_memstream(&text, &n_bytes);
	must(out != NULL);
	learn_write_table(learned, NULL, 2, out);
	must(fclose(out) == 0);
	must(readers_parse(text, n_bytes, &readers, &error) == 0);
	struct learn_sum sum = learn_sum(learned, 2);
	must(readers->n_functions == sum.n_functions + sum.n_open);
	readers_free(readers);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct learned learned = {.n_functions = 0};
	struct readers_error error;
	struct learn_found found;
	char *text = malloc(n_bytes + 2);
	must(text != NULL);
	memcpy(text, data, n_bytes);
	memset(text + n_bytes, 0, 2);
	char *facts = text + strlen(text) + 1;
	if (learned_parse(&learned, text, &error) == 0) {
		check_state(&learned);
		/* The second run is what the first one would have been. */
		for (unsigned i = 0; facts < text + n_bytes + 1 && i < 2; i++) {
			must(learn_merge(&learned, facts, &found) == 0);
			check_state(&learned);
		}
		check_table(&learned);
	}
	learned_deinit(&learned);
	free(text);
	return 0;
}

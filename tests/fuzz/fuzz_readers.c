/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of tables of readers: what it accepts can be written down again, and is the same table then. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/readers.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void write_word(FILE *out, const struct reader_word *word)
{
	must(word->at % 8 == 0 && word->at + 8u <= READERS_MAX_PARAM_BYTES);
	must(word->n_conditions <= READERS_MAX_CONDITIONS);
	must(!word->is_written || word->n_conditions == 0);
	fprintf(out, "  %s %u", word->is_written ? "writes" : "reads", word->at);
	for (unsigned i = 0; i < word->n_conditions; i++) {
		const struct reader_condition *condition = &word->conditions[i];
		must(condition->at + condition->n_bytes <= READERS_MAX_PARAM_BYTES);
		fprintf(out, "%s u%u %u = %" PRIu64, i == 0 ? " if" : " and",
		        condition->n_bytes * 8u, condition->at, condition->value);
	}
	fputc('\n', out);
}

/* Returns the text, which the caller frees. */
static char *write_down(const struct readers *readers, size_t *n_bytes_out)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, n_bytes_out);
	must(out != NULL);
	fputs("glake-readers 1\nfor \"what was read\"\n", out);
	for (size_t i = 0; i < readers->n_functions; i++) {
		const struct reader_function *function = &readers->functions[i];
		char image[IMAGE_TEXT_BYTES];
		image_to_text(&function->image, image);
		fprintf(out, "image %s\n%s %s\n", image,
		        function->is_opaque ? "opaque" : "function", function->name);
		must(!function->is_opaque || function->n_words == 0);
		for (size_t k = 0; k < function->n_words; k++) {
			write_word(out, &function->words[k]);
		}
	}
	must(fclose(out) == 0);
	return text;
}

static void same(const struct readers *a, const struct readers *b)
{
	must(a->n_functions == b->n_functions);
	for (size_t i = 0; i < a->n_functions; i++) {
		const struct reader_function *one = &a->functions[i];
		const struct reader_function *other = readers_find(b, &one->image, one->name);
		must(other != NULL && readers_find(a, &one->image, one->name) == one);
		must(one->is_opaque == other->is_opaque && one->n_words == other->n_words);
		must(one->names_written == other->names_written);
		must(one->n_words == 0 ||
		     memcmp(one->words, other->words, one->n_words * sizeof(*one->words)) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct readers *readers;
	struct readers *again;
	struct readers_error error = {0};
	if (readers_parse((const char *)data, n_bytes, &readers, &error) != 0) {
		must(error.text[0] != '\0' && memchr(error.text, '\0', sizeof(error.text)));
		return 0;
	}
	size_t n_text_bytes;
	char *text = write_down(readers, &n_text_bytes);
	must(readers_parse(text, n_text_bytes, &again, &error) == 0);
	same(readers, again);
	readers_free(again);
	readers_free(readers);
	free(text);
	return 0;
}

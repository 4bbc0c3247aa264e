/* SPDX-License-Identifier: Apache-2.0 */
/* The format of tables. Anything that is not understood is an error, because a wrong reader makes a program fault. */
#include "shim/readers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/cleanup.h"
#include "proto/digest.h"
#include "proto/limits.h"

#define MAX_TOKENS 64u
#define MAX_FUNCTIONS (1u << 20)
#define MAX_WORDS 4096u

struct parser {
	struct readers *readers;
	struct readers_error *error;
	unsigned line;
	struct image_id image;
	bool has_header;
	size_t capacity;
	size_t word_capacity; /* the last function's */
};

__attribute__((format(printf, 2, 3))) static int fail(struct parser *parser, const char *format,
                                                      ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(parser->error->text, sizeof(parser->error->text), format, arguments);
	va_end(arguments);
	parser->error->line = parser->line;
	return -EINVAL;
}

/* ---- tokens ----------------------------------------------------------------------------------- */

static bool is_space(char c)
{
	return c == ' ' || c == '\t';
}

/* Cuts @line in place. A token that begins with " ends with one. -1: there are too many tokens, or one has no end. */
static int cut(char *line, char *tokens[MAX_TOKENS])
{
	int n = 0;
	char *at = line;
	for (;;) {
		while (is_space(*at)) {
			at++;
		}
		if (*at == '\0' || *at == '#') {
			return n;
		}
		if (n == MAX_TOKENS) {
			return -1;
		}
		tokens[n++] = at;
		if (*at == '"') {
			at = strchr(at + 1, '"');
			if (!at || (at[1] != '\0' && !is_space(at[1]))) {
				return -1;
			}
			at++;
		} else {
			while (*at != '\0' && !is_space(*at)) {
				at++;
			}
		}
		if (*at != '\0') {
			*at++ = '\0';
		}
	}
}

static int digit_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_number(const char *text, uint64_t max, uint64_t *value_out)
{
	unsigned base = 10;
	uint64_t value = 0;
	if (text[0] == '0' && text[1] == 'x') {
		base = 16;
		text += 2;
	}
	if (*text == '\0') {
		return false;
	}
	for (; *text; text++) {
		int digit = digit_of(*text);
		if (digit < 0 || (unsigned)digit >= base ||
		    __builtin_mul_overflow(value, base, &value) ||
		    __builtin_add_overflow(value, (unsigned)digit, &value)) {
			return false;
		}
	}
	*value_out = value;
	return value <= max;
}

/* Parse hexadecimal digits: small letters, whole bytes. */
static bool parse_bytes(const char *text, struct image_id *image)
{
	size_t n = strlen(text);
	if (n == 0 || n % 2 != 0 || n / 2 > READERS_MAX_ID_BYTES) {
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		int digit = digit_of(text[i]);
		if (digit < 0) {
			return false;
		}
		image->bytes[i / 2] = (uint8_t)(image->bytes[i / 2] << 4 | digit);
	}
	image->n_bytes = (uint32_t)(n / 2);
	return true;
}

/* ---- lines ------------------------------------------------------------------------------------ */

static int on_header(struct parser *parser, char **tokens, int n)
{
	if (n != 2 || strcmp(tokens[0], "glake-readers") != 0) {
		return fail(parser, "the first line must be \"glake-readers 1\"");
	}
	if (strcmp(tokens[1], "1") != 0) {
		return fail(parser, "version %.32s of the format is not known", tokens[1]);
	}
	parser->has_header = true;
	return 0;
}

static int on_for(struct parser *parser, char **tokens, int n)
{
	if (n != 2 || tokens[1][0] != '"') {
		return fail(parser, "must be: for \"WHAT IT IS TRUE FOR\"");
	}
	if (parser->readers->what_for) {
		return fail(parser, "a second \"for\"");
	}
	parser->readers->what_for = strndup(tokens[1] + 1, strlen(tokens[1]) - 2);
	return parser->readers->what_for ? 0 : -ENOMEM;
}

/* Parse "build-id HEX offset NUMBER" or "digest HEX bytes NUMBER". Returns the kind; -1: wrong bytes, -2: wrong number. */
static int read_image(const char *const *words, struct image_id *image_out)
{
	*image_out = (struct image_id){.kind = IMAGE_UNKNOWN};
	if (strcmp(words[0], "build-id") == 0 && strcmp(words[2], "offset") == 0) {
		image_out->kind = IMAGE_IN_FILE;
	} else if (strcmp(words[0], "digest") == 0 && strcmp(words[2], "bytes") == 0) {
		image_out->kind = IMAGE_IN_MEMORY;
	} else {
		return IMAGE_UNKNOWN;
	}
	if (!parse_bytes(words[1], image_out) ||
	    (image_out->kind == IMAGE_IN_MEMORY && image_out->n_bytes != DIGEST_BYTES)) {
		return -1;
	}
	return parse_number(words[3], UINT64_MAX, &image_out->at) ? (int)image_out->kind : -2;
}

static int on_image(struct parser *parser, char **tokens, int n)
{
	struct image_id image = {0};
	if (!parser->readers->what_for) {
		return fail(parser, "there is no \"for\" before the first image");
	}
	int kind = n == 5 ? read_image((const char *const *)tokens + 1, &image) : IMAGE_UNKNOWN;
	if (kind == IMAGE_UNKNOWN) {
		return fail(parser,
		            "must be: image build-id HEX offset NUMBER, or: image digest HEX "
		            "bytes NUMBER");
	}
	if (kind < 0) {
		return kind == -1 ? fail(parser, "\"%.80s\" is no %s", tokens[2], tokens[1])
		                  : fail(parser, "\"%.80s\" is no number", tokens[4]);
	}
	parser->image = image;
	return 0;
}

static struct reader_function *last_of(struct readers *readers)
{
	return readers->n_functions ? &readers->functions[readers->n_functions - 1] : NULL;
}

static int on_function(struct parser *parser, char **tokens, int n, bool is_opaque)
{
	struct readers *readers = parser->readers;
	if (parser->image.kind == IMAGE_UNKNOWN) {
		return fail(parser, "there is no image before it");
	}
	if (n != 2 || tokens[1][0] == '"') {
		return fail(parser, "must be: %s NAME", tokens[0]);
	}
	if (readers->n_functions == MAX_FUNCTIONS) {
		return fail(parser, "more than %u functions", MAX_FUNCTIONS);
	}
	char *name = array_grow(readers->functions, readers->n_functions, parser->capacity, 64) == 0
	                     ? strdup(tokens[1])
	                     : NULL;
	if (!name) {
		return -ENOMEM;
	}
	readers->functions[readers->n_functions++] = (struct reader_function){
		.image = parser->image,
		.name = name,
		.is_opaque = is_opaque,
		.line = parser->line,
	};
	parser->word_capacity = 0;
	return 0;
}

/* Parse a condition like "u32 24 = 0". */
static int parse_condition(struct parser *parser, char **tokens, struct reader_condition *out)
{
	uint64_t at;
	uint64_t value;
	const char *type = tokens[0];
	unsigned n = strcmp(type, "u8") == 0    ? 1
	             : strcmp(type, "u16") == 0 ? 2
	             : strcmp(type, "u32") == 0 ? 4
	             : strcmp(type, "u64") == 0 ? 8
	                                        : 0;
	if (n == 0) {
		return fail(parser, "\"%.80s\" is none of u8, u16, u32 and u64", type);
	}
	if (!parse_number(tokens[1], READERS_MAX_PARAM_BYTES - n, &at)) {
		return fail(parser, "\"%.80s\" is no offset of a parameter", tokens[1]);
	}
	if (strcmp(tokens[2], "=") != 0) {
		return fail(parser, "\"%.80s\" is not =", tokens[2]);
	}
	if (!parse_number(tokens[3], n == 8 ? UINT64_MAX : (1ull << 8 * n) - 1, &value)) {
		return fail(parser, "\"%.80s\" is no value of %s", tokens[3], type);
	}
	*out = (struct reader_condition){(uint16_t)at, (uint16_t)n, value};
	return 0;
}

static int add_word(struct parser *parser, const struct reader_word *word)
{
	struct reader_function *function = last_of(parser->readers);
	if (function->n_words == MAX_WORDS) {
		return fail(parser, "more than %u words", MAX_WORDS);
	}
	if (array_grow(function->words, function->n_words, parser->word_capacity, 4) < 0) {
		return -ENOMEM;
	}
	function->words[function->n_words++] = *word;
	return 0;
}

static bool parse_word(const char *text, struct reader_word *word)
{
	uint64_t at;
	if (!parse_number(text, READERS_MAX_PARAM_BYTES - 8, &at) || at % 8 != 0) {
		return false;
	}
	word->at = (uint16_t)at;
	return true;
}

/* Parse "reads OFFSET [if CONDITION [and CONDITION]...]", or "writes OFFSET". */
static int on_word(struct parser *parser, char **tokens, int n)
{
	struct reader_function *function = last_of(parser->readers);
	struct reader_word word = {.is_written = strcmp(tokens[0], "writes") == 0};
	if (!function || function->is_opaque) {
		return fail(parser, "there is no function before it");
	}
	if (n < 2 || (n - 2) % 5 != 0 || (word.is_written && n > 2)) {
		return fail(parser, "must be: writes OFFSET, or: reads OFFSET, and then maybe: "
		                    "if TYPE OFFSET = VALUE [and ...]");
	}
	if (!parse_word(tokens[1], &word)) {
		return fail(parser, "\"%.80s\" is no offset of a pointer: a multiple of 8",
		            tokens[1]);
	}
	for (int i = 2; i < n; i += 5) {
		const char *wanted = i == 2 ? "if" : "and";
		if (strcmp(tokens[i], wanted) != 0) {
			return fail(parser, "\"%.80s\" is not \"%s\"", tokens[i], wanted);
		}
		if (word.n_conditions == READERS_MAX_CONDITIONS) {
			return fail(parser, "more than %u conditions", READERS_MAX_CONDITIONS);
		}
		int r = parse_condition(parser, tokens + i + 1,
		                        &word.conditions[word.n_conditions++]);
		if (r < 0) {
			return r;
		}
	}
	function->names_written = function->names_written || word.is_written;
	return add_word(parser, &word);
}

static int on_line(struct parser *parser, char *line)
{
	char *tokens[MAX_TOKENS];
	int n = cut(line, tokens);
	if (n < 0) {
		return fail(parser, "too many words, or a \" without its other");
	}
	if (n == 0) {
		return 0;
	}
	if (!parser->has_header) {
		return on_header(parser, tokens, n);
	}
	if (strcmp(tokens[0], "for") == 0) {
		return on_for(parser, tokens, n);
	}
	if (strcmp(tokens[0], "image") == 0) {
		return on_image(parser, tokens, n);
	}
	if (strcmp(tokens[0], "function") == 0 || strcmp(tokens[0], "opaque") == 0) {
		return on_function(parser, tokens, n, tokens[0][0] == 'o');
	}
	if (strcmp(tokens[0], "reads") == 0 || strcmp(tokens[0], "writes") == 0) {
		return on_word(parser, tokens, n);
	}
	return fail(parser, "\"%.80s\" is not known", tokens[0]);
}

/* ---- all of it -------------------------------------------------------------------------------- */

static int by_code(const void *a, const void *b)
{
	const struct reader_function *left = a;
	const struct reader_function *right = b;
	int order = memcmp(&left->image, &right->image, sizeof(left->image));
	return order ? order : strcmp(left->name, right->name);
}

static int sort(struct parser *parser)
{
	struct readers *readers = parser->readers;
	if (readers->n_functions > 0) {
		qsort(readers->functions, readers->n_functions, sizeof(*readers->functions),
		      by_code);
	}
	for (size_t i = 1; i < readers->n_functions; i++) {
		if (by_code(&readers->functions[i - 1], &readers->functions[i]) == 0) {
			uint32_t one = readers->functions[i - 1].line;
			uint32_t other = readers->functions[i].line;
			parser->line = one > other ? one : other;
			return fail(parser, "the function is there twice");
		}
	}
	return 0;
}

static int parse_lines(struct parser *parser, char *text, size_t n_bytes)
{
	if (memchr(text, '\0', n_bytes)) {
		return fail(parser, "it is no text");
	}
	int r = 0;
	char *rest = text;
	while (r == 0 && rest && *rest) {
		char *line = rest;
		rest = strchr(line, '\n');
		if (rest) {
			*rest++ = '\0';
		}
		parser->line++;
		r = on_line(parser, line);
	}
	if (r == 0 && !parser->has_header) {
		parser->line = 0;
		r = fail(parser, "it is empty");
	}
	return r < 0 ? r : sort(parser);
}

int readers_parse(const char *text, size_t n_bytes, struct readers **readers_out,
                  struct readers_error *error_out)
{
	struct parser parser = {.error = error_out};
	*error_out = (struct readers_error){.line = 0};
	if (n_bytes > GLAKE_MAX_READERS_FILE_BYTES) {
		return fail(&parser, "it is larger than 16 MiB");
	}
	cleanup_free char *copy = malloc(n_bytes + 1);
	parser.readers = calloc(1, sizeof(*parser.readers));
	int r = -ENOMEM;
	if (copy && parser.readers) {
		memcpy(copy, text, n_bytes);
		copy[n_bytes] = '\0';
		r = parse_lines(&parser, copy, n_bytes);
	}
	if (r == 0 && !parser.readers->what_for) {
		parser.readers->what_for = strdup("");
		r = parser.readers->what_for ? 0 : -ENOMEM;
	}
	if (r < 0) {
		readers_free(parser.readers);
		return r;
	}
	*readers_out = parser.readers;
	return 0;
}

void readers_free(struct readers *readers)
{
	for (size_t i = 0; readers && i < readers->n_functions; i++) {
		free(readers->functions[i].name);
		free(readers->functions[i].words);
	}
	if (readers) {
		free(readers->functions);
		free(readers->what_for);
		free(readers);
	}
}

const struct reader_function *readers_find(const struct readers *readers,
                                           const struct image_id *image, const char *name)
{
	const struct reader_function key = {.image = *image, .name = (char *)name};
	if (image->kind == IMAGE_UNKNOWN || readers->n_functions == 0) {
		return NULL;
	}
	return bsearch(&key, readers->functions, readers->n_functions, sizeof(key), by_code);
}

bool image_from_text(const char *text, struct image_id *image_out)
{
	char copy[IMAGE_TEXT_BYTES];
	const char *words[4];
	unsigned n = 0;
	char *rest = NULL;
	if (strlen(text) >= sizeof(copy)) {
		return false;
	}
	strcpy(copy, text);
	for (char *word = strtok_r(copy, " ", &rest); word && n < 4;
	     word = strtok_r(NULL, " ", &rest)) {
		words[n++] = word;
	}
	return n == 4 && read_image(words, image_out) > IMAGE_UNKNOWN;
}

void image_to_text(const struct image_id *image, char text_out[IMAGE_TEXT_BYTES])
{
	char hex[2 * READERS_MAX_ID_BYTES + 1] = "";
	for (uint32_t i = 0; i < image->n_bytes && i < READERS_MAX_ID_BYTES; i++) {
		snprintf(hex + 2 * i, 3, "%02x", image->bytes[i]);
	}
	if (image->kind == IMAGE_IN_FILE) {
		snprintf(text_out, IMAGE_TEXT_BYTES, "build-id %s offset 0x%" PRIx64, hex,
		         image->at);
	} else if (image->kind == IMAGE_IN_MEMORY) {
		snprintf(text_out, IMAGE_TEXT_BYTES, "digest %s bytes %" PRIu64, hex, image->at);
	} else {
		snprintf(text_out, IMAGE_TEXT_BYTES, "code of which nothing is known");
	}
}

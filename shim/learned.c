/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/learned.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/array.h"
#include "proto/cleanup.h"

bool learned_is_name(const char *name)
{
	return *name && !strpbrk(name, " \t\r\n\"#");
}

bool learned_is_offset(uint64_t at)
{
	return at % 8 == 0 && at + 8 <= READERS_MAX_PARAM_BYTES;
}

/* ---- what there is ---------------------------------------------------------------------------- */

static int compare(const struct learned_function *function, const struct image_id *image,
                   const char *name)
{
	int order = memcmp(&function->image, image, sizeof(*image));
	return order ? order : strcmp(function->name, name);
}

/* The index of the function, or of the place where it would be. */
static size_t place_of(const struct learned *learned, const struct image_id *image,
                       const char *name)
{
	size_t low = 0;
	size_t high = learned->n_functions;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (compare(learned->functions[middle], image, name) < 0) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

struct learned_function *learned_find(const struct learned *learned, const struct image_id *image,
                                      const char *name)
{
	size_t at = place_of(learned, image, name);
	return at < learned->n_functions && compare(learned->functions[at], image, name) == 0
	               ? learned->functions[at]
	               : NULL;
}

static void free_function(struct learned_function *function)
{
	if (function) {
		free(function->name);
		free(function->open);
		free(function->words);
		free(function);
	}
}

struct learned_function *learned_get(struct learned *learned, const struct image_id *image,
                                     const char *name)
{
	struct learned_function *function = learned_find(learned, image, name);
	if (function) {
		return function;
	}
	function = array_grow(learned->functions, learned->n_functions, learned->capacity, 256) == 0
	                   ? calloc(1, sizeof(*function))
	                   : NULL;
	if (function) {
		function->image = *image;
		function->name = strdup(name);
	}
	if (!function || !function->name) {
		free_function(function);
		return NULL;
	}
	size_t at = place_of(learned, image, name);
	memmove(learned->functions + at + 1, learned->functions + at,
	        (learned->n_functions - at) * sizeof(struct learned_function *));
	learned->functions[at] = function;
	learned->n_functions++;
	return function;
}

struct learned_word *learned_word(struct learned_function *function, uint16_t at)
{
	size_t i = 0;
	while (i < function->n_words && function->words[i].at != at) {
		i++;
	}
	return i < function->n_words ? &function->words[i] : NULL;
}

struct learned_word *learned_get_word(struct learned_function *function, uint16_t at)
{
	struct learned_word *word = learned_word(function, at);
	if (word) {
		return word;
	}
	struct learned_word *more = realloc(function->words,
	                                    (function->n_words + 1) * sizeof(*more));
	if (!more) {
		return NULL;
	}
	function->words = more;
	size_t i = function->n_words++;
	for (; i > 0 && more[i - 1].at > at; i--) {
		more[i] = more[i - 1];
	}
	more[i] = (struct learned_word){.at = at};
	return &more[i];
}

bool learned_count(struct learned_lines *lines, const char *text, uint64_t n)
{
	size_t i = 0;
	while (i < lines->n && strcmp(lines->list[i].text, text) != 0) {
		i++;
	}
	if (i < lines->n) {
		lines->list[i].n += n;
		return true;
	}
	struct learned_line *more = realloc(lines->list, (lines->n + 1) * sizeof(*more));
	char *copy = strdup(text);
	if (more) {
		lines->list = more;
	}
	if (!more || !copy) {
		free(copy);
		return false;
	}
	lines->list[lines->n++] = (struct learned_line){copy, n};
	return true;
}

static void free_lines(struct learned_lines *lines)
{
	for (size_t i = 0; i < lines->n; i++) {
		free(lines->list[i].text);
	}
	free(lines->list);
}

void learned_deinit(struct learned *learned)
{
	for (size_t i = 0; i < learned->n_functions; i++) {
		free_function(learned->functions[i]);
	}
	free(learned->functions);
	free_lines(&learned->ran);
	free_lines(&learned->on);
	*learned = (struct learned){.n_functions = 0};
}

/* ---- its text --------------------------------------------------------------------------------- */

struct parser {
	struct learned *learned;
	struct image_id image;
	bool has_image;
	struct learned_function *function; /* borrowed: that of the last `function` line */
};

/* Parse "COUNT TEXT". */
static int on_line_of(struct learned_lines *lines, const char *text)
{
	char *rest;
	uint64_t n = strtoull(text, &rest, 10);
	if (rest == text || *rest != ' ') {
		return -EINVAL;
	}
	return learned_count(lines, rest + 1, n) ? 0 : -ENOMEM;
}

static int on_word(struct parser *parser, enum learned_writing writing, const char *text)
{
	unsigned at;
	uint64_t n = 0;
	int n_read = sscanf(text, "%u %" SCNu64, &at, &n);
	if (!parser->function || n_read < (writing == LEARNED_NOT ? 2 : 1) ||
	    !learned_is_offset(at)) {
		return -EINVAL;
	}
	struct learned_word *word = learned_get_word(parser->function, (uint16_t)at);
	if (!word) {
		return -ENOMEM;
	}
	word->n_read += n;
	word->writing = writing == LEARNED_NOT ? word->writing : writing;
	return 0;
}

static int on_function(struct parser *parser, const char *name)
{
	if (!parser->has_image || !learned_is_name(name)) {
		return -EINVAL;
	}
	parser->function = learned_get(parser->learned, &parser->image, name);
	return parser->function ? 0 : -ENOMEM;
}

static int on_image(struct parser *parser, const char *text)
{
	parser->function = NULL;
	parser->has_image = true;
	parser->image = (struct image_id){.kind = IMAGE_UNKNOWN};
	return strcmp(text, "unknown") == 0 || image_from_text(text, &parser->image) ? 0 : -EINVAL;
}

static int on_open(struct parser *parser, const char *why)
{
	if (!parser->function) {
		return -EINVAL;
	}
	free(parser->function->open);
	parser->function->open = strdup(why);
	return parser->function->open ? 0 : -ENOMEM;
}

static int on_alone(struct parser *parser, const char *text)
{
	if (!parser->function) {
		return -EINVAL;
	}
	parser->function->n_alone += strtoull(text, NULL, 10);
	return 0;
}

static int on_line(struct parser *parser, char *line)
{
	char *word = line + strspn(line, " ");
	char *rest = word + strcspn(word, " ");
	if (*rest) {
		*rest++ = '\0';
	}
	if (*word == '\0' || strcmp(word, "glake-learned") == 0) {
		return 0;
	}
	if (strcmp(word, "ran") == 0) {
		return on_line_of(&parser->learned->ran, rest);
	}
	if (strcmp(word, "on") == 0) {
		return on_line_of(&parser->learned->on, rest);
	}
	if (strcmp(word, "graphs") == 0) {
		parser->learned->are_graphs_open = true;
		return 0;
	}
	if (strcmp(word, "image") == 0) {
		return on_image(parser, rest);
	}
	if (strcmp(word, "function") == 0) {
		return on_function(parser, rest);
	}
	if (strcmp(word, "alone") == 0) {
		return on_alone(parser, rest);
	}
	if (strcmp(word, "open") == 0) {
		return on_open(parser, rest);
	}
	return strcmp(word, "read") == 0     ? on_word(parser, LEARNED_NOT, rest)
	       : strcmp(word, "wrote") == 0  ? on_word(parser, LEARNED_WROTE, rest)
	       : strcmp(word, "tried") == 0  ? on_word(parser, LEARNED_TRIED, rest)
	       : strcmp(word, "trying") == 0 ? on_word(parser, LEARNED_TRYING, rest)
	                                     : -EINVAL;
}

int learned_parse(struct learned *learned, char *text, struct readers_error *error_out)
{
	struct parser parser = {.learned = learned};
	char *rest = text;
	int r = strncmp(text, "glake-learned 1\n", 16) == 0 ? 0 : -EINVAL;
	*error_out = (struct readers_error){.line = r < 0};
	while (r == 0 && rest && *rest) {
		char *line = rest;
		rest = strchr(line, '\n');
		if (rest) {
			*rest++ = '\0';
		}
		error_out->line++;
		r = on_line(&parser, line);
	}
	if (r < 0) {
		snprintf(error_out->text, sizeof(error_out->text), "%s",
		         r == -ENOMEM ? "out of memory" : "it is no state of glake learn");
	}
	return r;
}

static int fail(struct readers_error *error, int code)
{
	*error = (struct readers_error){.line = 0};
	snprintf(error->text, sizeof(error->text), "%s", strerror(-code));
	return code;
}

int learned_read(struct learned *learned, const char *path, struct readers_error *error_out)
{
	struct stat facts;
	size_t n = 0;
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return errno == ENOENT ? 0 : fail(error_out, -errno);
	}
	if (fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode)) {
		return fail(error_out, -EINVAL);
	}
	cleanup_free char *text = malloc((size_t)facts.st_size + 1);
	if (!text) {
		return fail(error_out, -ENOMEM);
	}
	while (n < (size_t)facts.st_size) {
		ssize_t n_more = read(fd, text + n, (size_t)facts.st_size - n);
		if (n_more < 0 && errno == EINTR) {
			continue;
		}
		if (n_more <= 0) {
			return fail(error_out, n_more < 0 ? -errno : -EIO);
		}
		n += (size_t)n_more;
	}
	text[n] = '\0';
	return n == 0 ? 0 : learned_parse(learned, text, error_out);
}

static void write_lines(const struct learned_lines *lines, const char *what, FILE *file)
{
	for (size_t i = 0; i < lines->n; i++) {
		fprintf(file, "%s %" PRIu64 " %s\n", what, lines->list[i].n, lines->list[i].text);
	}
}

static void write_word(const struct learned_word *word, FILE *file)
{
	static const char *const names[] = {"", "tried", "trying", "wrote"};
	if (word->n_read > 0) {
		fprintf(file, "  read %u %" PRIu64 "\n", word->at, word->n_read);
	}
	if (word->writing != LEARNED_NOT) {
		fprintf(file, "  %s %u\n", names[word->writing], word->at);
	}
}

void learned_write(const struct learned *learned, FILE *file)
{
	char text[IMAGE_TEXT_BYTES];
	fputs("glake-learned 1\n", file);
	write_lines(&learned->ran, "ran", file);
	write_lines(&learned->on, "on", file);
	fputs(learned->are_graphs_open ? "graphs open\n" : "", file);
	for (size_t i = 0; i < learned->n_functions; i++) {
		const struct learned_function *function = learned->functions[i];
		const struct image_id *image = &function->image;
		if (i == 0 ||
		    memcmp(image, &learned->functions[i - 1]->image, sizeof(*image)) != 0) {
			image_to_text(image, text);
			fprintf(file, "image %s\n",
			        image->kind == IMAGE_UNKNOWN ? "unknown" : text);
		}
		fprintf(file, "function %s\n", function->name);
		if (function->n_alone > 0) {
			fprintf(file, "  alone %" PRIu64 "\n", function->n_alone);
		}
		for (size_t j = 0; j < function->n_words; j++) {
			write_word(&function->words[j], file);
		}
		if (function->open) {
			fprintf(file, "  open %s\n", function->open);
		}
	}
}

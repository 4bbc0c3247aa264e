/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/learn_merge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/cleanup.h"

#define MAX_NAMED 4096u

/* A word of a function in one process. */
struct seen_word {
	uint16_t at;
	bool is_granted;
	uint64_t n_read;
	struct seen_word *next; /* link: seen.words */
};

/* A function in one process. */
struct seen {
	int pid;
	unsigned number;
	struct learned_function *function; /* borrowed */
	uint64_t n_alone;
	bool has_faulted;
	struct seen_word *words; /* owned */
};

struct merge {
	struct learned *learned;
	struct learn_found *found;
	struct seen *list; /* owned */
	size_t n;
	size_t capacity;
};

/* ---- what was seen ---------------------------------------------------------------------------- */

static struct seen *find_seen(const struct merge *merge, int pid, unsigned number)
{
	size_t i = 0;
	while (i < merge->n && (merge->list[i].pid != pid || merge->list[i].number != number)) {
		i++;
	}
	return i < merge->n ? &merge->list[i] : NULL;
}

static struct seen_word *get_seen_word(struct seen *seen, unsigned at)
{
	struct seen_word *word = seen->words;
	while (word && word->at != at) {
		word = word->next;
	}
	if (!word && learned_is_offset(at) && (word = calloc(1, sizeof(*word)))) {
		word->at = (uint16_t)at;
		word->next = seen->words;
		seen->words = word;
	}
	return word;
}

/* Parse "build-id HEX offset 0xHEX NAME", "digest HEX bytes N NAME" or "unknown NAME". */
static int on_kernel(struct merge *merge, int pid, unsigned number, char *text)
{
	struct image_id image = {.kind = IMAGE_UNKNOWN};
	char *name = strrchr(text, ' ');
	if (!name) {
		return 0;
	}
	*name++ = '\0';
	if (!learned_is_name(name) ||
	    (strcmp(text, "unknown") != 0 && !image_from_text(text, &image))) {
		return 0;
	}
	if (array_grow(merge->list, merge->n, merge->capacity, 256) < 0) {
		return -ENOMEM;
	}
	struct learned_function *function = learned_get(merge->learned, &image, name);
	if (!function) {
		return -ENOMEM;
	}
	merge->list[merge->n++] = (struct seen){.pid = pid, .number = number, .function = function};
	return 0;
}

/* ---- faults ----------------------------------------------------------------------------------- */

struct fault {
	uint16_t named[MAX_NAMED];
	size_t n_named;
	uint16_t granted[MAX_NAMED];
	size_t n_granted;
};

static size_t read_offsets(const char *text, uint16_t *offsets)
{
	size_t n = 0;
	char *rest;
	for (const char *at = text; *at >= '0' && *at <= '9' && n < MAX_NAMED; at = rest) {
		uint64_t offset = strtoul(at, &rest, 10);
		offsets[n] = (uint16_t)offset;
		n += learned_is_offset(offset);
		rest += *rest == ',';
	}
	return n;
}

static bool is_granted(const struct fault *fault, uint16_t at)
{
	size_t i = 0;
	while (i < fault->n_granted && fault->granted[i] != at) {
		i++;
	}
	return i < fault->n_granted;
}

static int set_open(struct learned_function *function, const char *why)
{
	free(function->open);
	function->open = strdup(why);
	return function->open ? 0 : -ENOMEM;
}

/* Words through which the launch could not write. @wants_untried: only untried ones; @wants_new: only never seen to read. */
static size_t suspects(struct learned_function *function, const struct fault *fault, bool wants_new,
                       bool wants_untried, struct learned_word **words_out)
{
	size_t n = 0;
	for (size_t i = 0; i < fault->n_named; i++) {
		struct learned_word *word = learned_word(function, fault->named[i]);
		if (word && !is_granted(fault, word->at) && (!wants_new || word->n_read == 0) &&
		    (!wants_untried || word->writing == LEARNED_NOT)) {
			words_out[n++] = word;
		}
	}
	return n;
}

static void end_trial(struct learned_function *function)
{
	for (size_t i = 0; i < function->n_words; i++) {
		struct learned_word *word = &function->words[i];
		word->writing = word->writing == LEARNED_WROTE ? LEARNED_WROTE : LEARNED_NOT;
	}
}

static void accuse(struct learned_word **words, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		words[i]->writing = LEARNED_WROTE;
	}
}

static int blame(struct learned_function *function, const struct fault *fault)
{
	cleanup_free struct learned_word **words = calloc(MAX_NAMED, sizeof(*words));
	if (!words) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < fault->n_named; i++) {
		if (!learned_get_word(function, fault->named[i])) {
			return -ENOMEM;
		}
	}
	for (size_t i = 0; i < function->n_words; i++) {
		struct learned_word *word = &function->words[i];
		bool was_tried = word->writing == LEARNED_TRYING && is_granted(fault, word->at);
		word->writing = was_tried ? LEARNED_TRIED : word->writing;
	}
	size_t n_new = suspects(function, fault, true, false, words);
	if (n_new > 1 && suspects(function, fault, true, true, words) > 0) {
		words[0]->writing = LEARNED_TRYING;
		return 0;
	}
	size_t n = suspects(function, fault, n_new > 0, false, words);
	accuse(words, n);
	end_trial(function);
	return n > 0 ? 0 : set_open(function, "it touches what it does not name");
}

static int on_fault(struct merge *merge, struct seen *seen, char *text)
{
	struct fault *fault = calloc(1, sizeof(*fault));
	char *granted = strchr(text, ' ');
	if (!fault || !granted) {
		free(fault);
		return granted ? -ENOMEM : 0;
	}
	fault->n_named = read_offsets(text, fault->named);
	fault->n_granted = read_offsets(granted + 1, fault->granted);
	seen->has_faulted = true;
	merge->found->n_faults++;
	snprintf(merge->found->fault, sizeof(merge->found->fault), "%.100s, given words %.*s",
	         seen->function->name, granted - text < 40 ? (int)(granted - text) : 40, text);
	int r = blame(seen->function, fault);
	free(fault);
	return r;
}

/* ---- lines ------------------------------------------------------------------------------------ */

static int on_seen(struct merge *merge, struct seen *seen, const char *what, char *text)
{
	unsigned at = 0;
	uint64_t n = 0;
	int n_read = sscanf(text, "%u %" SCNu64, &at, &n);
	struct seen_word *word;
	if (strcmp(what, "fault") == 0) {
		return on_fault(merge, seen, text);
	}
	if (strcmp(what, "stuck") == 0) {
		snprintf(merge->found->fault, sizeof(merge->found->fault), "%.100s did not end",
		         seen->function->name);
		merge->found->n_faults++;
		return set_open(seen->function, "it did not end alone");
	}
	if (strcmp(what, "untold") == 0) {
		return set_open(seen->function, "the driver does not tell its parameters");
	}
	if (strcmp(what, "alone") == 0) {
		seen->n_alone = strtoull(text, NULL, 10);
	} else if (strcmp(what, "read") == 0 && n_read == 2) {
		word = get_seen_word(seen, at);
		if (word) {
			word->n_read = n;
		}
	} else if (strcmp(what, "granted") == 0 && n_read >= 1) {
		word = get_seen_word(seen, at);
		if (word) {
			word->is_granted = true;
		}
	}
	return 0;
}

static int on_line(struct merge *merge, char *line)
{
	char what[16];
	int pid;
	unsigned number;
	int at = 0;
	if (sscanf(line, "machine %d %n", &pid, &at) == 1 && at > 0) {
		merge->found->n_processes++;
		return learned_count(&merge->learned->on, line + at, 1) ? 0 : -ENOMEM;
	}
	if (sscanf(line, "graph %d", &pid) == 1) {
		merge->learned->are_graphs_open = true;
		merge->found->n_faults++;
		snprintf(merge->found->fault, sizeof(merge->found->fault), "a graph");
		return 0;
	}
	if (sscanf(line, "%15s %d %u%n", what, &pid, &number, &at) != 3 || at == 0) {
		return 0;
	}
	char *rest = line + at;
	rest += *rest == ' ';
	if (strcmp(what, "kernel") == 0) {
		return on_kernel(merge, pid, number, rest);
	}
	struct seen *seen = find_seen(merge, pid, number);
	return seen ? on_seen(merge, seen, what, rest) : 0;
}

/* ---- the end of a run ------------------------------------------------------------------------- */

static bool has_faulted(const struct merge *merge, const struct learned_function *function)
{
	size_t i = 0;
	while (i < merge->n &&
	       (merge->list[i].function != function || !merge->list[i].has_faulted)) {
		i++;
	}
	return i < merge->n;
}

/* Add the reads that a function was seen to make, also those before its fault. */
static int add_up(struct merge *merge)
{
	for (size_t i = 0; i < merge->n; i++) {
		const struct seen *seen = &merge->list[i];
		seen->function->n_alone += seen->n_alone;
		for (const struct seen_word *at = seen->words; at; at = at->next) {
			struct learned_word *word = learned_get_word(seen->function, at->at);
			if (!word) {
				return -ENOMEM;
			}
			word->n_read += at->n_read;
		}
	}
	return 0;
}

/* A function that could write through the tried word, and did not fault, writes through it. */
static void end_trials(struct merge *merge)
{
	for (size_t i = 0; i < merge->n; i++) {
		struct learned_function *function = merge->list[i].function;
		for (struct seen_word *at = merge->list[i].words; at; at = at->next) {
			struct learned_word *word = learned_word(function, at->at);
			if (word && at->is_granted && word->writing == LEARNED_TRYING &&
			    !has_faulted(merge, function)) {
				word->writing = LEARNED_WROTE;
				end_trial(function);
			}
		}
	}
}

static void free_merge(struct merge *merge)
{
	for (size_t i = 0; i < merge->n; i++) {
		while (merge->list[i].words) {
			struct seen_word *word = merge->list[i].words;
			merge->list[i].words = word->next;
			free(word);
		}
	}
	free(merge->list);
}

/* Read all lines of one kind: faults, or all others. */
static int read_lines(struct merge *merge, char *facts, bool wants_faults)
{
	int r = 0;
	char *rest = facts;
	while (r == 0 && *rest) {
		char *line = rest;
		char *end = strchr(line, '\n');
		if (!end) {
			return 0;
		}
		*end = '\0';
		if ((strncmp(line, "fault ", 6) == 0) == wants_faults) {
			cleanup_free char *copy = strdup(line);
			r = copy ? on_line(merge, copy) : -ENOMEM;
		}
		*end = '\n';
		rest = end + 1;
	}
	return r;
}

int learn_merge(struct learned *learned, char *facts, struct learn_found *found_out)
{
	struct merge merge = {.learned = learned, .found = found_out};
	*found_out = (struct learn_found){.n_faults = 0};
	int r = read_lines(&merge, facts, false);
	r = r < 0 ? r : add_up(&merge);
	r = r < 0 ? r : read_lines(&merge, facts, true);
	if (r == 0) {
		end_trials(&merge);
	}
	free_merge(&merge);
	return r;
}

/* ---- tables ----------------------------------------------------------------------------------- */

static bool is_reader(const struct learned_function *function, const struct learned_word *word)
{
	return !function->open && word->n_read > 0 &&
	       (word->writing == LEARNED_NOT || word->writing == LEARNED_TRIED);
}

enum verdict { CLOSED, OPEN, RARE, NAMELESS };

static enum verdict judge(const struct learned_function *function, uint64_t least)
{
	return function->image.kind == IMAGE_UNKNOWN ? NAMELESS
	       : function->open                      ? OPEN
	       : function->n_alone < least           ? RARE
	                                             : CLOSED;
}

struct learn_sum learn_sum(const struct learned *learned, uint64_t least)
{
	struct learn_sum sum = {.n_functions = 0};
	for (size_t i = 0; i < learned->n_functions; i++) {
		const struct learned_function *function = learned->functions[i];
		const enum verdict verdict = judge(function, least);
		sum.n_functions += verdict == CLOSED;
		sum.n_open += verdict == OPEN;
		sum.n_rare += verdict == RARE;
		sum.n_nameless += verdict == NAMELESS;
		for (size_t k = 0; k < function->n_words; k++) {
			sum.n_words += verdict == CLOSED &&
			               is_reader(function, &function->words[k]);
			sum.n_writing += function->words[k].writing == LEARNED_WROTE;
		}
	}
	return sum;
}

static void write_function(const struct learned_function *function, FILE *file)
{
	fprintf(file, "function %s # %" PRIu64 " launches\n", function->name, function->n_alone);
	for (size_t i = 0; i < function->n_words; i++) {
		const struct learned_word *word = &function->words[i];
		if (is_reader(function, word)) {
			fprintf(file, "  reads %u # %" PRIu64 "\n", word->at, word->n_read);
		} else if (word->writing == LEARNED_WROTE) {
			fprintf(file, "  # writes %u\n", word->at);
		}
	}
}

static void write_lines(const struct learned_lines *lines, const char *what, FILE *file)
{
	for (size_t i = 0; i < lines->n; i++) {
		fprintf(file, "# %s, %" PRIu64 " times: %s\n", what, lines->list[i].n,
		        lines->list[i].text);
	}
}

void learn_write_table(const struct learned *learned, const char *what, uint64_t least, FILE *file)
{
	struct image_id last = {.kind = IMAGE_UNKNOWN};
	char text[IMAGE_TEXT_BYTES];
	fputs("glake-readers 1\n# What was seen by glake learn.\n", file);
	write_lines(&learned->ran, "ran", file);
	write_lines(&learned->on, "on", file);
	fprintf(file, "for \"%s\"\n", what ? what : "what glake learn has seen");
	for (size_t i = 0; i < learned->n_functions; i++) {
		const struct learned_function *function = learned->functions[i];
		const enum verdict verdict = judge(function, least);
		if (verdict == NAMELESS) {
			fprintf(file, "# code that no table can name: %.200s\n", function->name);
			continue;
		}
		if (memcmp(&last, &function->image, sizeof(last)) != 0) {
			last = function->image;
			image_to_text(&last, text);
			fprintf(file, "image %s\n", text);
		}
		if (verdict == RARE && function->n_alone == 0) {
			fprintf(file, "# never launched beside weights that it did not name: %s\n",
			        function->name);
		} else if (verdict == RARE) {
			fprintf(file, "# %" PRIu64 " launches are too few: %s\n", function->n_alone,
			        function->name);
		} else if (verdict == OPEN) {
			fprintf(file, "opaque %s # %s\n", function->name, function->open);
		} else {
			write_function(function, file);
		}
	}
}

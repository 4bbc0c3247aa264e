/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/learn_functions.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "shim/learned.h"
#include "shim/shim.h"

#define N_BUCKETS 1024u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* no driver call under it */
static struct learn_function *buckets[N_BUCKETS];        /* owned */
static unsigned n_functions;
static struct learned learned; /* the state of earlier runs */
static int facts_fd = -1;
static atomic_bool is_over;

/* ---- what is told ----------------------------------------------------------------------------- */

void learn_tell(const char *format, ...)
{
	cleanup_free char *line = NULL;
	va_list arguments;
	va_start(arguments, format);
	int n = vasprintf(&line, format, arguments);
	va_end(arguments);
	if (n > 0 && write(facts_fd, line, (size_t)n) != n) {
		/* Without this line later ones would be wrong, so learning ends. */
		is_over = true;
	}
}

static void tell_machine(void)
{
	char name[128] = "a GPU";
	int version = 0;
	if (real(cuDeviceGetName)) {
		real(cuDeviceGetName)(name, sizeof(name), 0);
	}
	if (real(cuDriverGetVersion)) {
		real(cuDriverGetVersion)(&version);
	}
	learn_tell("machine %d %s, driver of CUDA %d.%d\n", (int)getpid(), name, version / 1000,
	           version % 1000 / 10);
}

static void start(void)
{
	struct readers_error error;
	const char *facts = secure_getenv("GLAKE_LEARN_FACTS");
	const char *state = secure_getenv("GLAKE_LEARN_STATE");
	facts_fd = facts ? open(facts, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
	is_over = facts_fd < 0 || (state && learned_read(&learned, state, &error) < 0);
	if (!is_over) {
		tell_machine();
	}
}

bool learn_functions_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, start);
	return !is_over;
}

/* ---- functions -------------------------------------------------------------------------------- */

static unsigned bucket_of(const char *name)
{
	uint32_t hash = 2166136261u;
	for (; *name; name++) {
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	}
	return hash % N_BUCKETS;
}

/* A function that cannot be named in a table gets an unknown image. */
static bool can_be_named(const struct kernel *kernel)
{
	return kernel->image.kind != IMAGE_UNKNOWN && learned_is_name(kernel->name);
}

static bool take_over(struct learn_function *function, const struct learned_function *before)
{
	function->words = calloc(before->n_words + 1, sizeof(*function->words));
	for (size_t i = 0; function->words && i < before->n_words; i++) {
		enum learned_writing writing = before->words[i].writing;
		function->words[i] = (struct learn_word){
			.at = before->words[i].at,
			.may_write = writing == LEARNED_WROTE || writing == LEARNED_TRYING,
		};
		function->n_words++;
	}
	function->is_open = before->open != NULL;
	return function->words != NULL;
}

static struct learn_function *make_locked(const struct image_id *image, const char *name)
{
	char text[IMAGE_TEXT_BYTES];
	const struct learned_function *before = learned_find(&learned, image, name);
	struct learn_function *function = calloc(1, sizeof(*function));
	if (!function || !(function->name = strdup(name)) ||
	    (before && !take_over(function, before))) {
		free(function ? function->name : NULL);
		free(function);
		return NULL;
	}
	function->image = *image;
	function->number = n_functions++;
	struct learn_function **bucket = &buckets[bucket_of(name)];
	function->next = *bucket;
	*bucket = function;
	image_to_text(image, text);
	learn_tell("kernel %d %u %s %s\n", (int)getpid(), function->number,
	           image->kind == IMAGE_UNKNOWN ? "unknown" : text, name);
	return function;
}

struct learn_function *learn_function_of(const struct kernel *kernel)
{
	const struct image_id unknown = {.kind = IMAGE_UNKNOWN};
	const struct image_id *image = can_be_named(kernel) ? &kernel->image : &unknown;
	const char *name = learned_is_name(kernel->name) ? kernel->name : "nameless";
	if (!learn_is_wanted() || !learn_functions_begin()) {
		return NULL;
	}
	pthread_mutex_lock(&lock);
	struct learn_function *function = buckets[bucket_of(name)];
	while (function && (strcmp(function->name, name) != 0 ||
	                    memcmp(&function->image, image, sizeof(*image)) != 0)) {
		function = function->next;
	}
	if (!function) {
		function = make_locked(image, name);
	}
	pthread_mutex_unlock(&lock);
	return function;
}

struct learn_word *learn_find_word(struct learn_function *function, uint16_t at)
{
	size_t i = 0;
	while (i < function->n_words && function->words[i].at != at) {
		i++;
	}
	return i < function->n_words ? &function->words[i] : NULL;
}

struct learn_word *learn_get_word(struct learn_function *function, uint16_t at)
{
	struct learn_word *word = learn_find_word(function, at);
	if (word) {
		return word;
	}
	struct learn_word *more = realloc(function->words, (function->n_words + 1) * sizeof(*more));
	if (!more) {
		return NULL;
	}
	function->words = more;
	more[function->n_words] = (struct learn_word){.at = at};
	return &more[function->n_words++];
}

bool learn_counts_up(uint64_t *n)
{
	++*n;
	return (*n & (*n - 1)) == 0;
}

bool learn_graphs_are_open(void)
{
	return learned.are_graphs_open;
}

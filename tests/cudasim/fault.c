/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection. CUDASIM_FAULT and the file named by CUDASIM_FAULT_FILE hold rules
 *
 *     [PROGRAM/]FUNCTION:WHEN:ACTION     separated by commas (in the file also by newlines)
 *
 * FUNCTION is a symbol, with or without _vN, or *. WHEN counts the calls that this rule has seen
 * in this process: N, N+, %K or *. ACTION is fail=CODE, slow=MS, killctx or die.
 *
 * A rule set is never freed: a call on another thread may be walking it.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES_BYTES 16384

enum fault_when { WHEN_EXACTLY, WHEN_FROM, WHEN_EACH };
enum fault_action { ACTION_FAIL, ACTION_SLOW, ACTION_KILLCTX, ACTION_DIE };

struct rule {
	char function[64];
	enum fault_when when;
	unsigned long n;
	enum fault_action action;
	unsigned long value;
	atomic_ulong n_seen;
};

struct rule_set {
	struct rule_set *older;
	unsigned n_rules;
	struct rule rules[];
};

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static bool config_is_valid = true;
static struct rule_set *_Atomic from_env;
static struct rule_set *_Atomic from_file;
static const char *file_path; /* borrowed from the environment */
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat file_stat; /* under file_lock */

static bool parse_number(const char *text, unsigned long *value_out)
{
	char *end;

	errno = 0;
	*value_out = strtoul(text, &end, 10);
	return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

static bool parse_when(char *text, struct rule *rule)
{
	size_t n = strlen(text);

	if (strcmp(text, "*") == 0) {
		rule->when = WHEN_EACH;
		rule->n = 1;
		return true;
	}
	rule->when = WHEN_EXACTLY;
	if (text[0] == '%') {
		rule->when = WHEN_EACH;
		text++;
	} else if (n > 1 && text[n - 1] == '+') {
		rule->when = WHEN_FROM;
		text[n - 1] = '\0';
	}
	return parse_number(text, &rule->n) && rule->n > 0;
}

static bool parse_action(const char *text, struct rule *rule)
{
	if (strncmp(text, "fail=", 5) == 0) {
		rule->action = ACTION_FAIL;
		return parse_number(text + 5, &rule->value) && rule->value > 0;
	}
	if (strncmp(text, "slow=", 5) == 0) {
		rule->action = ACTION_SLOW;
		return parse_number(text + 5, &rule->value);
	}
	rule->action = strcmp(text, "die") == 0 ? ACTION_DIE : ACTION_KILLCTX;
	return rule->action == ACTION_DIE || strcmp(text, "killctx") == 0;
}

/* Does the rule mean this function? Its name may leave _vN out. */
static bool names_call(const char *function, const char *call)
{
	size_t n = strlen(function);

	return strcmp(function, "*") == 0 ||
	       (strncmp(call, function, n) == 0 &&
	        (call[n] == '\0' || (strncmp(call + n, "_v", 2) == 0 && !call[n + 3])));
}

static bool function_is_known(const char *function)
{
	for (unsigned id = 0; id < CALL_COUNT; id++) {
		if (names_call(function, call_name(id))) {
			return true;
		}
	}
	return false;
}

/* Sets *is_ours_out to false for a valid rule about another program. */
static bool parse_rule(char *text, struct rule *rule, bool *is_ours_out)
{
	char *slash = strchr(text, '/');

	*is_ours_out = true;
	if (slash) {
		*slash = '\0';
		*is_ours_out = strcmp(text, program_invocation_short_name) == 0;
		text = slash + 1;
	}
	char *when = strchr(text, ':');
	char *action = when ? strchr(when + 1, ':') : NULL;
	if (!action || (size_t)(when - text) >= sizeof(rule->function)) {
		return false;
	}
	*when++ = '\0';
	*action++ = '\0';
	strcpy(rule->function, text);
	return function_is_known(text) && parse_when(when, rule) && parse_action(action, rule);
}

/* NULL if the text is malformed, with one line on stderr. */
static struct rule_set *parse_rules(const char *source, const char *text)
{
	size_t n_bytes = strlen(text);
	size_t most = n_bytes / 2 + 1;
	struct rule_set *set = calloc(1, sizeof(*set) + most * sizeof(set->rules[0]));
	char *copy = strdup(text);
	char *rest = NULL;

	if (!set || !copy) {
		goto err_memory;
	}
	for (char *item = strtok_r(copy, ", \n", &rest); item;
	     item = strtok_r(NULL, ", \n", &rest)) {
		bool is_ours;
		char shown[160];

		snprintf(shown, sizeof(shown), "%s", item);
		if (!parse_rule(item, &set->rules[set->n_rules], &is_ours)) {
			fprintf(stderr, "cudasim: %s: cannot understand \"%s\"\n", source, shown);
			goto err_memory;
		}
		set->n_rules += is_ours;
	}
	free(copy);
	return set;

err_memory:
	free(copy);
	free(set);
	return NULL;
}

/* A file that does not exist is an empty one. */
static bool read_file(char *text, size_t size, struct stat *stat_out)
{
	int fd = open(file_path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	text[0] = '\0';
	*stat_out = (struct stat){0};
	if (fd < 0) {
		return errno == ENOENT;
	}
	ssize_t n = read(fd, text, size - 1);
	bool ok = n >= 0 && fstat(fd, &st) == 0;
	if (ok) {
		text[n] = '\0';
		*stat_out = st;
	}
	close(fd);
	return ok;
}

static bool load_file(void)
{
	char text[MAX_RULES_BYTES];
	struct rule_set *set = NULL;

	if (read_file(text, sizeof(text), &file_stat)) {
		set = parse_rules("CUDASIM_FAULT_FILE", text);
	}
	if (!set) {
		return false;
	}
	set->older = atomic_load(&from_file);
	atomic_store(&from_file, set);
	return true;
}

static void load(void)
{
	const char *text = getenv("CUDASIM_FAULT");

	file_path = getenv("CUDASIM_FAULT_FILE");
	if (text) {
		atomic_store(&from_env, parse_rules("CUDASIM_FAULT", text));
		config_is_valid = atomic_load(&from_env) != NULL;
	}
	if (file_path && *file_path) {
		config_is_valid = load_file() && config_is_valid;
	} else {
		file_path = NULL;
	}
}

bool fault_config_is_valid(void)
{
	pthread_once(&loaded, load);
	return config_is_valid;
}

/* A rename shows by the inode, however fast it followed: file times tick every few milliseconds. */
static bool is_other_file(const struct stat *st)
{
	return st->st_ino != file_stat.st_ino || st->st_mtim.tv_sec != file_stat.st_mtim.tv_sec ||
	       st->st_mtim.tv_nsec != file_stat.st_mtim.tv_nsec;
}

/* Rules in a file that became malformed change nothing: the old ones stay. */
static void reload_if_changed(void)
{
	struct stat st = {0};

	if (stat(file_path, &st) != 0) {
		st = (struct stat){0};
	}
	/* Busy means that another thread reloads (or did so when this process was forked). */
	if (pthread_mutex_trylock(&file_lock) != 0) {
		return;
	}
	if (is_other_file(&st)) {
		load_file();
	}
	pthread_mutex_unlock(&file_lock);
}

static bool rule_is_due(struct rule *rule)
{
	unsigned long seen = atomic_fetch_add(&rule->n_seen, 1) + 1;

	switch (rule->when) {
	case WHEN_EXACTLY:
		return seen == rule->n;
	case WHEN_FROM:
		return seen >= rule->n;
	case WHEN_EACH:
		return seen % rule->n == 0;
	}
	return false;
}

static void sleep_ms(unsigned long ms)
{
	struct timespec left = {.tv_sec = (time_t)(ms / 1000),
	                        .tv_nsec = (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) != 0 && errno == EINTR) {
	}
}

static CUresult rule_apply(const struct rule *rule)
{
	switch (rule->action) {
	case ACTION_FAIL:
		return (CUresult)rule->value;
	case ACTION_SLOW:
		sleep_ms(rule->value);
		break;
	case ACTION_KILLCTX:
		ctx_poison_all(CUDA_ERROR_ILLEGAL_ADDRESS);
		break;
	case ACTION_DIE:
		kill(getpid(), SIGKILL);
		pause();
	}
	return CUDA_SUCCESS;
}

static CUresult apply_set(struct rule_set *set, enum call_id id)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; set && i < set->n_rules; i++) {
		struct rule *rule = &set->rules[i];
		if (names_call(rule->function, call_name(id)) && rule_is_due(rule)) {
			CUresult err = rule_apply(rule);
			result = result == CUDA_SUCCESS ? err : result;
		}
	}
	return result;
}

CUresult fault_check(enum call_id id)
{
	pthread_once(&loaded, load);
	if (file_path) {
		reload_if_changed();
	}
	CUresult err = apply_set(atomic_load(&from_env), id);
	CUresult err_file = apply_set(atomic_load(&from_file), id);
	return err != CUDA_SUCCESS ? err : err_file;
}

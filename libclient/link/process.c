/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

/* At most this much of the command line is read; a script that comes later is not found. */
#define MAX_BYTES 4096u

/* The rest of a command line: one argument after the other. */
struct words {
	const char *at;
	const char *end;
};

/* NULL: there is none left. */
static const char *next(struct words *words)
{
	const char *word = words->at;
	if (word >= words->end) {
		return NULL;
	}
	words->at = word + strlen(word) + 1;
	return word;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* "python3.12" is one of "python": a version may follow. */
static bool is_version_of(const char *program, const char *name)
{
	size_t n_bytes = strlen(name);
	return strncmp(program, name, n_bytes) == 0 &&
	       program[n_bytes + strspn(program + n_bytes, "0123456789.t")] == '\0';
}

static bool is_python(const char *program)
{
	return is_version_of(program, "python") || is_version_of(program, "pypy");
}

/* Other interpreters, whose script is their first argument. A word behind an option could belong to the option. */
static bool is_other_interpreter(const char *program)
{
	static const char *const names[] = {"bash", "dash", "julia", "lua",     "node",
	                                    "perl", "ruby", "sh",    "Rscript", "luajit"};
	for (size_t i = 0; i < n_elements(names); i++) {
		if (is_version_of(program, names[i])) {
			return true;
		}
	}
	return false;
}

/* Does Python's multiprocessing run here? */
static bool is_forked_server(struct words words)
{
	const char *word;
	while ((word = next(&words))) {
		if (strcmp(word, "--multiprocessing-fork") == 0) {
			return true;
		}
	}
	return false;
}

/*
 * One word of Python's options. True: that says what it runs, and *script_out has it. False: it goes on; what
 * belongs to the option is skipped.
 */
static bool ends_options(const char *word, struct words *words, char *script_out, size_t n_bytes)
{
	if (strcmp(word, "--check-hash-based-pycs") == 0) {
		next(words);
		return false;
	}
	for (const char *letter = word + 1; word[1] != '-' && *letter; letter++) {
		const char *rest = letter[1] ? letter + 1 : NULL;
		const char *value;
		switch (*letter) {
		case 'm':
			value = rest ? rest : next(words);
			snprintf(script_out, n_bytes, "-m %s", value ? value : "");
			return true;
		case 'c':
			snprintf(script_out, n_bytes, "%s",
			         is_forked_server(*words) ? "multiprocessing" : "-c");
			return true;
		case 'W':
		case 'X':
		case 'Q':
			if (!rest) {
				next(words);
			}
			return false;
		default:
			break;
		}
	}
	return false;
}

static void find_python_script(struct words words, char *script_out, size_t n_bytes)
{
	const char *word;
	while ((word = next(&words))) {
		if (word[0] != '-') {
			snprintf(script_out, n_bytes, "%s", base_name(word));
			return;
		}
		if (word[1] == '\0' || ends_options(word, &words, script_out, n_bytes)) {
			return;
		}
	}
}

/* Programs give themselves titles: "VLLM::EngineCore". What stands behind a blank may be anything. */
static void take_title(const char *title, char *script_out, size_t n_bytes)
{
	snprintf(script_out, n_bytes, "%.*s", (int)strcspn(title, " "), title);
}

static void find_script(const char *program, struct words words, char *script_out, size_t n_bytes)
{
	const char *first = next(&words);
	bool is_python_here = is_python(program);
	if (!first || (!is_python_here && !is_other_interpreter(program))) {
		return;
	}
	/* A login shell is "-bash". */
	const char *name = base_name(first[0] == '-' ? first + 1 : first);
	if (!is_python(name) && !is_other_interpreter(name)) {
		take_title(first, script_out, n_bytes);
	} else if (is_python_here) {
		find_python_script(words, script_out, n_bytes);
	} else if ((first = next(&words)) && first[0] != '-') {
		snprintf(script_out, n_bytes, "%s", base_name(first));
	}
}

static void join(struct words words, char *text_out, size_t n_room)
{
	size_t n = 0;
	const char *word;
	while ((word = next(&words)) && n + 1 < n_room) {
		int added = snprintf(text_out + n, n_room - n, "%s%s", n ? " " : "", word);
		n += added > 0 ? (size_t)added : 0;
	}
}

void glake__process_parse(const char *program, const char *bytes, size_t n_bytes,
                          struct glake__process *process_out)
{
	struct words words = {bytes, bytes + n_bytes};
	memset(process_out, 0, sizeof(*process_out));
	/* Zeros follow a title that is shorter than the old arguments. */
	while (words.end > bytes && words.end[-1] == '\0') {
		words.end--;
	}
	find_script(program, words, process_out->script, sizeof(process_out->script));
	join(words, process_out->arguments, sizeof(process_out->arguments));
}

void glake__process_describe(struct glake__process *process_out)
{
	char bytes[MAX_BYTES + 1];
	size_t n_bytes = 0;
	cleanup_fd int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;
	while (fd >= 0 && n_bytes < MAX_BYTES &&
	       (n = read(fd, bytes + n_bytes, MAX_BYTES - n_bytes)) > 0) {
		n_bytes += (size_t)n;
	}
	bytes[n_bytes] = '\0';
	glake__process_parse(program_invocation_short_name, bytes, n_bytes, process_out);
}

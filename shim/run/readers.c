/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/readers.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/reader_files.h"

enum { EXIT_REFUSED = 125 };

static const char usage_text[] =
	"usage: glake readers FILE...\n"
	"Check tables of readers, which say what GLAKE_DEDUP=auto may seal beside which kernels;\n"
	"glake-readers(5) has their format. Exits with 1 if one of them does not count.\n";

static void print(const char *path, const struct readers *readers, bool is_roots)
{
	size_t n_words = 0;
	size_t n_opaque = 0;
	for (size_t i = 0; i < readers->n_functions; i++) {
		n_words += readers->functions[i].n_words;
		n_opaque += readers->functions[i].is_opaque;
	}
	printf("%s: for %s: %zu functions, %zu of them opaque; %zu words%s\n", path,
	       readers->what_for, readers->n_functions, n_opaque, n_words,
	       is_roots ? "" : "; it is yours: it counts only as a table of a glaked that you run");
}

static bool check(const char *path)
{
	struct readers_error error;
	struct readers_error other;
	struct readers *readers;
	int r = reader_files_read(path, 0, &readers, &error);
	const bool is_roots = r != -EPERM;
	if (!is_roots) {
		r = reader_files_read(path, geteuid(), &readers, &other);
		error = r == -EPERM ? error : other;
	}
	if (r < 0 && error.line > 0) {
		fprintf(stderr, "glake: %s:%u: %s\n", path, error.line, error.text);
	} else if (r < 0) {
		fprintf(stderr, "glake: %s: %s\n", path, error.text);
	} else {
		print(path, readers, is_roots);
		readers_free(readers);
	}
	return r == 0;
}

int readers_main(int argc, char **argv)
{
	int status = 0;
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (argc < 2 || argv[1][0] == '-') {
		fputs("glake: readers: which files?\nTry 'glake readers --help'.\n", stderr);
		return EXIT_REFUSED;
	}
	for (int i = 1; i < argc; i++) {
		status |= !check(argv[i]);
	}
	return status;
}

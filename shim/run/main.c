/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake run: start an unmodified CUDA program with its memory from glaked.
 *
 * It sets LD_PRELOAD and the shim's variables, and executes the program. Before that it checks for
 * everything that would silently make this useless. Exit codes are those of env(1): 125 if it
 * refuses to start the program, 126 if the program cannot be run, 127 if it does not exist.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "glake.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "shim/library.h"
#include "shim/policy.h"
#include "shim/run/learn.h"
#include "shim/run/program.h"
#include "shim/run/readers.h"
#include "shim/run/replay/replay.h"
#include "shim/run/torch.h"

enum {
	EXIT_REFUSED = 125,
	EXIT_NOT_RUN = 126,
	EXIT_NOT_FOUND = 127,
};

static const char usage_text[] =
	"usage: glake run [OPTION]... [--] PROGRAM [ARGUMENT]...\n"
	"Run a CUDA program with its GPU memory from glaked.\n"
	"\n"
	"  --socket=PATH   glaked's socket ($GLAKE_SOCKET, /run/glake/glaked.sock)\n"
	"  --strict        no memory without glaked, also when it goes away later\n"
	"  --optional      start even if glaked is not there\n"
	"  --own=LIST      what comes from glaked: alloc, async, vmm (cuMemAlloc,\n"
	"                  cuMemAllocAsync, cuMemCreate, and their families), none;\n"
	"                  default: all\n"
	"  --alloc=HOW     stitch: free pieces of memory that are apart become one\n"
	"                  allocation, and PyTorch allocates in stream order;\n"
	"                  plain (default)\n"
	"  --promise=LIST  SIZE, or NUMBER=SIZE,... with glaked's numbers of devices: the\n"
	"                  program gets that much of each, whatever others do, and no more\n"
	"  --name=NAME     what lists of processes call the program\n"
	"  --dedup=HOW     auto: equal weights become one copy without anybody asking, beside\n"
	"                  kernels that tables of readers know; observed: beside others, too;\n"
	"                  off: not even when asked; default: as the tenant has it,\n"
	"                  or when asked\n"
	"  --record=FILE   write a trace of allocations to FILE.PID, for glake replay\n"
	"  --libcuda=PATH  the real driver library, instead of the loader's\n"
	"  --shim=PATH     the preload library, instead of the installed one\n"
	"  --help, --version\n"
	"\n"
	"usage: glake learn [OPTION]... [--] [PROGRAM [ARGUMENT]...]\n"
	"Run it again and again, on a test machine, to find out which of its kernels read:\n"
	"the result is a table of readers, for --dedup=auto.\n"
	"\n"
	"  --out=FILE      the table; default: standard output\n"
	"  --state=FILE    what was learned before, and is from now on: several programs make\n"
	"                  one table; without a PROGRAM, what is known does\n"
	"  --for=TEXT      what the table is true for\n"
	"  --runs=N        at most; default: 100\n"
	"  --seconds=N     of each run, at most; default: 600\n"
	"  --least=N       launches that make a function known; default: 4\n"
	"  and those of glake run, but --dedup\n"
	"\n"
	"glake replay --help: replay an allocation trace with several allocators.\n"
	"glake readers --help: check tables of readers.\n";

struct options {
	const char *socket_path;
	const char *libcuda;
	const char *own;
	const char *alloc;
	const char *promise;
	const char *dedup;
	const char *record;
	const char *name;
	const char *shim_path;
	bool is_strict;
	bool is_optional;
	struct learn_options learn; /* for glake learn only */
};

static int refuse(int status, const char *subject, const char *reason)
{
	fprintf(stderr, "glake: %s: %s\n", subject, reason);
	return status;
}

/* ---- looking before ------------------------------------------------------------------------- */

/* ../lib/glake relative to our own program: the same in the build, installed and packed. */
static bool find_shim(char path_out[PATH_MAX])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0) {
		return false;
	}
	self[n] = '\0';
	for (int i = 0; i < 2; i++) {
		char *slash = strrchr(self, '/');
		if (!slash) {
			return false;
		}
		*slash = '\0';
	}
	n = snprintf(path_out, PATH_MAX, "%s/lib/glake/libglake-shim.so", self);
	return n < PATH_MAX && access(path_out, R_OK) == 0;
}

static bool is_other_file(const char *path, const char *other_path)
{
	struct stat one;
	struct stat other;
	return stat(path, &one) < 0 || stat(other_path, &other) < 0 || one.st_ino != other.st_ino ||
	       one.st_dev != other.st_dev;
}

struct real {
	const struct shim_library *library;
	const char *our_path;
};

static bool is_real(void *user, const char *path)
{
	const struct real *real = user;
	return is_other_file(real->our_path, path) && program_names(path, real->library->symbol);
}

/* Does the host have the library that ours stands in for? */
static bool has_real(const struct shim_library *library, const char *our_path)
{
	struct real real = {.library = library, .our_path = our_path};
	return shim_library_find(library, is_real, &real);
}

/* The file beside the shim. None on a host without NVML: programs must see that it is absent. */
static bool find_nvml(const char *shim_path, char path_out[PATH_MAX])
{
	int n_bytes = (int)(strrchr(shim_path, '/') - shim_path);
	int n = snprintf(path_out, PATH_MAX, "%.*s/libglake-nvml.so", n_bytes, shim_path);
	return n < PATH_MAX && access(path_out, R_OK) == 0 &&
	       has_real(&shim_library_nvml, path_out);
}

/* Checks that glaked is there, unless @is_optional. A promise that is no size is always refused. */
static int check_daemon(bool is_optional)
{
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	struct glake_session *session;
	int r = glake_connect(&options, &session);
	if (r == 0) {
		glake_disconnect(session);
	} else if (!is_optional || r == -EINVAL) {
		fprintf(stderr, "glake: %s%s\n", glake_error(),
		        r == -EINVAL ? "" : " (--optional starts the program without glaked)");
		return EXIT_REFUSED;
	}
	return 0;
}

static int check_program(const char *name)
{
	char path[PATH_MAX];
	const char *why = NULL;
	int r = program_find(name, path);
	if (r < 0) {
		return refuse(r == -ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN, name, strerror(-r));
	}
	if (!program_takes_preload(path, &why)) {
		return refuse(EXIT_REFUSED, path, why);
	}
	return 0;
}

/* The shim ignores unknown words silently, so they are refused here. */
static int check_own(const char *list)
{
	static const char *const words[] = {"alloc", "async", "vmm", "none"};
	for (const char *word = list;; word++) {
		size_t n_bytes = strcspn(word, ",");
		bool is_known = false;
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
			is_known |= strlen(words[i]) == n_bytes &&
			            strncmp(word, words[i], n_bytes) == 0;
		}
		if (!is_known) {
			return refuse(EXIT_REFUSED, list,
			              "must be a list of alloc, async and vmm, or none");
		}
		word += n_bytes;
		if (*word == '\0') {
			return 0;
		}
	}
}

/* Stitching is for memory in stream order. */
static int check_alloc(const char *how)
{
	if (strcmp(how, "stitch") != 0 && strcmp(how, "plain") != 0) {
		return refuse(EXIT_REFUSED, how, "must be stitch or plain");
	}
	return shim_policy()->stitches && !shim_policy()->owns_async
	               ? refuse(EXIT_REFUSED, "--alloc=stitch", "GLAKE_SHIM_OWN lacks async")
	               : 0;
}

static int check_name(const char *name)
{
	size_t n_bytes = strlen(name);
	return n_bytes == 0 || n_bytes >= GLAKE_MAX_LABEL_BYTES
	               ? refuse(EXIT_REFUSED, "--name", "must have 1 to 255 bytes")
	               : 0;
}

/* GLAKE_DEDUP=learn is only for glake learn, which sets the files that the shim writes. */
static int check_dedup(const char *how)
{
	return strcmp(how, "off") != 0 && strcmp(how, "auto") != 0 &&
	                       strcmp(how, "observed") != 0 &&
	                       !(strcmp(how, "learn") == 0 && getenv("GLAKE_LEARN_FACTS"))
	               ? refuse(EXIT_REFUSED, how, "must be off, auto or observed")
	               : 0;
}

/* Check the quiet time by the rule of shim/auto.c. */
static int check_quiet(const char *text)
{
	char *end;
	unsigned long ms = strtoul(text, &end, 10);
	return *text < '0' || *text > '9' || *end != '\0' || ms == 0 || ms > 3600000
	               ? refuse(EXIT_REFUSED, text,
	                        "GLAKE_DEDUP_QUIET_MS must be milliseconds, an hour at most")
	               : 0;
}

/* Check the environment that the shim will see, with the options in it. */
static int check_environment(const struct options *options)
{
	const char *own = getenv("GLAKE_SHIM_OWN");
	const char *alloc = getenv("GLAKE_ALLOC");
	int status = own ? check_own(own) : 0;
	if (status == 0 && alloc) {
		status = check_alloc(alloc);
	}
	if (status == 0 && options->name) {
		status = check_name(options->name);
	}
	const char *dedup = getenv("GLAKE_DEDUP");
	const char *quiet = getenv("GLAKE_DEDUP_QUIET_MS");
	if (status == 0 && dedup) {
		status = check_dedup(dedup);
	}
	if (status == 0 && quiet) {
		status = check_quiet(quiet);
	}
	/* With --strict it is an error that the environment turns the shim off. */
	if (status == 0 && options->is_strict && shim_policy()->is_off) {
		status = refuse(EXIT_REFUSED, "--strict", "GLAKE_SHIM=off is set");
	}
	return status;
}

/* ---- running ---------------------------------------------------------------------------------- */

/*
 * The link beside our library with the real one's name, if there is one. Some programs search the
 * loaded files by name, and must find ours first.
 */
static void use_link(char path[PATH_MAX], const struct shim_library *library)
{
	char link[PATH_MAX];
	int n_bytes = (int)(strrchr(path, '/') - path);
	int n = snprintf(link, PATH_MAX, "%.*s/%s", n_bytes, path, library->soname);
	if (n < PATH_MAX && !is_other_file(link, path)) {
		strcpy(path, link);
	}
}

/* Add ours to LD_PRELOAD, behind the user's own libraries. */
static int set_preload(char shim_path[PATH_MAX])
{
	const char *before = getenv("LD_PRELOAD");
	char nvml_path[PATH_MAX];
	bool has_nvml = find_nvml(shim_path, nvml_path);
	use_link(shim_path, &shim_library_cuda);
	if (has_nvml) {
		use_link(nvml_path, &shim_library_nvml);
	}
	cleanup_free char *list = NULL;
	if (strpbrk(shim_path, " :")) {
		return refuse(EXIT_REFUSED, shim_path,
		              "LD_PRELOAD cannot name a path with a space or a colon");
	}
	int n = asprintf(&list, "%s%s%s%s%s", before ? before : "", before && *before ? ":" : "",
	                 shim_path, has_nvml ? ":" : "", has_nvml ? nvml_path : "");
	if (n < 0 || setenv("LD_PRELOAD", list, 1) < 0) {
		return refuse(EXIT_REFUSED, "LD_PRELOAD", strerror(ENOMEM));
	}
	return 0;
}

static void set_environment(const struct options *options)
{
	if (options->socket_path) {
		setenv("GLAKE_SOCKET", options->socket_path, 1);
	}
	if (options->libcuda) {
		setenv("GLAKE_LIBCUDA", options->libcuda, 1);
	}
	if (options->own) {
		setenv("GLAKE_SHIM_OWN", options->own, 1);
	}
	if (options->alloc) {
		setenv("GLAKE_ALLOC", options->alloc, 1);
	}
	if (options->name) {
		setenv("GLAKE_NAME", options->name, 1);
	}
	if (options->promise) {
		setenv("GLAKE_PROMISE", options->promise, 1);
	}
	if (options->dedup) {
		setenv("GLAKE_DEDUP", options->dedup, 1);
	}
	if (options->is_strict) {
		setenv("GLAKE_SHIM_ABSENT", "refuse", 1);
	}
}

/* Make the path absolute, because the program may change its folder. Check it, because the shim fails silently. */
static int set_record(const char *file)
{
	char folder[PATH_MAX];
	char path[2 * PATH_MAX];
	if (*file == '\0') {
		return refuse(EXIT_REFUSED, "--record", "must be a file");
	}
	if (*file == '/') {
		snprintf(path, sizeof(path), "%s", file);
	} else if (getcwd(folder, sizeof(folder))) {
		snprintf(path, sizeof(path), "%s/%s", folder, file);
	} else {
		return refuse(EXIT_REFUSED, "--record", strerror(errno));
	}
	size_t n_folder = (size_t)(strrchr(path, '/') - path);
	snprintf(folder, sizeof(folder), "%.*s", (int)n_folder, path);
	if (access(n_folder ? folder : "/", W_OK) < 0) {
		return refuse(EXIT_REFUSED, file, strerror(errno));
	}
	setenv("GLAKE_SHIM_RECORD", path, 1);
	return 0;
}

static int set_torch(void)
{
	bool stitches = shim_policy()->stitches && !shim_policy()->is_off;
	return stitches && torch_use_async() < 0
	               ? refuse(EXIT_REFUSED, "--alloc=stitch", strerror(ENOMEM))
	               : 0;
}

static int run(const struct options *options, char **arguments)
{
	char shim_path[PATH_MAX];
	if (options->shim_path ? !realpath(options->shim_path, shim_path) : !find_shim(shim_path)) {
		return refuse(EXIT_REFUSED,
		              options->shim_path ? options->shim_path : "libglake-shim.so",
		              "not found");
	}
	set_environment(options);
	int status = check_environment(options);
	if (status == 0) {
		status = check_program(arguments[0]);
	}
	if (status == 0 && !program_names(shim_path, shim_library_cuda.ours)) {
		status = refuse(EXIT_REFUSED, shim_path, "not glake's preload library");
	}
	if (status == 0 && !has_real(&shim_library_cuda, shim_path)) {
		const char *path = getenv(shim_library_cuda.variable);
		status = refuse(EXIT_REFUSED, path ? path : shim_library_cuda.soname,
		                "no CUDA driver library found");
	}
	if (status == 0 && (!options->is_optional || options->promise)) {
		status = check_daemon(options->is_optional);
	}
	if (status == 0) {
		status = set_preload(shim_path);
	}
	if (status == 0) {
		status = set_torch();
	}
	if (status == 0 && options->record) {
		status = set_record(options->record);
	}
	if (status != 0) {
		return status;
	}
	execvp(arguments[0], arguments);
	int error = errno;
	return refuse(error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN, arguments[0],
	              strerror(error));
}

static int complain(void)
{
	fputs("Try 'glake --help'.\n", stderr);
	return EXIT_REFUSED;
}

/* Returns the index of the program, or 0 to end with *status_out. */
static int parse(int argc, char **argv, struct options *options, int *status_out)
{
	static const struct option table[] = {
		{"socket", required_argument, NULL, 's'},
		{"strict", no_argument, NULL, 'S'},
		{"optional", no_argument, NULL, 'o'},
		{"own", required_argument, NULL, 'O'},
		{"alloc", required_argument, NULL, 'a'},
		{"libcuda", required_argument, NULL, 'l'},
		{"promise", required_argument, NULL, 'P'},
		{"name", required_argument, NULL, 'n'},
		{"dedup", required_argument, NULL, 'd'},
		{"record", required_argument, NULL, 'r'},
		{"shim", required_argument, NULL, 'p'},
		{"out", required_argument, NULL, 'T'},
		{"state", required_argument, NULL, 'L'},
		{"for", required_argument, NULL, 'F'},
		{"runs", required_argument, NULL, 'N'},
		{"seconds", required_argument, NULL, 'D'},
		{"least", required_argument, NULL, 'M'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},
		{NULL, 0, NULL, 0},
	};
	int option;
	*status_out = 0;
	/* The name in messages of getopt(), which would be "run" after the verb. */
	argv[0] = program_invocation_short_name;
	while ((option = getopt_long(argc, argv, "+h", table, NULL)) != -1) {
		switch (option) {
		case 's':
			options->socket_path = optarg;
			break;
		case 'S':
			options->is_strict = true;
			break;
		case 'o':
			options->is_optional = true;
			break;
		case 'O':
			options->own = optarg;
			break;
		case 'a':
			options->alloc = optarg;
			break;
		case 'P':
			options->promise = optarg;
			break;
		case 'n':
			options->name = optarg;
			break;
		case 'd':
			options->dedup = optarg;
			break;
		case 'r':
			options->record = optarg;
			break;
		case 'l':
			options->libcuda = optarg;
			break;
		case 'p':
			options->shim_path = optarg;
			break;
		case 'T':
			options->learn.out = optarg;
			break;
		case 'L':
			options->learn.state = optarg;
			break;
		case 'F':
			options->learn.what = optarg;
			break;
		case 'N':
			options->learn.runs = optarg;
			break;
		case 'D':
			options->learn.seconds = optarg;
			break;
		case 'M':
			options->learn.least = optarg;
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		case 'v':
			printf("glake %s\n", glake_version());
			return 0;
		default:
			*status_out = complain();
			return 0;
		}
	}
	return optind;
}

struct start {
	const struct options *options;
	char **arguments;
};

static int start(void *user)
{
	const struct start *start = user;
	return run(start->options, start->arguments);
}

static bool has_learn_options(const struct options *options)
{
	const struct learn_options none = {0};
	return memcmp(&options->learn, &none, sizeof(none)) != 0;
}

int main(int argc, char **argv)
{
	struct options options = {0};
	int status;
	/* Options may stand before the verb: `glake --help`. */
	int at = parse(argc, argv, &options, &status);
	if (at == 0) {
		return status;
	}
	if (at < argc && strcmp(argv[at], "replay") == 0) {
		set_environment(&options);
		return replay_main(argc - at, argv + at);
	}
	if (at < argc && strcmp(argv[at], "readers") == 0) {
		return readers_main(argc - at, argv + at);
	}
	if (at < argc && strcmp(argv[at], "help") == 0) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (at >= argc) {
		fputs("glake: which command?\n", stderr);
		return complain();
	}
	const char *verb = argv[at];
	const bool is_to_learn = strcmp(verb, "learn") == 0;
	if (strcmp(verb, "run") != 0 && !is_to_learn) {
		fprintf(stderr, "glake: no such command: %s\n", argv[at]);
		return complain();
	}
	argc -= at;
	argv += at;
	optind = 1;
	at = parse(argc, argv, &options, &status);
	if (at == 0) {
		return status;
	}
	/* glake learn with a state needs no program: the state makes a table, too. */
	if (at >= argc && !(is_to_learn && options.learn.state)) {
		fprintf(stderr, "glake: %s what?\n", verb);
		return complain();
	}
	if (is_to_learn && options.dedup) {
		return refuse(EXIT_REFUSED, "--dedup", "is not for glake learn");
	}
	if (is_to_learn) {
		struct start what = {&options, argv + at};
		return learn_main(&options.learn, argv + at, start, &what);
	}
	if (has_learn_options(&options)) {
		fputs("glake: that is an option of glake learn\n", stderr);
		return complain();
	}
	return run(&options, argv + at);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/learn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/run/learn_merge.h"

enum { EXIT_FAILED = 1, EXIT_REFUSED = 125 };

#define DEFAULT_RUNS 100u
#define DEFAULT_SECONDS 600u
#define DEFAULT_LEAST 4u
#define MAX_FACTS_BYTES (1u << 30)
/* A program that was told to end has this long. */
#define GRACE_NS 2000000000ull
#define LOOK_NS 100000000

struct learn {
	const struct learn_options *options;
	char **arguments;
	int (*start)(void *user);
	void *user;
	uint64_t n_runs;
	uint64_t n_seconds;
	uint64_t least;
	struct learned learned;
	char folder[PATH_MAX]; /* our own, for the next two */
	char state[PATH_MAX];  /* the file that the program reads */
	char facts[PATH_MAX];  /* the file that it writes */
	bool has_failed;       /* the last run did, and no fault says why */
};

static int refuse(const char *subject, const char *why)
{
	fprintf(stderr, "glake: %s: %s\n", subject, why);
	return EXIT_REFUSED;
}

static bool read_number(const char *text, uint64_t otherwise, uint64_t *n_out)
{
	char *end;
	*n_out = text ? strtoull(text, &end, 10) : otherwise;
	return !text ||
	       (*text >= '0' && *text <= '9' && *end == '\0' && *n_out > 0 && *n_out <= 1000000000);
}

/* ---- files ------------------------------------------------------------------------------------ */

/* Write the whole file or change nothing. */
static int write_file(const struct learn *learn, const char *path, bool is_table)
{
	char draft[PATH_MAX + 8];
	snprintf(draft, sizeof(draft), "%s.new", path);
	int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file) {
		int error = errno;
		fd_close(&fd);
		return -error;
	}
	if (is_table) {
		learn_write_table(&learn->learned, learn->options->what, learn->least, file);
	} else {
		learned_write(&learn->learned, file);
	}
	bool is_written = fflush(file) == 0 && !ferror(file);
	int error = errno;
	if (fclose(file) != 0 || !is_written) {
		unlink(draft);
		return is_written ? -errno : -error;
	}
	return rename(draft, path) < 0 ? -errno : 0;
}

static int keep_state(const struct learn *learn)
{
	int r = learn->options->state ? write_file(learn, learn->options->state, false) : 0;
	return r < 0 ? refuse(learn->options->state, strerror(-r)) : 0;
}

/* The caller frees *text_out. */
static int read_facts(const struct learn *learn, char **text_out)
{
	struct stat facts;
	cleanup_fd int fd = open(learn->facts, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &facts) < 0) {
		return -errno;
	}
	if (facts.st_size > MAX_FACTS_BYTES) {
		return -EFBIG;
	}
	cleanup_free char *text = malloc((size_t)facts.st_size + 1);
	ssize_t n = text ? read(fd, text, (size_t)facts.st_size) : -1;
	if (n < 0) {
		return text ? -errno : -ENOMEM;
	}
	text[n] = '\0';
	*text_out = ptr_steal(text);
	return 0;
}

static int make_folder(struct learn *learn)
{
	const char *parent = getenv("TMPDIR");
	snprintf(learn->folder, sizeof(learn->folder), "%.3000s/glake-learn-XXXXXX",
	         parent && *parent == '/' ? parent : "/tmp");
	if (!mkdtemp(learn->folder)) {
		return refuse(learn->folder, strerror(errno));
	}
	snprintf(learn->state, sizeof(learn->state), "%.4000s/state", learn->folder);
	snprintf(learn->facts, sizeof(learn->facts), "%.4000s/facts", learn->folder);
	return 0;
}

static void remove_folder(const struct learn *learn)
{
	unlink(learn->state);
	unlink(learn->facts);
	rmdir(learn->folder);
}

/* ---- a run ------------------------------------------------------------------------------------ */

static const int told[] = {SIGINT, SIGTERM, SIGHUP};

static void list_told(sigset_t *set_out)
{
	sigemptyset(set_out);
	for (size_t i = 0; i < n_elements(told); i++) {
		sigaddset(set_out, told[i]);
	}
}

static void run_child(const struct learn *learn, const sigset_t *signals)
{
	setpgid(0, 0);
	/* The program must end if we do, because nobody would watch it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigprocmask(SIG_SETMASK, signals, NULL);
	setenv("GLAKE_DEDUP", "learn", 1);
	setenv("GLAKE_DEDUP_QUIET_MS", "500", 0);
	setenv("GLAKE_LEARN_STATE", learn->state, 1);
	setenv("GLAKE_LEARN_FACTS", learn->facts, 1);
	_exit(learn->start(learn->user));
}

struct end {
	int status; /* as of waitpid() */
	bool is_late;
	int signal; /* the signal that we got; 0: none */
};

/* Wait for the program and all processes that it has started, which are in one process group. */
static void wait_for(pid_t pid, const struct learn *learn, const sigset_t *signals,
                     struct end *end_out)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t end_ns = clock_now_ns() + learn->n_seconds * 1000000000ull;
	*end_out = (struct end){.status = 0};
	while (waitpid(pid, &end_out->status, WNOHANG) == 0) {
		int got = sigtimedwait(signals, NULL, &pause);
		bool is_late = clock_now_ns() >= end_ns;
		if (got > 0 && end_out->signal == 0) {
			end_out->signal = got;
			kill(-pid, got);
			end_ns = clock_now_ns() + GRACE_NS;
		} else if (is_late && !end_out->is_late && end_out->signal == 0) {
			end_out->is_late = true;
			kill(-pid, SIGTERM);
			end_ns = clock_now_ns() + GRACE_NS;
		} else if (is_late) {
			kill(-pid, SIGKILL);
		}
	}
	kill(-pid, SIGKILL);
}

/* Returns 0, or an exit status. */
static int run_once(const struct learn *learn, struct end *end_out)
{
	sigset_t signals;
	sigset_t before;
	int r = write_file(learn, learn->state, false);
	cleanup_fd int fd = open(learn->facts, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (r < 0 || fd < 0) {
		return refuse(learn->folder, strerror(r < 0 ? -r : errno));
	}
	list_told(&signals);
	sigprocmask(SIG_BLOCK, &signals, &before);
	pid_t pid = fork();
	if (pid == 0) {
		run_child(learn, &before);
	}
	if (pid > 0) {
		setpgid(pid, pid);
		wait_for(pid, learn, &signals, end_out);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return pid < 0 ? refuse("fork", strerror(errno)) : 0;
}

/* ---- all runs --------------------------------------------------------------------------------- */

/* Quotes and newlines would end a line of the state. */
static void describe_program(const struct learn *learn, char *text, size_t n_text)
{
	size_t n = 0;
	text[0] = '\0';
	for (char **at = learn->arguments; *at && n + 1 < n_text; at++) {
		int n_more = snprintf(text + n, n_text - n, "%s%s", n ? " " : "", *at);
		n = n + (size_t)n_more < n_text ? n + (size_t)n_more : n_text - 1;
	}
	for (char *at = text; *at; at++) {
		*at = *at < ' ' && *at >= 0 ? ' ' : *at;
	}
}

static bool is_trying(const struct learned *learned)
{
	for (size_t i = 0; i < learned->n_functions; i++) {
		const struct learned_function *function = learned->functions[i];
		for (size_t k = 0; k < function->n_words; k++) {
			if (function->words[k].writing == LEARNED_TRYING) {
				return true;
			}
		}
	}
	return false;
}

static void say(const struct learn *learn, uint64_t run, const struct learn_found *found)
{
	const struct learn_sum sum = learn_sum(&learn->learned, learn->least);
	fprintf(stderr, "glake: run %" PRIu64 ": %zu functions known, %zu words read, %zu opaque",
	        run, sum.n_functions, sum.n_words, sum.n_open);
	if (found->n_faults > 0) {
		fprintf(stderr, "; a fault: %s", found->fault);
	}
	fputc('\n', stderr);
}

/* Why another run makes no sense; NULL: it does, or (*status_out is 0) nothing is left to learn. */
static const char *judge(struct learn *learn, const struct learn_found *found,
                         const struct end *end, int *status_out)
{
	const bool has_failed = learn->has_failed;
	*status_out = EXIT_FAILED;
	learn->has_failed = false;
	if (end->signal) {
		*status_out = 128 + end->signal;
		return "told to end";
	}
	if (found->n_processes == 0 && end->is_late) {
		return "it took too long (--seconds), and had loaded nothing to memory of glaked";
	}
	if (found->n_processes == 0) {
		bool is_told = WIFEXITED(end->status) && WEXITSTATUS(end->status) >= EXIT_REFUSED;
		*status_out = is_told ? WEXITSTATUS(end->status) : EXIT_FAILED;
		return is_told ? "it was not run"
		               : "it had nothing to learn from: it loads nothing to memory of "
		                 "glaked, or ends too soon after that";
	}
	if (found->n_faults > 0) {
		return NULL;
	}
	if (end->is_late) {
		return "it took too long (--seconds)";
	}
	if (!WIFEXITED(end->status) || WEXITSTATUS(end->status) != 0) {
		/* A thread may have ended it with the error of a launch before it was known which. */
		learn->has_failed = true;
		return has_failed ? "it failed by itself, twice" : NULL;
	}
	*status_out = 0;
	return NULL;
}

static int learn_runs(struct learn *learn)
{
	char program[1024];
	int status = EXIT_FAILED;
	const char *why = "there was a fault in each run (--runs)";
	describe_program(learn, program, sizeof(program));
	for (uint64_t run = 1; run <= learn->n_runs; run++) {
		struct learn_found found;
		struct end end;
		cleanup_free char *facts = NULL;
		int r = run_once(learn, &end);
		if (r != 0) {
			return r;
		}
		r = read_facts(learn, &facts);
		r = r < 0 ? r : learn_merge(&learn->learned, facts, &found);
		if (r < 0 || !learned_count(&learn->learned.ran, program, 1)) {
			return refuse("what was found", strerror(r < 0 ? -r : ENOMEM));
		}
		r = keep_state(learn);
		if (r != 0) {
			return r;
		}
		say(learn, run, &found);
		const char *now = judge(learn, &found, &end, &status);
		if (now || (status == 0 && !is_trying(&learn->learned))) {
			why = now;
			break;
		}
	}
	if (status != 0) {
		fprintf(stderr, "glake: %s: %s\n", learn->arguments[0], why);
	}
	return status;
}

static int run_program(struct learn *learn)
{
	int status = make_folder(learn);
	if (status == 0) {
		status = learn_runs(learn);
		remove_folder(learn);
	}
	return status;
}

static int write_table(const struct learn *learn)
{
	const struct learn_sum sum = learn_sum(&learn->learned, learn->least);
	const char *out = learn->options->out;
	if (!out) {
		learn_write_table(&learn->learned, learn->options->what, learn->least, stdout);
		return fflush(stdout) == 0 ? 0 : refuse("standard output", strerror(errno));
	}
	int r = write_file(learn, out, true);
	if (r < 0) {
		return refuse(out, strerror(-r));
	}
	fprintf(stderr,
	        "glake: %s: %zu functions that read through %zu words, %zu opaque; %zu were "
	        "launched "
	        "too seldom, %zu cannot be named\n",
	        out, sum.n_functions, sum.n_words, sum.n_open, sum.n_rare, sum.n_nameless);
	return 0;
}

int learn_main(const struct learn_options *options, char **arguments, int (*start)(void *user),
               void *user)
{
	struct learn learn = {
		.options = options, .arguments = arguments, .start = start, .user = user};
	struct readers_error error;
	if (!read_number(options->runs, DEFAULT_RUNS, &learn.n_runs)) {
		return refuse("--runs", "must be a number");
	}
	if (!read_number(options->seconds, DEFAULT_SECONDS, &learn.n_seconds)) {
		return refuse("--seconds", "must be a number");
	}
	if (!read_number(options->least, DEFAULT_LEAST, &learn.least)) {
		return refuse("--least", "must be a number");
	}
	if (options->what && strpbrk(options->what, "\"\n")) {
		return refuse("--for", "must have no quotes and no newlines");
	}
	if (options->state && learned_read(&learn.learned, options->state, &error) < 0) {
		fprintf(stderr, "glake: %s:%u: %s\n", options->state, error.line, error.text);
		return EXIT_REFUSED;
	}
	int status = *arguments ? run_program(&learn) : 0;
	if (learn.learned.n_functions > 0) {
		int written = write_table(&learn);
		status = status ? status : written;
	} else if (status == 0) {
		status = refuse(options->state, "nothing is known yet");
	}
	learned_deinit(&learn.learned);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real glaked for one test: on cudasim, in a folder of its own, with its own socket and state.
 *
 *     struct harness harness;
 *     harness_start(&harness, &(struct harness_options){.config = "drain_ms = 100;"});
 *     ... connect to harness.socket_path ...
 *     harness_stop(&harness);
 *
 * The programs are those of $GLAKE_BUILD (default "build"), the driver is $GLAKE_LIBCUDA (default:
 * that build's cudasim). harness_start() returns when glaked has told its service manager, which
 * the harness is, that it is ready. harness_stop() is a test by itself: glaked must end by SIGTERM
 * with status 0, so every assert at its teardown has held and a sanitizer has found nothing.
 *
 * Any failure is a failed Check assertion, with the log of glaked behind it.
 *
 * Owner: the test, usually on the stack. Lifetime: start to stop; when the test's process dies,
 * glaked dies with it. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_HARNESS_H
#define GLAKE_TESTS_HARNESS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/check_glake.h"
#include "tests/harness/fdkeeper.h"

#define HARNESS_PATH_BYTES 256u
/* A hang ends here. Nothing that works takes so long, under a sanitizer and beside others either. */
#define HARNESS_TIMEOUT_MS 200000

struct harness_options {
	const char *config;   /* text of the file; NULL = no file */
	const char *devices;  /* $CUDASIM_DEVICES; NULL = "2x256MiB" */
	const char *faults;   /* $CUDASIM_FAULT; NULL = none */
	bool is_activated;    /* pass the listening socket, as systemd does */
	bool keeps_fds;       /* keep glaked's fds for the next one, too (fdkeeper.h) */
	unsigned max_fds;     /* RLIMIT_NOFILE of glaked; 0 = inherited */
	uid_t uid;            /* glaked's uid and gid; 0 = the test's. Needs root */
	int stderr_fd;        /* glaked's; 0 = into the log file */
	bool has_keeper;      /* glaked is the child of a glake-keeper, which keeps its fds */
	const char *max_kept; /* the most fds that the keeper keeps; NULL = as many as it can */
	bool has_witness;     /* see world.h */
	unsigned speed;    /* factor of the clock of glaked and programs (tests/clocksim); 0 = 1 */
	unsigned slowness; /* divisor of the clock of glaked; 0 = 1 */
	const char *const *env; /* more "NAME=value", ended by NULL; NULL = none */
};

struct harness {
	pid_t pid;    /* glaked's; 0 = ended and reaped */
	pid_t keeper; /* the parent of glaked; 0 = there is none, or it is reaped */
	int notify_fd;
	int listen_fd; /* -1 unless activated */
	struct fdkeeper fdkeeper;
	char folder[HARNESS_PATH_BYTES];
	char socket_path[HARNESS_PATH_BYTES];
	char config_path[HARNESS_PATH_BYTES];
	char log_path[HARNESS_PATH_BYTES];
	char notify_path[HARNESS_PATH_BYTES];
	struct harness_options options; /* strings borrowed */
};

/* @options NULL: a glaked with defaults. */
void harness_start(struct harness *harness, const struct harness_options *options);

/* The exit status of a glaked that leaves everything to the next one. */
#define HARNESS_LEAVES 75

/*
 * End glaked by SIGTERM. Its status must be 0 (or HARNESS_LEAVES), the log without failed asserts, and the socket gone unless
 * it had a keeper.
 */
void harness_end(struct harness *harness);

/* Like harness_end(); then remove the folder. */
void harness_stop(struct harness *harness);

/* Preload @path, too, into programs that this process executes. */
void harness_preload(const char *path);

/* Let this process and its children find @harness's glaked and the simulation it is on. */
void harness_environment(const struct harness *harness);

/* End glaked by SIGKILL. The folder, the socket's file and the driver's state stay. */
void harness_kill(struct harness *harness);

/*
 * Start glaked again in the same folder, after harness_kill() or harness_wait_exit(). If it was killed
 * under a keeper, wait until the keeper has started it again.
 */
void harness_restart(struct harness *harness);

/* The status of waitpid(), once glaked, or its keeper, has ended by itself or by a signal sent before. */
int harness_wait_exit(struct harness *harness);

/* End glaked as `systemctl restart` does: it leaves what it has to the next one. */
void harness_leave(struct harness *harness);

/* Start a glaked that is not expected to become ready. Returns the status of waitpid(). Log and folder stay. */
int harness_start_failing(struct harness *harness, const struct harness_options *options);

/* Remove the folder, after glaked has ended. */
void harness_clean(struct harness *harness);

void harness_signal(struct harness *harness, int signal);

/* Replace the config (there must be one), send SIGHUP, and wait until it is read. */
void harness_reload(struct harness *harness, const char *config);

/* ---- looking at it ---- */

/* Fds that glaked has open now. */
size_t harness_n_fds(const struct harness *harness);

/* Read glaked's messages to its manager until one has @want, which begins with the "\n" of a line. */
void harness_wait_notified(struct harness *harness, const char *want);

void harness_print_fds(const struct harness *harness);

/* Wait until glaked has that many open; fails with the list of them after HARNESS_TIMEOUT_MS. */
void harness_wait_n_fds(const struct harness *harness, size_t n_fds);

/* Wait until the number does not change for a while: pools fill up behind READY. Returns it. */
size_t harness_settle_n_fds(const struct harness *harness);

uint64_t harness_rss_bytes(const struct harness *harness);

/* The whole log of glaked so far; valid until the next call. */
const char *harness_log(const struct harness *harness);

/* Wait until the log has @text. */
void harness_wait_log(const struct harness *harness, const char *text);

/* Lines of the log that have @text. */
unsigned harness_n_log_lines(const struct harness *harness, const char *text);

/* ---- being somebody else ---- */

typedef void (*harness_fn)(struct harness *harness, void *user);

/*
 * Call @fn in a child process with those credentials and no supplementary groups; assertions count.
 * Its working folder is the harness's, and the paths of @harness are relative to it there, since
 * folders above need not let that user pass. Needs root: see harness_is_root().
 */
void harness_as(struct harness *harness, uid_t uid, gid_t gid, harness_fn fn, void *user);

/* Call @fn in a child process, which then ends; assertions count. */
void harness_in_child(struct harness *harness, harness_fn fn, void *user);

/* Is the test root? If not, says "SKIP", and the test returns. */
bool harness_is_root(void);

uint64_t harness_now_ms(void);
void harness_sleep_ms(unsigned ms);

#endif

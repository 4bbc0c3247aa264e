/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of one test: a glaked on simulated GPUs, an eye on its books, and clients. A test says
 * what it needs and proves its point; the rest is done for it.
 *
 *     START_TEST(memory_of_a_killed_client_returns)
 *     {
 *             world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
 *             pid_t client = world_client(fill, NULL);
 *             world_await(1);
 *             world_kill(client);
 *     }
 *     END_TEST
 *
 * When the test has ended well, world_end() closes the sessions of world_connect(), evicts the
 * store, and wants what there was at the beginning: bytes, chunks, fds, charges, sessions, models.
 * Then glaked must end well, and leave no process, no socket and no memory of the driver. A test
 * that has ended glaked itself gets the last part alone. The log of glaked stays in the test's
 * temporary folder when a test fails, and tests/run shows it.
 *
 * The test's own process looks through `eye`, a session without the driver, so that it may fork.
 * Code that needs the driver runs in a child (world_client) or last.
 *
 * Owner: one Check test, in its forked process. Threads: one, if nothing else is said.
 */
#ifndef GLAKE_TESTS_HARNESS_WORLD_H
#define GLAKE_TESTS_HARNESS_WORLD_H

/* Headers that most tests with clients and files need. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "proto/cleanup.h"
#include "proto/cudrv.h"
#include "tests/check_glake.h"
#include "tests/harness/harness.h"

#define KIB 1024ull
#define MIB (1024ull * 1024)
#define GIB (1024ull * MIB)

#define assert_ok(call) \
	do { \
		int assert_ok_r = (call); \
		ck_assert_msg(assert_ok_r == 0, #call " = %d: %s", assert_ok_r, glake_error()); \
	} while (0)

/* The call must fail with that code, and the text of glake_error() must have the words. */
#define assert_fails(code, words, call) \
	do { \
		int assert_fails_r = (call); \
		ck_assert_msg(assert_fails_r == (code) && strstr(glake_error(), words), \
		              #call " = %d: %s; wanted %d: %s", assert_fails_r, glake_error(), \
		              (int)(code), words); \
	} while (0)

extern struct harness harness;
extern struct glake_session *eye;
/*
 * A raw session that must be served whatever others do, or -1. It exists from the beginning if the options have
 * .has_witness. world_end() has it answer a last time. The books do not count it.
 */
extern int witness;
/* The driver of the test's process, once it has called world_open_driver(). */
extern struct cudrv drv;

#define CHUNK_BYTES (2u * 1024 * 1024)
/* How long a session may wait for an answer while others misbehave. */
#define PATIENCE_MS 2000u

/* With this config nothing is made ahead and a mover stays once it is started, so all memory is the clients'. */
#define WORLD_CONFIG "pool = (); mover_idle_ms = 0; drain_ms = 300; "

/* Start glaked with members of struct harness_options, and look at its books. */
#define world_begin(...) world_begin_as(&(struct harness_options){__VA_ARGS__})
void world_begin_as(const struct harness_options *options);

/* Like world_begin(), without the eye, for which the end of glaked would have to wait. */
#define world_begin_unseen(...) world_start(&(struct harness_options){__VA_ARGS__})
void world_start(const struct harness_options *options);

/* Have a mover run, by loading one model, which is evicted. */
void world_start_mover(void);

/* Start glaked again in its folder, after it was killed. Its books must be those of the beginning. */
void world_restart(void);

/*
 * Whether glaked was killed; then it has ended when this returns. One that was killed just now answers nobody, though it may not be
 * dead to the last thread yet.
 */
bool world_is_killed(void);

/* End glaked, which must end well, whatever it has. The books are not checked. */
void world_stop(void);

/* End the test as said above. Called behind each test (tests/check_glake.h); does nothing if no world has begun. */
void world_end(void);

/* The folder of glaked and the test. Static, until eight calls later. Any thread. */
const char *world_path(const char *name);
void world_write_file(const char *name, const void *bytes, size_t n_bytes);
void world_write_text(const char *name, const char *text);

/* Set the faults of the driver of glaked and its mover; NULL = none. */
void world_set_faults(const char *rules);
/* Set the faults of the driver of the test's process and its children. */
void world_set_own_faults(const char *rules);

/* Change bytes in the sixth MiB of the large chunk for copies in host memory. */
void world_damage_copies(void);

/* ---- clients --------------------------------------------------------------------------------- */

/* Sessions with and without the driver; end them with world_disconnect(), or leave it to
 * world_end(). Any thread. */
struct glake_session *world_connect(void);
struct glake_session *world_connect_blind(void);
void world_disconnect(struct glake_session *session);

/* Load and initialise `drv`. */
void world_open_driver(void);
/* The bytes of the device that the driver has given out, by `drv`. For a thread that has no context of its own. */
uint64_t world_used_bytes(int device);

typedef void (*world_fn)(void *user);

/* A process that runs @fn; its failed assertions are the test's. */
pid_t world_client(world_fn fn, void *user);
void world_join(pid_t client);
void world_kill(pid_t client);

/* The stage of a test: a number that all its processes see. */
extern atomic_int *world_stage;
void world_reach(int stage);
void world_await(int stage);

/* ---- the books ------------------------------------------------------------------------------- */

/* Sums over devices and tenants that must be as before when the test has ended. */
struct books {
	uint64_t physical_bytes;
	uint64_t private_bytes;
	uint64_t block_bytes;
	uint64_t used_block_bytes;
	uint64_t logical_bytes;
	uint64_t n_models;
	uint64_t n_blocks;
	uint64_t n_sessions;
	uint64_t fds_used;
	uint64_t charged_bytes;
	uint64_t charged_fds;
	uint64_t charged_manifest_bytes;
	uint64_t host_bytes;
	uint64_t charged_host_bytes;
};

/* The books at the beginning. */
extern struct books books_before;

struct books world_books(void);

/* The numbers of glaked, and of one of its devices; their strings and lists are gone when this returns. */
struct glake_status world_status(void);
struct glake_device_status world_device(uint32_t index);

/* The first NUMA node; all 0 if there is none. */
struct glake_host_status world_host(void);
/* The host memory of the first NUMA node that has copies. */
uint64_t world_copy_bytes(void);

/* The last session of that process, which must have one. */
uint64_t world_session_of(pid_t pid);

/* That session, of a program under the shim, sleeps when this returns. */
void world_put_to_sleep(pid_t pid);

/* Wait until the books are @want. */
void world_wait_books(const struct books *want);

/* Like world_wait_books(), but evict unused memory again and again, because a session may not have ended yet. */
void world_evict_until(const struct books *want);

/* Wait until everything is as it was at the beginning, unused models aside: they are evicted. */
void world_assert_level(void);

/* How many fds glaked has now above those of the beginning, the mover's and the witness's aside. */
size_t world_n_more_fds(void);
/* Wait until glaked has @n_more. */
void world_wait_n_fds(size_t n_more);

/* @call again and again, while a mover that has died and does not end has what it is about. */
#define when_let(call) \
	({ \
		int result_; \
		while ((result_ = (call)) == GLAKE_E_BUSY) { \
			harness_sleep_ms(1); \
		} \
		result_; \
	})

/* A counter of glaked. */
uint64_t world_metric(const char *name);
void world_wait_metric(const char *name, uint64_t value);

/* The number of chunks, by the counters. */
uint64_t world_n_chunks(void);

/* The row that glaked lists for @session, and the session's own numbers. */
int world_find_row(void *user, const struct glake_session_row *row); /* the row with @user's id */
struct glake_session_row world_row(struct glake_session *session);
struct glake_usage world_usage(struct glake_session *session);

/* The number of fds of the test's process. */
size_t world_own_n_fds(void);

/* The pid of glake-mover, 0 = none runs. */
pid_t world_mover(void);
/* The pid of a mover that must run. Waits, because it may be at work before glaked knows its pid. */
pid_t world_running_mover(void);

/* The state of a process in /proc; Z if it is gone. The parent is that of a living process. */
char world_state_of(pid_t pid, pid_t *parent_out);
pid_t world_parent_of(pid_t pid);

/* The witness, which asks for little, must be answered in time. */
void world_serves_in_time(void);

/* Call @round twice to fill all caches, then twice more: glaked's memory must not grow with each call. */
void world_repeat_without_growth(void (*round)(void));

/* The eye connects anew: the next glaked may not know its session. */
void world_look_again(void);

/* Is each of these bytes @value? Read by the session. */
bool world_is_all(struct glake_session *session, glake_ptr ptr, uint8_t value, uint64_t n_bytes);

#endif

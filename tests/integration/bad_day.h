/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of what goes wrong: a glaked whose books are known before and must be the same after,
 * client processes that can be killed, and models whose bytes are known.
 *
 *     day_begin(&(struct harness_options){.config = "..."});
 *     ... whatever goes wrong ...
 *     day_end();
 *
 * day_end() evicts everything and then wants what there was at the beginning: bytes, fds, charges,
 * sessions, models; and that glaked ends well.
 *
 * The test's own process looks through `eye`, a session without the driver, so that it may fork.
 * What needs the driver runs in a child (day_client) or last.
 *
 * Owner: one Check test, in its forked process. Threads: one.
 */
#ifndef GLAKE_TESTS_BAD_DAY_H
#define GLAKE_TESTS_BAD_DAY_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "proto/cleanup.h"
#include "proto/cudrv.h"
#include "tests/check_glake.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_file.h"

#define DAY_UNUSED __attribute__((unused))
#define KIB 1024ull
#define MIB (1024ull * 1024)

#define assert_ok(call) \
	do { \
		int assert_ok_r = (call); \
		ck_assert_msg(assert_ok_r == 0, #call " = %d: %s", assert_ok_r, glake_error()); \
	} while (0)

/* It fails with that code, and the text of glake_error() has the words. */
#define assert_fails(code, words, call) \
	do { \
		int assert_fails_r = (call); \
		ck_assert_msg(assert_fails_r == (code) && strstr(glake_error(), words), \
		              #call " = %d: %s; wanted %d: %s", assert_fails_r, glake_error(), \
		              (int)(code), words); \
	} while (0)

/* ---- the books ------------------------------------------------------------------------------- */

/* What must be level again afterwards, summed over devices and tenants. */
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
};

static struct harness harness;
static struct glake_session *eye;
static struct books books_before;
static size_t n_fds_before;
static uint64_t n_chunks_before;

static int day_add_status(void *user, const struct glake_status *status)
{
	struct books *books = user;
	books->n_models = status->n_models;
	books->n_blocks = status->n_blocks;
	books->n_sessions = status->n_sessions;
	books->fds_used = status->fds_used;
	for (uint32_t i = 0; i < status->n_devices; i++) {
		const struct glake_device_status *device = &status->devices[i];
		books->physical_bytes += device->physical_bytes;
		books->private_bytes += device->private_bytes;
		books->block_bytes += device->block_bytes;
		books->used_block_bytes += device->used_block_bytes;
		books->logical_bytes += device->logical_bytes;
	}
	return 0;
}

static int day_add_tenant(void *user, const struct glake_tenant_row *row)
{
	struct books *books = user;
	books->charged_fds += row->n_fds;
	books->charged_manifest_bytes += row->manifest_bytes;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		books->charged_bytes += row->devices[i].used_bytes;
	}
	return 0;
}

DAY_UNUSED static struct books day_books(void)
{
	struct books books = {0};
	assert_ok(glake_get_status(eye, day_add_status, &books));
	assert_ok(glake_list_tenants(eye, day_add_tenant, &books));
	return books;
}

static void day_print(const char *title, const struct books *books)
{
	fprintf(stderr,
	        "%s: physical %llu private %llu block %llu used %llu logical %llu models %llu "
	        "blocks %llu sessions %llu fds %llu charged %llu, %llu fds, manifests %llu\n",
	        title, (unsigned long long)books->physical_bytes,
	        (unsigned long long)books->private_bytes, (unsigned long long)books->block_bytes,
	        (unsigned long long)books->used_block_bytes,
	        (unsigned long long)books->logical_bytes, (unsigned long long)books->n_models,
	        (unsigned long long)books->n_blocks, (unsigned long long)books->n_sessions,
	        (unsigned long long)books->fds_used, (unsigned long long)books->charged_bytes,
	        (unsigned long long)books->charged_fds,
	        (unsigned long long)books->charged_manifest_bytes);
}

static bool day_books_are(const struct books *want, uint64_t since_ms)
{
	struct books now = day_books();
	if (memcmp(&now, want, sizeof(now)) == 0) {
		return true;
	}
	if (harness_now_ms() - since_ms > 5000) {
		day_print("want", want);
		day_print("have", &now);
		ck_abort_msg("the books are not level\n%s", harness_log(&harness));
	}
	harness_sleep_ms(5);
	return false;
}

/* Wait until the books are those. */
DAY_UNUSED static void day_wait_books(const struct books *want)
{
	uint64_t since_ms = harness_now_ms();
	while (!day_books_are(want, since_ms)) {
	}
}

static int day_find_metric(void *user, const char *name, uint64_t value, const char *help)
{
	struct {
		const char *name;
		uint64_t value;
	} *wanted = user;
	if (strcmp(name, wanted->name) == 0) {
		wanted->value = value;
		return 1;
	}
	return 0;
}

DAY_UNUSED static uint64_t day_metric(const char *name)
{
	struct {
		const char *name;
		uint64_t value;
	} wanted = {name, 0};
	ck_assert_int_eq(glake_get_stats(eye, day_find_metric, &wanted), 1);
	return wanted.value;
}

/* By the counters, which must agree with what there is. */
DAY_UNUSED static uint64_t day_n_chunks(void)
{
	return day_metric("chunks_created") - day_metric("chunks_released");
}

/* Everybody but the eye has gone, or holds nothing: what is left is as it was at the beginning. */
DAY_UNUSED static void day_assert_level(void)
{
	uint64_t since_ms = harness_now_ms();
	do {
		/* More than once: glaked may not know yet that a session has ended. */
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
	} while (!day_books_are(&books_before, since_ms));
	harness_wait_n_fds(&harness, n_fds_before);
	ck_assert_uint_eq(day_n_chunks(), n_chunks_before);
}

static int day_copy_mover(void *user, const struct glake_status *status)
{
	unsigned *pid = user;
	if (sscanf(status->mover, "running %u", pid) != 1) {
		*pid = 0;
	}
	return 0;
}

/* 0 = none runs. */
DAY_UNUSED static pid_t day_mover(void)
{
	unsigned pid;
	assert_ok(glake_get_status(eye, day_copy_mover, &pid));
	return (pid_t)pid;
}

DAY_UNUSED static void day_wait_metric(const char *name, uint64_t value)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (day_metric(name) != value) {
		ck_assert_msg(harness_now_ms() < end_ms, "%s is %llu, not %llu", name,
		              (unsigned long long)day_metric(name), (unsigned long long)value);
		harness_sleep_ms(5);
	}
}

/* ---- files ----------------------------------------------------------------------------------- */

DAY_UNUSED static const char *day_path(const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *path = paths[next++ % 8];
	snprintf(path, sizeof(paths[0]), "%s/%s", harness.folder, name);
	return path;
}

/* One tensor "w" of @n_bytes, and so one model, whose content follows from @seed. */
DAY_UNUSED static const char *day_write_model(const char *name, uint64_t n_bytes, uint64_t seed)
{
	struct model_tensor tensor = {"w", "U8", 1, {n_bytes}, seed};
	const char *path = day_path(name);
	model_file_write(path, &tensor, 1);
	return path;
}

/* @n_bytes at @ptr are those of the content of @seed, from @offset on. */
DAY_UNUSED static bool day_is_content(struct glake_session *session, glake_ptr ptr,
                                      uint64_t n_bytes, uint64_t seed, uint64_t offset)
{
	struct model_tensor tensor = {.seed = seed};
	uint8_t *got = malloc(n_bytes);
	uint8_t *want = malloc(n_bytes);
	ck_assert(got && want);
	model_tensor_fill(&tensor, offset, want, n_bytes);
	assert_ok(glake_read(session, 0, got, ptr, n_bytes));
	bool is_equal = memcmp(got, want, n_bytes) == 0;
	free(got);
	free(want);
	return is_equal;
}

DAY_UNUSED static struct glake_tensor day_tensor(const struct glake_model *model, const char *name)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	assert_ok(glake_model_tensor(model, name, &tensor));
	return tensor;
}

DAY_UNUSED static struct glake_model_info day_info(const struct glake_model *model)
{
	struct glake_model_info info = {.size = sizeof(info)};
	assert_ok(glake_model_info(model, &info));
	return info;
}

/* ---- clients --------------------------------------------------------------------------------- */

DAY_UNUSED static struct glake_session *day_connect(void)
{
	struct glake_session *session = NULL;
	assert_ok(glake_connect(NULL, &session));
	return session;
}

DAY_UNUSED static struct glake_session *day_connect_blind(void)
{
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	struct glake_session *session = NULL;
	assert_ok(glake_connect(&options, &session));
	return session;
}

/* Into the store and open, but mapped nowhere; needs no driver. */
DAY_UNUSED static int day_open_unmapped(struct glake_session *session, const char *path,
                                        struct glake_model **model_out)
{
	struct glake_model_options options = {.size = sizeof(options), .no_map = 1};
	return glake_model_open(session, path, &options, model_out);
}

typedef void (*day_fn)(void *user);

/* A process that runs @fn; its failed assertions are the test's. */
DAY_UNUSED static pid_t day_client(day_fn fn, void *user)
{
	fflush(NULL);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn(user);
		fflush(NULL);
		_exit(0);
	}
	return child;
}

DAY_UNUSED static void day_join(pid_t client)
{
	int status;
	ck_assert_int_eq(waitpid(client, &status, 0), client);
	ck_assert_msg(status == 0, "a client ended with status 0x%x\n%s", status,
	              harness_log(&harness));
}

DAY_UNUSED static void day_kill(pid_t client)
{
	kill(client, SIGKILL);
	ck_assert_int_eq(waitpid(client, NULL, 0), client);
}

/* Where the processes of a test are: a number that all of them see. */
static atomic_int *day_stage;

DAY_UNUSED static void day_reach(int stage)
{
	atomic_store(day_stage, stage);
}

DAY_UNUSED static void day_await(int stage)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (atomic_load(day_stage) < stage) {
		ck_assert_msg(harness_now_ms() < end_ms, "stage %d is not reached\n%s", stage,
		              harness_log(&harness));
		harness_sleep_ms(2);
	}
}

/* ---- loads that last ------------------------------------------------------------------------- */

/*
 * So that something can happen in the middle of a load, however late: with DAY_SMALL_STEPS as
 * glaked's environment and DAY_STOP_AND_GO as the driver's faults, a model of day_write_layers()
 * has its first block at once, one more each second, and the last later than any test waits
 * (HARNESS_TIMEOUT_MS). As soon as the faults are gone, the rest comes at once.
 */
#define DAY_SMALL_STEPS \
	((const char *const[]){"GLAKE_MOVER_READERS=1", "GLAKE_MOVER_SLOT_KIB=256", NULL})
#define DAY_STOP_AND_GO "glake-mover/cuMemcpyHtoDAsync_v2:10+:slow=120"
#define DAY_N_LAYERS 20
#define DAY_LAYER_BYTES (2 * MIB)
#define DAY_MODEL_BYTES (DAY_N_LAYERS * DAY_LAYER_BYTES)

static struct model_tensor *day_layers(uint64_t seed)
{
	static char names[DAY_N_LAYERS][8];
	static struct model_tensor layers[DAY_N_LAYERS];
	for (unsigned i = 0; i < DAY_N_LAYERS; i++) {
		snprintf(names[i], sizeof(names[i]), "w%02u", i);
		layers[i] = (struct model_tensor){
			names[i], "U8", 1, {DAY_LAYER_BYTES}, seed * DAY_N_LAYERS + i};
	}
	return layers;
}

/* A model of many blocks, whose content follows from @seed. */
DAY_UNUSED static const char *day_write_layers(const char *name, uint64_t seed)
{
	const char *path = day_path(name);
	model_file_write(path, day_layers(seed), DAY_N_LAYERS);
	return path;
}

/* @model, mapped, is the one of @seed. */
DAY_UNUSED static bool day_has_layers(struct glake_session *session,
                                      const struct glake_model *model, uint64_t seed)
{
	const struct model_tensor *layers = day_layers(seed);
	bool is_equal = true;
	for (unsigned i = 0; i < DAY_N_LAYERS; i++) {
		is_equal = is_equal &&
		           day_is_content(session, day_tensor(model, layers[i].name).ptr,
		                          DAY_LAYER_BYTES, layers[i].seed, 0);
	}
	return is_equal;
}

/* ---- a day ----------------------------------------------------------------------------------- */

/* The driver of this process and its children is the simulation that glaked is on. */
static void day_set_environment(void)
{
	char path[600];
	const char *build = getenv("GLAKE_BUILD");
	setenv("GLAKE_SOCKET", harness.socket_path, 1);
	setenv("CUDASIM_DEVICES", harness.options.devices, 1);
	setenv("CUDASIM_STATE", day_path("cudasim"), 1);
	snprintf(path, sizeof(path), "%s/cudasim/libcuda.so.1", build && *build ? build : "build");
	setenv("GLAKE_LIBCUDA", path, 0);
	unsetenv("CUDASIM_FAULT");
	unsetenv("CUDASIM_FAULT_FILE");
}

static const char *day_faults_path(void)
{
	static char path[HARNESS_PATH_BYTES];
	const char *parent = getenv("TMPDIR");
	if (!path[0]) {
		snprintf(path, sizeof(path), "%s/faults.%d", parent ? parent : "/tmp",
		         (int)getpid());
	}
	return path;
}

/* What the driver of glaked and its mover does wrong from now on; NULL = nothing. */
DAY_UNUSED static void day_set_faults(const char *faults)
{
	char path[HARNESS_PATH_BYTES + 8];
	if (!faults) {
		unlink(day_faults_path());
		return;
	}
	snprintf(path, sizeof(path), "%s.new", day_faults_path());
	FILE *file = fopen(path, "we");
	ck_assert_msg(file && fputs(faults, file) >= 0 && fclose(file) == 0, "%s: %s", path,
	              strerror(errno));
	ck_assert_int_eq(rename(path, day_faults_path()), 0);
}

/* The mover stays once it is started, so that the number of fds does not depend on when we look. */
#define DAY_CONFIG "pool = (); mover_idle_ms = 0; drain_ms = 300; "

/* @options: the config is DAY_CONFIG and more. */
DAY_UNUSED static void day_begin(const struct harness_options *options)
{
	struct glake_model *model;
	setenv("CUDASIM_FAULT_FILE", day_faults_path(), 1);
	harness_start(&harness, options);
	day_set_environment();
	day_stage = mmap(NULL, sizeof(*day_stage), PROT_READ | PROT_WRITE,
	                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(day_stage, MAP_FAILED);
	eye = day_connect_blind();
	assert_ok(day_open_unmapped(eye, day_write_model("warm-up", 1, 1), &model));
	glake_model_close(model);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	n_fds_before = harness_settle_n_fds(&harness);
	books_before = day_books();
	n_chunks_before = day_n_chunks();
	ck_assert_uint_eq(books_before.n_models, 0);
}

DAY_UNUSED static void day_end(void)
{
	day_set_faults(NULL);
	day_assert_level();
	glake_disconnect(eye);
	eye = NULL;
	harness_stop(&harness);
}

#endif

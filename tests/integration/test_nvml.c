/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's figures of the devices, in the status: known, unknown, absent, late. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

/* The simulated device 1, as NVML would write it. */
#define UUID_1 "GPU-63756461-7369-6d2d-7575-69642d9a5e01"

#define SPEED 5

static char library[HARNESS_PATH_BYTES];
static char calls_path[HARNESS_PATH_BYTES];

static void begin(const char *devices, const char *more)
{
	static char env[4][HARNESS_PATH_BYTES + 64];
	static const char *const list[] = {env[0], env[1], env[2], env[3], NULL};
	const char *build = getenv("GLAKE_BUILD");
	const char *folder = getenv("TMPDIR");
	if (!library[0]) {
		snprintf(library, sizeof(library), "%s/nvmlsim/libnvidia-ml.so.1",
		         build ? build : "build");
	}
	snprintf(calls_path, sizeof(calls_path), "%s/calls.%d", folder ? folder : "/tmp",
	         (int)getpid());
	snprintf(env[0], sizeof(env[0]), "GLAKE_LIBNVML=%s", library);
	snprintf(env[1], sizeof(env[1]), "NVMLSIM_DEVICES=%s", devices);
	snprintf(env[2], sizeof(env[2]), "NVMLSIM_LOG=%s", calls_path);
	snprintf(env[3], sizeof(env[3]), "%s", more);
	world_begin(.config = "pool = ();", .env = list, .speed = SPEED);
}

/* The lines that nvmlsim wrote, once; "" while it has made the file but not yet written. */
static const char *calls(void)
{
	static char text[4096];
	FILE *file = fopen(calls_path, "r");
	size_t n_bytes = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
	if (file) {
		fclose(file);
	}
	text[n_bytes] = '\0';
	if (n_bytes > 0) {
		unlink(calls_path);
	}
	return text;
}

static int keep(void *user, const struct glake_status *status)
{
	uint64_t *free_bytes = user;
	ck_assert_uint_eq(status->n_devices, 2);
	for (uint32_t i = 0; i < 2; i++) {
		free_bytes[i] = status->devices[i].free_bytes;
	}
	return 0;
}

static void look(uint64_t free_bytes[2])
{
	ck_assert_int_eq(glake_get_status(eye, keep, free_bytes), 0);
}

START_TEST(what_is_free_is_known_where_nvml_knows_the_device)
{
	uint64_t free_bytes[2] = {0};
	begin(UUID_1 "=201326592", "NOTHING=");
	for (unsigned i = 0; free_bytes[1] == 0; i++) {
		ck_assert_uint_lt(i, 1000);
		look(free_bytes);
		harness_sleep_ms(5);
	}
	ck_assert_uint_eq(free_bytes[0], 0);
	ck_assert_uint_eq(free_bytes[1], 192 * MIB);
	harness_wait_log(
		&harness,
		"cannot tell the use of the devices: device 0 (GPU-63756461-7369-6d2d-7575-"
		"69642d9a5e00): Not Found");
	world_end();
	ck_assert_str_eq(calls(), "init\nmemory\nshutdown on the main thread\n");
}
END_TEST

START_TEST(what_glaked_does_between_two_askings_is_reckoned_with)
{
	uint64_t free_bytes[2] = {0};
	begin(UUID_1 "=201326592", "NOTHING=");
	while (free_bytes[1] == 0) {
		look(free_bytes);
		harness_sleep_ms(5);
	}
	int connection = connection_hello(&harness);
	uint64_t id;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 1, 32 * MIB, 1, &id, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	look(free_bytes);
	ck_assert_uint_eq(free_bytes[1], 160 * MIB);
}
END_TEST

START_TEST(without_nvml_it_is_unknown)
{
	uint64_t free_bytes[2] = {1, 1};
	strcpy(library, "/nowhere/libnvidia-ml.so.1");
	begin(UUID_1 "=201326592", "NOTHING=");
	harness_wait_log(
		&harness,
		"cannot tell the use of the devices: /nowhere/libnvidia-ml.so.1: cannot open");
	look(free_bytes);
	ck_assert_uint_eq(free_bytes[0] + free_bytes[1], 0);
}
END_TEST

START_TEST(a_library_that_is_another_is_not_used)
{
	strcpy(library, "libm.so.6");
	begin("", "NOTHING=");
	harness_wait_log(
		&harness,
		"cannot tell the use of the devices: libm.so.6 has no call named nvmlInit_v2");
}
END_TEST

START_TEST(nvml_that_does_not_start_is_told_once_and_not_asked_again)
{
	begin(UUID_1 "=201326592", "NVMLSIM_INIT_FAILS=1");
	harness_wait_log(&harness,
	                 "cannot tell the use of the devices: nvmlInit: Driver Not Loaded");
	/* Past the next asking. */
	harness_sleep_ms(6500 / SPEED);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "cannot tell the use of the devices"), 1);
	ck_assert_str_eq(calls(), "init\n");
}
END_TEST

START_TEST(a_slow_nvml_holds_nobody_up)
{
	uint64_t free_bytes[2] = {1, 1};
	begin(UUID_1 "=201326592", "NVMLSIM_SLOW_MS=4000");
	while (access(calls_path, F_OK) < 0) {
		harness_sleep_ms(5);
	}
	look(free_bytes);
	/* Answered before NVML has. */
	ck_assert_uint_eq(free_bytes[0], 0);
	/* And the end waits for it. */
	world_end();
	ck_assert_str_eq(calls(), "init\nmemory\nshutdown on the main thread\n");
}
END_TEST

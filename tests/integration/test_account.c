/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses what of a device: NVML's processes and what sessions report, in status and sessions. */
#include <stdarg.h>
#include <stdio.h>

#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

/* The simulated devices, as NVML would write them. */
#define UUID_0 "GPU-63756461-7369-6d2d-7575-69642d9a5e00"
#define UUID_1 "GPU-63756461-7369-6d2d-7575-69642d9a5e01"

static char processes_path[HARNESS_PATH_BYTES];

/* Have NVML list this from its next answer on; written at once, as it may be read at any time. */
__attribute__((format(printf, 1, 2))) static void set_processes(const char *format, ...)
{
	char text[1024];
	char path[HARNESS_PATH_BYTES + 8];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	snprintf(path, sizeof(path), "%s.new", processes_path);
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_ge(fputs(text, file), 0);
	ck_assert_int_eq(fclose(file), 0);
	ck_assert_int_eq(rename(path, processes_path), 0);
}

/* A glaked whose NVML says that 100 MiB of device 0's 256 are free, and nothing of device 1. */
static void begin(void)
{
	static char env[3][HARNESS_PATH_BYTES + 64];
	static const char *const list[] = {env[0], env[1], env[2], NULL};
	const char *build = getenv("GLAKE_BUILD");
	const char *folder = getenv("TMPDIR");
	snprintf(processes_path, sizeof(processes_path), "%s/processes.%d",
	         folder ? folder : "/tmp", (int)getpid());
	snprintf(env[0], sizeof(env[0]), "GLAKE_LIBNVML=%s/nvmlsim/libnvidia-ml.so.1",
	         build ? build : "build");
	snprintf(env[1], sizeof(env[1]), "NVMLSIM_DEVICES=%s=104857600", UUID_0);
	snprintf(env[2], sizeof(env[2]), "NVMLSIM_PROCESSES=%s", processes_path);
	set_processes("%s", "");
	world_begin(.config = WORLD_CONFIG, .devices = "2x256MiB", .env = list, .speed = 5);
}

static void end(void)
{
	unlink(processes_path);
}

static int copy_devices(void *user, const struct glake_status *status)
{
	ck_assert_uint_eq(status->n_devices, 2);
	memcpy(user, status->devices, 2 * sizeof(status->devices[0]));
	return 0;
}

static struct glake_device_status status_of(uint32_t device)
{
	struct glake_device_status devices[2];
	assert_ok(glake_get_status(eye, copy_devices, devices));
	return devices[device];
}

/* Wait until NVML's answer about device 0 has so many bytes of processes without a session. */
static struct glake_device_status wait_foreign(uint64_t n_bytes)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	struct glake_device_status device = status_of(0);
	while (device.foreign_bytes != n_bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "it stays at %llu",
		              (unsigned long long)device.foreign_bytes);
		harness_sleep_ms(20);
		device = status_of(0);
	}
	return device;
}

static void report(int connection, Glake__Wire__DriverMemory *driver)
{
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(USAGE_REPORT, UsageReport, usage_report,
	                                           .driver = &driver, .n_driver = 1),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__OK);
}

static int report_new(uint64_t managed, uint64_t arrays, uint64_t graphs, uint64_t other)
{
	int connection = connection_hello(&harness);
	Glake__Wire__DriverMemory driver = GLAKE__WIRE__DRIVER_MEMORY__INIT;
	driver.managed_bytes = managed * MIB;
	driver.array_bytes = arrays * MIB;
	driver.graph_bytes = graphs * MIB;
	driver.other_bytes = other * MIB;
	report(connection, &driver);
	return connection;
}

struct found {
	uint64_t wanted; /* array bytes of the session looked for */
	uint64_t process_bytes;
};

static int find_arrays(void *user, const struct glake_session_row *row)
{
	struct found *found = user;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		if (row->devices[i].array_bytes == found->wanted) {
			ck_assert_uint_eq(row->devices[i].device, 0);
			found->process_bytes = row->devices[i].process_bytes;
			return 1;
		}
	}
	return 0;
}

/* All bytes of the session with @array_bytes of arrays, as NVML says. */
static uint64_t process_bytes(uint64_t array_bytes)
{
	struct found found = {.wanted = array_bytes};
	ck_assert_int_eq(glake_list_sessions(eye, find_arrays, &found), 1);
	return found.process_bytes;
}

START_TEST(all_that_is_used_is_explained)
{
	begin();
	world_start_mover();
	/* Three sessions of one process, this one: the third is `eye`. */
	int one = report_new(20, 10, 1, 4);
	int two = report_new(0, 2, 0, 0);
	set_processes("%s:%d=%llu %s:%d=%llu %s:1=%llu %s:2=-", UUID_0, (int)getpid(), 60 * MIB,
	              UUID_0, (int)world_running_mover(), 40 * MIB, UUID_0, 30 * MIB, UUID_0);
	struct glake_device_status device = wait_foreign(30 * MIB);
	ck_assert_uint_eq(device.n_foreign, 2);
	ck_assert_uint_eq(device.managed_bytes, 20 * MIB);
	ck_assert_uint_eq(device.array_bytes, 12 * MIB);
	ck_assert_uint_eq(device.graph_bytes, 1 * MIB);
	ck_assert_uint_eq(device.other_bytes, 4 * MIB);
	ck_assert_uint_eq(device.context_bytes, 43 * MIB);
	ck_assert_uint_eq(device.mover_bytes, 40 * MIB);
	/* 156 MiB in use, 2 of them the device's anchor. */
	ck_assert_uint_eq(device.physical_bytes, 2 * MIB);
	ck_assert_uint_eq(device.unaccounted_bytes, 4 * MIB);
	ck_assert_uint_eq(process_bytes(10 * MIB), 60 * MIB);
	ck_assert_uint_eq(process_bytes(2 * MIB), 60 * MIB);
	/* NVML does not know the other. */
	ck_assert_uint_eq(status_of(1).unaccounted_bytes, 0);
	ck_assert_uint_eq(status_of(1).context_bytes, 0);

	/* Memory that is made or reported later changes nothing about the rest. */
	glake_ptr ptr;
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 8 * MIB, 0, &ptr));
	device = status_of(0);
	ck_assert_uint_eq(device.unaccounted_bytes, 4 * MIB);
	ck_assert_uint_eq(device.physical_bytes, 10 * MIB);
	assert_ok(glake_free(session, ptr));
	world_disconnect(session);

	/* Sessions that end take their reports with them; then the process has but a context. */
	connection_close(&one);
	connection_close(&two);
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (status_of(0).context_bytes != 60 * MIB) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
	}
	ck_assert_uint_eq(status_of(0).array_bytes, 0);
	end();
}
END_TEST

START_TEST(no_more_is_believed_than_nvml_says)
{
	begin();
	int connection = report_new(1000, 10, 5, 10);
	/* One that is on the list twice is one, and what it is not known to have is nothing. */
	set_processes("%s:%d=%llu %s:1=%llu %s:%d=%llu", UUID_0, (int)getpid(), 20 * MIB, UUID_0,
	              1 * MIB, UUID_0, (int)getpid(), 10 * MIB);
	struct glake_device_status device = wait_foreign(1 * MIB);
	ck_assert_uint_eq(device.array_bytes, 10 * MIB);
	ck_assert_uint_eq(device.graph_bytes, 5 * MIB);
	ck_assert_uint_eq(device.other_bytes, 10 * MIB);
	ck_assert_uint_eq(device.context_bytes, 5 * MIB);
	/* 156 MiB in use, less the anchor and the two processes. */
	ck_assert_uint_eq(device.managed_bytes, 123 * MIB);
	ck_assert_uint_eq(device.unaccounted_bytes, 0);
	ck_assert_uint_eq(device.n_foreign, 1);
	ck_assert_uint_eq(process_bytes(10 * MIB), 30 * MIB);
	connection_close(&connection);
	end();
}
END_TEST

START_TEST(what_a_process_reports_stands_alone_where_nvml_does_not_know_it)
{
	begin();
	int connection = report_new(7, 10, 5, 1);
	struct glake_device_status device = status_of(0);
	ck_assert_uint_eq(device.managed_bytes, 7 * MIB);
	ck_assert_uint_eq(device.array_bytes, 10 * MIB);
	ck_assert_uint_eq(device.graph_bytes, 5 * MIB);
	ck_assert_uint_eq(device.other_bytes, 1 * MIB);
	ck_assert_uint_eq(device.context_bytes, 0);
	ck_assert_uint_eq(process_bytes(10 * MIB), 0);
	/* Listed, but without a number. */
	set_processes("%s:%d=- %s:1=%llu", UUID_0, (int)getpid(), UUID_0, 1 * MIB);
	device = wait_foreign(1 * MIB);
	ck_assert_uint_eq(device.n_foreign, 1);
	ck_assert_uint_eq(device.managed_bytes, 7 * MIB);
	ck_assert_uint_eq(device.context_bytes, 0);
	connection_close(&connection);
	end();
}
END_TEST

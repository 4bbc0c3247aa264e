/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: injected faults. */
#include "tests/cudasim/test_work.h"

#include <errno.h>

START_TEST(faults_hit_the_calls_they_name)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FAULT",
	       "cuMemCreate:2:fail=2,cuMemAlloc:3+:fail=304,cuMemRelease:%2:fail=1,"
	       "someone-else/cuMemcpyHtoD:*:fail=999,cuMemcpyDtoH_v2:*:fail=999",
	       1);
	driver_start();
	CUmemGenericAllocationHandle handles[4];
	CUdeviceptr ptr;
	uint32_t value = 1;

	ck_ok(chunk_try(0, GRANULE, &handles[0]));
	ck_cu(chunk_try(0, GRANULE, &handles[1]), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(chunk_try(0, GRANULE, &handles[1]));
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OPERATING_SYSTEM);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OPERATING_SYSTEM);
	ck_ok(cu.MemRelease(handles[0]));
	ck_cu(cu.MemRelease(handles[1]), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemRelease(handles[1]));
	ck_ok(cu.MemcpyHtoD_v2(ptr, &value, 4));
	ck_cu(cu.MemcpyDtoH_v2(&value, ptr, 4), CUDA_ERROR_UNKNOWN);
}
END_TEST

static void run_with_faults(int sock)
{
	CUdeviceptr ptr;

	driver_start();
	send_byte(sock);
	must_ok(cu.MemAlloc_v2(&ptr, 1));
	must_ok(cu.MemFree_v2(ptr));
}

START_TEST(faults_can_kill_a_process_by_name)
{
	char fault[128];

	driver_setup("1x64MiB");
	snprintf(fault, sizeof(fault), "%s/cuMemFree:1:die", program_invocation_short_name);
	setenv("CUDASIM_FAULT", fault, 1);
	struct child child = child_start(run_with_faults);
	recv_byte(child.sock);
	int status = child_join(&child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	unsetenv("CUDASIM_FAULT");
	driver_start();
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(faults_can_delay_and_kill_a_context)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FAULT", "cuMemAlloc:2:slow=60,cuMemAlloc:3:killctx", 1);
	driver_start();
	struct timespec before, after;
	CUdeviceptr ptr;

	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	clock_gettime(CLOCK_MONOTONIC, &before);
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	clock_gettime(CLOCK_MONOTONIC, &after);
	long ms = (after.tv_sec - before.tv_sec) * 1000 +
	          (after.tv_nsec - before.tv_nsec) / 1000000;
	ck_assert_int_ge(ms, 59);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

static void init_with_fault(int sock)
{
	(void)sock;
	_exit(cu.Init(0) == CUDA_ERROR_INVALID_VALUE ? 0 : 1);
}

START_TEST(malformed_faults_fail_init)
{
	static const char *const faults[] = {"cuMemCreate",           "cuMemCreate:1",
	                                     "cuNoSuch:1:fail=2",     "cuMemCreate:0:fail=2",
	                                     "cuMemCreate:x:fail=2",  "cuMemCreate:1:fail=",
	                                     "cuMemCreate:1:explode", "cuMemCreate:1:fail=2,:"};

	driver_setup("1x64MiB");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		setenv("CUDASIM_FAULT", faults[i], 1);
		struct child child = child_start(init_with_fault);
		ck_assert_msg(child_join(&child) == 0, "%s was accepted", faults[i]);
	}
}
END_TEST

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
	/* The clock of file times ticks every few milliseconds. */
	usleep(20000);
}

START_TEST(faults_can_come_and_go_by_file)
{
	const char *tmp = getenv("TMPDIR");
	char path[256];
	CUdeviceptr ptr;

	driver_setup("1x64MiB");
	snprintf(path, sizeof(path), "%s/cudasim-fault-%d", tmp ? tmp : "/tmp", (int)getpid());
	unlink(path);
	setenv("CUDASIM_FAULT_FILE", path, 1);
	driver_start();
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	write_file(path, "cuMemAlloc:2+:fail=2\n");
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OUT_OF_MEMORY);
	write_file(path, "nonsense");
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OUT_OF_MEMORY);
	write_file(path, "");
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	write_file(path, "*:1:fail=304");
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_OPERATING_SYSTEM);
	unlink(path);
	ck_ok(cu.CtxSynchronize());
}
END_TEST

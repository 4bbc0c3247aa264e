/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: devices, names, fork, contexts. */
#include "tests/cudasim/test_driver.h"

START_TEST(nothing_works_before_init)
{
	driver_setup("1x64MiB");
	CUmemGenericAllocationHandle handle;
	CUcontext ctx;
	const char *text;
	int n;

	ck_cu(cu.DeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	ck_cu(chunk_try(0, GRANULE, &handle), CUDA_ERROR_NOT_INITIALIZED);
	ck_cu(cu.CtxGetCurrent(&ctx), CUDA_ERROR_NOT_INITIALIZED);
	ck_cu(cu.MemcpyHtoD_v2(0, NULL, 0), CUDA_ERROR_NOT_INITIALIZED);
	ck_cu(cu.MemFree_v2(0), CUDA_ERROR_NOT_INITIALIZED);
	ck_cu(cu.Init(1), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.DriverGetVersion(&n));
	ck_assert_int_eq(n, 13000);
	ck_ok(cu.GetErrorName(CUDA_ERROR_NOT_INITIALIZED, &text));
	ck_assert_str_eq(text, "CUDA_ERROR_NOT_INITIALIZED");
	ck_ok(cu.GetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
	ck_assert_str_eq(text, "invalid argument");
	ck_cu(cu.GetErrorName((CUresult)9, &text), CUDA_ERROR_INVALID_VALUE);
	ck_assert_ptr_null(text);
	ck_ok(cu.Init(0));
	ck_ok(cu.Init(0));
	ck_ok(cu.DeviceGetCount(&n));
	ck_assert_int_eq(n, 1);
}
END_TEST

static int attribute(CUdevice_attribute which, CUdevice dev)
{
	int value = -1;

	ck_ok(cu.DeviceGetAttribute(&value, which, dev));
	return value;
}

START_TEST(devices_are_what_the_environment_says)
{
	driver_setup("2x16MiB,1GiB");
	CUuuid a, b;
	CUdevice dev;
	char name[32];
	size_t bytes;
	int n;

	ck_ok(cu.Init(0));
	ck_ok(cu.DeviceGetCount(&n));
	ck_assert_int_eq(n, 3);
	ck_ok(cu.DeviceGet(&dev, 2));
	ck_cu(cu.DeviceGet(&dev, 3), CUDA_ERROR_INVALID_DEVICE);
	ck_cu(cu.DeviceGet(&dev, -1), CUDA_ERROR_INVALID_DEVICE);
	ck_ok(cu.DeviceTotalMem_v2(&bytes, 1));
	ck_assert_uint_eq(bytes, 16 * MIB);
	ck_ok(cu.DeviceTotalMem_v2(&bytes, 2));
	ck_assert_uint_eq(bytes, 1024 * MIB);
	ck_ok(cu.DeviceGetName(name, sizeof(name), 0));
	ck_assert_str_eq(name, "CUDASIM");
	ck_ok(cu.DeviceGetUuid_v2(&a, 0));
	ck_ok(cu.DeviceGetUuid_v2(&b, 1));
	ck_assert_mem_ne(&a, &b, sizeof(a));
	ck_ok(cu.DeviceGetPCIBusId(name, sizeof(name), 2));
	ck_assert_str_eq(name, "0000:12:00.0");
	ck_cu(cu.DeviceGetPCIBusId(name, 5, 2), CUDA_ERROR_INVALID_VALUE);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), 9);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0), 0);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0), 1);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), 1);
	ck_assert_int_eq(
		attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0), 1);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
	                 1);
	ck_assert_int_eq(
		attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), 1);
	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0), 0);
	ck_cu(cu.DeviceGetAttribute(&n, (CUdevice_attribute)1000, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.DeviceCanAccessPeer(&n, 0, 1));
	ck_assert_int_eq(n, 1);
	ck_ok(cu.DeviceCanAccessPeer(&n, 1, 1));
	ck_assert_int_eq(n, 0);
}
END_TEST

START_TEST(devices_that_cannot_be_understood_fail_init)
{
	static const char *const specs[] = {"2x", "x8GiB", "8Gi", "0x8GiB", "17x1GiB", "-1GiB"};

	driver_setup("1x64MiB");
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		setenv("CUDASIM_DEVICES", specs[i], 1);
		ck_cu(cu.Init(0), CUDA_ERROR_INVALID_VALUE);
	}
	setenv("CUDASIM_DEVICES", "67108864", 1);
	ck_ok(cu.Init(0));
}
END_TEST

/* The number of devices seen, or minus the answer of cuInit; byte 15 of the first one's UUID. */
static int visible_devices(const char *list, int *first_out)
{
	int fds[2];
	int answer[2] = {0, 0};

	ck_assert_int_eq(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		CUuuid uuid = {{0}};
		setenv("CUDA_VISIBLE_DEVICES", list, 1);
		answer[0] = -(int)cu.Init(0);
		if (answer[0] == 0) {
			must_ok(cu.DeviceGetCount(&answer[0]));
			must_ok(cu.DeviceGetUuid_v2(&uuid, 0));
			answer[1] = uuid.bytes[15];
		}
		must(write(fds[1], answer, sizeof(answer)) == sizeof(answer));
		_exit(0);
	}
	close(fds[1]);
	ck_assert_int_eq(read(fds[0], answer, sizeof(answer)), sizeof(answer));
	close(fds[0]);
	waitpid(pid, NULL, 0);
	*first_out = answer[1];
	return answer[0];
}

START_TEST(visible_devices_are_respected)
{
	int first;

	driver_setup("4x16MiB");
	ck_assert_int_eq(visible_devices("2,1", &first), 2);
	ck_assert_int_eq(first, 2);
	ck_assert_int_eq(visible_devices("3,7,0", &first), 1);
	ck_assert_int_eq(first, 3);
	ck_assert_int_eq(visible_devices("", &first), -CUDA_ERROR_NO_DEVICE);
	ck_assert_int_eq(visible_devices("-1", &first), -CUDA_ERROR_NO_DEVICE);
	ck_assert_int_eq(visible_devices("9", &first), -CUDA_ERROR_NO_DEVICE);
	ck_assert_int_eq(visible_devices("0,0", &first), -CUDA_ERROR_INVALID_DEVICE);
	ck_assert_int_eq(visible_devices("GPU-63756461-7369-6d2d-7575-69642d9a5e01", &first), 1);
	ck_assert_int_eq(first, 1);
	ck_assert_int_eq(visible_devices("GPU-63756461", &first), -CUDA_ERROR_NO_DEVICE);
}
END_TEST

static CUdriverProcAddressQueryResult proc(const char *name, int version, void **pfn)
{
	CUdriverProcAddressQueryResult status;

	ck_ok(cu.GetProcAddress_v2(name, pfn, version, 0, &status));
	return status;
}

START_TEST(proc_addresses_follow_names_and_versions)
{
	driver_setup("1x64MiB");
	void *pfn;

	ck_assert_int_eq(proc("cuMemAlloc", 13000, &pfn), CU_GET_PROC_ADDRESS_SUCCESS);
	ck_assert_ptr_eq(pfn, (void *)cu.MemAlloc_v2);
	ck_assert_int_eq(proc("cuMemCreate", 13000, &pfn), CU_GET_PROC_ADDRESS_SUCCESS);
	ck_assert_ptr_eq(pfn, (void *)cu.MemCreate);
	ck_assert_int_eq(proc("cuGetProcAddress", 13000, &pfn), CU_GET_PROC_ADDRESS_SUCCESS);
	ck_assert_ptr_eq(pfn, (void *)cu.GetProcAddress_v2);
	ck_assert_int_eq(proc("cuGetProcAddress", 11030, &pfn), CU_GET_PROC_ADDRESS_SUCCESS);
	ck_assert_ptr_ne(pfn, (void *)cu.GetProcAddress_v2);
	ck_assert_int_eq(proc("cuEventElapsedTime", 13000, &pfn), CU_GET_PROC_ADDRESS_SUCCESS);
	ck_assert_ptr_eq(pfn, (void *)cu.EventElapsedTime_v2);
	ck_assert_int_eq(proc("cuMemAlloc_v2", 13000, &pfn), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	ck_assert_ptr_null(pfn);
	ck_assert_int_eq(proc("nonsense", 13000, &pfn), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	ck_assert_int_eq(proc("cuMemCreate", 9000, &pfn),
	                 CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	ck_assert_ptr_null(pfn);
	ck_cu(cu.GetProcAddress_v2("cuMemAlloc", &pfn, 99999, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static void use_driver_afresh(int sock)
{
	int n = 0;

	must_ok(cu.Init(0));
	must_ok(cu.DeviceGetCount(&n));
	must(n == 1);
	send_byte(sock);
}

static void find_driver_unusable(int sock)
{
	CUmemGenericAllocationHandle handle;
	int n;

	must(cu.Init(0) == CUDA_ERROR_NOT_INITIALIZED);
	must(cu.DeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED);
	must(chunk_try(0, GRANULE, &handle) == CUDA_ERROR_NOT_INITIALIZED);
	must(cu.CtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED);
	must_ok(cu.DriverGetVersion(&n));
	send_byte(sock);
}

START_TEST(fork_is_fine_before_init_and_fatal_after)
{
	driver_setup("1x64MiB");
	struct child before = child_start(use_driver_afresh);
	recv_byte(before.sock);
	ck_assert_int_eq(child_join(&before), 0);
	driver_start();
	ck_ok(cu.MemsetD8_v2(chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), 1, GRANULE));
	struct child after = child_start(find_driver_unusable);
	recv_byte(after.sock);
	ck_assert_int_eq(child_join(&after), 0);
	ck_ok(cu.CtxSynchronize());
}
END_TEST

/* --- contexts --- */

START_TEST(contexts_are_counted)
{
	driver_setup("2x64MiB");
	CUcontext ctx, other, got;
	CUdevice dev;
	size_t a, b;
	unsigned flags;
	int active;

	ck_ok(cu.Init(0));
	ck_cu(cu.MemGetInfo_v2(&a, &b), CUDA_ERROR_INVALID_CONTEXT);
	ck_cu(cu.CtxGetDevice(&dev), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.DevicePrimaryCtxSetFlags_v2(1, CU_CTX_SCHED_BLOCKING_SYNC));
	ck_ok(cu.DevicePrimaryCtxGetState(1, &flags, &active));
	ck_assert_int_eq(active, 0);
	ck_assert_uint_eq(flags, CU_CTX_SCHED_BLOCKING_SYNC);
	ck_ok(cu.DevicePrimaryCtxRetain(&ctx, 1));
	ck_ok(cu.DevicePrimaryCtxRetain(&other, 1));
	ck_assert_ptr_eq(ctx, other);
	ck_ok(cu.CtxPushCurrent_v2(ctx));
	ck_ok(cu.CtxGetDevice(&dev));
	ck_assert_int_eq(dev, 1);
	ck_ok(cu.MemGetInfo_v2(&a, &b));
	ck_ok(cu.CtxPopCurrent_v2(&got));
	ck_assert_ptr_eq(got, ctx);
	ck_cu(cu.CtxPopCurrent_v2(&got), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.CtxSetCurrent(ctx));
	ck_ok(cu.DevicePrimaryCtxRelease_v2(1));
	ck_ok(cu.MemGetInfo_v2(&a, &b));
	ck_ok(cu.DevicePrimaryCtxRelease_v2(1));
	ck_cu(cu.MemGetInfo_v2(&a, &b), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.DevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
	ck_ok(cu.DevicePrimaryCtxRetain(&other, 1));
	ck_ok(cu.MemGetInfo_v2(&a, &b));
	ck_ok(cu.CtxSetCurrent(NULL));
	ck_ok(cu.CtxGetCurrent(&got));
	ck_assert_ptr_null(got);
}
END_TEST

START_TEST(context_end_frees_what_it_made)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_CONTEXT", "6MiB", 1);
	driver_start();
	CUdeviceptr small, big;
	CUstream stream;
	CUcontext ctx;
	void *host;

	ck_assert_uint_eq(used_bytes(), 6 * MIB);
	ck_ok(cu.MemAlloc_v2(&small, 100));
	ck_ok(cu.MemAlloc_v2(&big, 5 * MIB));
	ck_ok(cu.MemHostAlloc(&host, 100, 0));
	ck_ok(cu.StreamCreate(&stream, 0));
	ck_ok(cu.MemsetD8Async(big, 1, 5 * MIB, stream));
	ck_assert_uint_eq(used_bytes(), 14 * MIB);
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	ck_ok(cu.DevicePrimaryCtxRetain(&ctx, 0));
	ck_assert_uint_eq(used_bytes(), 6 * MIB);
	ck_cu(cu.MemFree_v2(big), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

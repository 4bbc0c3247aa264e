/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: devices, chunks, addresses, and memory that several processes hold. */
#include "tests/cudasim/test_driver.h"

/* --- devices and the life of the library --- */

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

/* --- chunks --- */

START_TEST(chunk_sizes_and_properties_are_checked)
{
	driver_begin("1x64MiB");
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	CUmemGenericAllocationHandle handle;
	size_t granularity;

	ck_cu(cu.MemCreate(&handle, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemCreate(&handle, 1ULL << 45, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	prop.location.id = 5;
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_INVALID, 0);
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_HOST, 0);
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	ck_ok(cu.MemGetAllocationGranularity(&granularity, &prop,
	                                     CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	ck_assert_uint_eq(granularity, GRANULE);
	prop.allocFlags.gpuDirectRDMACapable = 1;
	ck_ok(cu.MemCreate(&handle, GRANULE, &prop, 0));
	memset(&prop, 0xee, sizeof(prop));
	ck_ok(cu.MemGetAllocationPropertiesFromHandle(&prop, handle));
	ck_assert_int_eq(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
	ck_assert_int_eq(prop.allocFlags.gpuDirectRDMACapable, 1);
	ck_ok(cu.MemRelease(handle));
	ck_cu(cu.MemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemRelease(0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(devices_are_full_at_their_size)
{
	driver_begin("1x16MiB");
	CUmemGenericAllocationHandle handles[8], one_more;
	CUdeviceptr ptr;

	for (int i = 0; i < 8; i++) {
		handles[i] = chunk_new(GRANULE);
	}
	ck_assert_uint_eq(used_bytes(), 16 * MIB);
	ck_cu(chunk_try(0, GRANULE, &one_more), CUDA_ERROR_OUT_OF_MEMORY);
	ck_cu(cu.MemAlloc_v2(&ptr, 1), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(cu.MemRelease(handles[3]));
	ck_ok(chunk_try(0, GRANULE, &one_more));
	ck_cu(chunk_try(0, GRANULE, &handles[3]), CUDA_ERROR_OUT_OF_MEMORY);
}
END_TEST

START_TEST(fresh_chunks_read_zero)
{
	driver_begin("1x2MiB");
	uint8_t *bytes = malloc(GRANULE);
	uint8_t *zeros = calloc(1, GRANULE);

	for (int i = 0; i < 3; i++) {
		CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
		CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
		ck_ok(cu.MemcpyDtoH_v2(bytes, addr, GRANULE));
		ck_assert_mem_eq(bytes, zeros, GRANULE);
		ck_ok(cu.MemsetD8_v2(addr, 0xab, GRANULE));
		ck_ok(cu.CtxSynchronize());
		ck_ok(cu.MemUnmap(addr, GRANULE));
		ck_ok(cu.MemAddressFree(addr, GRANULE));
		ck_ok(cu.MemRelease(handle));
	}
	free(bytes);
	free(zeros);
}
END_TEST

START_TEST(export_and_import_follow_the_rules)
{
	driver_begin("1x64MiB");
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	CUmemGenericAllocationHandle private_one, shared, imported, again;
	CUmemFabricHandle fabric;
	int fd, other_fd;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	ck_ok(cu.MemCreate(&private_one, GRANULE, &prop, 0));
	ck_cu(cu.MemExportToShareableHandle(&fd, private_one,
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_INVALID_VALUE);
	shared = chunk_new(GRANULE);
	ck_cu(cu.MemExportToShareableHandle(&fabric, shared, CU_MEM_HANDLE_TYPE_FABRIC, 0),
	      CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemExportToShareableHandle(&fd, shared, CU_MEM_HANDLE_TYPE_NONE, 0),
	      CUDA_ERROR_INVALID_VALUE);
	fd = chunk_export(shared);
	other_fd = chunk_export(shared);
	ck_assert_int_ne(fd, other_fd);
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	ck_ok(chunk_import(fd, &imported));
	ck_ok(chunk_import(fd, &again));
	ck_assert_uint_ne(imported, shared);
	ck_assert_uint_ne(imported, again);
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	ck_cu(cu.MemExportToShareableHandle(&other_fd, imported,
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemGetAllocationPropertiesFromHandle(&prop, imported));
	ck_assert_int_eq(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
	ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
}
END_TEST

START_TEST(what_is_no_chunk_cannot_be_imported)
{
	driver_begin("1x64MiB");
	CUmemGenericAllocationHandle handle = 0;
	int memfd = memfd_create("cudasim", MFD_CLOEXEC);
	int file = open("/dev/null", O_RDWR | O_CLOEXEC);

	ck_assert_int_eq(ftruncate(memfd, GRANULE), 0);
	ck_cu(chunk_import(memfd, &handle), CUDA_ERROR_UNKNOWN);
	ck_cu(chunk_import(file, &handle), CUDA_ERROR_UNKNOWN);
	close(file);
	ck_cu(chunk_import(file, &handle), CUDA_ERROR_UNKNOWN);
	ck_cu(chunk_import(-1, &handle), CUDA_ERROR_UNKNOWN);
	ck_cu(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)memfd,
	                                      CU_MEM_HANDLE_TYPE_NONE),
	      CUDA_ERROR_INVALID_VALUE);
	close(memfd);
}
END_TEST

START_TEST(handles_are_counted_and_mappings_keep_memory)
{
	driver_begin("1x64MiB");
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE), again;
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
	uint32_t value = 0;

	ck_ok(cu.MemsetD32_v2(addr, 77, 4));
	ck_ok(cu.MemRetainAllocationHandle(&again, (void *)(addr + 100)));
	ck_assert_uint_eq(again, handle);
	ck_ok(cu.MemRelease(again));
	ck_ok(cu.MemRelease(handle));
	ck_cu(cu.MemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.MemcpyDtoH_v2(&value, addr, 4));
	ck_assert_uint_eq(value, 77);
	/* The bare address gives a handle that can be exported. */
	ck_ok(cu.MemRetainAllocationHandle(&again, (void *)addr));
	int fd = chunk_export(again);
	ck_ok(cu.MemRelease(again));
	ck_ok(cu.MemUnmap(addr, GRANULE));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	close(fd);
	ck_assert_uint_eq(used_bytes(), 0);
	ck_cu(cu.MemRetainAllocationHandle(&again, (void *)addr), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemRetainAllocationHandle(&again, &again), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(running_out_of_fds_is_an_error)
{
	driver_begin("1x512MiB");
	struct rlimit limit = {.rlim_cur = 40, .rlim_max = 40};
	CUmemGenericAllocationHandle handles[64];
	CUresult err = CUDA_SUCCESS;
	int n = 0;
	int fd;

	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (err == CUDA_SUCCESS && n < 64) {
		err = chunk_try(0, GRANULE, &handles[n]);
		n += err == CUDA_SUCCESS;
	}
	ck_cu(err, CUDA_ERROR_OPERATING_SYSTEM);
	ck_assert_int_ge(n, 8);
	ck_cu(cu.MemExportToShareableHandle(&fd, handles[0],
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_OPERATING_SYSTEM);
	ck_ok(cu.MemRelease(handles[--n]));
	ck_ok(cu.MemRelease(handles[--n]));
	fd = chunk_export(handles[0]);
	ck_ok(chunk_import(fd, &handles[n]));
	/* cuMemAlloc keeps none. */
	close(fd);
	for (int i = 0; i < 50; i++) {
		CUdeviceptr ptr;
		ck_ok(cu.MemAlloc_v2(&ptr, GRANULE));
	}
}
END_TEST

/* --- addresses --- */

START_TEST(reservations_honour_size_alignment_and_hint)
{
	driver_begin("1x64MiB");
	CUdeviceptr addr, other;

	ck_cu(cu.MemAddressReserve(&addr, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressReserve(&addr, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressReserve(&addr, GRANULE, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressReserve(&addr, GRANULE, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemAddressReserve(&addr, GRANULE, 1, 0, 0));
	ck_assert_uint_eq(addr % GRANULE, 0);
	ck_ok(cu.MemAddressFree(addr, GRANULE));
	ck_ok(cu.MemAddressReserve(&addr, GRANULE, 1ULL << 30, 0, 0));
	ck_assert_uint_eq(addr % (1ULL << 30), 0);
	/* A taken hint means another place, a free one this place. */
	ck_ok(cu.MemAddressReserve(&other, GRANULE, 0, addr, 0));
	ck_assert_uint_ne(other, addr);
	ck_ok(cu.MemAddressFree(other, GRANULE));
	ck_cu(cu.MemAddressReserve(&other, GRANULE, 0, addr + 5, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemAddressFree(addr, GRANULE));
	ck_ok(cu.MemAddressReserve(&other, GRANULE, 0, addr, 0));
	ck_assert_uint_eq(other, addr);
	ck_cu(cu.MemAddressFree(addr, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressFree(addr + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressFree(0, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemAddressFree(addr, GRANULE));
	ck_cu(cu.MemAddressFree(addr, GRANULE), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(only_whole_handles_are_mapped)
{
	driver_begin("1x64MiB");
	CUdeviceptr addr = reserve(8 * GRANULE);
	CUmemGenericAllocationHandle handle = chunk_new(2 * GRANULE);

	ck_cu(cu.MemMap(addr, GRANULE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	ck_cu(cu.MemMap(addr, GRANULE, GRANULE, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	ck_cu(cu.MemMap(addr, 3 * GRANULE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	ck_cu(cu.MemMap(addr, 2 * GRANULE, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemMap(addr + 4096, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemMap(16 * GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	/* Driver 580 maps past the end of a reservation; whoever relies on that is in for trouble. */
	ck_cu(cu.MemMap(addr + 7 * GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemMap(addr, 2 * GRANULE, 0, handle, 0));
	ck_cu(cu.MemMap(addr, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemMap(addr + GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemMap(addr + 2 * GRANULE, 2 * GRANULE, 0, handle, 0));
	ck_cu(cu.MemAddressFree(addr, 8 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(addr, GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(addr + GRANULE, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(addr, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(addr, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(addr, 9 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemUnmap(addr + 6 * GRANULE, GRANULE));
	ck_ok(cu.MemUnmap(addr, 6 * GRANULE));
	ck_ok(cu.MemAddressFree(addr, 8 * GRANULE));
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
}
END_TEST

static unsigned long long access_at(CUdeviceptr addr)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	unsigned long long flags = 99;

	ck_ok(cu.MemGetAccess(&flags, &location, addr));
	return flags;
}

START_TEST(access_is_set_on_whole_mappings)
{
	driver_begin("1x64MiB");
	CUdeviceptr addr = reserve(8 * GRANULE);
	CUmemGenericAllocationHandle handle = chunk_new(2 * GRANULE);
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	CUmemAccessDesc descs[2] = {{location, READ_WRITE}, {location, READ_ONLY}};
	unsigned long long flags;

	ck_ok(cu.MemMap(addr, 2 * GRANULE, 0, handle, 0));
	ck_ok(cu.MemMap(addr + 2 * GRANULE, 2 * GRANULE, 0, handle, 0));
	ck_assert_uint_eq(access_at(addr), 0);
	ck_cu(set_access(addr, GRANULE, READ_WRITE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(set_access(addr + GRANULE, 2 * GRANULE, READ_WRITE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(set_access(addr, 6 * GRANULE, READ_WRITE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(set_access(addr + 6 * GRANULE, GRANULE, READ_WRITE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(set_access(addr, 4 * GRANULE, (CUmemAccess_flags)2), CUDA_ERROR_INVALID_VALUE);
	ck_assert_uint_eq(access_at(addr), 0);
	ck_ok(set_access(addr, 4 * GRANULE, READ_WRITE));
	ck_assert_uint_eq(access_at(addr + 3 * GRANULE + 5), 3);
	ck_ok(set_access(addr, 2 * GRANULE, READ_ONLY));
	ck_assert_uint_eq(access_at(addr), 1);
	ck_assert_uint_eq(access_at(addr + 2 * GRANULE), 3);
	ck_ok(set_access(addr, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	ck_assert_uint_eq(access_at(addr), 0);
	ck_ok(cu.MemSetAccess(addr, 2 * GRANULE, descs, 2));
	ck_assert_uint_eq(access_at(addr), 1);
	descs[0].location.id = 7;
	ck_cu(cu.MemSetAccess(addr, 2 * GRANULE, descs, 1), CUDA_ERROR_INVALID_VALUE);
	descs[0].location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
	ck_cu(cu.MemSetAccess(addr, 2 * GRANULE, descs, 1), CUDA_ERROR_NOT_SUPPORTED);
	ck_cu(cu.MemSetAccess(addr, 2 * GRANULE, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemUnmap(addr, 4 * GRANULE));
	ck_cu(cu.MemGetAccess(&flags, &location, addr), CUDA_ERROR_INVALID_VALUE);
	/* A new mapping at the old address begins without access. */
	ck_ok(cu.MemMap(addr, 2 * GRANULE, 0, handle, 0));
	ck_assert_uint_eq(access_at(addr), 0);
}
END_TEST

START_TEST(mappings_of_one_handle_share_its_bytes)
{
	driver_begin("1x64MiB");
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUdeviceptr a = chunk_map(handle, GRANULE, READ_WRITE);
	CUdeviceptr b = chunk_map(handle, GRANULE, READ_ONLY);
	uint32_t value = 0;

	ck_ok(cu.MemsetD32_v2(a + 4096, 0x12345678, 1));
	ck_ok(cu.MemcpyDtoH_v2(&value, b + 4096, 4));
	ck_assert_uint_eq(value, 0x12345678);
}
END_TEST

static void touch_device_address(int sock)
{
	must_ok(cu.Init(0));
	CUdeviceptr addr = reserve(GRANULE);
	must_ok(cu.MemMap(addr, GRANULE, 0, chunk_new(GRANULE), 0));
	must_ok(set_access(addr, GRANULE, READ_WRITE));
	signal(SIGSEGV, SIG_DFL); /* no report of a sanitizer */
	send_byte(sock);
	*(volatile int *)addr = 1;
}

START_TEST(device_addresses_are_not_for_the_cpu)
{
	driver_setup("1x64MiB");
	struct child child = child_start(touch_device_address);
	recv_byte(child.sock);
	int status = child_join(&child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}
END_TEST

/* Asks the kernel, which would not crash. */
static bool cpu_can_read(CUdeviceptr addr)
{
	int fds[2];

	must(pipe(fds) == 0);
	bool can = write(fds[1], (void *)addr, 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return can;
}

START_TEST(host_chunks_cost_no_device_memory)
{
	driver_begin("1x4MiB");
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
	CUmemGenericAllocationHandle handle, imported;
	CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0},
		.flags = READ_WRITE,
	};
	CUmemorytype type;
	uint32_t value = 0;

	ck_ok(cu.MemCreate(&handle, 8 * GRANULE, &prop, 0));
	ck_assert_uint_eq(used_bytes(), 0);
	int fd = chunk_export(handle);
	ck_ok(chunk_import(fd, &imported));
	close(fd);
	CUdeviceptr addr = chunk_map(imported, 8 * GRANULE, READ_WRITE);
	ck_ok(cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr));
	ck_assert_int_eq(type, CU_MEMORYTYPE_HOST);
	ck_ok(cu.MemsetD32_v2(addr, 42, 1));
	ck_ok(cu.CtxSynchronize());
	ck_assert(!cpu_can_read(addr));
	/* With access for the host, the CPU finds it at the same address. */
	ck_ok(cu.MemSetAccess(addr, 8 * GRANULE, &desc, 1));
	ck_assert_int_eq(*(volatile int *)addr, 42);
	*(volatile int *)addr = 43;
	ck_ok(cu.MemcpyDtoH_v2(&value, addr, 4));
	ck_assert_uint_eq(value, 43);
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	ck_ok(cu.MemSetAccess(addr, 8 * GRANULE, &desc, 1));
	ck_assert(!cpu_can_read(addr));
	desc.flags = READ_WRITE;
	ck_ok(cu.MemSetAccess(addr, 8 * GRANULE, &desc, 1));
	ck_assert(cpu_can_read(addr));
	ck_ok(cu.MemUnmap(addr, 8 * GRANULE));
	ck_assert(!cpu_can_read(addr));
	prop.location.id = 1;
	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	prop = chunk_prop(CU_MEM_LOCATION_TYPE_HOST, 0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	ck_ok(cu.MemCreate(&handle, GRANULE, &prop, 0));
	ck_ok(cu.MemGetAllocationPropertiesFromHandle(&prop, handle));
	ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
}
END_TEST

/* --- several processes --- */

/* Makes a chunk, writes to it, sends its fd, and dies without a goodbye. */
static void make_chunk_and_die(int sock)
{
	driver_start();
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
	must_ok(cu.MemsetD8_v2(addr, 0x5a, GRANULE));
	must_ok(cu.CtxSynchronize());
	send_fd(sock, chunk_export(handle));
	kill(getpid(), SIGKILL);
}

START_TEST(memory_outlives_its_maker)
{
	driver_setup("1x64MiB");
	struct child child = child_start(make_chunk_and_die);
	int fd = recv_fd(child.sock);
	child_join(&child);
	driver_start();
	CUmemGenericAllocationHandle handle;
	uint8_t bytes[64], expected[64];

	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(chunk_import(fd, &handle));
	close(fd);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_ONLY);
	memset(expected, 0x5a, sizeof(expected));
	ck_ok(cu.MemcpyDtoH_v2(bytes, addr + GRANULE - 64, 64));
	ck_assert_mem_eq(bytes, expected, 64);
	ck_ok(cu.MemRelease(handle));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.MemUnmap(addr, GRANULE));
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

/* Holds a handle, a mapping, and cuMemAlloc memory, until told or killed. */
static void hold_memory(int sock)
{
	CUdeviceptr ptr;
	driver_start();
	chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE);
	chunk_new(2 * GRANULE);
	must_ok(cu.MemAlloc_v2(&ptr, 3 * GRANULE));
	must_ok(cu.MemAlloc_v2(&ptr, 10));
	send_byte(sock);
	recv_byte(sock);
}

START_TEST(killed_processes_leave_nothing)
{
	driver_setup("1x64MiB");
	struct child a = child_start(hold_memory);
	struct child b = child_start(hold_memory);
	recv_byte(a.sock);
	recv_byte(b.sock);
	driver_start();
	ck_assert_uint_eq(used_bytes(), 14 * GRANULE);
	child_kill(&a);
	ck_assert_uint_eq(used_bytes(), 7 * GRANULE);
	send_byte(b.sock);
	ck_assert_int_eq(child_join(&b), 0);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(the_memory_of_others_can_be_missing)
{
	driver_setup("1x16MiB");
	struct child child = child_start(hold_memory);
	recv_byte(child.sock);
	driver_start();
	CUmemGenericAllocationHandle handle;

	ck_cu(chunk_try(0, 2 * GRANULE, &handle), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(chunk_try(0, GRANULE, &handle));
	child_kill(&child);
	/* Found by the allocation itself, without a question about free memory. */
	ck_ok(chunk_try(0, 7 * GRANULE, &handle));
	ck_cu(chunk_try(0, GRANULE, &handle), CUDA_ERROR_OUT_OF_MEMORY);
}
END_TEST

START_TEST(fds_in_flight_keep_memory)
{
	driver_begin("1x64MiB");
	int socks[2];
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	int fd = chunk_export(handle);

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks), 0);
	send_fd(socks[0], fd);
	close(fd);
	ck_ok(cu.MemRelease(handle));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	fd = recv_fd(socks[1]);
	ck_ok(chunk_import(fd, &handle));
	close(fd);
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.MemRelease(handle));
	ck_assert_uint_eq(used_bytes(), 0);
	handle = chunk_new(GRANULE);
	fd = chunk_export(handle);
	send_fd(socks[0], fd);
	close(fd);
	ck_ok(cu.MemRelease(handle));
	close(socks[0]);
	close(socks[1]);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

static void map_what_comes(int sock)
{
	CUmemGenericAllocationHandle handle;
	uint8_t byte;

	driver_start();
	int fd = recv_fd(sock);
	must_ok(chunk_import(fd, &handle));
	close(fd);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
	must_ok(cu.MemRelease(handle));
	must_ok(cu.MemcpyDtoH_v2(&byte, addr, 1));
	must(byte == 17);
	must_ok(cu.MemsetD8_v2(addr, 18, 1));
	must_ok(cu.CtxSynchronize());
	send_byte(sock);
	recv_byte(sock);
}

START_TEST(processes_see_each_others_writes)
{
	driver_setup("1x64MiB");
	struct child child = child_start(map_what_comes);
	driver_start();
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
	uint8_t byte = 0;

	ck_ok(cu.MemsetD8_v2(addr, 17, 1));
	ck_ok(cu.CtxSynchronize());
	int fd = chunk_export(handle);
	send_fd(child.sock, fd);
	close(fd);
	recv_byte(child.sock);
	ck_ok(cu.MemcpyDtoH_v2(&byte, addr, 1));
	ck_assert_uint_eq(byte, 18);
	/* A mapping elsewhere is all that is left of it. */
	ck_ok(cu.MemUnmap(addr, GRANULE));
	ck_ok(cu.MemRelease(handle));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	child_kill(&child);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

/* Counts what is used until killed: holds the lock of the books most of the time. */
static void count_for_ever(int sock)
{
	driver_start();
	chunk_new(GRANULE);
	send_byte(sock);
	for (;;) {
		used_bytes();
	}
}

/* Makes and drops chunks until killed. */
static void churn(int sock)
{
	driver_start();
	send_byte(sock);
	for (;;) {
		CUmemGenericAllocationHandle handle;
		if (chunk_try(0, GRANULE, &handle) == CUDA_SUCCESS) {
			close(chunk_export(handle));
			cu.MemRelease(handle);
		}
	}
}

START_TEST(the_books_survive_kills_at_any_moment)
{
	driver_setup("1x32MiB");
	for (int i = 0; i < 20; i++) {
		struct child a = child_start(churn);
		struct child b = child_start(count_for_ever);
		recv_byte(a.sock);
		recv_byte(b.sock);
		usleep((useconds_t)(1000 + i * 700));
		child_kill(&b);
		child_kill(&a);
	}
	driver_start();
	CUmemGenericAllocationHandle handle;

	ck_assert_uint_eq(used_bytes(), 0);
	ck_ok(chunk_try(0, 16 * GRANULE, &handle));
	ck_assert_uint_eq(used_bytes(), 16 * GRANULE);
}
END_TEST

static uint64_t used_on(int device)
{
	CUcontext ctx;

	must_ok(cu.DevicePrimaryCtxRetain(&ctx, device));
	must_ok(cu.CtxPushCurrent_v2(ctx));
	uint64_t used = used_bytes();
	must_ok(cu.CtxPopCurrent_v2(&ctx));
	return used;
}

START_TEST(devices_have_books_of_their_own)
{
	driver_setup("2x16MiB");
	/* Its only device is our second one. */
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	struct child child = child_start(hold_memory);
	unsetenv("CUDA_VISIBLE_DEVICES");
	recv_byte(child.sock);
	driver_start();
	CUmemGenericAllocationHandle handle;

	ck_assert_uint_eq(used_on(0), 0);
	ck_assert_uint_eq(used_on(1), 7 * GRANULE);
	ck_cu(chunk_try(1, 2 * GRANULE, &handle), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(chunk_try(0, 8 * GRANULE, &handle));
	child_kill(&child);
	ck_assert_uint_eq(used_on(0), 8 * GRANULE);
	ck_assert_uint_eq(used_on(1), 0);
}
END_TEST

START_TEST(many_chunks_fit)
{
	enum { N = 4000 };
	driver_begin("1x64GiB");
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	CUdeviceptr addr = reserve(N * GRANULE);
	CUmemGenericAllocationHandle *handles = calloc(N, sizeof(*handles));
	int *fds = calloc(N, sizeof(*fds));

	for (size_t i = 0; i < N; i++) {
		handles[i] = chunk_new(GRANULE);
		fds[i] = chunk_export(handles[i]);
		must_ok(cu.MemMap(addr + i * GRANULE, GRANULE, 0, handles[i], 0));
	}
	ck_ok(set_access(addr, N * GRANULE, READ_WRITE));
	ck_assert_uint_eq(used_bytes(), N * GRANULE);
	ck_ok(cu.MemUnmap(addr, N * GRANULE));
	for (size_t i = 0; i < N; i++) {
		must_ok(cu.MemRelease(handles[i]));
		close(fds[i]);
	}
	ck_assert_uint_eq(used_bytes(), 0);
	free(handles);
	free(fds);
}
END_TEST

/* --- fabric handles --- */

static CUresult fabric_chunk(CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0);

	prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_FABRIC;
	return cu.MemCreate(handle, GRANULE, &prop, 0);
}

START_TEST(fabric_is_denied_without_a_channel)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FABRIC", "denied", 1);
	driver_start();
	CUmemGenericAllocationHandle handle;

	ck_assert_int_eq(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0), 1);
	ck_cu(fabric_chunk(&handle), CUDA_ERROR_NOT_PERMITTED);
	ck_ok(chunk_try(0, GRANULE, &handle));
}
END_TEST

static void import_fabric(int sock)
{
	CUmemFabricHandle fabric;
	CUmemGenericAllocationHandle handle;
	CUresult err;

	driver_start();
	send_byte(sock);
	must(recv(sock, &fabric, sizeof(fabric), 0) == sizeof(fabric));
	err = cu.MemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC);
	must_ok(err);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
	must_ok(cu.MemsetD8_v2(addr, 9, 1));
	must_ok(cu.CtxSynchronize());
	send_byte(sock);
	recv_byte(sock);
	err = cu.MemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC);
	must(err != CUDA_SUCCESS);
	send_byte(sock);
	recv_byte(sock);
}

START_TEST(fabric_handles_cross_processes)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FABRIC", "1", 1);
	struct child child = child_start(import_fabric);
	driver_start();
	CUmemFabricHandle fabric;
	CUmemGenericAllocationHandle handle;
	uint8_t byte = 0;

	recv_byte(child.sock);
	ck_ok(fabric_chunk(&handle));
	ck_ok(cu.MemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	ck_assert_int_eq(send(child.sock, &fabric, sizeof(fabric), 0), sizeof(fabric));
	recv_byte(child.sock);
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_ONLY);
	ck_ok(cu.MemcpyDtoH_v2(&byte, addr, 1));
	ck_assert_uint_eq(byte, 9);
	ck_ok(cu.MemUnmap(addr, GRANULE));
	ck_ok(cu.MemRelease(handle));
	/* The importer's mapping holds the memory, its handle number leads nowhere. */
	send_byte(child.sock);
	recv_byte(child.sock);
	ck_assert_uint_eq(used_bytes(), GRANULE);
	send_byte(child.sock);
	ck_assert_int_eq(child_join(&child), 0);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cudasim");

	suite_add(suite, nothing_works_before_init);
	suite_add(suite, devices_are_what_the_environment_says);
	suite_add(suite, devices_that_cannot_be_understood_fail_init);
	suite_add(suite, visible_devices_are_respected);
	suite_add(suite, proc_addresses_follow_names_and_versions);
	suite_add(suite, fork_is_fine_before_init_and_fatal_after);
	suite_add(suite, contexts_are_counted);
	suite_add(suite, context_end_frees_what_it_made);
	suite_add(suite, chunk_sizes_and_properties_are_checked);
	suite_add(suite, devices_are_full_at_their_size);
	suite_add(suite, fresh_chunks_read_zero);
	suite_add(suite, export_and_import_follow_the_rules);
	suite_add(suite, what_is_no_chunk_cannot_be_imported);
	suite_add(suite, handles_are_counted_and_mappings_keep_memory);
	suite_add(suite, running_out_of_fds_is_an_error);
	suite_add(suite, reservations_honour_size_alignment_and_hint);
	suite_add(suite, only_whole_handles_are_mapped);
	suite_add(suite, access_is_set_on_whole_mappings);
	suite_add(suite, mappings_of_one_handle_share_its_bytes);
	suite_add(suite, device_addresses_are_not_for_the_cpu);
	suite_add(suite, host_chunks_cost_no_device_memory);
	suite_add(suite, memory_outlives_its_maker);
	suite_add(suite, killed_processes_leave_nothing);
	suite_add(suite, the_memory_of_others_can_be_missing);
	suite_add(suite, fds_in_flight_keep_memory);
	suite_add(suite, processes_see_each_others_writes);
	suite_add(suite, the_books_survive_kills_at_any_moment);
	suite_add(suite, devices_have_books_of_their_own);
	suite_add(suite, many_chunks_fit);
	suite_add(suite, fabric_is_denied_without_a_channel);
	suite_add(suite, fabric_handles_cross_processes);
	return suite_run(suite);
}

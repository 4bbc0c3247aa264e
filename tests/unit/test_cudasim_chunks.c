/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: chunks, their addresses and who may reach them. */
#include "tests/cudasim/test_driver.h"

#include <sys/stat.h>

#include "proto/cleanup.h"

BEGIN_EACH(driver_begin_64m)

START_TEST(chunk_sizes_and_properties_are_checked)
{
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

START_TEST_WITH(devices_are_full_at_their_size, .begin = driver_not_yet)
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

START_TEST_WITH(fresh_chunks_read_zero, .begin = driver_not_yet)
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
	/* The process has one import of a chunk, which counts its handles. */
	ck_assert_uint_eq(imported, again);
	ck_ok(cu.MemRelease(again));
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

static const struct {
	const char *folder;
	bool is_there;
} folders[] = {{"chunks", true}, {"absent", false}, {"", false}};

START_TEST_WITH(chunks_are_where_the_environment_says, .begin = driver_not_yet,
                .n = n_elements(folders))
{
	CUmemGenericAllocationHandle imported;
	char link[64], target[512] = "";
	const char *folder = folders[_i].folder;

	ck_assert_int_eq(chdir(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp"), 0);
	ck_assert_int_eq(mkdir("chunks", 0700), 0);
	setenv("CUDASIM_CHUNKS", folder, 1);
	driver_begin("1x64MiB");
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	/* No name is left. */
	ck_assert_int_eq(rmdir("chunks"), 0);
	int fd = chunk_export(handle);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ck_assert_int_gt(readlink(link, target, sizeof(target) - 1), 0);
	ck_assert(!!strstr(target, "/chunks/") == folders[_i].is_there);
	ck_assert(!strncmp(target, "/memfd:", 7) != folders[_i].is_there);
	ck_ok(chunk_import(fd, &imported));
	ck_ok(cu.MemRelease(handle));
	ck_ok(cu.MemRelease(imported));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	close(fd);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(what_is_no_chunk_cannot_be_imported)
{
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

START_TEST_WITH(running_out_of_fds_is_an_error, .begin = driver_not_yet)
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

START_TEST_WITH(device_addresses_are_not_for_the_cpu, .begin = driver_not_yet)
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

static CUresult host_try(int node, uint64_t bytes, CUmemGenericAllocationHandle *out)
{
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_HOST_NUMA, node);

	return cu.MemCreate(out, bytes, &prop, 0);
}

START_TEST_WITH(a_host_node_is_full_at_its_size, .begin = driver_not_yet)
{
	setenv("CUDASIM_HOST", "16MiB,any", 1);
	driver_begin("1x4MiB");
	CUmemGenericAllocationHandle handles[8], more;
	CUmemAllocationProp prop;
	int fds[8];

	for (int i = 0; i < 8; i++) {
		ck_ok(host_try(0, GRANULE, &handles[i]));
	}
	ck_cu(host_try(0, GRANULE, &more), CUDA_ERROR_OUT_OF_MEMORY);
	ck_cu(host_try(0, 1ULL << 45, &more), CUDA_ERROR_OUT_OF_MEMORY);
	ck_cu(host_try(2, GRANULE, &more), CUDA_ERROR_INVALID_VALUE);
	ck_ok(host_try(1, 16 * GRANULE, &more));
	ck_ok(cu.MemGetAllocationPropertiesFromHandle(&prop, more));
	ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
	ck_assert_int_eq(prop.location.id, 1);
	ck_assert_uint_eq(used_bytes(), 0);
	/* An fd alone keeps the memory. */
	for (int i = 0; i < 8; i++) {
		fds[i] = chunk_export(handles[i]);
		ck_ok(cu.MemRelease(handles[i]));
	}
	ck_cu(host_try(0, GRANULE, &more), CUDA_ERROR_OUT_OF_MEMORY);
	close(fds[3]);
	ck_ok(host_try(0, GRANULE, &more));
	ck_cu(host_try(0, GRANULE, &more), CUDA_ERROR_OUT_OF_MEMORY);
}
END_TEST

START_TEST_WITH(host_memory_of_the_current_node_is_not_made, .begin = driver_not_yet)
{
	driver_begin("1x4MiB");
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
	CUmemGenericAllocationHandle handle;

	ck_cu(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST_WITH(a_driver_without_host_chunks_says_so, .begin = driver_not_yet)
{
	setenv("CUDASIM_HOST", "none", 1);
	driver_begin("1x4MiB");
	CUmemGenericAllocationHandle handle;
	int value = 1;

	ck_cu(host_try(0, GRANULE, &handle), CUDA_ERROR_NOT_SUPPORTED);
	ck_ok(cu.DeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
	ck_assert_int_eq(value, 0);
}
END_TEST

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

START_TEST_WITH(host_chunks_take_their_time_if_asked, .begin = driver_not_yet)
{
	setenv("CUDASIM_HOST_COST", "1", 1);
	driver_begin("1x4MiB");
	CUmemGenericAllocationHandle handle;
	uint64_t since = now_ms();

	ck_ok(host_try(0, 256 * MIB, &handle));
	ck_assert_uint_ge(now_ms() - since, 290 / 4);
	ck_ok(cu.MemRelease(handle));
}
END_TEST

START_TEST_WITH(host_chunks_cost_no_device_memory, .begin = driver_not_yet)
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: memory that several processes hold, and how it is accounted. */
#include "tests/cudasim/test_driver.h"

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

/* Whether memory is there still is seen by its file, or, where that has no folder, by its lock. */
static void choose_chunks(int i)
{
	if (i == 1) {
		unsetenv("CUDASIM_CHUNKS");
	}
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

START_TEST_WITH(killed_processes_leave_nothing, .n = 2)
{
	choose_chunks(_i);
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

START_TEST_WITH(the_memory_of_others_can_be_missing, .n = 2)
{
	choose_chunks(_i);
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

START_TEST_WITH(fds_in_flight_keep_memory, .n = 2)
{
	choose_chunks(_i);
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

START_TEST_WITH(the_books_survive_kills_at_any_moment, .n = 2)
{
	choose_chunks(_i);
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

	int is_supported = 0;

	ck_ok(cu.DeviceGetAttribute(&is_supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
	                            0));
	ck_assert_int_eq(is_supported, 1);
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

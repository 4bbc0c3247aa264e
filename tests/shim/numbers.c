/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What handles of cuMemCreate() are good for, as allocators use them and as they must not. Prints what it gets: the same
 * with the shim and without, on a GPU and on the simulator. With "stale" also what a driver may crash for.
 */
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/shim/compared.h"
#include "tests/shim/device.h"

#define PAGE (2 * MIB)
#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

typedef CUmemGenericAllocationHandle handle_t;

static CUmemAllocationProp properties_of(int device, unsigned types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
}

static handle_t create(size_t n_bytes, unsigned types)
{
	CUmemAllocationProp properties = properties_of(0, types);
	handle_t handle;
	must_ok(cuMemCreate(&handle, n_bytes, &properties, 0));
	return handle;
}

static CUdeviceptr reserve(size_t n_bytes)
{
	CUdeviceptr ptr;
	must_ok(cuMemAddressReserve(&ptr, n_bytes, 0, 0, 0));
	return ptr;
}

static CUresult open_as(CUdeviceptr ptr, size_t n_bytes, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = flags,
	};
	return cuMemSetAccess(ptr, n_bytes, &access, 1);
}

static void map(CUdeviceptr ptr, size_t n_bytes, handle_t handle)
{
	must_ok(cuMemMap(ptr, n_bytes, 0, handle, 0));
	must_ok(open_as(ptr, n_bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static int export_fd(handle_t handle)
{
	int fd = -1;
	must_ok(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	return fd;
}

static handle_t import_fd(int fd)
{
	handle_t handle;
	must_ok(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD));
	return handle;
}

static handle_t retain(CUdeviceptr ptr)
{
	handle_t handle;
	must_ok(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr));
	return handle;
}

static void print_result(const char *what, CUresult result)
{
	print(what, (uint64_t)result);
}

static void print_access(const char *what, CUdeviceptr ptr)
{
	const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	unsigned long long flags = 99;
	print_result(what, cuMemGetAccess(&flags, &location, ptr));
	print(what, flags);
}

static void print_properties(const char *what, handle_t handle)
{
	CUmemAllocationProp properties;
	memset(&properties, 0, sizeof(properties));
	print_result(what, cuMemGetAllocationPropertiesFromHandle(&properties, handle));
	print(what, (uint64_t)properties.type << 32 | (uint64_t)properties.location.type << 16 |
	                    (uint64_t)properties.location.id << 8 |
	                    (uint64_t)properties.requestedHandleTypes);
}

/* ---- as allocators do it ---------------------------------------------------------------------- */

/* PyTorch's expandable segments: a large reservation, handles of 20 MiB that are kept, the last ones given back. */
static void grow_and_shrink(void)
{
	enum { N = 4 };
	const size_t each = 20 * MIB;
	handle_t handles[N];
	CUdeviceptr base = reserve(64 * each);
	for (size_t i = 0; i < N; i++) {
		handles[i] = create(each, i % 2 ? FD : 0);
		map(base + i * each, each, handles[i]);
		write_pattern(base + i * each, MIB, i);
	}
	print("grown", digest(base + each - MIB, 2 * MIB));
	for (size_t i = N / 2; i < N; i++) {
		must_ok(cuMemUnmap(base + i * each, each));
		must_ok(cuMemRelease(handles[i]));
	}
	for (size_t i = N / 2; i < N; i++) {
		handles[i] = create(each, 0);
		map(base + i * each, each, handles[i]);
		print("fresh", digest(base + i * each, MIB));
	}
	print("kept", digest(base, 3 * each));
	print_access("access", base + each);
	must_ok(cuMemUnmap(base, N * each));
	for (size_t i = 0; i < N; i++) {
		must_ok(cuMemRelease(handles[i]));
	}
	must_ok(cuMemAddressFree(base, 64 * each));
}

/* vLLM's and torch_memory_saver's: asleep, the addresses stay; awake, there is other memory. */
static void sleep_and_wake(void)
{
	const size_t n_bytes = 6 * PAGE;
	CUdeviceptr ptr = reserve(n_bytes);
	handle_t handle = create(n_bytes, 0);
	map(ptr, n_bytes, handle);
	for (uint64_t i = 0; i < 3; i++) {
		write_pattern(ptr, n_bytes, i);
		print("awake", digest(ptr, n_bytes));
		must_ok(cuMemUnmap(ptr, n_bytes));
		must_ok(cuMemRelease(handle));
		handle = create(n_bytes, 0);
		map(ptr, n_bytes, handle);
	}
	print("awake again", digest(ptr, n_bytes));
	must_ok(cuMemUnmap(ptr, n_bytes));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemAddressFree(ptr, n_bytes));
}

/* kvcached's: pages at several addresses, which come and go. */
static void alias_pages(void)
{
	enum { N = 40, N_LAYERS = 3 };
	handle_t pages[N];
	CUdeviceptr layers[N_LAYERS];
	for (size_t layer = 0; layer < N_LAYERS; layer++) {
		layers[layer] = reserve(N * PAGE);
	}
	for (size_t i = 0; i < N; i++) {
		pages[i] = create(PAGE, 0);
		for (size_t layer = 0; layer < N_LAYERS; layer++) {
			map(layers[layer] + (i * 37 % N) * PAGE, PAGE, pages[i]);
		}
		must_ok(cuMemsetD32(layers[i % N_LAYERS] + (i * 37 % N) * PAGE, (unsigned)i,
		                    PAGE / 4));
	}
	for (size_t layer = 0; layer < N_LAYERS; layer++) {
		print("layer", digest(layers[layer] + 3 * PAGE, 4 * PAGE));
	}
	must_ok(cuMemUnmap(layers[0], N * PAGE));
	for (size_t i = 0; i < N; i++) {
		must_ok(cuMemRelease(pages[i]));
	}
	print("layer", digest(layers[1] + 20 * PAGE, 4 * PAGE));
	for (size_t layer = 1; layer < N_LAYERS; layer++) {
		must_ok(cuMemUnmap(layers[layer], N * PAGE));
	}
	for (size_t layer = 0; layer < N_LAYERS; layer++) {
		must_ok(cuMemAddressFree(layers[layer], N * PAGE));
	}
}

/* ---- counts ----------------------------------------------------------------------------------- */

static void count_references(void)
{
	CUdeviceptr ptr = reserve(8 * PAGE);
	handle_t handle = create(4 * PAGE, FD);
	map(ptr, 4 * PAGE, handle);
	write_pattern(ptr, 4 * PAGE, 3);
	print("retained is it", retain(ptr + 3 * PAGE + 5) == handle);
	must_ok(cuMemRelease(handle));
	must_ok(cuMemMap(ptr + 4 * PAGE, 4 * PAGE, 0, handle, 0));
	print("not opened", (uint64_t)cuMemcpyHtoD(ptr + 4 * PAGE, &handle, 8) != 0);
	must_ok(open_as(ptr + 4 * PAGE, 4 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	print_access("opened to read", ptr + 4 * PAGE);
	print("read", digest(ptr + 4 * PAGE, 4 * PAGE));
	must_ok(cuMemUnmap(ptr + 4 * PAGE, 4 * PAGE));
	/* The last reference: the mapping keeps the memory, and can be asked. */
	must_ok(cuMemRelease(handle));
	print("released", digest(ptr, 4 * PAGE));
	handle = retain(ptr + PAGE);
	print_properties("retained", handle);
	must_ok(cuMemUnmap(ptr, 4 * PAGE));
	map(ptr + 2 * PAGE, 4 * PAGE, handle);
	print("moved", digest(ptr + 2 * PAGE, 4 * PAGE));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemUnmap(ptr, 8 * PAGE));
	must_ok(cuMemAddressFree(ptr, 8 * PAGE));
}

/* ---- between processes ------------------------------------------------------------------------ */

static void export_and_import(void)
{
	CUdeviceptr ptr = reserve(8 * PAGE);
	handle_t handle = create(2 * PAGE, FD);
	int one = export_fd(handle);
	int two = export_fd(handle);
	map(ptr, 2 * PAGE, handle);
	write_pattern(ptr, 2 * PAGE, 5);
	handle_t imported = import_fd(one);
	handle_t again = import_fd(one);
	handle_t third = import_fd(two);
	close(one);
	close(two);
	print("imported twice is one", imported == again);
	print("by another fd as well", imported == third);
	map(ptr + 2 * PAGE, 2 * PAGE, imported);
	print("imported", digest(ptr + 2 * PAGE, 2 * PAGE));
	must_ok(cuMemsetD32(ptr + 2 * PAGE, 7, PAGE / 4));
	print("aliased", digest(ptr, 2 * PAGE));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemRelease(imported));
	must_ok(cuMemRelease(again));
	map(ptr + 4 * PAGE, 2 * PAGE, third);
	must_ok(cuMemRelease(third));
	must_ok(cuMemUnmap(ptr, 4 * PAGE));
	print("the last", digest(ptr + 4 * PAGE, 2 * PAGE));
	must_ok(cuMemUnmap(ptr, 8 * PAGE));
	must_ok(cuMemAddressFree(ptr, 8 * PAGE));
}

/* A child of fork() has none of it. */
static void fork_with(handle_t handle, CUdeviceptr ptr)
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		bool is_right = cuMemRelease(handle) == CUDA_ERROR_NOT_INITIALIZED &&
		                cuMemMap(ptr, PAGE, 0, handle, 0) == CUDA_ERROR_NOT_INITIALIZED &&
		                cuMemUnmap(ptr, PAGE) == CUDA_ERROR_NOT_INITIALIZED;
		_exit(is_right ? 0 : 1);
	}
	must(waitpid(pid, &status, 0) == pid);
	print("forked", (uint64_t)status);
}

/* ---- mistakes --------------------------------------------------------------------------------- */

static void make_mistakes(void)
{
	CUmemAllocationProp properties = properties_of(0, 0);
	CUmemAllocationProp nowhere = properties_of(99, 0);
	handle_t handle = create(4 * PAGE, 0);
	handle_t other = create(PAGE, FD);
	handle_t none;
	int fd = -1;
	CUdeviceptr ptr = reserve(16 * PAGE);
	map(ptr, 4 * PAGE, handle);
	map(ptr + 4 * PAGE, PAGE, other);
	print_result("create odd", cuMemCreate(&none, 12345, &properties, 0));
	print_result("create none", cuMemCreate(&none, 0, &properties, 0));
	print_result("create nowhere", cuMemCreate(&none, PAGE, &nowhere, 0));
	print_result("create by nothing", cuMemCreate(&none, PAGE, NULL, 0));
	print_result("part", cuMemMap(ptr + 8 * PAGE, PAGE, 0, handle, 0));
	print_result("too much", cuMemMap(ptr + 8 * PAGE, 5 * PAGE, 0, handle, 0));
	print_result("from within", cuMemMap(ptr + 8 * PAGE, 3 * PAGE, PAGE, handle, 0));
	print_result("with flags", cuMemMap(ptr + 8 * PAGE, 4 * PAGE, 0, handle, 1));
	print_result("over another", cuMemMap(ptr + 2 * PAGE, 4 * PAGE, 0, handle, 0));
	print_result("unmap part", cuMemUnmap(ptr, PAGE));
	print_result("unmap the rest", cuMemUnmap(ptr + PAGE, 3 * PAGE));
	print_result("unmap across", cuMemUnmap(ptr + 2 * PAGE, 3 * PAGE));
	print_result("open part", open_as(ptr + PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	print_result("open across",
	             open_as(ptr + 2 * PAGE, 3 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	print_result("export what is not", cuMemExportToShareableHandle(&fd, handle, FD, 0));
	print_result("export with flags", cuMemExportToShareableHandle(&fd, other, FD, 1));
	print_result("retain a hole",
	             cuMemRetainAllocationHandle(&none, (void *)(uintptr_t)(ptr + 9 * PAGE)));
	print_result("import nothing",
	             cuMemImportFromShareableHandle(&none, (void *)(intptr_t)9999, FD));
	print_properties("plain", handle);
	print_properties("shared", other);
	write_pattern(ptr, 5 * PAGE, 9);
	print("unharmed", digest(ptr, 5 * PAGE));
	fork_with(handle, ptr + 8 * PAGE);
	must_ok(cuMemUnmap(ptr, 5 * PAGE));
	must_ok(cuMemRelease(handle));
	must_ok(cuMemRelease(other));
	must_ok(cuMemAddressFree(ptr, 16 * PAGE));
}

/* A handle that was released names nothing, or something else. Real drivers may crash. */
static void use_stale(void)
{
	CUmemAllocationProp properties;
	int fd = -1;
	CUdeviceptr ptr = reserve(2 * PAGE);
	handle_t handle = create(PAGE, FD);
	must_ok(cuMemRelease(handle));
	print_result("release", cuMemRelease(handle));
	print_result("map", cuMemMap(ptr, PAGE, 0, handle, 0));
	print_result("export", cuMemExportToShareableHandle(&fd, handle, FD, 0));
	print_result("properties", cuMemGetAllocationPropertiesFromHandle(&properties, handle));
	handle_t next = create(PAGE, FD);
	/* Driver 580 lets it pass, and then does not free the addresses. */
	print_result("map beyond", cuMemMap(ptr + 2 * PAGE, PAGE, 0, next, 0));
	print("another", next != handle);
	print_result("release", cuMemRelease(handle));
	print_result("release unknown", cuMemRelease(1ull << 40 | 12345));
	map(ptr, PAGE, next);
	must_ok(cuMemRelease(next));
	print_result("release mapped", cuMemRelease(next));
	print("mapped", digest(ptr, PAGE));
	must_ok(cuMemUnmap(ptr, 2 * PAGE));
	must_ok(cuMemAddressFree(ptr, 2 * PAGE));
}

/* ---- another device --------------------------------------------------------------------------- */

static void use_other_device(void)
{
	int n = 0;
	int can = 0;
	CUmemAllocationProp properties = properties_of(1, 0);
	handle_t handle;
	must_ok(cuDeviceGetCount(&n));
	if (n > 1) {
		must_ok(cuDeviceCanAccessPeer(&can, 0, 1));
	}
	if (!can) {
		return;
	}
	CUdeviceptr ptr = reserve(2 * PAGE);
	must_ok(cuMemCreate(&handle, 2 * PAGE, &properties, 0));
	map(ptr, 2 * PAGE, handle);
	write_pattern(ptr, 2 * PAGE, 11);
	print("other device", digest(ptr, 2 * PAGE));
	print_properties("other device", handle);
	must_ok(cuMemRelease(handle));
	must_ok(cuMemUnmap(ptr, 2 * PAGE));
	must_ok(cuMemAddressFree(ptr, 2 * PAGE));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	use_device(0);
	grow_and_shrink();
	sleep_and_wake();
	alias_pages();
	count_references();
	export_and_import();
	make_mistakes();
	use_other_device();
	if (argc > 1 && strcmp(argv[1], "stale") == 0) {
		use_stale();
	}
	must_ok(cuDevicePrimaryCtxRelease(0));
	note_counts();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long it takes to keep chunks beyond the process that made them. A stand-in for glaked makes chunks,
 * stores their fds with glake-keeper and kills itself. The next one takes them, compares their content,
 * and removes them.
 *
 *   keep      from the first put to the barrier behind the last
 *   restart   from the SIGKILL to the next one's main(), and until it has taken all fds
 *   import    each chunk, mapped for a moment and looked at
 *   release   from the first removal to the barrier behind the last, when the memory must be free
 *
 *   bench_kept [CHUNKS] [MiB]
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/notify.h"
#include "daemon/keep/fdstore.h"
#include "proto/cleanup.h"
#include "tests/bench/bench.h"

static struct cudrv drv;
static uv_loop_t loop;
static struct fdstore *store;
static uint64_t chunk_bytes;
static uint64_t begin_ns;

static const char *name_of(unsigned i)
{
	static char name[16];
	snprintf(name, sizeof(name), "b%x", i);
	return name;
}

static double ms_since(uint64_t ns)
{
	return (double)(bench_now_ns() - ns) / 1e6;
}

static uint64_t free_bytes(void)
{
	size_t n_free, n_total;
	bench_check_cuda(&drv, drv.cuMemGetInfo(&n_free, &n_total), "cuMemGetInfo");
	return n_free;
}

static void check(int r, const char *what)
{
	if (r < 0) {
		bench_fail("%s: %s", what, strerror(-r));
	}
}

/* Writes the chunk's number at its end, or compares it. */
static void visit(CUmemGenericAllocationHandle chunk, unsigned number, bool writes)
{
	unsigned found = number;
	CUdeviceptr ptr;
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	bench_check_cuda(&drv, drv.cuMemAddressReserve(&ptr, chunk_bytes, 0, 0, 0), "an address");
	bench_check_cuda(&drv, drv.cuMemMap(ptr, chunk_bytes, 0, chunk, 0), "cuMemMap");
	bench_check_cuda(&drv, drv.cuMemSetAccess(ptr, chunk_bytes, &access, 1), "access");
	CUdeviceptr end = ptr + chunk_bytes - sizeof(found);
	bench_check_cuda(&drv,
	                 writes ? drv.cuMemcpyHtoD(end, &found, sizeof(found))
	                        : drv.cuMemcpyDtoH(&found, end, sizeof(found)),
	                 "a copy");
	bench_check_cuda(&drv, drv.cuMemUnmap(ptr, chunk_bytes), "cuMemUnmap");
	bench_check_cuda(&drv, drv.cuMemAddressFree(ptr, chunk_bytes), "cuMemAddressFree");
	if (found != number) {
		bench_fail("chunk %u has %u in it", number, found);
	}
}

static int make(unsigned number)
{
	CUmemGenericAllocationHandle chunk;
	int fd;
	const CUmemAllocationProp properties = cudrv_chunk_properties(
		0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	bench_check_cuda(&drv, drv.cuMemCreate(&chunk, chunk_bytes, &properties, 0), "cuMemCreate");
	visit(chunk, number, true);
	bench_check_cuda(&drv,
	                 drv.cuMemExportToShareableHandle(
				 &fd, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	                 "an export");
	bench_check_cuda(&drv, drv.cuMemRelease(chunk), "cuMemRelease");
	return fd;
}

static void die(void *user)
{
	bench_print("keep", "%.1f ms", ms_since(begin_ns));
	cleanup_fd int fd = open("killed", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	const uint64_t now_ns = bench_now_ns();
	if (write(fd, &now_ns, sizeof(now_ns)) == sizeof(now_ns)) {
		kill(getpid(), SIGKILL);
	}
	bench_fail("cannot write");
}

static void keep(unsigned n)
{
	int *fds = calloc(n, sizeof(*fds));
	uint64_t before = free_bytes();
	for (unsigned i = 0; i < n; i++) {
		fds[i] = make(i);
	}
	bench_print("made", "%u chunks, %.2f GiB of the device", n,
	            (double)(before - free_bytes()) / GIB);
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		check(fdstore_put(store, name_of(i), fds[i]), "fdstore_put");
	}
	check(fdstore_barrier(store, die, NULL), "fdstore_barrier");
	uv_run(&loop, UV_RUN_DEFAULT);
}

static void on_released(void *user)
{
	const uint64_t *before = user;
	double ms = ms_since(begin_ns);
	bench_print("release", "%.1f ms, %.2f GiB are free then", ms,
	            ((double)free_bytes() - (double)*before) / GIB);
	uv_stop(&loop);
}

static void take(unsigned n, uint64_t main_ns)
{
	uint64_t killed_ns = 0;
	cleanup_fd int fd = open("killed", O_RDONLY | O_CLOEXEC);
	int *fds = calloc(n, sizeof(*fds));
	if (read(fd, &killed_ns, sizeof(killed_ns)) != sizeof(killed_ns)) {
		bench_fail("cannot read");
	}
	for (unsigned i = 0; i < n; i++) {
		fds[i] = fdstore_take(store, name_of(i));
		check(fds[i], "fdstore_take");
	}
	bench_print("restart", "%.1f ms to main(), %.1f ms to the last fd",
	            (double)(main_ns - killed_ns) / 1e6, ms_since(killed_ns));
	bench_open_cuda(&drv);
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		CUmemGenericAllocationHandle chunk;
		bench_check_cuda(&drv,
		                 drv.cuMemImportFromShareableHandle(
					 &chunk, (void *)(intptr_t)fds[i],
					 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		                 "an import");
		visit(chunk, i, false);
		bench_check_cuda(&drv, drv.cuMemRelease(chunk), "cuMemRelease");
	}
	bench_print("import", "%.1f ms", ms_since(begin_ns));
	uint64_t before = free_bytes();
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		fdstore_remove(store, name_of(i));
		close(fds[i]);
	}
	check(fdstore_barrier(store, on_released, &before), "fdstore_barrier");
	uv_run(&loop, UV_RUN_DEFAULT);
	free(fds);
}

static int stand_in(char **argv)
{
	uint64_t main_ns = bench_now_ns();
	unsigned n = (unsigned)strtoul(argv[2], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	chunk_bytes = strtoull(argv[3], NULL, 10) * MIB;
	check(uv_loop_init(&loop), "uv_loop_init");
	check(fdstore_open(&loop, &store), "fdstore_open");
	bool is_first = !fdstore_passed(store, 0);
	if (is_first) {
		bench_open_cuda(&drv);
		notify_ready(NULL);
		keep(n);
	} else {
		take(n, main_ns);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char self[4096];
	char keeper[4096];
	char words[2][24];
	int status;
	ssize_t n_bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n_bytes < 0) {
		return 1;
	}
	self[n_bytes] = '\0';
	if (argc == 4 && strcmp(argv[1], "--stand-in") == 0) {
		return stand_in(argv);
	}
	bench_begin("bench_kept", "1x8GiB");
	snprintf(words[0], sizeof(words[0]), "%u", (unsigned)bench_number(argc, argv, 1, 2000));
	snprintf(words[1], sizeof(words[1]), "%u", (unsigned)bench_number(argc, argv, 2, 2));
	snprintf(keeper, sizeof(keeper), "%.*s/../../bin/glake-keeper",
	         (int)(strrchr(self, '/') - self), self);
	pid_t pid = fork();
	if (pid == 0) {
		if (chdir(bench_folder()) == 0) {
			execl(keeper, "glake-keeper", "--watchdog=0", "--", self, "--stand-in",
			      words[0], words[1], NULL);
		}
		_exit(127);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0) {
		bench_fail("glake-keeper ended with status 0x%x", status);
	}
	return 0;
}

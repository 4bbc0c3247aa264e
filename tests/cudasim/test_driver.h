/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of a CUDA driver: its functions by dlopen, and other processes to try them from.
 * Tests that do not depend on CUDASIM_* can run with a real driver as well (GLAKE_LIBCUDA): then
 * used_bytes() counts from the start of the test.
 *
 * Owner:    the test that includes it.
 * Lifetime: one test; Check forks for each.
 * Threads:  load once, then read only.
 */
#ifndef CUDASIM_TEST_DRIVER_H
#define CUDASIM_TEST_DRIVER_H

#include "tests/check_glake.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ULL << 20)
#define GRANULE (2 * MIB)

/* Called as cu.MemCreate(...): the driver's symbol without its cu. */
static struct {
#define CALL(NAME) __typeof__(cu##NAME) *NAME;
#include "tests/cudasim/test_calls.def"
#undef CALL
} cu;

#define ck_cu(CALL, EXPECTED) ck_assert_int_eq((int)(CALL), (int)(EXPECTED))
#define ck_ok(CALL) ck_cu(CALL, CUDA_SUCCESS)

/* An assertion for processes other than Check's: the test sees an exit status. */
#define must(CONDITION) \
	do { \
		if (!(CONDITION)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #CONDITION); \
			_exit(99); \
		} \
	} while (0)
#define must_ok(CALL) must((CALL) == CUDA_SUCCESS)

static inline void driver_load(void)
{
	const char *path = getenv("GLAKE_LIBCUDA");
	void *lib = dlopen(path ? path : "build/cudasim/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(lib != NULL, "%s", dlerror());
#define CALL(NAME) \
	cu.NAME = (__typeof__(cu.NAME))dlsym(lib, "cu" #NAME); \
	ck_assert_msg(cu.NAME != NULL, "cu" #NAME " is missing");
#include "tests/cudasim/test_calls.def"
#undef CALL
}

static char driver_state_path[256];
static uint64_t driver_used_before; /* real drivers only */
static CUcontext driver_context;    /* that driver_start() made current */

static inline void driver_unlink_state(void)
{
	unlink(driver_state_path);
}

/* Set the devices of this test, without cuInit. A real driver ignores that. */
static inline void driver_setup(const char *devices)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(driver_state_path, sizeof(driver_state_path), "%s/cudasim-state-%d",
	         tmp ? tmp : "/tmp", (int)getpid());
	unlink(driver_state_path);
	atexit(driver_unlink_state);
	setenv("CUDASIM_STATE", driver_state_path, 1);
	setenv("CUDASIM_DEVICES", devices, 1);
	unsetenv("CUDA_VISIBLE_DEVICES");
	unsetenv("CUDASIM_FAULT");
	unsetenv("CUDASIM_FAULT_FILE");
	unsetenv("CUDASIM_FABRIC");
	unsetenv("CUDASIM_CONTEXT");
	driver_load();
}

static inline uint64_t used_bytes(void)
{
	size_t free_bytes, total_bytes;

	must_ok(cu.MemGetInfo_v2(&free_bytes, &total_bytes));
	return total_bytes - free_bytes - driver_used_before;
}

/* Call cuInit, and make a context on device 0 current. */
static inline CUcontext driver_start(void)
{
	CUcontext ctx = NULL;
	char name[32];

	must_ok(cu.Init(0));
	must_ok(cu.DevicePrimaryCtxRetain(&ctx, 0));
	must_ok(cu.CtxSetCurrent(ctx));
	must_ok(cu.DeviceGetName(name, sizeof(name), 0));
	if (strcmp(name, "CUDASIM") != 0) {
		driver_used_before = used_bytes();
	}
	driver_context = ctx;
	return ctx;
}

static inline CUcontext driver_begin(const char *devices)
{
	driver_setup(devices);
	return driver_start();
}

/* For BEGIN_EACH. */
static inline void driver_begin_64m(void)
{
	driver_begin("1x64MiB");
}

/* For tests of such a file that begin in another way: they do so themselves. */
static inline void driver_not_yet(void)
{
}

/* As programs get it that are built for default streams by thread. */
static inline void *per_thread(const char *name)
{
	void *call = NULL;

	ck_ok(cu.GetProcAddress_v2(name, &call, 13000,
	                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
	ck_assert_ptr_nonnull(call);
	return call;
}

static inline CUdeviceptr zeroed(size_t bytes)
{
	CUdeviceptr ptr = 0;

	ck_ok(cu.MemAlloc_v2(&ptr, bytes));
	ck_ok(cu.MemsetD8_v2(ptr, 0, bytes));
	ck_ok(cu.CtxSynchronize());
	return ptr;
}

/* --- chunks --- */

static inline CUmemAllocationProp chunk_prop(CUmemLocationType location, int id)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = location, .id = id},
	};
}

static inline CUresult chunk_try(int device, uint64_t bytes, CUmemGenericAllocationHandle *out)
{
	CUmemAllocationProp prop = chunk_prop(CU_MEM_LOCATION_TYPE_DEVICE, device);

	return cu.MemCreate(out, bytes, &prop, 0);
}

static inline CUmemGenericAllocationHandle chunk_new(uint64_t bytes)
{
	CUmemGenericAllocationHandle handle = 0;

	must_ok(chunk_try(0, bytes, &handle));
	return handle;
}

static inline int chunk_export(CUmemGenericAllocationHandle handle)
{
	int fd = -1;

	must_ok(cu.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                      0));
	return fd;
}

static inline CUresult chunk_import(int fd, CUmemGenericAllocationHandle *out)
{
	return cu.MemImportFromShareableHandle(out, (void *)(intptr_t)fd,
	                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static inline CUdeviceptr reserve(uint64_t bytes)
{
	CUdeviceptr addr = 0;

	must_ok(cu.MemAddressReserve(&addr, bytes, 0, 0, 0));
	return addr;
}

static inline CUresult set_access(CUdeviceptr addr, uint64_t bytes, CUmemAccess_flags flags)
{
	CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = flags,
	};

	return cu.MemSetAccess(addr, bytes, &desc, 1);
}

#define READ_ONLY CU_MEM_ACCESS_FLAGS_PROT_READ
#define READ_WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* Maps the chunk at an address of its own. */
static inline CUdeviceptr chunk_map(CUmemGenericAllocationHandle handle, uint64_t bytes,
                                    CUmemAccess_flags flags)
{
	CUdeviceptr addr = reserve(bytes);

	must_ok(cu.MemMap(addr, bytes, 0, handle, 0));
	must_ok(set_access(addr, bytes, flags));
	return addr;
}

/* --- other processes --- */

struct child {
	pid_t pid;
	int sock;
};

/* Runs fn(sock) in a process forked now; it ends well if fn returns. */
static inline struct child child_start(void (*fn)(int sock))
{
	int socks[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		close(socks[0]);
		fn(socks[1]);
		_exit(0);
	}
	close(socks[1]);
	return (struct child){.pid = pid, .sock = socks[0]};
}

/* Wait for the child. Returns its wait status. */
static inline int child_join(struct child *child)
{
	int status = -1;

	close(child->sock);
	ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
	return status;
}

static inline int child_kill(struct child *child)
{
	kill(child->pid, SIGKILL);
	return child_join(child);
}

/* Send one byte, and with fd >= 0 a copy of the fd. */
static inline void send_fd(int sock, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	char byte = 0;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	}
	must(sendmsg(sock, &msg, MSG_NOSIGNAL) == 1);
}

static inline void send_byte(int sock)
{
	send_fd(sock, -1);
}

/* Wait for one byte. Returns the fd that came with it, or -1. */
static inline int recv_fd(int sock)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	int fd = -1;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	must(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == 1);
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	if (cmsg) {
		memcpy(&fd, CMSG_DATA(cmsg), sizeof(fd));
	}
	return fd;
}

static inline void recv_byte(int sock)
{
	must(recv_fd(sock) == -1);
}

#endif

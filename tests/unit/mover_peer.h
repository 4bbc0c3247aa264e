/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does as glaked to a real glake-mover, for tests: starts it, makes chunks, sends orders, takes
 * reports and looks into the chunks. One mover, one device, one test.
 */
#ifndef GLAKE_TESTS_MOVER_PEER_H
#define GLAKE_TESTS_MOVER_PEER_H

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/cudrv.h"
#include "proto/digest.h"
#include "proto/glake.pb-c.h"
#include "proto/limits.h"
#include "proto/mover.pb-c.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

#define PEER_UNUSED __attribute__((unused))
#define PEER_WAIT_MS 25000
#define PEER_MAX_BLOCKS 256

struct peer {
	pid_t pid;
	int socket;
	struct cudrv drv;
	CUcontext context;
	uint8_t uuids[2][16];
	int n_devices;
	char folder[256];
};

#define ORDER(job_, case_) \
	{ \
		.base = PROTOBUF_C_MESSAGE_INIT(&glake__mover__order__descriptor), .job = (job_), \
		.body_case = GLAKE__MOVER__ORDER__BODY_##case_ \
	}

/* ---- start and end -------------------------------------------------------------------------- */

PEER_UNUSED static const char *peer_build(void)
{
	const char *build = getenv("GLAKE_BUILD");
	return build && *build ? build : "build";
}

/* Its environment must be set before: the simulator reads it once. */
PEER_UNUSED static void peer_environment(struct peer *peer)
{
	const char *tmp = getenv("TMPDIR");
	char path[512];
	snprintf(peer->folder, sizeof(peer->folder), "%s/mover.XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(peer->folder));
	snprintf(path, sizeof(path), "%s/state", peer->folder);
	setenv("CUDASIM_STATE", path, 1);
	if (!getenv("GLAKE_LIBCUDA")) {
		snprintf(path, sizeof(path), "%s/cudasim/libcuda.so.1", peer_build());
		setenv("GLAKE_LIBCUDA", path, 1);
	}
}

PEER_UNUSED static void peer_open_driver(struct peer *peer)
{
	char error[256] = "";
	ck_assert_msg(cudrv_open(&peer->drv, NULL, error, sizeof(error)) == 0, "%s", error);
	ck_assert_int_eq(peer->drv.cuInit(0), 0);
	ck_assert_int_eq(peer->drv.cuDeviceGetCount(&peer->n_devices), 0);
	for (int i = 0; i < peer->n_devices && i < 2; i++) {
		CUuuid uuid;
		ck_assert_int_eq(peer->drv.cuDeviceGetUuid(&uuid, i), 0);
		memcpy(peer->uuids[i], uuid.bytes, 16);
	}
	ck_assert_int_eq(peer->drv.cuDevicePrimaryCtxRetain(&peer->context, 0), 0);
	ck_assert_int_eq(peer->drv.cuCtxSetCurrent(peer->context), 0);
}

/* @fault: CUDASIM_FAULT of the mover alone, or NULL. */
PEER_UNUSED static void peer_spawn(struct peer *peer, const char *fault)
{
	int sockets[2];
	char path[512];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	snprintf(path, sizeof(path), "%s/bin/glake-mover", peer_build());
	peer->pid = fork();
	ck_assert_int_ge(peer->pid, 0);
	if (peer->pid == 0) {
		if (fault) {
			setenv("CUDASIM_FAULT", fault, 1);
			/* As many calls for a block as with slots of a usual size. */
			unsetenv("GLAKE_MOVER_SLOT_KIB");
		}
		/* The other descriptors of this process are close-on-exec. */
		if (sockets[1] == 3) {
			fcntl(3, F_SETFD, 0);
		} else {
			dup2(sockets[1], 3);
		}
		execl(path, "glake-mover", (char *)NULL);
		_exit(127);
	}
	close(sockets[1]);
	peer->socket = sockets[0];
}

/* The next report, which the caller frees; NULL at the end of the socket. */
PEER_UNUSED static Glake__Mover__Report *peer_next(struct peer *peer)
{
	static uint8_t packet[GLAKE_MAX_PACKET_BYTES];
	struct pollfd poll_fd = {.fd = peer->socket, .events = POLLIN};
	struct fdlist fds;
	size_t n_bytes;
	ck_assert_msg(poll(&poll_fd, 1, PEER_WAIT_MS) == 1, "no report came");
	fdlist_init(&fds);
	int error = wire_recv(peer->socket, packet, sizeof(packet), &n_bytes, &fds, 0);
	if (error == WIRE_E_EOF) {
		return NULL;
	}
	ck_assert_int_eq(error, 0);
	ck_assert_uint_eq(fds.n_fds, 0);
	Glake__Mover__Report *report = glake__mover__report__unpack(NULL, n_bytes, packet);
	ck_assert_ptr_nonnull(report);
	return report;
}

PEER_UNUSED static void peer_free_report(Glake__Mover__Report *report)
{
	glake__mover__report__free_unpacked(report, NULL);
}

/* A mover that is ready, with the settings of @setup in its environment before. */
PEER_UNUSED static void peer_start(struct peer *peer, const char *fault)
{
	*peer = (struct peer){.socket = -1};
	peer_environment(peer);
	peer_spawn(peer, fault);
	peer_open_driver(peer);
	Glake__Mover__Report *report = peer_next(peer);
	ck_assert_ptr_nonnull(report);
	ck_assert_int_eq(report->body_case, GLAKE__MOVER__REPORT__BODY_READY);
	peer_free_report(report);
}

PEER_UNUSED static void peer_remove_folder(struct peer *peer)
{
	char command[512];
	snprintf(command, sizeof(command), "rm -rf '%s'", peer->folder);
	ck_assert_int_eq(system(command), 0);
}

/* Waits for the mover's end, however it came. Returns waitpid()'s status. */
PEER_UNUSED static int peer_wait(struct peer *peer)
{
	int status;
	ck_assert_int_eq(waitpid(peer->pid, &status, 0), peer->pid);
	return status;
}

/* Close the socket; the mover ends in good order and leaves no chunk behind. */
PEER_UNUSED static void peer_end(struct peer *peer)
{
	fd_close(&peer->socket);
	int status = peer_wait(peer);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
	peer->drv.cuCtxSetCurrent(NULL);
	peer->drv.cuDevicePrimaryCtxRelease(0);
	peer_remove_folder(peer);
}

/* How many descriptors the mover has open. */
PEER_UNUSED static unsigned peer_mover_fds(const struct peer *peer)
{
	char command[128];
	unsigned n_fds = 0;
	snprintf(command, sizeof(command), "ls /proc/%d/fd | wc -l", (int)peer->pid);
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	ck_assert_int_eq(fscanf(pipe, "%u", &n_fds), 1);
	pclose(pipe);
	return n_fds;
}

/* ---- chunks --------------------------------------------------------------------------------- */

struct chunk_in_test {
	int fd;
	CUmemGenericAllocationHandle handle;
	uint64_t bytes;
};

PEER_UNUSED static struct chunk_in_test peer_make_chunk(struct peer *peer, uint64_t bytes,
                                                        const CUmemAllocationProp *prop)
{
	struct chunk_in_test chunk = {.fd = -1, .bytes = bytes};
	ck_assert_int_eq(peer->drv.cuMemCreate(&chunk.handle, bytes, prop, 0), 0);
	ck_assert_int_eq(
		peer->drv.cuMemExportToShareableHandle(&chunk.fd, chunk.handle,
	                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		0);
	fcntl(chunk.fd, F_SETFD, FD_CLOEXEC);
	return chunk;
}

PEER_UNUSED static struct chunk_in_test peer_chunk(struct peer *peer, int device, uint64_t bytes)
{
	const CUmemAllocationProp prop = cudrv_chunk_properties(
		device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return peer_make_chunk(peer, bytes, &prop);
}

PEER_UNUSED static void peer_drop_chunk(struct peer *peer, struct chunk_in_test *chunk)
{
	fd_close(&chunk->fd);
	ck_assert_int_eq(peer->drv.cuMemRelease(chunk->handle), 0);
}

/* Copy between the chunk and host memory, whole. */
PEER_UNUSED static void peer_move(struct peer *peer, const struct chunk_in_test *chunk, int device,
                                  void *host, bool to_chunk)
{
	const struct cudrv *drv = &peer->drv;
	CUdeviceptr address;
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	ck_assert_int_eq(drv->cuMemAddressReserve(&address, chunk->bytes, 0, 0, 0), 0);
	ck_assert_int_eq(drv->cuMemMap(address, chunk->bytes, 0, chunk->handle, 0), 0);
	ck_assert_int_eq(drv->cuMemSetAccess(address, chunk->bytes, &access, 1), 0);
	if (to_chunk) {
		ck_assert_int_eq(drv->cuMemcpyHtoD(address, host, chunk->bytes), 0);
	} else {
		ck_assert_int_eq(drv->cuMemcpyDtoH(host, address, chunk->bytes), 0);
	}
	ck_assert_int_eq(drv->cuMemUnmap(address, chunk->bytes), 0);
	ck_assert_int_eq(drv->cuMemAddressFree(address, chunk->bytes), 0);
}

/* ---- orders --------------------------------------------------------------------------------- */

PEER_UNUSED static void peer_send(struct peer *peer, const Glake__Mover__Order *order,
                                  const int *fds, size_t n_fds)
{
	static uint8_t packet[GLAKE_MAX_PACKET_BYTES];
	size_t n_bytes = glake__mover__order__get_packed_size(order);
	ck_assert_uint_le(n_bytes, sizeof(packet));
	glake__mover__order__pack(order, packet);
	ck_assert_int_eq(wire_send(peer->socket, packet, n_bytes, fds, n_fds, 0), 0);
}

PEER_UNUSED static ProtobufCBinaryData peer_uuid(struct peer *peer, int device)
{
	return (ProtobufCBinaryData){.len = 16, .data = peer->uuids[device]};
}

/* @names are in the peer's folder. @index may be NULL; it is a name there, too. */
PEER_UNUSED static void peer_load_files(struct peer *peer, uint64_t job, const char *const *names,
                                        size_t n_names, const char *index, bool may_direct)
{
	Glake__Mover__LoadStart body = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order order = ORDER(job, LOAD_START);
	int fds[GLAKE_MAX_PACKET_FDS];
	size_t n_fds = n_names + (index ? 1 : 0);
	for (size_t i = 0; i < n_fds; i++) {
		char path[512];
		snprintf(path, sizeof(path), "%s/%s", peer->folder, i < n_names ? names[i] : index);
		fds[i] = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		ck_assert_msg(fds[i] >= 0, "%s", path);
	}
	body.device_uuid = peer_uuid(peer, 0);
	body.n_files = n_names;
	body.files = (char **)names;
	body.index = (char *)(index ? index : "");
	body.may_direct = may_direct;
	order.load_start = &body;
	peer_send(peer, &order, fds, n_fds);
	for (size_t i = 0; i < n_fds; i++) {
		close(fds[i]);
	}
}

PEER_UNUSED static void peer_load(struct peer *peer, uint64_t job, const char *name)
{
	peer_load_files(peer, job, &name, 1, NULL, false);
}

PEER_UNUSED static void peer_grant(struct peer *peer, uint64_t job, uint64_t first, const int *fds,
                                   size_t n_fds)
{
	Glake__Mover__Grant body = GLAKE__MOVER__GRANT__INIT;
	Glake__Mover__Order order = ORDER(job, GRANT);
	body.first = first;
	order.grant = &body;
	peer_send(peer, &order, fds, n_fds);
}

PEER_UNUSED static void peer_cancel(struct peer *peer, uint64_t job)
{
	Glake__Mover__Cancel body = GLAKE__MOVER__CANCEL__INIT;
	Glake__Mover__Order order = ORDER(job, CANCEL);
	order.cancel = &body;
	peer_send(peer, &order, NULL, 0);
}

/* Asks also whether all bytes are those of @other, if that is not NULL. */
PEER_UNUSED static void peer_digest_beside(struct peer *peer, uint64_t job,
                                           const struct chunk_in_test *chunk,
                                           uint64_t content_bytes,
                                           const struct chunk_in_test *other)
{
	Glake__Mover__Digest body = GLAKE__MOVER__DIGEST__INIT;
	Glake__Mover__Order order = ORDER(job, DIGEST);
	const int fds[] = {chunk->fd, other ? other->fd : -1};
	body.device_uuid = peer_uuid(peer, 0);
	body.chunk_bytes = chunk->bytes;
	body.content_bytes = content_bytes;
	order.digest = &body;
	peer_send(peer, &order, fds, other ? 2 : 1);
}

PEER_UNUSED static void peer_digest(struct peer *peer, uint64_t job,
                                    const struct chunk_in_test *chunk, uint64_t content_bytes)
{
	peer_digest_beside(peer, job, chunk, content_bytes, NULL);
}

PEER_UNUSED static void peer_compare(struct peer *peer, uint64_t job, const struct chunk_in_test *a,
                                     const struct chunk_in_test *b)
{
	Glake__Mover__Compare body = GLAKE__MOVER__COMPARE__INIT;
	Glake__Mover__Order order = ORDER(job, COMPARE);
	int fds[] = {a->fd, b->fd};
	body.device_uuid = peer_uuid(peer, 0);
	body.chunk_bytes = a->bytes;
	order.compare = &body;
	peer_send(peer, &order, fds, 2);
}

/* A chunk in host memory of node 0. */
PEER_UNUSED static struct chunk_in_test peer_host_chunk(struct peer *peer, uint64_t bytes)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0},
	};
	return peer_make_chunk(peer, bytes, &prop);
}

/* All of @chunk is content. @host has the number 7. */
PEER_UNUSED static void peer_copy(struct peer *peer, uint64_t job,
                                  const struct chunk_in_test *chunk,
                                  const struct chunk_in_test *host, uint64_t offset, bool to_host)
{
	Glake__Mover__Copy body = GLAKE__MOVER__COPY__INIT;
	Glake__Mover__Order order = ORDER(job, COPY);
	int fds[] = {chunk->fd, host->fd};
	body.device_uuid = peer_uuid(peer, 0);
	body.chunk_bytes = chunk->bytes;
	body.content_bytes = chunk->bytes;
	body.to_host = to_host;
	body.host_chunk = 7;
	body.host_bytes = host->bytes;
	body.host_offset = offset;
	order.copy = &body;
	peer_send(peer, &order, fds, 2);
}

/* Compares the places that peer_copy() copies between. */
PEER_UNUSED static void peer_compare_host(struct peer *peer, uint64_t job,
                                          const struct chunk_in_test *chunk,
                                          const struct chunk_in_test *host, uint64_t offset)
{
	Glake__Mover__Compare body = GLAKE__MOVER__COMPARE__INIT;
	Glake__Mover__Order order = ORDER(job, COMPARE);
	int fds[] = {chunk->fd, host->fd};
	body.device_uuid = peer_uuid(peer, 0);
	body.chunk_bytes = chunk->bytes;
	body.host_chunk = 7;
	body.host_bytes = host->bytes;
	body.host_offset = offset;
	order.compare = &body;
	peer_send(peer, &order, fds, 2);
}

PEER_UNUSED static void peer_zero(struct peer *peer, uint64_t job,
                                  const struct chunk_in_test *chunk)
{
	Glake__Mover__Zero body = GLAKE__MOVER__ZERO__INIT;
	Glake__Mover__Order order = ORDER(job, ZERO);
	body.device_uuid = peer_uuid(peer, 0);
	body.chunk_bytes = chunk->bytes;
	body.content_bytes = chunk->bytes;
	order.zero = &body;
	peer_send(peer, &order, &chunk->fd, 1);
}

PEER_UNUSED static void peer_forget(struct peer *peer, uint64_t job)
{
	Glake__Mover__Forget body = GLAKE__MOVER__FORGET__INIT;
	Glake__Mover__Order order = ORDER(job, FORGET);
	body.host_chunk = 7;
	order.forget = &body;
	peer_send(peer, &order, NULL, 0);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* The next report is of @job and of this kind; the caller frees it. */
PEER_UNUSED static Glake__Mover__Report *peer_expect(struct peer *peer, uint64_t job,
                                                     Glake__Mover__Report__BodyCase body_case)
{
	Glake__Mover__Report *report = peer_next(peer);
	ck_assert_msg(report != NULL, "the mover has ended");
	if (report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED) {
		ck_assert_msg(body_case == report->body_case, "job %" PRIu64 ": %s", report->job,
		              report->failed->error);
	}
	ck_assert_uint_eq(report->job, job);
	ck_assert_int_eq(report->body_case, body_case);
	return report;
}

/* Skip reports of progress; @job fails with @status and a line that holds @text. */
PEER_UNUSED static void peer_expect_failed(struct peer *peer, uint64_t job, uint32_t status,
                                           const char *text)
{
	for (;;) {
		Glake__Mover__Report *report = peer_next(peer);
		ck_assert_msg(report != NULL, "the mover has ended");
		bool is_end = report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED;
		ck_assert_int_ne(report->body_case, GLAKE__MOVER__REPORT__BODY_LOAD_DONE);
		if (is_end) {
			ck_assert_uint_eq(report->job, job);
			ck_assert_msg(strstr(report->failed->error, text) != NULL,
			              "'%s' is not in '%s'", text, report->failed->error);
			ck_assert_uint_eq(report->failed->status, status);
		}
		peer_free_report(report);
		if (is_end) {
			return;
		}
	}
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "libclient/memory/heap.h"
#include "libclient/memory/async.h"
#include "libclient/memory/block.h"
#include "libclient/link/fork.h"
#include "libclient/memory/placed.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"

#define DEFAULT_SOCKET_PATH "/run/glake/glaked.sock"
/* Fds to have room for: two pages of blocks (GLAKE_PAGE_FDS) and the program's own. */
#define FD_TABLE 512

int glake__session_check(const struct glake_session *session)
{
	if (!session) {
		return glake__fail(-EINVAL, "the session is NULL");
	}
	if (session->fork_generation != glake__fork_generation()) {
		return glake__fail(GLAKE_E_FORKED,
		                   "the session was made before a fork: connect anew in the child");
	}
	return 0;
}

bool glake__session_is_gone(struct glake_session *session)
{
	return glake__link_is_gone(&session->link);
}

/* ---- the socket ------------------------------------------------------------------------------- */

static const char *socket_path(const struct glake_connect_options *options)
{
	const char *path = options->socket_path;
	if (!path) {
		path = secure_getenv("GLAKE_SOCKET");
	}
	return path && *path ? path : DEFAULT_SOCKET_PATH;
}

static int connect_error(const char *path, int error)
{
	/* Its queue is full, and it takes nobody from there. */
	bool is_stopped = error == EAGAIN || error == EINTR;
	int code = is_stopped || error == ENOENT || error == ECONNREFUSED ? GLAKE_E_GONE : -error;
	return glake__fail(code, "cannot connect to glaked at %s: %s", path,
	                   is_stopped ? "it does not answer" : strerrordesc_np(error));
}

/* As connect(), for the patience of a Hello at most: while the listener's queue is full, it waits. */
static int connect_in_time(int fd, const struct sockaddr_un *address)
{
	uint64_t end_ns = clock_now_ns() + glake__patience.hello_ms * 1000000ull;
	uint64_t now_ns;
	int r = -1;
	errno = EINTR;
	while (r < 0 && errno == EINTR && (now_ns = clock_now_ns()) < end_ns) {
		uint64_t left_us = (end_ns - now_ns) / 1000 + 1;
		struct timeval left = {.tv_sec = (time_t)(left_us / 1000000),
		                       .tv_usec = (suseconds_t)(left_us % 1000000)};
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
		r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
	}
	return r;
}

static int open_socket(const char *path, int *socket_out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(address.sun_path)) {
		return glake__fail(-ENAMETOOLONG, "the socket path is too long: %s", path);
	}
	strcpy(address.sun_path, path);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return connect_error(path, errno);
	}
	if (connect_in_time(fd, &address) < 0) {
		return connect_error(path, errno);
	}
	*socket_out = fd_steal(&fd);
	return 0;
}

/* ---- the driver ------------------------------------------------------------------------------- */

/* Find each device of the daemon among those that the driver shows this process, by UUID. */
static int find_ordinals(struct glake_session *session)
{
	const struct cudrv *drv = &session->drv;
	int n_visible = 0;
	CUresult result = drv->cuDeviceGetCount(&n_visible);
	for (int ordinal = 0; result == CUDA_SUCCESS && ordinal < n_visible; ordinal++) {
		CUdevice handle;
		CUuuid uuid;
		result = drv->cuDeviceGet(&handle, ordinal);
		if (result == CUDA_SUCCESS) {
			result = drv->cuDeviceGetUuid(&uuid, handle);
		}
		for (uint32_t i = 0; result == CUDA_SUCCESS && i < session->n_devices; i++) {
			struct glake__device *device = &session->devices[i];
			if (handle < GLAKE__MAX_DEVICES &&
			    memcmp(device->public.uuid, uuid.bytes, sizeof(uuid.bytes)) == 0) {
				device->public.ordinal = ordinal;
				device->handle = handle;
			}
		}
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cannot list the CUDA devices: %s",
		                   cudrv_error(drv, result));
	}
	return 0;
}

static int open_driver(struct glake_session *session, const char *libcuda)
{
	char text[512] = "";
	if (cudrv_open(&session->drv, libcuda, text, sizeof(text)) < 0) {
		return glake__fail(GLAKE_E_NO_DRIVER, "%s", text);
	}
	CUresult result = session->drv.cuInit(0);
	if (result == CUDA_ERROR_NO_DEVICE) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the CUDA driver sees no device");
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuInit: %s", cudrv_error(&session->drv, result));
	}
	session->has_driver = true;
	return 0;
}

/*
 * Give the socket a high number: it is low ones that programs close once too often, or put their
 * files on.
 *
 * It also makes room for the fds of two pages of blocks at once. Left to itself the kernel doubles the
 * table of fds whenever it is full, and in a process with threads each doubling waits for an RCU grace
 * period, some 10 ms. Here it costs nothing while the driver's threads are not there yet.
 */
static void move_up(int *socket)
{
	int fd = fcntl(*socket, F_DUPFD_CLOEXEC, FD_TABLE - 1);
	/* A limit below that is no error. */
	if (fd >= 0) {
		fd_close(socket);
		*socket = fd;
	}
}

/* ---- connecting ------------------------------------------------------------------------------- */

void glake__session_ref(struct glake_session *session)
{
	session->n_refs++;
}

void glake__session_unref(struct glake_session *session)
{
	if (--session->n_refs > 0) {
		return;
	}
	glake__link_deinit(&session->link);
	free(session->program.driver);
	free(session->devices);
	free(session->socket_path);
	free(session);
}

int glake__session_socket(const struct glake_session *session, int *socket_out)
{
	int r = open_socket(session->socket_path, socket_out);
	if (r == 0 && session->has_driver) {
		move_up(socket_out);
	}
	return r;
}

static int session_new(int socket, const char *path, struct glake_session **session_out)
{
	cleanup_free struct glake_session *session = calloc(1, sizeof(*session));
	cleanup_free char *copy = strdup(path);
	int r = session && copy ? glake__link_init(&session->link, socket) : -ENOMEM;
	if (r < 0) {
		return glake__fail(r, "cannot begin a session: %s", glake_strerror(r));
	}
	session->fork_generation = glake__fork_generation();
	session->n_refs = 1;
	session->socket_path = ptr_steal(copy);
	glake__space_begin();
	pthread_mutex_init(&session->usage_lock, NULL);
	*session_out = ptr_steal(session);
	return 0;
}

/* The driver last: it takes 100 ms and more to start, and the daemon waits for our Hello. */
static int greet(struct glake_session *session, const struct glake_connect_options *options)
{
	const char *program = options->program ? options->program : program_invocation_short_name;
	int r = glake__rpc_hello(session, program);
	if (r < 0 || options->no_cuda) {
		return r;
	}
	r = open_driver(session, options->libcuda);
	if (r == 0) {
		r = find_ordinals(session);
	}
	if (r == 0) {
		glake__space_open(&session->drv);
	}
	return r;
}

int glake_connect(const struct glake_connect_options *options, struct glake_session **session_out)
{
	struct glake_connect_options full;
	int r = glake__sized_in(options, &full, sizeof(full));
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	cleanup_fd int fd = -1;
	r = open_socket(socket_path(&full), &fd);
	if (r < 0) {
		return r;
	}
	if (!full.no_cuda) {
		move_up(&fd);
	}
	struct glake_session *session = NULL;
	r = session_new(fd, socket_path(&full), &session);
	if (r < 0) {
		return r;
	}
	fd_steal(&fd);
	r = greet(session, &full);
	if (r < 0) {
		glake__link_leave(session);
		glake__session_unref(session);
		return r;
	}
	*session_out = session;
	return 0;
}

void glake_disconnect(struct glake_session *session)
{
	if (!session) {
		return;
	}
	session->is_forked = session->fork_generation != glake__fork_generation();
	session->is_closing = true;
	if (session->end_models) {
		session->end_models(session);
	}
	glake__blocks_deinit(session);
	glake__placed_deinit(session);
	glake__async_deinit(session);
	glake__heap_deinit(session);
	if (!session->is_forked) {
		/* A forked child may hold the socket as well: closing ours would not end it. */
		glake__link_leave(session);
	}
	glake__session_unref(session);
}

/* ---- looking ---------------------------------------------------------------------------------- */

struct glake__device *glake__session_device(struct glake_session *session, uint32_t index)
{
	for (uint32_t i = 0; i < session->n_devices; i++) {
		if (session->devices[i].public.index == index) {
			return &session->devices[i];
		}
	}
	glake__fail(-ENODEV, "the daemon has no device %u", index);
	return NULL;
}

struct glake__device *glake__session_mappable(struct glake_session *session, uint32_t index,
                                              int *error_out)
{
	struct glake__device *device = glake__session_device(session, index);
	if (!device) {
		*error_out = -ENODEV;
		return NULL;
	}
	if (!session->has_driver) {
		*error_out = glake__fail(GLAKE_E_NO_DRIVER,
		                         "the session was made without the driver");
		return NULL;
	}
	if (device->public.ordinal < 0) {
		*error_out = glake__fail(-ENODEV, "device %u (%s) is not visible in this process",
		                         index, device->public.name);
		return NULL;
	}
	return device;
}

int glake_session_info(struct glake_session *session, struct glake_session_info *info)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake_session_info full = {
		.session = session->id,
		.is_admin = session->is_admin,
		.n_devices = session->n_devices,
	};
	memcpy(full.tenant, session->tenant, sizeof(full.tenant));
	memcpy(full.realm, session->realm, sizeof(full.realm));
	memcpy(full.daemon_version, session->daemon_version, sizeof(full.daemon_version));
	return glake__sized_out(info, &full, sizeof(full));
}

int glake_device_at(struct glake_session *session, uint32_t position,
                    struct glake_device *device_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (position >= session->n_devices) {
		return glake__fail(-ENOENT, "the daemon has %u devices", session->n_devices);
	}
	*device_out = session->devices[position].public;
	return 0;
}

int glake_device_index(struct glake_session *session, int ordinal)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	for (uint32_t i = 0; ordinal >= 0 && i < session->n_devices; i++) {
		if (session->devices[i].public.ordinal == ordinal) {
			return (int)session->devices[i].public.index;
		}
	}
	return glake__fail(-ENOENT, "the daemon does not own CUDA device %d of this process",
	                   ordinal);
}

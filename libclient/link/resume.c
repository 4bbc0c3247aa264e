/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/resume.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/wire.h"
#include "libclient/link/error.h"
#include "libclient/link/fork.h"
#include "libclient/link/socket.h"

#define RETRY_NS 1000000000ull
#define RETRY_SHARE 10 /* times what the last attempt took */

/* Called while connecting: the buffers are ours. Returns 0 or -errno. */
static int send_hello(struct glake__link *link, int socket)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = GLAKE_WIRE_VERSION;
	hello.key.data = link->key;
	hello.key.len = sizeof(link->key);
	hello.unanswered = link->unanswered;
	hello.n_unanswered = link->n_unanswered;
	request.id = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	size_t n_bytes = glake__wire__request__pack(&request, link->send_buffer);
	return wire_send(socket, link->send_buffer, n_bytes, NULL, 0, MSG_DONTWAIT);
}

/* Returns 0, GLAKE_E_GONE: the session is not known any more, or -EAGAIN: no answer. */
static int receive_hello(struct glake__link *link, int socket)
{
	uint64_t end_ns = clock_now_ns() + glake__patience.hello_ms * 1000000ull;
	size_t n_bytes;
	int r;
	do {
		uint64_t now_ns = clock_now_ns();
		struct pollfd ready = {.fd = socket, .events = POLLIN};
		if (now_ns >= end_ns) {
			return -EAGAIN;
		}
		poll(&ready, 1, (int)((end_ns - now_ns + 999999) / 1000000));
		r = wire_recv(socket, link->receive_buffer, GLAKE_MAX_PACKET_BYTES, &n_bytes,
		              &link->receive_fds, MSG_DONTWAIT);
	} while (r == -EAGAIN);
	fdlist_deinit(&link->receive_fds);
	Glake__Wire__Answer *answer = r == 0 ? glake__wire__answer__unpack(NULL, n_bytes,
	                                                                   link->receive_buffer)
	                                     : NULL;
	if (!answer) {
		return -EAGAIN;
	}
	bool is_ours = answer->status == GLAKE__WIRE__STATUS__OK &&
	               answer->body_case == GLAKE__WIRE__ANSWER__BODY_HELLO;
	glake__wire__answer__free_unpacked(answer, NULL);
	return is_ours ? 0 : GLAKE_E_GONE;
}

/* Returns 0, GLAKE_E_GONE: never again, or another error: later, perhaps. */
static int connect_again(struct glake__link *link, int *socket_out)
{
	cleanup_fd int fd = -1;
	int r = glake__socket_open(link->path, link->is_high, &fd);
	if (r < 0) {
		return r == GLAKE_E_GONE && errno == EAGAIN ? -EAGAIN : r;
	}
	r = send_hello(link, fd);
	if (r == 0) {
		r = receive_hello(link, fd);
	}
	if (r == 0) {
		*socket_out = fd_steal(&fd);
	}
	return r;
}

/* Called with both locks held. The old number is closed if it is still ours. */
static int take_socket(struct glake__link *link, int socket)
{
	struct stat status;
	if (fstat(socket, &status) < 0) {
		return -errno;
	}
	if (glake__link_has_socket(link)) {
		fd_close(&link->socket);
	}
	link->socket = socket;
	link->socket_device = status.st_dev;
	link->socket_inode = status.st_ino;
	link->n_connections++;
	link->n_unanswered = 0;
	link->is_lost = false;
	link->error = 0;
	return 0;
}

/* Called with both locks held; the one of the rest is let go meanwhile. */
static void resume_locked(struct glake__link *link)
{
	int socket = -1;
	link->is_reading = true;
	pthread_mutex_unlock(&link->lock);
	uint64_t began_ns = clock_now_ns();
	int r = connect_again(link, &socket);
	pthread_mutex_lock(&link->lock);
	link->is_reading = false;
	if (r == 0) {
		r = take_socket(link, socket);
	}
	if (r == GLAKE_E_GONE) {
		glake__link_give_up(link);
	} else if (r < 0) {
		uint64_t pause_ns = (clock_now_ns() - began_ns) * RETRY_SHARE;
		link->retry_ns = clock_now_ns() + (pause_ns > RETRY_NS ? pause_ns : RETRY_NS);
	}
	pthread_cond_broadcast(&link->changed);
}

int glake__resume(struct glake__link *link)
{
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&link->send_lock);
	pthread_mutex_lock(&link->lock);
	/* A thread that still reads the old connection has not seen its end yet. */
	while (link->is_lost && link->is_reading) {
		pthread_cond_wait(&link->changed, &link->lock);
	}
	if (link->is_lost && clock_now_ns() >= link->retry_ns &&
	    link->fork_generation == glake__fork_generation()) {
		resume_locked(link);
	}
	int error = link->error;
	const char *why = link->why;
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_unlock(&link->send_lock);
	return error ? glake__fail(error, "%s", why) : 0;
}

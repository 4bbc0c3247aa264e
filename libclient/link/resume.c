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

/* The shortest and the longest pause between two attempts. */
#define MIN_PAUSE_NS 10000000ull
#define MAX_PAUSE_NS 1000000000ull
/* A call that does not wait gives glaked this long to answer, and that for a part of the time. */
#define GLANCE_NS 250000000ull
#define GLANCE_SHARE 10

static size_t n_to_tell(const struct glake__link *link)
{
	return link->n_released < GLAKE_MAX_RELEASED ? link->n_released : GLAKE_MAX_RELEASED;
}

/* Called while connecting: the buffers are ours. Returns 0; -EAGAIN: glaked has ended meanwhile; another -errno. */
static int send_hello(struct glake__link *link, int socket)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = GLAKE_WIRE_VERSION;
	hello.key.data = link->key;
	hello.key.len = sizeof(link->key);
	hello.unanswered = link->unanswered;
	hello.n_unanswered = link->n_unanswered;
	hello.n_released = n_to_tell(link);
	hello.released = link->released + link->n_released - hello.n_released;
	request.id = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	size_t n_bytes = glake__wire__request__pack(&request, link->send_buffer);
	int r = wire_send(socket, link->send_buffer, n_bytes, NULL, 0, MSG_DONTWAIT);
	return r == WIRE_E_EOF ? -EAGAIN : r;
}

static unsigned ms_until(uint64_t end_ns)
{
	uint64_t now_ns = clock_now_ns();
	return now_ns < end_ns ? (unsigned)((end_ns - now_ns + 999999) / 1000000) : 0;
}

/* Returns 0, GLAKE_E_GONE: the session is not known any more, or -EAGAIN: no answer. */
static int receive_hello(struct glake__link *link, int socket, uint64_t end_ns)
{
	size_t n_bytes;
	int r;
	do {
		unsigned left_ms = ms_until(end_ns);
		struct pollfd ready = {.fd = socket, .events = POLLIN};
		if (left_ms == 0) {
			return -EAGAIN;
		}
		poll(&ready, 1, (int)left_ms);
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
	link->has_hosts = is_ours && answer->hello->n_hosts > 0;
	link->knows_spare = is_ours && answer->hello->knows_spare;
	glake__wire__answer__free_unpacked(answer, NULL);
	return is_ours ? 0 : GLAKE_E_GONE;
}

/*
 * Called while connecting: what was given back is ours, too. The last connection is the one on which glaked was told
 * the rest of it. Returns 0, GLAKE_E_GONE: never again, or another error: later, perhaps.
 */
static int connect_again(struct glake__link *link, uint64_t end_ns, int *socket_out)
{
	cleanup_fd int fd = -1;
	int r;
	do {
		fd_close(&fd);
		r = glake__socket_open(link->path, link->is_high, ms_until(end_ns), &fd);
		if (r == GLAKE_E_GONE) {
			return -EAGAIN;
		}
		r = r == 0 ? send_hello(link, fd) : r;
		r = r == 0 ? receive_hello(link, fd, end_ns) : r;
		link->n_released -= r == 0 ? n_to_tell(link) : 0;
	} while (r == 0 && link->n_released > 0);
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
	link->error = 0;
	glake__state_move(&link->state, GLAKE__LINK_OPEN);
	return 0;
}

static uint64_t clamp(uint64_t pause_ns)
{
	return pause_ns < MIN_PAUSE_NS   ? MIN_PAUSE_NS
	       : pause_ns > MAX_PAUSE_NS ? MAX_PAUSE_NS
	                                 : pause_ns;
}

/* Called with both locks held; the one of the rest is let go meanwhile. */
static void try_locked(struct glake__link *link, uint64_t end_ns)
{
	int socket = -1;
	uint64_t since_ns = clock_now_ns();
	link->is_reading = true;
	glake__state_move(&link->state, GLAKE__LINK_RESUMING);
	pthread_mutex_unlock(&link->lock);
	int r = connect_again(link, end_ns, &socket);
	pthread_mutex_lock(&link->lock);
	link->is_reading = false;
	if (r == 0) {
		r = take_socket(link, socket);
	}
	if (r == GLAKE_E_GONE) {
		glake__link_give_up(link);
	} else if (r < 0) {
		uint64_t now_ns = clock_now_ns();
		link->retry_ns = now_ns + clamp((now_ns - since_ns) * GLANCE_SHARE);
		glake__state_move(&link->state, GLAKE__LINK_LOST);
	}
	pthread_cond_broadcast(&link->changed);
}

/* Called with both locks held; link.lock is let go meanwhile, so others may give memory back. */
static void pause_locked(struct glake__link *link, uint64_t pause_ns)
{
	pthread_mutex_unlock(&link->lock);
	clock_sleep_ns(pause_ns);
	pthread_mutex_lock(&link->lock);
}

/* Called with both locks held, and a connection that is lost. */
static void resume_locked(struct glake__link *link, bool waits)
{
	uint64_t pause_ns = MIN_PAUSE_NS;
	uint64_t now_ns = clock_now_ns();
	if (link->patience_end_ns == 0) {
		link->patience_end_ns = now_ns + glake__patience.hello_ms * 1000000ull;
	}
	waits = waits && now_ns < link->patience_end_ns;
	if (waits || now_ns >= link->retry_ns) {
		try_locked(link, waits ? link->patience_end_ns : now_ns + GLANCE_NS);
	}
	while (waits && link->state == GLAKE__LINK_LOST &&
	       clock_now_ns() + pause_ns < link->patience_end_ns) {
		pause_locked(link, pause_ns);
		try_locked(link, link->patience_end_ns);
		pause_ns = clamp(2 * pause_ns);
	}
}

static int error_of(struct glake__link *link)
{
	pthread_mutex_lock(&link->lock);
	int error = link->error;
	const char *why = link->why;
	pthread_mutex_unlock(&link->lock);
	return error ? glake__fail(error, "%s", why) : 0;
}

int glake__resume(struct glake__link *link, bool waits)
{
	cleanup_cancel int cancel = cancel_disable();
	if (waits) {
		pthread_mutex_lock(&link->send_lock);
	} else if (pthread_mutex_trylock(&link->send_lock) != 0) {
		return error_of(link);
	}
	pthread_mutex_lock(&link->lock);
	/* A thread that still reads the old connection has not seen its end yet. */
	while (link->state == GLAKE__LINK_LOST && link->is_reading) {
		pthread_cond_wait(&link->changed, &link->lock);
	}
	if (link->state == GLAKE__LINK_LOST && link->fork_generation == glake__fork_generation()) {
		resume_locked(link, waits);
	}
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_unlock(&link->send_lock);
	return error_of(link);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/cleanup.h"
#include "libclient/link/error.h"
#include "libclient/link/fork.h"
#include "libclient/link/socket.h"

/* Returns 0 or -errno. */
static int begin(struct glake__link *link, const char *path, int socket)
{
	struct stat status;
	if (fstat(socket, &status) < 0) {
		return -errno;
	}
	cleanup_free char *copy = strdup(path);
	cleanup_free uint8_t *send_buffer = malloc(GLAKE_MAX_PACKET_BYTES);
	cleanup_free uint8_t *receive_buffer = malloc(GLAKE_MAX_PACKET_BYTES);
	if (!copy || !send_buffer || !receive_buffer) {
		return -ENOMEM;
	}
	*link = (struct glake__link){
		.path = ptr_steal(copy),
		.fork_generation = glake__fork_generation(),
		.send_buffer = ptr_steal(send_buffer),
		.receive_buffer = ptr_steal(receive_buffer),
		.socket = socket,
		.socket_device = status.st_dev,
		.socket_inode = status.st_ino,
		.next_id = 1,
	};
	glake__notices_init(&link->notices);
	fdlist_init(&link->receive_fds);
	pthread_mutex_init(&link->send_lock, NULL);
	pthread_mutex_init(&link->lock, NULL);
	pthread_cond_init(&link->changed, NULL);
	return 0;
}

int glake__link_open(struct glake__link *link, const char *path, bool is_high, unsigned timeout_ms)
{
	cleanup_fd int socket = -1;
	int r = glake__socket_open(path, is_high, timeout_ms, &socket);
	if (r < 0) {
		return r;
	}
	r = begin(link, path, socket);
	if (r < 0) {
		return glake__fail(r, "cannot begin a session: %s", glake_strerror(r));
	}
	link->is_high = is_high;
	link->hello_ms = timeout_ms;
	fd_steal(&socket);
	return 0;
}

void glake__link_deinit(struct glake__link *link)
{
	if (glake__link_has_socket(link)) {
		fd_close(&link->socket);
	}
	free(link->path);
	free(link->send_buffer);
	free(link->receive_buffer);
	free(link->released);
	glake__notices_deinit(&link->notices);
}

bool glake__link_has_socket(const struct glake__link *link)
{
	struct stat status;
	return fstat(link->socket, &status) == 0 && status.st_dev == link->socket_device &&
	       status.st_ino == link->socket_inode;
}

void glake__link_shut_down(struct glake__link *link)
{
	if (glake__link_has_socket(link)) {
		shutdown(link->socket, SHUT_RDWR);
	}
}

/* ---- the end of a connection ------------------------------------------------------------------ */

void glake__link_fail(struct glake__link *link, int error, const char *why)
{
	if (!glake__state_is_up(link->state)) {
		return;
	}
	link->why = why;
	link->error = error;
	bool is_lost = error == GLAKE_E_GONE && link->has_key &&
	               glake__state_move(&link->state, GLAKE__LINK_LOST);
	if (!is_lost) {
		glake__state_move(&link->state, GLAKE__LINK_GONE);
	}
	link->patience_end_ns = 0;
	link->retry_ns = 0;
	glake__link_shut_down(link);
	while (link->pending) {
		struct glake__call *call = link->pending;
		link->pending = call->next;
		if (is_lost && link->n_unanswered < GLAKE_MAX_UNANSWERED) {
			link->unanswered[link->n_unanswered++] = call->id;
		}
		call->error = error;
		call->state = glake__link_owe(link, call) ? GLAKE__CALL_OWED : GLAKE__CALL_DONE;
	}
	if (!is_lost) {
		glake__notices_add(&link->notices, GLAKE_NOTICE_GONE);
	}
	pthread_cond_broadcast(&link->changed);
}

bool glake__link_owe(struct glake__link *link, const struct glake__call *call)
{
	if (link->state != GLAKE__LINK_LOST || call->n_released == 0) {
		return false;
	}
	size_t n = link->n_released + call->n_released;
	if (n > link->released_capacity) {
		uint64_t *more = reallocarray(link->released, 2 * n, sizeof(*more));
		if (!more) {
			return false;
		}
		link->released = more;
		link->released_capacity = 2 * n;
	}
	memcpy(&link->released[link->n_released], call->released,
	       call->n_released * sizeof(*call->released));
	link->n_released = n;
	return true;
}

void glake__link_give_up(struct glake__link *link)
{
	glake__state_move(&link->state, GLAKE__LINK_GONE);
	link->why = "the session has ended at the daemon: connect again";
	glake__notices_add(&link->notices, GLAKE_NOTICE_GONE);
}

bool glake__link_is_gone(struct glake__link *link)
{
	return link->state == GLAKE__LINK_GONE;
}

int glake__link_kill(struct glake__link *link, int error, const char *why)
{
	pthread_mutex_lock(&link->lock);
	glake__link_fail(link, error, why);
	pthread_mutex_unlock(&link->lock);
	return glake__fail(error, "%s", why);
}

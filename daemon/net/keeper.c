/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/keeper.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "daemon/base/log.h"
#include "daemon/net/process_watch.h"
#include "proto/cleanup.h"

/* The connection to one keeper. */
struct link {
	struct conn conn;
	struct keeper *keeper;
};

static void on_closed(struct conn *conn)
{
	free(container_of(conn, struct link, conn));
}

static void tell(struct keeper_child *child, enum keeper_event event, int value)
{
	if (event == KEEPER_FAILED || event == KEEPER_ENDED || event == KEEPER_LOST) {
		list_remove(&child->link);
		fd_close(&child->pidfd);
		process_watch_free(child->watch);
	}
	child->on_event(child, event, value);
}

/* Takes the children that wait for a keeper, or those that do not, out of the list. */
static void take_children(struct keeper *keeper, bool waits, struct list *taken)
{
	struct keeper_child *child;
	struct keeper_child *spare;
	list_for_each_safe (child, spare, &keeper->children, link) {
		if ((child->id == 0) == waits) {
			list_remove(&child->link);
			list_insert(taken, &child->link);
		}
	}
}

static void on_orphan_end(void *user)
{
	tell(user, KEEPER_LOST, 0);
}

/* Kill it, and wait for its end. Returns false if that is impossible. */
static bool make_orphan(struct keeper *keeper, struct keeper_child *child)
{
	if (child->pidfd < 0 || process_watch_new(keeper->loop, child->pidfd, on_orphan_end, child,
	                                          &child->watch) < 0) {
		return false;
	}
	syscall(SYS_pidfd_send_signal, child->pidfd, SIGKILL, NULL, 0);
	child->pidfd = -1;
	list_remove(&child->link);
	list_insert(&keeper->orphans, &child->link);
	return true;
}

/* Orders that callbacks give from here go to another keeper. */
static void lose(struct keeper *keeper, bool with_waiting)
{
	struct list lost;
	if (keeper->conn) {
		conn_close(keeper->conn, on_closed);
		keeper->conn = NULL;
	}
	list_init(&lost);
	take_children(keeper, false, &lost);
	if (with_waiting) {
		take_children(keeper, true, &lost);
	}
	while (!list_is_empty(&lost)) {
		struct keeper_child *child = list_first(&lost, struct keeper_child, link);
		tell(child, make_orphan(keeper, child) ? KEEPER_ORPHANED : KEEPER_LOST, 0);
	}
}

static void tell_ready(struct keeper *keeper)
{
	struct list ready;
	list_init(&ready);
	take_children(keeper, true, &ready);
	while (!list_is_empty(&ready)) {
		struct keeper_child *child = list_first(&ready, struct keeper_child, link);
		list_remove(&child->link);
		tell(child, KEEPER_READY, 0);
	}
}

/* ---- the keeper's news ----------------------------------------------------------------------- */

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct keeper *keeper = container_of(conn, struct link, conn)->keeper;
	struct keeper_child *child;
	struct keeper_news news;
	if (n_bytes != sizeof(news)) {
		return;
	}
	memcpy(&news, bytes, sizeof(news));
	list_for_each (child, &keeper->children, link) {
		if (child->id == news.child) {
			if (news.event == KEEPER_STARTED) {
				child->pidfd = fdlist_take(fds, 0);
			}
			tell(child, (enum keeper_event)news.event, news.value);
			return;
		}
	}
}

static void on_end(struct conn *conn, enum conn_end end, int error)
{
	log_error("glake-keeper died, and glake-mover with it");
	lose(container_of(conn, struct link, conn)->keeper, false);
}

/* ---- the starter's --------------------------------------------------------------------------- */

static void on_keeper(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct keeper *keeper = container_of(conn, struct keeper, starter);
	struct link *link = calloc(1, sizeof(*link));
	cleanup_fd int fd = fdlist_take(fds, 0);
	int error = 0;
	memcpy(&error, bytes, n_bytes < sizeof(error) ? n_bytes : sizeof(error));
	lose(keeper, false);
	int r = error ? -error : fd < 0 ? -EMFILE : !link ? -ENOMEM : 0;
	if (r == 0) {
		r = conn_open(&link->conn, keeper->loop, fd, on_packet, on_end);
	}
	if (r < 0) {
		log_error("cannot start glake-keeper: %s", strerror(-r));
		free(link);
		lose(keeper, true);
		return;
	}
	fd_steal(&fd);
	link->keeper = keeper;
	keeper->conn = &link->conn;
	tell_ready(keeper);
}

/* The keeper stays, but there will be no other after it. */
static void on_starter_end(struct conn *conn, enum conn_end end, int error)
{
	conn_close(conn, NULL);
}

/* ---- from above ------------------------------------------------------------------------------ */

int keeper_open(struct keeper *keeper, uv_loop_t *loop, int socket)
{
	*keeper = (struct keeper){.loop = loop, .starter.fd = -1};
	list_init(&keeper->children);
	list_init(&keeper->orphans);
	return socket < 0 ? 0
	                  : conn_open(&keeper->starter, loop, socket, on_keeper, on_starter_end);
}

void keeper_close(struct keeper *keeper)
{
	if (keeper->starter.fd >= 0) {
		conn_close(&keeper->starter, NULL);
	}
	lose(keeper, true);
	while (!list_is_empty(&keeper->orphans)) {
		tell(list_first(&keeper->orphans, struct keeper_child, link), KEEPER_LOST, 0);
	}
}

static int send_order(struct keeper *keeper, const struct keeper_order *order, const char *program,
                      const char *setting, const int *fd)
{
	char bytes[8192];
	size_t n_bytes = sizeof(*order);
	const char *strings[] = {program, setting};
	memcpy(bytes, order, n_bytes);
	for (size_t i = 0; i < n_elements(strings); i++) {
		size_t n = strings[i] ? strlen(strings[i]) + 1 : 0;
		if (n > sizeof(bytes) - n_bytes) {
			return -ENAMETOOLONG;
		}
		if (n > 0) {
			memcpy(bytes + n_bytes, strings[i], n);
			n_bytes += n;
		}
	}
	return conn_send(keeper->conn, bytes, n_bytes, fd, fd ? 1 : 0);
}

int keeper_start(struct keeper *keeper, struct keeper_child *child, const char *program,
                 const char *setting, int fd)
{
	struct keeper_order order = {.verb = KEEPER_START};
	if (keeper->conn) {
		order.child = ++keeper->last_id;
		int r = send_order(keeper, &order, program, setting, &fd);
		if (r < 0) {
			return r;
		}
	} else if (keeper->starter.fd < 0) {
		return -ECHILD;
	}
	child->id = order.child;
	child->pidfd = -1;
	child->watch = NULL;
	list_insert(&keeper->children, &child->link);
	return 0;
}

void keeper_kill(struct keeper *keeper, const struct keeper_child *child)
{
	const struct keeper_order order = {.child = child->id, .verb = KEEPER_KILL};
	if (keeper->conn && send_order(keeper, &order, NULL, NULL, NULL) < 0) {
		/* The shutdown ends the keeper, and its children with it. */
		shutdown(keeper->conn->fd, SHUT_RDWR);
	}
}

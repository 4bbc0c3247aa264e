/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/attendant.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libclient/elastic/thread.h"
#include "libclient/link/error.h"
#include "libclient/space/space.h"
#include "proto/cleanup.h"

struct glake__attendant {
	struct glake__attendant *next; /* link: elastic.attendants */
	glake__attendant_fn *follow;
	struct glake_elastic *elastic; /* borrowed: it ends behind this */
	struct glake__thread thread;
	int fd;                /* owned, by the thread */
	atomic_bool has_ended; /* the thread is as good as over: joining it takes no time */
	struct glake_elastic_reply *reply; /* owned: with room for all states of one */
};

/* ---- the thread ------------------------------------------------------------------------------- */

/* Whether there is one. False: the other end has closed, or this is no request. */
static bool hear(const struct glake__attendant *attendant, struct glake_elastic_request *request)
{
	/* MSG_TRUNC: a packet that is longer does not look like one. */
	ssize_t n = recv(attendant->fd, request, sizeof(*request), MSG_DONTWAIT | MSG_TRUNC);
	return n == sizeof(*request) && request->zero == 0;
}

/* A program that asks one thing at a time has room for its answer; one that does not is left. */
static bool answer(const struct glake__attendant *attendant,
                   const struct glake_elastic_request *request)
{
	struct glake_elastic_reply *reply = attendant->reply;
	memset(reply, 0, sizeof(*reply));
	reply->number = request->number;
	attendant->follow(attendant->elastic, request, reply);
	size_t n_bytes = sizeof(*reply) +
	                 (request->verb == GLAKE_ELASTIC_LOOK ? (size_t)reply->n : 0);
	return send(attendant->fd, reply, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n_bytes;
}

static void *run(void *user)
{
	struct glake__attendant *attendant = user;
	struct pollfd ready[] = {
		{.fd = attendant->thread.wanted, .events = POLLIN},
		{.fd = attendant->fd, .events = POLLIN},
	};
	bool goes_on = true;
	while (goes_on && !attendant->thread.is_over) {
		struct glake_elastic_request request;
		if (poll(ready, 2, -1) > 0 && ready[1].revents && !attendant->thread.is_over) {
			goes_on = hear(attendant, &request) && answer(attendant, &request);
		}
	}
	fd_close(&attendant->fd);
	attendant->has_ended = true;
	return NULL;
}

/* ---- the beginning and the end ---------------------------------------------------------------- */

static void attendant_free(struct glake__attendant *attendant)
{
	free(attendant->reply);
	free(attendant);
}

/* The first one, or the first whose thread has ended; it is in no list any more. NULL: there is none. */
static struct glake__attendant *take_out(struct glake__attendant **list, bool has_ended)
{
	glake__lock();
	while (*list && has_ended && !(*list)->has_ended) {
		list = &(*list)->next;
	}
	struct glake__attendant *at = *list;
	*list = at ? at->next : NULL;
	glake__unlock();
	return at;
}

static void end(struct glake__attendant *attendant, bool is_forked)
{
	glake__thread_end(&attendant->thread, is_forked);
	fd_close(&attendant->fd);
	attendant_free(attendant);
}

void glake__attendants_end(struct glake__attendant **list, bool is_forked)
{
	struct glake__attendant *at;
	while ((at = take_out(list, false))) {
		end(at, is_forked);
	}
}

/* 0: a socket as it has to be, to a process of this user. */
static int check_socket(int fd)
{
	int type = 0;
	socklen_t n_bytes = sizeof(type);
	struct ucred peer = {0};
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_bytes) < 0 || type != SOCK_SEQPACKET) {
		return glake__fail(-EINVAL, "fd %d is no socket of packets", fd);
	}
	n_bytes = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n_bytes) < 0 || peer.pid == 0) {
		return glake__fail(-EINVAL, "the socket is not connected");
	}
	return peer.uid == geteuid()
	               ? 0
	               : glake__fail(-EPERM, "the process at the other end is of user %u",
	                             peer.uid);
}

static int attendant_new(struct glake_elastic *elastic, uint32_t n_states,
                         struct glake__attendant **attendant_out)
{
	struct glake__attendant *attendant = calloc(1, sizeof(*attendant));
	struct glake_elastic_reply *reply = malloc(sizeof(*reply) + n_states);
	if (!attendant || !reply) {
		free(attendant);
		free(reply);
		return glake__fail(-ENOMEM, "out of memory");
	}
	*attendant = (struct glake__attendant){.elastic = elastic, .reply = reply};
	*attendant_out = attendant;
	return 0;
}

int glake__attendant_start(struct glake__attendant **list, int fd, uint32_t n_states,
                           glake__attendant_fn *follow, struct glake_elastic *elastic)
{
	struct glake__attendant *attendant;
	/* Those whose process has gone make room for the one that has come in its place. */
	while ((attendant = take_out(list, true))) {
		end(attendant, false);
	}
	int r = check_socket(fd);
	r = r < 0 ? r : attendant_new(elastic, n_states, &attendant);
	if (r < 0) {
		return r;
	}
	attendant->follow = follow;
	attendant->fd = fd;
	r = glake__thread_start(&attendant->thread, run, attendant);
	if (r < 0) {
		attendant_free(attendant);
		return r;
	}
	glake__lock();
	attendant->next = *list;
	*list = attendant;
	glake__unlock();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "libclient/elastic/thread.h"
#include "libclient/link/call.h"
#include "libclient/link/error.h"
#include "proto/clock.h"

/* The time between two looks at a session of which nothing is heard: what is lent is reported. */
#define LOOK_MS 100
/* For another thread of the program to read a packet that is its own answer. */
#define LET_NS 1000000u
/* While the connection is gone. */
#define REST_MS 20

struct glake__server {
	struct glake_session *session;
	struct glake__thread thread;
};

static bool is_over(const struct glake__server *server, int wait_ms)
{
	struct pollfd ready[] = {
		{.fd = server->thread.wanted, .events = POLLIN},
		{.fd = glake_fd(server->session), .events = POLLIN},
	};
	poll(ready, 2, wait_ms);
	if (ready[1].revents && !server->thread.is_over &&
	    glake__link_is_awaited(&server->session->link)) {
		clock_sleep_ns(LET_NS);
	}
	return server->thread.is_over;
}

static void *serve(void *user)
{
	struct glake__server *server = user;
	while (!is_over(server, LOOK_MS)) {
		if (glake_dispatch(server->session) < 0) {
			struct pollfd wanted = {.fd = server->thread.wanted, .events = POLLIN};
			poll(&wanted, 1, REST_MS);
		}
	}
	return NULL;
}

static void end(struct glake__server *server, bool is_forked)
{
	glake__thread_end(&server->thread, is_forked);
	free(server);
}

int glake__serve_start(struct glake_session *session)
{
	if (session->server) {
		return 0;
	}
	struct glake__server *server = calloc(1, sizeof(*server));
	if (!server) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	server->session = session;
	int r = glake__thread_start(&server->thread, serve, server);
	if (r < 0) {
		free(server);
		return r;
	}
	struct glake__server *none = NULL;
	if (!atomic_compare_exchange_strong(&session->server, &none, server)) {
		/* Another thread was first. */
		end(server, false);
	}
	return 0;
}

void glake__serve_stop(struct glake_session *session)
{
	struct glake__server *server = atomic_exchange(&session->server, NULL);
	if (server) {
		end(server, session->is_forked);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libclient/link/error.h"
#include "libclient/space/space.h"
#include "proto/clock.h"

/* Between two looks at a session of which nothing is heard: what is lent is reported. */
#define LOOK_MS 100
/* For another thread of the program to read a packet that is its own answer. */
#define LET_NS 1000000u
/* While the connection is gone. */
#define REST_MS 20

struct glake__server {
	struct glake_session *session;
	pthread_t thread;
	int stop; /* owned: an eventfd, readable when it is to end */
};

static bool is_over(const struct glake__server *server, int wait_ms)
{
	struct pollfd ready[] = {
		{.fd = server->stop, .events = POLLIN},
		{.fd = glake_fd(server->session), .events = POLLIN},
	};
	poll(ready, 2, wait_ms);
	if (ready[1].revents && !ready[0].revents) {
		clock_sleep_ns(LET_NS);
	}
	return ready[0].revents != 0;
}

static void *serve(void *user)
{
	struct glake__server *server = user;
	while (!is_over(server, LOOK_MS)) {
		if (glake_dispatch(server->session) < 0) {
			struct pollfd stop = {.fd = server->stop, .events = POLLIN};
			poll(&stop, 1, REST_MS);
		}
	}
	return NULL;
}

/* No signal of the program ends up in it. */
static int start_thread(struct glake__server *server)
{
	sigset_t all;
	sigset_t before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&server->thread, NULL, serve, server);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error ? glake__fail(-EAGAIN, "no thread can be started") : 0;
}

/* In a forked child there is no such thread. */
static void end(struct glake__server *server, bool is_forked)
{
	if (!is_forked) {
		const uint64_t one = 1;
		while (write(server->stop, &one, sizeof(one)) < 0 && errno == EINTR) {
		}
		pthread_join(server->thread, NULL);
	}
	close(server->stop);
	free(server);
}

int glake__serve_start(struct glake_session *session)
{
	if (session->server) {
		return 0;
	}
	struct glake__server *server = calloc(1, sizeof(*server));
	int stop = server ? eventfd(0, EFD_CLOEXEC) : -1;
	if (stop < 0) {
		free(server);
		return glake__fail(-ENOMEM, "out of memory, or of file descriptors");
	}
	*server = (struct glake__server){.session = session, .stop = stop};
	int r = start_thread(server);
	if (r < 0) {
		close(stop);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/elastic/ahead.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "libclient/elastic/thread.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/error.h"

struct glake__ahead {
	struct glake_session *session;
	glake__ahead_fn *make_one;
	struct glake__thread thread;
};

/* Notices are delivered between two steps, while no range is in hand: others may wait for what the thread has read meanwhile. */
static void *run(void *user)
{
	struct glake__ahead *ahead = user;
	struct pollfd wanted = {.fd = ahead->thread.wanted, .events = POLLIN};
	while (!ahead->thread.is_over) {
		poll(&wanted, 1, -1);
		glake__thread_hear(&ahead->thread);
		while (!ahead->thread.is_over && ahead->make_one(ahead->session)) {
			glake__leave(ahead->session, 0);
		}
	}
	return NULL;
}

static void end(struct glake__ahead *ahead, bool is_forked)
{
	glake__thread_end(&ahead->thread, is_forked);
	free(ahead);
}

static int start(struct glake_session *session, glake__ahead_fn *make_one)
{
	struct glake__ahead *ahead = calloc(1, sizeof(*ahead));
	if (!ahead) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	ahead->session = session;
	ahead->make_one = make_one;
	int r = glake__thread_start(&ahead->thread, run, ahead);
	if (r < 0) {
		free(ahead);
		return r;
	}
	struct glake__ahead *none = NULL;
	if (!atomic_compare_exchange_strong(&session->ahead, &none, ahead)) {
		/* Another thread was first. */
		end(ahead, false);
	}
	return 0;
}

int glake__ahead_ask(struct glake_session *session, glake__ahead_fn *make_one)
{
	int r = session->ahead ? 0 : start(session, make_one);
	if (r == 0) {
		glake__thread_ring(&session->ahead->thread);
	}
	return r;
}

void glake__ahead_stop(struct glake_session *session)
{
	struct glake__ahead *ahead = atomic_exchange(&session->ahead, NULL);
	if (ahead) {
		end(ahead, session->is_forked);
	}
}

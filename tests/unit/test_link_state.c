/* SPDX-License-Identifier: Apache-2.0 */
/* The states that a link may go to, and what its users make of each. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libclient/link/call.h"
#include "libclient/link/resume.h"
#include "libclient/link/session.h"
#include "libclient/link/state.h"
#include "tests/check_glake.h"
#include "tests/unit/fake_daemon.h"

#define N GLAKE__N_LINK_STATES

/* From the row to the column, in the order of the enum. */
static const char table[N][N + 1] = {
	/* GREETING */ "-O---G",
	/* OPEN     */ "--DL-G",
	/* DRAINING */ "-----G",
	/* LOST     */ "----R-",
	/* RESUMING */ "-O-L-G",
	/* GONE     */ "------",
};

START_TEST(only_these_moves_are_made)
{
	for (int from = 0; from < N; from++) {
		for (int to = 0; to < N; to++) {
			_Atomic(enum glake__link_state) state = (enum glake__link_state)from;
			bool is_legal = table[from][to] != '-';
			ck_assert_int_eq(glake__state_move(&state, (enum glake__link_state)to),
			                 is_legal);
			ck_assert_int_eq((int)state, is_legal ? to : from);
		}
	}
}
END_TEST

START_TEST(it_is_up_or_not)
{
	for (int state = 0; state < N; state++) {
		ck_assert_int_eq(glake__state_is_up((enum glake__link_state)state),
		                 state <= GLAKE__LINK_DRAINING);
	}
}
END_TEST

/* ---- a session's ------------------------------------------------------------------------------- */

static struct glake_session *session;

static struct glake_session *connect_new(void)
{
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	ck_assert_int_eq(glake_connect(&options, &session), 0);
	ck_assert_int_eq(session->link.state, GLAKE__LINK_OPEN);
	return session;
}

static void end_with(int error)
{
	struct glake__link *link = &session->link;
	pthread_mutex_lock(&link->lock);
	glake__link_fail(link, error, "for a test");
	pthread_mutex_unlock(&link->lock);
	ck_assert_int_eq(link->error, error);
	ck_assert(!glake__state_is_up(link->state));
}

/* Ends are noted once: the first one says why. */
START_TEST(how_it_ends_depends_on_what_it_was)
{
	static const struct {
		bool has_key;
		bool is_draining;
		int error;
		enum glake__link_state wanted;
	} ends[] = {
		{true, false, GLAKE_E_GONE, GLAKE__LINK_LOST},
		{false, false, GLAKE_E_GONE, GLAKE__LINK_GONE},
		{true, true, GLAKE_E_GONE, GLAKE__LINK_GONE},
		{true, false, GLAKE_E_PROTOCOL, GLAKE__LINK_GONE},
		{true, true, GLAKE_E_PROTOCOL, GLAKE__LINK_GONE},
	};
	for (size_t i = 0; i < n_elements(ends); i++) {
		struct fake_daemon fake = {0};
		fake_start(&fake);
		struct glake__link *link = &connect_new()->link;
		link->has_key = ends[i].has_key;
		if (ends[i].is_draining) {
			glake__state_move(&link->state, GLAKE__LINK_DRAINING);
		}
		end_with(ends[i].error);
		ck_assert_int_eq(link->state, ends[i].wanted);
		ck_assert_int_eq(glake__link_is_gone(link), ends[i].wanted == GLAKE__LINK_GONE);
		ck_assert_int_eq(glake_fd(session), -1);
		pthread_mutex_lock(&link->lock);
		glake__link_fail(link, -EIO, "later");
		pthread_mutex_unlock(&link->lock);
		ck_assert_int_eq(link->error, ends[i].error);
		ck_assert_int_eq(link->state, ends[i].wanted);
		glake_disconnect(session);
		fake_stop(&fake);
	}
}
END_TEST

/* A chunk given back while the link is lost is told with the next connection; while it is resumed, or gone, none is noted. */
START_TEST(only_a_lost_one_is_owed_something)
{
	const uint64_t id = 7;
	const struct glake__call call = {.released = &id, .n_released = 1};
	struct fake_daemon fake = {0};
	fake_start(&fake);
	struct glake__link *link = &connect_new()->link;
	for (int state = 0; state < N; state++) {
		link->state = (enum glake__link_state)state;
		ck_assert_int_eq(glake__link_owe(link, &call), state == GLAKE__LINK_LOST);
	}
	ck_assert_uint_eq(link->n_released, 1);
	link->n_released = 0;
	link->state = GLAKE__LINK_OPEN;
	glake_disconnect(session);
	fake_stop(&fake);
}
END_TEST

static bool end_itself(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	Glake__Wire__ShuttingDown ends = GLAKE__WIRE__SHUTTING_DOWN__INIT;
	Glake__Wire__Answer notice = GLAKE__WIRE__ANSWER__INIT;
	static unsigned n_pings;
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_PING) {
		return false;
	}
	if (++n_pings == 3) {
		fake_hang_up(fake);
		return true;
	}
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_SHUTTING_DOWN;
	notice.shutting_down = &ends;
	fake_send(fake, &notice, NULL, 0);
	return false;
}

/* The daemon answers on, until the connection ends. */
START_TEST(a_daemon_that_ends_takes_the_session_along)
{
	struct fake_daemon fake = {.script = end_itself};
	fake_start(&fake);
	struct glake__link *link = &connect_new()->link;
	link->has_key = true;
	ck_assert_int_eq(glake_ping(session), 0);
	ck_assert_int_eq(link->state, GLAKE__LINK_DRAINING);
	ck_assert_int_eq(glake_ping(session), 0);
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	ck_assert_int_eq(link->state, GLAKE__LINK_GONE);
	glake_disconnect(session);
	fake_stop(&fake);
}
END_TEST

static void *close_at_once(void *listener)
{
	int fd;
	while ((fd = accept(*(int *)listener, NULL, NULL)) >= 0) {
		close(fd);
	}
	return NULL;
}

/* A daemon that dies while it is greeted: whether the greeting could be sent or not, it is lost as before. */
START_TEST(a_daemon_may_end_while_it_is_greeted)
{
	struct fake_daemon fake = {0};
	fake_start(&fake);
	struct glake__link *link = &connect_new()->link;
	link->has_key = true;
	end_with(GLAKE_E_GONE);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, link->path);
	unlink(link->path);
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(listener, 8), 0);
	pthread_t thread;
	pthread_create(&thread, NULL, close_at_once, &listener);
	for (int i = 0; i < 1000; i++) {
		link->retry_ns = 0;
		ck_assert_int_eq(glake__resume(link, false), GLAKE_E_GONE);
		ck_assert_int_eq(link->state, GLAKE__LINK_LOST);
	}
	shutdown(listener, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(listener);
	glake_disconnect(session);
	fake_stop(&fake);
}
END_TEST

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/party.h"

#include "libclient/link/session.h"
#include "libclient/space/space.h"
#include "proto/clock.h"

/* The pause between two looks whether those that leave have left. */
#define LEAVE_PAUSE_NS 200000u

bool glake__party_is_all(void)
{
	return glake__space.gate.sleep != NULL;
}

/* ---- the lock --------------------------------------------------------------------------------- */

static pthread_mutex_t *lock_of(struct glake_session *session)
{
	return glake__party_is_all() ? &glake__space.sleep_lock : &session->sleep_lock;
}

bool glake__party_is_left(void)
{
	return glake__space.n_leaving > 0;
}

static void let_leave(void)
{
	while (glake__party_is_left()) {
		clock_sleep_ns(LEAVE_PAUSE_NS);
	}
}

void glake__party_lock(struct glake_session *session)
{
	let_leave();
	pthread_mutex_lock(lock_of(session));
}

bool glake__party_try_lock(struct glake_session *session)
{
	let_leave();
	return pthread_mutex_trylock(lock_of(session)) == 0;
}

void glake__party_unlock(struct glake_session *session)
{
	pthread_mutex_unlock(lock_of(session));
}

/* ---- its members ------------------------------------------------------------------------------ */

void glake__party_join(struct glake_session *session)
{
	glake__lock();
	struct glake_session **at = &glake__space.sessions;
	while (*at) {
		at = &(*at)->next;
	}
	*at = session;
	glake__unlock();
}

static void take_out(const struct glake_session *session)
{
	glake__lock();
	struct glake_session **at = &glake__space.sessions;
	while (*at && *at != session) {
		at = &(*at)->next;
	}
	if (*at) {
		*at = session->next;
	}
	glake__unlock();
}

void glake__party_leave(struct glake_session *session)
{
	const bool is_all = glake__party_is_all();
	glake__space.n_leaving += is_all;
	pthread_mutex_lock(lock_of(session));
	glake__space.n_leaving -= is_all;
	take_out(session);
}

struct glake_session *glake__party_first(struct glake_session *session)
{
	glake__lock();
	struct glake_session *first = glake__party_is_all() ? glake__space.sessions : session;
	glake__unlock();
	return first;
}

struct glake_session *glake__party_next(const struct glake_session *session)
{
	glake__lock();
	struct glake_session *next = glake__party_is_all() ? session->next : NULL;
	glake__unlock();
	return next;
}

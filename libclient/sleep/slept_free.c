/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/slept_free.h"

#include "libclient/heap/heap.h"
#include "libclient/link/session.h"
#include "libclient/sleep/party.h"
#include "libclient/sleep/sleeping.h"
#include "proto/cleanup.h"

bool glake__sleep_free(struct glake_session *session, struct glake__allocation *allocation)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__chunk *dead = NULL;
	if (session->asleep && glake__heap_release_part(allocation)) {
		return true;
	}
	/* A thread that wakes the session has the lock for long. */
	if (!session->asleep || !glake__party_try_lock(session)) {
		return false;
	}
	struct glake__sleeping *sleeping = session->asleep;
	struct glake__range *range = glake__heap_range_of(allocation);
	bool is_free = sleeping && range && glake__asleep_drop(&sleeping->memory, range, &dead);
	if (is_free) {
		glake__heap_release_gone(session, allocation, dead);
	}
	glake__party_unlock(session);
	return is_free;
}

/* In a forked child there is no lock, and no party. */
static void forget(struct glake_session *session)
{
	struct glake__sleeping *sleeping = session->asleep;
	if (sleeping) {
		glake__asleep_forget(&sleeping->memory);
		sleeping->next = NULL;
		glake__sleeping_drop(sleeping);
		session->asleep = NULL;
		glake__sleeping_end_late_of(session);
	}
}

void glake__sleep_end(struct glake_session *session)
{
	if (session->is_forked) {
		forget(session);
		return;
	}
	glake__party_leave(session);
	struct glake__sleeping *sleeping = session->asleep;
	if (sleeping) {
		sleeping->next = NULL;
		glake__sleeping_end(sleeping, session);
		glake__sleeping_drop(sleeping);
	}
	glake__party_unlock(session);
	if (sleeping) {
		glake__sleeping_end_late_of(session);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/sessions.h"

#include "libclient/heap/heap.h"
#include "libclient/heap/usage.h"
#include "libclient/link/session.h"

bool glake__sessions_enter_locked(struct glake__sessions *sessions, struct glake_session *session)
{
	size_t i = 0;
	while (i < sessions->n && sessions->list[i] != session) {
		i++;
	}
	if (i == GLAKE__MAX_ENTERED) {
		return false;
	}
	if (i == sessions->n) {
		glake__heap_hold_session_locked(session);
		sessions->list[sessions->n++] = session;
	}
	return true;
}

int glake__sessions_leave(struct glake__sessions *sessions, int result)
{
	for (size_t i = 0; i < sessions->n; i++) {
		glake__usage_report_now(sessions->list[i]);
		glake__heap_leave(sessions->list[i], result);
	}
	return result;
}

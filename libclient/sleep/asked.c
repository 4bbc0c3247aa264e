/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/asked.h"

#include <stdio.h>

#include "libclient/link/error.h"
#include "libclient/link/report.h"
#include "libclient/link/session.h"
#include "libclient/sleep/sleep.h"
#include "libclient/sleep/wake.h"

/* Without the shim nobody knows of work under way; this is for other threads at work on the memory. */
#define PATIENCE_NS 5000000000u

struct work {
	struct glake_session *session;
	uint64_t id;
	struct glake__sleep_report report;
};

static void tell(struct work *work)
{
	glake__sleep_tell(work->session, work->id, &work->report);
}

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct work *work = user;
	work->report.done_bytes = done_bytes;
	work->report.total_bytes = total_bytes;
	tell(work);
}

static void on_ask(void *user, uint64_t id, bool wakes, uint32_t why)
{
	struct glake_session *session = user;
	pthread_mutex_lock(&session->link.lock);
	session->asked = (struct glake__asked){.id = id, .wakes = wakes, .why = why};
	pthread_mutex_unlock(&session->link.lock);
}

static struct glake__asked take(struct glake_session *session)
{
	pthread_mutex_lock(&session->link.lock);
	struct glake__asked asked = session->asked;
	session->asked.id = 0;
	pthread_mutex_unlock(&session->link.lock);
	return asked;
}

static void follow(struct glake_session *session)
{
	const struct glake__asked asked = take(session);
	struct work work = {.session = session, .id = asked.id};
	struct glake_slept slept;
	char why[256];
	if (!asked.id) {
		return;
	}
	char *text = glake__error_save();
	/* glaked waits only for programs that answer. */
	tell(&work);
	int r = asked.wakes ? glake__wake(session, &slept)
	                    : glake__sleep(session, (enum glake__sleep_why)asked.why, PATIENCE_NS,
	                                   on_progress, &work, &slept);
	snprintf(why, sizeof(why), "%s", r < 0 ? glake_error() : "");
	work.report.is_over = true;
	work.report.error = r;
	work.report.why = why;
	work.report.is_asleep = glake__is_asleep(session);
	work.report.slept = &slept;
	tell(&work);
	glake__error_restore(text);
}

void glake__asked_begin(struct glake_session *session)
{
	session->follow = follow;
	glake__sleep_follow(session, on_ask, session);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/usage.h"

#include <string.h>

#include "libclient/clock.h"
#include "libclient/sized.h"

/* Called with the books lock held. */
static uint64_t warm_bytes_locked(const struct glake_session *session)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		n_bytes += session->devices[i].warm.n_bytes;
	}
	return n_bytes;
}

static void measure(struct glake_session *session, uint64_t numbers_out[2])
{
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	numbers_out[0] = books->live_bytes;
	numbers_out[1] = warm_bytes_locked(session);
	pthread_mutex_unlock(&books->lock);
}

/* True if a report is due, or wanted now; it is then taken as sent. */
static bool is_due(struct glake_session *session, const uint64_t numbers[2], bool is_wanted)
{
	pthread_mutex_lock(&session->usage_lock);
	uint64_t now_ns = glake__clock_ns();
	bool due = is_wanted ||
	           (now_ns - session->usage_sent_ns >= USAGE_PERIOD_NS &&
	            memcmp(numbers, session->usage_sent, sizeof(session->usage_sent)) != 0);
	if (due) {
		session->usage_sent_ns = now_ns;
		memcpy(session->usage_sent, numbers, sizeof(session->usage_sent));
	}
	pthread_mutex_unlock(&session->usage_lock);
	return due;
}

/* @reclaim: the id of what it answers; 0 = nothing. */
static void report(struct glake_session *session, uint64_t reclaim)
{
	uint64_t numbers[2];
	measure(session, numbers);
	if (!is_due(session, numbers, reclaim != 0)) {
		return;
	}
	Glake__Wire__UsageReport usage = GLAKE__WIRE__USAGE_REPORT__INIT;
	usage.live_bytes = numbers[0];
	usage.warm_bytes = numbers[1];
	usage.reclaim = reclaim;
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT;
	request.usage_report = &usage;
	glake__call_forget(session, &request);
}

void glake__usage_report(struct glake_session *session)
{
	report(session, 0);
}

void glake__usage_answer(struct glake_session *session, uint64_t id)
{
	report(session, id);
}

int glake_usage(struct glake_session *session, struct glake_usage *usage)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	struct glake_usage full = {
		.live_bytes = books->live_bytes,
		.reserved_bytes = books->reserved_bytes,
		.warm_bytes = warm_bytes_locked(session),
		.shared_bytes = books->shared_bytes,
		.n_warm_allocs = books->n_warm_allocs,
		.n_cold_allocs = books->n_cold_allocs,
	};
	pthread_mutex_unlock(&books->lock);
	return glake__sized_out(usage, &full, sizeof(full));
}

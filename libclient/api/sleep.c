/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of sleep (sleep/). */
#include "glake.h"

#include "libclient/link/session.h"
#include "libclient/link/sized.h"
#include "libclient/sleep/sleep.h"
#include "libclient/sleep/wake.h"

static int check(const struct glake_session *session, const struct glake_slept *slept_out)
{
	int r = glake__session_check(session);
	return r == 0 && slept_out ? glake__sized_check(slept_out) : r;
}

static int give(int result, struct glake_slept *slept, struct glake_slept *slept_out)
{
	return result == 0 && slept_out ? glake__sized_out(slept_out, slept, sizeof(*slept))
	                                : result;
}

int glake_sleep(struct glake_session *session, uint32_t timeout_ms, struct glake_slept *slept_out)
{
	struct glake_slept slept;
	int r = check(session, slept_out);
	return r < 0 ? r
	             : give(glake__sleep(session, GLAKE__SLEEP_SELF, timeout_ms * 1000000ull, NULL,
	                                 NULL, &slept),
	                    &slept, slept_out);
}

int glake_wake(struct glake_session *session, struct glake_slept *slept_out)
{
	struct glake_slept slept;
	int r = check(session, slept_out);
	return r < 0 ? r : give(glake__wake(session, &slept), &slept, slept_out);
}

int glake_is_asleep(const struct glake_session *session)
{
	return session && glake__is_asleep(session);
}

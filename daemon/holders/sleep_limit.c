/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/sleep_limit.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/memory/location.h"
#include "daemon/memory/promise.h"

/* Named in an error; of the others the number. */
#define MAX_NAMED 2u

/* The bytes that the sleeper has there, which stay, and those that a wake brings: all that it was promised, if that is more. */
static uint64_t needs(const struct sleeper *sleeper, const struct location *at)
{
	const struct holder_location *has = &sleeper->holder->at[at->slot];
	uint64_t bytes = has->reserved_bytes + has->shared_bytes;
	const struct slept *slept;
	list_for_each (slept, &sleeper->slept, link) {
		bytes += slept->at == at && slept->held->kind == HELD_SLEPT ? slept->bytes : 0;
	}
	return has->promise && has->promise->bytes > bytes ? has->promise->bytes : bytes;
}

bool sleep_limit_lets_wake(const struct holders *holders, const struct tenant *tenant,
                           const struct location *at, uint64_t quota_bytes, char *error_out)
{
	const struct sleeper *sleeper;
	unsigned n = 0;
	int n_text = 0;
	if (at->kind != LOCATION_GPU) {
		return true;
	}
	list_for_each (sleeper, &holders->sleepers, link) {
		const struct holder *holder = sleeper->holder;
		uint64_t bytes = needs(sleeper, at);
		if (holder->tenant != tenant || quota_bytes == 0 || bytes <= quota_bytes) {
			continue;
		}
		if (n++ < MAX_NAMED) {
			n_text += snprintf(
				error_out + n_text, SLEEP_ERROR_BYTES - (size_t)n_text,
				"%ssession %" PRIu64 " (pid %d) sleeps and needs %" PRIu64 " bytes",
				n > 1 ? "; " : "", holder->id, (int)holder->peer.pid, bytes);
		}
	}
	if (n > MAX_NAMED) {
		snprintf(error_out + n_text, SLEEP_ERROR_BYTES - (size_t)n_text, "; and %u more",
		         n - MAX_NAMED);
	}
	return n == 0;
}

static void tell_of(const struct sleeper *sleeper, const struct location *at)
{
	const struct holder *holder = sleeper->holder;
	uint64_t quota_bytes = holder->tenant->at[at->slot].quota_bytes;
	uint64_t bytes = needs(sleeper, at);
	char name[LOCATION_NAME_BYTES];
	const struct event_subject subject = holder_subject(holder);
	if (at->kind == LOCATION_GPU && quota_bytes > 0 && bytes > quota_bytes &&
	    sleeper->context->events) {
		events_add(sleeper->context->events, EVENT_LIMIT_TOO_SMALL, &subject,
		           "session %" PRIu64 " (pid %d) sleeps and cannot wake: it needs %" PRIu64
		           " bytes on %s, and tenant %s may have %" PRIu64,
		           holder->id, (int)holder->peer.pid, bytes, location_name(at, name),
		           holder->tenant->name, quota_bytes);
	}
}

void sleep_limit_tell(const struct holders *holders, const struct tenant *tenant)
{
	const struct sleeper *sleeper;
	list_for_each (sleeper, &holders->sleepers, link) {
		for (uint32_t i = 0; i < holders->n_locations; i++) {
			if (sleeper->holder->tenant &&
			    (!tenant || sleeper->holder->tenant == tenant)) {
				tell_of(sleeper, holders->locations[i]);
			}
		}
	}
}

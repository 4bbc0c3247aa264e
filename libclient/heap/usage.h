/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports to the daemon, for listings: live, warm and peak bytes, sealing, memory in stream order, and the
 * program's own numbers.
 *
 * A report is sent after another request, or at glake_dispatch(), if the numbers have changed and
 * the last report is USAGE_PERIOD_NS old; after sealing at once, since no request may follow. A burst of requests ends
 * without one, and needs none: glaked counts chunks that came or went since the last report as live. What it would count
 * wrongly is reported at once: warm memory that is given back. The warm path
 * never reports. The answer to a Reclaim is sent at once, because another session's request waits for it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_USAGE_H
#define GLAKE_LIBCLIENT_USAGE_H

#include <stddef.h>
#include <stdint.h>

#include "glake.h"

#define USAGE_PERIOD_NS (100ull * 1000 * 1000)

/* Never blocks for an answer; failures are the next request's news. No lock is held. */
void glake__usage_report(struct glake_session *session);

/* Reports now, if the numbers have changed: the program has sealed or unsealed. */
void glake__usage_report_now(struct glake_session *session);

/* Reports at once: the daemon's Reclaim of that @id (0 = it has none) has been followed. */
void glake__usage_answer(struct glake_session *session, uint64_t id);

/*
 * Driver usage: memory of one device that a program has from the driver, without contexts and
 * code.
 */
struct glake__driver_memory {
	uint32_t device;        /* glaked's index */
	uint64_t managed_bytes; /* as asked for: how much of it is on the device is not known */
	uint64_t array_bytes;
	uint64_t graph_bytes; /* kept for the allocations of graphs */
	uint64_t other_bytes; /* allocations and pools */
};

/* The fields are those of Alone in glake.proto. */
struct glake__alone {
	uint64_t filling_bytes;
	uint64_t quiet_bytes;
	uint64_t sealed_bytes;
	uint64_t refused_bytes;
	uint64_t n_refused_launches;
	char why[320];
};

struct glake__program_usage {
	uint64_t n_owned;  /* allocations served with memory of glaked */
	uint64_t n_passed; /* allocations left to the driver that glaked should have served */
	const struct glake__driver_memory *driver; /* borrowed; each device at most once */
	size_t n_driver;
	const struct glake__alone
		*alone; /* borrowed, zeroed behind its text; NULL: it seals when asked */
	uint64_t
		idle_since_ns; /* clock_now_ns() when it was last seen to work on a GPU; 0: it does, or nobody knows */
};

/*
 * Set the numbers that only the program knows. The next report tells glaked, for listings. They
 * replace the earlier ones. Local. Errors, after which nothing has changed: -ENODEV (no such
 * device), -EINVAL (a device is there twice).
 */
int glake__set_program_usage(struct glake_session *session,
                             const struct glake__program_usage *usage);

/* Tell glaked now what the session uses, and wait until it has heard. Errors: request errors. */
int glake__tell_usage(struct glake_session *session);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: what an operator must know. EVENTS_KEPT are kept; then the oldest of the realm that has most of them goes.
 * Those that clients report have as many places of their own, and so have refusals, which clients cause. Each is a line of
 * the log as well, but only a limited number of one realm (log_limits.h): a warning for a refusal, information for what an
 * operator did, else an error.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_EVENTS_H
#define GLAKE_DAEMON_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/log_limits.h"
#include "daemon/base/stats.h"

#define EVENTS_KEPT 512u
#define EVENT_REALM_BYTES 64u
#define EVENT_TEXT_BYTES 448u
/* A longer cgroup loses its end: the pod comes first. */
#define EVENT_CGROUP_BYTES 320u
#define EVENT_NAME_BYTES 64

enum event_kind {
	EVENT_BLOCK_DAMAGED,  /* the content of a block is not that of its digest any more */
	EVENT_DEVICE_FAULT,   /* a program lost its context */
	EVENT_LAUNCH_REFUSED, /* what it might write to was sealed, and could not become private */
	EVENT_MOVER_FAILED,   /* glake-mover ended without being asked to, or cannot be started */
	EVENT_COPY_DAMAGED,   /* what a program that sleeps has is damaged in host memory */
	EVENT_WAKE_REFUSED, /* a program that sleeps wants to wake, and has had no room for long */
	EVENT_LIMIT_TOO_SMALL, /* a tenant's limit is less than what a program needs that sleeps */
	EVENT_MEMORY_REFUSED,  /* a program was refused memory (holders/refused.h) */
	EVENT_DRAIN,           /* no new program is let in any more, or they are again */
	EVENT_CONFIG,          /* the configuration was read again */
	EVENT_N_KINDS,
};

/* The last refusal that an EVENT_MEMORY_REFUSED is about. */
struct event_refusal {
	uint64_t n;        /* refusals that the event is about; 0: it is no such event */
	const char *bound; /* memory/bound.h; static */
	bool is_host;      /* the location: a host node, or a GPU */
	uint32_t number;
	uint64_t wanted; /* bytes, or fds; and so the next */
	uint64_t used;
	uint64_t limit;
	char tenant[EVENT_NAME_BYTES];
	char program[EVENT_NAME_BYTES]; /* as its client calls it */
};

struct event {
	uint64_t id;      /* from 1 on, in the order of their coming */
	uint64_t time_ms; /* since 1970 */
	enum event_kind kind;
	int pid;                         /* 0 = of none */
	uint64_t session;                /* 0 = of none */
	char realm[EVENT_REALM_BYTES];   /* "" = of none: only admins see it */
	char text[EVENT_TEXT_BYTES];     /* one line, safe to show */
	char cgroup[EVENT_CGROUP_BYTES]; /* of the process, as it connected; "" = not known */
	struct event_refusal refusal;
};

struct event_list {
	struct event places[EVENTS_KEPT];
	uint64_t realms[EVENTS_KEPT];   /* the names' hashes, by place */
	unsigned in_order[EVENTS_KEPT]; /* places, the oldest first */
	unsigned n;
};

struct events {
	struct event_list own;
	struct event_list of_clients;
	struct event_list refusals;
	struct log_limits limits;         /* of lines, by realm */
	struct log_limits refusal_limits; /* limits of refusals: they keep no other line out */
	uint64_t last_id;
	struct stats *stats; /* borrowed */
};

/* Whom an event is about. All members may be 0. */
struct event_subject {
	const char *realm;
	uint64_t session;
	int pid;
	const char *cgroup; /* of the process, clean */
	struct log_limit
		*limit; /* of the client that reports it; NULL: glaked itself has found it */
	const struct event_refusal *refusal; /* of EVENT_MEMORY_REFUSED; copied */
};

void events_init(struct events *events, struct stats *stats);

/* Returns false if the subject's limit is spent: the event is neither kept nor logged. */
__attribute__((format(printf, 4, 5))) bool events_add(struct events *events, enum event_kind kind,
                                                      const struct event_subject *subject,
                                                      const char *format, ...);

/* The oldest event that is kept and whose id is greater than @after. NULL: there is none. */
const struct event *events_next(const struct events *events, uint64_t after);

/* "block_damaged" and so on. Static. */
const char *event_kind_name(enum event_kind kind);

#endif

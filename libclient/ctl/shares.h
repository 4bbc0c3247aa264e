/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has the memory of a snapshot's devices: each byte of their chunks once.
 *
 * Private chunks are of their session. A block is of all sessions that have it mapped, in equal parts, as the PSS of a
 * process is. Sessions of one pod, container and tenant are one row, which outlives each of them. So programs that come and
 * go make no rows of their own, and there is a row for each tenant, in no pod, whether it has sessions or not.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; shares_deinit(), before the snapshot ends.
 * Threads: one.
 */
#ifndef GLAKE_CTL_SHARES_H
#define GLAKE_CTL_SHARES_H

#include "ctl/identity.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"

/* Rows beyond this many of pods are one, "other": names of pods come and go, too. */
#define SHARES_MAX_PODS 500u

struct share_device {
	double part_bytes;     /* of blocks */
	uint64_t shared_bytes; /* the same in whole bytes, which add up as the parts do */
	uint64_t private_bytes;
	uint64_t
		driver_bytes; /* of its processes, without managed memory; by NVML, or as they report */
};

/* Texts are borrowed from the snapshot, and from the shares. */
struct share {
	const char *namespace;
	const char *pod; /* the name, or the UID if nobody knows that; "" = in none */
	const char *container;
	const char *tenant;
	uint64_t n_sessions;
	uint64_t live_bytes; /* this and the next as programs report */
	uint64_t warm_bytes;
	uint64_t host_bytes; /* private chunks in host memory */
	uint64_t n_sleepers;
	uint64_t asleep_private_bytes;
	uint64_t asleep_shared_bytes;
	uint64_t n_waiting;      /* sessions with a request that waits for memory, */
	uint64_t waiting_ms;     /* and the longest of these waits so far */
	uint64_t n_refused;      /* requests for memory, of programs that have ended as well */
	struct share_device *at; /* owned; by the snapshot's devices */
};

/* The memory of a device that no session has. */
struct share_rest {
	uint64_t cache_bytes; /* made ahead, and blocks that nobody uses */
	uint64_t other_bytes; /* being loaded, or of sessions that this one may not see */
};

struct shares {
	struct identities places;
	struct rows list; /* struct share */
	struct rows rest; /* struct share_rest, by the snapshot's devices */
};

/* Returns 0 or -ENOMEM. It is to be ended either way. */
int shares_of(const struct snapshot *snapshot, struct shares *shares_out);
void shares_deinit(struct shares *shares);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds: what a request for memory can meet. One list makes the enum, the names on the wire, and how each is counted.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_BOUND_H
#define GLAKE_DAEMON_BOUND_H

/*
 * X(NAME, name on the wire, the counter of base/stats.h, status)
 *
 * QUOTA        the tenant's bytes at the location
 * PROMISE      what the process was promised there
 * ROOM         the location is full, and no more can be taken back
 * RESERVE      the location is full but for the reserve for unsealing (reserve.h)
 * TENANT_FDS   the tenant's fds
 * FDS          the fd budget of glaked
 * MANIFESTS    the tenant's bytes for manifests
 * USER_SHARE   the user's share of these
 */
#define BOUND_LIST(X) \
	X(QUOTA, "quota", quota_refusals, OVER_QUOTA) \
	X(PROMISE, "promise", quota_refusals, OVER_QUOTA) \
	X(ROOM, "room", memory_refusals, NO_DEVICE_MEMORY) \
	X(RESERVE, "reserve", memory_refusals, NO_DEVICE_MEMORY) \
	X(TENANT_FDS, "tenant_fds", quota_refusals, NO_FDS) \
	X(FDS, "fds", fd_refusals, NO_FDS) \
	X(MANIFESTS, "manifests", quota_refusals, OVER_QUOTA) \
	X(USER_SHARE, "user_share", quota_refusals, OVER_QUOTA)

enum bound {
	BOUND_NONE, /* it was no bound: an error */
#define BOUND_ENUM(name, ...) BOUND_##name,
	BOUND_LIST(BOUND_ENUM)
#undef BOUND_ENUM
		N_BOUNDS,
};

/* "quota" and so on; BOUND_NONE: "". Static. */
const char *bound_name(enum bound bound);

#endif

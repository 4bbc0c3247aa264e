/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/shares.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/memory.h"
#include "ctl/pod_refusals.h"

void shares_deinit(struct shares *shares)
{
	for (size_t i = 0; i < shares->list.n; i++) {
		free(((struct share *)rows_at(&shares->list, i))->at);
	}
	rows_deinit(&shares->list);
	rows_deinit(&shares->rest);
	identities_deinit(&shares->places);
}

static bool is_same(const struct share *left, const struct share *right)
{
	return strcmp(left->tenant, right->tenant) == 0 && strcmp(left->pod, right->pod) == 0 &&
	       strcmp(left->container, right->container) == 0 &&
	       strcmp(left->namespace, right->namespace) == 0;
}

static struct share *find(const struct shares *shares, const struct share *who)
{
	for (size_t i = 0; i < shares->list.n; i++) {
		struct share *share = rows_at(&shares->list, i);
		if (is_same(share, who)) {
			return share;
		}
	}
	return NULL;
}

/* NULL: no memory. */
static struct share *add(struct shares *shares, const struct share *who, size_t n_devices)
{
	struct share *share = rows_add(&shares->list, sizeof(*share));
	if (share) {
		*share = *who;
		share->at = calloc(n_devices + 1, sizeof(*share->at));
	}
	return share && share->at ? share : NULL;
}

/* The row of @who, or of others than the pods that have rows. NULL: no memory. */
static struct share *find_or_add(const struct snapshot *snapshot, struct shares *shares,
                                 const struct share *who)
{
	static const struct share other = {
		.namespace = "", .pod = "other", .container = "", .tenant = ""};
	struct share *share = find(shares, who);
	if (!share && shares->list.n >= snapshot->tenants.n + SHARES_MAX_PODS) {
		who = &other;
		share = find(shares, who);
	}
	return share ? share : add(shares, who, snapshot->devices.n);
}

/* Whose row the session's is. Texts are borrowed. */
static struct share who_of(struct shares *shares, const struct glake_session_row *session)
{
	const struct identity identity = identity_place(&shares->places, session);
	return (struct share){
		.namespace = identity.namespace,
		.pod = *identity.pod ? identity.pod : session->pod_uid,
		.container = identity.container,
		.tenant = session->tenant,
	};
}

/* ---- sessions --------------------------------------------------------------------------------- */

/* NULL: no such device. */
static struct share_device *at_device(const struct snapshot *snapshot, const struct share *share,
                                      uint32_t device)
{
	const struct glake_device_status *found = snapshot_device(snapshot, device);
	return found ? &share->at[found -
	                          (struct glake_device_status *)rows_at(&snapshot->devices, 0)]
	             : NULL;
}

/* @is_first: of its process, whose driver memory counts once. */
static void add_session(const struct snapshot *snapshot, struct share *share,
                        const struct glake_session_row *session, bool is_first)
{
	share->n_sessions++;
	share->live_bytes += session->live_bytes;
	share->warm_bytes += session->warm_bytes;
	share->host_bytes += session->host_bytes;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake_session_device *from = &session->devices[i];
		struct share_device *at = at_device(snapshot, share, from->device);
		if (!at) {
			continue;
		}
		at->private_bytes += from->reserved_bytes;
		at->part_bytes += from->part_bytes;
		if (is_first || from->process_bytes == 0) {
			at->driver_bytes += memory_device_driver_bytes(from);
		}
	}
	if (session->wait_bound && *session->wait_bound) {
		share->n_waiting++;
		share->waiting_ms = session->wait_ms > share->waiting_ms ? session->wait_ms
		                                                         : share->waiting_ms;
	}
	const struct glake_sleeper_row *sleeper = snapshot_sleeper(snapshot, session->session);
	if (sleeper) {
		share->n_sleepers++;
		share->asleep_private_bytes += sleeper->private_bytes;
		share->asleep_shared_bytes += sleeper->shared_bytes;
	}
}

static int by_pid(const void *a, const void *b)
{
	const struct glake_session_row *left = *(const struct glake_session_row *const *)a;
	const struct glake_session_row *right = *(const struct glake_session_row *const *)b;
	return left->pid > right->pid ? 1 : left->pid < right->pid ? -1 : 0;
}

static int add_sessions(const struct snapshot *snapshot, struct shares *shares)
{
	size_t n = snapshot->sessions.n;
	const struct glake_session_row **sessions = calloc(n + 1, sizeof(*sessions));
	int err = sessions ? 0 : -ENOMEM;
	for (size_t i = 0; err == 0 && i < n; i++) {
		sessions[i] = rows_at(&snapshot->sessions, i);
	}
	if (err == 0) {
		qsort(sessions, n, sizeof(*sessions), by_pid);
	}
	for (size_t i = 0; err == 0 && i < n; i++) {
		const struct share who = who_of(shares, sessions[i]);
		struct share *share = find_or_add(snapshot, shares, &who);
		bool is_first = i == 0 || sessions[i - 1]->pid != sessions[i]->pid;
		if (share) {
			add_session(snapshot, share, sessions[i], is_first);
		}
		err = share ? 0 : -ENOMEM;
	}
	free(sessions);
	return err;
}

/* ---- refusals --------------------------------------------------------------------------------- */

/*
 * A pod whose programs have ended has a row as long as the kubelet knows its name: then somebody may start them again. Else
 * its name would change to its UID in the end.
 */
static int add_refusal(const struct snapshot *snapshot, struct shares *shares,
                       const struct pod_refusal *refusal)
{
	const struct glake_session_row session = {
		.name = "",
		.script = "",
		.program = "",
		.pod_uid = refusal->pod_uid,
		.container_id = refusal->container_id,
		.tenant = refusal->tenant,
	};
	const struct share who = who_of(shares, &session);
	struct share *share = find(shares, &who);
	bool has_name = who.pod != refusal->pod_uid;
	if (!share && has_name) {
		share = find_or_add(snapshot, shares, &who);
		if (!share) {
			return -ENOMEM;
		}
	}
	if (share) {
		share->n_refused += refusal->n;
	}
	return 0;
}

/* ---- devices ---------------------------------------------------------------------------------- */

/* Bytes that are rounded off one row go to the next, so that the rows have in sum what the parts have. */
static void round_parts(const struct shares *shares, size_t device, uint64_t *sum_out)
{
	double sum = 0;
	uint64_t so_far = 0;
	for (size_t i = 0; i < shares->list.n; i++) {
		struct share_device *at = &((struct share *)rows_at(&shares->list, i))->at[device];
		sum += at->part_bytes;
		uint64_t next = (uint64_t)(sum + 0.5);
		at->shared_bytes = memory_without(next, so_far);
		so_far += at->shared_bytes;
	}
	*sum_out = so_far;
}

static int add_rest(const struct snapshot *snapshot, struct shares *shares)
{
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		const struct glake_device_status *status = rows_at(&snapshot->devices, i);
		struct share_rest *rest = rows_add(&shares->rest, sizeof(*rest));
		uint64_t had;
		if (!rest) {
			return -ENOMEM;
		}
		round_parts(shares, i, &had);
		for (size_t j = 0; j < shares->list.n; j++) {
			const struct share *share = rows_at(&shares->list, j);
			had += share->at[i].private_bytes;
		}
		rest->cache_bytes = status->pool_bytes + memory_cached_bytes(status);
		rest->other_bytes = memory_without(status->physical_bytes, had + rest->cache_bytes);
	}
	return 0;
}

int shares_of(const struct snapshot *snapshot, struct shares *shares_out)
{
	int err = 0;
	*shares_out = (struct shares){.list = {.n = 0}};
	identities_init(&shares_out->places);
	for (size_t i = 0; err == 0 && i < snapshot->tenants.n; i++) {
		const struct glake_tenant_row *tenant = rows_at(&snapshot->tenants, i);
		const struct share who = {
			.namespace = "", .pod = "", .container = "", .tenant = tenant->name};
		err = add(shares_out, &who, snapshot->devices.n) ? 0 : -ENOMEM;
	}
	err = err ? err : add_sessions(snapshot, shares_out);
	for (size_t i = 0; err == 0 && i < snapshot->refusals.n; i++) {
		err = add_refusal(snapshot, shares_out, rows_at(&snapshot->refusals, i));
	}
	return err ? err : add_rest(snapshot, shares_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/refusal.h"

#include <inttypes.h>
#include <stdio.h>

#include "proto/size.h"

const char *bound_name(enum bound bound)
{
	static const char *const names[N_BOUNDS] = {[BOUND_NONE] = "",
#define BOUND_NAME(name, text, ...) [BOUND_##name] = text,
	                                            BOUND_LIST(BOUND_NAME)
#undef BOUND_NAME
	};
	return names[bound];
}

struct refusal refusal_of_tenant(enum bound bound, struct tenant *tenant, const struct location *at,
                                 uint64_t wanted)
{
	bool is_fds = bound == BOUND_TENANT_FDS;
	const struct tenant_location *there = &tenant->at[at->slot];
	return (struct refusal){.bound = bound,
	                        .at = at,
	                        .tenant = tenant,
	                        .wanted = wanted,
	                        .used = is_fds ? tenant->n_fds : there->used_bytes,
	                        .limit = is_fds ? tenant->max_fds : there->quota_bytes};
}

struct refusal refusal_of_promise(const struct promise *promise, struct tenant *tenant,
                                  uint64_t wanted)
{
	return (struct refusal){.bound = BOUND_PROMISE,
	                        .at = promise->at,
	                        .tenant = tenant,
	                        .wanted = wanted,
	                        .used = promise->bytes - promise_left_bytes(promise),
	                        .limit = promise->bytes};
}

struct refusal refusal_of_room(struct tenant *tenant, const struct location *at, uint64_t wanted)
{
	uint64_t most = location_most_bytes(at);
	uint64_t room = location_room_bytes(at) + at->unsealing_bytes;
	return (struct refusal){.bound = BOUND_ROOM,
	                        .at = at,
	                        .tenant = tenant,
	                        .wanted = wanted,
	                        .used = most > room ? most - room : 0,
	                        .limit = most};
}

struct refusal refusal_of_manifest(struct payer payer, const struct location *at,
                                   uint64_t more_bytes)
{
	struct refusal refusal = {.at = at, .tenant = payer.tenant, .wanted = more_bytes};
	refusal.bound = tenant_manifest_bound(payer, more_bytes, &refusal.used, &refusal.limit);
	return refusal;
}

void refusal_count(const struct refusal *refusal, struct stats *stats)
{
	if (refusal->bound == BOUND_NONE) {
		return;
	}
	refusal->tenant->at[refusal->at->slot].n_refused[refusal->bound]++;
	switch (refusal->bound) {
#define BOUND_COUNT(name, text, counter, ...) \
	case BOUND_##name: \
		stats->counter++; \
		break;
		BOUND_LIST(BOUND_COUNT)
#undef BOUND_COUNT
	default:
		break;
	}
}

enum status refusal_status(const struct refusal *refusal)
{
	static const enum status statuses[N_BOUNDS] = {[BOUND_NONE] = STATUS_INTERNAL,
#define BOUND_STATUS(name, text, counter, status) [BOUND_##name] = STATUS_##status,
	                                               BOUND_LIST(BOUND_STATUS)
#undef BOUND_STATUS
	};
	return statuses[refusal->bound];
}

void refusal_text(const struct refusal *refusal, char text[REFUSAL_TEXT_BYTES])
{
	char where[LOCATION_NAME_BYTES];
	char more[SIZE_TEXT_BYTES];
	char of[SIZE_TEXT_BYTES];
	char kept[SIZE_TEXT_BYTES];
	const char *tenant = refusal->tenant->name;
	location_name(refusal->at, where);
	size_text(refusal->wanted, more);
	size_text_of(refusal->used, refusal->limit, of);
	switch (refusal->bound) {
	case BOUND_QUOTA:
		snprintf(text, REFUSAL_TEXT_BYTES, "%s more on %s: tenant %s uses %s", more, where,
		         tenant, of);
		return;
	case BOUND_PROMISE:
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%s more on %s: this process has %s that it was promised", more, where,
		         of);
		return;
	case BOUND_ROOM:
		if (refusal->wanted > refusal->limit) {
			size_text(refusal->limit, of);
			snprintf(text, REFUSAL_TEXT_BYTES, "%s more on %s, which has %s in all",
			         more, where, of);
			return;
		}
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%s more on %s: %s are in use, and nothing can be evicted", more, where,
		         of);
		return;
	case BOUND_RESERVE:
		size_text(refusal->at->unsealing_bytes, kept);
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%s more on %s: %s are in use, and %s are kept for unsealing "
		         "(dedup_reserve)",
		         more, where, of, kept);
		return;
	case BOUND_TENANT_FDS:
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%" PRIu64 " more fds for chunks on %s: tenant %s uses %" PRIu64
		         " of %" PRIu64,
		         refusal->wanted, where, tenant, refusal->used, refusal->limit);
		return;
	case BOUND_FDS:
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%" PRIu64 " more fds for chunks on %s: %" PRIu64 " of glaked's %" PRIu64
		         " are in use",
		         refusal->wanted, where, refusal->used, refusal->limit);
		return;
	case BOUND_MANIFESTS:
		snprintf(text, REFUSAL_TEXT_BYTES, "%s more for manifests: tenant %s uses %s", more,
		         tenant, of);
		return;
	case BOUND_USER_SHARE:
		snprintf(text, REFUSAL_TEXT_BYTES,
		         "%s more for manifests: this user uses %s, its share in tenant %s", more,
		         of, tenant);
		return;
	default:
		text[0] = '\0';
	}
}

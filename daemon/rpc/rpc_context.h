/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All sessions, and the parts of glaked that the handlers use.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_CONTEXT_H
#define GLAKE_DAEMON_RPC_CONTEXT_H

#include "daemon/base/events.h"
#include "daemon/base/list.h"
#include "daemon/holders/session.h"
#include "daemon/keep/fdstore.h"
#include "daemon/memory/nvml.h"
#include "daemon/store/load.h"
#include "daemon/store/superblock.h"
#include "daemon/memory/node.h"
#include "daemon/rpc/drain.h"

/* Pointers are borrowed. */
struct rpc_context {
	struct sessions sessions;
	struct holders holders;
	const struct config *config;
	struct stats *stats;
	struct events *events;
	struct tenant_table *tenants;
	struct allocator *allocator;
	struct store *store;
	const struct copies *copies;
	struct superblocks *superblocks;
	struct mover_link *mover;
	const struct admit_context *admit_context;
	const struct load_context *load_context;
	const struct sleep_context *sleep_context;
	struct nvml *nvml;
	struct books *books; /* NULL: there are none */
	struct fdstore *fdstore;
	struct device *devices;
	uint32_t n_devices;
	const struct nodes *nodes;
	struct location *const *locations; /* by slot: the devices, and behind them the nodes */
	uint32_t n_locations;
	int driver_version; /* 13000 = 13.0 */
	uint64_t started_ms;
	struct list asks;       /* of programs that have been asked something (rpc_ask.h) */
	uv_timer_t *looks;      /* runs while somebody wants to know how far a wake is; */
	uint64_t n_looks;       /* how often the timer ran */
	uint64_t naps_after_ms; /* host memory was full: nobody is put to sleep before (naps.h) */
	bool is_draining;       /* glaked ends: nothing new is granted */
	struct drain drain;     /* an operator lets no new program in */
};

static inline struct rpc_context *rpc_of(const struct session *session)
{
	return container_of(session->all, struct rpc_context, sessions);
}

#endif

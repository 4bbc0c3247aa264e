/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver usage: what processes use of a device beside the chunks. It combines NVML's list of
 * processes with the reports of the sessions' clients. It serves listings only; no decision depends
 * on it.
 *
 * NVML's number for a process contains neither memory imported from glaked nor managed memory.
 * glaked itself uses none. So the use of a device is the sum of
 *
 *     physical + context + managed + array + graph + other + mover + foreign + unaccounted
 *
 * as far as NVML reports it. Nobody knows how much of the managed memory is on the device; it counts as
 * requested, up to the rest. A process with several sessions counts once. If NVML has no number for a
 * session's process (another pid namespace, or no NVML), the process's own report is used alone.
 *
 * Threads: loop thread. Does not block.
 */
#ifndef GLAKE_DAEMON_DRIVER_USAGE_H
#define GLAKE_DAEMON_DRIVER_USAGE_H

#include "daemon/rpc/rpc_context.h"

struct driver_usage {
	uint64_t context_bytes;      /* of sessions' processes: contexts, code, the rest */
	struct driver_memory driver; /* of the same, as reported, at most NVML's number */
	uint64_t mover_bytes;
	uint64_t foreign_bytes; /* of processes without a session */
	uint32_t n_foreign;
	uint64_t unaccounted_bytes; /* 0 while the free memory is unknown */
};

void driver_usage_of_device(const struct rpc_context *rpc, const struct device *device,
                            struct driver_usage *usage_out);

/* NVML's number for the process of @holder on @device, without managed memory; 0 = unknown. */
uint64_t driver_usage_of_process(const struct rpc_context *rpc, const struct holder *holder,
                                 const struct device *device);

#endif

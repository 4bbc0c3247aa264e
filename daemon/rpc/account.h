/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses what of a device beside the chunks: NVML's list of processes, put together with what
 * the sessions' clients report. For listings, no decision hangs on it.
 *
 * What a process has imported of glaked is not in NVML's number for it, nor is its managed memory, and
 * glaked itself has none. So the device's use is the sum of
 *
 *     physical + context + managed + array + graph + other + mover + foreign + unaccounted
 *
 * as far as NVML can tell; how much of the managed memory is on the device nobody can, so it counts
 * as asked for, up to what is left. A process with several sessions counts once. Where NVML has no
 * number for a session's process (it is in a pid namespace apart, or there is no NVML), what it
 * reports stands alone.
 *
 * Threads: loop thread. Nothing here blocks.
 */
#ifndef GLAKE_DAEMON_ACCOUNT_H
#define GLAKE_DAEMON_ACCOUNT_H

#include "daemon/rpc/rpc_context.h"

struct account {
	uint64_t context_bytes; /* contexts and code of sessions' processes: what else they have */
	struct driver_memory driver; /* theirs, as they report, no more than NVML says */
	uint64_t mover_bytes;
	uint64_t foreign_bytes; /* of processes without a session */
	uint32_t n_foreign;
	uint64_t unaccounted_bytes; /* 0 as long as what is free is unknown */
};

void account_device(const struct rpc_context *rpc, const struct device *device,
                    struct account *account_out);

/*
 * What NVML says that the process of @holder has of the driver on @device, beside managed memory; 0 =
 * unknown.
 */
uint64_t account_process_bytes(const struct rpc_context *rpc, const struct holder *holder,
                               const struct device *device);

#endif

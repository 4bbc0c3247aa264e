/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/driver_usage.h"

#include <stdlib.h>
#include <unistd.h>

#include "proto/cleanup.h"

/* A process on NVML's list. */
struct share {
	bool is_session; /* the process has sessions */
	struct driver_memory driver;
};

static uint64_t sum(uint64_t one, uint64_t two)
{
	uint64_t total;
	return __builtin_add_overflow(one, two, &total) ? UINT64_MAX : total;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
	return bytes > taken ? bytes - taken : 0;
}

static void add_driver(struct driver_memory *to, const struct driver_memory *from)
{
	to->managed_bytes = sum(to->managed_bytes, from->managed_bytes);
	to->array_bytes = sum(to->array_bytes, from->array_bytes);
	to->graph_bytes = sum(to->graph_bytes, from->graph_bytes);
	to->other_bytes = sum(to->other_bytes, from->other_bytes);
}

/* Limit @bytes to *left, and subtract it there. */
static void take(uint64_t *bytes, uint64_t *left)
{
	*bytes = *bytes < *left ? *bytes : *left;
	*left -= *bytes;
}

static void settle(struct driver_usage *usage, struct driver_memory driver, uint64_t process_bytes)
{
	uint64_t left = process_bytes;
	take(&driver.array_bytes, &left);
	take(&driver.graph_bytes, &left);
	take(&driver.other_bytes, &left);
	add_driver(&usage->driver, &driver);
	usage->context_bytes = sum(usage->context_bytes, left);
}

static bool is_ours(const struct rpc_context *rpc, uint32_t pid)
{
	return pid != 0 &&
	       (pid == (uint32_t)mover_link_pid(rpc->mover) || pid == (uint32_t)getpid());
}

static void settle_all(const struct rpc_context *rpc, const struct nvml_process *processes,
                       const struct share *shares, size_t n, struct driver_usage *usage)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = processes[i].bytes;
		if (shares[i].is_session) {
			settle(usage, shares[i].driver, bytes);
		} else if (is_ours(rpc, processes[i].pid)) {
			usage->mover_bytes = sum(usage->mover_bytes, bytes);
		} else {
			usage->foreign_bytes = sum(usage->foreign_bytes, bytes);
			usage->n_foreign++;
		}
	}
}

/* The bytes that NVML reports as used on @device, without chunks; false if it does not report any. */
static bool find_left(const struct device *device, uint64_t *left_out)
{
	uint64_t free_bytes = device_free_bytes(device);
	*left_out = less(device->at.total_bytes,
	                 sum(free_bytes, location_physical_bytes(&device->at)));
	return free_bytes > 0;
}

/* Managed memory comes last: it counts as requested, and may be elsewhere. */
static void settle_rest(const struct device *device, struct driver_usage *usage)
{
	uint64_t left;
	if (!find_left(device, &left)) {
		return;
	}
	left = less(left, usage->context_bytes);
	left = less(left, usage->driver.array_bytes);
	left = less(left, usage->driver.graph_bytes);
	left = less(left, usage->driver.other_bytes);
	left = less(left, usage->mover_bytes);
	left = less(left, usage->foreign_bytes);
	take(&usage->driver.managed_bytes, &left);
	usage->unaccounted_bytes = left;
}

void driver_usage_of_device(const struct rpc_context *rpc, const struct device *device,
                            struct driver_usage *usage_out)
{
	size_t n;
	const struct nvml_process *processes = nvml_processes(rpc->nvml, device->index, &n);
	cleanup_free struct share *shares = calloc(n + 1, sizeof(*shares));
	n = shares ? n : 0;
	*usage_out = (struct driver_usage){0};
	struct holder *holder;
	list_for_each (holder, &rpc->holders.list, link) {
		const struct driver_memory *driver = &holder->at[device->index].driver;
		const struct nvml_process *process = nvml_find_process(processes, n,
		                                                       (uint32_t)holder->peer.pid);
		if (holder->state == HOLDER_NEW) {
			continue;
		}
		if (process) {
			shares[process - processes].is_session = true;
		}
		bool is_known = process && process->bytes > 0;
		add_driver(is_known ? &shares[process - processes].driver : &usage_out->driver,
		           driver);
	}
	settle_all(rpc, processes, shares, n, usage_out);
	settle_rest(device, usage_out);
}

uint64_t driver_usage_of_process(const struct rpc_context *rpc, const struct holder *holder,
                                 const struct device *device)
{
	size_t n;
	const struct nvml_process *processes = nvml_processes(rpc->nvml, device->index, &n);
	const struct nvml_process *process = nvml_find_process(processes, n,
	                                                       (uint32_t)holder->peer.pid);
	return process ? process->bytes : 0;
}

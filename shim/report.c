/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/report.h"

#include "glake_shim.h"
#include "shim/auto.h"
#include "shim/context.h"
#include "shim/drain.h"
#include "shim/driver_usage.h"
#include "shim/idle.h"
#include "shim/order.h"
#include "shim/cuda_pool.h"

static uint64_t graph_bytes(CUdevice device)
{
	cuuint64_t n_bytes = 0;
	if (!real(cuDeviceGetGraphMemAttribute) ||
	    real(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
	                                       &n_bytes) != CUDA_SUCCESS) {
		return 0;
	}
	return n_bytes;
}

/* Contexts are held across the driver's calls, because asking about a device whose context has ended could create a new one. */
static struct glake__driver_memory describe(CUdevice device, uint32_t index)
{
	struct glake__driver_memory memory = {
		.device = index,
		.managed_bytes = driver_usage_bytes(device, DRIVER_USAGE_MANAGED),
		.array_bytes = driver_usage_bytes(device, DRIVER_USAGE_ARRAYS),
		.other_bytes = driver_usage_bytes(device, DRIVER_USAGE_OTHER),
	};
	order_hold_contexts();
	if (context_is_active(device)) {
		memory.graph_bytes = graph_bytes(device);
		memory.other_bytes += cuda_pool_driver_bytes(device);
	}
	order_let_contexts();
	return memory;
}

void report_program(struct connection *connection)
{
	struct glake__driver_memory memory[SHIM_MAX_DEVICES];
	struct glake_device device;
	struct glake__alone alone;
	struct glake__program_usage usage = {
		.n_owned = shim_count_of(SHIM_COUNT_owned),
		.n_passed = shim_count_of(SHIM_COUNT_passed),
		.driver = memory,
		.alone = auto_turn_ms() ? &alone : NULL,
		.idle_since_ns = idle_look(drain_gate.wait),
	};
	if (usage.alone) {
		auto_describe(&alone);
	}
	for (uint32_t i = 0; glake_device_at(connection->session, i, &device) == 0 &&
	                     usage.n_driver < SHIM_MAX_DEVICES;
	     i++) {
		if (device.ordinal >= 0 && device.ordinal < SHIM_MAX_DEVICES) {
			memory[usage.n_driver++] = describe(device.ordinal, device.index);
		}
	}
	glake__set_program_usage(connection->session, &usage);
}

__attribute__((visibility("default"))) void glake_shim_tell(void)
{
	struct connection *connection = shim_is_forked() ? NULL : connection_peek();
	if (!connection) {
		return;
	}
	if (!connection->is_dead) {
		connection_note(connection, glake__tell_usage(connection->session));
	}
	connection_unref(connection);
}

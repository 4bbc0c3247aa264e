/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/field.h"
#include "ctl/identity.h"

void memory_deinit(struct memory *memory)
{
	for (size_t i = 0; i < memory->list.n; i++) {
		struct memory_row *row = rows_at(&memory->list, i);
		free((char *)row->program);
		free((char *)row->label);
	}
	rows_deinit(&memory->list);
	rows_deinit(&memory->devices);
}

double memory_utilization(uint64_t live_bytes, uint64_t reserved_bytes)
{
	uint64_t n_bytes = live_bytes < reserved_bytes ? live_bytes : reserved_bytes;
	return reserved_bytes > 0 ? (double)n_bytes / (double)reserved_bytes : -1;
}

uint64_t memory_device_driver_bytes(const struct glake_session_device *device)
{
	return device->process_bytes > 0
	               ? device->process_bytes
	               : device->array_bytes + device->graph_bytes + device->other_bytes;
}

uint32_t memory_first_device(const struct glake_session_row *row)
{
	uint32_t i = 0;
	while (i < row->n_devices && row->devices[i].reserved_bytes == 0) {
		i++;
	}
	return i < row->n_devices ? i : 0;
}

uint64_t memory_driver_bytes(const struct glake_session_row *row)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		n_bytes += memory_device_driver_bytes(&row->devices[i]);
	}
	return n_bytes;
}

uint64_t memory_without(uint64_t bytes, uint64_t part)
{
	return bytes > part ? bytes - part : 0;
}

uint64_t memory_cached_bytes(const struct glake_device_status *device)
{
	return memory_without(device->block_bytes, device->used_block_bytes) + device->kept_bytes;
}

void memory_uses(const struct glake_device_status *device, uint64_t bytes_out[MEMORY_N_USES])
{
	const uint64_t bytes[MEMORY_N_USES] = {
		device->private_bytes,
		device->used_block_bytes,
		memory_cached_bytes(device),
		device->pool_bytes,
		device->context_bytes + device->managed_bytes + device->array_bytes +
			device->graph_bytes + device->other_bytes + device->mover_bytes,
		device->foreign_bytes,
		device->unaccounted_bytes,
	};
	memcpy(bytes_out, bytes, sizeof(bytes));
}

static int add_devices(void *user, const struct glake_status *status)
{
	struct memory *memory = user;
	for (uint32_t i = 0; i < status->n_devices; i++) {
		const struct memory_device device = {status->devices[i].index,
		                                     status->devices[i].private_bytes};
		if (rows_append(&memory->devices, &device, sizeof(device)) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

int memory_find_devices(struct ctl *ctl, struct memory *memory)
{
	return glake_get_status(ctl->session, add_devices, memory);
}

static void take_from_others(struct memory *memory, const struct glake_session_device *of)
{
	for (size_t i = 0; i < memory->devices.n; i++) {
		struct memory_device *device = rows_at(&memory->devices, i);
		if (device->device == of->device) {
			device->others_bytes = memory_without(device->others_bytes,
			                                      of->reserved_bytes);
		}
	}
}

/* ---- sessions --------------------------------------------------------------------------------- */

static int add_row(struct memory *memory, const struct glake_session_row *of,
                   const struct memory_row *numbers)
{
	struct memory_row *row = rows_add(&memory->list, sizeof(*row));
	if (!row) {
		return -ENOMEM;
	}
	*row = *numbers;
	row->session = of->session;
	row->pid = of->pid;
	row->program = strdup(of->program);
	row->label = strdup(identity_label(of->name, of->script, of->program));
	row->utilization = memory_utilization(row->live_bytes, row->reserved_bytes);
	/* Memory that is free for the program at once is no fragment: only memory that nobody can use is. */
	uint64_t reusable = row->reusable_bytes == FIELD_NONE ? 0 : row->reusable_bytes;
	bool is_known = row->utilization >= 0 && row->reusable_bytes != FIELD_NONE;
	row->fragmentation = is_known ? 1 - memory_utilization(row->live_bytes + reusable,
	                                                       row->reserved_bytes)
	                              : -1;
	return row->program && row->label ? 0 : -ENOMEM;
}

static bool tells_reusable(const struct glake_session_row *of)
{
	return of->n_devices > 0 && of->devices[0].knows_live;
}

static int add_pool(struct memory *memory, const struct glake_session_row *of,
                    const struct glake_session_pool *pool)
{
	const struct memory_row row = {
		.device = pool->device,
		.stitches = 1,
		.live_bytes = pool->live_bytes,
		.reserved_bytes = pool->reserved_bytes,
		.warm_bytes = FIELD_NONE,
		.reusable_bytes = tells_reusable(of) ? pool->free_bytes : FIELD_NONE,
		.pool = *pool,
		.n_vmm_calls = pool->n_mapped + pool->n_unmapped,
	};
	return add_row(memory, of, &row);
}

static uint64_t pool_reserved(const struct glake_session_row *of, uint32_t device)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < of->n_pools; i++) {
		n_bytes += of->pools[i].device == device ? of->pools[i].reserved_bytes : 0;
	}
	return n_bytes;
}

/* An earlier library tells only its warm memory, if it does not stitch; else FIELD_NONE. */
static uint64_t reusable_beside_pools(const struct glake_session_row *of)
{
	uint64_t n_bytes = 0;
	if (!tells_reusable(of)) {
		return of->n_pools ? FIELD_NONE : of->warm_bytes;
	}
	for (uint32_t i = 0; i < of->n_devices; i++) {
		n_bytes += of->devices[i].reusable_bytes;
	}
	for (uint32_t i = 0; i < of->n_pools; i++) {
		n_bytes = memory_without(n_bytes, of->pools[i].free_bytes);
	}
	return n_bytes;
}

static int add_plain(struct memory *memory, const struct glake_session_row *of)
{
	struct memory_row row = {
		.device = FIELD_NONE,
		.live_bytes = of->live_bytes,
		.warm_bytes = of->n_pools ? FIELD_NONE : of->warm_bytes,
		.reusable_bytes = reusable_beside_pools(of),
		.n_vmm_calls = FIELD_NONE,
	};
	/* Each of its numbers is FIELD_NONE. */
	memset(&row.pool, 0xff, sizeof(row.pool));
	row.pool.peak_live_bytes = of->n_pools ? FIELD_NONE : of->peak_bytes;
	unsigned n_devices = 0;
	for (uint32_t i = 0; i < of->n_devices; i++) {
		const struct glake_session_device *device = &of->devices[i];
		uint64_t rest = memory_without(device->reserved_bytes,
		                               pool_reserved(of, device->device));
		row.reserved_bytes += rest;
		if (rest > 0) {
			row.device = ++n_devices == 1 ? device->device : FIELD_NONE;
		}
	}
	for (uint32_t i = 0; i < of->n_pools; i++) {
		row.live_bytes = memory_without(row.live_bytes, of->pools[i].live_bytes);
	}
	return row.reserved_bytes > 0 ? add_row(memory, of, &row) : 0;
}

struct gathering {
	struct memory *memory;
	uint64_t number;
};

static int add_session(void *user, const struct glake_session_row *of)
{
	const struct gathering *gathering = user;
	struct memory *memory = gathering->memory;
	uint64_t number = gathering->number;
	if (number != 0 && of->session != number && of->pid != number) {
		return 0;
	}
	memory->is_found = true;
	int err = 0;
	for (uint32_t i = 0; err == 0 && i < of->n_pools; i++) {
		err = add_pool(memory, of, &of->pools[i]);
	}
	for (uint32_t i = 0; i < of->n_devices; i++) {
		take_from_others(memory, &of->devices[i]);
	}
	return err ? err : add_plain(memory, of);
}

int memory_gather(struct ctl *ctl, uint64_t number, struct memory *memory)
{
	struct gathering gathering = {.memory = memory, .number = number};
	return glake_list_sessions(ctl->session, add_session, &gathering);
}

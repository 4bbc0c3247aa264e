/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that graphs allocate. Its address is fixed when its node is made. A launch puts memory there. When that is freed
 * it stays for the next launch, until it is trimmed or nobody can launch the graph any more.
 */
#include "graph.h"

#include <sys/mman.h>

struct graphmem {
	struct graphmem *next; /* link: all */
	atomic_uint n_refs;    /* by nodes of graphs and executables */
	unsigned device;
	uint64_t bytes;
	struct reservation *res; /* owned */
	struct mapping *mapping; /* owned; NULL: no memory now */
	unsigned n_live;         /* launches that allocated it and have not freed it */
};

static struct graphmem *all; /* under the space's lock, as all but the counts of references */

static uint64_t whole(uint64_t bytes)
{
	return (bytes + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
}

CUresult graphmem_new(unsigned device, uint64_t bytes, struct graphmem **memory_out)
{
	if (bytes == 0 || bytes > device_total_bytes((CUdevice)device)) {
		return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	}
	struct graphmem *memory = calloc(1, sizeof(*memory));
	if (!memory) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	space_lock_write();
	CUresult err = space_reserve(whole(bytes), SIM_GRANULARITY, 0, &memory->res);
	if (err == CUDA_SUCCESS) {
		memory->res->is_internal = true;
		memory->res->is_of_graph = true;
		memory->device = device;
		memory->bytes = bytes;
		atomic_init(&memory->n_refs, 1);
		memory->next = all;
		all = memory;
	}
	space_unlock();
	if (err != CUDA_SUCCESS) {
		free(memory);
		return err;
	}
	*memory_out = memory;
	return CUDA_SUCCESS;
}

/* Locked. */
static void take_memory_away(struct graphmem *memory)
{
	struct mapping *m = memory->mapping;

	if (!m) {
		return;
	}
	space_remove(m);
	pool_graph_reserve(memory->device, -(int64_t)m->phys->bytes);
	munmap(m->host, m->phys->bytes);
	phys_unref(m->phys);
	free(m);
	memory->mapping = NULL;
}

/* Locked. */
static void forget_if_unused(struct graphmem *memory)
{
	if (atomic_load(&memory->n_refs) > 0 || memory->n_live > 0) {
		return;
	}
	take_memory_away(memory);
	space_unreserve(memory->res);
	for (struct graphmem **at = &all; *at; at = &(*at)->next) {
		if (*at == memory) {
			*at = memory->next;
			break;
		}
	}
	free(memory);
}

void graphmem_ref(struct graphmem *memory)
{
	atomic_fetch_add(&memory->n_refs, 1);
}

/* Memory that is still allocated stays so, until it is freed. */
void graphmem_unref(struct graphmem *memory)
{
	space_lock_write();
	atomic_fetch_sub(&memory->n_refs, 1);
	forget_if_unused(memory);
	space_unlock();
}

CUdeviceptr graphmem_address(const struct graphmem *memory)
{
	return memory->res->range.start;
}

uint64_t graphmem_bytes(const struct graphmem *memory)
{
	return memory->bytes;
}

unsigned graphmem_device(const struct graphmem *memory)
{
	return memory->device;
}

/* Locked. */
static struct graphmem *find(CUdeviceptr ptr)
{
	for (struct graphmem *memory = all; memory; memory = memory->next) {
		if (memory->res->range.start == ptr) {
			return memory;
		}
	}
	return NULL;
}

bool graphmem_is_at(CUdeviceptr ptr)
{
	space_lock_read();
	bool is_at = find(ptr) != NULL;
	space_unlock();
	return is_at;
}

bool graphmem_is_live(const struct graphmem *memory)
{
	space_lock_read();
	bool is_live = memory->n_live > 0;
	space_unlock();
	return is_live;
}

/* Locked. */
static CUresult put_memory(struct graphmem *memory)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)memory->device},
	};
	struct mapping *m = calloc(1, sizeof(*m));
	CUresult err = m ? phys_new(&prop, whole(memory->bytes), &m->phys)
	                 : CUDA_ERROR_OUT_OF_MEMORY;

	if (err != CUDA_SUCCESS) {
		free(m);
		return err;
	}
	m->host = mmap(NULL, m->phys->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->phys->fd, 0);
	m->range = (struct range){.start = memory->res->range.start, .bytes = memory->bytes};
	m->kind = SPACE_ALLOC;
	m->graphmem = memory;
	m->device = memory->device;
	m->ctx = ctx_of_device(memory->device);
	m->id = space_new_id();
	m->pool = pool_of_graphs(memory->device);
	m->res = memory->res;
	m->access[m->device] = SPACE_WRITE;
	if (m->host == MAP_FAILED || space_add(m) != 0) {
		if (m->host != MAP_FAILED) {
			munmap(m->host, m->phys->bytes);
		}
		phys_unref(m->phys);
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys_drop_fd(m->phys);
	memory->mapping = m;
	pool_graph_reserve(memory->device, (int64_t)m->phys->bytes);
	return CUDA_SUCCESS;
}

CUresult graphmem_take(struct graphmem *memory, bool is_free_again)
{
	CUresult err = CUDA_SUCCESS;

	space_lock_write();
	if (is_free_again && memory->n_live > 0) {
		pool_graph_use(memory->device, -(int64_t)(memory->bytes * memory->n_live));
		memory->n_live = 0;
	}
	if (!memory->mapping) {
		err = put_memory(memory);
	}
	if (err == CUDA_SUCCESS) {
		memory->n_live++;
		pool_graph_use(memory->device, (int64_t)memory->bytes);
	}
	space_unlock();
	return err;
}

bool graphmem_give(struct graphmem *memory)
{
	if (memory->n_live == 0) {
		return false;
	}
	memory->n_live--;
	pool_graph_use(memory->device, -(int64_t)memory->bytes);
	forget_if_unused(memory);
	return true;
}

static void end(struct graphmem *memory)
{
	pool_graph_use(memory->device, -(int64_t)(memory->bytes * memory->n_live));
	memory->n_live = 0;
	take_memory_away(memory);
	forget_if_unused(memory);
}

/* Take the memory of all allocations of graphs on the device, or only of free ones. */
static void trim(unsigned device, bool is_all)
{
	for (struct graphmem *memory = all, *next; memory; memory = next) {
		next = memory->next;
		if (memory->device == device && is_all) {
			end(memory);
		} else if (memory->device == device && memory->n_live == 0) {
			take_memory_away(memory);
		}
	}
}

void graphmem_end_device(unsigned device)
{
	trim(device, true);
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	ENTER(cuDeviceGraphMemTrim);
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	space_lock_write();
	trim((unsigned)dev, false);
	space_unlock();
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that this process holds: handles, references, and the checks of cuMemCreate. */
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * A handle is (generation << 32) + index + 1, so that a released one is told from its successor
 * in the same slot.
 */
struct handle_slot {
	struct phys *phys; /* NULL: free */
	uint32_t generation;
	uint32_t next_free;
};

#define NO_SLOT UINT32_MAX

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle_slot *slots;
static uint32_t n_slots;
static uint32_t room;
static uint32_t first_free = NO_SLOT;

/* Locked. NULL if the handle is not (or no longer) one. */
static struct phys *find(CUmemGenericAllocationHandle handle)
{
	uint32_t index = (uint32_t)handle - 1;

	if ((uint32_t)handle == 0 || index >= n_slots ||
	    slots[index].generation != (uint32_t)(handle >> 32)) {
		return NULL;
	}
	return slots[index].phys;
}

static CUmemGenericAllocationHandle handle_of(const struct phys *phys)
{
	return (uint64_t)slots[phys->handle_slot].generation << 32 | (phys->handle_slot + 1);
}

/* Locked. */
static int slot_take(struct phys *phys)
{
	uint32_t index = first_free;

	if (index != NO_SLOT) {
		first_free = slots[index].next_free;
	} else {
		if (n_slots == room) {
			uint32_t more = room ? room * 2 : 256;
			struct handle_slot *grown = realloc(slots, more * sizeof(*grown));
			if (!grown) {
				return -ENOMEM;
			}
			slots = grown;
			room = more;
		}
		index = n_slots++;
		slots[index].generation = 1;
	}
	slots[index].phys = phys;
	phys->handle_slot = index;
	return 0;
}

/* Locked. */
static void slot_give(uint32_t index)
{
	slots[index].phys = NULL;
	slots[index].generation++;
	slots[index].next_free = first_free;
	first_free = index;
}

/* ---- imports: of one file, they are one chunk ---- */

#define N_FILES 4096u

static struct phys *by_inode[N_FILES];

void phys_enter_import(struct phys *phys)
{
	phys->inode = chunkfd_inode_of(phys->fd);
	pthread_mutex_lock(&lock);
	phys->next = by_inode[phys->inode % N_FILES];
	by_inode[phys->inode % N_FILES] = phys;
	pthread_mutex_unlock(&lock);
}

/* Locked. */
static void leave_imports(struct phys *phys)
{
	struct phys **link = &by_inode[phys->inode % N_FILES];
	while (*link != phys) {
		link = &(*link)->next;
	}
	*link = phys->next;
}

struct phys *phys_ref_import(int fd)
{
	uint64_t inode = chunkfd_inode_of(fd);
	pthread_mutex_lock(&lock);
	struct phys *phys = by_inode[inode % N_FILES];
	while (phys && phys->inode != inode) {
		phys = phys->next;
	}
	if (phys) {
		phys->n_refs++;
	}
	pthread_mutex_unlock(&lock);
	return phys;
}

static void phys_free(struct phys *phys)
{
	/* Refund before the fd is closed, because until then no sweep can take the slot. */
	if (phys->is_charged && !phys->is_shared) {
		registry_refund(&phys->slot);
	}
	if (phys->fd >= 0) {
		close(phys->fd);
	}
	if (phys->on_host && !phys->is_shared) {
		hostnode_pay(HOST_COST_RELEASE, phys->bytes);
	}
	free(phys);
}

/* Unlocks. */
static void drop_ref_and_unlock(struct phys *phys)
{
	bool is_last = --phys->n_refs == 0;

	if (is_last && phys->inode) {
		leave_imports(phys);
	}
	pthread_mutex_unlock(&lock);
	if (is_last) {
		phys_free(phys);
	}
}

void phys_ref(struct phys *phys)
{
	pthread_mutex_lock(&lock);
	phys->n_refs++;
	pthread_mutex_unlock(&lock);
}

void phys_unref(struct phys *phys)
{
	if (phys) {
		pthread_mutex_lock(&lock);
		drop_ref_and_unlock(phys);
	}
}

struct phys *phys_ref_handle(CUmemGenericAllocationHandle handle)
{
	pthread_mutex_lock(&lock);
	struct phys *phys = find(handle);
	if (phys) {
		phys->n_refs++;
	}
	pthread_mutex_unlock(&lock);
	return phys;
}

CUresult phys_add_handle(struct phys *phys, CUmemGenericAllocationHandle *handle_out)
{
	pthread_mutex_lock(&lock);
	if (phys->n_handles == 0 && slot_take(phys) != 0) {
		pthread_mutex_unlock(&lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->n_handles++;
	phys->n_refs++;
	*handle_out = handle_of(phys);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

void phys_mark_shared(struct phys *phys)
{
	pthread_mutex_lock(&lock);
	phys->is_shared = true;
	pthread_mutex_unlock(&lock);
}

void phys_drop_fd(struct phys *phys)
{
	close(phys->fd);
	phys->fd = -1;
}

static CUresult error_from_errno(int err)
{
	return err == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
}

struct phys *phys_from_fd(int fd, const CUmemAllocationProp *prop, uint64_t bytes)
{
	struct phys *phys = calloc(1, sizeof(*phys));

	if (!phys) {
		return NULL;
	}
	phys->fd = fd;
	phys->n_refs = 1;
	phys->on_host = prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
	phys->device = phys->on_host ? 0 : (unsigned)prop->location.id;
	phys->bytes = bytes;
	phys->id = space_new_id();
	phys->prop = *prop;
	phys->rdma = prop->allocFlags.gpuDirectRDMACapable;
	return phys;
}

/* Find the place where the registry counts the chunk; false: a node without a limit, which is not counted. */
static bool find_place(const struct chunk_label *label, unsigned *place_out, uint64_t *total_out)
{
	if (!label->on_host) {
		*place_out = label->device;
		*total_out = device_physical_bytes(label->device);
		return true;
	}
	*place_out = SIM_MAX_DEVICES + (unsigned)label->location_id;
	*total_out = hostnode_bytes((unsigned)label->location_id);
	return *total_out > 0;
}

CUresult phys_new(const CUmemAllocationProp *prop, uint64_t bytes, struct phys **phys_out)
{
	struct chunk_label label = {
		.on_host = prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE,
		.location_type = prop->location.type,
		.location_id = prop->location.id,
		.handle_types = prop->requestedHandleTypes,
		.rdma = prop->allocFlags.gpuDirectRDMACapable,
	};
	struct chunk_file file;
	unsigned place;
	uint64_t total;

	if (!label.on_host) {
		label.device = device_physical(prop->location.id);
	}
	bool is_counted = find_place(&label, &place, &total);
	/* Refuse the size before a file of absurd size is made. */
	if (is_counted && bytes > total) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	int fd = chunkfd_new(&label, bytes, &file);
	if (fd < 0) {
		return error_from_errno(fd);
	}
	struct phys *phys = phys_from_fd(fd, prop, bytes);
	if (!phys) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (is_counted) {
		CUresult err = registry_charge(place, &file, bytes, &phys->slot);
		if (err != CUDA_SUCCESS) {
			phys_unref(phys);
			return err;
		}
		phys->is_charged = true;
	}
	if (phys->on_host) {
		hostnode_pay(HOST_COST_CREATE, bytes);
	}
	*phys_out = phys;
	return CUDA_SUCCESS;
}

static CUresult check_handle_types(const CUmemAllocationProp *prop)
{
	unsigned types = prop->requestedHandleTypes;

	if (types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* CU_MEM_LOCATION_TYPE_HOST memory cannot be shared, HOST_NUMA memory can. */
	if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST && types != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (types & CU_MEM_HANDLE_TYPE_FABRIC && device_fabric() != FABRIC_PERMITTED) {
		return device_fabric() == FABRIC_DENIED ? CUDA_ERROR_NOT_PERMITTED
		                                        : CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		if (!device_is_valid(prop->location.id)) {
			return CUDA_ERROR_INVALID_DEVICE;
		}
		break;
	case CU_MEM_LOCATION_TYPE_HOST:
		if (!hostnode_is_supported()) {
			return CUDA_ERROR_NOT_SUPPORTED;
		}
		break;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if (!hostnode_is_supported()) {
			return CUDA_ERROR_NOT_SUPPORTED;
		}
		if (!hostnode_is_valid(prop->location.id)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return check_handle_types(prop);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle_out, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
	ENTER(cuMemCreate);
	if (!handle_out || !prop || flags != 0 || bytes == 0 || bytes % SIM_GRANULARITY != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = check_prop(prop);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	CUmemAllocationProp actual = *prop;
	if (actual.location.type == CU_MEM_LOCATION_TYPE_HOST) {
		/* The driver picks a node and says so afterwards. */
		actual.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
	}
	struct phys *phys;
	err = phys_new(&actual, bytes, &phys);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = phys_add_handle(phys, handle_out);
	phys_unref(phys);
	return err;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	ENTER(cuMemRelease);
	pthread_mutex_lock(&lock);
	struct phys *phys = find(handle);
	if (!phys) {
		pthread_mutex_unlock(&lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (--phys->n_handles == 0) {
		slot_give(phys->handle_slot);
	}
	drop_ref_and_unlock(phys);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes_out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
	ENTER(cuMemGetAllocationGranularity);
	if (!bytes_out || !prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
	     option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    !device_is_valid(prop->location.id)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*bytes_out = SIM_GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop_out,
                                                CUmemGenericAllocationHandle handle)
{
	ENTER(cuMemGetAllocationPropertiesFromHandle);
	struct phys *phys = prop_out ? phys_ref_handle(handle) : NULL;

	if (!phys) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*prop_out = phys->prop;
	phys_unref(phys);
	return CUDA_SUCCESS;
}

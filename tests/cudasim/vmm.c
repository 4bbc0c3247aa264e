/* SPDX-License-Identifier: Apache-2.0 */
/* Reserving addresses, mapping chunks there, and access to them. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool is_granular(uint64_t value)
{
	return value % SIM_GRANULARITY == 0;
}

/* A range of whole granules that does not wrap around. */
static bool is_good_range(uint64_t addr, uint64_t bytes)
{
	return addr != 0 && bytes > 0 && is_granular(addr) && is_granular(bytes) &&
	       addr + bytes > addr;
}

CUresult cuMemAddressReserve(CUdeviceptr *addr_out, size_t bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags)
{
	ENTER(cuMemAddressReserve);
	struct reservation *res;

	if (!addr_out || flags != 0 || bytes == 0 || !is_granular(bytes) || !is_granular(hint) ||
	    (alignment & (alignment - 1)) != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (alignment < SIM_GRANULARITY) {
		alignment = SIM_GRANULARITY;
	}
	space_lock_write();
	CUresult err = space_reserve(bytes, alignment, hint, &res);
	if (err == CUDA_SUCCESS) {
		*addr_out = res->range.start;
	}
	space_unlock();
	return err;
}

CUresult cuMemAddressFree(CUdeviceptr addr, size_t bytes)
{
	ENTER(cuMemAddressFree);
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	space_lock_write();
	struct reservation *res = space_find_reservation(addr);
	if (res && !res->is_internal && res->range.start == addr && res->range.bytes == bytes &&
	    !space_find_in(addr, bytes)) {
		space_unreserve(res);
		err = CUDA_SUCCESS;
	}
	space_unlock();
	return err;
}

/* Takes over one reference to phys unless it answers NULL. */
static struct mapping *mapping_new(struct phys *phys, uint64_t addr)
{
	struct mapping *m = calloc(1, sizeof(*m));

	if (!m) {
		return NULL;
	}
	m->host = mmap(NULL, phys->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, phys->fd, 0);
	if (m->host == MAP_FAILED) {
		free(m);
		return NULL;
	}
	m->range = (struct range){.start = addr, .bytes = phys->bytes};
	m->kind = SPACE_VMM;
	m->phys = phys;
	m->device = phys->device;
	m->on_host = phys->on_host;
	m->id = space_new_id();
	return m;
}

/* Makes the range at the device address inaccessible to the CPU again. */
static void hide_from_cpu(const struct mapping *m)
{
	mmap((void *)m->range.start, m->range.bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void mapping_free(struct mapping *m)
{
	if (m->host_access != SPACE_NONE) {
		hide_from_cpu(m);
	}
	if (m->on_host) {
		hostnode_pay(HOST_COST_UNMAP, m->range.bytes);
	}
	munmap(m->host, m->range.bytes);
	phys_unref(m->phys);
	free(m);
}

CUresult cuMemMap(CUdeviceptr addr, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	ENTER(cuMemMap);
	if (flags != 0 || !is_good_range(addr, bytes)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct phys *phys = phys_ref_handle(handle);
	if (!phys) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* Drivers map only whole handles. */
	if (offset != 0 || bytes != phys->bytes) {
		phys_unref(phys);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	struct mapping *m = mapping_new(phys, addr);
	if (!m) {
		phys_unref(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = CUDA_SUCCESS;
	space_lock_write();
	if (!space_is_reserved(addr, bytes) || space_find_in(addr, bytes)) {
		err = CUDA_ERROR_INVALID_VALUE;
	} else if (space_add(m) != 0) {
		err = CUDA_ERROR_OUT_OF_MEMORY;
	}
	space_unlock();
	if (err != CUDA_SUCCESS) {
		mapping_free(m);
	}
	return err;
}

/* Does the range cut no mapping in two? */
static bool has_whole_mappings(uint64_t addr, uint64_t bytes)
{
	struct mapping *first = space_find(addr);
	struct mapping *last = space_find(addr + bytes - 1);

	return (!first || first->range.start == addr) &&
	       (!last || last->range.start + last->range.bytes == addr + bytes);
}

/* Holes in the range are fine, as with a driver. */
CUresult cuMemUnmap(CUdeviceptr addr, size_t bytes)
{
	ENTER(cuMemUnmap);
	if (!is_good_range(addr, bytes)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_write();
	if (!space_is_reserved(addr, bytes) || !has_whole_mappings(addr, bytes)) {
		space_unlock();
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (struct mapping *m = space_find_in(addr, bytes); m; m = space_find_in(addr, bytes)) {
		space_remove(m);
		mapping_free(m);
	}
	space_unlock();
	return CUDA_SUCCESS;
}

/* Is the range made of mappings, without a gap? */
static bool is_fully_mapped(uint64_t addr, uint64_t bytes)
{
	uint64_t end = addr + bytes;

	while (addr < end) {
		struct mapping *m = space_find(addr);
		if (!m || m->kind != SPACE_VMM) {
			return false;
		}
		addr = m->range.start + m->range.bytes;
	}
	return true;
}

static bool is_host_location(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/* Is it a driver that takes access away only by unmapping? */
static bool keeps_access(const CUmemAccessDesc *desc)
{
	const char *text = getenv("CUDASIM_ACCESS");

	return desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && text && strcmp(text, "keep") == 0;
}

static bool is_good_access(const CUmemAccessDesc *desc)
{
	if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
	    desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
	    desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
		return false;
	}
	return is_host_location(&desc->location) ||
	       (desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	        device_is_valid(desc->location.id));
}

static CUresult check_access(uint64_t addr, uint64_t bytes, const CUmemAccessDesc *desc,
                             size_t n_desc)
{
	bool wants_host = false;

	for (size_t i = 0; i < n_desc; i++) {
		if (!is_good_access(&desc[i])) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		if (keeps_access(&desc[i])) {
			return CUDA_ERROR_NOT_SUPPORTED;
		}
		wants_host |= is_host_location(&desc[i].location);
	}
	if (!is_fully_mapped(addr, bytes) || !has_whole_mappings(addr, bytes)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (uint64_t at = addr; wants_host && at < addr + bytes;) {
		struct mapping *m = space_find(at);
		if (!m->on_host) {
			return CUDA_ERROR_NOT_SUPPORTED;
		}
		at += m->range.bytes;
	}
	return CUDA_SUCCESS;
}

/* Let the CPU access a host chunk at its device address, or not. */
static void set_host_access(struct mapping *m, unsigned flags)
{
	int prot = (flags & SPACE_READ ? PROT_READ : 0) | (flags == SPACE_WRITE ? PROT_WRITE : 0);

	if (prot == 0) {
		hide_from_cpu(m);
	} else {
		mmap((void *)m->range.start, m->range.bytes, prot, MAP_SHARED | MAP_FIXED,
		     m->phys->fd, 0);
	}
	m->host_access = (uint8_t)flags;
}

static void set_access(struct mapping *m, const CUmemAccessDesc *desc)
{
	bool is_for_cpu = is_host_location(&desc->location);

	if (m->on_host && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
		hostnode_pay(is_for_cpu ? HOST_COST_CPU_ACCESS : HOST_COST_GPU_ACCESS,
		             m->range.bytes);
	}
	if (is_for_cpu) {
		set_host_access(m, desc->flags);
	} else {
		m->access[desc->location.id] = (uint8_t)desc->flags;
	}
}

CUresult cuMemSetAccess(CUdeviceptr addr, size_t bytes, const CUmemAccessDesc *desc, size_t n_desc)
{
	ENTER(cuMemSetAccess);
	if (!desc || n_desc == 0 || !is_good_range(addr, bytes)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_write();
	CUresult err = check_access(addr, bytes, desc, n_desc);
	for (uint64_t at = addr; err == CUDA_SUCCESS && at < addr + bytes;) {
		struct mapping *m = space_find(at);
		for (size_t i = 0; i < n_desc; i++) {
			set_access(m, &desc[i]);
		}
		at += m->range.bytes;
	}
	space_unlock();
	return err;
}

CUresult cuMemGetAccess(unsigned long long *flags_out, const CUmemLocation *location,
                        CUdeviceptr addr)
{
	ENTER(cuMemGetAccess);
	if (!flags_out || !location) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	bool is_host = is_host_location(location);
	if (!is_host &&
	    (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_is_valid(location->id))) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find(addr);
	CUresult err = m && m->kind != SPACE_HOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	*flags_out = 0;
	if (err == CUDA_SUCCESS && m->kind == SPACE_VMM) {
		*flags_out = is_host ? m->host_access : m->access[location->id];
	}
	space_unlock();
	return err;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle_out, void *addr)
{
	ENTER(cuMemRetainAllocationHandle);
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	if (!handle_out) {
		return err;
	}
	space_lock_read();
	struct mapping *m = space_find((uintptr_t)addr);
	if (m && m->kind == SPACE_VMM) {
		err = phys_add_handle(m->phys, handle_out);
	}
	space_unlock();
	return err;
}

/* Returns an fd, as for a dma-buf, that serves nothing, because there is no other device. */
CUresult cuMemGetHandleForAddressRange(void *handle_out, CUdeviceptr addr, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags)
{
	ENTER(cuMemGetHandleForAddressRange);
	if (!handle_out || bytes == 0 || flags != 0 ||
	    type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	bool is_mapped = space_find(addr) && space_find(addr + bytes - 1);
	space_unlock();
	if (!is_mapped) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	int fd = memfd_create("cudasim-dmabuf", MFD_CLOEXEC);
	if (fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)handle_out = fd;
	return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about pointers. The answers are those of an H200 with driver 580. */
#include "sim.h"

#include <string.h>

struct answer {
	CUresult err;
	unsigned n_bytes;
	union {
		uint64_t word;
		uint32_t half;
		uint8_t bytes[16];
	} value;
};

static struct answer answer_word(uint64_t value)
{
	return (struct answer){.n_bytes = 8, .value.word = value};
}

static struct answer answer_half(uint32_t value)
{
	return (struct answer){.n_bytes = 4, .value.half = value};
}

static struct answer refuse(CUresult err)
{
	return (struct answer){.err = err};
}

/* The access of the current context's device. */
static unsigned access_now(const struct mapping *m)
{
	return ctx_current() ? m->access[ctx_current()->device] : 0;
}

static struct answer device_pointer(const struct mapping *m, uint64_t addr)
{
	if (m->kind == SPACE_VMM && m->on_host && !ctx_current()) {
		return refuse(CUDA_ERROR_INVALID_CONTEXT);
	}
	return m->kind == SPACE_VMM && access_now(m) == 0 ? refuse(CUDA_ERROR_INVALID_VALUE)
	                                                  : answer_word(addr);
}

static struct answer host_pointer(const struct mapping *m, uint64_t addr)
{
	bool has = m->kind == SPACE_HOST || m->host_access != 0;

	return has ? answer_word(addr) : refuse(CUDA_ERROR_INVALID_VALUE);
}

/* The range that the program asked for: the reservation, the allocation, or the host range. */
static struct range range_asked(const struct mapping *m)
{
	return m->kind == SPACE_VMM ? space_find_reservation(m->range.start)->range : m->range;
}

/* The range of the piece of physical memory. */
static struct range range_mapped(const struct mapping *m)
{
	if (m->kind == SPACE_ALLOC) {
		return m->slab ? slab_reservation(m->slab)->range : m->res->range;
	}
	return m->range;
}

/* The space is locked. */
static struct answer ask(const struct mapping *m, CUpointer_attribute attribute, uint64_t addr)
{
	bool is_plain = m->kind == SPACE_ALLOC && !m->pool;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return answer_word(is_plain || m->kind == SPACE_HOST ? (uintptr_t)m->ctx : 0);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return answer_half(m->on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return device_pointer(m, addr);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return host_pointer(m, addr);
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return m->on_host ? refuse(CUDA_ERROR_INVALID_VALUE)
		                  : (struct answer){.n_bytes = 16};
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return answer_half(!m->on_host || m->is_sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return answer_word(m->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return answer_half(m->is_managed);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return answer_half(m->device);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return answer_half(is_plain);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return answer_word(range_asked(m).start);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return answer_word(range_asked(m).bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return answer_half(1);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return answer_word(m->kind == SPACE_VMM ? m->phys->prop.requestedHandleTypes : 0);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return answer_half(is_plain || (m->kind == SPACE_VMM && m->phys->rdma));
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return answer_half(access_now(m));
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return answer_word((uintptr_t)m->pool);
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return answer_word(range_mapped(m).bytes);
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return answer_word(range_mapped(m).start);
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return answer_word(m->phys ? m->phys->id : m->id);
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return answer_half(is_plain);
	default:
		return refuse(CUDA_ERROR_INVALID_VALUE);
	}
}

/* The answer of cuPointerGetAttributes for an unknown pointer; false: the output stays unchanged. */
static bool answer_unknown(uint64_t addr, CUpointer_attribute attribute, struct answer *answer)
{
	struct reservation *res = space_find_reservation(addr);

	*answer = answer_word(0);
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		answer->value.word = res ? res->range.start : 0;
		return res != NULL;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		answer->value.word = res ? res->range.bytes : 0;
		return res != NULL;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*answer = answer_half((uint32_t)-2);
		return true;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return true;
	default:
		*answer = answer_half(0);
		return true;
	}
}

/* SYNC_MEMOPS changes nothing: calls that it concerns wait anyway, and nobody reads device memory past the driver. */
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr addr)
{
	ENTER(cuPointerSetAttribute);
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
		return err;
	}
	space_lock_write();
	struct mapping *m = space_find(addr);
	if (m && !m->is_managed) {
		m->is_sync_memops = *(const unsigned *)value != 0;
		err = CUDA_SUCCESS;
	}
	space_unlock();
	return err;
}

CUresult cuPointerGetAttribute(void *data_out, CUpointer_attribute attribute, CUdeviceptr addr)
{
	ENTER(cuPointerGetAttribute);
	struct answer answer = refuse(CUDA_ERROR_INVALID_VALUE);

	if (!data_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find(addr);
	if (m) {
		answer = ask(m, attribute, addr);
	}
	space_unlock();
	memcpy(data_out, &answer.value, answer.n_bytes);
	return answer.err;
}

CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data_out,
                                CUdeviceptr addr)
{
	ENTER(cuPointerGetAttributes);
	if (n == 0 || !attributes || !data_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find(addr);
	for (unsigned i = 0; i < n; i++) {
		struct answer answer;
		if (!m) {
			if (!answer_unknown(addr, attributes[i], &answer)) {
				continue;
			}
		} else {
			answer = ask(m, attributes[i], addr);
			if (answer.err != CUDA_SUCCESS) {
				answer_unknown(addr, attributes[i], &answer);
			}
		}
		memcpy(data_out[i], &answer.value, answer.n_bytes);
	}
	space_unlock();
	return CUDA_SUCCESS;
}

/* The range is one mapping, even inside a larger reservation. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base_out, size_t *bytes_out, CUdeviceptr addr)
{
	ENTER(cuMemGetAddressRange_v2);
	CUresult err = CUDA_ERROR_NOT_FOUND;

	space_lock_read();
	struct mapping *m = space_find(addr);
	if (m && (m->kind != SPACE_VMM || access_now(m) != 0)) {
		if (base_out) {
			*base_out = m->range.start;
		}
		if (bytes_out) {
			*bytes_out = m->range.bytes;
		}
		err = CUDA_SUCCESS;
	}
	space_unlock();
	return err;
}

/* Returns a handle, which opens nothing. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle_out, CUdeviceptr addr)
{
	ENTER(cuIpcGetMemHandle);
	if (!handle_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find(addr);
	bool ok = m && m->kind == SPACE_ALLOC && !m->pool;
	if (ok) {
		memset(handle_out, 0, sizeof(*handle_out));
		memcpy(handle_out, &m->id, sizeof(m->id));
	}
	space_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr_out, CUipcMemHandle handle, unsigned int flags)
{
	ENTER(cuIpcOpenMemHandle_v2);
	(void)handle;
	return ptr_out && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? CUDA_ERROR_INVALID_HANDLE
	                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr addr)
{
	ENTER(cuIpcCloseMemHandle);
	(void)addr;
	return CUDA_ERROR_INVALID_VALUE;
}

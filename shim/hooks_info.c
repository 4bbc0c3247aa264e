/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about memory. glaked's memory is mapped by the driver's virtual memory management, so
 * the driver would describe the mapping or the reservation where a program expects its allocation.
 * The shim itself answers whatever differs from memory of cuMemAlloc().
 *
 * A question does not wake the process, because monitors ask all the time. The driver does not know memory that is
 * asleep, so the shim answers all questions about allocations. Only the driver can answer about memory that the program maps
 * itself, so such a question wakes the process.
 */
#include <string.h>

#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/ipc.h"
#include "shim/order.h"
#include "shim/connection.h"
#include "shim/view.h"
#include "shim/vmm.h"

/* After this many looks the last answer is taken, because others may allocate and free all the time. */
#define MAX_LOOKS 32

static bool asks_us(void)
{
	return shim_policy_owns_any() && shim_can_own() && !shim_is_forked();
}

static bool find_facts(CUdeviceptr address, struct heap_facts *facts_out)
{
	return !shim_is_forked() && (heap_find(address, facts_out) || ipc_find(address, facts_out));
}

/*
 * Freed memory of ours may still be mapped for the next allocation, and free addresses of the
 * window are reserved. The driver would describe both as valid. So it is asked about an address
 * where nothing ever is.
 */
static CUdeviceptr unless_freed(CUdeviceptr address)
{
	const CUdeviceptr nobodys = 0x1000;
	if (shim_is_forked()) {
		return address;
	}
	struct glake__address_info info = glake__space_look(address);
	bool is_freed = info.kind == GLAKE__FREE || info.kind == GLAKE__HEAP ||
	                (info.kind == GLAKE__OPENED && info.user);
	return is_freed ? nobodys : address;
}

/* Is it memory that the program has mapped itself? The shim has no list of that. */
static bool is_unlisted(enum glake__address_kind kind)
{
	return kind == GLAKE__PROGRAMS || kind == GLAKE__OWN;
}

/* The driver knows only one reservation, the window. */
static bool answer_reserved(CUdeviceptr address, CUpointer_attribute attribute, void *data)
{
	struct glake__address_info info = {.kind = GLAKE__ELSEWHERE};
	if ((attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
	     attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) &&
	    !shim_is_forked()) {
		info = glake__space_look(address);
	}
	if (!is_unlisted(info.kind)) {
		return false;
	}
	uint64_t word = attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ? info.n_bytes : info.address;
	memcpy(data, &word, sizeof(word));
	return true;
}

static bool say_half(void *data, unsigned half)
{
	memcpy(data, &half, sizeof(half));
	return true;
}

/* Does the driver say @data of memory of the host? */
static bool is_of_host(CUpointer_attribute attribute, const void *data)
{
	unsigned said;
	if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
	    attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
		return false;
	}
	memcpy(&said, data, sizeof(said));
	return said == (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	                        ? CU_MEMORYTYPE_HOST
	                        : (unsigned)CU_DEVICE_INVALID);
}

/* Memory that the program maps itself may be in host memory for want of room. To the program it is where it was made. */
static void answer_where_made(CUdeviceptr address, CUpointer_attribute attribute, void *data)
{
	unsigned long long handle = is_of_host(attribute, data) && !shim_is_forked()
	                                    ? glake__number_retain(address)
	                                    : 0;
	if (!handle) {
		return;
	}
	struct glake__number *number = glake__number_take(handle);
	const CUmemLocation *made = number ? &vmm_properties(number)->location : NULL;
	if (made && made->type == CU_MEM_LOCATION_TYPE_DEVICE) {
		say_half(data, attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE
		                                                             : (unsigned)made->id);
	}
	glake__number_give(number);
	glake__number_release(handle);
}

/* Answers for memory that is no allocation of ours, behind the driver. False: its answer is right. */
static bool answer_for_mapped(CUdeviceptr address, CUpointer_attribute attribute, void *data)
{
	answer_where_made(address, attribute, data);
	return answer_reserved(address, attribute, data);
}

/* May @address be asleep? The driver knows the type of memory that is awake. */
static bool is_unknown_asleep(CUdeviceptr address)
{
	unsigned type;
	return gate_is_asleep() &&
	       real(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
	               CUDA_SUCCESS;
}

/* Called before the driver is asked about memory that the shim does not know. False: the program ends. */
static bool wake_unlisted(CUdeviceptr address)
{
	return shim_is_forked() || !gate_is_asleep() ||
	       !is_unlisted(glake__space_look(address).kind) || !is_unknown_asleep(address) ||
	       gate_pass();
}

/*
 * A program that asks how much is free is about to use the device, so connect now, which asks for its promise. False: glaked
 * refused that, and would refuse the first allocation.
 */
static bool have_promised(CUdevice device)
{
	bool is_refused;
	struct connection *connection = connection_get(&is_refused);
	if (!connection) {
		return true;
	}
	int index = glake_device_index(connection->session, device);
	int r = index >= 0 ? glake__promise_device(connection->session, (uint32_t)index) : 0;
	bool is_had = r == 0 || connection_note(connection, r) || r == GLAKE_E_GONE;
	connection_unref(connection);
	return is_had;
}

/* @view stays unchanged if glaked does not answer. */
static void apply_view(CUdevice device, struct view *view)
{
	bool is_refused;
	struct connection *connection = connection_get(&is_refused);
	if (!connection) {
		return;
	}
	int index = glake_device_index(connection->session, device);
	if (index >= 0) {
		connection_note(connection,
		                view_apply(connection->session, (uint32_t)index, 0, view));
	}
	connection_unref(connection);
}

/*
 * The driver and glaked are asked one after the other. Memory that glaked closes in between would be in
 * neither number, so they are asked again until the driver's has not changed meanwhile.
 */
static CUresult look(CUdevice device, struct view *view_out)
{
	struct view before = {0};
	struct view after = {0};
	CUresult result = real(cuMemGetInfo_v2)(&before.free_bytes, &before.total_bytes);
	for (int i = 0; i < MAX_LOOKS && result == CUDA_SUCCESS; i++) {
		*view_out = before;
		apply_view(device, view_out);
		result = real(cuMemGetInfo_v2)(&after.free_bytes, &after.total_bytes);
		if (after.free_bytes == before.free_bytes) {
			break;
		}
		before = after;
	}
	return result;
}

CUresult shim_cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
	CUdevice device;
	struct heap_target target;
	if (!free_out || !total_out || !asks_us() ||
	    real(cuCtxGetDevice)(&device) != CUDA_SUCCESS) {
		return real(cuMemGetInfo_v2)(free_out, total_out);
	}
	if (!have_promised(device)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Parked memory that is no longer in use becomes warm, and counts as free; but not while the process sleeps. */
	if (!gate_is_asleep()) {
		if (heap_target_here(&target)) {
			order_collect(target.ctx);
		}
		graphmem_collect();
	}
	struct view view;
	CUresult result = look(device, &view);
	if (result == CUDA_SUCCESS) {
		*free_out = view.free_bytes;
		*total_out = view.total_bytes;
	}
	return result;
}

CUresult shim_cuDeviceTotalMem_v2(size_t *total_out, CUdevice device)
{
	CUresult result = real(cuDeviceTotalMem_v2)(total_out, device);
	if (result == CUDA_SUCCESS && asks_us()) {
		struct view view = {.total_bytes = *total_out};
		apply_view(device, &view);
		*total_out = view.total_bytes;
	}
	return result;
}

CUresult shim_cuMemGetAddressRange_v2(CUdeviceptr *base_out, size_t *n_bytes_out,
                                      CUdeviceptr address)
{
	struct heap_facts facts;
	if ((!base_out && !n_bytes_out) || !find_facts(address, &facts)) {
		return wake_unlisted(address) ? real(cuMemGetAddressRange_v2)(base_out, n_bytes_out,
		                                                              unless_freed(address))
		                              : CUDA_ERROR_DEINITIALIZED;
	}
	if (base_out) {
		*base_out = facts.address;
	}
	if (n_bytes_out) {
		*n_bytes_out = facts.n_bytes;
	}
	return CUDA_SUCCESS;
}

/* Write our answer to @data. False: the driver's is right, as for memory of cuMemAlloc(). */
static bool answer(const struct heap_facts *facts, CUdeviceptr address,
                   CUpointer_attribute attribute, void *data)
{
	uint64_t word = 0;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return say_half(data, facts->has_ipc);
	/* The program sees memory of a GPU, also while that is in host memory for want of room. */
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return say_half(data, CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		/* Memory of another process may be another device's than the context that opened it. */
		return facts->connection && say_half(data, (unsigned)facts->target.device);
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* Memory of pools has no context. */
		word = facts->target.pool ? 0 : (uintptr_t)facts->target.ctx;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		/* The driver answers only if the current context may access it. */
		word = address;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		word = facts->id;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		word = facts->address;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		word = facts->n_bytes;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		word = facts->region_address;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		word = facts->region_bytes;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		word = facts->region_id;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		word = facts->target.pool ? (uintptr_t)cuda_pool_handle(facts->target.pool) : 0;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		break;
	default:
		return false;
	}
	memcpy(data, &word, sizeof(word));
	return true;
}

/* The driver's answers about memory of ours that is not asleep. False: it has none. */
static bool answer_for_driver(CUpointer_attribute attribute, void *data)
{
	unsigned half = 0;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		half = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_MAPPED:
		half = 1;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		break;
	default:
		return false;
	}
	return say_half(data, half);
}

static CUresult ask_attribute(CUpointer_attribute attribute, void *data, CUdeviceptr address)
{
	CUresult result = real(cuPointerGetAttribute)(data, attribute, address);
	return result == CUDA_ERROR_INVALID_VALUE && is_unknown_asleep(address) &&
	                       answer_for_driver(attribute, data)
	               ? CUDA_SUCCESS
	               : result;
}

CUresult shim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct heap_facts facts;
	if (!data || !find_facts(address, &facts)) {
		CUresult result = wake_unlisted(address)
		                          ? real(cuPointerGetAttribute)(data, attribute,
		                                                        unless_freed(address))
		                          : CUDA_ERROR_DEINITIALIZED;
		if (result == CUDA_SUCCESS) {
			answer_for_mapped(address, attribute, data);
		}
		return result;
	}
	return answer(&facts, address, attribute, data) ? CUDA_SUCCESS
	                                                : ask_attribute(attribute, data, address);
}

CUresult shim_cuPointerGetAttributes(unsigned n_attributes, CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr address)
{
	struct heap_facts facts;
	bool is_found = find_facts(address, &facts);
	if (!is_found && !wake_unlisted(address)) {
		return CUDA_ERROR_DEINITIALIZED;
	}
	CUresult result = real(cuPointerGetAttributes)(n_attributes, attributes, data,
	                                               is_found ? address : unless_freed(address));
	bool is_asleep = is_found && is_unknown_asleep(address);
	for (unsigned i = 0; result == CUDA_SUCCESS && i < n_attributes; i++) {
		bool is_ours = is_found ? answer(&facts, address, attributes[i], data[i])
		                        : answer_for_mapped(address, attributes[i], data[i]);
		if (!is_ours && is_asleep) {
			answer_for_driver(attributes[i], data[i]);
		}
	}
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Each hook makes the real call, and completes its answer with glaked's numbers. */

#include "shim/nvml/nvml.h"
#include "shim/nvml/question.h"

#define real(symbol) (nvml_real.symbol)

/* ---- how much there is ------------------------------------------------------------------------ */

int shim_nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory_out)
{
	int result = real(nvmlDeviceGetMemoryInfo)(device, memory_out);
	if (result != NVML_SUCCESS) {
		return result;
	}
	struct view view = {.free_bytes = memory_out->free, .total_bytes = memory_out->total};
	if (question_view(device, &view)) {
		memory_out->total = view.total_bytes;
		memory_out->free = view.free_bytes;
		memory_out->used = view.total_bytes - view.free_bytes;
	}
	return result;
}

int shim_nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory)
{
	int result = real(nvmlDeviceGetMemoryInfo_v2)(device, memory);
	if (result != NVML_SUCCESS || memory->version != NVML_MEMORY_V2) {
		return result;
	}
	struct view view = {.free_bytes = memory->free, .total_bytes = memory->total};
	if (question_view(device, &view)) {
		/* A quota has no part of the driver's own reserve. */
		memory->reserved = view.total_bytes < memory->total ? 0 : memory->reserved;
		memory->total = view.total_bytes;
		uint64_t room_bytes = memory->total - memory->reserved;
		memory->free = view.free_bytes < room_bytes ? view.free_bytes : room_bytes;
		memory->used = room_bytes - memory->free;
	}
	return result;
}

/* ---- who has it ------------------------------------------------------------------------------- */

#define LIST(symbol, row) \
	int shim_##symbol(void *device, unsigned *n, struct row *rows) \
	{ \
		int result = real(symbol)(device, n, rows); \
		if (result == NVML_SUCCESS && rows) { \
			question_add(device, rows, *n, sizeof(*rows)); \
		} \
		return result; \
	}
LIST(nvmlDeviceGetComputeRunningProcesses, nvml_process)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvml_process_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvml_process_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvml_process)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvml_process_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvml_process_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvml_process)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvml_process_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvml_process_v2)

int shim_nvmlDeviceGetRunningProcessDetailList(void *device, struct nvml_process_list *list)
{
	int result = real(nvmlDeviceGetRunningProcessDetailList)(device, list);
	if (result == NVML_SUCCESS && list->version == NVML_PROCESS_LIST_V1 && list->rows) {
		question_add(device, list->rows, list->n_rows, sizeof(*list->rows));
	}
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/pinned.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_BYTES (2ul * 1024 * 1024)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Anonymous memory at a huge page's boundary, present. NULL when there is none. */
static void *map_huge(size_t n_bytes)
{
	char *memory = mmap(NULL, n_bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		return NULL;
	}
	size_t head = (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
	if (head > 0) {
		munmap(memory, head);
	}
	munmap(memory + head + n_bytes, HUGE_BYTES - head);
	memory += head;
	/* Either may fail: registering then finds small pages, or makes them. */
	madvise(memory, n_bytes, MADV_HUGEPAGE);
	madvise(memory, n_bytes, MADV_POPULATE_WRITE);
	return memory;
}

CUresult pinned_new(struct pinned *pinned, const struct cudrv *drv, size_t n_bytes)
{
	n_bytes = (n_bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	void *memory = map_huge(n_bytes);
	if (memory) {
		CUresult result = drv->cuMemHostRegister(memory, n_bytes,
		                                         CU_MEMHOSTREGISTER_PORTABLE);
		if (result == CUDA_SUCCESS) {
			*pinned = (struct pinned){memory, n_bytes, true};
			return CUDA_SUCCESS;
		}
		munmap(memory, n_bytes);
	}
	CUresult result = drv->cuMemHostAlloc(&memory, n_bytes, CU_MEMHOSTALLOC_PORTABLE);
	if (result == CUDA_SUCCESS) {
		*pinned = (struct pinned){memory, n_bytes, false};
	}
	return result;
}

void pinned_free(struct pinned *pinned, const struct cudrv *drv)
{
	if (pinned->is_registered) {
		drv->cuMemHostUnregister(pinned->memory);
		munmap(pinned->memory, pinned->bytes);
	} else if (pinned->memory) {
		drv->cuMemFreeHost(pinned->memory);
	}
	*pinned = (struct pinned){0};
}

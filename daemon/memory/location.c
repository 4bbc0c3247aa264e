/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/location.h"

/* The asserts are the accounting's proof: they stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

void location_close(struct location *at)
{
	/* The owners of these bytes have gone before. */
	assert(at->saved_alone_bytes == 0 && at->unsealing_bytes == 0);
	if (at->is_started) {
		worker_deinit(&at->worker);
		at->is_started = false;
	}
}

int location_start(struct location *at, uv_loop_t *loop)
{
	char name[LOCATION_NAME_BYTES];
	if (at->is_started) {
		return 0;
	}
	int r = worker_init(&at->worker, loop);
	if (r < 0) {
		log_limited(&at->log_limit, LOG_LEVEL_ERROR, "%s: cannot start its worker: %s",
		            location_name(at, name), strerror(-r));
		return r;
	}
	at->is_started = true;
	return 0;
}

const char *location_name(const struct location *at, char name[LOCATION_NAME_BYTES])
{
	snprintf(name, LOCATION_NAME_BYTES, "%s %u",
	         at->kind == LOCATION_GPU ? "device" : "host node", at->number);
	return name;
}

uint64_t location_physical_bytes(const struct location *at)
{
	uint64_t sum = 0;
	for (int use = 0; use < CHUNK_N_USES; use++) {
		sum += at->use_bytes[use];
	}
	return sum;
}

uint64_t location_most_bytes(const struct location *at)
{
	return at->usable_bytes > at->anchor_bytes ? at->usable_bytes - at->anchor_bytes : 0;
}

uint64_t location_room_bytes(const struct location *at)
{
	uint64_t taken_bytes = location_physical_bytes(at) + at->coming_bytes + at->promised_bytes +
	                       at->unsealing_bytes;
	return taken_bytes < at->usable_bytes ? at->usable_bytes - taken_bytes : 0;
}

bool location_has_room(const struct location *at, uint64_t bytes)
{
	return bytes <= location_room_bytes(at);
}

CUresult location_export_chunk(const struct location *at, CUmemGenericAllocationHandle handle,
                               int *fd_out)
{
	int fd = -1;
	CUresult result = at->drv->cuMemExportToShareableHandle(
		&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == CUDA_SUCCESS) {
		/*
		 * The driver does not promise this flag. A chunk that glake-mover inherits would
		 * outlive its release.
		 */
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		*fd_out = fd;
	}
	return result;
}

CUresult location_make_chunk(const struct location *at, uint64_t bytes, int *fd_out,
                             CUmemGenericAllocationHandle *handle_out)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = at->drv->cuMemCreate(&handle, bytes, &at->properties, 0);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = location_export_chunk(at, handle, fd_out);
	if (result == CUDA_SUCCESS && handle_out) {
		*handle_out = handle;
	} else {
		at->drv->cuMemRelease(handle);
	}
	return result;
}

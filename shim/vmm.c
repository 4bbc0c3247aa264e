/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/vmm.h"

#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "shim/connection.h"
#include "shim/driver_usage.h"

struct vmm_chunk {
	uint64_t id; /* glaked's */
	uint64_t n_bytes;
	CUmemAllocationProp properties;
	struct connection *connection; /* a reference; NULL: the driver's own, only counted */
};

/* ---- chunks ----------------------------------------------------------------------------------- */

bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
	return flags == 0 && properties && n_bytes > 0 && n_bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       n_bytes <= GLAKE_MAX_CHUNK_BYTES &&
	       properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	               0 &&
	       !properties->win32HandleMetaData && properties->allocFlags.compressionType == 0 &&
	       properties->allocFlags.usage == 0;
}

static void chunk_free(void *user)
{
	struct vmm_chunk *chunk = user;
	if (!chunk->connection) {
		driver_usage_grow(chunk->properties.location.id, DRIVER_USAGE_OTHER,
		                  -(int64_t)chunk->n_bytes);
		free(chunk);
		return;
	}
	glake_chunk_free(chunk->connection->session, chunk->id, chunk->n_bytes);
	connection_unref(chunk->connection);
	free(chunk);
}

struct chunk_request {
	struct vmm_chunk *chunk;
	uint32_t index; /* glaked's number of the device */
	int *fd_out;
};

static int request_chunk(struct connection *connection, void *user)
{
	struct chunk_request *request = user;
	return glake_chunk_new(connection->session, request->index, request->chunk->n_bytes,
	                       &request->chunk->id, request->fd_out);
}

/* Sets id and connection of the chunk. */
static int ask(struct connection *connection, void *user)
{
	struct chunk_request *request = user;
	struct vmm_chunk *chunk = request->chunk;
	int index = glake_device_index(connection->session, chunk->properties.location.id);
	if (index < 0) {
		return CONNECTION_E_FOREIGN;
	}
	request->index = (uint32_t)index;
	int r = connection_ask(connection, request_chunk, request);
	chunk->connection = r == 0 ? connection : NULL;
	return r;
}

static bool enter(struct vmm_chunk *chunk, vmm_handle handle)
{
	CUmemLocation location = chunk->properties.location;
	int device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
	return glake__program_made(handle, chunk->n_bytes, device, chunk, chunk_free) != NULL;
}

int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out)
{
	struct vmm_chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk) {
		return CONNECTION_E_REFUSED;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties};
	cleanup_fd int fd = -1;
	struct chunk_request request = {.chunk = chunk, .fd_out = &fd};
	int r = connection_use(ask, &request);
	if (r != 0) {
		free(chunk);
		return r;
	}
	vmm_handle handle;
	if (real(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
	                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
	    CUDA_SUCCESS) {
		chunk_free(chunk);
		return CONNECTION_E_ABSENT;
	}
	if (!enter(chunk, handle)) {
		real(cuMemRelease)(handle);
		chunk_free(chunk);
		return CONNECTION_E_REFUSED;
	}
	*handle_out = handle;
	return 0;
}

void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties)
{
	struct vmm_chunk *chunk = NULL;
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		chunk = calloc(1, sizeof(*chunk));
	}
	if (!chunk) {
		return;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties};
	if (!enter(chunk, handle)) {
		free(chunk);
		return;
	}
	driver_usage_grow(properties->location.id, DRIVER_USAGE_OTHER, (int64_t)n_bytes);
}

/* ---- answers ---------------------------------------------------------------------------------- */

const struct vmm_chunk *vmm_ours(const struct glake__chunk *chunk)
{
	const struct vmm_chunk *ours = chunk ? glake__program_user(chunk) : NULL;
	return ours && ours->connection ? ours : NULL;
}

const CUmemAllocationProp *vmm_properties(const struct vmm_chunk *chunk)
{
	return &chunk->properties;
}

CUresult vmm_export(const struct vmm_chunk *chunk, int *fd_out)
{
	int fd = -1;
	int r = glake_chunk_fd(chunk->connection->session, chunk->id, &fd);
	if (r < 0) {
		connection_note(chunk->connection, r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*fd_out = fd;
	return CUDA_SUCCESS;
}
